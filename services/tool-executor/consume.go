package toolexecutor

import (
	"context"
	"log/slog"
	"time"

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

// announce returns a function that sends a recorded outcome to the call's runner. The message
// may be lost; the runner also polls GetOutcomes.
func announce(b *bus.Bus, log *slog.Logger) func(context.Context, *toolv1.Outcome) {
	return func(ctx context.Context, o *toolv1.Outcome) {
		run, err := id.Parse[id.Run](o.GetRunId())
		if err == nil {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), announceTimeout)
			defer cancel()
			err = b.Nudge(ctx, subject.ToolDone(run), o)
		}
		if err != nil {
			log.WarnContext(ctx, "outcome not announced", "key", o.GetKey(), "error", err)
		}
	}
}
