package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/subject"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
	"signalbox.dev/services/agent-runner/internal/branch"
	"signalbox.dev/services/agent-runner/internal/conversation"
	"signalbox.dev/services/agent-runner/internal/run"
)

// person uses one session. As clients should, they repeat a request without a reply, with the
// same idempotency key, until they get one.
type person struct {
	w       *world
	name    string
	actor   identity.Actor
	session id.Session
	// accepted are the messages for which Submit returned a run, by key.
	accepted map[string]*conversation.Submitted
	// results are those that were taken, by the call's key.
	results map[id.Operation]json.RawMessage
}

func (w *world) newPerson(n int, ws id.Workspace) *person {
	p := &person{w: w, name: fmt.Sprintf("person %d", n), accepted: map[string]*conversation.Submitted{}, results: map[id.Operation]json.RawMessage{}}
	p.actor = identity.Actor{Workspace: ws, Member: newID[id.Member](w.pg.rows), Role: identity.Editor}
	p.session = w.pg.createSession(p.actor, 2+w.pick(p.name, 4))
	return p
}

// talk submits a few messages, stops some of the answers, and may delete the session.
func (p *person) talk(ctx context.Context) {
	messages := 1 + p.draw(4)
	for i := range messages {
		p.wait(ctx, 10*time.Millisecond, 6*time.Second)
		mode := conversation.Queue
		switch p.draw(6) {
		case 0, 1:
			mode = conversation.Steer
		case 2:
			mode = conversation.Reject
		}
		p.say(ctx, fmt.Sprintf("%s message %d", p.name, i), mode)
		if p.draw(3) == 0 {
			p.wait(ctx, time.Millisecond, 5*time.Second)
			p.branch(ctx, fmt.Sprintf("%s branch %d", p.name, i))
		}
		if p.draw(4) == 0 {
			p.wait(ctx, time.Millisecond, 5*time.Second)
			p.stop(ctx)
		}
		p.answer(ctx)
	}
	for range 4 * p.draw(3) { // some do not answer, and their approvals expire
		p.wait(ctx, time.Second, 10*time.Second)
		p.answer(ctx)
	}
	if p.draw(16) == 0 {
		p.wait(ctx, 0, 5*time.Second)
		p.leave(ctx)
	}
}

func (p *person) draw(n int) (v int) {
	p.w.locked(func() { v = p.w.pick(p.name, n) })
	return v
}

func (p *person) wait(ctx context.Context, lo, hi time.Duration) {
	var d time.Duration
	p.w.locked(func() { d = p.w.moment(p.w.between(p.name, lo, hi)) })
	_ = sleep(ctx, d) // the end of the world ends everything else too
}

// untilAnswered sends a request to one runner after the other until one replies.
func (p *person) untilAnswered(ctx context.Context, ask func(ctx context.Context, at *process) error) error {
	for ctx.Err() == nil {
		var at *process
		p.w.locked(func() {
			var able []*process
			for _, r := range p.w.runners() {
				if !r.leaves() {
					able = append(able, r)
				}
			}
			if len(able) > 0 {
				at = able[p.w.pick(p.name, len(able))]
			}
		})
		if at != nil {
			limited, cancel := context.WithTimeout(ctx, 5*time.Second)
			err := ask(limited, at)
			cancel()
			known := fault.KindOf(err)
			if err == nil || known == fault.Conflict || known == fault.Limited || known == fault.NotFound {
				return err
			}
		}
		p.wait(ctx, 100*time.Millisecond, time.Second)
	}
	return ctx.Err()
}

func (p *person) say(ctx context.Context, text string, mode conversation.Mode) {
	p.submit(ctx, conversation.NewMessage{Session: p.session, Content: quoted(text), IdempotencyKey: text, Mode: mode})
}

// branch edits a message, has one answered again, or switches to the branch of one.
func (p *person) branch(ctx context.Context, text string) {
	var ref branch.Ref
	p.w.locked(func() {
		if all := p.w.pg.joined(p.session); len(all) > 0 {
			m := all[p.w.pick(p.name, len(all))]
			if ref.Message = m.ID; m.Role != "user" {
				ref.Message = p.w.pg.runs[m.Run].UserMessage
			}
		}
	})
	n := conversation.NewMessage{Session: p.session, IdempotencyKey: text}
	switch p.draw(3) {
	case 0:
		n.Edit, n.Content = &ref, quoted(text)
	case 1:
		n.Regenerate = &ref
	default:
		_ = p.untilAnswered(ctx, func(ctx context.Context, at *process) error {
			return at.people.Switch(ctx, p.actor, p.session, ref.Message)
		})
		return
	}
	p.submit(ctx, n)
}

func (p *person) submit(ctx context.Context, n conversation.NewMessage) {
	var out *conversation.Submitted
	err := p.untilAnswered(ctx, func(ctx context.Context, at *process) (err error) {
		var claim *run.Claim
		out, claim, err = at.people.Submit(ctx, p.actor, n)
		switch {
		case err != nil:
		case claim != nil:
			at.begin(claim) //nolint:contextcheck // the work outlives the request
		case out.First:
			p.wake(ctx, at, &out.Run)
		case out.Steered:
			p.nudge(ctx, at, out.Run.ID)
		}
		return err
	})
	if err == nil {
		p.w.locked(func() { p.accepted[n.IdempotencyKey] = out })
	}
}

func (p *person) stop(ctx context.Context) {
	which := conversation.Target{All: p.draw(2) == 0}
	if p.draw(2) == 0 {
		p.w.locked(func() {
			if open := p.w.pg.openRuns(p.session); len(open) > 0 {
				which.Only = open[p.w.pick(p.name, len(open))].ID
			}
		})
	}
	_ = p.untilAnswered(ctx, func(ctx context.Context, at *process) error {
		running, err := at.people.Cancel(ctx, p.actor, p.session, which)
		if err == nil {
			p.nudge(ctx, at, running...)
		}
		return err
	})
}

// answer answers for some of the calls that wait for this person or its client, and sometimes
// again.
func (p *person) answer(ctx context.Context) {
	var asked []conversation.Answer
	results := map[id.Operation]conversation.ClientResult{}
	var keys []id.Operation
	p.w.locked(func() {
		for _, r := range p.w.pg.runsOf(p.session) {
			for i := range p.w.pg.maxStep(r.ID) + 1 {
				for _, c := range p.w.pg.callsOf(r.ID, i) {
					if !c.Waits() || p.w.pick(p.name, 3) == 0 {
						continue
					}
					if c.Ask.Question == run.AskClient {
						keys = append(keys, c.Key)
						results[c.Key] = conversation.ClientResult{Session: p.session, ToolCallID: c.ID, Output: p.output(&c)}
						continue
					}
					choice := [...]run.Decision{run.Approved, run.Refused, run.Approved}
					if c.Ask.Question == run.AskOutcome {
						choice = [...]run.Decision{run.Happened, run.Repeat, run.Repeat}
					}
					asked = append(asked, conversation.Answer{Session: p.session, ToolCallID: c.ID, Decision: choice[p.w.pick(p.name, 3)]})
				}
			}
		}
	})
	for _, a := range asked {
		_ = p.untilAnswered(ctx, func(ctx context.Context, at *process) error { return at.people.Decide(ctx, p.actor, a) })
	}
	for _, key := range keys {
		p.send(ctx, key, results[key])
		if p.draw(3) == 0 { // another result, which must not be taken
			again := results[key]
			again.Output = json.RawMessage(`"another"`)
			p.send(ctx, key, again)
		}
	}
}

// output is what this person's client answers to a call.
func (p *person) output(c *run.Call) json.RawMessage {
	return quoted(p.name + " " + c.Key.String())
}

// send sends a result until it is taken or refused.
func (p *person) send(ctx context.Context, key id.Operation, in conversation.ClientResult) {
	err := p.untilAnswered(ctx, func(ctx context.Context, at *process) error { return at.people.SendResult(ctx, p.actor, in) })
	p.w.locked(func() {
		switch before := p.results[key]; {
		case err != nil:
		case before != nil && !bytes.Equal(before, in.Output):
			p.w.violation("the results %s and %s of call %s were both taken", before, in.Output, in.ToolCallID)
		default:
			p.results[key] = in.Output
		}
	})
}

func (p *person) leave(ctx context.Context) {
	_ = p.untilAnswered(ctx, func(ctx context.Context, at *process) error {
		active, err := at.people.Delete(ctx, p.actor, p.session)
		if err == nil {
			p.nudge(ctx, at, active...)
			for _, r := range active {
				at.tools.Cancel(ctx, r)
			}
		}
		return err
	})
}

// wake publishes a wake-up like the service: once, and it may get lost.
func (p *person) wake(ctx context.Context, at *process, r *run.Run) {
	m := run.Wake(r.Workspace, r.Session, r.ID)
	_, _ = wire{p.w, at}.send(ctx, time.Second, m.Subject, m.ID, nil, m.Body)
}

// nudge sends a nudge like the service: after the row, and it may get lost.
func (p *person) nudge(ctx context.Context, at *process, runs ...id.Run) {
	for _, r := range runs {
		if err := (wire{p.w, at}).Nudge(ctx, subject.CtlRun(r), &runv1.InboxNudge{RunId: r.String()}); errors.Is(err, errDead) {
			return
		}
	}
}

// allEnded reports whether every run has ended.
func (w *world) allEnded() bool {
	for _, r := range w.pg.runs {
		if !r.State.Ended() {
			return false
		}
	}
	return true
}
