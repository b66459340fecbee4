package proxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

const (
	bodyQueue = 10 * time.Second // waiting for room among the bodies in flight
	discard   = 2                // times the limit of a body that is read only to be refused
	wholeBody = 10               // times Timers.Body that a request may take to arrive
)

// room is what a request occupies of the proxy's limits.
type room struct {
	share    *share // the workspace's; nil until the request is counted
	slot     bool
	reserved int64 // bytes for the body
	held     int64 // bytes for an answer that is translated
}

func (x *exchange) releaseRoom() {
	x.releaseBody()
	x.p.bodies.Release(x.held)
	if x.slot {
		x.p.slots.Release(x.actor.Workspace)
	}
	if x.share != nil {
		x.p.shares.leave(x.actor.Workspace)
	}
}

// readBody reads the whole request before anything is sent: it may be needed again, and
// net/http cuts answers short while a request's body is unread (golang/go#40747).
func (x *exchange) readBody() *refusal {
	limit, size := x.p.cfg.Limits.Body, x.r.ContentLength
	if size == 0 {
		return nil
	}
	reads := deadline{set: x.rc.SetReadDeadline, last: time.Now().Add(wholeBody * x.p.cfg.Timers.Body)}
	reads.extend(x.p.cfg.Timers.Body)
	// net/http watches for the caller's end with the same deadline.
	defer func() { _ = x.rc.SetReadDeadline(time.Time{}) }()
	if size > limit {
		return x.tooLarge(size)
	}
	if size < 0 {
		size = limit
	}
	if r := x.reserve(size); r != nil {
		return r
	}
	var b bytes.Buffer
	if x.r.ContentLength > 0 {
		b.Grow(int(size) + bytes.MinRead) // what ReadFrom needs to see the end
	}
	// To the end, which is when net/http begins to watch for the caller's.
	_, err := b.ReadFrom(io.LimitReader(arriving{x, &reads}, limit+1))
	switch x.body = b.Bytes(); {
	case errors.Is(err, os.ErrDeadlineExceeded):
		x.w.Header().Set("Connection", "close")
		r := refused(http.StatusRequestTimeout, "request_timeout", "the request did not arrive in time", err)
		r.final = false
		return r
	case err != nil:
		return x.gone(err)
	case int64(len(x.body)) > limit:
		return x.tooLarge(-1)
	}
	x.shrink(int64(len(x.body)))
	return nil
}

// arriving is the caller's body. Each piece extends the deadline for the next one.
type arriving struct {
	x     *exchange
	reads *deadline
}

// Read implements io.Reader.
func (r arriving) Read(p []byte) (int, error) {
	n, err := r.x.r.Body.Read(p)
	if n > 0 && err == nil {
		r.reads.extend(r.x.p.cfg.Timers.Body)
	}
	return n, err
}

// tooLarge reads on for a while, so that a caller that sends before it listens gets the
// answer and not a broken connection.
func (x *exchange) tooLarge(size int64) *refusal {
	limit := x.p.cfg.Limits.Body
	if size <= discard*limit && x.r.Header.Get("Expect") == "" {
		_, _ = io.CopyN(io.Discard, x.r.Body, discard*limit) // best effort
	}
	x.w.Header().Set("Connection", "close")
	return refused(http.StatusRequestEntityTooLarge, "request_too_large", fmt.Sprintf("the request is over the limit of %d MiB", limit>>20), nil)
}

// reserve takes room for the body, of the workspace's share and of all that is in memory. It
// waits up to bodyQueue.
func (x *exchange) reserve(n int64) *refusal {
	ctx, cancel := context.WithTimeout(x.ctx, bodyQueue)
	defer cancel()
	if r := x.queued(x.share.bodies.Acquire(ctx, n), outcomeOverShare, busyShare); r != nil {
		return r
	}
	if r := x.queued(x.p.bodies.Acquire(ctx, n), outcomeUnavailable, busyBodies); r != nil {
		x.share.bodies.Release(n)
		return r
	}
	x.reserved = n
	return nil
}

// shrink returns the reserved room beyond n.
func (x *exchange) shrink(n int64) {
	if less := x.reserved - n; less > 0 {
		x.p.bodies.Release(less)
		x.share.bodies.Release(less)
		x.reserved = n
	}
}

// bodySent releases the body once the answer is being delivered, because nothing is sent
// again after that. A provider may answer before it has read the request; then the body stays
// until it is written, which is checked as the answer goes on.
func (x *exchange) bodySent() {
	if x.body != nil && (x.sent == nil || x.sent.Load()) {
		x.releaseBody()
	}
}

func (x *exchange) releaseBody() {
	x.body = nil
	x.shrink(0)
}
