package sim

import (
	"fmt"
	"slices"

	"signalbox.dev/pkg/id"
	"signalbox.dev/services/agent-runner/internal/branch"
	"signalbox.dev/services/agent-runner/internal/conversation"
	"signalbox.dev/services/agent-runner/internal/run"
)

// Operations on the tree of messages.

// aMessage returns a message of a user and, mostly, its session.
func (b *both) aMessage() (m pair[id.Message], s pair[id.Session], ok bool) {
	if len(b.messages) == 0 {
		return m, s, false
	}
	m = b.messages[b.rng.IntN(len(b.messages))]
	s = b.spaces[b.rng.IntN(len(b.spaces))]
	for _, own := range b.spaces {
		if row := b.rows.messages[m.here]; row != nil && row.session == own.here && b.rng.IntN(8) > 0 {
			s = own
		}
	}
	return m, s, true
}

// branch edits a message or has one answered again.
func (b *both) branch() (here, there []string) {
	m, s, ok := b.aMessage()
	if !ok {
		return nil, nil
	}
	if b.rng.IntN(4) > 0 {
		b.keys++
	}
	one := conversation.NewMessage{Session: s.here, IdempotencyKey: fmt.Sprint("branch ", b.keys)}
	two := one
	ref1, ref2 := branch.Ref{Message: m.here}, branch.Ref{Message: m.there}
	if b.rng.IntN(3) == 0 {
		ref1, ref2 = branch.Ref{}, branch.Ref{} // the last message
	}
	if b.rng.IntN(2) == 0 {
		one.Regenerate, two.Regenerate = &ref1, &ref2
	} else {
		one.IdempotencyKey = fmt.Sprint("edit ", b.keys)
		two.IdempotencyKey = one.IdempotencyKey
		one.Edit, two.Edit = &ref1, &ref2
		one.Content = quoted(fmt.Sprint("edited ", b.keys))
		two.Content = one.Content
	}
	return b.send(s, one, two)
}

// answer does all that a session's first run still needs, so that there are branches to switch to.
func (b *both) answer() (here, there []string) {
	b.rows.outbox = nil
	b.exec(`DELETE FROM outbox`)
	s := b.spaces[b.rng.IntN(len(b.spaces))]
	open := b.rows.openRuns(s.here)
	if len(open) == 0 {
		return nil, nil
	}
	r := b.cancelled[slices.IndexFunc(b.cancelled, func(r pair[id.Run]) bool { return r.here == open[0].ID })]
	i := slices.IndexFunc(b.claims, func(c pair[*run.Claim]) bool {
		return c.here.Run.ID == r.here && c.here.Run.Epoch == open[0].Epoch && open[0].State == run.Running
	})
	if i < 0 {
		one, err1 := b.rows.claim(b.runners[0], b.actor[0].Workspace, s.here, r.here)
		two, err2 := b.store().Claim(b.t.Context(), b.actor[1].Workspace, s.there, r.there)
		if err1 != nil || err2 != nil {
			return []string{why(err1)}, []string{why(err2)}
		}
		i = len(b.claims)
		b.claims = append(b.claims, pair[*run.Claim]{one, two})
	}
	here, there = b.completeStepOf(b.claims[i])
	ended1, ended2 := b.finishOf(b.claims[i])
	return append(here, ended1...), append(there, ended2...)
}

func (b *both) switchBranch() (here, there []string) {
	m, s, ok := b.aMessage()
	if !ok {
		return nil, nil
	}
	return []string{why(b.rows.switchBranch(b.actor[0], s.here, m.here))}, []string{why(b.people.Switch(b.t.Context(), b.actor[1], s.there, m.there))}
}
