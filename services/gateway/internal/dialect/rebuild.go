package dialect

import (
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"

	runv1 "signalbox.dev/proto/signalbox/run/v1"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
)

// Question is whose answer a tool call needs.
type Question uint8

// The questions about calls.
const (
	NoQuestion Question = iota
	OfPerson
	OfClient
)

// Asked is a tool call of a run's last step: the question about it, the answer and the result.
type Asked struct {
	Call, Tool, Args string
	Question         Question
	Reason           string // why a person is asked
	OutcomeUnknown   bool
	Decision         string // empty while the call waits
	DecisionReason   string
	Until            *timestamppb.Timestamp
	Result           *toolv1.Outcome // nil if there is none yet
}

// Rebuild returns events that lead to the given state of a run, for a run whose first events are
// no longer in the log. They are not those of the log: a Fold encodes the same content, but in
// other chunks, and pauses before the last calls are left out. stored are the run's messages, and
// asked its last step with calls, whose index is step. waits is the number of the event with which
// the run began to wait for a person or a client, or -1 if it does not.
func Rebuild(run string, ordinal int64, stored []Stored, step int32, asked []Asked, waits int64) ([]*runv1.Event, error) {
	b := rebuilder{run: run, ordinal: ordinal}
	last := -1
	for i, m := range stored {
		if m.Role == "assistant" && len(asked) > 0 && hasCall(m, asked[0].Call) {
			last = i
		}
	}
	for i, m := range stored {
		if i == last {
			b.finish()
			b.step = step
		}
		if err := b.add(m); err != nil {
			return nil, err
		}
		if i == last {
			b.questions(asked, waits, i == len(stored)-1)
		}
	}
	if b.pending == 0 {
		b.finish()
	}
	return b.out, nil
}

func hasCall(m Stored, call string) bool {
	parts, _ := partsOf(m.Content) // add reports the error
	return slices.ContainsFunc(parts, func(p modelPart) bool { return p.Type == "tool-call" && p.ToolCallID == call })
}

// questions emits the questions about a step's calls, a pause, and the answers. If there are
// answered and waiting ones, the run waits for the second time. With results it emits those too,
// because no message has them yet.
func (b *rebuilder) questions(asked []Asked, waits int64, results bool) {
	var answered, waiting []Asked
	for _, a := range asked {
		switch {
		case a.Question == NoQuestion:
		case a.Decision != "":
			answered = append(answered, a)
		default:
			waiting = append(waiting, a)
		}
		b.ask(a)
	}
	for _, a := range asked {
		if a.Question == NoQuestion && results {
			b.result(a)
		}
	}
	if len(answered) > 0 {
		b.wait(slices.Concat(answered, waiting))
	}
	for _, a := range answered {
		b.answer(a)
		if results {
			b.result(a)
		}
	}
	if len(waiting) > 0 {
		if e := b.wait(waiting); waits >= 0 {
			e.Number = waits
		}
	}
}

// ask emits the question about a call.
func (b *rebuilder) ask(a Asked) {
	switch a.Question {
	case OfClient:
		b.event(&runv1.Event{Body: &runv1.Event_ToolClientRequest{ToolClientRequest: &runv1.ToolClientRequest{
			ToolCallId: a.Call, ToolName: a.Tool, ArgsJson: a.Args, ExpiresAt: a.Until,
		}}})
	case OfPerson:
		b.event(&runv1.Event{Body: &runv1.Event_ToolApprovalRequest{ToolApprovalRequest: &runv1.ToolApprovalRequest{
			ToolCallId: a.Call, ToolName: a.Tool, ArgsJson: a.Args, Reason: a.Reason, OutcomeUnknown: a.OutcomeUnknown, ExpiresAt: a.Until,
		}}})
	}
}

// wait emits that the run waits for an answer to one of the questions.
func (b *rebuilder) wait(asked []Asked) *runv1.Event {
	of := func(q Question) bool {
		return slices.ContainsFunc(asked, func(a Asked) bool { return a.Question == q })
	}
	return b.event(&runv1.Event{Body: &runv1.Event_Waiting{Waiting: &runv1.Waiting{ForPerson: of(OfPerson), ForClient: of(OfClient)}}})
}

// answer emits a person's answer. That of a client is the call's result.
func (b *rebuilder) answer(a Asked) {
	if a.Question == OfPerson {
		b.event(&runv1.Event{Body: &runv1.Event_ToolApprovalResponse{ToolApprovalResponse: &runv1.ToolApprovalResponse{
			ToolCallId: a.Call, ToolName: a.Tool, Decision: a.Decision, Reason: a.DecisionReason, OutcomeUnknown: a.OutcomeUnknown,
		}}})
	}
}

// result emits the result of a call that has one.
func (b *rebuilder) result(a Asked) {
	if a.Result == nil {
		return
	}
	b.pending--
	b.event(&runv1.Event{Body: &runv1.Event_ToolResult{ToolResult: &runv1.ToolResult{
		ToolCallId: a.Call, ToolName: a.Tool, ResultJson: a.Result.GetResultJson(), IsError: a.Result.GetState() != toolv1.OutcomeState_OUTCOME_STATE_OK,
	}}})
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
		found := sources{}
		for i, p := range parts {
			b.part(int32(min(i, 1<<20)), p)
			for _, s := range found.of(p) {
				b.event(&runv1.Event{Body: &runv1.Event_Source{Source: s}})
			}
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
