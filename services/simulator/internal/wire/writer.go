// Package wire writes an answer's bytes in the shape that a script asks for, and can end the
// connection in the ways in which connections fail.
//
// A Writer belongs to the goroutine of its request. It buffers at most a few kilobytes: it
// writes events that are due at the same time together, and flushes before each wait. A write
// to a client that does not read blocks until the client reads or leaves, at most a minute.
package wire

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"time"

	"signalbox.dev/services/simulator/internal/chat"
)

const (
	flushAt      = 4 << 10
	writeTimeout = time.Minute
)

// ErrGone means that the client left, or did not read for a minute.
var ErrGone = errors.New("the client is gone")

// Writer writes one answer.
type Writer struct {
	// B is the buffer, to which encoders append.
	B []byte

	out      http.ResponseWriter
	ctl      *http.ResponseController
	shape    chat.Shape
	comment  string
	ping     string
	events   int
	bytes    int64
	status   int
	deadline time.Time
	timer    *time.Timer
}

// New returns a writer to out. comment and ping are the texts of the shape's comments and
// pings; empty ones are left out.
func New(out http.ResponseWriter, shape chat.Shape, comment, ping string) *Writer {
	return &Writer{out: out, ctl: http.NewResponseController(out), shape: shape, comment: comment, ping: ping}
}

// Header returns the header that Status will send.
func (w *Writer) Header() http.Header { return w.out.Header() }

// Status sends the status line and the header.
func (w *Writer) Status(code int) {
	for k, v := range w.shape.Headers {
		w.out.Header().Set(k, v)
	}
	w.status = code
	w.out.WriteHeader(code)
}

// Sent returns the status, 0 before it is sent, and the number of body bytes written so far.
func (w *Writer) Sent() (status int, n int64) { return w.status, w.bytes }

// Mark ends an event in B. It writes B once it is large enough.
func (w *Writer) Mark(ctx context.Context) error {
	w.events++
	if n := w.shape.Comments; n > 0 && w.events%n == 0 {
		w.B = append(w.B, w.comment...)
	}
	if n := w.shape.Pings; n > 0 && w.events%n == 0 {
		w.B = append(w.B, w.ping...)
	}
	if len(w.B) < flushAt {
		return nil
	}
	return w.Flush(ctx)
}

// Flush writes B out to the network.
func (w *Writer) Flush(ctx context.Context) error {
	if ctx.Err() != nil {
		return ErrGone
	}
	b := w.B
	w.B = w.B[:0]
	if w.shape.CRLF {
		b = bytes.ReplaceAll(b, []byte("\n"), []byte("\r\n"))
	}
	if w.shape.Write <= 0 {
		if err := w.write(b); err != nil {
			return err
		}
		return w.pause(ctx, w.shape.Every)
	}
	for len(b) > 0 {
		n := min(w.shape.Write, len(b))
		if err := w.write(b[:n]); err != nil {
			return err
		}
		b = b[n:]
		if err := w.pause(ctx, w.shape.Every); err != nil {
			return err
		}
	}
	return nil
}

func (w *Writer) write(b []byte) error {
	now := time.Now()
	if now.Add(writeTimeout / 2).After(w.deadline) {
		w.deadline = now.Add(writeTimeout)
		_ = w.ctl.SetWriteDeadline(w.deadline) // a recorder has no deadline and never blocks
	}
	if len(b) > 0 {
		n, err := w.out.Write(b)
		w.bytes += int64(n)
		if err != nil {
			return ErrGone
		}
	}
	if err := w.ctl.Flush(); err != nil {
		return ErrGone
	}
	return nil
}

// Sleep flushes B, then waits. It returns ErrGone as soon as ctx ends.
func (w *Writer) Sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	if len(w.B) > 0 {
		if err := w.Flush(ctx); err != nil {
			return err
		}
	}
	return w.pause(ctx, d)
}

func (w *Writer) pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	if w.timer == nil {
		w.timer = time.NewTimer(d)
	} else {
		w.timer.Reset(d)
	}
	select {
	case <-w.timer.C:
		return nil
	case <-ctx.Done():
		w.timer.Stop()
		return ErrGone
	}
}

// Hold flushes B and waits until ctx ends.
func (w *Writer) Hold(ctx context.Context) error {
	if len(w.B) > 0 {
		if err := w.Flush(ctx); err != nil {
			return err
		}
	}
	<-ctx.Done()
	return ErrGone
}

// Reset ends the connection with a TCP reset. Nothing may be written afterwards.
// On HTTP/2 the stream is reset.
func (w *Writer) Reset() { w.end(true) }

// Drop closes the connection before the body has ended.
func (w *Writer) Drop() { w.end(false) }

func (w *Writer) end(reset bool) {
	conn, _, err := w.ctl.Hijack()
	if err != nil {
		// On HTTP/2, or without a connection, net/http's panic aborts the response.
		panic(http.ErrAbortHandler)
	}
	if tcp, ok := conn.(interface{ SetLinger(sec int) error }); ok && reset {
		_ = tcp.SetLinger(0) // fails only if the connection is closed already
	}
	_ = conn.Close() // an error changes nothing
}
