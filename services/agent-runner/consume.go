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
	// patience is how long a run may be ready to start before its wake-up is taken for lost.
	patience = 5 * time.Second
	// queuedMoment is the stream's window for repetitions.
	queuedMoment = 2 * time.Minute
)

// sweep wakes runners for runs that nobody works on: their runner died, or their
// wake-up was lost with the queue. It reads Postgres alone. Replicas may sweep the
// same run: a claim decides, and the message id holds the sweeps of one moment together.
func (s *Service) sweep(ctx context.Context) error {
	tick := time.NewTicker(s.cfg.Beat)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		found, err := s.runs.Sweep(ctx, patience, sweepLimit)
		if err != nil {
			if ctx.Err() == nil {
				s.deps.Log.WarnContext(ctx, "sweep put off", "error", err)
			}
			continue
		}
		for _, r := range found {
			if err := s.wakeAgain(ctx, r); err != nil && ctx.Err() == nil {
				s.deps.Log.WarnContext(ctx, "run not woken; the next sweep tries again", "run", r.Run, "error", err)
				break
			}
		}
	}
}

func (s *Service) wakeAgain(ctx context.Context, r run.Abandoned) error {
	// One wake-up for each moment: the stream drops the others. A run that only waits
	// for a free slot must not fill the queue, and is not in a hurry.
	moment := s.cfg.Lease + time.Second
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
