package feed

import (
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/runorder"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
)

// tail has the encoded events of a session from some event on, in canonical order: from the
// record and, after its end, from the log. It may begin before the wanted event. If neither has
// that event, the tail is the log, or its newest part.
type tail struct {
	from       Position // the wanted event
	need       need     // what it was read for
	frames     []*frame
	order      *runorder.Order
	until      place // the log's event that it ends with
	short      bool  // it exceeded the bounds: its beginning is missing, or all of it
	part       bool  // events are missing between it and the ring
	ahead      bool  // nothing was read: the event is not in the log yet
	unrecorded bool  // the record could not be read: events before those of the log may be missing
	err        error
}

// need says what a tail must have to be of use.
type need uint8

const (
	needKept  need = iota // the wanted event and those after it, as far as they are kept
	needEvent             // the wanted event, or else nothing
	needLater             // the events after the wanted one, which the viewer knows
)

// wanted is a request for a tail.
type wanted struct {
	from  Position
	need  need
	page  int       // this many bytes are enough; 0 for all
	since time.Time // the event was stored before
	actor identity.Actor
	c     chan tail // has capacity for it
}

// load sends a tail to w.c. One tail is read at a time and shared by all requests for events
// in it.
func (t *topic) load(w wanted) {
	if t.phase == closed {
		w.c <- tail{err: ErrLost}
		return
	}
	t.loads = append(t.loads, w)
	if len(t.loads) == 1 {
		t.startTail()
	}
}

// startTail reads the tail for the first request. It compares with the log first, because the
// wanted event may not have arrived here yet.
func (t *topic) startTail() {
	if t.reading || t.comparing > 0 || t.phase == closed {
		return
	}
	t.loads = slices.DeleteFunc(t.loads, t.refuse)
	if len(t.loads) == 0 {
		return
	}
	if !t.compared.After(t.loads[0].since) {
		t.compare(0, nil, 0) // comes back here
		return
	}
	t.reading = true
	b := tailBuilder{topic: t, generation: t.generation, head: t.head.seq, newest: t.newest}
	w := t.loads[0]
	t.start(func(ctx context.Context) {
		got := t.readTail(ctx, b, w)
		t.post(func() { t.applyTail(got) })
	})
}

// refuse answers a request for an event that is not in the log, and reports whether it did.
func (t *topic) refuse(w wanted) bool {
	p, _ := t.order.Progress(w.from.Run)
	if w.need != needEvent || p.Number < 0 || w.from.Number <= p.Number || !t.compared.After(w.since) {
		return false
	}
	w.c <- tail{from: w.from, ahead: true}
	return true
}

func (t *topic) readTail(ctx context.Context, begin tailBuilder, w wanted) tail {
	done, ok := t.shard.feed.tails.acquire(ctx, w.actor.Workspace)
	if !ok {
		return tail{err: ctx.Err()}
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	r := t.readRecord(ctx, w)
	for attempt := 0; ; attempt++ {
		b := begin
		b.now, b.final = time.Now(), attempt == compareAttempts-1
		b.got = tail{from: w.from, need: w.need, order: runorder.New(), until: placeOf(b.generation, b.head), unrecorded: r.failed}
		switch {
		case r.long:
			b.got.short = true
		case r.part:
			b.got.part = true
			b.addRecord(r, nil)
		case r.joined != 0:
			b.joinRing(r)
		default:
			b.got.err = b.joinLog(ctx, r)
		}
		if !errors.Is(b.got.err, errBehind) || b.final || pause(ctx, 20*time.Millisecond<<attempt) != nil {
			return b.got
		}
	}
}

// tailBuilder builds a tail.
type tailBuilder struct {
	topic            *topic
	generation, head uint64
	newest           runorder.Span // at the head
	now              time.Time
	final            bool // it is not tried again
	got              tail
	size             int
}

// joinRing builds a tail from the record, whose last event is in the ring.
func (b *tailBuilder) joinRing(r record) {
	last := r.events[len(r.events)-1]
	b.got.until, b.generation = r.joined, uint64(r.joined>>placeBits)
	var created *timestamppb.Timestamp
	if placeOf(b.generation, last.GetSequence()) == r.joined {
		created = last.GetStreamCreated()
	}
	b.addRecord(r, created)
}

// joinLog builds a tail from the record and the rest of the log.
func (b *tailBuilder) joinLog(ctx context.Context, r record) error {
	if len(r.events) > 0 {
		if done, err := b.continueRecord(ctx, r); done || err != nil {
			return err
		}
		// The log no longer has the record's last event, nor those before it: it is old, or the
		// stream was recreated.
		b.addRecord(r, nil)
	}
	reached := uint64(0)
	for st, err := range b.read(ctx, 0, b.head) {
		if err != nil {
			return err
		}
		b.addStored(st)
		reached = st.Seq
	}
	if reached < b.head {
		if err := b.behind(ctx); err != nil {
			return err
		}
	}
	b.addHole()
	return nil
}

// addHole adds a hole at the end if the tail does not reach the topic's newest event: the log
// was lost before everything was recorded. A topic that was opened at a zombie's event takes
// that for the newest until the run goes on; the tail then has a newer claim of the run.
func (b *tailBuilder) addHole() {
	p, _ := b.got.order.Progress(b.newest.Run)
	if b.newest.Run > 0 && p.Epoch <= b.newest.Epoch && p.Number < b.newest.Last {
		pos := Position{b.newest.Run, b.newest.Last}
		b.got.frames = append(b.got.frames, &frame{place: b.got.until, pos: pos, kind: hole, time: b.now})
	}
}

// behind returns errBehind, or nil when the head is too old to be in the log, or lost.
func (b *tailBuilder) behind(ctx context.Context) error {
	t := b.topic
	stream, err := t.shard.feed.cfg.Bus.Stream(ctx, t.stream)
	if err != nil || stream.First > b.head {
		return err
	}
	_, err = t.shard.feed.cfg.Bus.Last(ctx, t.stream, t.log)
	switch {
	case errors.Is(err, bus.ErrNotFound) && b.final:
		return nil
	case err != nil && !errors.Is(err, bus.ErrNotFound): // a replica of a young log may have nothing yet
		return err
	}
	return errBehind
}

// continueRecord reads the log from the record's last event on. It returns false if the log lacks that event.
func (b *tailBuilder) continueRecord(ctx context.Context, r record) (found bool, err error) {
	last := r.events[len(r.events)-1]
	seq, reached := last.GetSequence(), uint64(0)
	for st, err := range b.read(ctx, seq-1, max(seq, b.head)) {
		switch {
		case err != nil:
			return false, err
		case found:
			b.addStored(st)
		case st.Seq != seq || !isSame(st, last.GetEvent()):
			return false, nil
		default:
			found = true
			b.addRecord(r, last.GetStreamCreated())
		}
		reached = st.Seq
	}
	if found && reached < b.head {
		return false, errBehind
	}
	return found, nil
}

// errBehind means that the answering replica lags behind another one.
var errBehind = errors.New("the run log's replica is a little behind")

func isSame(st *bus.Stored, e *runv1.Event) bool {
	var stored runv1.Event
	return bus.DecodeInto(&st.Message, &stored) == nil &&
		stored.GetRunOrdinal() == e.GetRunOrdinal() && stored.GetEpoch() == e.GetEpoch() && stored.GetNumber() == e.GetNumber()
}

// addRecord adds the record's events. Events of the stream with this creation time have a place in
// the log; those after the head arrive as live events. Events of other streams precede the log.
func (b *tailBuilder) addRecord(r record, created *timestamppb.Timestamp) {
	for _, e := range r.events {
		at := place(0)
		if created != nil && sameTime(e, created) {
			if at = placeOf(b.generation, e.GetSequence()); at > b.got.until {
				return
			}
		}
		b.add(e.GetEvent(), at)
	}
}

func sameTime(e *agentv1.LoggedEvent, created *timestamppb.Timestamp) bool {
	c := e.GetStreamCreated()
	return c.GetSeconds() == created.GetSeconds() && c.GetNanos() == created.GetNanos()
}

func (b *tailBuilder) read(ctx context.Context, after, through uint64) func(func(*bus.Stored, error) bool) {
	b.topic.shard.feed.metrics.logReads.Inc()
	return b.topic.shard.feed.cfg.Bus.Read(ctx, b.topic.stream, b.topic.log, after, through)
}

func (b *tailBuilder) addStored(st *bus.Stored) {
	e := &runv1.Event{}
	if bus.DecodeInto(&st.Message, e) == nil { // an error was reported when it was live
		b.add(e, placeOf(b.generation, st.Seq))
	}
}

func (b *tailBuilder) add(e *runv1.Event, at place) {
	v, _ := b.got.order.Admit(spanOf(e))
	if v == runorder.Drop {
		return
	}
	if v == runorder.Gap {
		b.got.frames = append(b.got.frames, &frame{place: at, kind: hole, time: b.now})
	}
	if f := newFrame(b.topic.shard.feed.cfg.Dialect, e, at, b.now); f != nil {
		b.got.frames = append(b.got.frames, f)
		b.size += len(f.data)
	}
	for b.size > maxTailBytes || len(b.got.frames) > maxRead {
		b.got.short = true
		b.size -= len(b.got.frames[0].data)
		b.got.frames[0] = nil
		b.got.frames = b.got.frames[1:]
	}
}

// applyTail is the worker's part of load: it fills the ring as far as possible for further resuming
// viewers.
func (t *topic) applyTail(got tail) {
	t.reading = false
	if t.phase == closed {
		return // close has answered
	}
	if got.err == nil && !got.part {
		t.order.Learn(got.order)
		t.expectOpen(got.order, time.Now())
		t.locked(func() { t.ring.fill(t.ring.missing(got.frames, got.until)) })
	}
	t.answerLoads(got)
	t.startTail()
}

// answerLoads sends got to the requests that it satisfies. A tail for a viewer that knows the wanted
// event may begin after it: it is not for those that need the event. One for those may lack later events
// that only the record has: it is not for a viewer that knows the event.
func (t *topic) answerLoads(got tail) {
	waiting := t.loads
	t.loads = nil
	for _, w := range waiting {
		_, found := findFrame(got.frames, w.from)
		same := w.from == got.from && (w.need == needLater) == (got.need == needLater)
		if found || same || got.err != nil {
			w.c <- got
		} else {
			t.loads = append(t.loads, w)
		}
	}
}
