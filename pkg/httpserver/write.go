package httpserver

import (
	"net/http"
	"time"
)

// writeChunk is how much has to leave within one span of time.
const writeChunk = 64 << 10

// BoundWrites cuts an answer whose reader takes nothing for longer than wait: a
// handler must not hang on somebody who stopped reading, with what it holds in
// memory. A reader that is slow and goes on is left alone: each 64 KiB get a fresh
// span, and there is none while a handler has nothing to write, as in a stream.
func BoundWrites(next http.Handler, wait time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b := &boundWriter{w, http.NewResponseController(w), wait}
		b.set(time.Time{}) // that of the connection's request before
		next.ServeHTTP(b, r)
		b.begin() // net/http writes what is left when the handler has returned
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
			return n, err // the deadline stays: there is nothing more to say
		}
		// Over HTTP/2 a deadline that passes ends the stream, also between writes.
		w.set(time.Time{})
		if p = p[m:]; len(p) == 0 {
			return n, nil
		}
	}
}

// FlushError is what http.ResponseController looks for.
func (w *boundWriter) FlushError() error {
	w.begin()
	err := w.control.Flush()
	if err == nil {
		w.set(time.Time{})
	}
	return err
}

// Flush implements http.Flusher.
func (w *boundWriter) Flush() { _ = w.FlushError() } // the next write tells

// Unwrap lets http.ResponseController through.
func (w *boundWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *boundWriter) begin() { w.set(time.Now().Add(w.wait)) }

func (w *boundWriter) set(deadline time.Time) {
	_ = w.control.SetWriteDeadline(deadline) // connections of net/http can; others were not bounded before
}
