package sim

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
	"signalbox.dev/services/agent-runner/internal/conversation"
	"signalbox.dev/services/agent-runner/internal/run"
)

// createSession creates a session like conversation.Create, with the fields that runs depend on.
func (d *rows) createSession(a identity.Actor, maxSteps int) id.Session {
	s := &sessionRow{
		id: newID[id.Session](d), ws: a.Workspace, model: modelName, provider: providerName, preset: "workspace", maxSteps: &maxSteps,
		nextOrdinal: 1, nextPosition: 1, summaries: map[int]madeSummary{},
	}
	d.sessions[s.id] = s
	d.allSessions = append(d.allSessions, s)
	return s.id
}

func notFound() error { return fault.New(fault.NotFound, "there is no such session") }

// openRuns returns a session's runs that have not ended: the active one, then the
// queued ones.
func (d *rows) openRuns(s id.Session) []*runRow {
	all := slices.DeleteFunc(d.runsOf(s), func(r *runRow) bool { return r.State.Ended() })
	slices.SortStableFunc(all, func(a, b *runRow) int {
		switch {
		case a.State != run.Queued && b.State == run.Queued:
			return -1
		case a.State == run.Queued && b.State != run.Queued:
			return 1
		}
		return 0
	})
	return all
}

func (d *rows) submit(a identity.Actor, n conversation.NewMessage) (*conversation.Submitted, error) {
	s := d.session(a.Workspace, n.Session)
	if s == nil {
		return nil, notFound()
	}
	if n.Regenerate != nil {
		return d.regenerate(s, a, n)
	}
	for _, m := range d.allMessages {
		if n.IdempotencyKey == "" || m.key != n.IdempotencyKey || m.session != s.id || d.messages[m.ID] == nil || d.cfg.plant == forgetsKeys {
			continue
		}
		if string(m.Content) != string(n.Content) {
			return nil, fault.Coded(fault.Conflict, "IDEMPOTENCY_KEY_REUSED", "this idempotency key was used with another message")
		}
		return &conversation.Submitted{Run: d.runs[m.Run].Run, Message: m.ID}, nil
	}
	open := d.openRuns(s.id)
	switch {
	case len(open) > 0 && n.Edit != nil && d.cfg.plant != switchesAnyway:
		return nil, runActive()
	case len(open) > 0 && n.Mode == conversation.Reject && n.Edit == nil:
		return nil, fault.Coded(fault.Conflict, "RUN_ACTIVE", "a run of this session is active")
	case len(open) > 0 && n.Edit == nil && n.Mode == conversation.Steer && open[0].State != run.Queued:
		return d.steerIn(s, n, open[0]), nil
	case len(open) > d.cfg.maxQueued:
		return nil, fault.Coded(fault.Limited, "QUEUE_FULL", "messages of this session wait already")
	case n.Edit != nil:
		edited := d.named(s, *n.Edit)
		if edited == nil {
			return nil, notFound()
		}
		if edited.Role != "user" {
			return nil, fault.New(fault.Invalid, "only a message of the user can be edited")
		}
		d.switchTo(s, a, edited.parent)
	}
	return d.enqueue(s, a, n, nil, len(open) == 0), nil
}

func (d *rows) steerIn(s *sessionRow, n conversation.NewMessage, active *runRow) *conversation.Submitted {
	m := d.insertMessage(s, messageRow{key: n.IdempotencyKey, Message: run.Message{Run: active.ID, Role: "user", Content: n.Content}})
	d.inbox = append(d.inbox, &inboxRow{run: active.ID, kind: "steer", message: m.ID})
	return &conversation.Submitted{Run: active.Run, Message: m.ID, Created: true, Steered: true}
}

// enqueue creates a run that answers n or, if it is not nil, a message again.
func (d *rows) enqueue(s *sessionRow, a identity.Actor, n conversation.NewMessage, again *messageRow, first bool) *conversation.Submitted {
	r := &runRow{Run: run.Run{
		ID: newID[id.Run](d), Workspace: s.ws, Session: s.id, Ordinal: s.nextOrdinal, State: run.Queued, CreatedBy: a.Member,
		Role: a.Role.String(), Provider: s.provider, Model: s.model, LastEvent: -1, CreatedAt: d.cfg.now(),
	}}
	s.nextOrdinal++
	if again != nil {
		r.UserMessage, r.key = again.ID, n.IdempotencyKey
	} else {
		r.UserMessage = d.insertMessage(s, messageRow{key: n.IdempotencyKey, Message: run.Message{Run: r.ID, Role: "user", Content: n.Content}}).ID
	}
	d.runs[r.ID] = r
	d.allRuns = append(d.allRuns, r)
	return &conversation.Submitted{Run: r.Run, Message: r.UserMessage, Created: true, First: first}
}

func (d *rows) cancel(a identity.Actor, session id.Session, which conversation.Target) (cancelled, running []id.Run, err error) {
	s := d.session(a.Workspace, session)
	if s == nil {
		return nil, nil, notFound()
	}
	for i, r := range d.openRuns(session) {
		if !id.IsZero(which.Only) && r.ID != which.Only || id.IsZero(which.Only) && !which.All && i > 0 {
			continue
		}
		cancelled = append(cancelled, r.ID)
		if r.State == run.Queued {
			d.endQueued(s, r)
			continue
		}
		running = append(running, r.ID)
		if r.stop.IsZero() {
			r.stop = time.Now()
		}
		if !slices.ContainsFunc(d.inbox, func(i *inboxRow) bool { return i.run == r.ID && i.kind == "stop" && !i.read }) {
			d.inbox = append(d.inbox, &inboxRow{run: r.ID, kind: "stop"})
		}
		d.resume(r, fmt.Sprintf("stopped-%d", r.Epoch))
	}
	if len(cancelled) == 0 && !id.IsZero(which.Only) {
		if r := d.runs[which.Only]; r == nil || r.Session != session {
			return nil, nil, fault.New(fault.NotFound, "this session has no such run")
		}
		return nil, nil, nil
	}
	d.wakeNext(s)
	return cancelled, running, nil
}

func (d *rows) endQueued(s *sessionRow, r *runRow) {
	d.join(s, r.UserMessage)
	now := d.cfg.now()
	r.State, r.FinishReason, r.LastEvent, r.EndedAt = run.Cancelled, "cancelled", 1, &now
	event := func(n int64) *runv1.Event {
		return &runv1.Event{RunId: r.ID.String(), RunOrdinal: r.Ordinal, Number: n, Time: timestamppb.New(now)}
	}
	said, end := event(0), event(1)
	said.Body = run.UserMessageEvent(r.UserMessage, r.CreatedBy, d.messages[r.UserMessage].Content, now)
	end.Body = &runv1.Event_Done{Done: &runv1.Done{FinishReason: "cancelled"}}
	_, subj := run.LogSubject(d.cfg.run.Partitions, r.Workspace, r.Session)
	d.say(run.EventMessages(r.Workspace, subj, []*runv1.Event{said, end})...)
}

func (d *rows) deleteSession(a identity.Actor, session id.Session) (active []id.Run, err error) {
	if d.session(a.Workspace, session) == nil {
		return nil, notFound()
	}
	for _, r := range d.runsOf(session) {
		if r.State == run.Running {
			active = append(active, r.ID)
		}
		delete(d.runs, r.ID)
		for k := range d.steps {
			if k.run == r.ID {
				delete(d.steps, k)
			}
		}
		for k, c := range d.calls {
			if c.run == r.ID {
				delete(d.calls, k)
			}
		}
		d.inbox = slices.DeleteFunc(d.inbox, func(i *inboxRow) bool { return i.run == r.ID })
	}
	for k, m := range d.messages {
		if m.session == session {
			delete(d.messages, k)
		}
	}
	delete(d.sessions, session)
	if len(active) > 0 {
		d.wakeOther(a.Workspace, active[0])
	}
	return active, nil
}

// expireLease ends a lease, for tests in which no time passes.
func (d *rows) expireLease(r id.Run) {
	if row := d.runs[r]; row != nil && row.State == run.Running {
		row.lease = d.cfg.now().Add(-time.Second)
	}
}

func quoted(text string) json.RawMessage {
	b, err := json.Marshal(text)
	if err != nil {
		panic(err) // a string always marshals
	}
	return b
}
