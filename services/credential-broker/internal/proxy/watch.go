package proxy

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// Causes with which the watch cancels an upstream request.
var (
	errHeaders    = errors.New("the provider sent no headers in time")
	errFirstEvent = errors.New("the provider sent no first event in time")
	errIdle       = errors.New("the provider sent nothing for too long")
)

// errorBodyTime is how long the body of an error is read before it is shown.
const errorBodyTime = 15 * time.Second

// wait is something that an upstream request waits for: how long, and the cause with which it
// is cancelled after that.
type wait struct {
	limit time.Duration
	cause error
}

// waits are the waits after the headers.
type waits struct{ firstEvent, idle, last, errorBody wait }

func newWaits(t Timers) waits {
	return waits{
		firstEvent: wait{t.FirstEvent, errFirstEvent},
		idle:       wait{t.Idle, errIdle},
		last:       wait{min(t.Last, t.Idle), errIdle},
		errorBody:  wait{min(errorBodyTime, t.Idle), errIdle},
	}
}

// watch cancels an upstream request that waits too long. Starting the same wait again, as
// every read does, only notes the time; when the timer fires, it finds out how much is left.
// All methods but fire are called by the exchange's goroutine.
type watch struct {
	ctx    context.Context //nolint:containedctx // the upstream request's, which lives as long
	cancel context.CancelCauseFunc
	zero   time.Time
	began  atomic.Int64 // since zero; paused if nothing is waited for

	mu    sync.Mutex // guards what follows against fire
	timer *time.Timer
	wait  *wait
}

const paused = -1

func newWatch(ctx context.Context, cancel context.CancelCauseFunc, wt *wait) *watch {
	w := &watch{ctx: ctx, cancel: cancel, zero: time.Now(), wait: wt}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(wt.limit, w.fire)
	return w
}

// start begins to wait.
func (w *watch) start(wt *wait) {
	w.began.Store(int64(time.Since(w.zero)))
	if wt == w.wait {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wait = wt
	w.timer.Reset(wt.limit)
}

// pause stops the clock until start.
func (w *watch) pause() { w.began.Store(paused) }

// stop ends the watch and the request.
func (w *watch) stop() {
	w.cancel(context.Canceled)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer.Stop()
}

// fire runs on the timer's goroutine.
func (w *watch) fire() {
	w.mu.Lock()
	defer w.mu.Unlock()
	left := w.wait.limit
	if began := w.began.Load(); began != paused {
		left += time.Duration(began) - time.Since(w.zero)
	}
	switch {
	case left <= 0:
		w.cancel(w.wait.cause)
	case w.ctx.Err() == nil:
		w.timer.Reset(left)
	}
}
