package httpserver

import (
	"net/http"
	"time"
)

// writeChunk is how many bytes a reader has to take within the timeout.
const writeChunk = 64 << 10

// BoundWrites ends a response whose reader takes nothing for longer than wait, so that a
// client that stopped reading does not hold a handler and its memory. A slow reader is fine:
// the timeout starts again with each 64 KiB, and does not run while the handler has nothing to
// write, as in a stream.
func BoundWrites(next http.Handler, wait time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b := &boundWriter{w, http.NewResponseController(w), wait}
		b.set(time.Time{}) // clears the deadline of the connection's previous request
		next.ServeHTTP(b, r)
		b.begin() // for what net/http writes after the handler has returned
	})
}

type boundWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	wait    time.Duration
}

// Write implements http.ResponseWriter.
func (w *boundWriter) Write(p []byte) (n int, err error) {
	for {
		w.begin()
		m, err := w.ResponseWriter.Write(p[:min(len(p), writeChunk)])
		n += m
		if err != nil {
			return n, err // the deadline stays: nothing more is written
		}
		// Over HTTP/2 a deadline that passes between writes ends the stream, too.
		w.set(time.Time{})
		if p = p[m:]; len(p) == 0 {
			return n, nil
		}
	}
}

// FlushError serves http.ResponseController.
func (w *boundWriter) FlushError() error {
	w.begin()
	err := w.control.Flush()
	if err == nil {
		w.set(time.Time{})
	}
	return err
}

// Flush implements http.Flusher.
func (w *boundWriter) Flush() { _ = w.FlushError() } // the next write fails, too

// Unwrap serves http.ResponseController.
func (w *boundWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *boundWriter) begin() { w.set(time.Now().Add(w.wait)) }

func (w *boundWriter) set(deadline time.Time) {
	_ = w.control.SetWriteDeadline(deadline) // fails only if the connection is not one of net/http
}
