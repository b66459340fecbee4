package dialect

import (
	"google.golang.org/protobuf/types/known/timestamppb"

	runv1 "signalbox.dev/proto/signalbox/run/v1"
)

// Asked is a question to a person about a tool call, and the answer, or a call that waits for a
// client's result.
type Asked struct {
	Call, Tool, Args, Reason string
	Client                   bool
	OutcomeUnknown           bool
	Decision, DecisionReason string // empty while the call waits
	Until                    *timestamppb.Timestamp
}

// Rebuild returns events that lead to the given state of a run, for a run whose first events are
// no longer in the log. They are not those of the log: a Fold encodes the same content, but in
// other chunks. stored are the run's messages, and asked the questions of its last step. waits is
// the number of the event with which the run began to wait for a person, or -1 if it does not.
func Rebuild(run string, ordinal int64, stored []Stored, asked []Asked, waits int64) ([]*runv1.Event, error) {
	b := rebuilder{run: run, ordinal: ordinal}
	for _, m := range stored {
		if err := b.add(m); err != nil {
			return nil, err
		}
	}
	if b.pending == 0 {
		b.finish()
	}
	person, client := false, false
	for _, a := range asked {
		if client = client || a.Client; a.Client {
			b.event(&runv1.Event{Body: &runv1.Event_ToolClientRequest{ToolClientRequest: &runv1.ToolClientRequest{
				ToolCallId: a.Call, ToolName: a.Tool, ArgsJson: a.Args,
			}}})
			continue
		}
		person = true
		b.event(&runv1.Event{Body: &runv1.Event_ToolApprovalRequest{ToolApprovalRequest: &runv1.ToolApprovalRequest{
			ToolCallId: a.Call, ToolName: a.Tool, ArgsJson: a.Args, Reason: a.Reason, OutcomeUnknown: a.OutcomeUnknown, ExpiresAt: a.Until,
		}}})
	}
	if len(asked) > 0 {
		e := b.event(&runv1.Event{Body: &runv1.Event_Waiting{Waiting: &runv1.Waiting{ForPerson: person, ForClient: client}}})
		if waits >= 0 {
			e.Number = waits
		}
	}
	for _, a := range asked {
		if a.Decision != "" {
			b.event(&runv1.Event{Body: &runv1.Event_ToolApprovalResponse{ToolApprovalResponse: &runv1.ToolApprovalResponse{
				ToolCallId: a.Call, ToolName: a.Tool, Decision: a.Decision, Reason: a.DecisionReason, OutcomeUnknown: a.OutcomeUnknown,
			}}})
		}
	}
	return b.out, nil
}

// rebuilder makes events of stored messages.
type rebuilder struct {
	run     string
	ordinal int64
	out     []*runv1.Event
	step    int32
	begun   bool // the step has an answer
	pending int  // calls of the step without results
}

func (b *rebuilder) event(e *runv1.Event) *runv1.Event {
	e.RunId, e.RunOrdinal, e.Epoch, e.StepIndex = b.run, b.ordinal, 1, b.step
	if len(b.out) > 0 {
		e.Number = 1 // only the first and a pause matter
	}
	b.out = append(b.out, e)
	return e
}

// finish ends the open step.
func (b *rebuilder) finish() {
	if b.begun {
		b.event(&runv1.Event{Body: &runv1.Event_StepComplete{StepComplete: &runv1.StepComplete{}}})
		b.begun = false
		b.step++
	}
}

func (b *rebuilder) add(m Stored) error {
	parts, err := partsOf(m.Content)
	if err != nil {
		return err
	}
	switch m.Role {
	case "assistant":
		b.finish()
		b.begun, b.pending = true, 0
		for i, p := range parts {
			b.part(int32(min(i, 1<<20)), p)
		}
	case "tool":
		for i, p := range parts {
			b.part(int32(min(i, 1<<20)), p)
		}
	case "user":
		b.finish()
		b.event(&runv1.Event{Body: &runv1.Event_UserMessage{UserMessage: &runv1.UserMessage{MessageId: m.ID, ContentJson: string(m.Content)}}})
		if len(b.out) == 1 {
			b.event(&runv1.Event{Body: &runv1.Event_RunStart{RunStart: &runv1.RunStart{Model: m.Model, Simulated: m.Simulated}}})
		}
	}
	return nil
}

func (b *rebuilder) part(block int32, p modelPart) {
	switch p.Type {
	case "text":
		b.event(&runv1.Event{Body: &runv1.Event_TextDelta{TextDelta: &runv1.TextDelta{Delta: p.Text, Block: block}}})
	case "reasoning":
		b.event(&runv1.Event{Body: &runv1.Event_ReasoningDelta{ReasoningDelta: &runv1.ReasoningDelta{Delta: p.Text, Block: block}}})
	case "tool-call":
		b.pending++
		b.event(&runv1.Event{Body: &runv1.Event_ToolCallComplete{ToolCallComplete: &runv1.ToolCallComplete{
			ToolCallId: p.ToolCallID, ToolName: p.ToolName, ArgsJson: string(p.Input), ProviderExecuted: p.ProviderExecuted,
		}}})
	case "tool-result":
		if p.Output == nil {
			return
		}
		b.pending--
		isError := p.Output.Type == "error-text" || p.Output.Type == "error-json"
		b.event(&runv1.Event{Body: &runv1.Event_ToolResult{ToolResult: &runv1.ToolResult{
			ToolCallId: p.ToolCallID, ToolName: p.ToolName, ResultJson: string(p.Output.Value), IsError: isError, ProviderExecuted: p.ProviderExecuted,
		}}})
	}
}

// Private returns a fold whose encodings are not shared with other readers, for one whose state is
// of rebuilt events.
func Private(f Fold) Fold { return &private{f} }

type private struct{ Fold }
