package bus

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Rounds shares the rounds of periodic work among the replicas of a service, if it does not matter
// which of them does a round. A replica announces each round that it has done, and the others
// then put off theirs. So one replica does them all, until it is silent for one and a half to two
// intervals: then another one goes on. If several begin at the same time, the one with the smallest
// name does. Nobody is elected. A lost announcement, or a bus that
// is away, only makes several replicas do the same round.
type Rounds struct {
	every time.Duration
	timer *time.Timer
	tell  func(ctx context.Context) error

	mu    sync.Mutex // guards began
	began time.Time  // the last round here
}

// Core is the part of *Bus that Rounds needs.
type Core interface {
	Subscribe(subj string, fn func(ctx context.Context, m *Message)) (*Subscription, error)
	Nudge(ctx context.Context, subj string, m proto.Message) error
}

// RoundsConfig are the settings of Rounds.
type RoundsConfig struct {
	// Subject is that of the announcements.
	Subject string
	// Self is a unique name of this process.
	Self  string
	Every time.Duration
	// Jitter returns a random part of a wait; nil for rand.N.
	Jitter func(wait time.Duration) time.Duration
}

// NewRounds returns the rounds of one replica. It subscribes until the bus is closed.
func NewRounds(b Core, cfg RoundsConfig) (*Rounds, error) {
	if cfg.Jitter == nil {
		cfg.Jitter = rand.N[time.Duration]
	}
	r := RoundsAlone(cfg.Every)
	r.tell = func(ctx context.Context) error { return b.Nudge(ctx, cfg.Subject, wrapperspb.String(cfg.Self)) }
	if _, err := b.Subscribe(cfg.Subject, func(_ context.Context, m *Message) {
		by, err := Decode[*wrapperspb.StringValue](m)
		if err == nil && by.GetValue() != cfg.Self && (by.GetValue() < cfg.Self || !r.active()) {
			// A head start of half an interval for the one that announces: its rounds do not
			// all take the same time, and among many replicas one has hardly any jitter.
			r.timer.Reset(cfg.Every + cfg.Every/2 + cfg.Jitter(cfg.Every/2))
		}
	}); err != nil {
		return nil, fmt.Errorf("share rounds: %w", err)
	}
	return r, nil
}

// RoundsAlone returns the rounds of the only replica.
func RoundsAlone(every time.Duration) *Rounds {
	return &Rounds{every: every, timer: time.NewTimer(every), tell: func(context.Context) error { return nil }}
}

// Due receives a value when this replica has to do a round. The receiver calls Begin.
func (r *Rounds) Due() <-chan time.Time { return r.timer.C }

// Begin begins a round: the next one is due an interval later.
func (r *Rounds) Begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.began = time.Now()
	r.timer.Reset(r.every)
}

// active reports whether this replica has begun the last round that was due, or one since then.
func (r *Rounds) active() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.began.IsZero() && time.Since(r.began) <= r.every
}

// Done tells the other replicas that a round was done. It must not be called for one that failed.
// If the bus is away, they do not hear of it and go on themselves.
func (r *Rounds) Done(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, r.every)
	defer cancel()
	_ = r.tell(ctx)
}
