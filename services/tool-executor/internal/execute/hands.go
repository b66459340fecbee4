package execute

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/fair"
	"signalbox.dev/pkg/id"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/tool-executor/internal/ledger"
)

// hands is what the executor holds: the calls at work, and the runs that were cancelled
// lately. Executor.mu guards it.
type hands struct {
	jobs      map[ledger.Ref]*job
	cancelled map[id.Run]cancellation
}

// cancellation is remembered because a cancel may overtake the call it is meant for.
type cancellation struct {
	at   time.Time
	all  bool
	keys map[id.Operation]struct{}
}

// Bounds of what is turned away, and of what is remembered.
const (
	nextReturn   = 50 * time.Millisecond // for a call that has waited here for a slot
	floodReturn  = time.Second           // for one that could not even wait
	heldReturn   = time.Second           // for a call that this process is about to claim
	busyReturn   = 2 * time.Second       // for one that an executor of the version before has
	rememberFor  = 10 * time.Minute
	rememberRuns = 10_000
)

func newHands() hands {
	return hands{jobs: map[ledger.Ref]*job{}, cancelled: map[id.Run]cancellation{}}
}

// admit takes a slot for j, for which it waits for a while, or says when to come again:
// there may be a free one in another executor. Slots go to workspaces in turn.
func (e *Executor) admit(ctx context.Context, j *job) error {
	if err := e.isHere(j); err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, e.cfg.Wait)
	defer cancel()
	err := e.slots.Acquire(wait, j.Workspace)
	switch {
	case errors.Is(err, fair.ErrTooMany):
		return bus.RetryAfter(floodReturn+rand.N(floodReturn), errors.New("too many calls of the workspace wait for a slot"))
	case err != nil:
		return bus.RetryAfter(nextReturn+rand.N(nextReturn), errors.New("no free slot for the call's workspace"))
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.hands.has(j); err != nil { // it came twice, and both waited
		e.slots.Release(j.Workspace)
		return err
	}
	e.hands.jobs[j.Ref] = j
	e.cfg.Metrics.running.Inc()
	return nil
}

func (e *Executor) isHere(j *job) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.hands.has(j)
}

// has says what to do with a call that this process has already.
func (h *hands) has(j *job) error {
	switch other, ok := h.jobs[j.Ref]; {
	case !ok:
		return nil
	case other.attempt > 0:
		return errInHand
	default:
		return bus.RetryAfter(heldReturn, errors.New("the call is being claimed here"))
	}
}

// forget takes j out of the calls at work, unless the same call is there anew.
func (h *hands) forget(j *job) {
	if h.jobs[j.Ref] == j {
		delete(h.jobs, j.Ref)
	}
}

// leave lets go of j, and of its slot unless the tool is still in it.
func (e *Executor) leave(j *job) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.hands.forget(j)
	if !j.abandoned {
		e.free(j.Workspace)
	}
}

// settled is called when a call's outcome is recorded, before it is announced: who
// announces the call again from now on is answered from the ledger, and not told that
// it is in hand.
func (e *Executor) settled(j *job) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.hands.forget(j)
}

// abandon leaves the slot to the tool that holds on to it.
func (e *Executor) abandon(j *job) {
	e.mu.Lock()
	defer e.mu.Unlock()
	j.abandoned = true
}

// returned is called when a tool has returned.
func (e *Executor) returned(j *job) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if j.abandoned {
		e.free(j.Workspace)
	}
}

// free gives a slot back.
func (e *Executor) free(ws id.Workspace) {
	e.slots.Release(ws)
	e.cfg.Metrics.running.Dec()
}

// claimed notes the claim of j; the tool's own effect may have been another one in
// the version of an executor before us, and then the worse one counts.
func (e *Executor) claimed(j *job, c ledger.Claim, confirmed time.Time) {
	if c.Attempt > 1 {
		j.former, j.effect = c.Former, max(j.effect, c.Effect)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	j.attempt, j.confirmed = c.Attempt, confirmed
}

// Cancel ends the calls of a run that are running here, and those that come in
// the next minutes: their message may still be on its way.
func (e *Executor) Cancel(msg *toolv1.Cancel) error {
	run, err := id.Parse[id.Run](msg.GetRunId())
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.hands.remember(run, time.Now())
	if len(msg.GetKeys()) == 0 {
		c.all = true
	}
	for _, k := range msg.GetKeys() {
		if key, err := id.Parse[id.Operation](k); err == nil && len(c.keys) < rememberRuns {
			c.keys[key] = struct{}{}
		}
	}
	e.hands.cancelled[run] = c
	for _, j := range e.hands.jobs {
		if j.run == run && c.hits(j) {
			j.cancel(errCancelled)
		}
	}
	return nil
}

func (c cancellation) hits(j *job) bool {
	_, ok := c.keys[j.Key]
	return c.all || ok
}

// remember returns the entry of a run, fresh if there is none, and makes room for it.
func (h *hands) remember(run id.Run, now time.Time) cancellation {
	if c, ok := h.cancelled[run]; ok {
		c.at = now
		return c
	}
	if len(h.cancelled) >= rememberRuns {
		for r, c := range h.cancelled {
			if now.Sub(c.at) > rememberFor {
				delete(h.cancelled, r)
			}
		}
		for r := range h.cancelled { // any: a nudge may get lost anyway
			if len(h.cancelled) < rememberRuns {
				break
			}
			delete(h.cancelled, r)
		}
	}
	return cancellation{at: now, keys: map[id.Operation]struct{}{}}
}

func (e *Executor) isCancelled(j *job) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	c, ok := e.hands.cancelled[j.run]
	return ok && time.Since(c.at) < rememberFor && c.hits(j)
}
