package sim

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
	"signalbox.dev/services/agent-runner/internal/branch"
	"signalbox.dev/services/agent-runner/internal/conversation"
	"signalbox.dev/services/agent-runner/internal/outbox"
	"signalbox.dev/services/agent-runner/internal/run"
)

// The messages of a session are a tree here: each knows the one that it follows, and the session
// knows the one that the next will follow. Postgres has ranges of positions for the same.

// place gives a message the next position, at the end of the current branch.
func (s *sessionRow) place(m *messageRow) {
	m.position, m.parent = s.nextPosition, s.leaf
	s.leaf = s.nextPosition
	s.nextPosition++
}

// branch returns the messages from the first one to that at a position.
func (d *rows) branch(s *sessionRow, leaf int64) []*messageRow {
	var out []*messageRow
	for _, m := range slices.Backward(d.joined(s.id)) {
		if m.position == leaf {
			out = append(out, m)
			leaf = m.parent
		}
	}
	slices.Reverse(out)
	return out
}

// named returns the message that a Ref names by its id, or the last one of the current branch. nil:
// there is none, or it has not joined.
func (d *rows) named(s *sessionRow, ref branch.Ref) *messageRow {
	for _, m := range d.joined(s.id) {
		if m.ID == ref.Message || id.IsZero(ref.Message) && m.position == s.leaf {
			return m
		}
	}
	return nil
}

func runActive() error { return fault.Coded(fault.Conflict, "RUN_ACTIVE", "a run is active or queued") }

// regenerate is the part of conversation.Submit that answers a message again.
func (d *rows) regenerate(s *sessionRow, a identity.Actor, n conversation.NewMessage) (*conversation.Submitted, error) {
	var asked *messageRow
	target := d.named(s, *n.Regenerate)
	if target != nil {
		for _, m := range d.branch(s, target.position) {
			if m.Role == "user" {
				asked = m
			}
		}
	}
	for _, r := range d.runsOf(s.id) {
		switch {
		case n.IdempotencyKey == "" || r.key != n.IdempotencyKey || d.cfg.plant == forgetsKeys:
		case asked == nil || asked.ID != r.UserMessage:
			return nil, fault.Coded(fault.Conflict, "IDEMPOTENCY_KEY_REUSED", "this idempotency key was used with another message")
		default:
			return &conversation.Submitted{Run: r.Run, Message: r.UserMessage}, nil
		}
	}
	open := d.openRuns(s.id)
	switch {
	case len(open) > 0 && d.cfg.plant != switchesAnyway:
		return nil, runActive()
	case target == nil:
		return nil, notFound()
	case asked == nil:
		return nil, fault.New(fault.Invalid, "there is no message of the user to answer again")
	}
	d.switchTo(s, a, asked.position)
	return d.enqueue(s, a, n, asked, len(open) == 0), nil
}

// switchBranch is conversation.Switch.
func (d *rows) switchBranch(a identity.Actor, session id.Session, message id.Message) error {
	s := d.session(a.Workspace, session)
	if s == nil {
		return notFound()
	}
	if len(d.openRuns(session)) > 0 && d.cfg.plant != switchesAnyway {
		return runActive()
	}
	target := d.named(s, branch.Ref{Message: message})
	if target == nil {
		return notFound()
	}
	below := target.position
	for _, m := range d.joined(session) {
		if slices.Contains(d.branch(s, m.position), target) {
			below = m.position
		}
	}
	d.switchTo(s, a, below)
	return nil
}

// switchTo makes the next message follow the one at leaf.
func (d *rows) switchTo(s *sessionRow, a identity.Actor, leaf int64) {
	if leaf == s.leaf {
		return
	}
	_, subj := run.LogSubject(d.cfg.run.Partitions, s.ws, s.id)
	d.say(outbox.Message{Subject: subj, ID: fmt.Sprintf("%s:%d", s.id, s.nextOrdinal), Body: &runv1.Event{
		RunOrdinal: s.nextOrdinal, Time: timestamppb.New(d.cfg.now()),
		Body: &runv1.Event_BranchSwitched{BranchSwitched: &runv1.BranchSwitched{SwitchedBy: a.Member.String()}},
	}})
	s.nextOrdinal++
	s.leaf = leaf
}

// madeSummary is a summary and the position of the last message that it stands for.
type madeSummary struct {
	run.Summary
	position int64
}

func (d *rows) keepSummary(s *sessionRow, m run.Summary) {
	at := int64(m.Messages)
	if on := d.branch(s, s.leaf); m.Messages <= len(on) {
		at = on[m.Messages-1].position
	}
	s.summaries[m.Messages] = madeSummary{m, at}
}

// summaryOf returns the longest summary that counts on the current branch, or nil.
func (d *rows) summaryOf(s *sessionRow) (longest *run.Summary) {
	on := d.branch(s, s.leaf)
	for _, m := range s.summaries {
		counts := m.position >= s.nextPosition || slices.ContainsFunc(on, func(o *messageRow) bool { return o.position == m.position })
		if counts && (longest == nil || longest.Messages < m.Messages) {
			longest = &m.Summary
		}
	}
	return longest
}
