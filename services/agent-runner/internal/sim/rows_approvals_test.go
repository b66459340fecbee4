package sim

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/agent-runner/internal/clienttool"
	"signalbox.dev/services/agent-runner/internal/conversation"
	"signalbox.dev/services/agent-runner/internal/run"
)

// wait is run.Wait: it parks a run until a person answers.
func (d *rows) wait(c *run.Claim, w run.Wait, lastEvent int64) (parked bool, err error) {
	row, s, err := d.fence(c)
	if err != nil {
		return false, err
	}
	if d.stopping(row.ID) {
		return false, nil
	}
	unknown := func(key id.Operation) int {
		return slices.IndexFunc(w.Unknown, func(u run.Call) bool { return u.Key == key })
	}
	step := d.rowsOf(row.ID, w.Step)
	for _, call := range step {
		if !call.Waits() && w.Outcomes[call.Key] == nil && unknown(call.Key) < 0 && d.cfg.plant != waitsDeaf {
			return false, nil
		}
	}
	for _, call := range step {
		if o := w.Outcomes[call.Key]; o != nil && !call.done {
			call.Outcome, call.done = o, true
		}
		if i := unknown(call.Key); i >= 0 {
			call.unknown = w.Unknown[i].Outcome
			call.ask(*w.Unknown[i].Ask)
		}
		if call.Announced = run.AnnouncedAll; call.Waits() {
			call.Announced = run.AnnouncedQuestion
		}
	}
	now := d.cfg.now()
	if st := d.steps[stepKey{row.ID, w.Step}]; st != nil {
		st.waitingSince = now
	}
	row.LastEvent, row.Fruitless, row.State, row.runner = lastEvent, 0, run.Waiting, ""
	row.lease = time.Time{}
	d.say(run.EventMessages(row.Workspace, w.Subject, w.Events)...)
	d.wakeOtherFor(s.ws, fmt.Sprintf(":after-%s-%d", row.ID, row.Epoch))
	return true, nil
}

// ask writes a question about a call, which is planned until it is answered.
func (c *callRow) ask(a run.Ask) {
	a.ArgsHash = run.HashArgs(c.Args)
	c.Ask = &a
}

// rowsOf returns the rows of a step's calls in order.
func (d *rows) rowsOf(r id.Run, step int) []*callRow {
	var out []*callRow
	for _, c := range d.calls {
		if c.run == r && c.step == step {
			out = append(out, c)
		}
	}
	slices.SortFunc(out, func(a, b *callRow) int { return cmp.Compare(a.Index, b.Index) })
	return out
}

// resume is run.Resume.
func (d *rows) resume(r *runRow, occasion string) {
	if r.State != run.Waiting || d.cfg.plant == forgetsAnswers {
		return
	}
	now := d.cfg.now()
	var last time.Time
	for k, s := range d.steps {
		if k.run == r.ID && s.waitingSince.After(last) {
			last = s.waitingSince
		}
	}
	if !last.IsZero() {
		deadline := r.Deadline.Add(now.Sub(last))
		r.Deadline = &deadline
	}
	r.State, r.lease = run.Running, now
	r.Epoch++
	d.wake(r, ":"+occasion)
}

// decideCall is run.Decide. sent is the result of a client.
func (d *rows) decideCall(c *callRow, decision run.Decision, reason string, by *id.Member, sent *run.Outcome) {
	ask := *c.Ask
	ask.Decision, ask.DecisionReason, ask.DecidedBy = decision, reason, by
	c.Ask = &ask
	outcome := func(state toolv1.OutcomeState, kind, text, errorType string) {
		if reason != "" {
			text += ": " + reason
		}
		b, _ := json.Marshal(map[string]string{kind: text})
		c.Outcome, c.done = &run.Outcome{State: state, Result: b, ErrorType: errorType}, true
	}
	old := c.Key
	switch {
	case decision == run.Repeat:
		delete(d.calls, c.Key)
		d.retired[c.Key] = true
		c.Key = id.Derive(c.Key.UUID, "again")
		d.calls[c.Key] = c
	case decision == run.Happened:
		outcome(toolv1.OutcomeState_OUTCOME_STATE_OK, "result", "a person has checked that this call took effect", "")
	case decision == run.Answered:
		c.Outcome, c.done = sent, true
	case decision == run.Expired && ask.Question == run.AskClient:
		outcome(toolv1.OutcomeState_OUTCOME_STATE_ERROR, "error",
			"no client has sent the result of this call in time, and it is unknown whether one has run it: go on without it", "expired")
	case decision == run.Refused:
		outcome(toolv1.OutcomeState_OUTCOME_STATE_ERROR, "error", "a person refused this call, so it was not made", "refused")
	case decision == run.Expired && ask.Question == run.AskOutcome:
		c.Outcome, c.done = c.unknown, true
	case decision == run.Expired:
		outcome(toolv1.OutcomeState_OUTCOME_STATE_ERROR, "error",
			"nobody approved this call in time, so it was not made: go on without it, or say what you would have done", "expired")
	}
	if r := d.runs[c.run]; r != nil {
		d.resume(r, "decided-"+old.String())
	}
}

// asked reports whether a person can answer the question about a call.
func (d *rows) asked(c *callRow) bool { return c.Waits() && !d.runs[c.run].State.Ended() }

// findAsked returns a session's call with a question to a client, or to a person: the one that
// waits, or else the newest.
func (d *rows) findAsked(ws id.Workspace, session id.Session, callID string, client bool) (*callRow, error) {
	s := d.session(ws, session)
	if s == nil {
		return nil, notFound()
	}
	var c *callRow
	for _, r := range d.runsOf(s.id) {
		for i := range d.maxStep(r.ID) + 1 {
			for _, call := range d.rowsOf(r.ID, i) {
				if call.ID != callID || call.Ask == nil || (call.Ask.Question == run.AskClient) != client {
					continue
				}
				if c == nil || !d.asked(c) && (d.asked(call) || call.run != c.run || call.step > c.step) {
					c = call
				}
			}
		}
	}
	if c == nil {
		return nil, fault.New(fault.NotFound, "this session has no such call")
	}
	return c, nil
}

// stopping reports whether a stop of a run is unread.
func (d *rows) stopping(r id.Run) bool {
	return slices.ContainsFunc(d.inbox, func(i *inboxRow) bool { return i.run == r && i.kind == "stop" && !i.read })
}

// sendResult is conversation.SendResult.
func (d *rows) sendResult(a identity.Actor, in conversation.ClientResult) error {
	c, err := d.findAsked(a.Workspace, in.Session, in.ToolCallID, true)
	if err != nil {
		return err
	}
	envelope, isError, err := clienttool.Result(in.Output, in.Error)
	if err != nil {
		return err
	}
	sent := &run.Outcome{State: toolv1.OutcomeState_OUTCOME_STATE_OK, Result: envelope}
	if isError {
		sent.State, sent.ErrorType = toolv1.OutcomeState_OUTCOME_STATE_ERROR, "client"
	}
	switch ask := c.Ask; {
	case d.asked(c) && ask.Until.Before(d.cfg.now()):
		d.decideCall(c, run.Expired, "", nil, nil)
		return fault.Coded(fault.Conflict, "RESULT_EXPIRED", "too late")
	case ask.Decision == run.Answered && bytes.Equal(c.Outcome.Result, envelope), d.cfg.plant == losesResults:
		return nil
	case ask.Decision == run.Answered && d.cfg.plant == changesResults:
		c.Outcome = sent
		return nil
	case ask.Decision == run.Answered:
		return fault.Coded(fault.Conflict, "RESULT_SENT", "decided")
	case ask.Decision == run.Expired:
		return fault.Coded(fault.Conflict, "RESULT_EXPIRED", "too late")
	case !d.asked(c):
		return fault.Coded(fault.Conflict, "RUN_ENDED", "ended")
	case d.stopping(c.run):
		return fault.Coded(fault.Conflict, "RUN_STOPPING", "stopping")
	}
	member := a.Member
	d.decideCall(c, run.Answered, "", &member, sent)
	return nil
}

// decide is conversation.Decide.
func (d *rows) decide(a identity.Actor, in conversation.Answer) (run.Decision, error) {
	c, err := d.findAsked(a.Workspace, in.Session, in.ToolCallID, false)
	if err != nil {
		return "", err
	}
	switch ask := c.Ask; {
	case c.Waits() && !d.runs[c.run].State.Ended() && ask.Until.Before(d.cfg.now()):
		d.decideCall(c, run.Expired, "", nil, nil)
		return "", fault.Coded(fault.Conflict, "APPROVAL_EXPIRED", "too late")
	case ask.Decision == in.Decision:
		return ask.Decision, nil
	case ask.Decision == run.Expired:
		return "", fault.Coded(fault.Conflict, "APPROVAL_EXPIRED", "too late")
	case ask.Decision != "":
		return "", fault.Coded(fault.Conflict, "APPROVAL_DECIDED", "decided")
	case !c.Waits() || d.runs[c.run].State.Ended():
		return "", fault.Coded(fault.Conflict, "RUN_ENDED", "ended")
	case d.stopping(c.run):
		return "", fault.Coded(fault.Conflict, "RUN_STOPPING", "stopping")
	case (ask.Question == run.AskOutcome) != (in.Decision == run.Happened || in.Decision == run.Repeat):
		return "", fault.New(fault.Invalid, "the question is another one")
	}
	member := a.Member
	d.decideCall(c, in.Decision, in.Reason, &member, nil)
	return in.Decision, nil
}

// expireApprovals is run.ExpireApprovals.
func (d *rows) expireApprovals(limit int) int {
	var late []*callRow
	for _, c := range d.calls {
		if c.Waits() && c.Ask.Until.Before(d.cfg.now()) {
			late = append(late, c)
		}
	}
	slices.SortFunc(late, func(a, b *callRow) int {
		return cmp.Or(a.Ask.Until.Compare(b.Ask.Until), cmp.Compare(a.Key.String(), b.Key.String()))
	})
	late = late[:min(limit, len(late))]
	for _, c := range late {
		d.decideCall(c, run.Expired, "", nil, nil)
	}
	return len(late)
}
