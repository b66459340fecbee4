package execute

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/panics"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/tool-executor/internal/ledger"
)

// Sweep takes over the calls of dead executors until ctx is done. It then finishes the calls
// it took within drain, or hands them over, and returns.
//
// Mostly one executor sweeps at a time (bus.Rounds). If several do, only one of them takes over a
// given row. One that goes on after another has to watch each row anew, so that a call of the
// executor that swept is taken over later by up to two intervals and a renewal.
func (e *Executor) Sweep(ctx context.Context, drain time.Duration) {
	work, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)
	var taken sync.WaitGroup
	e.watchOpen(ctx, func(o ledger.Open, why string) {
		taken.Go(func() {
			if err := panics.Try(func() error { return e.takeOver(work, o, why) }); err != nil {
				e.cfg.Log.InfoContext(work, "call not taken over", "key", o.Key, "error", err)
			}
		})
	})
	timer := time.AfterFunc(drain, func() { stop(bus.ErrDraining) })
	defer timer.Stop()
	taken.Wait() // a tool that does not return is abandoned after its grace period
}

// sighting is the version of a row and when it was first seen.
type sighting struct {
	version string
	since   time.Time
}

// watchOpen reads the open calls at intervals and passes the stalled ones to takeOver.
func (e *Executor) watchOpen(ctx context.Context, takeOver func(o ledger.Open, why string)) {
	rounds := e.cfg.Rounds
	if rounds == nil {
		rounds = bus.RoundsAlone(e.cfg.SweepEvery)
	}
	seen := map[ledger.Ref]sighting{}
	for last := time.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-rounds.Due():
		}
		rounds.Begin()
		sent := time.Now()
		open, err := e.open(ctx)
		now := time.Now()
		if err != nil || sent.Sub(last) > e.cfg.Quiet || now.Sub(sent) > writeTimeout {
			// The database was unavailable or this process was stopped. The other executors
			// may have been affected too and get time to renew their leases.
			clear(seen)
		}
		last = now
		if err != nil {
			if ctx.Err() == nil {
				e.cfg.Log.WarnContext(ctx, "open calls not read", "error", err)
			}
			continue
		}
		seen = e.updateSightings(open, seen, now)
		for _, s := range e.silent(ctx, open, seen, now) {
			delete(seen, s.Ref)
			takeOver(s.Open, s.why)
		}
		rounds.Done(ctx)
	}
}

func (e *Executor) open(ctx context.Context) ([]ledger.Open, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	return e.cfg.Ledger.Open(ctx)
}

// updateSightings returns since when each row has had its version, except for the rows of this
// executor's own active calls.
func (e *Executor) updateSightings(open []ledger.Open, seen map[ledger.Ref]sighting, now time.Time) map[ledger.Ref]sighting {
	e.mu.Lock()
	defer e.mu.Unlock()
	next := make(map[ledger.Ref]sighting, len(open))
	for _, o := range open {
		if _, ours := e.active.jobs[o.Ref]; ours {
			continue
		}
		s, ok := seen[o.Ref]
		if !ok || s.version != o.Version {
			s = sighting{o.Version, now}
		}
		next[o.Ref] = s
	}
	return next
}

// stalled is a call without a live executor.
type stalled struct {
	ledger.Open
	why string
}

// silent returns the rows that have not changed for too long.
func (e *Executor) silent(ctx context.Context, open []ledger.Open, seen map[ledger.Ref]sighting, now time.Time) []stalled {
	var out, quiet []stalled
	var names []string
	for _, o := range open {
		s, ok := seen[o.Ref]
		if !ok {
			continue
		}
		switch d := now.Sub(s.since); {
		case d >= e.cfg.Lease:
			out = append(out, stalled{o, "silent"})
		case d >= e.cfg.Quiet && o.Released:
			out = append(out, stalled{o, "released"})
		case d >= e.cfg.Quiet:
			quiet = append(quiet, stalled{o, "absent"})
			names = append(names, o.Executor)
		}
	}
	if len(quiet) == 0 {
		return out
	}
	names, err := e.cfg.Presence.Absent(ctx, names)
	if err != nil {
		if ctx.Err() == nil {
			e.cfg.Log.WarnContext(ctx, "presence of executors not read", "error", err)
		}
		return out
	}
	absent := map[string]bool{}
	for _, n := range names {
		absent[n] = true
	}
	for _, s := range quiet {
		if absent[s.Executor] {
			out = append(out, s)
		}
	}
	return out
}

// takeOver claims a stalled call and completes it, unless another executor is faster.
func (e *Executor) takeOver(ctx context.Context, o ledger.Open, why string) error {
	work, err := e.cfg.Ledger.Work(ctx, o.Ref)
	if err != nil {
		return ignoreLost(err)
	}
	msg := &toolv1.Call{}
	if err := proto.Unmarshal(work, msg); err != nil {
		return fmt.Errorf("decode the call: %w", err)
	}
	j, err := newJob(msg)
	if err != nil {
		return fmt.Errorf("tool call: %w", err)
	}
	if err := j.find(ctx, e.cfg.Catalogue); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(identity.With(ctx, j.actor))
	defer cancel(nil)
	j.cancel = cancel
	if err := e.admit(ctx, j); err != nil {
		return err // another executor may have a slot, or this one later
	}
	defer e.leave(j)
	sent := time.Now()
	claim, err := e.cfg.Ledger.TakeOver(ctx, o)
	if err != nil {
		return ignoreLost(err)
	}
	e.cfg.Metrics.takeovers.WithLabelValues(why).Inc()
	e.cfg.Log.WarnContext(ctx, "call taken over", "tool", msg.GetToolName(), "workspace", j.Workspace, "run", j.run, "key", j.Key,
		"executor", o.Executor, "because", why, "attempt", claim.Attempt)
	return e.complete(ctx, j, claim, sent)
}

// ignoreLost returns err, or nil if another executor was faster.
func ignoreLost(err error) error {
	if errors.Is(err, ledger.ErrLost) {
		return nil
	}
	return err
}
