package feed

import (
	"context"
	"errors"
	"fmt"
	"time"

	"signalbox.dev/pkg/panics"
	"signalbox.dev/pkg/sse"
)

// Hand gives the viewer and its connection to the feed, which writes opening, then
// events as they come, until the run that is followed has ended. ended is called
// once, by any goroutine: with nil after that end, else with why the connection was
// cut. Then both are gone. Hand returns when the viewer has what there is by now:
// from then on it needs no goroutine.
func (v *Viewer) Hand(c *Conn, opening []byte, ended func(error)) {
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
		buf, what := v.gatherLocked(append(make([]byte, room, 1<<10), opening...))
		v.pursue(c.seal(buf, what == over), what == over)
	})
}

// contain calls f, which owns the viewer or has found that it must not. A panic cuts the
// stream: the client comes back.
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

// gatherLocked is gather for a caller who does not hold the topic's lock.
func (v *Viewer) gatherLocked(buf []byte) (_ []byte, what outcome) {
	v.topic.locked(func() { buf, what = v.gather(buf) })
	return buf, what
}

// Cut ends the stream of a viewer that was handed over, or that will be. why is
// given to ended. It does not wait.
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
	case conn == nil: // Hand finds out why
	case owned:
		conn.interrupt() // and so does its owner
	default:
		v.finish(why)
	}
}

// turn is a worker's: it writes what is new to a viewer, without waiting. What
// would have to wait is left to a goroutine. With look it sees to it that the
// viewer is there, and hears from us.
func (v *Viewer) turn(p *pen, now time.Time, look bool) {
	t := v.topic
	t.mu.Lock()
	if v.owned || v.gone {
		t.mu.Unlock()
		return
	}
	v.owned = true
	t.mu.Unlock()
	for {
		buf, what := v.gatherLocked(p.clean())
		silent := len(buf) == room
		if silent && look && now.Sub(v.wrote) > v.feed.cfg.Heartbeat-v.feed.cfg.lookEvery() {
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
		if look && p.hasLeft(v.conn) {
			v.finish(ErrLeft)
			return
		}
		look = false
		t.mu.Lock()
		if why := v.why(); why != nil {
			t.mu.Unlock()
			v.finish(why)
			return
		}
		if what != more { // what came meanwhile has another turn
			v.owned = false
			t.mu.Unlock()
			return
		}
		t.mu.Unlock()
	}
}

// why returns why the stream is to end, nil when it is not. The topic's lock is held.
func (v *Viewer) why() error {
	if v.cause != nil {
		return v.cause
	}
	return v.topic.err
}

// detach goes on in a goroutine of its own. rest is what the viewer has got only
// the beginning of.
func (v *Viewer) detach(rest []byte, isOver bool) {
	v.feed.metrics.catchUps.Inc()
	rest = append([]byte(nil), rest...)
	if !v.feed.start(func() { v.contain(func() { v.pursue(rest, isOver) }) }) {
		v.finish(ErrDraining)
	}
}

// pursue brings a viewer up to date, waiting for its connection, for the log and
// for Postgres, and then lets go of it. The caller owns it.
func (v *Viewer) pursue(rest []byte, isOver bool) {
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

// finish ends the stream. The caller owns the viewer, and nobody will after it.
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
