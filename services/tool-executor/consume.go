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

// waitingPerSlot is how many calls are held here for each slot, so that a workspace's only
// call is seen behind another's flood.
const waitingPerSlot = 4

// waitForSlot is how long a call waits here for a slot before another executor may have it.
const waitForSlot = time.Second

// consume takes calls from the queue until ctx is done, and finishes or hands on
// those in hand. What Handle returns is the delivery decision.
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

// hearCancels listens for runs whose calls are not wanted any more.
func (s *Service) hearCancels() (*bus.Subscription, error) {
	return s.deps.Bus.Subscribe(subject.AllToolCancels, func(ctx context.Context, m *bus.Message) {
		c, err := bus.Decode[*toolv1.Cancel](m)
		if err == nil {
			err = s.executor.Cancel(c)
		}
		if err != nil {
			s.deps.Log.WarnContext(ctx, "cancel not understood", "subject", m.Subject, "error", err)
		}
	})
}

// announce tells the runner of a call that its outcome is recorded. A nudge may
// get lost; the runner also asks GetOutcomes.
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
