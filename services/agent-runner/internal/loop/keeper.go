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

// Leases is what the keeper needs of *run.Store, whose contract this is.
type Leases interface {
	Renew(ctx context.Context, leases []run.Lease) ([]run.Renewal, error)
}

// Subscriber is what the keeper needs of *bus.Bus, whose contract this is.
type Subscriber interface {
	Subscribe(subj string, fn func(ctx context.Context, m *bus.Message)) (*bus.Subscription, error)
}

// Keeper renews the leases of all runs of this process in one statement, and tells
// a run when its inbox has mail: a nudge says so at once, the renewal says so when
// the nudge was lost. A run whose lease is gone has its context cancelled with
// run.ErrFenced.
type Keeper struct {
	store Leases
	every time.Duration
	log   *slog.Logger

	mu   sync.Mutex // guards runs
	runs map[id.Run]*held
}

// held is one run in work.
type held struct {
	ctx    context.Context //nolint:containedctx // handed from hold to its caller, once
	cancel context.CancelCauseFunc
	lease  run.Lease
	mail   chan struct{} // capacity 1: there is something unread
	yield  atomic.Bool   // another workspace waits for the slot
}

// NewKeeper returns a keeper that renews as often as every says.
func NewKeeper(store Leases, every time.Duration, log *slog.Logger) *Keeper {
	return &Keeper{store: store, every: every, log: log, runs: map[id.Run]*held{}}
}

// Listen hears nudges until the bus is closed.
func (k *Keeper) Listen(b Subscriber) error {
	_, err := b.Subscribe(subject.AllCtlRuns, func(ctx context.Context, m *bus.Message) {
		nudge, err := bus.Decode[*runv1.InboxNudge](m)
		if err != nil {
			k.log.WarnContext(ctx, "nudge not understood", "error", err)
			return
		}
		if r, err := id.Parse[id.Run](nudge.GetRunId()); err == nil {
			k.notify(r)
		}
	})
	return err
}

// hold registers a run; release ends that. A run is held once: a second claim of
// the same process takes the place of the first, which is lost.
func (k *Keeper) hold(ctx context.Context, lease run.Lease) (h *held, release func()) {
	h = &held{lease: lease, mail: make(chan struct{}, 1)}
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

// holds reports whether this process works on a run.
func (k *Keeper) holds(r id.Run) bool {
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
	case h.mail <- struct{}{}:
	default: // it knows
	}
}

// Run renews until ctx is done. It must outlive the handlers.
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

// renewTimeout is longer than a beat: a database that is slow for a moment loses nobody's claim.
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
		// The claims may run out; the epoch decides whether that matters.
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

// drop tells a run that its claim is gone. One that has just ended is not told:
// it has released itself, or will before it looks.
func (k *Keeper) drop(lease run.Lease) {
	k.mu.Lock()
	h := k.runs[lease.Run]
	k.mu.Unlock()
	if h != nil && h.lease == lease {
		h.cancel(run.ErrFenced)
	}
}
