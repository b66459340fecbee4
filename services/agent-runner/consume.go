package agentrunner

import (
	"context"
	"fmt"
	"time"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/subject"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
	"signalbox.dev/services/agent-runner/internal/run"
)

// consume works on runs until ctx is done and the runs in hand are parked.
func (s *Service) consume(ctx context.Context) error {
	return s.deps.Bus.Consume(ctx, bus.ConsumeConfig{
		Stream: subject.Runs, Consumer: subject.Runners, Slots: s.cfg.Slots, Handler: s.loop.Handle, DrainTimeout: s.cfg.Drain,
	})
}

const (
	sweepLimit = 256
	// sweepEvery is short: it is part of what a killed runner costs those who watch.
	sweepEvery = 500 * time.Millisecond
	// patience is how long a run may be ready to start before its wake-up is taken for lost.
	patience = 5 * time.Second
	// A run is woken once in each moment: the stream drops the other wake-ups. One that
	// only waits for a free slot must not fill the queue, and is not in a hurry; its
	// moment is the stream's window for repetitions.
	runningMoment = 2 * time.Second
	queuedMoment  = 2 * time.Minute
)

// sweep wakes runners for runs that nobody works on: their runner died, or their
// wake-up was lost with the queue. It reads Postgres alone. Replicas may sweep the
// same run: a claim decides, and the message id holds the sweeps of one moment together.
//
// It waits while this process's own presence is young: Postgres may just have come
// back, and the runners that hold leases have to renew them first.
func (s *Service) sweep(ctx context.Context) error {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if s.presence.Steady() < 2*s.cfg.Beat {
			continue
		}
		if err := s.sweepOnce(ctx); err != nil && ctx.Err() == nil {
			s.deps.Log.WarnContext(ctx, "sweep put off", "error", err)
		}
	}
}

func (s *Service) sweepOnce(ctx context.Context) error {
	expired, err := s.runs.ExpireAbsent(ctx, s.cfg.Beat+s.cfg.Beat/2)
	if err != nil {
		return err
	}
	if expired > 0 {
		s.deps.Log.InfoContext(ctx, "runs of a runner that died are free again", "runs", expired)
	}
	found, err := s.runs.Sweep(ctx, patience, sweepLimit)
	if err != nil {
		return err
	}
	for _, r := range found {
		if err := s.wakeAgain(ctx, r); err != nil {
			return fmt.Errorf("wake run %s again: %w", r.Run, err)
		}
	}
	return nil
}

func (s *Service) wakeAgain(ctx context.Context, r run.Abandoned) error {
	moment := runningMoment
	if r.Queued {
		moment = queuedMoment
	}
	message := fmt.Sprintf("%s:%d:%d", r.Run, r.Epoch, time.Now().UnixNano()/int64(moment))
	_, err := s.deps.Bus.Publish(ctx, subject.RunWork(subject.Shard(r.Session)), message, run.Work(r.Workspace, r.Session, r.Run))
	return err
}

// nudge taps the runners of runs on the shoulder: their inboxes have something new.
// A nudge that is lost costs the time until the next beat.
func (s *Service) nudge(ctx context.Context, runs ...id.Run) {
	for _, r := range runs {
		if err := s.deps.Bus.Nudge(ctx, subject.CtlRun(r), &runv1.InboxNudge{RunId: r.String()}); err != nil {
			s.deps.Log.WarnContext(ctx, "runner not nudged", "run", r, "error", err)
		}
	}
}
