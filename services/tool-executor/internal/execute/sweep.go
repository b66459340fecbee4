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

// Sweep takes over the calls of executors that died, until ctx is done. Then those
// that it took are finished within drain, or handed on, and it returns.
//
// Any number of executors sweep at once: a row is taken over by one of them.
func (e *Executor) Sweep(ctx context.Context, drain time.Duration) {
	work, letGo := context.WithCancelCause(context.WithoutCancel(ctx))
	defer letGo(nil)
	var taken sync.WaitGroup
	e.look(ctx, func(o ledger.Open, why string) {
		taken.Go(func() {
			if err := panics.Try(func() error { return e.takeOver(work, o, why) }); err != nil {
				e.cfg.Log.InfoContext(work, "call not taken over", "key", o.Key, "error", err)
			}
		})
	})
	timer := time.AfterFunc(drain, func() { letGo(bus.ErrDraining) })
	defer timer.Stop()
	taken.Wait() // a tool that holds on is left behind after its grace
}

// sighting is what a look at a row showed, and since when.
type sighting struct {
	version string
	since   time.Time
}

// look looks at the open calls at intervals and hands lost to whom it may concern.
func (e *Executor) look(ctx context.Context, lost func(o ledger.Open, why string)) {
	t := time.NewTicker(e.cfg.Look)
	defer t.Stop()
	seen := map[ledger.Ref]sighting{}
	for last := time.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		asked := time.Now()
		open, err := e.open(ctx)
		now := time.Now()
		if err != nil || asked.Sub(last) > e.cfg.Quiet || now.Sub(asked) > writeTimeout {
			// The database was away, or this process stopped. It was so for others as
			// well, perhaps, and they get the time to show up again.
			clear(seen)
		}
		last = now
		if err != nil {
			if ctx.Err() == nil {
				e.cfg.Log.WarnContext(ctx, "open calls not read", "error", err)
			}
			continue
		}
		seen = e.sight(open, seen, now)
		for _, s := range e.silent(ctx, open, seen, now) {
			delete(seen, s.Ref)
			lost(s.Open, s.why)
		}
	}
}

func (e *Executor) open(ctx context.Context) ([]ledger.Open, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	return e.cfg.Ledger.Open(ctx)
}

// sight notes since when each row is as it is; those in our own hands are no concern.
func (e *Executor) sight(open []ledger.Open, seen map[ledger.Ref]sighting, now time.Time) map[ledger.Ref]sighting {
	e.mu.Lock()
	defer e.mu.Unlock()
	next := make(map[ledger.Ref]sighting, len(open))
	for _, o := range open {
		if _, ours := e.hands.jobs[o.Ref]; ours {
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

// silence is a call that nobody seems to be at work on.
type silence struct {
	ledger.Open
	why string
}

// silent returns the rows that have not changed for too long.
func (e *Executor) silent(ctx context.Context, open []ledger.Open, seen map[ledger.Ref]sighting, now time.Time) []silence {
	var out, quiet []silence
	var names []string
	for _, o := range open {
		s, ok := seen[o.Ref]
		if !ok {
			continue
		}
		switch d := now.Sub(s.since); {
		case d >= e.cfg.Lease:
			out = append(out, silence{o, "silent"})
		case d >= e.cfg.Quiet && o.Released:
			out = append(out, silence{o, "released"})
		case d >= e.cfg.Quiet:
			quiet = append(quiet, silence{o, "absent"})
			names = append(names, o.Executor)
		}
	}
	if len(quiet) == 0 {
		return out
	}
	names, err := e.cfg.Presence.Absent(ctx, names)
	if err != nil {
		if ctx.Err() == nil {
			e.cfg.Log.WarnContext(ctx, "not known whether executors live", "error", err)
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

// takeOver goes on with a call in place of whoever had it, if nobody else does.
func (e *Executor) takeOver(ctx context.Context, o ledger.Open, why string) error {
	work, err := e.cfg.Ledger.Work(ctx, o.Ref)
	if err != nil {
		return ignoreLost(err)
	}
	msg := &toolv1.Call{}
	if err := proto.Unmarshal(work, msg); err != nil {
		return fmt.Errorf("read the call: %w", err)
	}
	j, err := newJob(msg, e.cfg.Catalogue)
	if err != nil {
		return fmt.Errorf("tool call: %w", err)
	}
	ctx, cancel := context.WithCancelCause(identity.With(ctx, j.actor))
	defer cancel(nil)
	j.cancel = cancel
	if err := e.admit(ctx, j); err != nil {
		return err // another one may have a slot, or we later
	}
	defer e.leave(j)
	asked := time.Now()
	claim, err := e.cfg.Ledger.TakeOver(ctx, o)
	if err != nil {
		return ignoreLost(err)
	}
	e.cfg.Metrics.takeovers.WithLabelValues(why).Inc()
	e.cfg.Log.WarnContext(ctx, "call taken over", "tool", msg.GetToolName(), "workspace", j.Workspace, "run", j.run, "key", j.Key,
		"executor", o.Executor, "because", why, "attempt", claim.Attempt)
	return e.carryOut(ctx, j, claim, asked)
}

// ignoreLost is err unless somebody else was faster.
func ignoreLost(err error) error {
	if errors.Is(err, ledger.ErrLost) {
		return nil
	}
	return err
}
