// Package editor has the WebSocket connections of clients that edit documents.
//
// # Reading and writing
//
// One goroutine reads: that of the owner, with NextReader and Finish. gorilla/websocket does
// the handshake and the reading. It writes nothing after the handshake (see wire), so that
// close frames go through the queue too.
//
// All other goroutines only queue frames. Flush writes what Queue has added, at once and
// without a goroutine if the kernel accepts it. What the kernel does not accept, and what
// Send adds, is written by a goroutine that exists only while the queue is not empty. Queued
// frames go out in one write. A frame may come in pieces; no other frame comes between them.
//
// # Slow clients
//
// The bytes behind the current write are bounded (Config.Queue), and each write of 64 KiB has
// a timeout (Config.WriteWait). A client that reads too slowly is closed with 1013; it
// reconnects and gets what it lacks. One frame may exceed the bound, or a large document
// could never be sent.
//
// The bytes that wait for all connections are bounded too (Config.QueueTotal; a shared piece counts
// once). Only large frames can exceed that, so each has a deadline by its size: generous at
// first, and much shorter while half of Config.QueueTotal is used, so that the slow clients are
// closed and not new ones. While all of it is used, no large frame begins and none grows.
//
// # States
//
//	live ──End──▶ ending ──the client closes, or Config.CloseWait──▶ closed
//
// Any goroutine may call End; the first call counts. It queues the close frame (the queue of
// a slow client is dropped first), closes Done and wakes the reading goroutine, which calls
// Finish. Finish discards what arrives until the client closes: closing a socket with unread
// bytes resets the connection, and the client might not see the reason. After the close frame
// our half of the connection is shut down. In the middle of a frame no close frame can be
// sent, and the connection is cut.
//
// # Time
//
// Connections have no timers. The owner calls Host.Tick once a second and CheckTimeouts for
// each connection. CheckTimeouts pings a client after 20 s without traffic in either direction.
// It closes a client after 60 s without a byte, or if the client reads a large frame too slowly.
// With the ping it sends a message without effect, because JavaScript clients do not see pings
// and reconnect after 30 s without a message.
package editor

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gorilla/websocket"
	"github.com/prometheus/client_golang/prometheus"

	"signalbox.dev/pkg/panics"
)

// Config configures the connections of a Host.
type Config struct {
	Message    int           // maximum bytes of a client's message
	Queue      int           // maximum bytes queued for one client
	QueueTotal int           // maximum bytes queued for all clients
	WriteWait  time.Duration // timeout of a write of 64 KiB
	CloseWait  time.Duration // from our close frame to the client's
	// In and Out count bytes.
	In, Out prometheus.Counter
}

// Host accepts connections.
type Host struct {
	cfg      Config
	start    time.Time
	tick     atomic.Int64 // whole seconds since start
	queued   atomic.Int64 // bytes that wait behind writes
	upgrader websocket.Upgrader
}

// NewHost returns a Host. upgradeError answers requests that are not valid handshakes.
func NewHost(cfg Config, upgradeError func(w http.ResponseWriter, reason error)) *Host {
	return &Host{cfg: cfg, start: time.Now(), upgrader: websocket.Upgrader{
		HandshakeTimeout: cfg.WriteWait,
		// Messages are short; longer ones bypass the buffer.
		ReadBufferSize: 256,
		// Without a pool each connection would keep a buffer that is never used.
		WriteBufferPool: &sync.Pool{},
		WriteBufferSize: 256,
		CheckOrigin:     func(*http.Request) bool { return true }, // the caller has checked it
		Error:           func(w http.ResponseWriter, _ *http.Request, _ int, reason error) { upgradeError(w, reason) },
	}}
}

// Tick advances the host's clock.
func (h *Host) Tick() { h.tick.Store(int64(time.Since(h.start) / time.Second)) }

// Conn is a connection; the package comment has its states and its goroutines.
type Conn struct {
	h    *Host
	wire wire            // its Conn is the client's
	raw  syscall.RawConn // nil if it is not a plain socket, as with TLS
	ws   *websocket.Conn
	idle []byte // what CheckTimeouts sends to an idle client
	done chan struct{}

	seen     atomic.Int64 // tick of the last byte from the client
	sent     atomic.Int64 // tick of the last write
	busy     atomic.Bool  // WithoutReading runs
	pinged   int64        // tick of the last ping; used by CheckTimeouts
	control  int64        // tick of the last control frames; the reader's
	controls int          // how many came in it

	run   func()   // write, stored so that starting it does not allocate
	spare [][]byte // the writer's: a queue to reuse
	left  [][]byte // the writer's: what Flush could not write

	mu      sync.Mutex // guards what follows
	queue   [][]byte   // frames, and pieces of them
	waiting int        // their bytes, but those of one large frame
	large   bool       // there is a large frame that is not written yet
	free    bool       // the frame being queued is the large one
	open    bool       // the last frame is incomplete
	taken   bool       // the writer has the beginning of the incomplete frame
	pong    []byte     // sent after the incomplete frame
	inQueue int        // part of Host.queued: the queue
	inWrite int        // part of Host.queued: the current write
	began   int64      // tick of the large frame's beginning plus one; 0 without one
	size    int64      // of the large frames since then
	writing bool       // there is a writer
	ending  bool       // nothing is added to the queue
	why     Closing    // set along with ending
}

// Take upgrades a request. If it fails, it has answered. The connection outlives the request;
// the caller reads from it and calls Finish.
func (h *Host) Take(w http.ResponseWriter, r *http.Request) (*Conn, error) {
	c := &Conn{h: h, done: make(chan struct{})}
	c.run = func() {
		if panics.Try(func() error { c.write(); return nil }) != nil {
			c.cut()
		}
	}
	ws, err := h.upgrader.Upgrade(&hijacker{w, c}, r, nil)
	if err != nil {
		return nil, err
	}
	c.wire.upgraded = true
	ws.SetReadLimit(int64(h.cfg.Message))
	ws.SetCloseHandler(func(int, string) error { return nil }) // see ReadError
	ws.SetPongHandler(func(string) error { return c.bound() })
	ws.SetPingHandler(func(data string) error {
		c.send(pongFrame(data), true)
		return c.bound()
	})
	c.ws = ws
	if s, ok := c.wire.Conn.(syscall.Conn); ok {
		c.raw, _ = s.SyscallConn() // nil when it fails
	}
	now := h.tick.Load()
	c.seen.Store(now)
	c.sent.Store(now)
	return c, nil
}

// NetConn returns the underlying connection.
func (c *Conn) NetConn() net.Conn { return c.wire.Conn }

// SetIdle sets the frames that CheckTimeouts sends to an idle client. It must be called before CheckTimeouts.
func (c *Conn) SetIdle(frames []byte) { c.idle = frames }

// Done is closed when the connection begins to end.
func (c *Conn) Done() <-chan struct{} { return c.done }

// ReadFirst reads a message of at most limit bytes, until a deadline. It must not be called after
// NextReader. The error is gorilla's.
func (c *Conn) ReadFirst(limit int, deadline time.Time) (kind int, msg []byte, err error) {
	c.ws.SetReadLimit(int64(limit))
	c.setReadDeadline(deadline)
	defer func() {
		c.ws.SetReadLimit(int64(c.h.cfg.Message))
		c.setReadDeadline(time.Time{})
	}()
	return c.ws.ReadMessage()
}

// setReadDeadline has no effect while the connection is ending, which sets its own deadline.
func (c *Conn) setReadDeadline(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ending {
		_ = c.wire.SetReadDeadline(at) // fails if it is closed
	}
}

// NextReader returns the next message, which is binary. ReadError converts its errors and
// those of the reader.
func (c *Conn) NextReader() (io.Reader, error) {
	kind, r, err := c.ws.NextReader()
	if err != nil {
		return nil, err
	}
	if kind != websocket.BinaryMessage {
		return nil, &notBinary
	}
	return r, nil
}

// WithoutReading runs f, during which nothing is read and the client's silence does not count.
func (c *Conn) WithoutReading(f func() error) error {
	c.busy.Store(true)
	err := f()
	c.seen.Store(c.h.tick.Load())
	c.busy.Store(false)
	return err
}

// maxControls is the number of control frames that a client may send in a second.
const maxControls = 50

// bound delays a client that sends too many control frames.
func (c *Conn) bound() error {
	now := c.h.tick.Load()
	if now != c.control {
		c.control, c.controls = now, 0
	}
	if c.controls++; c.controls < maxControls {
		return nil
	}
	c.controls = 0
	return c.WithoutReading(func() error {
		t := time.NewTimer(time.Second)
		defer t.Stop()
		select {
		case <-c.done:
		case <-t.C:
		}
		return nil
	})
}

const (
	pingAfter = 20 // seconds of silence in either direction
	deadAfter = 60 // seconds without a byte
)

// CheckTimeouts checks the timeouts; see the package comment.
func (c *Conn) CheckTimeouts() {
	tick := c.h.tick.Load()
	seen := c.seen.Load()
	switch {
	case tick-seen >= deadAfter && !c.busy.Load():
		c.End(Closing{Code: CodeLost, Reason: "no byte came for too long"})
	case tick-min(seen, c.sent.Load()) >= pingAfter && tick-c.pinged >= pingAfter:
		c.pinged = tick
		c.Send(c.idle)
	}
	if c.late(tick) {
		c.End(tooSlow)
	}
}

// Finish ends the connection unless it is ending already, reads until the client closes, and
// closes the connection. It returns the reason why it ended.
func (c *Conn) Finish(why Closing) Closing {
	c.End(why)
	c.mu.Lock()
	why = c.why
	c.mu.Unlock()
	if !why.lost() {
		_ = c.wire.SetReadDeadline(time.Now().Add(c.h.cfg.CloseWait)) // fails if it is closed
		_, _ = io.Copy(io.Discard, onlyReader{c.wire.Conn})           // an error ends it too
	}
	c.wire.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.release(&c.inWrite)
	c.release(&c.inQueue)
	return why
}

// onlyReader hides a connection's WriteTo from io.Copy.
type onlyReader struct{ io.Reader }

// hijacker gives gorilla a wire instead of the underlying connection.
type hijacker struct {
	http.ResponseWriter
	c *Conn
}

// Hijack implements http.Hijacker, also below writers that only unwrap.
func (w *hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	under, buffered, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	w.c.wire = wire{Conn: under, c: w.c}
	return &w.c.wire, buffered, nil
}

// wire is the connection that gorilla uses. It records when bytes arrive. After the handshake
// it drops what gorilla writes, which is only close frames: End queues those.
type wire struct {
	net.Conn
	c        *Conn
	upgraded bool
}

// Read implements net.Conn.
func (w *wire) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	if n > 0 {
		w.c.seen.Store(w.c.h.tick.Load())
		w.c.h.cfg.In.Add(float64(n))
	}
	return n, err
}

// Write implements net.Conn.
func (w *wire) Write(p []byte) (int, error) {
	if w.upgraded {
		return len(p), nil
	}
	return w.Conn.Write(p)
}
