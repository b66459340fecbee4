// Package sweep wakes runners for runs that nobody works on: their runner died, or
// their wake-up was lost with the queue. It reads Postgres alone.
//
// Every replica sweeps. Replicas may find the same run: a claim decides who gets it,
// and the message id holds the sweeps of one moment together. Run is the only
// goroutine; if it dies here, another replica's sweep finds the same.
package sweep

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"signalbox.dev/services/agent-runner/internal/run"
)

// Store is what the sweeper needs of *run.Store, whose contracts these are.
type Store interface {
	ExpireAbsent(ctx context.Context, quiet time.Duration) (int, error)
	Sweep(ctx context.Context, patience time.Duration, limit int) ([]run.Abandoned, error)
}

// Publisher is where wake-ups go: *bus.Bus, whose contract this is.
type Publisher interface {
	Publish(ctx context.Context, subj, id string, m proto.Message) (uint64, error)
}

// Presence is this process's own: *pg.Presence, whose contract this is.
type Presence interface {
	Steady() time.Duration
}

// Config says what a sweeper works with.
type Config struct {
	Store    Store
	Bus      Publisher
	Presence Presence
	// Beat is how often runners renew their leases.
	Beat time.Duration
	Log  *slog.Logger
}

// Sweeper sweeps.
type Sweeper struct{ cfg Config }

// New returns a sweeper; it does nothing before Run.
func New(cfg Config) *Sweeper { return &Sweeper{cfg} }

const (
	limit = 256
	// together is how many wake-ups are on their way at a time.
	together = 32
	// every is short: it is part of what a killed runner costs those who watch.
	every = 500 * time.Millisecond
	// patience is how long a run may be ready to start before its wake-up is taken for lost.
	patience = 2 * time.Second
	// A run that lost its runner is woken once in each moment: the stream drops the other
	// wake-ups. One that is queued may only wait for a free slot, and must not fill the
	// queue: it is woken under the id of its first wake-up, which the stream takes again
	// when it has forgotten that.
	moment = 2 * time.Second
)

// Run sweeps until ctx is done, and returns nil.
//
// It waits while this process's own presence is young: Postgres may just have come
// back, and the runners that hold leases have to renew them first.
func (s *Sweeper) Run(ctx context.Context) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if s.cfg.Presence.Steady() < 2*s.cfg.Beat {
			continue
		}
		if err := s.once(ctx); err != nil && ctx.Err() == nil {
			s.cfg.Log.WarnContext(ctx, "sweep put off", "error", err)
		}
	}
}

func (s *Sweeper) once(ctx context.Context) error {
	expired, err := s.cfg.Store.ExpireAbsent(ctx, s.cfg.Beat+s.cfg.Beat/2)
	if err != nil {
		return err
	}
	if expired > 0 {
		s.cfg.Log.InfoContext(ctx, "runs of a runner that died are free again", "runs", expired)
	}
	found, err := s.cfg.Store.Sweep(ctx, patience, limit)
	if err != nil {
		return err
	}
	// Side by side: a runner that died had many, and each waits for an answer.
	waking, ctx := errgroup.WithContext(ctx)
	waking.SetLimit(together)
	for _, r := range found {
		waking.Go(func() error {
			if err := s.wake(ctx, r); err != nil {
				return fmt.Errorf("wake run %s again: %w", r.Run, err)
			}
			return nil
		})
	}
	return waking.Wait()
}

func (s *Sweeper) wake(ctx context.Context, r run.Abandoned) error {
	m := run.Wake(r.Workspace, r.Session, r.Run)
	if !r.Queued {
		m.ID = fmt.Sprintf("%s:%d:%d", m.ID, r.Epoch, time.Now().UnixNano()/int64(moment))
	}
	_, err := s.cfg.Bus.Publish(ctx, m.Subject, m.ID, m.Body)
	return err
}
