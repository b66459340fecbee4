package mux

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"signalbox.dev/pkg/panics"
)

const (
	// stallTimeout is how long a stream may make no progress. It is long because a Session
	// makes senders wait while a database is unavailable.
	stallTimeout = time.Minute
	maxWaiting   = 1 << 20 // bytes on their way up, beyond which senders wait
	maxRerouted  = 10_000  // keys
	dialTimeout  = 2 * time.Second
)

// Errors of streams. Network errors come as they are.
var (
	ErrSilent  = errors.New("mux: the peer is silent")
	ErrStalled = errors.New("mux: the peer does not read the stream")
	ErrClosed  = errors.New("mux: the stream is closed")
	errClosed  = errors.New("mux: closed")
	errGoAway  = errors.New("mux: the peer takes no new streams")
)

// Config configures a Pool.
type Config struct {
	// Dial opens a connection and upgrades it; first holds the bytes read after the upgrade.
	Dial func(context.Context) (conn net.Conn, first []byte, err error)
	// Conns is the greatest number of connections that take new streams; 0 means 4.
	Conns int
	// PeerTimeout is how long a peer may be silent; 0 means 6 s. The Pool pings three times
	// in that time.
	PeerTimeout time.Duration
	// MaxAge is how long a connection takes new streams, give or take a third; 0 means 15 min.
	// It is checked with each ping.
	MaxAge time.Duration
}

// Sink is the client of a stream. The connection's only reader calls its methods: they must
// not block.
type Sink interface {
	// Deliver takes a piece of a message; more reports whether the message goes on. The piece
	// is shared by that many sinks and must not be changed. Writing it may wait for Flush.
	Deliver(piece []byte, more bool, sharers int)
	// Flush follows soon after one or more calls of Deliver.
	Flush()
	// Closed reports that the Server closed the stream. Only Flush may follow.
	Closed(code int, reason string)
	// Broken is called instead of Closed if the connection breaks.
	Broken(cause error)
}

// Pool opens streams to Servers. It opens connections when they are needed, each for the
// streams of some keys. NewPool makes it, Run has to run while it is used, and its methods
// may be called from any goroutine.
type Pool struct {
	cfg  Config
	seed maphash.Seed
	turn atomic.Uint64  // spreads streams without a key
	tick atomic.Int64   // counts pings
	wg   sync.WaitGroup // dials and readers

	dialCtx context.Context //nolint:containedctx // ends with Run
	stop    context.CancelFunc

	mu       sync.Mutex // guards what follows
	slots    []*slot
	conns    map[*clientConn]struct{}
	rerouted map[uint64]reroute // by the key's hash
	closed   bool
}

// reroute is where the streams of a key go after a Server was too busy for one.
type reroute struct {
	offset uint32 // in slots, from the key's own slot
	until  time.Time
}

// slot is a place for a connection that takes new streams.
type slot struct {
	conn    *clientConn
	dialing chan struct{} // closed when the dial ends; nil if none is under way
	err     error         // of the last dial
}

// clientConn is a Pool's end of a connection.
type clientConn struct {
	pool     *Pool
	out      outbox
	once     sync.Once
	retireAt time.Time
	heard    atomic.Int64 // the tick of the last frame

	mu      sync.Mutex // guards what follows
	streams map[uint64]*ClientStream
	newest  uint64
	retired bool  // takes no new streams
	broken  error // set once
}

// ClientStream is a Pool's end of a stream.
type ClientStream struct {
	conn   *clientConn
	id     uint64
	sink   Sink
	key    uint64 // the key's hash, 0 without a key
	offset uint32 // of its slot from the key's own
	dirty  bool   // needs a flush; used by the reader alone

	mu     sync.Mutex // guards what follows
	credit int
	wake   chan struct{} // receives when credit grows; nil if nobody has waited
}

// NewPool returns a pool without connections.
func NewPool(cfg Config) *Pool {
	if cfg.Conns == 0 {
		cfg.Conns = 4
	}
	if cfg.PeerTimeout == 0 {
		cfg.PeerTimeout = 6 * time.Second
	}
	if cfg.MaxAge == 0 {
		cfg.MaxAge = 15 * time.Minute
	}
	p := &Pool{
		cfg: cfg, seed: maphash.MakeSeed(), slots: make([]*slot, cfg.Conns),
		conns: map[*clientConn]struct{}{}, rerouted: map[uint64]reroute{},
	}
	for i := range p.slots {
		p.slots[i] = &slot{}
	}
	p.dialCtx, p.stop = context.WithCancel(context.Background())
	return p
}

// Run pings and retires connections until ctx is done. It then aborts all of them, and
// returns nil when their streams have been told.
func (p *Pool) Run(ctx context.Context) error {
	t := time.NewTicker(p.cfg.PeerTimeout / 3)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			p.mu.Lock()
			p.closed = true
			p.mu.Unlock()
			p.stop()
			for _, c := range p.all() {
				c.abort(errClosed)
			}
			p.wg.Wait()
			return nil
		case now := <-t.C:
			p.check(p.tick.Add(1), now)
		}
	}
}

// check pings all connections, and aborts, retires and forgets what is due.
func (p *Pool) check(tick int64, now time.Time) {
	for _, c := range p.all() {
		if tick-c.heard.Load() >= 3 {
			c.abort(ErrSilent)
			continue
		}
		c.out.send(&frame{kind: kindPing})
		if now.After(c.retireAt) {
			p.retire(c)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.rerouted, func(_ uint64, r reroute) bool { return now.After(r.until) })
}

func (p *Pool) all() []*clientConn {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Keys(p.conns))
}

// Open opens a stream. Streams with the same key share a connection, until it retires or
// its Server is too busy; streams without a key are spread. The sink may be called before
// Open returns. The error is that of dialing, or ctx's.
func (p *Pool) Open(ctx context.Context, key string, o OpenRequest, to Sink) (*ClientStream, error) {
	hash := uint64(0)
	if key != "" {
		hash = maphash.String(p.seed, key)
	}
	s, offset := p.slotOf(hash)
	for range 3 { // a connection may break at this moment
		c, err := p.connOf(ctx, s)
		if err != nil {
			return nil, err
		}
		cs := &ClientStream{conn: c, sink: to, key: hash, offset: offset, credit: Window}
		if c.open(cs, o) {
			return cs, nil
		}
		p.retire(c)
	}
	return nil, errors.New("mux: connections break as soon as they are open")
}

// slotOf returns the slot of a key, and its offset from the key's own slot.
func (p *Pool) slotOf(key uint64) (s *slot, offset uint32) {
	n := uint64(len(p.slots))
	if key == 0 {
		return p.slots[p.turn.Add(1)%n], 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	offset = p.rerouted[key].offset
	return p.slots[(key%n+uint64(offset))%n], offset
}

// reroute opens the next streams of cs's key in the next slot, because cs's Server was too
// busy. Several streams of a slot that are told so reroute their key once.
func (p *Pool) reroute(cs *ClientStream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r, known := p.rerouted[cs.key]
	if cs.key == 0 || r.offset != cs.offset || !known && len(p.rerouted) >= maxRerouted {
		return
	}
	p.rerouted[cs.key] = reroute{offset: (cs.offset + 1) % uint32(len(p.slots)), until: time.Now().Add(p.cfg.MaxAge)}
}

// connOf returns a slot's connection. Without one, the first caller dials for all.
func (p *Pool) connOf(ctx context.Context, s *slot) (*clientConn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for waited := false; ; {
		switch {
		case s.conn != nil:
			return s.conn, nil
		case p.closed:
			return nil, errClosed
		case s.dialing == nil && waited:
			return nil, cmp.Or(s.err, errGoAway)
		case s.dialing == nil:
			s.dialing = make(chan struct{})
			p.wg.Add(1)
			go p.dial(s) //nolint:contextcheck // the dial is for all callers
		}
		waited = true
		done := s.dialing
		p.mu.Unlock()
		select {
		case <-done:
		case <-ctx.Done():
		}
		p.mu.Lock()
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
}

// dial fills a slot.
func (p *Pool) dial(s *slot) {
	defer p.wg.Done()
	ctx, cancel := context.WithTimeout(p.dialCtx, dialTimeout)
	defer cancel()
	var (
		conn  net.Conn
		first []byte
	)
	err := panics.Try(func() (err error) {
		conn, first, err = p.cfg.Dial(ctx)
		return err
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	close(s.dialing)
	s.dialing, s.err = nil, err
	if err != nil {
		return
	}
	c := &clientConn{pool: p, streams: map[uint64]*ClientStream{}, retireAt: time.Now().Add(p.cfg.MaxAge*2/3 + rand.N(p.cfg.MaxAge*2/3+1))}
	c.out = outbox{conn: conn, fail: c.abort}
	c.heard.Store(p.tick.Load())
	s.conn = c
	p.conns[c] = struct{}{}
	p.wg.Add(1)
	go c.serve(newReader(conn, first))
	if p.closed {
		c.abort(errClosed)
	}
}

// retire opens no new streams on a connection, which closes when its last stream does.
func (p *Pool) retire(c *clientConn) {
	p.mu.Lock()
	for _, s := range p.slots {
		if s.conn == c {
			s.conn = nil
		}
	}
	p.mu.Unlock()
	c.mu.Lock()
	idle := len(c.streams) == 0 && !c.retired
	c.retired = true
	c.mu.Unlock()
	if idle {
		c.out.closeAfterWrites()
	}
}

// open opens a stream. It returns false if the connection takes no new ones.
func (c *clientConn) open(cs *ClientStream, o OpenRequest) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.retired || c.broken != nil {
		return false
	}
	c.newest++
	cs.id = c.newest
	c.streams[cs.id] = cs
	c.out.send(&frame{kind: kindOpen, stream: cs.id, path: o.Path, text: o.Context, number: uint64(o.Expires)}) //nolint:gosec // never negative
	return true
}

// abort breaks the connection. The first cause counts.
func (c *clientConn) abort(cause error) {
	c.once.Do(func() {
		c.mu.Lock()
		c.broken = cause
		c.mu.Unlock()
		_ = c.out.conn.Close() // it is broken anyway
		c.out.close()
	})
}

// serve is the connection's reader.
func (c *clientConn) serve(r *reader) {
	defer c.pool.wg.Done()
	c.abort(panics.Try(func() error { return c.read(r) }))
	c.pool.retire(c)
	c.pool.mu.Lock()
	delete(c.pool.conns, c)
	c.pool.mu.Unlock()
	c.mu.Lock()
	streams, cause := c.streams, c.broken
	c.streams = nil
	c.mu.Unlock()
	for _, cs := range streams {
		cs.sink.Broken(cause)
	}
}

func (c *clientConn) read(r *reader) error {
	var f frame
	var to, dirty []*ClientStream
	for {
		if !r.ready() {
			for _, cs := range dirty {
				cs.dirty = false
				cs.sink.Flush()
			}
			clear(dirty)
			dirty = dirty[:0]
		}
		body, err := r.body()
		if err != nil {
			return fmt.Errorf("mux: read: %w", err)
		}
		c.heard.Store(c.pool.tick.Load())
		if err := f.parse(body); err != nil {
			return err
		}
		if f.kind != kindDeliver {
			if err := c.handle(&f); err != nil {
				return err
			}
			continue
		}
		to = c.find(to[:0], f.streams)
		if len(to) == 0 {
			continue
		}
		piece := bytes.Clone(f.data)
		for _, cs := range to {
			cs.sink.Deliver(piece, f.more, len(to))
			if !cs.dirty {
				cs.dirty = true
				dirty = append(dirty, cs)
			}
		}
		clear(to)
	}
}

// find returns the streams with those ids that are open.
func (c *clientConn) find(to []*ClientStream, ids []uint64) []*ClientStream {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range ids {
		if cs := c.streams[id]; cs != nil {
			to = append(to, cs)
		}
	}
	return to
}

func (c *clientConn) handle(f *frame) error {
	switch f.kind {
	case kindServerClose:
		if cs := c.remove(f.stream); cs != nil {
			if f.number == CodeBusy {
				c.pool.reroute(cs)
			}
			cs.sink.Closed(int(f.number), f.text) //nolint:gosec // any code may come
		}
		return nil
	case kindCredit:
		c.mu.Lock()
		cs := c.streams[f.stream]
		c.mu.Unlock()
		if cs != nil {
			return cs.addCredit(f.number)
		}
		return nil
	case kindPong:
		return nil
	case kindGoAway:
		c.pool.retire(c)
		return nil
	}
	return fmt.Errorf("%w: a server does not send kind %d", ErrMalformed, f.kind)
}

// remove forgets a stream and returns it, nil if it is closed already.
func (c *clientConn) remove(id uint64) *ClientStream {
	c.mu.Lock()
	cs := c.streams[id]
	delete(c.streams, id)
	idle := c.retired && len(c.streams) == 0 && c.streams != nil
	c.mu.Unlock()
	if idle && cs != nil {
		c.out.closeAfterWrites()
	}
	return cs
}

func (cs *ClientStream) addCredit(n uint64) error {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if n > Window || cs.credit+int(n) > Window { //nolint:gosec // n is at most Window
		return fmt.Errorf("%w: credit beyond the window", ErrMalformed)
	}
	cs.credit += int(n) //nolint:gosec // as above
	select {
	case cs.wake <- struct{}{}:
	default:
	}
	return nil
}

// Send sends a part of a message, of at most MaxPart bytes, which it copies; more reports
// whether the message goes on. Send waits for credit: ErrStalled after a minute, ErrClosed
// when stop is closed, which the caller does when the stream ends. Calls must not overlap.
func (cs *ClientStream) Send(part []byte, more bool, stop <-chan struct{}) error {
	if err := cs.spend(len(part)+partCost, stop); err != nil {
		return err
	}
	if !cs.conn.out.sendBounded(&frame{kind: kindData, stream: cs.id, data: part, more: more}, maxWaiting, stop) {
		return ErrClosed
	}
	return nil
}

// spend takes n from the credit, and waits for it.
func (cs *ClientStream) spend(n int, stop <-chan struct{}) error {
	var stalled <-chan time.Time
	for {
		cs.mu.Lock()
		if cs.credit >= n {
			cs.credit -= n
			cs.mu.Unlock()
			return nil
		}
		if cs.wake == nil {
			cs.wake = make(chan struct{}, 1)
		}
		wake := cs.wake
		cs.mu.Unlock()
		if stalled == nil {
			t := time.NewTimer(stallTimeout)
			defer t.Stop()
			stalled = t.C
		}
		select {
		case <-wake:
		case <-stop:
			return ErrClosed
		case <-stalled:
			return ErrStalled
		}
	}
}

// Close closes the stream with the client's code and reason. The sink may still be called
// with what is on its way. Close does nothing if the stream is closed already.
func (cs *ClientStream) Close(code int, reason string) {
	c := cs.conn
	c.mu.Lock()
	_, open := c.streams[cs.id]
	c.mu.Unlock()
	if !open {
		return
	}
	c.out.send(&frame{kind: kindClientClose, stream: cs.id, number: uint64(code), text: reason}) //nolint:gosec // never negative
	c.remove(cs.id)
}
