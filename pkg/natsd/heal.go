package natsd

import (
	"context"
	"time"
)

// healEvery is how often the server is asked whether it is well, and also the wait
// between attempts to start it again. It is unwell after several bad answers in a row:
// a stream that is just being made gives one too.
const (
	healEvery  = time.Second
	badAnswers = 3
)

// heal starts the server again when JetStream is not well: after a write that the disk
// had no room for, it takes no more messages, however much room there is later. It
// returns when ctx ends.
func (s *Server) heal(ctx context.Context) {
	defer close(s.healed)
	tick := time.NewTicker(healEvery)
	defer tick.Stop()
	last, bad := "", 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if srv := s.current(); srv != nil {
			health := srv.Healthz(nil)
			if health.Error == "" {
				last, bad = "", 0
				continue
			}
			if bad++; bad < badAnswers {
				continue
			}
			s.cfg.Log.ErrorContext(ctx, "nats server is not well, starting it again", "error", health.Error)
			s.end()
		}
		opts, err := s.options()
		if err == nil {
			err = s.start(ctx, opts)
		}
		switch {
		case err == nil:
			s.cfg.Log.WarnContext(ctx, "nats server runs again")
		case err.Error() != last: // it is tried every second
			last = err.Error()
			s.cfg.Log.ErrorContext(ctx, "nats server does not start", "error", err)
		}
	}
}
