package loop

import (
	"slices"

	runv1 "signalbox.dev/proto/signalbox/run/v1"
	"signalbox.dev/services/agent-runner/internal/run"
	"signalbox.dev/services/agent-runner/internal/runlog"
)

// opening returns the first events of a claim, from what is committed and what the log holds.
//
// Everything up to event number run.LastEvent is committed. The log may lack a tail of it,
// whose events are rebuilt from the rows under their numbers. What the log holds beyond
// LastEvent was streamed by a step that is now void, which a step-retry says, or is results
// of a committed answer's tools, or ends with the notice of a runner that shut down before the
// step. That notice is in the log only: no commit covers it, and it is not rebuilt. Messages
// that joined and are not in the log are emitted now.
func opening(c *run.Claim, asked *runv1.Event_UserMessage, joined []*runv1.Event, last *run.OpenStep, tail runlog.Tail) runlog.Opening {
	r := &c.Run
	if c.First {
		return runlog.Opening{Events: []*runv1.Event{{Body: asked}, runStart(r)}}
	}
	o := runlog.Opening{From: max(tail.Number, r.LastEvent) + 1}
	announced := announcement(r, asked, last)
	first := r.LastEvent - int64(len(announced)) + 1 // the number of announced[0]
	if missing := tail.Number + 1; missing >= first && missing <= r.LastEvent {
		o.From = missing
		o.Events = announced[missing-first:]
	}
	o.Events = append(o.Events, runStart(r))
	if tail.Number > r.LastEvent && (last == nil || last.State == "complete") && !endsParked(tail) {
		o.Events = append(o.Events, stepRetry(r.Steps, "the runner was lost: this step begins again"))
	}
	o.Events = append(o.Events, missingMessages(joined, tail)...)
	return o
}

// endsParked reports whether the last runner shut down between two steps, where nothing is void.
func endsParked(tail runlog.Tail) bool {
	n := len(tail.Events)
	return n > 0 && tail.Events[n-1].GetWaiting().GetForRunner()
}

// missingMessages returns the messages that the log does not hold.
func missingMessages(joined []*runv1.Event, tail runlog.Tail) []*runv1.Event {
	emitted := map[string]bool{}
	for _, ev := range tail.Events {
		emitted[ev.GetUserMessage().GetMessageId()] = true
	}
	var out []*runv1.Event
	for _, ev := range joined {
		if !emitted[ev.GetUserMessage().GetMessageId()] {
			out = append(out, ev)
		}
	}
	return out
}

// announcement returns the events that announce the last commit. The last of them has number
// run.LastEvent.
func announcement(r *run.Run, asked *runv1.Event_UserMessage, last *run.OpenStep) []*runv1.Event {
	switch {
	case last == nil:
		return []*runv1.Event{{Body: asked}, runStart(r)}
	case last.State == "complete":
		return []*runv1.Event{stepComplete(last.Index, last.Message, last.InputTokens, last.OutputTokens, last.FinishReason)}
	case last.Waited:
		return []*runv1.Event{parkedFor(last.Index, announcedAs(run.AnnouncedQuestion, last.Calls))}
	default:
		return callsComplete(last.Index, last.Calls)
	}
}

// announcedAs returns the calls of which the run's last event covers this.
func announcedAs(a run.Announced, calls []run.Call) []run.Call {
	return slices.DeleteFunc(slices.Clone(calls), func(c run.Call) bool { return c.Announced != a })
}

// told is what the run log holds of a step's calls beyond what the run's last commit covers.
type told struct {
	results map[string]*runv1.ToolResult // by call id
	// asked and answered have the questions to people and clients, and the answers of people.
	asked, answered map[question]bool
}

// question identifies one of the questions about a call.
type question struct {
	of   run.Question
	call string
}

func questionOf(callID string, outcomeUnknown bool) question {
	if outcomeUnknown {
		return question{run.AskOutcome, callID}
	}
	return question{run.AskApproval, callID}
}

// toldOf returns what the log holds of a step's calls after the event with the given number.
func toldOf(tail runlog.Tail, step int, after int64) *told {
	t := &told{map[string]*runv1.ToolResult{}, map[question]bool{}, map[question]bool{}}
	for _, ev := range tail.Events {
		if int(ev.GetStepIndex()) != step || ev.GetNumber() <= after {
			continue
		}
		switch b := ev.GetBody().(type) {
		case *runv1.Event_ToolResult:
			if !b.ToolResult.GetProviderExecuted() {
				t.results[b.ToolResult.GetToolCallId()] = b.ToolResult
			}
		case *runv1.Event_ToolApprovalRequest:
			t.asked[questionOf(b.ToolApprovalRequest.GetToolCallId(), b.ToolApprovalRequest.GetOutcomeUnknown())] = true
		case *runv1.Event_ToolClientRequest:
			t.asked[question{run.AskClient, b.ToolClientRequest.GetToolCallId()}] = true
		case *runv1.Event_ToolApprovalResponse:
			t.answered[questionOf(b.ToolApprovalResponse.GetToolCallId(), b.ToolApprovalResponse.GetOutcomeUnknown())] = true
		}
	}
	return t
}
