package sim

import (
	"cmp"
	"math"
	"slices"
	"time"

	"signalbox.dev/pkg/id"
	"signalbox.dev/services/agent-runner/internal/run"
)

// most returns the limit of running runs of a workspace.
func (d *rows) most() int {
	if d.cfg.run.PerWorkspace == 0 {
		return math.MaxInt
	}
	return d.cfg.run.PerWorkspace
}

// held counts the runs of a workspace with a valid lease.
func (d *rows) held(ws id.Workspace) (n int) {
	for _, r := range d.runs {
		if r.Workspace == ws && r.State == run.Running && !r.lease.Before(d.cfg.now()) {
			n++
		}
	}
	return n
}

// turn is a workspace with claimable runs.
type turn struct {
	ws     id.Workspace
	held   int
	served time.Time
	wants  []*runRow
}

// turns returns the workspaces in the order in which they are served. later includes runs that
// wait for the outbox.
func (d *rows) turns(later bool) []turn {
	const abreast = 8 // as Next has
	var out []turn
	now := d.cfg.now()
	for _, r := range d.allRuns {
		if d.runs[r.ID] == nil {
			continue
		}
		i := slices.IndexFunc(out, func(t turn) bool { return t.ws == r.Workspace })
		if i < 0 {
			i = len(out)
			out = append(out, turn{ws: r.Workspace, held: d.held(r.Workspace)})
		}
		t := &out[i]
		if r.StartedAt != nil && r.StartedAt.After(t.served) {
			t.served = *r.StartedAt
		}
		lost := r.State == run.Running && (r.lease.Before(now) || d.cfg.plant == claimsHeld)
		next := r.State == run.Queued && (!d.blocked(r) || d.cfg.plant == claimsBlocked)
		full := d.needsSlot(r) && t.held >= d.most() && (next || d.cfg.plant != resumesFull)
		if (lost || next) && !full && (later || d.cfg.plant == claimsEarly || !d.unpublished(r.Workspace, r.Session)) {
			t.wants = append(t.wants, r)
		}
	}
	out = slices.DeleteFunc(out, func(t turn) bool { return len(t.wants) == 0 })
	slices.SortStableFunc(out, func(a, b turn) int { return cmp.Or(cmp.Compare(a.held, b.held), a.served.Compare(b.served)) })
	for i, t := range out {
		slices.SortStableFunc(t.wants, func(a, b *runRow) int {
			return cmp.Or(rank(a.State == run.Queued)-rank(b.State == run.Queued), since(a).Compare(since(b)))
		})
		out[i].wants = t.wants[:min(len(t.wants), abreast)]
	}
	return out
}

// since returns since when a run has waited.
func since(r *runRow) time.Time {
	if r.State == run.Queued {
		return r.CreatedAt
	}
	return r.lease
}

func (d *rows) next() (out []run.Claimable, err error) {
	turns := d.turns(false)
	switch {
	case len(turns) > 0:
	case len(d.turns(true)) > 0:
		return nil, run.ErrTooEarly
	default:
		return nil, run.ErrNotClaimable
	}
	for _, r := range turns[0].wants {
		out = append(out, run.Claimable{Workspace: r.Workspace, Session: r.Session, Run: r.ID, Epoch: r.Epoch, Queued: d.needsSlot(r)})
	}
	return out, nil
}

// yields returns the runs that must yield.
func (d *rows) yields(leases []run.Lease) (out []id.Run) {
	const patience = 500 * time.Millisecond // as Renew has
	most := 0
	for _, r := range d.runs {
		most = max(most, d.held(r.Workspace))
	}
	needy, least := 0, math.MaxInt
	for _, t := range d.turns(false) {
		for _, r := range t.wants {
			if t.held+1 < most && since(r).Before(d.cfg.now().Add(-patience)) {
				needy, least = needy+1, min(least, t.held)
			}
		}
	}
	var mine []*runRow
	for _, l := range leases {
		if r := d.runs[l.Run]; r != nil && r.Epoch == l.Epoch && r.State == run.Running && needy > 0 && d.held(r.Workspace) > least+1 {
			mine = append(mine, r)
		}
	}
	slices.SortStableFunc(mine, func(a, b *runRow) int {
		return cmp.Or(cmp.Compare(d.held(b.Workspace), d.held(a.Workspace)), a.StartedAt.Compare(*b.StartedAt))
	})
	for _, r := range mine[:min(needy, len(mine))] {
		out = append(out, r.ID)
	}
	return out
}

// wakeOther wakes a run of a workspace that waits for a slot, after another one has ended.
func (d *rows) wakeOther(ws id.Workspace, ended id.Run) { d.wakeOtherFor(ws, ":after-"+ended.String()) }

func (d *rows) wakeOtherFor(ws id.Workspace, occasion string) {
	var waits *runRow
	for _, r := range d.allRuns {
		resumed := r.State == run.Running && r.lease.Before(d.cfg.now())
		if d.runs[r.ID] == nil || r.Workspace != ws || !d.needsSlot(r) || !resumed && d.blocked(r) {
			continue
		}
		if waits == nil || cmp.Or(rank(!resumed)-rank(waits.State == run.Queued), since(r).Compare(since(waits))) < 0 {
			waits = r
		}
	}
	if waits != nil && d.cfg.plant != leavesQueued {
		d.wake(waits, occasion)
	}
}
