package proxy

import (
	"errors"
	"io"
	"time"

	"signalbox.dev/services/credential-broker/internal/pool"
)

// gate reads until an event means something, the time or the size of what is held
// back is up, or the stream ends. It returns nil when the answer is to be
// delivered or, for the answer's reason, thrown away; a refusal when the stream
// ended before it began.
func (r *relay) gate() *refusal {
	r.a.reason = pool.OK
	if r.rules == nil {
		r.a.watch.enter(r.a.x.p.cfg.Timers.FirstEvent, &errFirstEvent)
		return nil // nothing is known of its events: nothing to hold back for
	}
	x := r.a.x
	r.a.watch.enter(x.p.cfg.Timers.FirstEvent, &errFirstEvent)
	r.gateTime = time.AfterFunc(x.p.cfg.Timers.Gate, r.expire)
	defer r.gateTime.Stop()
	for {
		n, err := r.fill()
		if more, refused := r.weigh(n, err); !more {
			x.p.metrics.of(x.label).gate.Observe(time.Since(r.since).Seconds())
			return refused
		}
	}
}

// weigh looks at what was read while the gate is shut and reports whether to go
// on reading.
func (r *relay) weigh(n int, err error) (more bool, _ *refusal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := &r.frames
	r.took(n)
	r.read = err
	if r.opened {
		r.decided = true
		return false, nil
	}
	for {
		ev, ok := r.next()
		if !ok {
			break
		}
		v := r.judge(ev, true)
		r.met |= v
		r.count(ev)
		if v != 0 {
			r.decided = true
			return false, nil
		}
	}
	if err != nil {
		r.decided = true
		return false, r.neverBegan(err)
	}
	if f.end >= r.a.x.p.cfg.Limits.Gate || !f.room(0) {
		r.decided = true
		return false, nil
	}
	return true, nil
}

// neverBegan is for a stream that ended while the gate was shut: nothing was
// shown, so the caller gets an error with a status. What is left without a blank
// line may still be an event.
func (r *relay) neverBegan(err error) *refusal {
	x := r.a.x
	if errors.Is(err, io.EOF) {
		if _, ok := r.plain(); ok {
			return nil // copy shows it
		}
		rest := r.frames
		if ev := rest.rest(); isWhole(ev) {
			v := judge(r.rules, ev, true)
			if v&failure != 0 {
				r.blame(ev)
			}
			if v != 0 {
				return nil // finish judges it, and shows it
			}
		}
		err = io.ErrUnexpectedEOF
	}
	return x.upstreamFailed(r.a.ctx, err)
}

// expire opens the gate because its time is up: the caller shall see that there
// is an answer. It runs on the timer's goroutine.
func (r *relay) expire() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.decided {
		return
	}
	r.opened = true
	r.a.begin()
	r.gateErr = r.a.x.write(r.frames.buf[:r.frames.done])
	r.shown = r.frames.done
	if r.gateErr != nil {
		r.a.cancel(r.gateErr) // the read that waits shall not wait for nobody
	}
}
