package docproxy

import (
	"context"
	"errors"
	"io"
	"sync"

	"signalbox.dev/pkg/mux"
	"signalbox.dev/pkg/panics"

	"signalbox.dev/services/gateway/internal/auth"
	"signalbox.dev/services/gateway/internal/docproxy/editor"
)

// relay is an open socket: a client's connection and a stream to document-sync. It implements
// mux.Sink for the stream.
type relay struct {
	proxy *Proxy
	conn  *editor.Conn
	up    *mux.ClientStream
	count *auth.Stream
}

// contain calls f, which concerns this socket only. A panic cuts its connection; other sockets
// of the mux are not affected.
func (r *relay) contain(f func()) {
	if panics.Contain(context.Background(), r.proxy.cfg.Log, "document socket", f) {
		_ = r.conn.NetConn().Close()
	}
}

// Deliver implements mux.Sink.
func (r *relay) Deliver(piece []byte, more bool, sharers int) {
	r.contain(func() { r.conn.Queue(piece, more, sharers) })
}

// Flush implements mux.Sink.
func (r *relay) Flush() { r.contain(r.conn.Flush) }

// Closed implements mux.Sink.
func (r *relay) Closed(code int, reason string) {
	r.contain(func() { r.conn.End(editor.Closing{Code: code, Reason: reason}) })
}

// Broken implements mux.Sink.
func (r *relay) Broken(why error) {
	if errors.Is(why, mux.ErrSilent) {
		why = errSilent
	} else {
		why = unavailable(why)
	}
	r.contain(func() { r.end(why) })
}

// end ends the socket for a reason. Only the first call has an effect. It does not block, and
// any goroutine may call it.
func (r *relay) end(why error) {
	e := endingOf(why)
	r.conn.End(editor.Closing{Code: e.code, Reason: e.reason})
}

// run is the socket's goroutine. It sends the kept messages to document-sync first.
func (r *relay) run(kept [][]byte) {
	why := editor.Closing{Code: codeInternal, Reason: "internal error"} // after a panic
	r.contain(func() { why = r.conn.Finish(r.pump(kept)) })
	r.up.Close(why.Code, why.Reason)
	r.count.Close()
	r.proxy.ended(r, why)
}

// pump sends the client's messages to document-sync until the socket ends, and returns the
// reason.
func (r *relay) pump(kept [][]byte) editor.Closing {
	for _, msg := range kept {
		for len(msg) > mux.MaxPart {
			if err := r.send(msg[:mux.MaxPart], true); err != nil {
				return closingOf(err)
			}
			msg = msg[mux.MaxPart:]
		}
		if err := r.send(msg, false); err != nil {
			return closingOf(err)
		}
	}
	for {
		msg, err := r.conn.NextReader()
		if err != nil {
			return editor.ReadError(err)
		}
		if err := r.forward(msg); err != nil {
			return closingOf(err)
		}
	}
}

var partBuffers = sync.Pool{New: func() any { return new([mux.MaxPart]byte) }}

// forward sends one message. It takes a buffer only now: an idle socket has none.
func (r *relay) forward(msg io.Reader) error {
	b := partBuffers.Get().(*[mux.MaxPart]byte) // the pool has nothing else
	defer partBuffers.Put(b)
	for more := true; more; {
		n, err := io.ReadFull(msg, b[:])
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			why := editor.ReadError(err)
			return &why
		}
		more = err == nil
		if err := r.send(b[:n], more); err != nil {
			return err
		}
	}
	return nil
}

func (r *relay) send(part []byte, more bool) error {
	return r.conn.WithoutReading(func() error { return r.up.Send(part, more, r.conn.Done()) })
}

// closingOf returns the closing of a socket whose message could not be sent.
func closingOf(err error) editor.Closing {
	if c, ok := errors.AsType[*editor.Closing](err); ok {
		return *c
	}
	e := errUnavailable // unless the socket is ending already
	if errors.Is(err, mux.ErrStalled) {
		e = errStuck
	}
	return editor.Closing{Code: e.code, Reason: e.reason}
}
