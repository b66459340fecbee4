package toolexecutor

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/subject"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
)

// waitingPerSlot is how many calls the process fetches for each slot, so that a workspace's
// only call is not stuck in the queue behind many calls of another workspace.
const waitingPerSlot = 4

// waitForSlot is how long a call waits for a slot here before it goes back to the queue.
const waitForSlot = time.Second

// consume takes calls from the queue until ctx is done and the active calls are finished or
// handed over. The error of Handle is the delivery decision.
func (s *Service) consume(ctx context.Context) error {
	return s.deps.Bus.Consume(ctx, bus.ConsumeConfig{
		Stream: subject.Tools, Consumer: subject.Executors, Slots: waitingPerSlot * s.cfg.Slots, DrainTimeout: s.cfg.Drain,
		Handler: func(ctx context.Context, d *bus.Delivery) error {
			call, err := bus.Decode[*toolv1.Call](&d.Message)
			if err != nil {
				return err
			}
			return s.executor.Handle(ctx, call)
		},
	})
}

// subscribeCancels receives cancellations of runs' calls.
func (s *Service) subscribeCancels() (*bus.Subscription, error) {
	return s.deps.Bus.Subscribe(subject.AllToolCancels, func(ctx context.Context, m *bus.Message) {
		c, err := bus.Decode[*toolv1.Cancel](m)
		if err == nil {
			err = s.executor.Cancel(c)
		}
		if err != nil {
			s.deps.Log.WarnContext(ctx, "cancel not decoded", "subject", m.Subject, "error", err)
		}
	})
}

// announce sends a recorded outcome to the call's runner. The message may be lost; the runner
// also polls GetOutcomes.
func (s *Service) announce(ctx context.Context, o *toolv1.Outcome) {
	if err := s.nudge(ctx, o.GetRunId(), o); err != nil {
		s.deps.Log.WarnContext(ctx, "outcome not announced", "key", o.GetKey(), "error", err)
	}
}

// report sends a call's progress to its runner.
func (s *Service) report(ctx context.Context, p *toolv1.Progress) {
	if err := s.nudge(ctx, p.GetRunId(), p); err != nil {
		s.deps.Log.WarnContext(ctx, "progress not reported", "key", p.GetKey(), "error", err)
	}
}

// nudge sends a message about a call of a run to the run's runner.
func (s *Service) nudge(ctx context.Context, runID string, m proto.Message) error {
	run, err := id.Parse[id.Run](runID)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), announceTimeout)
	defer cancel()
	return s.deps.Bus.Nudge(ctx, subject.ToolDone(run), m)
}
