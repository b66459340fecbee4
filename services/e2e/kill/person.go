package kill

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"signalbox.dev/services/e2e/world"
)

// patience is how long calls wait for an approval; no answer is a refusal.
const patience = 10 * time.Second

// answer is a person's answer to a question about a call.
type answer struct {
	world.Approval
	span            // from the first attempt to the last
	decision string // approved, refused, happened, repeat
	remember bool   // it is for later calls of the tool in this session too
	// accepted and late are the last response; if it is neither, the answer may have counted.
	accepted, late bool
	stored         string // the decision in the response
}

// asked sends a message whose calls wait for a person, and answers for them until the run ends.
func (k *talker) asked(ctx context.Context, a *ask) bool {
	if !k.send(ctx, a) {
		return false
	}
	person := *k
	person.rnd = k.fork()
	ended, end := context.WithCancel(ctx)
	left := make(chan struct{})
	go func() {
		defer close(left)
		person.answer(ctx, ended)
	}()
	ok := k.answered(ctx, a)
	end()
	<-left
	return ok
}

// answer answers the session's questions until the run has ended.
func (k *talker) answer(ctx, ended context.Context) {
	seen := map[string]bool{}
	for pause(ended, between(k.rnd, 50*time.Millisecond, 300*time.Millisecond)) {
		limited, cancel := context.WithTimeout(ended, attempt)
		list, err := k.client(k.rnd, k.who).Approvals(limited, k.t.session)
		cancel()
		if err != nil {
			if ended.Err() == nil && k.refusal(k.t, err) {
				return
			}
			continue
		}
		for _, q := range list {
			if name := q.CallID + q.AskedAt; !seen[name] {
				seen[name] = true
				k.decide(ctx, q)
			}
		}
	}
}

// decide answers one question, as different people would.
func (k *talker) decide(ctx context.Context, q world.Approval) {
	a := &answer{Approval: q}
	n := k.rnd.IntN(100)
	if q.Question == "outcome" {
		k.at(outcomeAsked)
		if n < 5 || !pause(ctx, time.Second) { // by then a request in flight has had its effect
			return
		}
		a.decision = "repeat"
		if k.far.Get(noteOf(q.Args)).Effects > 0 {
			a.decision = "happened"
		}
		k.post(ctx, a, map[string]any{"outcome": a.decision, "asked_at": q.AskedAt})
		return
	}
	k.at(approvalAsked)
	switch {
	case n < 3: // until it expires
		return
	case n < 6:
		k.cancel(ctx)
		return
	case n < 20:
		a.decision = "refused"
	default:
		a.decision = "approved"
	}
	a.remember = k.rnd.IntN(6) == 0
	body := map[string]any{"approved": a.decision == "approved", "asked_at": q.AskedAt}
	if a.remember {
		body["remember"] = "session"
	}
	k.post(ctx, a, body)
	if a.accepted && k.rnd.IntN(4) == 0 {
		k.contradict(ctx, a)
	}
}

// tooLate are the codes of refused answers that never counted.
var tooLate = []string{"APPROVAL_EXPIRED", "RUN_ENDED", "RUN_STOPPING"}

// post sends an answer until it is accepted or too late.
func (k *talker) post(ctx context.Context, a *answer, body map[string]any) {
	a.from = time.Now()
	k.t.mu.Lock()
	k.t.answers = append(k.t.answers, a)
	k.t.mu.Unlock()
	k.try(ctx, func(ctx context.Context, c world.Client) error {
		got, err := c.Decide(ctx, k.t.session, a.CallID, body)
		r, refused := errors.AsType[*world.Refused](err)
		switch {
		case err == nil:
			a.accepted, a.stored = true, deref(got.Decision)
		case refused && slices.Contains(tooLate, r.Code):
			a.late = true
		case refused && r.Code == "APPROVAL_CHANGED": // it counted if an earlier response was lost
		default:
			return err
		}
		return nil
	})
	a.to = time.Now()
	switch {
	case a.accepted && a.remember:
		k.at(ruleRemembered)
	case a.accepted:
		k.at(approvalPosted)
	}
}

// contradict sends the opposite of an accepted answer, which must be refused.
func (k *talker) contradict(ctx context.Context, a *answer) {
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	body := map[string]any{"approved": a.decision != "approved", "asked_at": a.AskedAt}
	if _, err := k.client(k.rnd, k.who).Decide(ctx, k.t.session, a.CallID, body); err == nil {
		k.t.complain(forgotten, "the answer %s about call %s was accepted, and then its opposite", a.decision, a.CallID)
	}
}

// asks reports whether a person has to approve the calls of a tool.
func asks(tool string) bool { return tool == "doc_delete" || strings.HasPrefix(tool, "test_asked_") }

// noteOf returns the name by which the far end counts a call, if its tool calls the far end.
func noteOf(args json.RawMessage) string {
	var a struct{ Note string }
	_ = json.Unmarshal(args, &a) // the arguments of other tools have none
	return a.Note
}

// approvals checks that no call took effect before a person had approved it, and that no answer
// was lost.
func (c *checker) approvals() {
	for _, a := range c.asks {
		if a.kind != asked || a.run == "" {
			continue
		}
		for _, x := range c.runs[a.run].ToolCalls {
			if asks(x.Tool) {
				c.approval(a, x)
			}
		}
		c.told(a)
	}
}

func (c *checker) approval(a *ask, x world.ToolCall) {
	var approved time.Time // when it was first allowed to run
	decision, question := "", ""
	if x.Approval != nil {
		decision, question = deref(x.Approval.Decision), x.Approval.Question
	}
	for _, w := range c.answers {
		mine := w.RunID == a.run && w.CallID == x.ID
		earlier := w.remember && w.Tool == x.Tool
		if w.decision == "approved" && (mine || earlier) && !w.late && (approved.IsZero() || w.from.Before(approved)) {
			approved = w.from
		}
		switch {
		case !w.accepted:
		case mine && (w.stored != w.decision || x.Approval == nil || x.Approval.AskedAt == w.AskedAt && decision != w.decision):
			c.wrong(forgotten, "the answer %s about %s of run %d was accepted as %s and is stored as %s", w.decision, x.ID, a.ordinal, w.stored, decision)
		case !earlier || !w.to.Before(a.from):
		case w.decision == "approved" && decision != "rule" && question != "outcome", w.decision == "refused" && x.Approval != nil:
			c.wrong(forgotten, "a rule answers %s for calls of %s; %s of run %d has the answer %q", w.decision, x.Tool, x.ID, a.ordinal, decision)
		}
	}
	n, first := c.counts[noteOf(x.Args)].Effects, c.counts[noteOf(x.Args)].First
	if x.Tool == "doc_delete" {
		gone := !slices.ContainsFunc(c.documents, func(d document) bool { return d.name == a.document() })
		if n = 0; gone {
			n, first = 1, approved
		} else if deref(x.State) == "ok" {
			c.wrong(falseOK, "document %q exists, but the call that deletes it was ok", a.document())
		}
	}
	if n > 0 && (approved.IsZero() || first.Before(approved)) {
		c.wrong(unapproved, "call %s of %s in run %d took effect without an approval, or before it (%s); it has the answer %q", x.ID, x.Tool, a.ordinal, at(approved), decision)
	}
}

// told checks that viewers saw each question once before its answer and, unless the run was
// stopped, the answer. Runs with unseen events are skipped.
func (c *checker) told(a *ask) {
	open := map[string]bool{} // by call
	end, ok := c.transcript.ends[a.ordinal]
	if !ok {
		return
	}
	for n := int64(0); n <= end.number; n++ {
		e := c.events[place{a.ordinal, n}]
		if e == nil {
			return
		}
		asks, answers := e.kind == "tool-approval-request", e.kind == "tool-approval-response"
		if !asks && !answers {
			continue
		}
		call := ""
		e.field("toolCallId", &call)
		if open[call] == asks {
			c.wrong(twice, "the %s about call %s in run %d is repeated, or answers no question", e.kind, call, a.ordinal)
		}
		open[call] = asks
	}
	reason := ""
	c.events[end].field("finishReason", &reason)
	for call, waits := range open {
		if waits && reason == "stop" {
			c.wrong(forgotten, "run %d ended, and viewers were not told the answer about call %s", a.ordinal, call)
		}
	}
}
