package proxy

import (
	"errors"
	"io"
	"time"

	"signalbox.dev/services/credential-broker/internal/pool"
)

// gate reads until an event is meaningful, the time or the size limit is reached, or the
// stream ends. It returns nil if the answer is to be delivered or, depending on its reason,
// discarded; a refusal if the stream ended before it began.
func (r *relay) gate() *refusal {
	x := r.a.x
	r.a.reason = pool.OK
	r.a.watch.start(&x.p.waits.firstEvent)
	if r.rules == nil {
		return nil // nothing is known about its events: no reason to hold them back
	}
	r.gateTime = time.AfterFunc(x.p.cfg.Timers.Gate, r.expire)
	defer r.gateTime.Stop()
	for {
		n, err := r.fill()
		if more, refused := r.weigh(n, err); !more {
			x.p.metrics.gate.WithLabelValues(x.label).Observe(time.Since(r.since).Seconds())
			return refused
		}
	}
}

// weigh examines what was read while the gate is shut, and reports whether to read more.
func (r *relay) weigh(n int, err error) (more bool, _ *refusal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := &r.frames
	r.took(n)
	r.read = err
	r.decided = true
	if r.opened {
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
			return false, nil
		}
	}
	if err != nil {
		return false, r.neverBegan(err)
	}
	r.decided = f.end >= r.a.x.p.cfg.Limits.Gate || !f.room(0)
	return !r.decided, nil
}

// neverBegan handles a stream that ended while the gate was shut: nothing was shown, so the
// caller gets an error with a status. What is left without a blank line may still be an event.
func (r *relay) neverBegan(err error) *refusal {
	if errors.Is(err, io.EOF) {
		if _, ok := r.plain(); ok {
			return nil // copy delivers it
		}
		rest := r.frames
		if ev := rest.rest(); isWhole(ev) {
			v := judge(r.rules, ev, true)
			if v&failure != 0 {
				r.blame(ev)
			}
			if v != 0 {
				return nil // finish judges and delivers it
			}
		}
		err = io.ErrUnexpectedEOF
	}
	return r.a.unanswered(err)
}

// expire opens the gate because its time is up, so that the caller sees that there is an
// answer. It runs on the timer's goroutine.
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
		r.a.watch.cancel(r.gateErr) // ends the read that is waiting
	}
}
