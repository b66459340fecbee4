// Package editor has the WebSockets of people who edit.
//
// # A connection
//
// One goroutine reads: its owner's, by NextReader and Finish. Gorilla's part is the handshake and
// reading. It writes nothing after the handshake (see wire), so that close frames, too,
// go through the queue.
//
// Everybody else only queues frames and returns. What was queued by Queue is written
// by Flush, at once and without a goroutine where the kernel takes it; what it does not
// take, and what Send queues, a goroutine writes, which is there only while the queue is
// not empty. What has gathered goes out in one write. A frame may come in pieces; no other one
// comes between them.
//
// The queue is bounded in bytes behind what is being written (Config.Queue), and each
// write of 64 KiB has Config.WriteWait: who reads too slowly is closed with 1013, and a
// client that connects again gets what it lacks. One frame may be larger than the
// bound, or a large document could never be sent.
//
// What waits behind writes for all connections is bounded, too (Config.Held; a piece that
// many share counts once), and large frames are what could exceed that. So each has a
// time in which it must have been read, by its size: plenty, and much less while half of
// Config.Held is used, so that those go who are slow and not those who come. When all of
// it is used, no large frame begins, and none grows that waits.
//
// # Its end
//
//	live ──End──▶ ending ──the peer closes, or Config.CloseWait──▶ closed
//
// End may be called by anybody, and the first one counts. It queues the close frame
// behind what waits (a slow reader's queue is thrown away first), closes Done and wakes
// who reads. That one calls Finish, which reads and forgets what still arrives until the
// peer closes: who closes a socket with unread bytes in it resets the connection, and
// the peer may never see why. After the close frame our half of the connection is shut, so
// that a peer does not wait for us either. In the middle of a frame nothing can be said:
// the connection is cut.
//
// # Time
//
// There are no timers and no goroutines for time in a connection. The owner of all calls
// Host.Tick once a second and Look for each connection: it pings who was silent, or was
// told nothing, for 20 s, and drops who has sent no byte for 60 s, or reads a large frame too
// slowly. Along with a ping goes
// a message that says nothing, because the clients are JavaScript, which sees no pings:
// without a message for 30 s they take the server for dead.
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

// Config is what a Host's connections have in common.
type Config struct {
	Message   int           // bytes of a message that is read
	Queue     int           // bytes that wait for a peer that reads slowly
	Held      int           // bytes that wait for all peers together
	WriteWait time.Duration // for 64 KiB
	CloseWait time.Duration // from our close frame to the peer's
	// In and Out count bytes.
	In, Out prometheus.Counter
}

// Host makes connections.
type Host struct {
	cfg      Config
	start    time.Time
	tick     atomic.Int64 // whole seconds since start
	held     atomic.Int64 // bytes that wait behind writes
	upgrader websocket.Upgrader
}

// NewHost returns a host. upgradeError answers what is no handshake.
func NewHost(cfg Config, upgradeError func(w http.ResponseWriter, reason error)) *Host {
	return &Host{cfg: cfg, start: time.Now(), upgrader: websocket.Upgrader{
		HandshakeTimeout: cfg.WriteWait,
		// Messages are short; what is longer is read past the buffer.
		ReadBufferSize: 256,
		// Without a pool each connection would have a buffer that is never used.
		WriteBufferPool: &sync.Pool{},
		WriteBufferSize: 256,
		CheckOrigin:     func(*http.Request) bool { return true }, // the caller did
		Error:           func(w http.ResponseWriter, _ *http.Request, _ int, reason error) { upgradeError(w, reason) },
	}}
}

// Tick tells the host what time it is.
func (h *Host) Tick() { h.tick.Store(int64(time.Since(h.start) / time.Second)) }

// Conn is a connection; the package comment has its states and its goroutines.
type Conn struct {
	h    *Host
	wire wire            // its Conn is what is written to
	raw  syscall.RawConn // nil where there is more than a socket, as with TLS
	ws   *websocket.Conn
	idle []byte // what Look sends
	done chan struct{}

	seen     atomic.Int64 // tick of the last byte from the peer
	sent     atomic.Int64 // tick of the last write
	busy     atomic.Bool  // who reads is not reading, for reasons of ours
	pinged   int64        // tick of the last ping; Look's
	control  int64        // tick of the last control frames; the reader's
	controls int          // how many came in it

	run   func()   // write, as a value: to start it costs nothing then
	spare [][]byte // the writer's: a queue to be used again
	left  [][]byte // the writer's: what Flush could not write

	mu      sync.Mutex // guards what follows
	queue   [][]byte   // frames, and pieces of them
	waiting int        // their bytes, but those of one large frame
	large   bool       // there is that one, and it is not written yet
	free    bool       // the frame that is being queued is it
	open    bool       // more pieces of the last frame are to come
	taken   bool       // the writer has the beginning of that frame, and not its end
	pong    []byte     // waits for the end of that frame
	holds   int        // of Host.held: what is in the queue
	held    int        // of Host.held: what is being written
	began   int64      // tick of the large frame's beginning and one; 0 when none is under way
	size    int64      // of it, and of those that follow it without a pause
	writing bool       // there is a writer
	ending  bool       // nothing is added to the queue any more
	why     Closing    // set along with ending
}

// Take upgrades a request. After an error it was answered. The connection outlives the
// request; the caller reads, and calls Finish.
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

// Under returns what the connection is made of.
func (c *Conn) Under() net.Conn { return c.wire.Conn }

// SetIdle says what is sent to a peer that was told nothing for long. It is to be called
// before Look.
func (c *Conn) SetIdle(frames []byte) { c.idle = frames }

// Done is closed when the end begins.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Before reads a message of at most limit bytes, until a deadline. It is for what comes
// before NextReader. The error is gorilla's.
func (c *Conn) Before(limit int, deadline time.Time) (kind int, msg []byte, err error) {
	c.ws.SetReadLimit(int64(limit))
	c.setReadDeadline(deadline)
	defer func() {
		c.ws.SetReadLimit(int64(c.h.cfg.Message))
		c.setReadDeadline(time.Time{})
	}()
	return c.ws.ReadMessage()
}

// setReadDeadline does nothing in the end, which has deadlines of its own.
func (c *Conn) setReadDeadline(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ending {
		_ = c.wire.SetReadDeadline(at) // fails when it is closed
	}
}

// NextReader returns the next message, which is binary. Its errors, and those of the
// reader, are to go through ReadError.
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

// Away runs f, in which nothing is read: the peer's silence is our doing.
func (c *Conn) Away(f func() error) error {
	c.busy.Store(true)
	err := f()
	c.seen.Store(c.h.tick.Load())
	c.busy.Store(false)
	return err
}

// maxControls is how many control frames a peer may send in a second.
const maxControls = 50

// bound makes who sends too many control frames wait.
func (c *Conn) bound() error {
	now := c.h.tick.Load()
	if now != c.control {
		c.control, c.controls = now, 0
	}
	if c.controls++; c.controls < maxControls {
		return nil
	}
	c.controls = 0
	return c.Away(func() error {
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

// Look does what time asks for.
func (c *Conn) Look() {
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

// Finish ends the connection, if it has not ended, reads on until the peer closes, and
// closes. It returns why it ended.
func (c *Conn) Finish(why Closing) Closing {
	c.End(why)
	c.mu.Lock()
	why = c.why
	c.mu.Unlock()
	if !why.lost() {
		_ = c.wire.SetReadDeadline(time.Now().Add(c.h.cfg.CloseWait)) // fails when it is closed
		_, _ = io.Copy(io.Discard, onlyReader{c.wire.Conn})           // the error is how it ends
	}
	c.wire.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.letGo(&c.held)
	c.letGo(&c.holds)
	return why
}

// onlyReader hides a connection's WriteTo, which io.Copy would like better, from it.
type onlyReader struct{ io.Reader }

// hijacker gives gorilla the connection's wire in place of what is under it.
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

// wire is what gorilla reads from. It notes that the peer lives, and after the
// handshake it swallows what gorilla writes, which is close frames only: those are
// ours to write, in the right place of the queue.
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
