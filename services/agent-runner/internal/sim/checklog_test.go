package sim

import (
	"encoding/json"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	runv1 "signalbox.dev/proto/signalbox/run/v1"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/agent-runner/internal/modelmsg"
	"signalbox.dev/services/agent-runner/internal/run"
)

// shown is what a viewer who was always connected has seen of one run.
type shown struct {
	epoch, number int64
	events        []*runv1.Event
	holes         bool // the log lost something that it had acknowledged
	ended         bool
	stuck         bool // the run was given up, perhaps without the log
}

// checkLog reads a session's log in order, as viewers do, and compares it with the rows.
func (w *world) checkLog(s *sessionRow) {
	_, subj := run.LogSubject(partitions, s.ws, s.id)
	runs := map[string]*shown{}
	for _, r := range w.pg.runsOf(s.id) {
		runs[r.ID.String()] = &shown{number: -1, stuck: r.ErrorCode == stuck}
	}
	var begun *shown // the newest run that a runner has begun to tell of
	for _, m := range w.nats.stored {
		if m.subject != subj {
			continue
		}
		ev := &runv1.Event{}
		if err := proto.Unmarshal(m.data, ev); err != nil {
			w.violation("event %s: %v", m.id, err)
			continue
		}
		v := runs[ev.GetRunId()]
		if v == nil || !w.admit(v, ev) {
			continue
		}
		if ev.GetNumber() == 0 && ev.GetEpoch() > 0 {
			if begun != nil && begun != v && !begun.ended && !begun.stuck {
				w.violation("run %d of session %s begins before the end of the one before is told", ev.GetRunOrdinal(), short(s.id))
			}
			begun = v
		}
	}
	for _, r := range w.pg.runsOf(s.id) {
		v := runs[r.ID.String()]
		if !v.ended {
			if v.stuck {
				continue // without the log: the gateway reads the row
			}
			w.violation("viewers never hear of the end of run %s", runLabel(&r.Run))
			continue
		}
		w.checkEvents(r, v)
	}
}

// admit reports whether a viewer accepts an event as the next of its run, by the rules of the
// proto, and of the gateway's feed if the log has lost something.
func (w *world) admit(v *shown, ev *runv1.Event) bool {
	higher := ev.GetEpoch() > v.epoch
	switch {
	case ev.GetEpoch() < v.epoch:
		return false
	case v.ended && higher:
		w.violation("run %d goes on after its end is told: event %d of epoch %d", ev.GetRunOrdinal(), ev.GetNumber(), ev.GetEpoch())
		return false
	case ev.GetNumber() <= v.number && !higher:
		return false
	case ev.GetNumber() != v.number+1:
		if !w.nats.lost && ev.GetError().GetCode() != stuck {
			w.violation("event %d of run %d, epoch %d, follows event %d of epoch %d", ev.GetNumber(), ev.GetRunOrdinal(), ev.GetEpoch(), v.number, v.epoch)
		}
		v.holes = true
	}
	v.epoch, v.number = ev.GetEpoch(), ev.GetNumber()
	v.events = append(v.events, ev)
	v.ended = ev.GetDone() != nil || ev.GetError() != nil
	return true
}

// checkEvents compares the events of a run with its row.
func (w *world) checkEvents(r *runRow, v *shown) {
	name := runLabel(&r.Run)
	last := v.events[len(v.events)-1]
	if last.GetNumber() != r.LastEvent {
		w.violation("run %s ends with event %d, viewers with %d", name, r.LastEvent, last.GetNumber())
	}
	switch done := last.GetDone(); {
	case done == nil != (r.State == run.Failed):
		w.violation("run %s is %s, and viewers are told %v", name, r.State, last)
	case done != nil && (done.GetFinishReason() != r.FinishReason || done.GetFinalText() != r.Text || !strings.HasSuffix(done.GetText(), r.Text)):
		w.violation("run %s ends with %s %q, viewers are told %s %q", name, r.FinishReason, r.Text, done.GetFinishReason(), done)
	case done != nil && r.Epoch > 0 && (done.GetTotalTokensIn() != r.InputTokens || done.GetTotalTokensOut() != r.OutputTokens || int(done.GetSteps()) != r.Steps):
		w.violation("run %s used %v in %d steps, viewers are told %v", name, r.Usage(), r.Steps, done)
	}
	if v.holes {
		return // viewers got a snapshot
	}
	w.checkJoined(r, v)
	for i := range w.pg.maxStep(r.ID) + 1 {
		w.checkStep(r, v, i)
	}
}

// checkJoined checks that every message that joined the conversation has one event, or more if
// the log lost one.
func (w *world) checkJoined(r *runRow, v *shown) {
	cancelled := map[string]int{}
	for _, ev := range v.events {
		if m := ev.GetUserMessage(); m != nil {
			cancelled[m.GetMessageId()]++
		}
	}
	if v.stuck {
		return
	}
	for _, m := range w.pg.joined(r.Session) {
		n := cancelled[m.ID.String()]
		if m.Run == r.ID && m.Role == "user" && (n == 0 || n > 1 && !w.nats.lost) {
			w.violation("message %d of run %s was told %d times", m.position, runLabel(&r.Run), n)
		}
	}
}

// viewedStep has what viewers know of a step in the end.
type viewedStep struct {
	text      strings.Builder
	calls     map[string]int
	results   map[string]*runv1.ToolResult
	asked     map[string]int // requests of approvals, and their answers, by askKey
	twice     bool
	completed int
	summaries []int32 // of how many messages
}

func readStep(v *shown, step int) *viewedStep {
	t := &viewedStep{calls: map[string]int{}, results: map[string]*runv1.ToolResult{}, asked: map[string]int{}}
	for _, ev := range v.events {
		if int(ev.GetStepIndex()) != step {
			continue
		}
		switch b := ev.GetBody().(type) {
		case *runv1.Event_StepRetry:
			t = &viewedStep{calls: map[string]int{}, results: map[string]*runv1.ToolResult{}, asked: map[string]int{}}
		case *runv1.Event_TextDelta:
			t.text.WriteString(b.TextDelta.GetDelta())
		case *runv1.Event_ToolCallComplete:
			t.calls[b.ToolCallComplete.GetToolCallId()]++
		case *runv1.Event_ToolResult:
			t.twice = t.twice || proto.Equal(t.results[b.ToolResult.GetToolCallId()], b.ToolResult)
			t.results[b.ToolResult.GetToolCallId()] = b.ToolResult
		case *runv1.Event_ToolApprovalRequest:
			t.asked[fmt.Sprint("asked ", b.ToolApprovalRequest.GetToolCallId(), b.ToolApprovalRequest.GetOutcomeUnknown())]++
		case *runv1.Event_ToolApprovalResponse:
			t.asked[fmt.Sprint("answered ", b.ToolApprovalResponse.GetToolCallId(), b.ToolApprovalResponse.GetOutcomeUnknown())]++
		case *runv1.Event_ToolClientRequest:
			t.asked[fmt.Sprint("client ", b.ToolClientRequest.GetToolCallId())]++
		case *runv1.Event_Compaction:
			t.summaries = append(t.summaries, b.Compaction.GetMessages())
		case *runv1.Event_StepComplete:
			t.completed++
		}
	}
	return t
}

// compacted is the reason of a step that made a summary.
const compacted = "compaction"

// checkStep compares a committed step with its events.
func (w *world) checkStep(r *runRow, v *shown, step int) {
	row := w.pg.steps[stepKey{r.ID, step}]
	if row == nil || row.state == "open" {
		return
	}
	name, t := runLabel(&r.Run), readStep(v, step)
	text, interrupted := "", false
	for _, m := range w.pg.joined(r.Session) {
		if m.Run == r.ID && m.Role == "assistant" && *m.StepIndex == step {
			text, interrupted = allText(m.Content), m.Interrupted
		}
	}
	switch {
	case interrupted && !strings.HasPrefix(text, t.text.String()):
		w.violation("step %d of run %s was cut short after %q, viewers saw %q", step, name, text, t.text.String())
	case !interrupted && text != t.text.String():
		w.violation("step %d of run %s says %q, viewers saw %q", step, name, text, t.text.String())
	case !interrupted && row.state == "complete" && t.completed != 1:
		w.violation("step %d of run %s is complete, viewers are told so %d times", step, name, t.completed)
	case t.twice && !w.nats.lost:
		w.violation("a result of step %d of run %s is told twice", step, name)
	}
	summary, made := w.pg.summaries[stepKey{r.ID, step}]
	if made != (row.reason == compacted) || made != (len(t.summaries) == 1) || made && t.summaries[0] != int32(summary.Messages) {
		w.violation("step %d of run %s, %s, made the summary %v, viewers are told of summaries of %v messages", step, name, row.reason, summary, t.summaries)
	}
	for _, c := range w.pg.callsOf(r.ID, step) {
		cancelled := t.results[c.ID]
		if c.Ask != nil && !w.nats.lost {
			w.checkAskedInLog(r, &c, t)
		}
		switch {
		case t.calls[c.ID] != 1:
			w.violation("call %s of run %s is told %d times", c.ID, name, t.calls[c.ID])
		case c.Outcome == nil:
		case cancelled == nil && c.Ask != nil && r.ErrorCode == stuck: // answered, and given up before the next claim told it
		case cancelled == nil:
			w.violation("the result of call %s of run %s is never told", c.ID, name)
		case c.Ask != nil && endedEarly(r) && cancelled.GetIsError() && (c.Ask.Question == run.AskClient || c.Outcome.State != toolv1.OutcomeState_OUTCOME_STATE_OK):
		case cancelled.GetIsError() == (c.Outcome.State == toolv1.OutcomeState_OUTCOME_STATE_OK) || cancelled.GetResultJson() != string(c.Outcome.Result):
			w.violation("call %s of run %s ended with %s, viewers are told %s", c.ID, name, c.Outcome.Result, cancelled.GetResultJson())
		}
	}
}

// checkAskedInLog checks that viewers are told of the question about a call and of its answer.
func (w *world) checkAskedInLog(r *runRow, c *run.Call, t *viewedStep) {
	name := runLabel(&r.Run)
	if c.Ask.Question == run.AskClient {
		if n := t.asked["client "+c.ID]; n != 1 {
			w.violation("viewers of run %s are told %d times that call %s waits for a client", name, n, c.ID)
		}
		return
	}
	unknown := c.Ask.Question == run.AskOutcome
	asked, answered := t.asked[fmt.Sprint("asked ", c.ID, unknown)], t.asked[fmt.Sprint("answered ", c.ID, unknown)]
	switch {
	case asked == 0 || !unknown && asked > 1:
		w.violation("viewers of run %s are asked %d times about call %s", name, asked, c.ID)
	case answered > asked || c.Ask.Decision == "" && answered == asked:
		w.violation("viewers of run %s are told %d answers to %d questions about call %s, which is %q", name, answered, asked, c.ID, c.Ask.Decision)
	case c.Ask.Decision != "" && answered != asked && !endedEarly(r):
		w.violation("viewers of run %s are told %d answers to %d questions about call %s, which is %q", name, answered, asked, c.ID, c.Ask.Decision)
	}
}

// endedEarly reports whether a run may have ended before its runner knew of an answer.
func endedEarly(r *runRow) bool {
	return !r.stop.IsZero() || r.FinishReason == "max-time" || r.ErrorCode == stuck
}

// allText returns the concatenated text of an answer's parts, as the deltas have it.
func allText(content json.RawMessage) string {
	parts, err := modelmsg.Parse(content)
	if err != nil {
		return err.Error()
	}
	var b strings.Builder
	for _, p := range parts {
		if p.Type == modelmsg.Text {
			b.WriteString(p.Text)
		}
	}
	return b.String()
}
