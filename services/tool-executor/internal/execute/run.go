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

// Backoff between runs of a tool whose remote side is unavailable.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = 2 * time.Second
)

// cancelGrace bounds Config.Grace for a call that a person stopped, because they wait for it.
const cancelGrace = 100 * time.Millisecond

// answer is the result of running a tool.
type answer struct {
	result tool.Result
	err    error
	tried  bool // it had been run before, here or by another executor
}

// errUnverified means that it could not be found out whether the call took effect.
var errUnverified = errors.New("not known whether the call took effect")

// run runs the tool under ctx, whose deadline is the call's. It waits at most Config.Grace
// longer than that.
func (e *Executor) run(ctx context.Context, j *job) ending {
	done := make(chan answer, 1) // buffered so that an abandoned tool can end
	e.tools.Go(func() {
		defer e.toolReturned(j)
		done <- e.attempt(ctx, j)
	})
	select {
	case a := <-done:
		return e.endingOf(ctx, j, a)
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
		return e.endingOf(ctx, j, a)
	case <-grace.C:
	}
	e.abandon(j)
	e.cfg.Log.ErrorContext(ctx, "tool does not return after its context has ended", "tool", j.entry.Spec.Name, "key", j.Key)
	return e.endingOf(ctx, j, answer{err: context.Cause(ctx)})
}

// attempt runs the tool. It retries while the remote side is unavailable, if the effect
// allows that. A panic becomes an error.
func (e *Executor) attempt(ctx context.Context, j *job) (a answer) {
	defer panics.Recover(&a.err)
	call := j.call()
	tried := j.repeated()
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		if tried && j.effect == toolv1.Effect_EFFECT_VERIFY {
			r, found, err := e.verify(ctx, j, call)
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
		if err == nil || !again || !transient(err) || !sleep(ctx, pause) {
			return answer{r, err, tried}
		}
		tried = true
	}
}

// confirm returns nil when the claim was renewed within Config.Quiet, before which no other
// executor takes it over.
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
		case err != nil && !sleep(ctx, pause):
			return err
		}
	}
}

// verify finds out whether a call that an earlier attempt may have run took effect. It returns
// when the effect is found or when it is certain that there will be none; see the package
// comment. Its errors wrap errUnverified.
func (e *Executor) verify(ctx context.Context, j *job, call tool.Call) (r tool.Result, found bool, err error) {
	v, ok := j.entry.Tool.(tool.Verifier)
	if !ok { // NewCatalogue refuses it
		return tool.Result{}, false, errUnverified
	}
	var settled time.Time // from then on "not found" is certain; zero while others may act
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		if settled.IsZero() && e.allGone(ctx, j) {
			settled = time.Now().Add(j.entry.Spec.Settle)
		}
		late := !settled.IsZero() && !time.Now().Before(settled)
		r, found, err := v.Verify(ctx, call)
		switch {
		case err != nil && !transient(err):
			return tool.Result{}, false, errors.Join(errUnverified, err)
		case err == nil && (found || late):
			return r, found, nil
		}
		next := pause
		if left := time.Until(settled); err == nil && left > 0 {
			next = min(next, 2*left) // sleep takes half of it at least
		}
		if !sleep(ctx, next) {
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
		e.cfg.Log.WarnContext(ctx, "presence of executors not read", "error", err)
	}
	return err == nil && len(absent) == len(j.former)
}

// transient reports whether the same call may succeed a moment later.
func transient(err error) bool {
	f, ok := errors.AsType[*fault.Error](err)
	return ok && (f.Kind == fault.Unavailable || f.Kind == fault.Deadline || f.Kind == fault.Limited)
}

// sleep waits for d/2 to d. It returns false if ctx ends before.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d/2 + rand.N(d/2+1))
	defer t.Stop()
	select {
	case <-t.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
