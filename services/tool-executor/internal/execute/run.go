package execute

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"time"

	"signalbox.dev/pkg/fault"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/tool-executor/internal/tool"
)

// Backoff between runs of a tool whose far end is unavailable.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = 2 * time.Second
)

// answer is what came of running a tool.
type answer struct {
	result tool.Result
	err    error
}

// panicked is the error of a tool that panicked.
type panicked struct {
	value any
	stack string
}

func (p *panicked) Error() string { return fmt.Sprintf("the tool panicked: %v", p.value) }

// errUnverified marks a call of which nobody could find out whether it happened.
var errUnverified = errors.New("not known whether the call took effect")

// run runs the tool under ctx, whose deadline is the call's, and never waits for
// it much longer than that.
func (e *Executor) run(ctx context.Context, j *job) ending {
	done := make(chan answer, 1) // of one, so that a tool which nobody waits for can end
	e.tools.Go(func() {
		defer e.returned(j)
		done <- attempt(ctx, j)
	})
	select {
	case a := <-done:
		return e.judge(ctx, j, a)
	case <-ctx.Done():
	}
	grace := time.NewTimer(e.cfg.Grace)
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
func attempt(ctx context.Context, j *job) (a answer) {
	defer func() {
		if p := recover(); p != nil {
			a = answer{err: &panicked{p, string(debug.Stack())}}
		}
	}()
	t, call := j.entry.Tool, j.call()
	if j.repeated() && j.entry.Spec.Effect == toolv1.Effect_EFFECT_VERIFY {
		v, ok := t.(tool.Verifier)
		if !ok {
			return answer{err: errUnverified}
		}
		r, found, err := verify(ctx, v, call)
		if err != nil {
			return answer{err: errors.Join(errUnverified, err)}
		}
		if found {
			return answer{result: r}
		}
	}
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		r, err := t.Run(ctx, call)
		if err == nil || !j.repeatable() || !passing(err) || !wait(ctx, pause) {
			return answer{r, err}
		}
	}
}

func verify(ctx context.Context, v tool.Verifier, call tool.Call) (tool.Result, bool, error) {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		r, found, err := v.Verify(ctx, call)
		if err == nil || !passing(err) || !wait(ctx, pause) {
			return r, found, err
		}
	}
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
