package execute

import (
	"errors"
	"math/rand/v2"
	"time"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/id"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/tool-executor/internal/ledger"
)

// hands is what the executor holds: the calls at work, how many slots they take,
// and the runs that were cancelled lately. Executor.mu guards it.
type hands struct {
	slots, perWorkspace int
	taken               int
	workspaces          map[id.Workspace]*share
	jobs                map[ledger.Ref]*job
	cancelled           map[id.Run]cancellation
}

// share is one workspace's.
type share struct {
	taken int
	// next is when the call that was turned away last will come again; the next one
	// comes a little later, so that a thousand do not come at once.
	next time.Time
}

// cancellation is remembered because a cancel may overtake the call it is meant for.
type cancellation struct {
	at   time.Time
	all  bool
	keys map[id.Operation]struct{}
}

// Bounds of what is turned away, and of what is remembered.
const (
	firstReturn  = 50 * time.Millisecond
	returnStep   = 10 * time.Millisecond
	lastReturn   = 10 * time.Second
	heldReturn   = time.Second     // for a call that this process is about to claim
	busyReturn   = 2 * time.Second // for one that an executor of the version before has
	rememberFor  = 10 * time.Minute
	rememberRuns = 10_000
)

func newHands(slots, perWorkspace int) hands {
	return hands{
		slots: slots, perWorkspace: perWorkspace,
		workspaces: map[id.Workspace]*share{}, jobs: map[ledger.Ref]*job{}, cancelled: map[id.Run]cancellation{},
	}
}

// admit takes a slot for j, or says when to come again. It never waits: a
// workspace that asks for too much must not hold up others.
func (e *Executor) admit(j *job) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	h := &e.hands
	if other, ok := h.jobs[j.Ref]; ok {
		if other.attempt > 0 {
			return errInHand
		}
		return bus.RetryAfter(heldReturn, errors.New("the call is being claimed here"))
	}
	s := h.workspaces[j.Workspace]
	if s == nil {
		h.tidy(time.Now())
		s = &share{}
		h.workspaces[j.Workspace] = s
	}
	if h.taken >= h.slots || s.taken >= h.perWorkspace {
		return bus.RetryAfter(s.turnAway(time.Now()), errors.New("no free slot for the call's workspace"))
	}
	h.jobs[j.Ref] = j
	h.taken++
	s.taken++
	e.cfg.Metrics.running.Inc()
	return nil
}

// tidy forgets the shares of workspaces that want nothing, when there are many.
func (h *hands) tidy(now time.Time) {
	if len(h.workspaces) < rememberRuns {
		return
	}
	for ws, s := range h.workspaces {
		if s.taken == 0 && now.After(s.next) {
			delete(h.workspaces, ws)
		}
	}
}

func (s *share) turnAway(now time.Time) time.Duration {
	if earliest := now.Add(firstReturn); s.next.Before(earliest) {
		s.next = earliest
	}
	wait := s.next.Sub(now)
	if wait > lastReturn {
		return lastReturn + rand.N(lastReturn)
	}
	s.next = s.next.Add(returnStep)
	return wait
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

// free gives a slot back; mu is held.
func (e *Executor) free(ws id.Workspace) {
	h := &e.hands
	h.taken--
	s := h.workspaces[ws]
	if s.taken--; s.taken == 0 && time.Now().After(s.next) {
		delete(h.workspaces, ws)
	}
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
