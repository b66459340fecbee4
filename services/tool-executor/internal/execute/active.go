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

// active has the executor's active calls and the lately cancelled runs. Executor.mu guards it.
type active struct {
	jobs      map[ledger.Ref]*job
	cancelled map[id.Run]cancellation
}

// cancellation is a cancel of a run, kept because it may arrive before the call.
type cancellation struct {
	at   time.Time
	all  bool
	keys map[id.Operation]struct{}
}

// Redelivery delays, and bounds of the remembered cancellations.
const (
	slotRetry       = 50 * time.Millisecond // for a call that has waited here for a slot
	floodRetry      = time.Second           // for a call of a workspace that has too many waiting
	claimingRetry   = time.Second           // for a call that this process is claiming
	oldVersionRetry = 2 * time.Second       // for a call that an executor of the previous version has
	rememberFor     = 10 * time.Minute
	rememberRuns    = 10_000
)

func newActive() active {
	return active{jobs: map[ledger.Ref]*job{}, cancelled: map[id.Run]cancellation{}}
}

// admit waits for a slot for j and adds j to the active calls. If it returns an error, the
// call is redelivered, because another executor may have a free slot. Slots are handed out by
// workspace in turn.
func (e *Executor) admit(ctx context.Context, j *job) error {
	if err := e.checkActive(j); err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, e.cfg.Wait)
	defer cancel()
	err := e.slots.Acquire(waiting, j.Workspace)
	switch {
	case errors.Is(err, fair.ErrTooMany):
		return bus.RetryAfter(floodRetry+rand.N(floodRetry), errors.New("too many calls of the workspace wait for a slot"))
	case err != nil:
		return bus.RetryAfter(slotRetry+rand.N(slotRetry), errors.New("no free slot for the call's workspace"))
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.active.check(j); err != nil { // the call came twice, and both waited for a slot
		e.slots.Release(j.Workspace)
		return err
	}
	e.active.jobs[j.Ref] = j
	e.cfg.Metrics.running.Inc()
	return nil
}

func (e *Executor) checkActive(j *job) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.active.check(j)
}

// check returns an error if this process has the call already.
func (a *active) check(j *job) error {
	switch other, ok := a.jobs[j.Ref]; {
	case !ok:
		return nil
	case other.attempt > 0:
		return errActive
	default:
		return bus.RetryAfter(claimingRetry, errors.New("the call is being claimed here"))
	}
}

// remove removes j unless another job for the same call has replaced it.
func (a *active) remove(j *job) {
	if a.jobs[j.Ref] == j {
		delete(a.jobs, j.Ref)
	}
}

// leave removes j and frees its slot, unless the tool has not returned.
func (e *Executor) leave(j *job) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.active.remove(j)
	if !j.abandoned {
		e.free(j.Workspace)
	}
}

// finished removes j after its outcome is recorded and before it is announced, so that a
// message which repeats the call from now on is answered from the ledger.
func (e *Executor) finished(j *job) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.active.remove(j)
}

// abandon leaves the slot to a tool that does not return.
func (e *Executor) abandon(j *job) {
	e.mu.Lock()
	defer e.mu.Unlock()
	j.abandoned = true
}

// toolReturned frees the slot of an abandoned tool.
func (e *Executor) toolReturned(j *job) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if j.abandoned {
		e.free(j.Workspace)
	}
}

// free returns a slot.
func (e *Executor) free(ws id.Workspace) {
	e.slots.Release(ws)
	e.cfg.Metrics.running.Dec()
}

// setClaim stores the claim of j. If the tool's effect was different for the executor that
// had begun with the call, the worse one counts.
func (e *Executor) setClaim(j *job, c ledger.Claim, confirmed time.Time) {
	if c.Attempt > 1 {
		j.former, j.effect = c.Former, max(j.effect, c.Effect)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	j.attempt, j.confirmed = c.Attempt, confirmed
}

// Cancel cancels the active calls of a run and those that arrive in the next minutes.
func (e *Executor) Cancel(msg *toolv1.Cancel) error {
	run, err := id.Parse[id.Run](msg.GetRunId())
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.active.cancellationOf(run, time.Now())
	if len(msg.GetKeys()) == 0 {
		c.all = true
	}
	for _, k := range msg.GetKeys() {
		if key, err := id.Parse[id.Operation](k); err == nil && len(c.keys) < rememberRuns {
			c.keys[key] = struct{}{}
		}
	}
	e.active.cancelled[run] = c
	for _, j := range e.active.jobs {
		if j.run == run && c.covers(j) {
			j.cancel(errCancelled)
		}
	}
	return nil
}

func (c cancellation) covers(j *job) bool {
	_, ok := c.keys[j.Key]
	return c.all || ok
}

// cancellationOf returns the entry of a run, or a new one for which it makes room.
func (a *active) cancellationOf(run id.Run, now time.Time) cancellation {
	if c, ok := a.cancelled[run]; ok {
		c.at = now
		return c
	}
	if len(a.cancelled) >= rememberRuns {
		for r, c := range a.cancelled {
			if now.Sub(c.at) > rememberFor {
				delete(a.cancelled, r)
			}
		}
		for r := range a.cancelled { // any will do: a cancel may get lost anyway
			if len(a.cancelled) < rememberRuns {
				break
			}
			delete(a.cancelled, r)
		}
	}
	return cancellation{at: now, keys: map[id.Operation]struct{}{}}
}

func (e *Executor) isCancelled(j *job) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	c, ok := e.active.cancelled[j.run]
	return ok && time.Since(c.at) < rememberFor && c.covers(j)
}
