package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"signalbox.dev/services/credential-broker/internal/dialect"
	"signalbox.dev/services/credential-broker/internal/pool"
	"signalbox.dev/services/credential-broker/internal/profile"
)

// withheld are headers of an answer that end at the proxy: the hop's own, and
// those that speak of the provider's host and would be taken to speak of ours.
var withheld = [...]string{
	"Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authenticate", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
	"Set-Cookie", "Alt-Svc", "Strict-Transport-Security",
}

// begin tells the caller status and headers.
func (a *answer) begin() {
	x := a.x
	h := x.w.Header()
	secret := x.account.Secret.Reveal()
	for name, values := range a.res.Header {
		if slices.Contains(withheld[:], name) {
			continue
		}
		if len(secret) >= 8 && slices.ContainsFunc(values, func(v string) bool { return strings.Contains(v, secret) }) {
			continue
		}
		h[name] = values
	}
	for _, line := range a.res.Header["Connection"] {
		for name := range strings.SplitSeq(line, ",") {
			h.Del(strings.TrimSpace(name))
		}
	}
	if a.relay != nil {
		h.Del("Content-Length") // an error event may have to follow
	}
	if _, ok := h["Date"]; !ok {
		h["Date"] = nil // the provider sent none, so we send none
	}
	x.status = a.res.StatusCode
	x.extendDeadline()
	x.w.WriteHeader(a.res.StatusCode)
}

// deliver shows the answer to the caller, to its end.
func (x *exchange) deliver(a *answer) {
	defer a.discard()
	x.releaseBody()
	if a.relay != nil {
		x.p.metrics.open.WithLabelValues(x.label).Inc()
		defer x.p.metrics.open.WithLabelValues(x.label).Dec()
		a.relay.run()
		return
	}
	a.begin()
	switch {
	case a.res.StatusCode >= 500:
		x.outcome = outcomeServerError
	case a.res.StatusCode >= 400:
		x.outcome = outcomeClientError
	default:
		x.outcome = outcomeOK
	}
	if err := a.copyPlain(); err != nil {
		if cause := context.Cause(a.ctx); cause != nil {
			err = cause
		}
		x.breakOff(err)
	}
	x.report(a.reason, a.res)
}

// copyPlain copies a body that is no event stream. One of unknown length is
// flushed as it comes.
func (a *answer) copyPlain() error {
	x := a.x
	if len(a.head) > 0 {
		if err := x.write(a.head); err != nil {
			return err
		}
	}
	b := x.p.buffers.Get().(*[]byte)
	defer x.p.buffers.Put(b)
	for {
		a.watch.enter(x.p.cfg.Timers.Idle, &errIdle)
		n, err := a.res.Body.Read(*b)
		a.watch.pause()
		if n > 0 {
			if werr := x.write((*b)[:n]); werr != nil {
				return werr
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// relay forwards one event stream.
type relay struct {
	a     *answer
	rules *profile.Stream
	src   io.Reader

	frames frames
	pooled *[]byte
	shown  int  // buf[:shown] was written to the caller
	seen   bool // the first event came: from now on the idle time counts

	met  verdict // all that was met: finished, terminal, failure
	late verdict // of an overlong event: counts when it is whole
	read error   // how the source ended

	began time.Time

	mu       sync.Mutex // while the gate is shut: guards opened, decided, gateErr, frames but for buf[end:], and the exchange's writer
	opened   bool
	decided  bool
	gateErr  error // from writing what the gate let through
	gateTime *time.Timer
}

func newRelay(a *answer) *relay {
	b := a.x.p.buffers.Get().(*[]byte)
	return &relay{a: a, rules: a.route.Stream, src: a.res.Body, pooled: b, frames: frames{buf: *b}, began: time.Now()}
}

// release gives the buffer back, once.
func (r *relay) release() {
	if r.pooled == nil {
		return
	}
	if len(r.frames.buf) <= keepBuffer {
		*r.pooled = r.frames.buf
	}
	r.a.x.p.buffers.Put(r.pooled)
	r.pooled, r.frames.buf = nil, nil
}

// fill reads once. Bytes that came with an error count first.
func (r *relay) fill() (int, error) {
	t := &r.a.x.p.cfg.Timers
	switch {
	case r.met&terminal != 0:
		r.a.watch.enter(min(t.Last, t.Idle), &errIdle)
	case r.seen:
		r.a.watch.enter(t.Idle, &errIdle)
	}
	n, err := r.src.Read(r.frames.buf[r.frames.end:])
	if r.seen {
		r.a.watch.pause()
	}
	return n, err
}

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
			x.p.metrics.observe(x.p.metrics.gate, x.label, time.Since(r.began))
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
	f.end += n
	r.read = err
	if r.opened {
		r.decided = true
		return false, nil
	}
	for {
		ev, ok := f.next()
		if !ok {
			break
		}
		r.seen = r.seen || ev.hasData
		v := judge(r.rules, ev, true)
		r.met |= v
		if v&failure != 0 {
			failed, _ := dialect.Read(ev.data)
			r.a.reason = pool.ClassifyEvent(failed)
		}
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
		rest := r.frames
		if ev := rest.rest(); isWhole(ev) && judge(r.rules, ev, true) != 0 {
			return nil
		}
		err = io.ErrUnexpectedEOF
	}
	if x.ctx.Err() != nil {
		x.report(pool.Cancelled, r.a.res)
		return x.gone(err)
	}
	x.report(pool.Unreachable, r.a.res)
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

// run opens the gate, unless its time did, and copies to the end.
func (r *relay) run() {
	x := r.a.x
	x.outcome = outcomeOK
	if !r.opened {
		r.opened = true
		r.a.begin()
	}
	err := r.gateErr
	if err == nil {
		err = r.copy()
	}
	reason := r.a.reason
	if err != nil {
		x.breakOff(err)
		if reason == pool.OK {
			reason = pool.Unreachable
			if x.lost || x.ctx.Err() != nil {
				reason = pool.Cancelled
			}
		}
	}
	x.report(reason, r.a.res)
}

// breakOff marks an answer that has begun and must not end cleanly.
func (x *exchange) breakOff(err error) {
	x.broken, x.cause, x.outcome = true, err, outcomeBroken
	if x.lost || x.r.Context().Err() != nil {
		x.outcome = outcomeCancelled
	}
}

// copy is the copy loop: judge the whole events in the buffer, write them with
// one flush, read on. Its error says why the stream must not end cleanly.
func (r *relay) copy() error {
	f := &r.frames
	for {
		r.judgeAll()
		if f.done > r.shown {
			if err := r.a.x.write(f.buf[r.shown:f.done]); err != nil {
				return err
			}
			r.shown = f.done
		}
		if r.read != nil {
			return r.finish()
		}
		if !f.room(r.shown) {
			// Too long to hold: what is known of the event so far must do.
			r.late = judge(r.rules, f.giveUp(), false)
			continue
		}
		r.shown = 0
		var n int
		n, r.read = r.fill()
		f.end += n
	}
}

func (r *relay) judgeAll() {
	for {
		ev, ok := r.frames.next()
		if !r.frames.over {
			r.met |= r.late
			r.late = 0
		}
		if !ok {
			return
		}
		r.seen = r.seen || ev.hasData
		r.met |= judge(r.rules, ev, false)
	}
}

// finish ends a stream whose source has ended. Only a whole answer ends cleanly.
func (r *relay) finish() error {
	x, f := r.a.x, &r.frames
	clean := errors.Is(r.read, io.EOF)
	if clean && f.end > r.shown {
		// A last event without its blank line counts if it is one.
		if ev := f.rest(); isWhole(ev) {
			r.met |= judge(r.rules, ev, false)
		}
	}
	switch {
	case r.met&terminal != 0, clean && (r.met&finished != 0 || r.rules == nil):
		if f.end > r.shown {
			return x.write(f.buf[r.shown:f.end])
		}
		return nil
	case x.r.Context().Err() != nil:
		return context.Cause(x.ctx)
	}
	err := r.read
	if clean {
		err = io.ErrUnexpectedEOF
	}
	e := x.upstreamError(r.a.ctx, err)
	if cause := context.Cause(r.a.ctx); cause != nil {
		err = cause
	}
	// The provider's own error event has said it already, and inside an overlong
	// event there is no room for another.
	if r.met&failure == 0 && !f.over {
		typed := r.rules != nil && r.rules.Events == profile.Typed
		if werr := x.write(dialect.Event(x.dialect, typed, e)); werr != nil {
			return errors.Join(err, werr)
		}
	}
	return err
}

// isWhole reports whether an event that lost its blank line lost nothing else.
func isWhole(ev event) bool {
	return ev.hasData && (isDone(ev.data) || json.Valid(ev.data))
}
