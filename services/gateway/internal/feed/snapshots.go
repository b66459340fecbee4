package feed

import (
	"context"
	"sync"
	"time"

	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/panics"
)

// snapshots fetches a session's snapshot once for all viewers that need one at the same time.
type snapshots struct {
	mu      sync.Mutex // guards current and its fields up to done
	current *fetch
}

type fetch struct {
	started time.Time
	done    chan struct{} // closed when the rest is set
	snap    Snapshot
	err     error
}

// get returns a snapshot that was requested after need. The source is called with the context's
// identity.
func (s *snapshots) get(ctx context.Context, t *topic, need time.Time) (Snapshot, error) {
	for {
		s.mu.Lock()
		f := s.current
		if f == nil || f.over() && !f.started.After(need) {
			f = &fetch{started: time.Now(), done: make(chan struct{})}
			s.current = f
			s.mu.Unlock()
			f.run(ctx, t)
			s.forget(f)
			return f.snap, f.err
		}
		s.mu.Unlock()
		select {
		case <-f.done:
		case <-ctx.Done():
			return Snapshot{}, context.Cause(ctx)
		}
		if f.started.After(need) {
			return f.snap, f.err
		}
	}
}

// forget drops a fetch after a second, in which others may share it.
func (s *snapshots) forget(f *fetch) {
	time.AfterFunc(time.Second, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.current == f {
			s.current = nil
		}
	})
}

func (f *fetch) over() bool {
	select {
	case <-f.done:
		return true
	default:
		return false
	}
}

// run fetches the snapshot, even if the first viewer leaves, since others may wait for it.
func (f *fetch) run(ctx context.Context, t *topic) {
	defer close(f.done)
	defer panics.Recover(&f.err)
	actor, _ := identity.From(ctx)
	limited, cancel := context.WithTimeout(identity.With(context.WithoutCancel(ctx), actor), callTimeout)
	defer cancel()
	until := place(t.reached.Load())
	f.snap, f.err = t.shard.feed.cfg.Source.Snapshot(limited, t.session)
	f.snap.taken, f.snap.until = f.started, until
	t.shard.feed.metrics.snapshots.Inc()
}
