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

	"google.golang.org/protobuf/proto"

	"signalbox.dev/pkg/subject"
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
	// every is short: it is part of what a killed runner costs those who watch.
	every = 500 * time.Millisecond
	// patience is how long a run may be ready to start before its wake-up is taken for lost.
	patience = 5 * time.Second
	// A run is woken once in each moment: the stream drops the other wake-ups. One that
	// only waits for a free slot must not fill the queue, and is not in a hurry; its
	// moment is the stream's window for repetitions.
	runningMoment = 2 * time.Second
	queuedMoment  = 2 * time.Minute
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
	for _, r := range found {
		if err := s.wake(ctx, r); err != nil {
			return fmt.Errorf("wake run %s again: %w", r.Run, err)
		}
	}
	return nil
}

func (s *Sweeper) wake(ctx context.Context, r run.Abandoned) error {
	moment := runningMoment
	if r.Queued {
		moment = queuedMoment
	}
	message := fmt.Sprintf("%s:%d:%d", r.Run, r.Epoch, time.Now().UnixNano()/int64(moment))
	_, err := s.cfg.Bus.Publish(ctx, subject.RunWork(subject.Shard(r.Session)), message, run.Work(r.Workspace, r.Session, r.Run))
	return err
}
