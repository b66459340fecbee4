// Package loop answers user messages: it takes runs from the work queue and works
// on each until it ends.
//
// # One run
//
//	claim → open the run log → ┌ border: drain? stop? steering? step limit? time?
//	                           │ model call, streamed into the log
//	                           │ flush the log, commit the answer and its tool calls
//	                           │ wait for the tools, commit their results
//	                           └ …until the model asks for no tool
//	      → commit the end → ack
//
// A run is one goroutine, the work queue's handler; it owns everything of the run
// but the lease, which the keeper renews for all runs of the process, and the stop,
// which a watcher goroutine (waited for) turns into a cancelled context.
//
// # What if it dies here
//
// During the model call: nothing of the step is committed; whoever claims the run
// says step-retry and calls again. After the answer's commit: the calls are in the
// ledger; whoever claims the run dispatches them, again perhaps, and waits for their
// outcomes, which the executors record under the same keys. After the results' commit, or a
// completed step: the next step. After the end's commit: the outbox says the end,
// and the redelivered work finds nothing to do. A runner that lost its claim
// without dying finds out at its next write, and stops (run.ErrFenced).
package loop

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/panics"
	"signalbox.dev/pkg/price"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
	"signalbox.dev/services/agent-runner/internal/llm"
	"signalbox.dev/services/agent-runner/internal/llm/catalogue"
	"signalbox.dev/services/agent-runner/internal/preset"
	"signalbox.dev/services/agent-runner/internal/run"
	"signalbox.dev/services/agent-runner/internal/runlog"
	"signalbox.dev/services/agent-runner/internal/toolbox"
)

// Model calls one provider.
type Model interface {
	Stream(ctx context.Context, req *llm.Request) (*llm.Stream, error)
}

// Models finds the way to a provider: its dialect and the model client for it. The
// context carries the run's identity.
type Models interface {
	For(ctx context.Context, provider string) (dialect string, m Model, err error)
}

// Store keeps runs: *run.Store, whose contracts these are.
type Store interface {
	Next(ctx context.Context) ([]run.Claimable, error)
	Claim(ctx context.Context, ws id.Workspace, session id.Session, r id.Run) (*run.Claim, error)
	Release(ctx context.Context, c *run.Claim, wait time.Duration) error
	ReleaseUnconfirmed(ctx context.Context, ws id.Workspace, r id.Run) (held bool, err error)
	Park(ctx context.Context, c *run.Claim) error
	History(ctx context.Context, c *run.Claim) ([]run.Message, run.Settings, error)
	LastStep(ctx context.Context, c *run.Claim) (*run.OpenStep, error)
	ReadInbox(ctx context.Context, c *run.Claim, border bool) (run.Inbox, error)
	JoinSteering(ctx context.Context, c *run.Claim) ([]run.Message, error)
	CommitAnswer(ctx context.Context, c *run.Claim, a run.Answer, lastEvent int64) error
	CommitResults(ctx context.Context, c *run.Claim, r run.Results, lastEvent int64) (mail bool, err error)
	CompleteStep(ctx context.Context, c *run.Claim, a run.Answer, lastEvent int64) error
	AddWaste(ctx context.Context, c *run.Claim, step int, wasted run.Usage, costMicros *int64) error
	Finish(ctx context.Context, c *run.Claim, e run.End) error
}

// Config are the loop's limits.
type Config struct {
	// Tries is how often a model call is made before the run fails.
	Tries int
	// Backoff is the wait after the first failed call; it doubles with each.
	Backoff time.Duration
	// MaxRetryAfter is the longest wait that a provider may ask for; when it asks
	// for more, the run fails at once and says so.
	MaxRetryAfter time.Duration
	// StepTime bounds one model call.
	StepTime time.Duration
	// ToolTime is the deadline of a tool that names none.
	ToolTime time.Duration
	// Queueing is how long a call may wait for an executor before its own time begins.
	Queueing time.Duration
	// Patience is how long a run waits for a part of ours that is away before it is
	// left to another runner.
	Patience time.Duration
	// MaxFruitless is how many claims in a row may bring nothing before a run is given up.
	MaxFruitless int
	// Partitions of the run log.
	Partitions int
	// Jitter returns a part of a wait, by chance; nil for the usual one.
	Jitter func(wait time.Duration) time.Duration
}

// Deps are what the loop works with.
type Deps struct {
	Store Store
	// Bus takes the run log, and calls that are dispatched again.
	Bus     runlog.Bus
	Tools   *toolbox.Toolbox
	Presets *preset.Set
	Models  Models
	// Catalogue knows what models can do.
	Catalogue *catalogue.Catalogue
	// Prices knows what they cost; nil for nothing.
	Prices  *price.List
	Keeper  *Keeper
	Metrics *Metrics
	Log     *slog.Logger
}

// Loop works on runs. Handle may be called from many goroutines.
type Loop struct {
	cfg Config
	Deps
}

// New returns a loop.
func New(cfg Config, deps Deps) *Loop {
	if cfg.Jitter == nil {
		cfg.Jitter = rand.N[time.Duration]
	}
	if deps.Prices == nil {
		deps.Prices = &price.List{}
	}
	return &Loop{cfg, deps}
}

// The causes for which a run's work is interrupted.
var (
	errStopped  = errors.New("a person stopped the run")
	errWallTime = errors.New("the run's time is over")
	errStepTime = errors.New("the step's time is over")
)

// Handle is the work queue's handler: it works on the run until it ends, is parked,
// or is lost to another runner.
func (l *Loop) Handle(ctx context.Context, d *bus.Delivery) error {
	return l.HandleMessage(ctx, &d.Message, d.Attempt, d.Draining())
}

// HandleMessage is Handle of a message that came in any way, for the attempt'th time; draining is
// closed when the process shuts down.
//
// The message says that a run waits. Which one is claimed is decided by workspace in turn
// (package run, Turns); each run that waits has a message of its own, or one to come, so
// that it does not matter which message brings which run.
func (l *Loop) HandleMessage(ctx context.Context, m *bus.Message, attempt int, draining <-chan struct{}) error {
	work, err := bus.Decode[*runv1.Work](m)
	if err != nil {
		return err
	}
	named, err := id.Parse[id.Run](work.GetRunId())
	if err != nil {
		return bus.Terminal(err)
	}
	claim, err := l.claimNext(ctx, named)
	switch {
	case errors.Is(err, run.ErrNotClaimable):
		return nil // nobody waits; who waits for their workspace's turn is woken by the end that makes place
	case errors.Is(err, run.ErrTooEarly):
		return bus.RetryAfter(earlyRetry<<min(max(attempt-1, 0), earlyDoublings), err)
	case err != nil:
		// Not the bus's own backoff: it goes by the number of deliveries, and a run that
		// has waited for its turn had many.
		return bus.RetryAfter(claimRetry, err)
	}
	return l.Answer(ctx, claim, draining)
}

// claimTries is how often others may be faster before a message is put off.
const claimTries = 5

// claimNext claims the run whose turn it is, or one that waits beside it: the one that is
// named, or by its name another one for each message.
func (l *Loop) claimNext(ctx context.Context, named id.Run) (*run.Claim, error) {
	for range claimTries {
		next, err := l.Store.Next(ctx)
		if err != nil {
			return nil, err
		}
		r := next[int(named.UUID[15])%len(next)]
		if i := slices.IndexFunc(next, func(r run.Claimable) bool { return r.Run == named }); i >= 0 {
			r = next[i]
		}
		claim, err := l.Store.Claim(ctx, r.Workspace, r.Session, r.Run)
		switch {
		case err == nil:
			return claim, nil
		case errors.Is(err, run.ErrNotClaimable), errors.Is(err, run.ErrTooEarly):
		default:
			l.ReleaseUnconfirmed(ctx, r.Workspace, r.Run)
			return nil, err
		}
	}
	return nil, fmt.Errorf("others were faster %d times: %w", claimTries, run.ErrTooEarly)
}

// Answer works on a claimed run until it ends, is parked, or is lost to another
// runner. After an error it was left to whoever claims it next.
func (l *Loop) Answer(ctx context.Context, claim *run.Claim, draining <-chan struct{}) error {
	l.Metrics.inProgress.Inc()
	defer l.Metrics.inProgress.Dec()
	start := time.Now()
	err := panics.Try(func() error { return l.work(ctx, claim, draining) })
	if p, ok := errors.AsType[*panics.Error](err); ok {
		l.Log.ErrorContext(ctx, "run panicked", "run", claim.Run.ID, "error", p)
	}
	l.Metrics.observeClaim(err, time.Since(start))
	switch {
	case err == nil:
		return nil
	case errors.Is(err, run.ErrFenced):
		l.Log.InfoContext(ctx, "run left to another runner", "run", claim.Run.ID, "epoch", claim.Run.Epoch)
		return nil
	}
	return l.giveBack(ctx, claim, err)
}

const (
	// earlyRetry is when a run is looked at again that came before its turn; the more
	// often it has come, the later: what is before it may be stuck for long.
	earlyRetry     = 20 * time.Millisecond
	earlyDoublings = 5
	// claimRetry is when one is, that Postgres could not be asked about.
	claimRetry     = time.Second
	releaseTimeout = 5 * time.Second // then its lease is about to run out by itself
	releaseRetry   = 100 * time.Millisecond
	confirmDelay   = time.Second
	minRelease     = 250 * time.Millisecond
	maxRelease     = 10 * time.Second
)

// giveBack gives up a run that could not be brought on here, for whoever hears of it
// next; the more often nothing came of it, the later that is.
func (l *Loop) giveBack(ctx context.Context, claim *run.Claim, cause error) error {
	var wait time.Duration // drained: another replica gets it at once
	if ctx.Err() == nil {
		wait = min(minRelease<<min(claim.Run.Fruitless, 10), maxRelease)
	}
	if err := l.release(ctx, claim, wait); err != nil {
		l.Log.WarnContext(ctx, "run not released; its lease has to run out", "run", claim.Run.ID, "error", err)
	}
	err := fmt.Errorf("run %s: %w", claim.Run.ID, cause)
	if wait == 0 {
		return err
	}
	return bus.RetryAfter(wait+earlyRetry, err)
}

// release gives a run back after wait.
func (l *Loop) release(ctx context.Context, claim *run.Claim, wait time.Duration) error {
	return retryRelease(ctx, func(ctx context.Context) error { return l.Store.Release(ctx, claim, wait) })
}

// ReleaseUnconfirmed gives a run back of which nobody knows whether this process has claimed it,
// because the answer was lost: it would be held by a process that does not work on it.
// The claim may still be on its way when it is first looked for.
func (l *Loop) ReleaseUnconfirmed(ctx context.Context, ws id.Workspace, r id.Run) {
	held := false
	look := func(ctx context.Context) (err error) {
		if l.Keeper.holds(r) {
			held = true
			return nil
		}
		held, err = l.Store.ReleaseUnconfirmed(ctx, ws, r)
		return err
	}
	err := retryRelease(ctx, look)
	if err == nil && !held {
		select {
		case <-ctx.Done():
			return // the process goes: its presence tells the others
		case <-time.After(confirmDelay):
		}
		err = retryRelease(ctx, look)
	}
	if err != nil {
		l.Log.WarnContext(ctx, "run not given back; if it was claimed, its lease has to run out", "run", r, "error", err)
	}
}

// retryRelease tries for a while: what made a run be left is often that the database is
// away for a moment.
func retryRelease(ctx context.Context, release func(context.Context) error) error {
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	for {
		err := release(limited)
		if fault.KindOf(err) != fault.Unavailable {
			return err
		}
		select {
		case <-limited.Done():
			return err
		case <-ctx.Done():
			return err // the process goes: its presence tells the others
		case <-time.After(releaseRetry):
		}
	}
}

// work is one claim's life. ctx ends when the process must let go at once; the
// run's own context ends also with a stop, the wall time, or the loss of the claim.
func (l *Loop) work(ctx context.Context, claim *run.Claim, draining <-chan struct{}) error {
	actor, roleErr := claim.Run.Actor()
	if roleErr == nil {
		ctx = identity.With(ctx, actor)
	}
	held, release := l.Keeper.hold(ctx, claim.Lease())
	defer release()
	a := &answering{Loop: l, claim: claim, draining: draining, held: held, unread: !claim.First}
	switch {
	case claim.Run.Fruitless > l.cfg.MaxFruitless:
		return a.giveUp(held.ctx, "The run could not be brought to its end. Try again.", "RUN_STUCK") //nolint:contextcheck // hold derives it from ctx
	case roleErr != nil:
		return roleErr // a runner of a newer version may know the role
	}
	err := a.run(held.ctx)                                               //nolint:contextcheck // hold derives it from ctx
	if err != nil && errors.Is(context.Cause(held.ctx), run.ErrFenced) { //nolint:contextcheck // as above
		return run.ErrFenced // whatever broke because of that
	}
	return err
}
