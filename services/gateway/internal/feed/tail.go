package feed

import (
	"context"
	"time"

	"signalbox.dev/pkg/bus"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
)

// tail is what the log holds of a session, in canonical order and encoded: all of
// it, or the newest part that is within the bounds.
type tail struct {
	frames []frame
	order  *order
	until  place // of the log's head when it was read
	err    error
}

// load has the log's tail sent to c, which has room for it. All who ask while it
// is being read share one reading. The log is compared first: what is asked for
// may be stored already and not yet have come here.
func (t *topic) load(c chan tail) {
	if t.phase == closed {
		c <- tail{err: ErrLost}
		return
	}
	t.loads = append(t.loads, c)
	if len(t.loads) == 1 && !t.looking {
		t.look(0, nil, 0)
	}
}

// startTail begins to read what load was asked for.
func (t *topic) startTail() {
	if t.reading || len(t.loads) == 0 || t.phase == closed {
		return
	}
	t.reading = true
	generation, head := t.generation, t.head
	t.shard.start(func(ctx context.Context) {
		got := t.readTail(ctx, generation, head)
		t.shard.post(func() { t.learnTail(got) })
	})
}

func (t *topic) readTail(ctx context.Context, generation, head uint64) tail {
	got := tail{order: newOrder(), until: placeOf(generation, head)}
	if head == 0 {
		return got
	}
	if !t.shard.feed.acquire(ctx) {
		return tail{err: ctx.Err()}
	}
	defer t.shard.feed.release()
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	t.shard.feed.metrics.logReads.Inc()
	now, size := time.Now(), 0
	for st, err := range t.shard.feed.cfg.Bus.Read(ctx, t.stream, t.log, 0, head) {
		if err != nil {
			return tail{err: err}
		}
		e := &runv1.Event{}
		if bus.DecodeInto(&st.Message, e) != nil {
			continue // reported when it was live
		}
		v := got.order.admit(e)
		if v == drop {
			continue
		}
		at := placeOf(generation, st.Seq)
		if v == passAfterHole {
			got.frames = append(got.frames, frame{place: at, kind: hole, time: now})
		}
		if f, ok := newFrame(t.shard.feed.cfg.Dialect, e, at, now); ok {
			got.frames = append(got.frames, f)
			size += len(f.data)
		}
		for size > maxTailBytes || len(got.frames) > maxRead {
			size -= len(got.frames[0].data)
			got.frames[0] = frame{}
			got.frames = got.frames[1:]
		}
	}
	return got
}

// learnTail is the worker's part of load: the ring gets what it has room for, so
// that the next one who comes back finds it there.
func (t *topic) learnTail(got tail) {
	t.reading = false
	if t.phase == closed {
		return // close has answered
	}
	if got.err == nil {
		t.order.learn(got.order)
		t.expectOpen(got.order, time.Now())
		t.mu.Lock()
		older := got.frames
		if len(t.ring.frames) > 0 {
			for len(older) > 0 && older[len(older)-1].place >= t.ring.frames[0].place {
				older = older[:len(older)-1]
			}
		}
		t.ring.fill(older)
		t.mu.Unlock()
	}
	for _, c := range t.loads {
		c <- got
	}
	t.loads = nil
}
