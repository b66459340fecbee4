package loop

import (
	"encoding/json"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox.dev/pkg/id"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/agent-runner/internal/llm"
	"signalbox.dev/services/agent-runner/internal/run"
)

// The functions below make all events of the run log, so that events rebuilt after a crash
// are the same.

func runStart(r *run.Run) *runv1.Event {
	return &runv1.Event{Body: &runv1.Event_RunStart{RunStart: &runv1.RunStart{Provider: r.Provider, Model: r.Model, Simulated: r.Simulated()}}}
}

func stepRetry(step int, reason string) *runv1.Event {
	return &runv1.Event{StepIndex: int32(step), Body: &runv1.Event_StepRetry{StepRetry: &runv1.StepRetry{Reason: reason}}}
}

// waiting returns a waiting event; until is zero if it is not known.
func waiting(step int, reason string, until time.Time) *runv1.Event {
	w := &runv1.Waiting{Reason: reason}
	if !until.IsZero() {
		w.Until = timestamppb.New(until.Truncate(time.Millisecond))
	}
	return &runv1.Event{StepIndex: int32(step), Body: &runv1.Event_Waiting{Waiting: w}}
}

// parkedByShutdown announces that this runner shuts down before a step, and that another one continues.
func parkedByShutdown(step int) *runv1.Event {
	ev := waiting(step, "this runner shuts down, as in a deploy; another one continues", time.Time{})
	ev.GetWaiting().ForRunner = true
	return ev
}

// approvalRequest returns the event for the question about a call.
func approvalRequest(step int, c *run.Call) *runv1.Event {
	ask := &runv1.ToolApprovalRequest{
		ToolCallId: c.ID, ToolName: c.Name, ArgsJson: string(c.Args), Reason: c.Ask.Why,
		OutcomeUnknown: c.Ask.Question == run.AskOutcome,
	}
	if !c.Ask.Until.IsZero() {
		ask.ExpiresAt = timestamppb.New(c.Ask.Until.Truncate(time.Millisecond))
	}
	return &runv1.Event{StepIndex: int32(step), Body: &runv1.Event_ToolApprovalRequest{ToolApprovalRequest: ask}}
}

func approvalResponse(step int, c *run.Call) *runv1.Event {
	answer := &runv1.ToolApprovalResponse{
		ToolCallId: c.ID, ToolName: c.Name, Decision: string(c.Ask.Decision), Reason: c.Ask.DecisionReason,
		OutcomeUnknown: c.Ask.Question == run.AskOutcome,
	}
	if c.Ask.DecidedBy != nil {
		answer.DecidedBy = c.Ask.DecidedBy.String()
	}
	return &runv1.Event{StepIndex: int32(step), Body: &runv1.Event_ToolApprovalResponse{ToolApprovalResponse: answer}}
}

// clientRequest returns the event for a call that a client runs.
func clientRequest(step int, c *run.Call) *runv1.Event {
	return &runv1.Event{StepIndex: int32(step), Body: &runv1.Event_ToolClientRequest{ToolClientRequest: &runv1.ToolClientRequest{
		ToolCallId: c.ID, ToolName: c.Name, ArgsJson: string(c.Args), Reason: c.Ask.Why,
		ExpiresAt: timestamppb.New(c.Ask.Until.Truncate(time.Millisecond)),
	}}}
}

// parkedFor announces that a run is parked until calls of a step have their answers.
func parkedFor(step int, waits []run.Call) *runv1.Event {
	var until time.Time
	var person, client bool
	for i := range waits {
		ask := waits[i].Ask
		if until.IsZero() || ask.Until.Before(until) {
			until = ask.Until
		}
		client = client || ask.Question == run.AskClient
		person = person || ask.Question != run.AskClient
	}
	reason := "a tool call waits for a person's approval"
	switch {
	case person && client:
		reason = "tool calls wait for a person's approval and for a client's result"
	case client:
		reason = "a tool call waits for a client's result"
	}
	ev := waiting(step, reason, until)
	ev.GetWaiting().ForPerson, ev.GetWaiting().ForClient = person, client
	return ev
}

// stepComplete announces a step, whose answer is in the message; nil if it has none.
func stepComplete(step int, message *id.Message, in, out int64, finish string) *runv1.Event {
	if finish == pausedReason || finish == repairReason || finish == compactedReason { // internal: viewers do not know them
		finish = string(llm.FinishOther)
	}
	complete := &runv1.StepComplete{TokensIn: in, TokensOut: out, FinishReason: finish}
	if message != nil {
		complete.MessageId = message.String()
	}
	return &runv1.Event{StepIndex: int32(step), Body: &runv1.Event_StepComplete{StepComplete: complete}}
}

// answerComplete is stepComplete for an answer without tool calls.
func answerComplete(a *run.Answer) *runv1.Event {
	return stepComplete(a.Step, a.Message(), a.Usage.Input, a.Usage.Output, a.FinishReason)
}

// Bounds of the content of one event, which has to fit into a message of the bus. The
// conversation's messages have all of it.
const (
	maxArgs = 256 << 10 // of a tool call; calls with longer ones are refused
	maxText = 256 << 10 // of a run's last answer
)

func callsComplete(step int, calls []run.Call) []*runv1.Event {
	out := make([]*runv1.Event, len(calls))
	for i, c := range calls {
		if len(c.Args) > maxArgs {
			c.Args = json.RawMessage(`{"too_large":"the arguments are in the message"}`)
		}
		out[i] = &runv1.Event{StepIndex: int32(step), Body: &runv1.Event_ToolCallComplete{
			ToolCallComplete: &runv1.ToolCallComplete{ToolCallId: c.ID, ToolName: c.Name, ArgsJson: string(c.Args)},
		}}
	}
	return out
}

// toolProgress returns the event for what a tool reports of a call.
func toolProgress(step int, c *run.Call, p *toolv1.Progress) *runv1.Event {
	return &runv1.Event{StepIndex: int32(step), Body: &runv1.Event_ToolProgress{
		ToolProgress: &runv1.ToolProgress{ToolCallId: c.ID, ToolName: c.Name, Message: p.GetMessage(), Percent: p.Percent},
	}}
}

func toolResult(step int, c *run.Call, o *run.Outcome) *runv1.Event {
	return &runv1.Event{StepIndex: int32(step), Body: &runv1.Event_ToolResult{
		ToolResult: &runv1.ToolResult{ToolCallId: c.ID, ToolName: c.Name, ResultJson: string(o.Result), IsError: o.IsError(), DurationMs: o.DurationMS},
	}}
}

// done returns the last event of a run that did not fail. text is the text of all steps.
func done(r *run.Run, text string, usage run.Usage, steps int, e *run.End) *runv1.Event {
	done := &runv1.Done{
		Text: shortened(text), FinalText: shortened(e.Text), TotalTokensIn: usage.Input, TotalTokensOut: usage.Output,
		Steps: int32(steps), FinishReason: e.FinishReason, FinishDetail: e.FinishDetail, Simulated: r.Simulated(),
	}
	if e.Answer != nil && e.Answer.Interrupted && e.Answer.Message() != nil {
		done.MessageId = e.Answer.ID.String()
	}
	return &runv1.Event{Body: &runv1.Event_Done{Done: done}}
}

func shortened(text string) string {
	if len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(text[:maxText], "") + "… (shortened: the messages have the complete text)"
}

func failed(e *run.End) *runv1.Event {
	out := &runv1.Error{Message: e.ErrorMessage, Code: e.ErrorCode}
	if e.ErrorRetryAt != nil {
		out.RetryAt = timestamppb.New(*e.ErrorRetryAt)
	}
	return &runv1.Event{Body: &runv1.Event_Error{Error: out}}
}

func userMessage(m run.Message, by id.Member) *runv1.Event {
	return &runv1.Event{Body: run.UserMessageEvent(m.ID, by, m.Content, m.CreatedAt)}
}
