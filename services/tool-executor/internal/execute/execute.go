package execute

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/fair"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/tool-executor/internal/ledger"
	"signalbox.dev/services/tool-executor/internal/tool"
)

// Ledger is the part of *ledger.Ledger that the executor needs.
type Ledger interface {
	Claim(ctx context.Context, c ledger.Call) (ledger.Claim, error)
	Record(ctx context.Context, ws id.Workspace, attempt int, o *toolv1.Outcome, by id.Member) error
	Release(ctx context.Context, ref ledger.Ref, attempt int) error
	Renew(ctx context.Context, refs []ledger.Ref) (map[ledger.Ref]int, error)
	Open(ctx context.Context) ([]ledger.Open, error)
	Work(ctx context.Context, ref ledger.Ref) ([]byte, error)
	TakeOver(ctx context.Context, o ledger.Open) (ledger.Claim, error)
}

// Presence tells which executors are alive.
type Presence interface {
	// Absent returns those of names whose process has ended or has lost its connection to
	// Postgres.
	Absent(ctx context.Context, names []string) ([]string, error)
}

// Config has an Executor's dependencies and settings. All fields are required.
type Config struct {
	Catalogue *tool.Catalogue
	Ledger    Ledger
	Presence  Presence
	// Announce sends a recorded outcome to the call's runner. It may fail silently.
	Announce func(ctx context.Context, o *toolv1.Outcome)
	// Report sends a call's progress to its runner. It may fail silently.
	Report  func(ctx context.Context, p *toolv1.Progress)
	Log     *slog.Logger
	Metrics *Metrics

	Slots        int           // calls at a time
	PerWorkspace int           // of them, at most this many for one workspace
	Waiting      int           // calls of one workspace that may wait for a slot
	Wait         time.Duration // how long a call waits for a slot before it goes back to the queue
	Renew        time.Duration // how often leases are renewed
	Quiet        time.Duration // without a renewal, until calls of a process that is gone are taken over; at least twice Renew
	Lease        time.Duration // the same for a process that is only silent
	SweepEvery   time.Duration // how often Sweep looks
	Rounds       *bus.Rounds   // shares the looks of Sweep among the replicas, at that interval; nil: there is one replica
	Grace        time.Duration // for a tool to return after its context has ended
	RecordFor    time.Duration // for recording an outcome while the database is away
}

// Executor runs calls. Handle and Cancel may be called from any goroutine.
type Executor struct {
	cfg   Config
	tools sync.WaitGroup // goroutines that run tools
	slots *fair.Semaphore[id.Workspace]

	mu     sync.Mutex // guards active
	active active
}

// New returns an executor. KeepLeases must run as long as Handle or Sweep does.
func New(cfg Config) *Executor {
	return &Executor{
		cfg: cfg, active: newActive(),
		slots: fair.New[id.Workspace](fair.Limits{Slots: cfg.Slots, PerKey: cfg.PerWorkspace, Waiting: cfg.Waiting}),
	}
}

// Why a call's context ended.
var (
	errTimeout   = errors.New("the call ran out of time")
	errCancelled = errors.New("the call was cancelled")
	errLost      = errors.New("another executor has the call")
)

// errActive means that this process has claimed the call already.
var errActive = errors.New("the call is being run here already")

// Handle runs a call and records its outcome, unless the call is done or another executor
// works on it. If ctx ends with the cause bus.ErrDraining, the call is handed to another
// executor where its effect allows that.
func (e *Executor) Handle(ctx context.Context, msg *toolv1.Call) error {
	j, err := newJob(msg)
	if err != nil {
		return bus.Terminal(fmt.Errorf("tool call: %w", err))
	}
	if err := j.find(ctx, e.cfg.Catalogue); err != nil {
		return err
	}
	work, cancel := context.WithCancelCause(identity.With(ctx, j.actor))
	defer cancel(nil)
	j.cancel = cancel
	if err := e.admit(work, j); err != nil {
		if errors.Is(err, errActive) {
			return nil // the call does not depend on this message
		}
		return err
	}
	defer e.leave(j)

	row, err := j.row()
	if err != nil {
		return bus.Terminal(fmt.Errorf("tool call: %w", err))
	}
	sent := time.Now()
	claim, err := e.cfg.Ledger.Claim(ctx, row)
	switch {
	case errors.Is(err, ledger.ErrReused):
		return bus.Terminal(fmt.Errorf("call of %s: %w", j.msg.GetToolName(), err))
	case err != nil:
		return err
	case claim.Done != nil:
		e.cfg.Log.DebugContext(ctx, "tool call answered from the ledger", "tool", j.msg.GetToolName(), "key", j.Key)
		e.cfg.Announce(ctx, claim.Done)
		return nil
	case claim.Stored:
		return nil // the call does not depend on this message: see Sweep
	case claim.Attempt == 0:
		return bus.RetryAfter(oldVersionRetry, errors.New("an executor of the previous version works on the call"))
	}
	return e.complete(work, j, claim, sent)
}

// complete runs a claimed call and records its outcome. The claim was valid at confirmed.
func (e *Executor) complete(ctx context.Context, j *job, claim ledger.Claim, confirmed time.Time) error {
	e.setClaim(j, claim, confirmed)
	start := time.Now()
	end := e.perform(ctx, j)
	if end.handOver {
		return e.release(ctx, j, end)
	}
	return e.finish(ctx, j, end, time.Since(start))
}

// perform decides or runs a claimed call.
func (e *Executor) perform(ctx context.Context, j *job) ending {
	if end, over := e.decide(ctx, j); over {
		return end
	}
	quiet, longest := j.entry.Spec.Deadline, j.entry.Spec.Longest
	if j.repeated() && j.effect == toolv1.Effect_EFFECT_VERIFY { // verify may take this long before the run
		quiet += j.entry.Spec.Settle
		longest += j.entry.Spec.Settle
	}
	until := time.Now().Add(longest)
	if d := j.deadline(); !d.IsZero() && d.Before(until) {
		until = d
	}
	ctx, cancel := context.WithDeadlineCause(ctx, until, errTimeout)
	defer cancel()
	ctx, silence := context.WithCancelCause(ctx)
	defer silence(nil)
	patience := time.AfterFunc(quiet, func() { silence(errTimeout) })
	defer patience.Stop()
	j.progress = e.reporter(ctx, j, func() { patience.Reset(quiet) })
	return e.run(ctx, j)
}

// decide returns the ending of a call that needs no run.
func (e *Executor) decide(ctx context.Context, j *job) (ending, bool) {
	if !j.known {
		return j.uncertain(failed("unknown_tool", "there is no tool %q; use one of the tools that are listed", j.msg.GetToolName())), true
	}
	args, err := j.entry.Check(j.msg.GetArgsJson())
	if err != nil {
		return j.uncertain(j.fromFault(err, "invalid_arguments")), true
	}
	j.args = args
	if e.isCancelled(j) {
		return j.cancelled(), true
	}
	if d := j.deadline(); !d.IsZero() && !time.Now().Before(d) {
		return j.timedOut(), true
	}
	if a := j.entry.Tool.Available(ctx); !a.Available {
		return j.uncertain(j.notAvailable(a)), true
	}
	if j.repeated() && j.effect == toolv1.Effect_EFFECT_UNSAFE {
		return j.unknown(), true
	}
	return ending{}, false
}

// Wait returns when all tools have returned or ctx is done. Call it after the last Handle.
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
		return errors.New("some tools have not returned")
	}
}
