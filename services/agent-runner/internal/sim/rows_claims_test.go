package sim

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/subject"
	"signalbox.dev/services/agent-runner/internal/outbox"
	"signalbox.dev/services/agent-runner/internal/run"
)

func (d *rows) claim(runner string, ws id.Workspace, session id.Session, r id.Run) (*run.Claim, error) {
	if d.unpublished(ws, session) && d.cfg.plant != claimsEarly {
		return nil, run.ErrTooEarly
	}
	s, row, now := d.session(ws, session), d.runs[r], d.cfg.now()
	if s == nil || row == nil || row.Session != session {
		return nil, run.ErrNotClaimable
	}
	lost := row.State == run.Running && (row.lease.Before(now) || d.cfg.plant == claimsHeld)
	next := row.State == run.Queued && (!d.blocked(row) || d.cfg.plant == claimsBlocked)
	if !lost && !next || d.needsSlot(row) && d.held(ws) >= d.most() && (next || d.cfg.plant != resumesFull) {
		return nil, run.ErrNotClaimable
	}
	if lost && row.runner == "" { // it has waited for a slot
		deadline := row.Deadline.Add(now.Sub(row.lease))
		row.Deadline = &deadline
	}
	row.State = run.Running
	if d.cfg.plant != sameEpoch || row.Epoch == 0 {
		row.Epoch++
	}
	row.Fruitless++
	row.runner, row.lease = runner, now.Add(d.cfg.run.Lease)
	row.LastEvent = max(row.LastEvent, 1)
	if row.StartedAt == nil {
		deadline := now.Add(d.cfg.run.WallTime)
		row.StartedAt, row.Deadline = &now, &deadline
	}
	c := &run.Claim{Run: row.Run, First: row.Epoch == 1, RequestedAt: time.Now()}
	if c.First {
		d.join(s, row.UserMessage)
	}
	return c, nil
}

// needsSlot reports whether a claim must not take a run if its workspace is at its limit.
func (d *rows) needsSlot(r *runRow) bool {
	return r.State == run.Queued || r.State == run.Running && r.runner == "" && !d.stopping(r.ID)
}

// releaseUnconfirmed ends a runner's lease of a run, if it has one.
func (d *rows) releaseUnconfirmed(runner string, r id.Run) (held bool) {
	row := d.runs[r]
	if held = row != nil && row.State == run.Running && row.runner == runner; held {
		row.lease = d.cfg.now()
	}
	return held
}

// unpublished reports whether events of the session wait in the outbox.
func (d *rows) unpublished(ws id.Workspace, session id.Session) bool {
	_, subj := run.LogSubject(d.cfg.run.Partitions, ws, session)
	return slices.ContainsFunc(d.outbox, func(o outbox.Row) bool { return o.Subject == subj })
}

// fence returns the run's row for the claim, or run.ErrFenced.
func (d *rows) fence(c *run.Claim) (*runRow, *sessionRow, error) {
	row := d.runs[c.Run.ID]
	if row == nil {
		return nil, nil, run.ErrFenced
	}
	if d.cfg.plant == noFence && !row.State.Ended() {
		return row, d.sessions[row.Session], nil
	}
	if row.Epoch != c.Run.Epoch || row.State != run.Running {
		return nil, nil, run.ErrFenced
	}
	return row, d.sessions[row.Session], nil
}

func (d *rows) renew(leases []run.Lease) []run.Renewal {
	var beats []run.Renewal
	yields := d.yields(leases)
	for _, l := range leases {
		row := d.runs[l.Run]
		if row == nil || row.Epoch != l.Epoch || row.State != run.Running {
			continue
		}
		row.lease = d.cfg.now().Add(d.cfg.run.Lease)
		mail := slices.ContainsFunc(d.inbox, func(i *inboxRow) bool { return i.run == l.Run && !i.read })
		beats = append(beats, run.Renewal{Run: l.Run, Unread: mail, Yield: slices.Contains(yields, l.Run)})
	}
	return beats
}

func (d *rows) park(c *run.Claim) error {
	row, _, err := d.fence(c)
	if err != nil {
		return err
	}
	row.lease = d.cfg.now()
	d.wake(row, fmt.Sprintf(":parked-%d", c.Run.Epoch))
	return nil
}

func (d *rows) release(c *run.Claim, wait time.Duration) {
	if row := d.runs[c.Run.ID]; row != nil && row.Epoch == c.Run.Epoch && row.State == run.Running {
		row.lease = d.cfg.now().Add(wait)
	}
}

func (d *rows) expireAbsent(quiet time.Duration, absent func(runner string) bool) (expired []run.Claimable) {
	now := d.cfg.now()
	for _, row := range d.allRuns {
		if d.runs[row.ID] == nil || row.State != run.Running || row.lease.Before(now) || row.lease.After(now.Add(d.cfg.run.Lease-quiet)) || !absent(row.runner) {
			continue
		}
		row.lease = now
		expired = append(expired, run.Claimable{Workspace: row.Workspace, Session: row.Session, Run: row.ID, Epoch: row.Epoch})
	}
	return expired
}

func (d *rows) sweep(patience time.Duration, limit int) []run.Claimable {
	type found struct {
		since time.Time
		run.Claimable
	}
	var all []found
	now := d.cfg.now()
	for _, row := range d.allRuns {
		if d.runs[row.ID] == nil {
			continue
		}
		f := found{row.lease, run.Claimable{Workspace: row.Workspace, Session: row.Session, Run: row.ID, Epoch: row.Epoch, Queued: d.needsSlot(row)}}
		switch {
		case row.State == run.Running && f.Queued && !row.lease.Before(now.Add(-patience)):
			continue
		case row.State == run.Running && (row.lease.Before(now) || d.cfg.plant == claimsHeld):
		case row.State == run.Queued && d.cfg.plant != leavesQueued && row.CreatedAt.Before(now.Add(-patience)) && (!d.blocked(row) || d.cfg.plant == claimsBlocked):
			f.since = row.CreatedAt
		default:
			continue
		}
		all = append(all, f)
	}
	slices.SortStableFunc(all, func(a, b found) int {
		return cmp.Or(rank(a.Queued)-rank(b.Queued), a.since.Compare(b.since), cmp.Compare(a.Run.String(), b.Run.String()))
	})
	var out []run.Claimable
	for _, f := range all[:min(limit, len(all))] {
		out = append(out, f.Claimable)
	}
	return out
}

func (d *rows) ready(limit int) (out []run.Claimable) {
	for _, r := range d.sweep(0, math.MaxInt) {
		if r.Queued && len(out) < limit {
			out = append(out, r)
		}
	}
	return out
}

// wake puts a run's wake-up into the outbox. A later one has an occasion.
func (d *rows) wake(r *runRow, occasion string) {
	d.say(outbox.Message{
		Workspace: r.Workspace, Subject: subject.RunWork(subject.Shard(r.Session)), ID: r.ID.String() + occasion,
		Body: run.Work(r.Workspace, r.Session, r.ID),
	})
}

// wakeNext wakes the session's next run and reports whether there is one.
func (d *rows) wakeNext(s *sessionRow) bool {
	for _, r := range d.runsOf(s.id) {
		if r.State == run.Queued && !d.blocked(r) && d.cfg.plant != leavesQueued {
			d.wake(r, "")
			return true
		}
	}
	return false
}

// rank orders runs that have started before queued ones.
func rank(queued bool) int {
	if queued {
		return 1
	}
	return 0
}
