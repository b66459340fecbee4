package docproxy

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"signalbox.dev/services/gateway/internal/door"
)

const (
	// lingering is how long a client may take to close its side once it was told.
	lingering = time.Second
	// halfClosed is how long document-sync may take to finish when the client has.
	halfClosed = 5 * time.Second
	// stuckAfter is how long document-sync may take nothing. It is long: document-sync
	// makes senders wait while its database is away.
	stuckAfter = time.Minute
)

// relay is an open socket: a client's connection, one to document-sync, and two
// pumps between them.
type relay struct {
	proxy           *Proxy
	client, backend net.Conn
	count           *door.Stream
	up, down        pump
	frames          frames // of what the client got; the down pump's
	heard           atomic.Int64
	running         atomic.Int32 // pumps
	ending          atomic.Bool  // cause is set

	mu    sync.Mutex // guards what follows, and deadlines while cause is being set
	cause error      // why the socket ends, the first reason
	half  bool       // the client has closed its side
	code  uint16     // what the socket ended with; the down pump's until it is out
}

func newRelay(p *Proxy, client, backend net.Conn, count *door.Stream) *relay {
	r := &relay{proxy: p, client: client, backend: backend, count: count, code: codeCut}
	r.heard.Store(p.tick.Load())
	r.up.init(r, client, backend, stuckAfter, p.metrics.up)
	r.down.init(r, backend, client, p.cfg.Patience, p.metrics.down)
	r.down.isDown = true
	return r
}

// start begins to pass on. kept goes to document-sync and rest to the client before
// anything else. It returns at once.
func (r *relay) start(kept, rest []byte) {
	r.running.Store(2)
	go func() {
		defer r.out()
		err := r.up.run(kept)
		if !errors.Is(err, io.EOF) || !r.closeHalf() {
			r.end(errLeft)
		}
	}()
	go func() {
		defer r.out()
		r.hangUp(r.down.run(rest))
	}()
}

// end has the socket end for a reason, unless there is one already. It does not wait,
// and any goroutine may call it.
func (r *relay) end(why error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cause != nil {
		return
	}
	r.cause = why
	r.ending.Store(true)
	// What the down pump waits for ends. These fail when the connection is closed, which is as good.
	_ = r.backend.SetReadDeadline(time.Unix(1, 0))
	_ = r.client.SetWriteDeadline(time.Unix(1, 0))
}

// why returns why the socket ends; nil when it does not.
func (r *relay) why() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cause
}

// closeHalf tells document-sync that the client sends nothing more, and bounds what
// it still has to say. It reports false when that cannot be told.
func (r *relay) closeHalf() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cause != nil {
		return true
	}
	r.half = true
	return closeWrite(r.backend) && r.backend.SetReadDeadline(time.Now().Add(halfClosed)) == nil
}

// mayWait gives a write that has to wait its deadline, unless the socket ends.
func (r *relay) mayWait(c net.Conn, patience time.Duration) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cause == nil && c.SetWriteDeadline(time.Now().Add(patience)) == nil
}

// hangUp ends the socket after the down pump has. It tells the client why, where it
// can be told: document-sync has not, and the bytes so far end with a frame.
func (r *relay) hangUp(err error) {
	r.end(r.whyDown(err))
	e := endingOf(r.why())
	r.backend.Close()
	whole := !r.down.broken && r.frames.between()
	switch {
	case whole && r.frames.closed:
		r.code = r.frames.code
	case whole && e.code != codeCut && say(r.client, e):
		r.code = e.code
	default:
		r.client.Close()
		return
	}
	closeWrite(r.client)
	// The up pump throws away what still comes, so that the client gets to read the
	// close frame: a connection that is closed with unread bytes is reset.
	_ = r.client.SetReadDeadline(time.Now().Add(lingering)) // fails when it is closed
}

// whyDown tells what the end of the down pump means.
func (r *relay) whyDown(err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.down.broken && errors.Is(err, os.ErrDeadlineExceeded):
		return errSlow
	case r.down.broken, r.half:
		return errLeft
	case r.frames.closed:
		return &ending{code: r.frames.code, reason: "document-sync closed the socket"}
	case errors.Is(err, io.EOF):
		return errAway
	}
	return away(err)
}

// out is called by each pump that is done. The last one closes everything.
func (r *relay) out() {
	if r.running.Add(-1) > 0 {
		return
	}
	r.client.Close()
	r.backend.Close()
	r.count.Close()
	r.proxy.ended(r)
}

// say writes a close frame, and reports whether it went out.
func say(c net.Conn, e *ending) bool {
	if c.SetWriteDeadline(time.Now().Add(lingering)) != nil {
		return false
	}
	_, err := c.Write(appendClose(nil, e.code, e.reason))
	return err == nil
}

func closeWrite(c net.Conn) bool {
	h, ok := c.(interface{ CloseWrite() error })
	return ok && h.CloseWrite() == nil
}
