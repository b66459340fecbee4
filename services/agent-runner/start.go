package agentrunner

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/panics"
	"signalbox.dev/services/agent-runner/internal/conversation"
	"signalbox.dev/services/agent-runner/internal/loop"
	"signalbox.dev/services/agent-runner/internal/run"
)

// starter starts new runs: in this process if it has a free slot, otherwise through the
// queue. A run that starts here is claimed by the transaction that creates it, which
// saves the way through the queue and a second transaction.
//
// Such a run has no message in the queue. If the process dies, the run's lease expires
// and the sweeper of another process finds it, as it finds a run that was created but
// neither claimed nor queued.
type starter struct {
	runs *run.Store
	loop *loop.Loop
	bus  *bus.Bus
	log  *slog.Logger
	// slots holds an element for each slot in use, by runs that started here and by runs
	// from the queue. The queue's consumer blocks for a slot and so has precedence over
	// reserve, which only tries: a run starts here only if no queued run waits for a slot.
	slots    chan struct{}
	draining chan struct{} // closed when this process shuts down

	mu      sync.Mutex // guards stopped and additions to work
	stopped bool
	work    sync.WaitGroup
	abort   chan struct{} // closed when the runs have to stop at once
}

// reservation is the slot for one run, if there was one, while its message is stored.
type reservation struct {
	*starter
	workspace id.Workspace
	session   id.Session
	reserved  bool          // a slot is reserved
	preClaim  *run.PreClaim // nil without a slot
}

// reserve takes a slot if one is free. The caller calls begin, release or both.
func (s *starter) reserve(ws id.Workspace, session id.Session) *reservation {
	r := &reservation{starter: s, workspace: ws, session: session}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return r
	}
	select {
	case s.slots <- struct{}{}:
		r.reserved = true
		s.work.Add(1)
	default:
	}
	return r
}

// claimNew returns the value for conversation.NewMessage.PreClaim, which is nil without a
// reserved slot.
func (r *reservation) claimNew() *run.PreClaim {
	if r.reserved {
		r.preClaim = r.runs.PreClaim(r.workspace, r.session)
	}
	return r.preClaim
}

// release returns the slot unless begin has used it. If it is unknown whether the run was
// created and claimed, it first gives up the claim that may exist.
func (r *reservation) release(ctx context.Context) {
	if !r.reserved {
		return
	}
	r.reserved = false
	release := func() {
		<-r.slots
		r.work.Done()
	}
	claimed, ok := r.preClaim.Pending()
	if !ok {
		release()
		return
	}
	ctx = context.WithoutCancel(ctx)
	go func() {
		defer release()
		panics.Contain(ctx, r.log, "release of a claim", func() { r.loop.ReleaseUnconfirmed(ctx, r.workspace, claimed) })
	}()
}

// begin starts a run that was created: here if it is claimed, otherwise by publishing its
// wake-up. It does not wait for the queue's acknowledgement, because the sweeper finds a
// run whose wake-up was lost.
func (r *reservation) begin(ctx context.Context, made *conversation.Submitted) {
	if claim := r.preClaim.Claim(); claim != nil {
		r.reserved = false // answer returns the slot
		go r.answer(context.WithoutCancel(ctx), claim)
		return
	}
	m := run.Wake(r.workspace, r.session, made.Run.ID)
	if _, err := r.bus.PublishAsync(ctx, m.Subject, m.ID, m.Body); err != nil {
		r.log.WarnContext(ctx, "run waits for the sweeper to find it a runner", "run", made.Run.ID, "error", err)
	}
}

func (s *starter) answer(ctx context.Context, claim *run.Claim) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer s.work.Done()
	defer func() { <-s.slots }()
	done := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-s.abort:
			cancel(bus.ErrDraining)
		case <-done:
			cancel(nil)
		}
	})
	defer watch.Wait()
	defer close(done)
	if err := panics.Try(func() error { return s.loop.Answer(ctx, claim, s.draining) }); err != nil {
		s.log.InfoContext(ctx, "run waits for another claim", "run", claim.Run.ID, "error", err)
	}
}

// drain stops new runs from starting here, gives the active ones until wait is over to
// reach a step border, and then stops them.
func (s *starter) drain(wait time.Duration) {
	s.mu.Lock()
	s.stopped = true
	s.mu.Unlock()
	close(s.draining)
	timer := time.AfterFunc(wait, func() { close(s.abort) })
	s.work.Wait()
	timer.Stop()
}
