// Package loop answers user messages: it claims runs and works on each until it ends.
//
// # One run
//
//	claim → open the run log → ┌ border: drain? stop? steering? step limit? time?
//	                           │ too long for the model? a step that compacts the conversation
//	                           │ model call, streamed into the log
//	                           │ flush the log, commit the answer and its tool calls
//	                           │ wait for the tools; park if calls wait for a person or a client
//	                           │ commit the results
//	                           └ …until the model asks for no tool
//	      → commit the end → ack
//
// One goroutine, the work queue's handler or one of the starter's, works on a run. It owns
// the run's whole state except for two things: the keeper renews the leases of all runs of
// the process, and a watcher goroutine cancels the run's context when a person stops it.
//
// # Compaction
//
// When the next prompt comes near the model's window, or the provider has refused it as too long,
// the model first summarizes the older messages. From then on the prompt is the system prompt, the
// summary and the messages after it, so that its beginning stays the same for the provider's
// cache. The messages themselves are kept: people read them, and the taint (taint.go) is computed
// from all of them, so that a summary of untrusted text is as untrusted as the text.
//
// Making a summary is a step of its own, without an answer, and like any step it is either
// committed or not: the summary, its usage and the step's end are one transaction. A runner that
// dies before it loses the summary, and the next claim makes another one; after it, the next claim
// reads the summary with the session and continues with the next step. Only the claim's holder
// makes summaries, and only at a step border, where no call is open. Budgets count these steps,
// the step limit does not. If the model makes no summary, the conversation is sent as it is, and
// the run fails if that is too long.
//
// # Titles
//
// While the first step of a session's first run is under way, another goroutine asks a model for a
// title. It owns nothing of the run: it writes the title and its usage in one transaction, which
// needs no claim and loses to a person's title, and sends the title to the run's goroutine, which
// tells viewers if the run has not ended. A crash costs the title, and the session keeps that of its
// first message.
//
// # What happens on a crash
//
// During the model call: nothing of the step is committed. The next claim emits step-retry
// and calls the model again. After the answer's commit: the calls are in the table
// tool_calls. The next claim dispatches them, perhaps again, and waits for their outcomes,
// which the executors record under the same keys. Calls that wait for a person or a client are told to
// viewers and are not dispatched: the next claim tells what the log lacks, and parks the run.
// Between an answer of a person and its claim, the sweeper finds the run, which is running
// without a lease. After the claim, the next one tells the answer if the log lacks it, and
// dispatches what was approved, perhaps again under the same key. After the results'
// commit, or the commit of a step without calls: the next claim continues with the next step. After the end's
// commit: the outbox publishes the end, and the redelivered work finds nothing to do. A
// runner that loses its claim without dying notices at its next write and stops
// (run.ErrFenced).
package loop

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/panics"
	"signalbox.dev/pkg/price"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
	"signalbox.dev/services/agent-runner/internal/budget"
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

// Models returns the dialect of a provider and a client for it. The context carries the
// run's identity.
type Models interface {
	For(ctx context.Context, provider string) (dialect string, m Model, err error)
}

// Store is the part of *run.Store that the loop needs.
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
	Rules(ctx context.Context, c *run.Claim, tools []string) ([]run.Rule, error)
	Wait(ctx context.Context, c *run.Claim, w run.Wait, lastEvent int64) (parked bool, err error)
	CommitResults(ctx context.Context, c *run.Claim, r run.Results, lastEvent int64) (unread bool, err error)
	CompleteStep(ctx context.Context, c *run.Claim, a run.Answer, lastEvent int64) error
	SetTitle(ctx context.Context, c *run.Claim, t run.Title) (set bool, err error)
	AddWaste(ctx context.Context, c *run.Claim, step int, wasted run.Usage, costMicros *int64) error
	RecordNoSummary(ctx context.Context, c *run.Claim, messages int) error
	Finish(ctx context.Context, c *run.Claim, e run.End) error
}

// Budgets limit what a run may spend.
type Budgets interface {
	Reserve(ctx context.Context, r budget.Reservation) (budget.Verdict, error)
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
	// ToolTime is the time limit of a tool that sets none.
	ToolTime time.Duration
	// Queueing is how long a call may wait for an executor before its own time begins, and how
	// long calls wait while no executor can be reached.
	Queueing time.Duration
	// ApprovalTime is how long a person has to approve a call, and a client to send its result.
	ApprovalTime time.Duration
	// Patience is how long a run waits for an unavailable dependency before it is left to
	// another runner.
	Patience time.Duration
	// MaxFruitless is how many claims in a row may end without a commit before the run fails.
	MaxFruitless int
	// CompactAt is the share of a model's window from which the conversation is compacted, and
	// CompactKeep the share whose newest messages stay as they are.
	CompactAt, CompactKeep float64
	Titles                 Titles
	// Partitions of the run log.
	Partitions int
	// Jitter returns a random part of a wait; nil for rand.N.
	Jitter func(wait time.Duration) time.Duration
}

// Deps are the loop's dependencies.
type Deps struct {
	Store Store
	// Bus takes the run log's events and the tool calls.
	Bus     runlog.Bus
	Tools   *toolbox.Toolbox
	Presets *preset.Set
	Models  Models
	// Catalogue has the capabilities of models.
	Catalogue *catalogue.Catalogue
	// Budgets may be nil.
	Budgets Budgets
	// Prices may be nil.
	Prices  *price.List
	Keeper  *Keeper
	Metrics *Metrics
	Log     *slog.Logger
}

// Loop works on runs. It is safe for concurrent use.
type Loop struct {
	cfg Config
	Deps

	aside sync.WaitGroup  // calls that do not belong to a step
	life  context.Context //nolint:containedctx // ends them in Close
	end   context.CancelFunc
}

// New returns a loop. The caller closes it when its runs have ended.
func New(cfg Config, deps Deps) *Loop {
	if cfg.Jitter == nil {
		cfg.Jitter = rand.N[time.Duration]
	}
	if deps.Prices == nil {
		deps.Prices = &price.List{}
	}
	l := &Loop{cfg: cfg, Deps: deps}
	l.life, l.end = context.WithCancel(context.Background())
	return l
}

// The causes that interrupt a run.
var (
	errStopped  = errors.New("a person stopped the run")
	errWallTime = errors.New("the run ran out of time")
	errStepTime = errors.New("the step ran out of time")
)

// Handle is the work queue's handler. It returns when the run has ended, is parked, or is
// lost to another runner.
func (l *Loop) Handle(ctx context.Context, d *bus.Delivery) error {
	return l.HandleMessage(ctx, &d.Message, d.Attempt, d.Draining())
}

// HandleMessage is Handle for a message that need not come from the bus. attempt counts its
// deliveries from 1; draining is closed when the process shuts down.
//
// The message says that some run waits. Which run is claimed is decided fairly among
// workspaces (package run). Every waiting run has its own message, or will get one, so it
// does not matter which message starts which run.
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
		return nil // no run waits, or its workspace is at its limit and the end of another run wakes it
	case errors.Is(err, run.ErrTooEarly):
		return bus.RetryAfter(earlyRetry<<min(max(attempt-1, 0), earlyDoublings), err)
	case err != nil:
		// Not the bus's own backoff, which grows with the number of deliveries: a run that
		// has waited for its turn has had many.
		return bus.RetryAfter(claimRetry, err)
	}
	return l.Answer(ctx, claim, draining)
}

// claimTries is how often other runners may claim first before a message is delayed.
const claimTries = 5

// claimNext claims one of the runs that Next returns: the named run if it is among them,
// otherwise one chosen by the named run's id, so that concurrent messages try different runs.
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
	return nil, fmt.Errorf("other runners claimed first %d times: %w", claimTries, run.ErrTooEarly)
}

// Answer works on a claimed run until it has ended, is parked, or is lost to another runner.
// When it returns an error, it has released the run for another claim.
func (l *Loop) Answer(ctx context.Context, claim *run.Claim, draining <-chan struct{}) error {
	l.Metrics.inProgress.Inc()
	defer l.Metrics.inProgress.Dec()
	if claim.TakenOver {
		l.Metrics.takeovers.Inc()
	}
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
	// earlyRetry is the first delay of a message after run.ErrTooEarly. It doubles with each
	// delivery, because the outbox may be stuck for long.
	earlyRetry     = 20 * time.Millisecond
	earlyDoublings = 5
	// claimRetry is the delay of a message after a database error.
	claimRetry     = time.Second
	releaseTimeout = 5 * time.Second // by then the lease is about to expire
	releaseRetry   = 100 * time.Millisecond
	confirmDelay   = time.Second
	minRelease     = 250 * time.Millisecond
	maxRelease     = 10 * time.Second
)

// giveBack releases a run after an error. The wait until others may claim it grows with the
// number of fruitless claims.
func (l *Loop) giveBack(ctx context.Context, claim *run.Claim, cause error) error {
	var wait time.Duration // 0 while draining: another replica may claim it at once
	if ctx.Err() == nil {
		wait = min(minRelease<<min(claim.Run.Fruitless, 10), maxRelease)
	}
	if err := retryRelease(ctx, func(ctx context.Context) error { return l.Store.Release(ctx, claim, wait) }); err != nil {
		l.Log.WarnContext(ctx, "run not released; its lease has to expire", "run", claim.Run.ID, "error", err)
	}
	err := fmt.Errorf("run %s: %w", claim.Run.ID, cause)
	if wait == 0 {
		return err
	}
	return bus.RetryAfter(wait+earlyRetry, err)
}

// ReleaseUnconfirmed releases a run that this process may have claimed: the reply to the claim
// was lost, so the process does not work on the run. The claim may still be in flight at the
// first look, so it looks twice.
func (l *Loop) ReleaseUnconfirmed(ctx context.Context, ws id.Workspace, r id.Run) {
	held := false
	release := func(ctx context.Context) (err error) {
		if l.Keeper.has(r) {
			held = true
			return nil
		}
		held, err = l.Store.ReleaseUnconfirmed(ctx, ws, r)
		return err
	}
	err := retryRelease(ctx, release)
	if err == nil && !held {
		select {
		case <-ctx.Done():
			return // the process exits, and its lost presence frees the run
		case <-time.After(confirmDelay):
		}
		err = retryRelease(ctx, release)
	}
	if err != nil {
		l.Log.WarnContext(ctx, "run not released; if it was claimed, its lease has to expire", "run", r, "error", err)
	}
}

// retryRelease retries release while the database is unavailable, for a limited time.
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
			return err // the process exits, and its lost presence frees the run
		case <-time.After(releaseRetry):
		}
	}
}

// work works on one claim. ctx ends when the process must stop at once. The context that register
// returns also ends when the claim is lost.
func (l *Loop) work(ctx context.Context, claim *run.Claim, draining <-chan struct{}) error {
	actor, roleErr := claim.Run.Actor()
	if roleErr == nil {
		ctx = identity.With(ctx, actor)
	}
	active, release := l.Keeper.register(ctx, claim.Lease())
	defer release()
	a := &answering{Loop: l, claim: claim, draining: draining, active: active, unread: !claim.First, since: time.Now()}
	defer func() { claim.Worked = a.worked() }()
	switch {
	case claim.Run.Fruitless > l.cfg.MaxFruitless:
		return a.giveUp(active.ctx, "The run could not be completed. Try again.", "RUN_STUCK") //nolint:contextcheck // register derives it from ctx
	case roleErr != nil:
		return roleErr // a runner of a newer version may know the role
	}
	err := a.run(active.ctx)                                               //nolint:contextcheck // register derives it from ctx
	if err != nil && errors.Is(context.Cause(active.ctx), run.ErrFenced) { //nolint:contextcheck // as above
		return run.ErrFenced // err is a consequence of the lost claim
	}
	return err
}
