// Package sweep wakes runners for runs without a runner: their runner died, or their wake-up
// was lost with the queue. It also refuses the tool calls that nobody has approved in time. It
// reads only Postgres.
//
// Any replica sweeps, mostly one at a time (bus.Rounds), and replicas may find the same run. The
// stream drops duplicate wake-ups of one wakeInterval by their message id, and a claim decides who
// gets the run. If a replica dies during a sweep, the others find the same runs.
package sweep

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/panics"
	"signalbox.dev/pkg/subject"
	"signalbox.dev/services/agent-runner/internal/run"
)

// Store is the part of *run.Store that the sweeper needs.
type Store interface {
	ExpireAbsent(ctx context.Context, quiet time.Duration) ([]run.Claimable, error)
	Sweep(ctx context.Context, patience time.Duration, limit int) ([]run.Claimable, error)
	Ready(ctx context.Context, limit int) ([]run.Claimable, error)
	ExpireApprovals(ctx context.Context, limit int) (int, error)
}

// Bus is the part of *bus.Bus that the sweeper needs.
type Bus interface {
	Publish(ctx context.Context, subj, id string, m proto.Message) (uint64, error)
	OnReconnect(fn func()) (stop func())
}

// Presence is the part of *pg.Presence that the sweeper needs. It is this process's own.
type Presence interface {
	Steady() time.Duration
}

// Config has a sweeper's dependencies and settings.
type Config struct {
	Store    Store
	Bus      Bus
	Presence Presence
	// Rounds shares the sweeps among the replicas; its interval is Interval. nil: there is one replica.
	Rounds *bus.Rounds
	// Outbox publishes rows of replicas that died before they could. It may be nil.
	Outbox Outbox
	// Beat is how often runners renew their leases.
	Beat time.Duration
	Log  *slog.Logger
}

// Outbox is the part of *outbox.Outbox that the sweeper needs.
type Outbox interface{ Poke() }

// Interval is the time between sweeps. It is short because viewers of a killed runner's runs wait
// for it.
const Interval = 250 * time.Millisecond

// Sweeper wakes runners for runs without one.
type Sweeper struct {
	cfg Config
	// woken has the time of the last wake-up of each run that the last sweep found.
	woken map[run.Claimable]time.Time
	// expired is when approvals were last expired, and poked when the outbox was last published.
	expired, poked time.Time
}

// New returns a sweeper. It does nothing until Run is called.
func New(cfg Config) *Sweeper {
	if cfg.Rounds == nil {
		cfg.Rounds = bus.RoundsAlone(Interval)
	}
	return &Sweeper{cfg: cfg}
}

const (
	limit = 256
	// maxReady is how many queued runs are woken when their wake-ups may be lost. It exceeds
	// what a process that died, or the queue, is likely to have held.
	maxReady = 4096
	// maxInFlight is how many wake-ups are published concurrently.
	maxInFlight = 32
	// patience is how long a run may be ready to start before its wake-up counts as lost.
	patience = 2 * time.Second
	// wakeInterval is the time in which a run is woken once: the stream drops further wake-ups.
	wakeInterval = 2 * time.Second
	// maxQueued is how many queued runs are woken once in each subject.AckWait. They may only
	// be waiting for a free slot, and must not fill the queue. A few are enough to find all
	// lost runs, because a wake-up serves whichever run is next.
	maxQueued = 16
	// expireInterval is the time between looks for expired approvals.
	expireInterval = 2 * time.Second
	// outboxInterval is the time between looks for rows of dead replicas.
	outboxInterval = time.Second
	// wakeTimeout bounds the waking of runs, during which the death of other runners goes
	// unnoticed.
	wakeTimeout = 5 * time.Second
)

// Run sweeps until ctx is done, and returns nil.
//
// It waits while this process's own presence is young, because Postgres may just have come
// back. The presence of a live runner is back within tenths of a second, so a runner without
// one after Config.Beat is dead. Leases of live runners may have expired during the outage
// and are renewed within a beat, so expired leases count only after two beats. A wrong
// decision is safe, because a claim fences off the older runner; it costs a repeated step.
func (s *Sweeper) Run(ctx context.Context) error {
	reconnected := make(chan struct{}, 1)
	defer s.cfg.Bus.OnReconnect(func() {
		select {
		case reconnected <- struct{}{}:
		default: // a signal is pending
		}
	})()
	wakeupsLost := false // wake-ups of queued runs may be lost
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-reconnected:
			wakeupsLost = true
		case <-s.cfg.Rounds.Due():
		}
		s.cfg.Rounds.Begin()
		died, swept, err := s.sweep(ctx)
		if wakeupsLost = wakeupsLost || died; wakeupsLost {
			wakeErr := s.wakeQueued(ctx)
			wakeupsLost = wakeErr != nil
			err = errors.Join(err, wakeErr)
		}
		if swept && err == nil {
			s.cfg.Rounds.Done(ctx)
		}
		if err != nil && ctx.Err() == nil {
			s.cfg.Log.WarnContext(ctx, "sweep failed, trying again", "error", err)
		}
	}
}

// sweep wakes runners for runs that have lost theirs. It reports whether a runner has died, and
// whether the sweep was complete.
func (s *Sweeper) sweep(ctx context.Context) (died, complete bool, err error) {
	steady := s.cfg.Presence.Steady()
	if steady < s.cfg.Beat {
		return false, false, nil
	}
	if died, err = s.wakeRunsOfDead(ctx); err != nil || steady < 2*s.cfg.Beat {
		return died, false, err
	}
	if s.cfg.Outbox != nil && time.Since(s.poked) >= outboxInterval {
		s.poked = time.Now()
		s.cfg.Outbox.Poke()
	}
	return died, true, errors.Join(s.wakeLost(ctx), s.expireApprovals(ctx))
}

// expireApprovals refuses the calls whose approval has expired, once in each expireInterval.
func (s *Sweeper) expireApprovals(ctx context.Context) error {
	if time.Since(s.expired) < expireInterval {
		return nil
	}
	s.expired = time.Now()
	n, err := s.cfg.Store.ExpireApprovals(ctx, limit)
	if n > 0 {
		s.cfg.Log.InfoContext(ctx, "approvals expired", "calls", n)
	}
	return err
}

// wakeRunsOfDead wakes runners for the runs of dead runners.
func (s *Sweeper) wakeRunsOfDead(ctx context.Context) (died bool, err error) {
	expired, err := s.cfg.Store.ExpireAbsent(ctx, s.cfg.Beat+s.cfg.Beat/2)
	if err != nil || len(expired) == 0 {
		return false, err
	}
	s.cfg.Log.InfoContext(ctx, "runs of a dead runner can be claimed again", "runs", len(expired))
	_, err = s.wakeAll(ctx, expired)
	return true, err
}

// wakeQueued wakes runners for all queued runs. Their wake-ups may have been delivered to a
// runner that died, and would otherwise be redelivered only after subject.AckWait, or may
// have been lost with the queue.
func (s *Sweeper) wakeQueued(ctx context.Context) error {
	queued, err := s.cfg.Store.Ready(ctx, maxReady)
	if err != nil {
		return err
	}
	_, err = s.wakeAll(ctx, queued)
	return err
}

// wakeLost wakes runners for runs whose lease has expired or whose wake-up was lost, except
// for those that it has woken lately.
func (s *Sweeper) wakeLost(ctx context.Context) error {
	found, err := s.cfg.Store.Sweep(ctx, patience, limit)
	if err != nil {
		return err
	}
	known := make(map[run.Claimable]time.Time, len(found))
	var due []run.Claimable
	queued := 0
	for _, r := range found {
		if r.Queued {
			if queued++; queued > maxQueued {
				break
			}
		}
		at, again := s.woken[r], wakeInterval
		if r.Queued {
			again = subject.AckWait
		}
		if !at.IsZero() && time.Since(at) < again {
			known[r] = at
			continue
		}
		due = append(due, r)
	}
	now := time.Now()
	sent, err := s.wakeAll(ctx, due)
	for _, r := range sent {
		known[r] = now
	}
	s.woken = known
	return err
}

// wakeAll publishes wake-ups concurrently and returns the runs it has woken.
func (s *Sweeper) wakeAll(ctx context.Context, runs []run.Claimable) (sent []run.Claimable, err error) {
	ctx, cancel := context.WithTimeout(ctx, wakeTimeout)
	defer cancel()
	failed := make([]error, len(runs))
	var waking errgroup.Group
	waking.SetLimit(maxInFlight)
	for i, r := range runs {
		waking.Go(func() error { // a failure must not stop the others
			failed[i] = panics.Try(func() error { return s.wake(ctx, r) })
			return nil
		})
	}
	_ = waking.Wait() // nil
	for i, r := range runs {
		switch {
		case failed[i] == nil:
			sent = append(sent, r)
		case err == nil:
			err = fmt.Errorf("wake run %s again: %w", r.Run, failed[i])
		}
	}
	return sent, err
}

func (s *Sweeper) wake(ctx context.Context, r run.Claimable) error {
	m := run.Wake(r.Workspace, r.Session, r.Run)
	m.ID = fmt.Sprintf("%s:%d:%d", m.ID, r.Epoch, time.Now().UnixNano()/int64(wakeInterval))
	_, err := s.cfg.Bus.Publish(ctx, m.Subject, m.ID, m.Body)
	return err
}
