package feed

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/panics"
	"signalbox.dev/pkg/runorder"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
)

// phase is the state of a topic; see the package comment.
type phase uint8

const (
	opening phase = iota
	flowing
	repairing
	closed
)

// Bounds of the live events held while the log is read. Others are dropped and found as a gap
// later.
const (
	maxHeld      = 4096
	maxHeldBytes = 8 << 20
	maxPending   = 32 // runs whose end is expected
)

// topic is a session that has viewers on this gateway.
type topic struct {
	shard   *shard
	session id.Session
	live    string // subject of its live events
	log     string // subject of its stored events
	stream  string
	opened  chan struct{} // closed when the topic has left opening

	// The worker's own.
	sub            *bus.Subscription
	phase          phase
	generation     uint64        // number of times that the stream was recreated
	head           mark          // the newest processed event
	newest         runorder.Span // the log's newest canonical event; at first the newest, which may be a zombie's
	begun          int64         // the newest run with a runner
	order          *runorder.Order
	held           []*bus.Stored // live events, held during a repair
	heldBytes      int
	comparing      int       // comparisons with the log in progress
	repairs        uint64    // number of repairs that were begun
	failingSince   time.Time // when reads of the log began to fail; zero if they work
	loads          []wanted  // requests for tails
	reading        bool      // a tail is being read
	pending        map[int64]*pendingRun
	compared       time.Time // when the last successful comparison was begun
	reconnected    time.Time // when the bus last reconnected
	nextComparison time.Time
	nextSweep      time.Time
	emptySince     time.Time
	dirty          bool

	reached atomic.Uint64 // the head's place, for any goroutine

	// The head when the topic was opened. They are set before opened is closed.
	first     Position
	firstEnds bool // it is a run's end

	mu      sync.Mutex // guards what follows
	err     error      // why the topic is closed
	ring    ring
	viewers []*Viewer // not attached: a goroutine serves each
	groups  []*group  // the attached ones

	snapshots snapshots
}

// pendingRun is a run whose end is expected.
type pendingRun struct {
	id      string
	moved   time.Time // time of its newest event
	nextAsk time.Time
	ended   time.Time // when its row first said that it has ended
}

func newTopic(s *shard, live, log, stream string, session id.Session) *topic {
	return &topic{
		shard: s, session: session, live: live, log: log, stream: stream,
		opened: make(chan struct{}), order: runorder.New(), pending: map[int64]*pendingRun{},
		ring: newRing(s.feed.cfg.RingFrames, s.feed.cfg.RingBytes),
	}
}

func (t *topic) place(seq uint64) place { return placeOf(t.generation, seq) }

// mark identifies an event by sequence and time. The time distinguishes it from an event with
// the same sequence in another stream, or in a stream that has lost its end. The zero mark is
// before all events.
type mark struct {
	seq  uint64
	time time.Time
}

func markOf(st *bus.Stored) mark { return mark{st.Seq, st.Time} }

// is reports whether st is the marked event.
func (m mark) is(st *bus.Stored) bool { return m.seq == st.Seq && m.time.Equal(st.Time) }

func (t *topic) setHead(m mark) {
	t.head = m
	t.reached.Store(uint64(t.place(m.seq)))
}

// behindFirst returns the index after the topic's first head, if p is that event and the end
// of a run. A viewer of an idle session thus resumes without a read. The lock is held.
func (t *topic) behindFirst(p Position) (index uint64, ok bool) {
	return firstIndex, t.firstEnds && p == t.first && t.ring.first <= firstIndex
}

// arrive processes a live event.
func (t *topic) arrive(st *bus.Stored) {
	switch t.phase {
	case opening, repairing:
		t.hold(st)
	case flowing:
		t.take(st)
	case closed:
	}
}

func (t *topic) hold(st *bus.Stored) {
	if len(t.held) >= maxHeld || t.heldBytes+len(st.Data) > maxHeldBytes {
		return
	}
	t.held = append(t.held, st)
	t.heldBytes += len(st.Data)
}

// take processes a live event in the state flowing.
func (t *topic) take(st *bus.Stored) {
	head := t.head.seq
	switch {
	case st.Prev > head:
		t.shard.feed.metrics.gaps.Inc()
		t.repair(st, st.Prev)
	case st.Seq <= head:
		// The event was delivered twice, or the stream was recreated.
		if e, ok := t.decode(st); !ok || t.order.Seen(spanOf(e)) {
			return
		}
		t.repair(st, something)
	case st.Prev < head, !t.compared.After(t.reconnected):
		// The head is no longer in the log: it is old, or the stream was recreated. Or events
		// may have been missed before a reconnect.
		t.repair(st, something)
	default:
		e, ok := t.decode(st)
		if v, _ := t.order.Judge(spanOf(e)); ok && v == runorder.Gap {
			t.repair(st, something) // the head may be of a stream that was lost
			return
		}
		t.setHead(markOf(st))
		if ok {
			t.pushStored(st, e)
		}
	}
}

// something requires a read to return at least one event.
const something = 1

// repair holds live events until the log was read up to want.
func (t *topic) repair(st *bus.Stored, want uint64) {
	t.phase = repairing
	t.repairs++
	t.hold(st)
	t.compare(want, nil, 0)
}

func (t *topic) decode(st *bus.Stored) (*runv1.Event, bool) {
	e := &runv1.Event{}
	if err := bus.DecodeInto(&st.Message, e); err != nil {
		t.shard.feed.cfg.Log.WarnContext(t.shard.feed.life, "event not understood", "subject", t.log, "sequence", st.Seq, "error", err)
		return nil, false
	}
	return e, true
}

// push appends the log's next event to the ring.
func (t *topic) push(st *bus.Stored) {
	if e, ok := t.decode(st); ok {
		t.pushStored(st, e)
	}
}

func (t *topic) pushStored(st *bus.Stored, e *runv1.Event) {
	// The clock of the NATS server may be ahead of this one.
	t.shard.feed.metrics.delay.Observe(max(0, time.Since(st.Time).Seconds()))
	t.pushEvent(e, t.place(st.Seq), false)
}

func (t *topic) pushEvent(e *runv1.Event, at place, synthetic bool) {
	v, _ := t.order.Admit(spanOf(e))
	if v == runorder.Drop {
		t.shard.feed.metrics.dropped.Inc()
		return
	}
	run := e.GetRunOrdinal()
	if v == runorder.Unknown && e.GetNumber() > 0 && e.GetEpoch() > 0 && t.newest.Run == 0 {
		v = runorder.Gap // the log was empty when the topic was opened
	}
	now := time.Now()
	// A queued run that is cancelled has events too, in the middle of the active run.
	late := synthetic && run < t.begun
	if e.GetEpoch() > 0 {
		t.begun = max(t.begun, run)
	}
	if !synthetic {
		t.newest = spanOf(e)
	}
	t.track(e, now)
	f := newFrame(t.shard.feed.cfg.Dialect, e, at, now)
	t.locked(func() {
		if v == runorder.Gap {
			t.ring.push(&frame{place: at, synthetic: synthetic, kind: hole, time: now})
		}
		if f != nil {
			f.synthetic, f.late = synthetic, late
			t.ring.push(f)
		}
	})
	t.shard.feed.metrics.frames.Inc()
	t.touch()
}

// contain calls f, which concerns this topic only. A panic closes the topic; its viewers
// resume and open it again.
func (t *topic) contain(f func()) {
	if err := panics.Try(func() error { f(); return nil }); err != nil {
		t.shard.feed.cfg.Log.ErrorContext(t.shard.feed.life, "session feed panicked", "session", t.session, "error", err)
		t.close(ErrLost)
	}
}

// post makes the worker call fn. It returns false if the worker has ended.
func (t *topic) post(fn func()) bool { return t.shard.post(func() { t.contain(fn) }) }

// start runs fn, which may block, outside the worker.
func (t *topic) start(fn func(ctx context.Context)) {
	f := t.shard.feed
	f.start(func() { // if the feed has stopped, nothing waits for fn
		if err := panics.Try(func() error { fn(f.life); return nil }); err != nil {
			t.post(func() { panic(err) })
		}
	})
}

// locked calls f with the lock held.
func (t *topic) locked(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f()
}

// touch makes the worker announce new frames.
func (t *topic) touch() {
	if !t.dirty {
		t.dirty = true
		t.shard.dirty = append(t.shard.dirty, t)
	}
}

// track updates the runs whose end is expected.
func (t *topic) track(e *runv1.Event, now time.Time) {
	n := e.GetRunOrdinal()
	if isEnd(e) {
		delete(t.pending, n)
		return
	}
	if p := t.pending[n]; p != nil {
		p.moved = now
		return
	}
	t.expect(n, e.GetRunId(), now)
}

// expect adds a run whose end is expected.
func (t *topic) expect(ordinal int64, run string, now time.Time) {
	if p, _ := t.order.Progress(ordinal); p.Ended {
		return
	}
	if t.pending[ordinal] == nil && len(t.pending) < maxPending {
		t.pending[ordinal] = &pendingRun{id: run, moved: now}
		t.nextSweep = now
	}
}

// sweep checks the topic's timeouts: no viewers, silent runs, the periodic comparison.
func (t *topic) sweep(now time.Time) {
	if t.phase == opening || t.phase == closed || now.Before(t.nextSweep) {
		return
	}
	cfg := &t.shard.feed.cfg
	if len(t.pending) == 0 { // nothing is urgent
		t.nextSweep = now.Add(min(cfg.Silence/2, cfg.Idle/2, cfg.Linger, cfg.checkEvery()))
	}
	t.mu.Lock()
	watched := t.watched()
	for _, g := range t.groups {
		if now.After(g.nextCheck) {
			g.nextCheck = now.Add(cfg.checkEvery())
			g.enqueue(t.shard, true)
		}
	}
	t.mu.Unlock()
	if !watched {
		if t.emptySince.IsZero() {
			t.emptySince = now
		}
		if now.Sub(t.emptySince) >= cfg.Linger {
			t.close(ErrLost)
		}
		return
	}
	t.emptySince = time.Time{}
	if t.comparing > 0 {
		return
	}
	if ask := t.due(now); len(ask) > 0 || now.After(t.nextComparison) {
		t.nextComparison = now.Add(cfg.Idle/2 + t.shard.feed.jitter(cfg.Idle))
		t.compare(0, ask, 0)
	}
}

// due returns the silent runs to look up, by ordinal.
func (t *topic) due(now time.Time) map[int64]string {
	var ask map[int64]string
	cfg := &t.shard.feed.cfg
	for n, p := range t.pending {
		if now.Sub(p.moved) < cfg.Silence || now.Before(p.nextAsk) || len(ask) >= 8 {
			continue
		}
		if ask == nil {
			ask = map[int64]string{}
		}
		ask[n] = p.id
		p.nextAsk = now.Add(cfg.Pace)
	}
	return ask
}

// close closes the topic and cuts its viewers.
func (t *topic) close(why error) {
	if t.phase == closed {
		return
	}
	t.mu.Lock()
	t.err = why
	t.ring = newRing(0, 0)
	all := t.attached()
	t.mu.Unlock()
	if !isClosed(t.opened) {
		close(t.opened)
	}
	t.phase = closed
	t.held, t.pending = nil, nil
	delete(t.shard.topics, t.live)
	if err := t.sub.Unsubscribe(); err != nil {
		t.shard.feed.cfg.Log.DebugContext(t.shard.feed.life, "unsubscribe", "error", err) // the connection is closed
	}
	t.answerLoads(tail{err: why})
	t.touch()
	for _, v := range all {
		v.Cut(why)
	}
}
