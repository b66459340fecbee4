package mux

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"signalbox.dev/pkg/panics"
)

const (
	// stallTimeout is how long a Server may take nothing of a stream. It is long: a Session
	// makes senders wait while a database is away.
	stallTimeout = time.Minute
	// maxWaiting is how many bytes may wait to go up before senders do.
	maxWaiting = 1 << 20
	// dialTimeout bounds how long a new trunk may take.
	dialTimeout = 2 * time.Second
)

// Errors with which streams end, or are not opened. A trunk that breaks has others, too.
var (
	ErrSilent  = errors.New("mux: the other end is silent")
	ErrStalled = errors.New("mux: the other end takes nothing of the stream")
	ErrClosed  = errors.New("mux: the stream is over")
	errClosed  = errors.New("mux: closed")
	errGoAway  = errors.New("mux: the other end takes no new streams")
)

// Config is what a Pool works with.
type Config struct {
	// Dial opens a connection and upgrades it; first is what was read behind that.
	Dial func(context.Context) (conn net.Conn, first []byte, err error)
	// Conns is how many there are at most, besides those that drain: 4 when it is 0.
	Conns int
	// PeerTimeout is for how long the other end may say nothing: 6 s when it is 0. It is asked
	// three times in that.
	PeerTimeout time.Duration
	// MaxAge is after how long a trunk gets no new streams, a third more or less: 15 min when
	// it is 0. It is looked at three times in PeerTimeout.
	MaxAge time.Duration
}

// maxMoved bounds how many keys are away from their own trunk.
const maxMoved = 10_000

// Sink is a socket's client, as a stream sees it. Its methods are called by the trunk's
// only reader: they must not wait.
type Sink interface {
	// Deliver takes a piece of a message, to which more belongs or not. The piece is shared
	// by so many sinks and must not be changed. It need not be written before Flush.
	Deliver(piece []byte, more bool, sharers int)
	// Flush comes soon after Deliver, for all of a moment's pieces.
	Flush()
	// End says that the Server ended the stream, with a close code and a reason. Nothing
	// but Flush follows.
	Closed(code int, reason string)
	// Broken comes in place of End when the trunk broke.
	Broken(why error)
}

// Pool is the end of trunks where sockets come from. Conns are opened when they are
// needed: each has the streams of some keys. One that is old keeps its streams and gets
// no more; the next one may lead to another Server behind the same address. The pool is
// made by NewPool, works while Run does, and may be used from any goroutine.
type Pool struct {
	cfg  Config
	seed maphash.Seed
	turn atomic.Uint64
	tick atomic.Int64 // goes up three times in PeerTimeout
	live sync.WaitGroup

	dialing context.Context //nolint:containedctx // the life of what is being opened
	stop    context.CancelFunc

	mu     sync.Mutex // guards what follows
	slots  []*slot
	links  map[*clientConn]struct{}
	moved  map[uint64]moved // by the key's hash: keys are not kept
	closed bool
}

// moved is where the streams of a key go that the Server had no place for.
type moved struct {
	by    uint32 // slots from its own one
	until time.Time
}

// slot is a place for a trunk.
type slot struct {
	link    *clientConn
	dialing chan struct{} // closed when whoever dials is done; nil when nobody does
	err     error         // of the last dialing
}

// clientConn is a trunk at a Pool.
type clientConn struct {
	pool  *Pool
	out   outbox
	once  sync.Once
	old   time.Time    // when it is, and gets no new streams
	heard atomic.Int64 // tick of the last byte

	mu      sync.Mutex // guards what follows
	streams map[uint64]*ClientStream
	newest  uint64
	retired bool  // no new streams
	broken  error // set once
}

// ClientStream is a stream at a Pool.
type ClientStream struct {
	link *clientConn
	id   uint64
	sink Sink
	key  uint64 // its hash, 0 for none
	by   uint32 // slots from the key's own one
	// dirty is the reader's: there is something to be flushed.
	dirty bool

	mu     sync.Mutex // guards what follows
	credit int
	wake   chan struct{} // when somebody waits for credit: gets one when there is more
}

// NewPool returns a pool without trunks.
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
		links: map[*clientConn]struct{}{}, moved: map[uint64]moved{},
	}
	for i := range p.slots {
		p.slots[i] = &slot{}
	}
	p.dialing, p.stop = context.WithCancel(context.Background())
	return p
}

// Run keeps trunks honest until ctx is done; then it breaks all, and returns nil when
// their streams have heard of it.
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
			for _, l := range p.list() {
				l.cut(errClosed)
			}
			p.live.Wait()
			return nil
		case now := <-t.C:
			p.look(p.tick.Add(1), now)
		}
	}
}

// look does what time asks for.
func (p *Pool) look(tick int64, now time.Time) {
	for _, l := range p.list() {
		if tick-l.heard.Load() >= 3 {
			l.cut(ErrSilent)
			continue
		}
		l.out.send(&frame{kind: kindPing})
		if now.After(l.old) {
			p.retire(l)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, m := range p.moved {
		if now.After(m.until) {
			delete(p.moved, key)
		}
	}
}

func (p *Pool) list() []*clientConn {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]*clientConn, 0, len(p.links))
	for l := range p.links {
		all = append(all, l)
	}
	return all
}

// Open begins a stream. Those with the same key share a trunk, while it is young and the
// Server has a place for them; those with none are spread. The sink may be called before
// Open returns. An error is that of dialing, or ctx's.
func (p *Pool) Open(ctx context.Context, key string, o OpenRequest, to Sink) (*ClientStream, error) {
	hash := uint64(0)
	if key != "" {
		hash = maphash.String(p.seed, key)
	}
	s, by := p.slotOf(hash)
	for range 3 { // a trunk may break in the very moment
		l, err := p.linkOf(ctx, s)
		if err != nil {
			return nil, err
		}
		u := &ClientStream{link: l, sink: to, key: hash, by: by, credit: Window}
		if l.open(u, o) {
			return u, nil
		}
		p.retire(l)
	}
	return nil, errors.New("mux: it breaks as soon as it is open")
}

// slotOf returns the slot of a key, and how far it is from the key's own one.
func (p *Pool) slotOf(key uint64) (s *slot, by uint32) {
	n := uint64(len(p.slots))
	if key == 0 {
		return p.slots[p.turn.Add(1)%n], 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	by = p.moved[key].by
	return p.slots[(key%n+uint64(by))%n], by
}

// move has the next streams of a key opened in the next slot, for the Server has no place
// for one of them. All who are told so at the same time move it once.
func (p *Pool) move(u *ClientStream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m, known := p.moved[u.key]
	if u.key == 0 || m.by != u.by || !known && len(p.moved) >= maxMoved {
		return
	}
	p.moved[u.key] = moved{by: (u.by + 1) % uint32(len(p.slots)), until: time.Now().Add(p.cfg.MaxAge)}
}

// linkOf returns a slot's trunk; one who comes while there is none dials for all.
func (p *Pool) linkOf(ctx context.Context, s *slot) (*clientConn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for mine := false; ; {
		switch {
		case s.link != nil:
			return s.link, nil
		case p.closed:
			return nil, errClosed
		case s.dialing == nil && mine:
			return nil, cmp.Or(s.err, errGoAway)
		case s.dialing == nil:
			s.dialing = make(chan struct{})
			p.live.Add(1)
			go p.dial(s) //nolint:contextcheck // it is for all who wait
		}
		mine = true
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
	defer p.live.Done()
	ctx, cancel := context.WithTimeout(p.dialing, dialTimeout)
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
	l := &clientConn{pool: p, streams: map[uint64]*ClientStream{}, old: time.Now().Add(p.cfg.MaxAge*2/3 + rand.N(p.cfg.MaxAge*2/3+1))}
	l.out = outbox{conn: conn, fail: l.cut}
	l.heard.Store(p.tick.Load())
	s.link = l
	p.links[l] = struct{}{}
	p.live.Add(1)
	go l.serve(newReader(conn, first))
	if p.closed {
		l.cut(errClosed)
	}
}

// retire has no new streams opened on a trunk, which goes when it has none.
func (p *Pool) retire(l *clientConn) {
	p.mu.Lock()
	for _, s := range p.slots {
		if s.link == l {
			s.link = nil
		}
	}
	p.mu.Unlock()
	l.mu.Lock()
	idle := len(l.streams) == 0 && !l.retired
	l.retired = true
	l.mu.Unlock()
	if idle {
		l.out.finish()
	}
}

// open begins a stream, unless the trunk takes none.
func (l *clientConn) open(u *ClientStream, o OpenRequest) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.retired || l.broken != nil {
		return false
	}
	l.newest++
	u.id = l.newest
	l.streams[u.id] = u
	l.out.send(&frame{kind: kindOpen, stream: u.id, path: o.Path, text: o.Context, number: uint64(o.Expires)}) //nolint:gosec // it is none below zero
	return true
}

// cut breaks the trunk, for the first reason that is given.
func (l *clientConn) cut(why error) {
	l.once.Do(func() {
		l.mu.Lock()
		l.broken = why
		l.mu.Unlock()
		_ = l.out.conn.Close() // nobody is left to tell
		l.out.close()
	})
}

// serve is the trunk's reader.
func (l *clientConn) serve(r *reader) {
	defer l.pool.live.Done()
	l.cut(panics.Try(func() error { return l.read(r) }))
	l.pool.retire(l)
	l.pool.mu.Lock()
	delete(l.pool.links, l)
	l.pool.mu.Unlock()
	l.mu.Lock()
	all, why := l.streams, l.broken
	l.streams = nil
	l.mu.Unlock()
	for _, u := range all {
		u.sink.Broken(why)
	}
}

func (l *clientConn) read(r *reader) error {
	var f frame
	var to, dirty []*ClientStream
	for {
		if !r.ready() {
			for _, u := range dirty {
				u.dirty = false
				u.sink.Flush()
			}
			clear(dirty)
			dirty = dirty[:0]
		}
		body, err := r.body()
		if err != nil {
			return fmt.Errorf("mux: read: %w", err)
		}
		l.heard.Store(l.pool.tick.Load())
		if err := f.parse(body); err != nil {
			return err
		}
		if f.kind != kindDeliver {
			if err := l.handle(&f); err != nil {
				return err
			}
			continue
		}
		to = l.find(to[:0], f.streams)
		if len(to) == 0 {
			continue
		}
		piece := bytes.Clone(f.data)
		for _, u := range to {
			u.sink.Deliver(piece, f.more, len(to))
			if !u.dirty {
				u.dirty = true
				dirty = append(dirty, u)
			}
		}
		clear(to)
	}
}

// find returns those streams that are not over.
func (l *clientConn) find(to []*ClientStream, ids []uint64) []*ClientStream {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range ids {
		if u := l.streams[id]; u != nil {
			to = append(to, u)
		}
	}
	return to
}

func (l *clientConn) handle(f *frame) error {
	switch f.kind {
	case kindServerClose:
		if u := l.take(f.stream); u != nil {
			if f.number == CodeBusy {
				l.pool.move(u)
			}
			u.sink.Closed(int(f.number), f.text) //nolint:gosec // whatever it is
		}
		return nil
	case kindCredit:
		l.mu.Lock()
		u := l.streams[f.stream]
		l.mu.Unlock()
		if u != nil {
			return u.grant(f.number)
		}
		return nil
	case kindPong:
		return nil
	case kindGoAway:
		l.pool.retire(l)
		return nil
	}
	return fmt.Errorf("%w: kind %d does not go down", ErrMalformed, f.kind)
}

// take takes a stream off the trunk; nil when it is over already.
func (l *clientConn) take(id uint64) *ClientStream {
	l.mu.Lock()
	u := l.streams[id]
	delete(l.streams, id)
	idle := l.retired && len(l.streams) == 0 && l.streams != nil
	l.mu.Unlock()
	if idle && u != nil {
		l.out.finish()
	}
	return u
}

func (u *ClientStream) grant(n uint64) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if n > Window || u.credit+int(n) > Window { //nolint:gosec // it is small
		return fmt.Errorf("%w: more is granted than a window", ErrMalformed)
	}
	u.credit += int(n) //nolint:gosec // as above
	select {
	case u.wake <- struct{}{}: // nil where nobody has waited
	default:
	}
	return nil
}

// Send sends a part of a message, of at most MaxPart bytes, to which more belongs or not.
// It copies the part. It waits while the other end is behind, at most until stop is
// closed, which is up to the caller when the stream is over: ErrClosed; or for a minute:
// ErrStalled. One goroutine sends.
func (u *ClientStream) Send(part []byte, more bool, stop <-chan struct{}) error {
	if err := u.pay(len(part)+partCost, stop); err != nil {
		return err
	}
	if !u.link.out.sendBounded(&frame{kind: kindData, stream: u.id, data: part, more: more}, maxWaiting, stop) {
		return ErrClosed
	}
	return nil
}

// pay takes from the credit, when there is enough.
func (u *ClientStream) pay(n int, stop <-chan struct{}) error {
	var stuck <-chan time.Time
	for {
		u.mu.Lock()
		if u.credit >= n {
			u.credit -= n
			u.mu.Unlock()
			return nil
		}
		if u.wake == nil {
			u.wake = make(chan struct{}, 1)
		}
		wake := u.wake
		u.mu.Unlock()
		if stuck == nil {
			t := time.NewTimer(stallTimeout)
			defer t.Stop()
			stuck = t.C
		}
		select {
		case <-wake:
		case <-stop:
			return ErrClosed
		case <-stuck:
			return ErrStalled
		}
	}
}

// Leave ends the stream with the client's code and reason. Nothing comes to the sink
// any more, but for what is on its way. It does nothing when the stream is over.
func (u *ClientStream) Close(code int, reason string) {
	l := u.link
	l.mu.Lock()
	_, live := l.streams[u.id]
	l.mu.Unlock()
	if !live {
		return
	}
	l.out.send(&frame{kind: kindClientClose, stream: u.id, number: uint64(code), text: reason}) //nolint:gosec // it is none below zero
	l.take(u.id)
}
