package feed

import (
	"context"
	"errors"
	"fmt"
	"time"

	"signalbox.dev/pkg/panics"
	"signalbox.dev/pkg/sse"
)

// Attach gives the viewer and its connection to the feed, which writes opening and then
// events as they arrive, until the followed run has ended. ended is called once, on any
// goroutine: with nil after the run's end, else with the reason why the connection was cut.
// The connection is closed by then. Attach returns when the viewer has caught up.
func (v *Viewer) Attach(c *Conn, opening []byte, ended func(error)) {
	t, f := v.topic, v.feed
	f.count(1)
	t.mu.Lock()
	v.conn, v.ended, v.owned, v.wake = c, ended, true, nil
	t.unlist(v)
	t.addToGroup(v)
	t.mu.Unlock()
	if !f.enter() {
		v.finish(ErrDraining)
		return
	}
	defer f.work.Done()
	v.contain(func() {
		buf, what := v.nextBatchLocked(append(make([]byte, room, 1<<10), opening...))
		v.catchUp(c.seal(buf, what == over), what == over)
	})
}

// contain calls f, which owns the viewer or has found that it may not. A panic cuts the
// stream, and the client resumes.
func (v *Viewer) contain(f func()) {
	if err := panics.Try(func() error { f(); return nil }); err != nil {
		t := v.topic
		v.feed.cfg.Log.ErrorContext(v.feed.life, "stream panicked", "session", t.session, "error", err)
		t.mu.Lock()
		gone := v.gone
		t.mu.Unlock()
		if !gone {
			v.finish(ErrLost)
		}
	}
}

// nextBatchLocked locks the topic and calls nextBatch.
func (v *Viewer) nextBatchLocked(buf []byte) (_ []byte, what outcome) {
	v.topic.locked(func() { buf, what = v.nextBatch(buf) })
	return buf, what
}

// Cut ends the stream of a viewer that is attached or is about to be. why is passed to
// ended. Cut does not block.
func (v *Viewer) Cut(why error) {
	t := v.topic
	t.mu.Lock()
	if v.cause == nil {
		v.cause = why
	}
	conn, owned := v.conn, v.owned
	v.owned = true
	t.mu.Unlock()
	switch {
	case conn == nil: // Attach will see the cause
	case owned:
		conn.interrupt() // the owner will see the cause
	default:
		v.finish(why)
	}
}

// turn writes new frames to the viewer without blocking; the worker calls it. If something
// would block, a goroutine takes over. With check set, turn also sends a heartbeat if one is
// due and checks whether the client has left.
func (v *Viewer) turn(p *pen, now time.Time, check bool) {
	t := v.topic
	t.mu.Lock()
	if v.owned || v.gone {
		t.mu.Unlock()
		return
	}
	v.owned = true
	t.mu.Unlock()
	for {
		buf, what := v.nextBatchLocked(p.empty())
		silent := len(buf) == room
		if silent && check && now.Sub(v.wrote) > v.feed.cfg.Heartbeat-v.feed.cfg.checkEvery() {
			buf = sse.AppendHeartbeat(buf)
		}
		rest, err := p.write(v.conn, buf, what == over)
		switch {
		case err != nil:
			v.finish(err)
			return
		case len(rest) > 0, what != over && what != everything && what != more:
			v.detach(rest, what == over)
			return
		case what == over:
			v.finish(nil)
			return
		}
		if len(buf) > room {
			v.wrote = now
		}
		if check && p.hasLeft(v.conn) {
			v.finish(ErrLeft)
			return
		}
		check = false
		t.mu.Lock()
		if why := v.why(); why != nil {
			t.mu.Unlock()
			v.finish(why)
			return
		}
		if what != more { // frames that arrived meanwhile queue another turn
			v.owned = false
			t.mu.Unlock()
			return
		}
		t.mu.Unlock()
	}
}

// why returns the reason to end the stream, or nil. The caller holds the topic's lock.
func (v *Viewer) why() error {
	if v.cause != nil {
		return v.cause
	}
	return v.topic.err
}

// detach continues in a new goroutine. rest is the part of the last write that the
// connection did not take.
func (v *Viewer) detach(rest []byte, isOver bool) {
	v.feed.metrics.catchUps.Inc()
	rest = append([]byte(nil), rest...)
	if !v.feed.start(func() { v.contain(func() { v.catchUp(rest, isOver) }) }) {
		v.finish(ErrDraining)
	}
}

// catchUp brings the viewer up to date and gives up its ownership, which the caller holds.
// It may block on the connection, the log and Postgres.
func (v *Viewer) catchUp(rest []byte, isOver bool) {
	t := v.topic
	var buf []byte
	var err error
	for {
		if len(rest) > 0 {
			if werr := v.conn.write(rest); werr != nil {
				v.finish(werr)
				return
			}
			v.wrote = time.Now()
		}
		if err != nil || isOver {
			v.finish(err)
			return
		}
		t.mu.Lock()
		if err = v.why(); err == nil && v.hasAll() {
			v.owned = false
			t.mu.Unlock()
			return
		}
		t.mu.Unlock()
		if err != nil {
			v.finish(err)
			return
		}
		if buf == nil {
			buf = make([]byte, room, 4<<10)
		}
		buf, isOver, err = v.collect(v.feed.life, buf[:room])
		rest = v.conn.seal(buf, isOver)
	}
}

// finish ends the stream. The caller owns the viewer, for the last time.
func (v *Viewer) finish(err error) {
	t, f := v.topic, v.feed
	t.mu.Lock()
	if why := v.why(); err != nil && why != nil {
		err = why
	}
	t.mu.Unlock()
	if errors.Is(err, context.Canceled) && f.life.Err() != nil {
		err = ErrDraining
	}
	t.remove(v)
	v.conn.close(err == nil)
	f.metrics.cut.WithLabelValues(reason(err)).Inc()
	v.ended(err)
	f.count(-1)
}

func left(err error) error { return fmt.Errorf("%w: %w", ErrLeft, err) }
