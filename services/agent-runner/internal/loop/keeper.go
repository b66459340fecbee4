package loop

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/subject"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
	"signalbox.dev/services/agent-runner/internal/run"
)

// Leases is the part of *run.Store that the keeper needs.
type Leases interface {
	Renew(ctx context.Context, leases []run.Lease) ([]run.Renewal, error)
}

// Subscriber is the part of *bus.Bus that the keeper needs.
type Subscriber interface {
	Subscribe(subj string, fn func(ctx context.Context, m *bus.Message)) (*bus.Subscription, error)
}

// Keeper renews the leases of all runs of this process in one statement. It signals a run
// whose inbox has something unread: at once after a nudge, or at the next renewal if the
// nudge was lost. It cancels the context of a run whose lease is lost with run.ErrFenced.
type Keeper struct {
	store Leases
	every time.Duration
	log   *slog.Logger

	mu   sync.Mutex // guards runs
	runs map[id.Run]*activeRun
}

// activeRun is one run that this process works on.
type activeRun struct {
	ctx    context.Context //nolint:containedctx // handed from register to its caller, once
	cancel context.CancelCauseFunc
	lease  run.Lease
	unread chan struct{} // capacity 1: the inbox has something unread
	yield  atomic.Bool   // another workspace waits for the slot
}

// NewKeeper returns a keeper that renews leases at the given interval.
func NewKeeper(store Leases, every time.Duration, log *slog.Logger) *Keeper {
	return &Keeper{store: store, every: every, log: log, runs: map[id.Run]*activeRun{}}
}

// Listen receives nudges until the bus is closed.
func (k *Keeper) Listen(b Subscriber) error {
	_, err := b.Subscribe(subject.AllCtlRuns, func(ctx context.Context, m *bus.Message) {
		nudge, err := bus.Decode[*runv1.InboxNudge](m)
		if err != nil {
			k.log.WarnContext(ctx, "nudge not decoded", "error", err)
			return
		}
		if r, err := id.Parse[id.Run](nudge.GetRunId()); err == nil {
			k.notify(r)
		}
	})
	return err
}

// register registers a run until release is called. A second claim of the same run by this
// process replaces the first one, whose context is cancelled.
func (k *Keeper) register(ctx context.Context, lease run.Lease) (h *activeRun, release func()) {
	h = &activeRun{lease: lease, unread: make(chan struct{}, 1)}
	h.ctx, h.cancel = context.WithCancelCause(ctx)
	k.mu.Lock()
	before := k.runs[lease.Run]
	k.runs[lease.Run] = h
	k.mu.Unlock()
	if before != nil {
		before.cancel(run.ErrFenced)
	}
	return h, func() {
		k.mu.Lock()
		if k.runs[lease.Run] == h {
			delete(k.runs, lease.Run)
		}
		k.mu.Unlock()
		h.cancel(nil)
	}
}

// has reports whether this process works on a run.
func (k *Keeper) has(r id.Run) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.runs[r] != nil
}

func (k *Keeper) notify(r id.Run) {
	k.mu.Lock()
	h := k.runs[r]
	k.mu.Unlock()
	if h == nil {
		return
	}
	select {
	case h.unread <- struct{}{}:
	default: // it is signalled already
	}
}

// Run renews leases until ctx is done. It must outlive the runs.
func (k *Keeper) Run(ctx context.Context) error {
	tick := time.NewTicker(k.every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		k.renew(ctx)
	}
}

// renewTimeout is longer than the default interval, so that a slow database costs no claims.
const renewTimeout = 3 * time.Second

func (k *Keeper) renew(ctx context.Context) {
	k.mu.Lock()
	leases := make([]run.Lease, 0, len(k.runs))
	for _, h := range k.runs {
		leases = append(leases, h.lease)
	}
	k.mu.Unlock()
	if len(leases) == 0 {
		return
	}
	limited, cancel := context.WithTimeout(ctx, renewTimeout)
	defer cancel()
	renewals, err := k.store.Renew(limited, leases)
	if err != nil {
		// The leases may expire; the epoch decides whether that matters.
		k.log.WarnContext(ctx, "leases not renewed", "runs", len(leases), "error", err)
		return
	}
	kept := make(map[id.Run]bool, len(renewals))
	for _, b := range renewals {
		kept[b.Run] = true
		if b.Unread {
			k.notify(b.Run)
		}
		k.mu.Lock()
		if h := k.runs[b.Run]; h != nil {
			h.yield.Store(b.Yield)
		}
		k.mu.Unlock()
	}
	for _, lease := range leases {
		if !kept[lease.Run] {
			k.drop(lease)
		}
	}
}

// drop cancels a run whose claim is lost. A run that has just ended is released already, or
// will be before it sees the cancellation.
func (k *Keeper) drop(lease run.Lease) {
	k.mu.Lock()
	h := k.runs[lease.Run]
	k.mu.Unlock()
	if h != nil && h.lease == lease {
		h.cancel(run.ErrFenced)
	}
}
