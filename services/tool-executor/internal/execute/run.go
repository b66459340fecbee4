package execute

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/panics"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/tool-executor/internal/ledger"
	"signalbox.dev/services/tool-executor/internal/tool"
)

// Backoff between runs of a tool whose far end is unavailable.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = 2 * time.Second
)

// cancelGrace is Grace for a call that a person stopped: they wait for it.
const cancelGrace = 100 * time.Millisecond

// answer is what came of running a tool.
type answer struct {
	result tool.Result
	err    error
	tried  bool // it had been run before, here or by another executor
}

// errUnverified marks a call of which nobody could find out whether it happened.
var errUnverified = errors.New("not known whether the call took effect")

// run runs the tool under ctx, whose deadline is the call's, and never waits for
// it much longer than that.
func (e *Executor) run(ctx context.Context, j *job) ending {
	done := make(chan answer, 1) // of one, so that a tool which nobody waits for can end
	e.tools.Go(func() {
		defer e.returned(j)
		done <- e.attempt(ctx, j)
	})
	select {
	case a := <-done:
		return e.judge(ctx, j, a)
	case <-ctx.Done():
	}
	limit := e.cfg.Grace
	if errors.Is(context.Cause(ctx), errCancelled) {
		limit = min(limit, cancelGrace)
	}
	grace := time.NewTimer(limit)
	defer grace.Stop()
	select {
	case a := <-done:
		return e.judge(ctx, j, a)
	case <-grace.C:
	}
	e.abandon(j)
	e.cfg.Log.ErrorContext(ctx, "tool holds on after its context has ended", "tool", j.entry.Spec.Name, "key", j.Key)
	return e.judge(ctx, j, answer{err: context.Cause(ctx)})
}

// attempt runs the tool, again while its far end is unavailable and that is
// harmless. A panic is an error.
func (e *Executor) attempt(ctx context.Context, j *job) (a answer) {
	defer panics.Recover(&a.err)
	call := j.call()
	tried := j.repeated()
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		if tried && j.effect == toolv1.Effect_EFFECT_VERIFY {
			r, found, err := e.lookUp(ctx, j, call)
			if err != nil {
				return answer{err: err}
			}
			if found {
				return answer{result: r}
			}
		}
		if err := e.confirm(ctx, j); err != nil {
			return answer{err: err}
		}
		j.begun.Store(true)
		r, err := j.entry.Tool.Run(ctx, call)
		again := j.repeatable() || j.effect == toolv1.Effect_EFFECT_VERIFY
		if err == nil || !again || !passing(err) || !wait(ctx, pause) {
			return answer{r, err, tried}
		}
		tried = true
	}
}

// confirm returns when the claim is certainly ours, or was so a moment ago: others
// take it over only when it has not been renewed for longer.
func (e *Executor) confirm(ctx context.Context, j *job) error {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		e.mu.Lock()
		fresh := time.Since(j.confirmed) < e.cfg.Quiet
		e.mu.Unlock()
		if fresh {
			return ctx.Err()
		}
		err := e.renew(ctx, map[*job]int{j: j.attempt}, []ledger.Ref{j.Ref})
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx) // errLost among others
		case err != nil && !wait(ctx, pause):
			return err
		}
	}
}

// lookUp finds out what became of a call that somebody may have run, and returns
// when it is found, or when it is certain that it will not be: see the package's
// comment. Its error is one of errUnverified.
func (e *Executor) lookUp(ctx context.Context, j *job, call tool.Call) (r tool.Result, found bool, err error) {
	v, ok := j.entry.Tool.(tool.Verifier)
	if !ok { // NewCatalogue refuses it
		return tool.Result{}, false, errUnverified
	}
	var settled time.Time // when what is not found will not be; zero while others may be at it
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		if settled.IsZero() && e.allGone(ctx, j) {
			settled = time.Now().Add(j.entry.Spec.Settle)
		}
		late := !settled.IsZero() && !time.Now().Before(settled)
		r, found, err := v.Verify(ctx, call)
		switch {
		case err != nil && !passing(err):
			return tool.Result{}, false, errors.Join(errUnverified, err)
		case err == nil && (found || late):
			return r, found, nil
		}
		next := pause
		if left := time.Until(settled); err == nil && left > 0 {
			next = min(next, 2*left) // wait takes half of it at least
		}
		if !wait(ctx, next) {
			return tool.Result{}, false, errors.Join(errUnverified, context.Cause(ctx), err)
		}
	}
}

// allGone reports whether no executor that had begun with the call can still act.
func (e *Executor) allGone(ctx context.Context, j *job) bool {
	if len(j.former) == 0 {
		return true
	}
	absent, err := e.cfg.Presence.Absent(ctx, j.former)
	if err != nil && ctx.Err() == nil {
		e.cfg.Log.WarnContext(ctx, "not known whether executors live", "error", err)
	}
	return err == nil && len(absent) == len(j.former)
}

// passing reports whether the same call may work in a moment.
func passing(err error) bool {
	f, ok := errors.AsType[*fault.Error](err)
	return ok && (f.Kind == fault.Unavailable || f.Kind == fault.Deadline || f.Kind == fault.Limited)
}

// wait waits for about d; it returns false when ctx ends before.
func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d/2 + rand.N(d/2+1))
	defer t.Stop()
	select {
	case <-t.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
