package socket

import (
	"context"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"

	"signalbox.dev/pkg/identity"
	"signalbox.dev/services/document-sync/internal/room"
)

const (
	closeWait = 5 * time.Second  // from our close frame to the peer's
	joinWait  = 30 * time.Second // for a document to be loaded
)

// session is what an envelope makes of a connection. Only the read goroutine calls it.
type session interface {
	// open comes before the first message.
	open() error
	// handle takes a message, which is not its own to keep. An error ends the connection.
	handle(msg []byte) error
	// leave gives up all seats.
	leave()
	// idle is what is sent to a peer that was told nothing for long.
	idle() []byte
}

// conn is a connection; the package comment has its states and its goroutines.
type conn struct {
	h       *Handler
	wire    wire // its Conn is what is written to
	ws      *websocket.Conn
	session session
	actor   identity.Actor
	expires int64    // Unix seconds; 0: never
	refuse  *closing // set before the start: why there is to be no session

	life life // the context of the read goroutine's calls: done when the end begins

	seen   atomic.Int64 // tick of the last byte from the peer
	sent   atomic.Int64 // tick of the last write
	busy   atomic.Bool  // the read goroutine is not reading, for reasons of ours
	pinged int64        // tick of the last ping; Run's
	credit credit       // the read goroutine's

	run   func()   // write, as a value: to start it costs nothing then
	spare [][]byte // the writer's: a queue to be used again

	mu      sync.Mutex // guards what follows
	queue   [][]byte   // frames
	waiting int        // their bytes
	writing bool       // there is a writer
	ending  bool       // nothing is added to the queue any more
	label   string     // why, for the metrics
}

// serve is the read goroutine.
func (c *conn) serve() {
	err := c.talk()
	c.session.leave()
	why := closingOf(err)
	c.logged(why, err)
	c.end(why)
	c.drain()
	c.h.unregister(c)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.h.metrics.closed.WithLabelValues(c.label).Inc()
}

// logged tells the operator of an end that is our fault.
func (c *conn) logged(why closing, err error) {
	if why.log {
		c.h.log.WarnContext(&c.life, "document not open", "workspace", c.actor.Workspace.String(), "error", err)
	}
}

func (c *conn) talk() error {
	if c.refuse != nil {
		return c.refuse
	}
	if err := c.away(c.session.open); err != nil {
		return err
	}
	for {
		kind, r, err := c.ws.NextReader()
		if err != nil {
			return closingOfRead(err)
		}
		if kind != websocket.BinaryMessage {
			return &closing{code: room.CloseMalformed, reason: "Messages have to be binary."}
		}
		if err := c.receive(r); err != nil {
			return err
		}
	}
}

// away runs f, in which nothing is read: the peer's silence is our doing.
func (c *conn) away(f func() error) error {
	c.busy.Store(true)
	err := f()
	c.seen.Store(c.h.tick.Load())
	c.busy.Store(false)
	return err
}

// drain reads on until the peer closes, and closes.
func (c *conn) drain() {
	c.mu.Lock()
	lost := c.label == labelLost
	c.mu.Unlock()
	if !lost {
		_ = c.wire.SetReadDeadline(time.Now().Add(closeWait)) // fails when it is closed
		_, _ = io.Copy(io.Discard, onlyReader{c.wire.Conn})   // the error is how it ends
	}
	c.wire.Close()
}

// onlyReader hides a connection's WriteTo, which io.Copy would like better, from it.
type onlyReader struct{ io.Reader }

// longAgo is a deadline that wakes whoever reads.
var longAgo = time.Unix(1, 0)

// end begins the end, for the first reason that is given.
func (c *conn) end(why closing) {
	c.mu.Lock()
	start := c.endLocked(why)
	c.mu.Unlock()
	c.life.cancel()
	if start {
		go c.run()
	}
}

// endLocked reports whether a writer has to be started.
func (c *conn) endLocked(why closing) (start bool) {
	if c.ending {
		return false
	}
	c.ending, c.label = true, why.metric()
	if why.abandon {
		clear(c.queue)
		c.queue, c.waiting = c.queue[:0], 0
	}
	// In the lock: the deadline of drain, which takes it before, has to come last.
	_ = c.wire.SetReadDeadline(longAgo)
	if c.label == labelLost {
		return false
	}
	c.queue = append(c.queue, closeFrame(why.code, why.reason))
	start = !c.writing
	c.writing = true
	return start
}

// kill cuts a peer that nothing can be told.
func (c *conn) kill(label string) {
	c.mu.Lock()
	if !c.ending {
		c.ending, c.label = true, label
	}
	c.mu.Unlock()
	c.life.cancel()
	c.wire.Close()
}

// life is the context of a connection. One of package context would be the largest
// thing that a connection has in memory: 700 bytes after the first deadline below it.
type life struct {
	once sync.Once
	done chan struct{}
}

func (l *life) cancel() { l.once.Do(func() { close(l.done) }) }

// Deadline implements context.Context.
func (l *life) Deadline() (time.Time, bool) { return time.Time{}, false }

// Done implements context.Context.
func (l *life) Done() <-chan struct{} { return l.done }

// Err implements context.Context.
func (l *life) Err() error {
	select {
	case <-l.done:
		return context.Canceled
	default:
		return nil
	}
}

// Value implements context.Context.
func (l *life) Value(any) any { return nil }
