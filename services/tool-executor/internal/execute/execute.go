// Package execute runs tool calls that come from the bus, each of them once as far
// as anybody can tell.
//
// # A call's way
//
//	admitted   there is a free slot, for the process and for its workspace; otherwise it comes again later
//	claimed    its row in the ledger is ours (package ledger); one that is done is announced again and that is all
//	decided    unknown tool, wrong arguments, too late, cancelled: the outcome is there without a run
//	run        under a deadline, in a goroutine of its own
//	recorded   the outcome, once and for ever, if the claim is still ours
//	announced  on the bus, where it may be lost; whoever waits also asks the ledger
//
// Handle's error is the delivery decision; nil acks, and it is nil only when the
// outcome is recorded.
//
// # If it dies here
//
// The message comes again when nobody gives a sign of life, and its claim runs
// out. Whoever claims it next sees that somebody had begun (Claim.Attempt > 1) and
// does what the tool's effect allows: run again (pure), run again under the same
// key (same_tx, keyed: the far end does it once), look first (verify), or say that
// nobody knows (unsafe). An executor that was only stopped for a while finds its
// claim lost: its tool is cancelled, and what it would record is refused.
//
// # Who owns what
//
// Handle owns its call and waits for the tool's goroutine. A tool that holds on
// after its context has ended is left behind after a grace period: its outcome is
// that of the context, and its slot stays taken until it returns, so that tools
// which hang cannot pile up.
package execute

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/tool-executor/internal/ledger"
	"signalbox.dev/services/tool-executor/internal/tool"
)

// Ledger is what remembers outcomes: see package ledger for the contracts.
type Ledger interface {
	Claim(ctx context.Context, c ledger.Call) (ledger.Claim, error)
	Record(ctx context.Context, ws id.Workspace, attempt int, o *toolv1.Outcome) error
	Release(ctx context.Context, ref ledger.Ref, attempt int) error
	Renew(ctx context.Context, refs []ledger.Ref) (map[ledger.Ref]int, error)
}

// Config is what an Executor works with. All fields are needed.
type Config struct {
	Catalogue *tool.Catalogue
	Ledger    Ledger
	// Announce tells who waits that an outcome is recorded; it may fail silently.
	Announce func(ctx context.Context, o *toolv1.Outcome)
	Log      *slog.Logger
	Metrics  *Metrics

	Slots        int           // calls at a time
	PerWorkspace int           // of them, at most this many for one workspace
	Renew        time.Duration // how often leases are renewed
	Grace        time.Duration // for a tool to return after its context has ended
	Insist       time.Duration // for recording an outcome while the database is away
}

// Executor runs calls. Handle and Cancel may be called from any goroutine.
type Executor struct {
	cfg   Config
	tools sync.WaitGroup // goroutines that run tools

	mu    sync.Mutex // guards hands
	hands hands
}

// New returns an executor. KeepLeases must run for as long as Handle is called.
func New(cfg Config) *Executor {
	e := &Executor{cfg: cfg}
	e.hands = newHands(cfg.Slots, cfg.PerWorkspace)
	return e
}

// Why a call's context ended.
var (
	errTimeout   = errors.New("the call ran out of time")
	errCancelled = errors.New("the call was cancelled")
	errLost      = errors.New("another executor has the call")
)

// Handle runs a call unless it was run before, and sees to it that its outcome is
// recorded. ctx bounds the work: when its cause is bus.ErrDraining, the call is
// handed to another executor where its effect allows that.
func (e *Executor) Handle(ctx context.Context, msg *toolv1.Call) error {
	j, err := newJob(msg, e.cfg.Catalogue)
	if err != nil {
		return bus.Terminal(fmt.Errorf("tool call: %w", err))
	}
	work, cancel := context.WithCancelCause(identity.With(ctx, j.actor))
	defer cancel(nil)
	j.cancel = cancel
	if err := e.admit(j); err != nil {
		return err
	}
	defer e.leave(j)

	claim, err := e.cfg.Ledger.Claim(ctx, j.ledgerCall())
	switch {
	case err != nil:
		return err
	case claim.Done != nil:
		e.cfg.Log.DebugContext(ctx, "tool call answered from the ledger", "tool", j.msg.GetToolName(), "key", j.Key)
		e.cfg.Announce(ctx, claim.Done)
		return nil
	case claim.Attempt == 0:
		return bus.RetryAfter(min(claim.Busy, busyReturn), errors.New("another executor is at work on the call"))
	}
	e.claimed(j, claim.Attempt)
	start := time.Now()
	end := e.perform(work, j)
	if end.handOn {
		return e.release(ctx, j, end)
	}
	return e.finish(ctx, j, end, time.Since(start))
}

// perform brings about the end of a claimed call.
func (e *Executor) perform(ctx context.Context, j *job) ending {
	if end, over := e.decide(ctx, j); over {
		return end
	}
	until := time.Now().Add(j.entry.Spec.Deadline)
	if d := j.deadline(); !d.IsZero() && d.Before(until) {
		until = d
	}
	ctx, cancel := context.WithDeadlineCause(ctx, until, errTimeout)
	defer cancel()
	return e.run(ctx, j)
}

// decide returns the end of a call that needs no run.
func (e *Executor) decide(ctx context.Context, j *job) (ending, bool) {
	if !j.known {
		return failed("unknown_tool", "there is no tool called %q; use one of those that are listed", j.msg.GetToolName()), true
	}
	args, err := j.entry.Check(j.msg.GetArgsJson())
	if err != nil {
		return j.fromFault(err, "invalid_arguments"), true
	}
	j.args = args
	if e.isCancelled(j) {
		return j.cancelled(), true
	}
	if d := j.deadline(); !d.IsZero() && !time.Now().Before(d) {
		return j.timedOut(), true
	}
	if a := j.entry.Tool.Available(ctx); !a.Available {
		return j.notAvailable(a), true
	}
	if j.repeated() && j.entry.Spec.Effect == toolv1.Effect_EFFECT_UNSAFE {
		return j.unknown(), true
	}
	return ending{}, false
}

// Wait returns when all tools have returned, or ctx is done. It is for the end,
// after the last Handle.
func (e *Executor) Wait(ctx context.Context) error {
	done := make(chan struct{})
	go func() { // ends with the last tool
		e.tools.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return errors.New("some tools hold on")
	}
}
