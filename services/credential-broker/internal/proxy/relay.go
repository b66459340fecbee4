package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"signalbox.dev/services/credential-broker/internal/dialect"
	"signalbox.dev/services/credential-broker/internal/pool"
	"signalbox.dev/services/credential-broker/internal/profile"
	"signalbox.dev/services/credential-broker/internal/scan"
	"signalbox.dev/services/credential-broker/internal/transform"
)

// relay forwards one event stream.
type relay struct {
	a     *answer
	rules *profile.Stream // nil if nothing is known about its events

	answers *transform.Answers // nil if events go on as they are
	cuts    []scan.Span

	frames frames
	pooled *[]byte
	shown  int  // buf[:shown] was written to the caller
	seen   bool // the first event arrived: from now on the idle time counts

	met  verdict // of all events
	late verdict // of an overlong event: counts once it is whole
	read error   // how the source ended

	since time.Time // when it began
	began bool      // the pool was told that it began well

	// While the gate is shut, mu guards opened, decided, gateErr, frames except for
	// buf[end:], and the exchange's writer.
	mu       sync.Mutex
	opened   bool
	decided  bool
	gateErr  error // from writing what the gate let through
	gateTime *time.Timer
}

func newRelay(a *answer) *relay {
	b := a.x.p.buffers.Get().(*[]byte)
	return &relay{a: a, rules: a.route.Stream, answers: a.x.edited.answers, pooled: b, frames: frames{buf: *b}, since: time.Now()}
}

// release returns the buffer, once.
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
	switch waits := &r.a.x.p.waits; {
	case r.met&terminal != 0:
		r.a.watch.start(&waits.last)
	case r.seen:
		r.a.watch.start(&waits.idle)
	}
	n, err := r.a.res.Body.Read(r.frames.buf[r.frames.end:])
	if r.seen {
		r.a.watch.pause()
	}
	return n, err
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
		reason = x.brokenReason(reason)
	} else if r.met&failure != 0 && r.met&terminal == 0 {
		x.outcome = outcomeServerError
	}
	x.report(reason, false, r.a)
}

// copy is the copy loop: judge the whole events in the buffer, write them with one flush, read
// on. Its error says why the stream must not end cleanly.
func (r *relay) copy() error {
	f := &r.frames
	for {
		r.judgeAll()
		if errors.Is(r.read, io.EOF) {
			if body, ok := r.plain(); ok {
				return r.showPlain(body)
			}
		}
		show := f.done
		if f.over {
			// An event that is shown before it is whole, without an end in which the
			// credential may begin.
			show -= r.a.echoes.held(f.buf[r.shown:f.done])
		}
		r.beganWell()
		if show > r.shown {
			if err := r.a.x.write(f.buf[r.shown:show]); err != nil {
				return err
			}
			r.shown = show
		}
		if r.read != nil {
			return r.finish()
		}
		if !f.room(r.shown) {
			// Too long to hold: the beginning of the event has to do until its end.
			ev := f.giveUp(r.kept()...)
			r.translate(&ev)
			r.late = r.judge(ev, false)
			continue
		}
		r.shown = 0
		var n int
		n, r.read = r.fill()
		r.a.x.bodySent()
		r.took(n)
	}
}

// beganWell tells the pool, once, that a meaningful event arrived that is not a failure. A
// ping says nothing about the account.
func (r *relay) beganWell() {
	if r.began || r.a.reason != pool.OK || (r.met|r.late)&meaningful == 0 {
		return
	}
	r.began = true
	r.a.x.p.cfg.Pool.Began(r.a.x.account)
}

// took adds what was read, without the credential. No event is shown before all of it was
// read, so that a credential is found across reads too.
func (r *relay) took(n int) {
	f, e := &r.frames, &r.a.echoes
	from := max(f.end-e.longest, 0)
	f.end += n
	e.hide(f.buf[from:f.end])
}

// judge returns what an event means. In an event that reports an error short credentials are
// hidden too. The first such event says whose failure it is, after the gate as well: nothing
// is retried then, but the account's own failure counts all the same.
func (r *relay) judge(ev event, early bool) verdict {
	v := judge(r.rules, ev, early)
	if v&failure == 0 {
		return v
	}
	r.a.echoes.hideAll(r.frames.buf[ev.from:r.frames.done])
	if r.met&(failure|terminal) == 0 {
		r.blame(ev)
	}
	return v
}

// blame records whose failure an event reports.
func (r *relay) blame(ev event) {
	f, _ := dialect.Read(ev.data)
	r.a.reason = pool.ClassifyEvent(f)
	r.a.denied = r.a.reason == pool.QuotaExhausted && pool.Denied(f)
}

// kept are the members of an overlong event that say what it means and what it counts.
func (r *relay) kept() [][]string {
	if r.rules == nil {
		return nil
	}
	paths := [][]string{{"type"}, {"error"}, {"response", "error"}, {"choices", "finish_reason"}}
	return append(paths, r.a.x.tally.Paths()...)
}

// judgeAll judges the whole events in the buffer, and an overlong one that has ended.
func (r *relay) judgeAll() {
	for {
		over := r.frames.over
		ev, ok := r.next()
		if over && !r.frames.over {
			long, whole := r.frames.ending()
			if whole {
				r.late |= r.judge(long, false)
			}
			r.met |= r.late
			r.late = 0
			if whole {
				r.count(long)
			}
		}
		if !ok {
			return
		}
		r.met |= r.judge(ev, false)
		r.count(ev)
	}
}

// next returns the next whole event as the caller will see it.
func (r *relay) next() (event, bool) {
	ev, ok := r.frames.next()
	if ok {
		r.seen = r.seen || ev.hasData
		r.translate(&ev)
	}
	return ev, ok
}

// translate gives tool names in an event back as the caller knows them.
func (r *relay) translate(ev *event) {
	if r.answers == nil || !ev.hasData || len(ev.name) > 0 && string(ev.name) != transform.ToolStart {
		return
	}
	r.cuts = r.answers.Event(ev.data, r.cuts[:0])
	if len(r.cuts) == 0 {
		return
	}
	removed := 0
	for _, c := range slices.Backward(r.cuts) {
		r.frames.cut(ev, c.From, c.To-c.From)
		removed += c.To - c.From
	}
	ev.name = toolStart // what followed the cut has moved
	if ev.at >= 0 {
		ev.data = ev.data[:len(ev.data)-removed]
	}
}

var toolStart = []byte(transform.ToolStart)

// count reads the tokens that an event counts.
func (r *relay) count(ev event) {
	x := r.a.x
	if r.rules == nil || !ev.hasData || !x.tally.Counts() {
		return
	}
	if r.rules.Events == profile.Chat {
		if r.met&finished != 0 { // not before
			x.tally.Read(ev.data)
		}
		return
	}
	if len(r.rules.Usage) > 0 && contains(r.rules.Usage, ev.typeName()) {
		x.tally.Read(ev.data)
	}
}

// finish ends a stream whose source has ended. Only a whole answer ends cleanly, or one that
// reports an error and that the provider ended cleanly after that.
func (r *relay) finish() error {
	x, f := r.a.x, &r.frames
	clean := errors.Is(r.read, io.EOF)
	var last verdict // of a last event without its blank line
	torn := f.over
	if clean && f.end > r.shown {
		if ev := f.rest(); isWhole(ev) {
			r.translate(&ev)
			last = r.judge(ev, false)
			r.met |= last
			r.beganWell()
			r.count(ev)
		} else {
			torn = torn || !isBlank(f.buf[r.shown:f.end])
		}
	}
	whole := r.met&finished != 0 && !x.several || r.met&failure != 0 && last&failure == 0
	switch {
	case r.met&terminal != 0, clean && (r.rules == nil || whole && !torn):
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
	e := r.a.failure(err)
	if cause := context.Cause(r.a.ctx); cause != nil {
		err = cause
	}
	// The reason is settled before the caller sees the error and leaves.
	if r.a.reason == pool.OK && x.ctx.Err() == nil {
		r.a.reason = pool.Unreachable
	}
	return errors.Join(err, r.showError(last, e))
}

// plain returns the whole body of an answer that is JSON instead of a stream and does not say
// that it is a stream.
func (r *relay) plain() (body []byte, ok bool) {
	body = r.frames.buf[r.shown:r.frames.end]
	return body, !r.seen && !r.frames.over && !isEvents(r.a.res) && json.Valid(body)
}

// showPlain delivers such a body as other JSON: with its tokens counted and tool names
// translated.
func (r *relay) showPlain(body []byte) error {
	x := r.a.x
	x.p.cfg.Pool.Began(x.account)
	if x.tally.Counts() {
		x.tally.Read(body)
	}
	if r.answers != nil {
		body = r.answers.Whole(body).Apply(body)
	}
	return x.write(body)
}

// showError writes the error of a stream that failed: the provider's own if that is its last
// event, which lacks its blank line. Nothing is written if an error was shown before, or inside
// an overlong event.
func (r *relay) showError(last verdict, e dialect.Error) error {
	x, f := r.a.x, &r.frames
	switch {
	case last&failure != 0:
		return x.write(append(f.buf[r.shown:f.end:f.end], "\n\n"...))
	case r.met&failure != 0, f.over:
		return nil
	}
	typed := r.rules != nil && r.rules.Events == profile.Typed
	return x.write(dialect.Event(x.dialect, typed, e))
}

// isBlank reports whether a piece of a stream holds only blank lines and comments.
func isBlank(rest []byte) bool {
	for line := range bytes.FieldsFuncSeq(rest, func(r rune) bool { return r == '\n' || r == '\r' }) {
		if line[0] != ':' {
			return false
		}
	}
	return true
}

// isWhole reports whether an event that lacks its blank line lacks nothing else.
func isWhole(ev event) bool {
	return ev.hasData && (isDone(ev.data) || json.Valid(ev.data))
}
