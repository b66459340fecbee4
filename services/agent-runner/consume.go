package agentrunner

import (
	"context"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/subject"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
)

// consume works on runs until ctx is done and the runs in hand are parked.
func (s *Service) consume(ctx context.Context) error {
	return s.deps.Bus.Consume(ctx, bus.ConsumeConfig{
		Stream: subject.Runs, Consumer: subject.Runners, Slots: s.cfg.Slots, Taken: s.starter.slots, Handler: s.loop.Handle, DrainTimeout: s.cfg.Drain,
	})
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
