package agentrunner

import (
	"context"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/subject"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
)

// consume works on runs from the queue until ctx is done and its runs are parked.
func (s *Service) consume(ctx context.Context) error {
	return s.deps.Bus.Consume(ctx, bus.ConsumeConfig{
		Stream: subject.Runs, Consumer: subject.Runners, Slots: s.cfg.Slots, Taken: s.starter.slots, Handler: s.loop.Handle, DrainTimeout: s.cfg.Drain,
	})
}

// nudge tells the runners of runs that their inboxes have something new. If a nudge is
// lost, the runner finds out at its next lease renewal.
func (s *Service) nudge(ctx context.Context, runs ...id.Run) {
	for _, r := range runs {
		if err := s.deps.Bus.Nudge(ctx, subject.CtlRun(r), &runv1.InboxNudge{RunId: r.String()}); err != nil {
			s.deps.Log.WarnContext(ctx, "runner not nudged", "run", r, "error", err)
		}
	}
}
