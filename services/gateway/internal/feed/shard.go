package feed

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/subject"
)

// shard is one worker and the topics it owns.
type shard struct {
	feed   *Feed
	in     chan *nats.Msg // shared by all its subscriptions; never closed
	do     chan func()    // what others hand to the worker
	topics map[string]*topic
	dirty  []*topic        // topics with frames that their viewers do not know of yet
	ctx    context.Context //nolint:containedctx // the worker's life, for the goroutines that it starts
}

const burst = 256 // messages that are taken before viewers are woken

func newShard(f *Feed) *shard {
	return &shard{feed: f, in: make(chan *nats.Msg, inbox), do: make(chan func(), 64), topics: map[string]*topic{}}
}

func (s *shard) run(ctx context.Context) {
	s.ctx = ctx
	tick := time.NewTicker(min(max(s.feed.cfg.Silence/6, 5*time.Millisecond), 250*time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			for _, t := range s.topics {
				t.close(ErrDraining)
			}
			s.wake()
			return
		case fn := <-s.do:
			fn()
		case m := <-s.in:
			s.receive(m)
			s.receiveMore()
		case now := <-tick.C:
			for _, t := range s.topics {
				t.sweep(now)
			}
		}
		s.wake()
	}
}

// post hands fn to the worker; false when it has ended.
func (s *shard) post(fn func()) bool {
	select {
	case s.do <- fn:
		return true
	case <-s.feed.stopped:
		return false
	}
}

// start runs fn, which may wait, outside the worker. Run waits for it.
func (s *shard) start(fn func(ctx context.Context)) {
	s.feed.work.Go(func() { fn(s.ctx) })
}

func (s *shard) receiveMore() {
	for range burst {
		select {
		case m := <-s.in:
			s.receive(m)
		default:
			return
		}
	}
}

func (s *shard) receive(m *nats.Msg) {
	t := s.topics[m.Subject]
	if t == nil {
		return // on its way when the topic was closed
	}
	st, err := bus.Republished(m)
	if err != nil {
		s.feed.cfg.Log.WarnContext(s.ctx, "live message not understood", "error", err)
		return
	}
	t.arrive(st)
}

// wake tells the viewers of topics with new frames.
func (s *shard) wake() {
	for i, t := range s.dirty {
		t.dirty = false
		t.mu.Lock()
		for v := range t.viewers {
			v.poke()
		}
		t.mu.Unlock()
		s.dirty[i] = nil
	}
	s.dirty = s.dirty[:0]
}

// join puts v into the session's topic, which is opened if need be.
func (s *shard) join(ctx context.Context, v *Viewer, ws id.Workspace, session id.Session) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	p := subject.Partition(session, s.feed.cfg.Partitions)
	live := subject.Live(p, ws, session)
	t := s.topics[live]
	if t == nil {
		t = newTopic(s, live, subject.Events(p, ws, session), subject.EventStream(p), session)
		sub, err := s.feed.cfg.Bus.SubscribeChan(live, s.in)
		if err != nil {
			return err
		}
		t.sub = sub
		s.topics[live] = t
		s.start(t.open)
	}
	v.topic = t
	t.emptySince = time.Time{}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.viewers[v] = struct{}{}
	s.feed.metrics.viewers.Inc()
	return nil
}

// lookAgain makes all topics compare with the log soon, spread a little.
func (s *shard) lookAgain() {
	now := time.Now()
	for _, t := range s.topics {
		t.nextLook = now.Add(rand.N(200 * time.Millisecond))
	}
}
