package feed

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/panics"
	"signalbox.dev/pkg/subject"
)

// shard is one worker, the topics it owns, and the groups that it writes to.
type shard struct {
	feed   *Feed
	index  int
	in     chan *nats.Msg // shared by all its subscriptions; never closed
	do     chan func()    // functions for the worker to call
	wake   chan struct{}  // capacity 1: another worker has queued something
	topics map[string]*topic
	dirty  []*topic // topics with frames that are not announced yet
	pen    *pen
	batch  []*Viewer // scratch: the viewers of the current group

	mu      sync.Mutex // guards the rest
	queue   []*group   // groups with frames to write
	resting []*group   // groups with frames to write after their rest
	checks  []*group   // groups to check when there is nothing to write
	queued  int        // the number of served groups of queue
	checked int        // the number of removed groups of checks
	turns   int
}

const (
	burst   = 256 // messages received before the next write to viewers
	share   = 8   // one in this many turns checks connections even if there are frames to write
	maxLook = time.Second
)

func newShard(f *Feed, index int) *shard {
	return &shard{
		feed: f, index: index, in: make(chan *nats.Msg, inbox), do: make(chan func(), 64), wake: make(chan struct{}, 1),
		topics: map[string]*topic{}, pen: newPen(),
	}
}

// checkEvery is the interval at which each connection is checked: whether its client has left, a
// heartbeat is due, or it must end.
func (c *Config) checkEvery() time.Duration {
	return min(max(c.Heartbeat/8, 5*time.Millisecond), maxLook)
}

func (s *shard) run() {
	cfg := &s.feed.cfg
	tick := time.NewTicker(min(max(cfg.Silence/6, 5*time.Millisecond), 250*time.Millisecond, cfg.checkEvery()))
	defer tick.Stop()
	rest := time.NewTimer(time.Hour)
	defer rest.Stop()
	draining := s.feed.draining
	always := make(chan struct{})
	close(always)
	for {
		var ready <-chan struct{}
		queued, resting := s.waiting()
		if queued {
			ready = always
		} else if resting > 0 {
			rest.Reset(resting)
		}
		select {
		case <-ready:
		case <-rest.C:
		case <-s.wake:
		case <-s.feed.life.Done():
			for _, t := range s.topics {
				t.close(ErrDraining)
			}
			s.announce()
			return
		case fn := <-s.do:
			panics.Contain(s.feed.life, cfg.Log, "feed worker", fn)
		case m := <-s.in:
			s.receive(m)
		case now := <-tick.C:
			for _, t := range s.topics {
				t.contain(func() {
					t.sweep(now)
					if draining == nil {
						t.drain(now)
					}
				})
			}
		case <-draining:
			draining = nil
			tick.Reset(max(cfg.DrainWindow/100, time.Millisecond))
		}
		s.receiveMore()
		s.announce()
		s.serveNext()
	}
}

// post makes the worker call fn. It returns false if the worker has ended.
func (s *shard) post(fn func()) bool {
	select {
	case s.do <- fn:
		return true
	case <-s.feed.life.Done():
		return false
	}
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
		return // in transit when the topic was closed
	}
	st, err := bus.Republished(m)
	if err != nil {
		s.feed.cfg.Log.WarnContext(s.feed.life, "live message not understood", "error", err)
		return
	}
	t.contain(func() { t.arrive(st) })
}

// announce announces new frames: it wakes viewers with a goroutine, and queues groups with their
// workers.
func (s *shard) announce() {
	for i, t := range s.dirty {
		t.dirty = false
		t.mu.Lock()
		for _, v := range t.viewers {
			v.poke()
		}
		for _, g := range t.groups {
			g.enqueue(s, false)
		}
		t.mu.Unlock()
		s.dirty[i] = nil
	}
	s.dirty = s.dirty[:0]
}

// waiting queues the groups whose rest is over. It reports whether a group waits for the worker and,
// if none does, how long the first one still rests, 0 if none does.
func (s *shard) waiting() (queued bool, resting time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.resting) > 0 {
		resting = s.queueRested(time.Now())
	}
	return len(s.queue) > 0 || len(s.checks) > 0, resting
}

// queueRested queues the groups whose rest is over, and returns how long the first of the others
// still rests. The lock is held.
func (s *shard) queueRested(now time.Time) time.Duration {
	next := time.Duration(0)
	s.resting = slices.DeleteFunc(s.resting, func(g *group) bool {
		left := g.rests.Sub(now)
		if left <= 0 {
			s.queue = append(s.queue, g)
			return true
		}
		if next == 0 || left < next {
			next = left
		}
		return false
	})
	return next
}

// serveNext serves one group. Between two groups the worker receives what has arrived, so that it is
// written at once.
func (s *shard) serveNext() {
	s.mu.Lock()
	var g *group
	s.turns++
	check := len(s.queue) == 0 || len(s.checks) > 0 && s.turns%share == 0
	if check {
		if g = pop(&s.checks, &s.checked); g != nil {
			g.isCheckQueued = false
		}
	} else {
		g = pop(&s.queue, &s.queued)
		g.isQueued = false
	}
	s.mu.Unlock()
	if g != nil {
		s.serve(g, check)
	}
}

// pop removes the first group of a list, of which done were removed before.
func pop(list *[]*group, done *int) *group {
	l := *list
	if len(l) == 0 {
		return nil
	}
	g := l[*done]
	l[*done] = nil
	*done++
	if *done == len(l) || *done >= 256 && *done > len(l)/2 {
		n := copy(l, l[*done:])
		clear(l[n:])
		*list, *done = l[:n], 0
	}
	return g
}

func (s *shard) serve(g *group, check bool) {
	t := g.topic
	t.mu.Lock()
	s.batch = append(s.batch[:0], g.viewers...)
	t.mu.Unlock()
	now := time.Now()
	if !check {
		s.mu.Lock()
		g.rests = now.Add(s.feed.cfg.rest(len(s.batch)))
		s.mu.Unlock()
	}
	for _, v := range s.batch {
		v.contain(func() { v.turn(s.pen, now, check) })
	}
	clear(s.batch)
	s.pen.settle(s.feed.metrics)
}

// join adds v to the session's topic, which it opens if necessary.
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
		t.start(t.open)
	}
	v.topic = t
	t.emptySince = time.Time{}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.add(v)
	v.setPosition(t.ring.end())
	s.feed.metrics.viewers.Inc()
	return nil
}

// compareAll makes all topics compare with the log soon, spread over a short time.
func (s *shard) compareAll() {
	now := time.Now()
	for _, t := range s.topics {
		t.reconnected, t.nextComparison, t.nextSweep = now, now.Add(s.feed.jitter(200*time.Millisecond)), now
	}
}
