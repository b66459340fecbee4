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

// starter begins new runs: here, when this process has a free slot for one, or else
// through the queue. A run that begins here is claimed in the transaction that makes
// it, which spares it the way through the queue and a transaction.
//
// If it dies here: such a run has no message in the queue, as nothing needs one. Its
// lease ends with this process, and the sweeper of another finds it. A run that was
// made and neither claimed nor queued is found by the sweeper as well.
type starter struct {
	runs *run.Store
	loop *loop.Loop
	bus  *bus.Bus
	log  *slog.Logger
	// slots holds an element for each slot in use, by runs that begin here and by those
	// that come by the queue. Whoever fetches from the queue waits for a slot and comes
	// before those who only try: a run begins here when nobody waits for this process.
	slots    chan struct{}
	draining chan struct{} // closed when this process leaves

	mu      sync.Mutex // guards gone and what is added to work
	stopped bool
	work    sync.WaitGroup
	abort   chan struct{} // closed when the work has to end at once
}

// reservation is the beginning of one run, while its message is being stored.
type reservation struct {
	*starter
	workspace id.Workspace
	session   id.Session
	reserved  bool          // a slot is reserved
	preClaim  *run.PreClaim // the claim of the run, if one is
}

// reserve takes a slot, if there is one. The caller calls begin or free.
func (s *starter) reserve(ws id.Workspace, session id.Session) *reservation {
	st := &reservation{starter: s, workspace: ws, session: session}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return st
	}
	select {
	case s.slots <- struct{}{}:
		st.reserved = true
		s.work.Add(1)
	default:
	}
	return st
}

// claimNew is conversation.NewMessage.Take: it claims the run if a slot is reserved.
func (st *reservation) claimNew() *run.PreClaim {
	if st.reserved {
		st.preClaim = st.runs.PreClaim(st.workspace, st.session)
	}
	return st.preClaim
}

// release gives the slot back, if begin has not used it. When nobody knows whether the
// run was made and claimed, it is left to the sweeper.
func (st *reservation) release(ctx context.Context) {
	if !st.reserved {
		return
	}
	st.reserved = false
	release := func() {
		<-st.slots
		st.work.Done()
	}
	claimed, ok := st.preClaim.Pending()
	if !ok {
		release()
		return
	}
	ctx = context.WithoutCancel(ctx)
	go func() {
		defer release()
		panics.Contain(ctx, st.log, "release of a claim", func() { st.loop.ReleaseUnconfirmed(ctx, st.workspace, claimed) })
	}()
}

// begin works on a run that was made: on the claim, or by asking for a runner. It does
// not wait to hear that the queue has taken the message: the row of the run says the
// same, and the sweeper reads it.
func (st *reservation) begin(ctx context.Context, made *conversation.Submitted) {
	if claim := st.preClaim.Claim(); claim != nil {
		st.reserved = false // the slot is the goroutine's
		go st.answer(context.WithoutCancel(ctx), claim)
		return
	}
	m := run.Wake(st.workspace, st.session, made.Run.ID)
	if _, err := st.bus.PublishAsync(ctx, m.Subject, m.ID, m.Body); err != nil {
		st.log.WarnContext(ctx, "run waits for the sweeper to find it a runner", "run", made.Run.ID, "error", err)
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

// drain lets the runs in hand come to a step border until wait is over, and then
// stops them. No more begin here after it.
func (s *starter) drain(wait time.Duration) {
	s.mu.Lock()
	s.stopped = true
	s.mu.Unlock()
	close(s.draining)
	timer := time.AfterFunc(wait, func() { close(s.abort) })
	s.work.Wait()
	timer.Stop()
}
