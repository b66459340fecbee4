package faultproxy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// conn is one client's connection and, unless it was forgotten before, the one to the target.
type conn struct {
	p         *Proxy
	ctx       context.Context //nolint:containedctx // the connection's life: abort ends it
	stop      context.CancelFunc
	client    net.Conn
	forgotten atomic.Bool // it passes nothing any more

	mu     sync.Mutex // guards the rest
	server net.Conn
	gone   bool
}

func newConn(p *Proxy, client net.Conn) *conn {
	c := &conn{p: p, client: client}
	c.ctx, c.stop = context.WithCancel(p.ctx)
	return c
}

// meet applies the immediate effects of a fault to an open connection.
func (c *conn) meet(f Fault) {
	if f.BlackHole {
		c.forgotten.Store(true)
	}
	if f.Reset {
		c.abort()
	}
}

// join adds the target's side. It returns false if the client's has been cut meanwhile.
func (c *conn) join(server net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone {
		cut(server)
		return false
	}
	c.server = server
	return true
}

// abort resets both sides. Calling it twice is harmless.
func (c *conn) abort() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone {
		return
	}
	c.gone = true
	c.stop()
	cut(c.client)
	if c.server != nil {
		cut(c.server)
	}
}

// cut closes a connection with a reset, if its kind has one.
func cut(nc net.Conn) {
	if l, ok := nc.(interface{ SetLinger(sec int) error }); ok {
		_ = l.SetLinger(0) // at worst it is a close like any other
	}
	_ = nc.Close()
}

// run copies bytes until both directions have ended.
func (c *conn) run() {
	var halves sync.WaitGroup
	begin := func(d Direction, from, to net.Conn) {
		h := &half{conn: c, direction: d, from: from, to: to, pushed: make(chan struct{}, 1), taken: make(chan struct{}, 1)}
		halves.Go(h.read)
		halves.Go(h.write)
	}
	begin(Up, c.client, c.server)
	if c.server != nil {
		begin(Down, c.server, c.client)
	}
	halves.Wait()
	c.abort() // both have ended cleanly: this only closes
}

// half is one direction of a connection.
type half struct {
	*conn
	direction Direction
	from, to  net.Conn // to is nil if the target was never reached
	pushed    chan struct{}
	taken     chan struct{}

	mu    sync.Mutex // guards queue and size
	queue []piece
	size  int

	free time.Time // when the rate allows the next write; owned by the writer
}

// piece is some bytes or, if there are none, an end.
type piece struct {
	at    time.Time // when it arrived
	bytes []byte
	end   error // io.EOF for a clean one
}

const readSize = 32 << 10

// read fills the queue until the connection ends.
func (h *half) read() {
	buf := make([]byte, readSize)
	for h.awaitRoom() {
		n, err := h.from.Read(buf)
		if n > 0 && !h.forgotten.Load() {
			h.push(piece{at: time.Now(), bytes: bytes.Clone(buf[:n])})
		}
		if err != nil {
			h.push(piece{at: time.Now(), end: err})
			return
		}
	}
}

// awaitRoom returns false when the connection has been cut.
func (h *half) awaitRoom() bool {
	for {
		l := h.p.line.Load()
		h.mu.Lock()
		full := h.size >= l.room() && !h.forgotten.Load()
		h.mu.Unlock()
		if !full {
			return true
		}
		select {
		case <-h.taken:
		case <-l.changed:
		case <-h.ctx.Done():
			return false
		}
	}
}

func (h *half) push(p piece) {
	h.mu.Lock()
	h.queue = append(h.queue, p)
	h.size += len(p.bytes)
	h.mu.Unlock()
	tap(h.pushed)
}

func tap(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // a wake-up is pending already
	}
}

// write sends the queue as the fault allows until the connection ends.
func (h *half) write() {
	for {
		p, ok := h.next()
		switch {
		case !ok:
			return
		case h.forgotten.Load():
			if p.end != nil {
				h.abort()
				return
			}
		case p.end != nil:
			h.finish(p.end)
			return
		default:
			if _, err := h.to.Write(p.bytes); err != nil {
				h.abort()
				return
			}
		}
	}
}

// finish passes an end on: a clean one as a close, others as a reset.
func (h *half) finish(end error) {
	w, ok := h.to.(interface{ CloseWrite() error })
	if !ok || !errors.Is(end, io.EOF) || w.CloseWrite() != nil {
		h.abort()
	}
}

// next waits for the next piece that may be written, and takes it.
func (h *half) next() (piece, bool) {
	for {
		l := h.p.line.Load()
		p, wait, ok := h.take(l, time.Now())
		if ok {
			tap(h.taken)
			return p, true
		}
		var due <-chan time.Time
		stop := func() bool { return true }
		if wait > 0 {
			t := time.NewTimer(wait)
			due, stop = t.C, t.Stop
		}
		select {
		case <-h.pushed:
		case <-l.changed:
		case <-due:
		case <-h.ctx.Done():
			stop()
			return piece{}, false
		}
		stop()
	}
}

// tick is how often something comes out of a line with a rate.
const tick = 50 * time.Millisecond

// take takes the first piece of the queue, or as much of it as the rate allows. If none is due it
// returns how long to wait, 0 if only a change can help.
func (h *half) take(l *line, now time.Time) (p piece, wait time.Duration, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.queue) == 0 || l.holds(h.direction) {
		return piece{}, 0, false
	}
	p = h.queue[0]
	due := p.at.Add(l.Latency)
	if p.end != nil {
		due = due.Add(l.SlowClose)
	}
	if l.Rate > 0 && h.free.After(due) {
		due = h.free
	}
	if wait := due.Sub(now); wait > 0 {
		return piece{}, wait, false
	}
	if n := max(1, int(float64(l.Rate)*tick.Seconds())); l.Rate > 0 && p.end == nil {
		n = min(n, len(p.bytes))
		h.free = now.Add(time.Duration(n) * time.Second / time.Duration(l.Rate))
		h.queue[0].bytes = p.bytes[n:]
		p.bytes = p.bytes[:n]
	}
	h.size -= len(p.bytes)
	if l.Rate == 0 || p.end != nil || len(h.queue[0].bytes) == 0 {
		h.queue[0] = piece{}
		h.queue = h.queue[1:]
	}
	return p, 0, true
}
