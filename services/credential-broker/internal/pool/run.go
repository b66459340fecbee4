package pool

import (
	"context"
	"time"

	"signalbox.dev/pkg/panics"
)

// Run exchanges what is learned with other instances and the store until ctx is done; then
// it writes once more and returns nil. What fails is tried again.
func (s *Set) Run(ctx context.Context) error {
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return nil
	}
	s.work.Add(1)
	s.mu.Unlock()
	defer s.work.Done()
	unsubscribe := s.subscribe(ctx)
	defer func() {
		if unsubscribe != nil {
			unsubscribe()
		}
	}()
	recorded := make(chan struct{})
	s.work.Go(func() {
		defer close(recorded)
		_ = panics.Supervise(ctx, s.cfg.Log, "usage records", func(ctx context.Context) error { s.recordAll(ctx); return nil })
	})
	announce, write, poll := time.NewTicker(announceEvery), time.NewTicker(s.cfg.WriteEvery), time.NewTicker(pollEvery)
	defer announce.Stop()
	defer write.Stop()
	defer poll.Stop()
	// In the background, so that a slow database does not keep the bus waiting.
	polling, writing := make(chan struct{}, 1), make(chan struct{}, 1)
	startPoll := func() { s.background(ctx, polling, "pool changes", s.poll) }
	startWrite := func() { s.background(context.WithoutCancel(ctx), writing, "pool state", s.write) }
	startPoll()
	for {
		select {
		case <-announce.C:
			panics.Contain(ctx, s.cfg.Log, "pool announcements", func() {
				if unsubscribe == nil {
					unsubscribe = s.subscribe(ctx)
					s.missed.Store(unsubscribe != nil)
				}
				s.catchUp(ctx)
				s.announce(ctx)
			})
		case ws := <-s.dropped:
			panics.Contain(ctx, s.cfg.Log, "pool announcements", func() { s.announceDropped(ctx, ws) })
		case <-poll.C:
			startPoll()
		case <-s.pollNow:
			startPoll()
		case <-write.C:
			startWrite()
		case <-s.parked:
			startWrite()
		case <-ctx.Done():
			ctx := context.WithoutCancel(ctx)
			writing <- struct{}{}
			<-recorded
			s.announce(ctx)
			s.recordLast(ctx)
			s.write(ctx) // a batch that failed before
			s.write(ctx) // and what came since
			return nil
		}
	}
}

// background starts fn, unless it is running: busy, with room for one, is full then.
func (s *Set) background(ctx context.Context, busy chan struct{}, what string, fn func(context.Context)) {
	select {
	case busy <- struct{}{}:
		s.work.Go(func() {
			panics.Contain(ctx, s.cfg.Log, what, func() { fn(ctx) })
			<-busy
		})
	default:
	}
}
