package natsd

import (
	"context"
	"time"
)

const (
	checkInterval = time.Second // between health checks, and between attempts to restart
	maxUnhealthy  = 3           // checks in a row; a stream that is being created fails one, too
)

// watch restarts the server when JetStream is unhealthy, until ctx is done: after a write to
// a full disk it accepts no more messages, even when there is room again.
func (s *Server) watch(ctx context.Context) {
	defer close(s.watched)
	tick := time.NewTicker(checkInterval)
	defer tick.Stop()
	lastErr, unhealthy := "", 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if srv := s.current(); srv != nil {
			health := srv.Healthz(nil)
			if health.Error == "" {
				lastErr, unhealthy = "", 0
				continue
			}
			if unhealthy++; unhealthy < maxUnhealthy {
				continue
			}
			s.cfg.Log.ErrorContext(ctx, "nats server is unhealthy, restarting it", "error", health.Error)
			s.end()
		}
		opts, err := s.options()
		if err == nil {
			err = s.start(ctx, opts)
		}
		switch {
		case err == nil:
			s.cfg.Log.WarnContext(ctx, "nats server is running again")
		case err.Error() != lastErr: // logged once, not every second
			lastErr = err.Error()
			s.cfg.Log.ErrorContext(ctx, "nats server does not start", "error", err)
		}
	}
}
