package llm

import (
	"context"
	"errors"
	"io"
	"time"

	"signalbox.dev/pkg/sse"
)

// Decoder decodes an answer of one dialect. It must copy what it keeps of its input.
type Decoder interface {
	// Decode decodes one server-sent event, appends the resulting events to out and reports
	// whether the answer is complete.
	Decode(ev sse.Event, out []Event) (events []Event, done bool, err error)
	// End is called if the stream ends, cleanly or not, before Decode has reported done. It
	// returns ErrTruncated if the answer is not complete.
	End(out []Event) (events []Event, err error)
	// Response returns the answer. With partial it returns the part that has arrived, in a form
	// that can be stored and sent back.
	Response(partial bool) *Response
}

// Stream is the answer to one Request while it arrives. Read it like this:
//
//	for s.Next() {
//		ev := s.Event()
//		…
//	}
//	if err := s.Err(); err != nil { … }
//	resp := s.Response()
//
// It belongs to one goroutine. The caller must close it.
type Stream struct {
	ctx  context.Context // of the request; ends with Close; its cause explains read errors
	dec  Decoder
	sse  *sse.Reader
	body *watched

	queue    []Event
	at       int
	received int // bytes of text, reasoning and tool arguments
	done     bool
	err      error
}

// NewStream returns a Stream over body, which it closes. It is for tests and
// benchmarks; clients open theirs with Transport.
func NewStream(body io.Reader, dec Decoder, limits Limits) *Stream {
	w := &watched{r: body, left: limits.withDefaults().Response}
	return newStream(context.Background(), w, dec, limits)
}

func newStream(ctx context.Context, w *watched, dec Decoder, limits Limits) *Stream {
	return &Stream{ctx: ctx, dec: dec, body: w, sse: sse.NewReader(w, limits.withDefaults().Event)}
}

// Next moves to the next event. It returns false at the end of the answer; Err says whether
// the answer is complete.
func (s *Stream) Next() bool {
	if s.at++; s.at < len(s.queue) {
		return true
	}
	for s.at = 0; !s.done; {
		s.queue = s.queue[:0]
		s.read()
		if len(s.queue) > 0 {
			return true
		}
	}
	s.queue = s.queue[:0]
	return false
}

// Event returns the current event.
func (s *Stream) Event() *Event { return &s.queue[s.at] }

// Err returns nil if the answer is complete, otherwise an *Error or the context's cause.
func (s *Stream) Err() error { return s.err }

// Response returns the complete answer, or nil unless Next has returned false and Err is nil.
func (s *Stream) Response() *Response {
	if !s.done || s.err != nil {
		return nil
	}
	return s.dec.Response(false)
}

// Partial returns what has arrived so far, in a form that can be stored and sent back. It
// keeps text and finished reasoning and drops tool calls, which will not be run.
func (s *Stream) Partial() *Response { return s.dec.Response(true) }

// Close ends the stream. It closes the connection, or returns it to the pool if the answer was
// read to its end. It may be called again.
func (s *Stream) Close() { s.body.close(s.done && s.err == nil) }

// read reads and decodes one server-sent event.
func (s *Stream) read() {
	ev, err := s.sse.Next()
	if err == nil {
		s.queue, s.done, err = s.dec.Decode(ev, s.queue)
	} else if errors.Is(err, io.EOF) || s.lost(err) {
		var truncated error
		if s.queue, truncated = s.dec.End(s.queue); truncated == nil || errors.Is(err, io.EOF) {
			err = truncated
		}
		s.done = true
	}
	for i := range s.queue {
		switch ev := &s.queue[i]; ev.Type {
		case TextDelta, ReasoningDelta, ToolCallDelta:
			s.received += len(ev.Text)
		default:
		}
	}
	if err != nil {
		s.done = true
		s.err = s.explain(err)
	}
}

// lost reports whether err is a connection error, so that the answer may be complete.
func (s *Stream) lost(err error) bool {
	_, ours := errors.AsType[*Error](err)
	return !ours && !errors.Is(err, sse.ErrTooLong) && s.ctx.Err() == nil
}

// explain turns a read error into an *Error. If the context has ended, its cause comes first,
// because that broke the connection.
func (s *Stream) explain(err error) error {
	if s.ctx.Err() != nil {
		return context.Cause(s.ctx)
	}
	if _, ok := errors.AsType[*Error](err); ok {
		return err
	}
	switch {
	case errors.Is(err, ErrTruncated):
		return NewError(KindTruncated, err, "")
	case errors.Is(err, io.ErrUnexpectedEOF):
		return broken(KindTruncated, ErrTruncated)
	case errors.Is(err, sse.ErrTooLong):
		return OverLimit("an event is too long")
	}
	return broken(KindNetwork, err)
}

func broken(k Kind, cause error) *Error {
	e := NewError(k, cause, "")
	e.Broken = true
	return e
}

// watched is a response body with a size limit and an idle timeout.
type watched struct {
	r      io.Reader
	left   int64
	idle   time.Duration
	timer  *time.Timer // cancels the request when it fires; may be nil
	cancel context.CancelCauseFunc
	closed bool
}

func (w *watched) Read(p []byte) (int, error) {
	if w.left <= 0 {
		return 0, OverLimit("it is too long")
	}
	if int64(len(p)) > w.left {
		p = p[:w.left]
	}
	n, err := w.r.Read(p)
	w.left -= int64(n)
	if n > 0 && w.timer != nil && !w.closed {
		w.timer.Reset(w.idle)
	}
	return n, err
}

const (
	drainTime  = 25 * time.Millisecond
	drainBytes = 4 << 10
)

// close ends the request. With drain it first reads the end of the body, which usually has
// arrived, so that the connection can be reused.
func (w *watched) close(drain bool) {
	if w.closed {
		return
	}
	w.closed = true
	if w.timer != nil && drain {
		w.timer.Reset(drainTime)
		_, _ = io.CopyN(io.Discard, w.r, drainBytes)
	}
	if w.timer != nil {
		w.timer.Stop()
	}
	if w.cancel != nil {
		w.cancel(nil)
	}
	if c, ok := w.r.(io.Closer); ok {
		_ = c.Close()
	}
}
