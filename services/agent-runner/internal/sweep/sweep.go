// Package sweep wakes runners for runs that nobody works on: their runner died, or
// their wake-up was lost with the queue. It reads Postgres alone.
//
// Every replica sweeps. Replicas may find the same run: a claim decides who gets it,
// and the message id holds the sweeps of one moment together. Run is the only
// goroutine; if it dies here, another replica's sweep finds the same.
package sweep

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"signalbox.dev/pkg/panics"
	"signalbox.dev/pkg/subject"
	"signalbox.dev/services/agent-runner/internal/run"
)

// Store is what the sweeper needs of *run.Store, whose contracts these are.
type Store interface {
	ExpireAbsent(ctx context.Context, quiet time.Duration) ([]run.Claimable, error)
	Sweep(ctx context.Context, patience time.Duration, limit int) ([]run.Claimable, error)
	Ready(ctx context.Context, limit int) ([]run.Claimable, error)
}

// Bus is where wake-ups go: *bus.Bus, whose contract this is.
type Bus interface {
	Publish(ctx context.Context, subj, id string, m proto.Message) (uint64, error)
	OnReconnect(fn func()) (stop func())
}

// Presence is this process's own: *pg.Presence, whose contract this is.
type Presence interface {
	Steady() time.Duration
}

// Config says what a sweeper works with.
type Config struct {
	Store    Store
	Bus      Bus
	Presence Presence
	// Beat is how often runners renew their leases.
	Beat time.Duration
	Log  *slog.Logger
}

// Sweeper sweeps.
type Sweeper struct {
	cfg Config
	// woken is when what the last sweep has found was woken, by the way it waits.
	woken map[run.Claimable]time.Time
}

// New returns a sweeper; it does nothing before Run.
func New(cfg Config) *Sweeper { return &Sweeper{cfg: cfg} }

const (
	limit = 256
	// maxReady is how many queued runs are woken when their wake-ups may be lost: more than
	// a process that died, or the queue, may have held for those who watch.
	maxReady = 4096
	// maxInFlight is how many wake-ups are on their way at a time.
	maxInFlight = 32
	// interval is short: it is part of what a killed runner costs those who watch.
	interval = 250 * time.Millisecond
	// patience is how long a run may be ready to start before its wake-up is taken for lost.
	patience = 2 * time.Second
	// A run is woken once in each moment: the stream drops the other wake-ups.
	wakeInterval = 2 * time.Second
	// maxQueued is how many queued runs are woken after subject.AckWait and again after each
	// more. They may only wait for a free slot, and must not fill the queue; any wake-up
	// serves whichever run is next, so that a few find all that was lost.
	maxQueued = 16
	// wakeTimeout bounds what waking takes of the time in which others may die.
	wakeTimeout = 5 * time.Second
)

// Run sweeps until ctx is done, and returns nil.
//
// It waits while this process's own presence is young: Postgres may just have come
// back, and the others are on their way. Their presence is back within tenths of a
// second, so who has none after a beat has died, and those who watch have waited for
// Postgres already. The leases of who lives may all have run out, and the next beat
// renews them: that is waited for twice over. To be wrong about either is safe, because
// a claim fences, and costs a step that begins again.
func (s *Sweeper) Run(ctx context.Context) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	reconnected := make(chan struct{}, 1)
	defer s.cfg.Bus.OnReconnect(func() {
		select {
		case reconnected <- struct{}{}:
		default: // it is known already
		}
	})()
	wakeupsLost := false // wake-ups of queued runs may be lost
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-reconnected:
			wakeupsLost = true
		case <-tick.C:
		}
		died, err := s.sweep(ctx)
		if wakeupsLost = wakeupsLost || died; wakeupsLost {
			wakeErr := s.wakeQueued(ctx)
			wakeupsLost = wakeErr != nil
			err = errors.Join(err, wakeErr)
		}
		if err != nil && ctx.Err() == nil {
			s.cfg.Log.WarnContext(ctx, "sweep put off", "error", err)
		}
	}
}

// sweep wakes runners for the runs that have lost theirs, and says whether one has died.
func (s *Sweeper) sweep(ctx context.Context) (died bool, err error) {
	steady := s.cfg.Presence.Steady()
	if steady < s.cfg.Beat {
		return false, nil
	}
	if died, err = s.wakeRunsOfDead(ctx); err != nil || steady < 2*s.cfg.Beat {
		return died, err
	}
	return died, s.wakeLost(ctx)
}

// wakeRunsOfDead wakes runners for the runs of those that died.
func (s *Sweeper) wakeRunsOfDead(ctx context.Context) (died bool, err error) {
	expired, err := s.cfg.Store.ExpireAbsent(ctx, s.cfg.Beat+s.cfg.Beat/2)
	if err != nil || len(expired) == 0 {
		return false, err
	}
	s.cfg.Log.InfoContext(ctx, "runs of a runner that died are free again", "runs", len(expired))
	_, err = s.wakeAll(ctx, expired)
	return true, err
}

// wakeQueued wakes runners for all runs that are queued: their wake-ups were on their way
// to somebody who died, or when the queue did, and would come again after
// subject.AckWait only.
func (s *Sweeper) wakeQueued(ctx context.Context) error {
	queued, err := s.cfg.Store.Ready(ctx, maxReady)
	if err != nil {
		return err
	}
	_, err = s.wakeAll(ctx, queued)
	return err
}

// wakeLost wakes runners for the runs that nobody has, and whose wake-up was lost. What
// it has woken lately it leaves alone.
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

// wakeAll wakes side by side: a runner that died had many runs, and each wake-up waits
// for an answer. It returns those that it has woken.
func (s *Sweeper) wakeAll(ctx context.Context, runs []run.Claimable) (sent []run.Claimable, err error) {
	ctx, cancel := context.WithTimeout(ctx, wakeTimeout)
	defer cancel()
	failed := make([]error, len(runs))
	var waking errgroup.Group
	waking.SetLimit(maxInFlight)
	for i, r := range runs {
		waking.Go(func() error { // who cannot be woken is in nobody's way
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
