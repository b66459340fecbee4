package mux

import (
	"fmt"
	"net"
	"sync"
	"time"

	"signalbox.dev/pkg/panics"
)

// Close codes with a meaning here: of RFC 6455, section 7.1.5, and its registry.
const (
	CodeLost = 1006 // the connection broke, or the client was lost
	CodeBusy = 1013 // the Server is full: the key's next streams go to another connection
)

// pingTimeout is how long a Server waits for a ping.
const pingTimeout = 3 * time.Minute

// OpenRequest is what a stream begins with. The Session checks its fields.
type OpenRequest struct {
	Path    string // of the client's request
	Context string // the client's signed context
	Expires int64  // the Unix second in which the client's right ends; 0 for never
}

// Session is the owner of a Server's stream. A goroutine of the stream calls all methods but
// Stop, one after the other.
type Session interface {
	// Begin comes first, unless the stream is closed already. It may block.
	Begin()
	// Receive takes a part of a message; more reports whether the message goes on. The part
	// is the Session's to keep. Receive may block: then the sender does, too. Before a short
	// message is answered with a long one, it should call ServerStream.AwaitRoom.
	Receive(part []byte, more bool)
	// Stop reports that the stream is closed: calls that block must return. It is called at
	// most once, by any goroutine, and must not block.
	Stop()
	// Closed is the last call, after Stop, with the peer's code and reason; code is 0 after
	// ServerStream.Close.
	Closed(code int, reason string)
}

// Server is the end of connections that serves streams. Accept is set before Serve.
type Server struct {
	// Accept makes a stream's Session. It must not block, nor use the stream, which may be
	// used from Session.Begin on.
	Accept func(*ServerStream, OpenRequest) Session

	mu       sync.Mutex // guards what follows
	conns    map[*serverConn]struct{}
	draining bool
	closed   bool
	wg       sync.WaitGroup // connections
}

// serverConn is a Server's end of a connection.
type serverConn struct {
	server *Server
	out    outbox
	once   sync.Once
	cause  error

	mu      sync.Mutex // guards what follows
	streams map[uint64]*ServerStream
	newest  uint64
	wg      sync.WaitGroup // streams
}

// ServerStream is a Server's end of a stream. It may be used from any goroutine.
type ServerStream struct {
	conn    *serverConn
	session Session
	queue   queue

	mu       sync.Mutex // guards what follows
	inbox    []part
	used     int // of the window: parts that wait, are being received, or are not yet credited
	received int // of used: not yet credited
	working  bool
	begun    bool
	closed   bool
	code     int
	reason   string
}

type part struct {
	b    []byte
	more bool
}

// Serve serves a connection until it breaks and all its streams are closed, and returns why
// it broke. first holds what was read from conn already. Serve closes conn.
func (s *Server) Serve(conn net.Conn, first []byte) error {
	c := &serverConn{server: s, streams: map[uint64]*ServerStream{}}
	c.out = outbox{conn: conn, fail: c.abort}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return conn.Close()
	}
	if s.conns == nil {
		s.conns = map[*serverConn]struct{}{}
	}
	s.conns[c] = struct{}{}
	s.wg.Add(1)
	draining := s.draining
	s.mu.Unlock()
	defer s.wg.Done()
	if draining {
		c.out.send(&frame{kind: kindGoAway})
	}
	c.abort(panics.Try(func() error { return c.read(newReader(conn, first)) }))
	c.breakStreams()
	c.wg.Wait()
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
	return c.cause
}

// Drain refuses new streams, on all connections.
func (s *Server) Drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draining = true
	for c := range s.conns {
		c.out.send(&frame{kind: kindGoAway})
	}
}

// Close closes all connections once everything is written, or aborts them when limit fires,
// and closes new ones at once. It returns when every Serve has.
func (s *Server) Close(limit <-chan time.Time) {
	s.mu.Lock()
	s.closed = true
	for c := range s.conns {
		c.out.closeAfterWrites()
	}
	s.mu.Unlock()
	done := make(chan struct{})
	go func() {
		s.wg.Wait()
		close(done)
	}()
	select {
	case <-done:
		return
	case <-limit:
	}
	s.mu.Lock()
	for c := range s.conns {
		c.abort(errClosed)
	}
	s.mu.Unlock()
	<-done
}

// abort breaks the connection. The first cause counts.
func (c *serverConn) abort(cause error) {
	c.once.Do(func() {
		c.cause = cause
		_ = c.out.conn.Close() // it is broken anyway
		c.out.close()
	})
}

func (c *serverConn) breakStreams() {
	c.mu.Lock()
	streams := c.streams
	c.streams = map[uint64]*ServerStream{}
	c.mu.Unlock()
	for _, s := range streams {
		s.finish(CodeLost, "the connection broke")
	}
}

func (c *serverConn) read(r *reader) error {
	if err := c.out.conn.SetReadDeadline(time.Now().Add(pingTimeout)); err != nil {
		return err
	}
	var f frame
	for {
		body, err := r.body()
		if err != nil {
			return err
		}
		if err := f.parse(body); err != nil {
			return err
		}
		if err := c.handle(&f); err != nil {
			return err
		}
	}
}

func (c *serverConn) handle(f *frame) error {
	switch f.kind {
	case kindOpen:
		return c.open(f)
	case kindData, kindClientClose:
		c.mu.Lock()
		s, known := c.streams[f.stream], f.stream <= c.newest
		c.mu.Unlock()
		switch {
		case s == nil && !known:
			return fmt.Errorf("%w: stream %d was never opened", ErrMalformed, f.stream)
		case s == nil:
			return nil // closed already
		case f.kind == kindData:
			return s.receive(f)
		}
		c.out.drop(&s.queue)
		c.remove(s)
		s.finish(int(f.number), f.text) //nolint:gosec // any code may come
		return nil
	case kindPing:
		c.out.send(&frame{kind: kindPong})
		return c.out.conn.SetReadDeadline(time.Now().Add(pingTimeout))
	}
	return fmt.Errorf("%w: a client does not send kind %d", ErrMalformed, f.kind)
}

func (c *serverConn) open(f *frame) error {
	if f.stream <= c.newest { // which only this goroutine changes
		return fmt.Errorf("%w: stream %d is opened again", ErrMalformed, f.stream)
	}
	s := &ServerStream{conn: c, queue: queue{id: f.stream}, working: true}
	c.mu.Lock()
	c.newest = f.stream
	c.streams[f.stream] = s
	c.mu.Unlock()
	c.wg.Add(1)
	s.session = c.server.Accept(s, OpenRequest{Path: f.path, Context: f.text, Expires: int64(f.number)}) //nolint:gosec // the session checks it
	go s.work()
	return nil
}

// remove forgets a stream, and reports whether it was open.
func (c *serverConn) remove(s *ServerStream) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, open := c.streams[s.queue.id]
	delete(c.streams, s.queue.id)
	return open
}

// receive puts a part into the inbox.
func (s *ServerStream) receive(f *frame) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.used += len(f.data) + partCost
	if s.used > Window {
		return fmt.Errorf("%w: data beyond the window", ErrMalformed)
	}
	s.inbox = append(s.inbox, part{append([]byte(nil), f.data...), f.more})
	s.startLocked()
	return nil
}

func (s *ServerStream) startLocked() {
	if !s.working {
		s.working = true
		go s.work()
	}
}

// work is the stream's goroutine. It ends when there is no work; after Session.Closed,
// working stays set, so that it never starts again.
func (s *ServerStream) work() {
	for {
		s.mu.Lock()
		begun, closed, parts := s.begun, s.closed, s.inbox
		s.begun, s.inbox = true, nil
		if begun && !closed && len(parts) == 0 {
			s.working = false
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		switch {
		case closed:
			s.session.Closed(s.code, s.reason)
			s.conn.wg.Done()
			return
		case !begun:
			s.AwaitRoom()
			s.session.Begin()
		}
		for _, p := range parts {
			if !s.admit(p) {
				break
			}
			s.session.Receive(p.b, p.more)
			s.credit(len(p.b) + partCost)
		}
	}
}

// admit reports whether the stream is still open. A part of a long message waits for room
// first; a short message, such as typing, never waits for other streams' bulk.
func (s *ServerStream) admit(p part) bool {
	if p.more {
		return s.AwaitRoom()
	}
	return s.open()
}

func (s *ServerStream) open() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.closed
}

// AwaitRoom waits while much bulk waits on the connection, and reports whether the stream is
// still open. The Session calls it before work that may produce bulk.
func (s *ServerStream) AwaitRoom() bool {
	for {
		backlog := s.conn.out.backlog()
		open := s.open()
		if !open || backlog == nil {
			return open
		}
		<-backlog
	}
}

// credit returns n bytes of the window to the sender, once they are worth a frame.
func (s *ServerStream) credit(n int) {
	s.mu.Lock()
	s.received += n
	n = s.received
	if n < Window/2 {
		s.mu.Unlock()
		return
	}
	s.received = 0
	s.used -= n
	s.mu.Unlock()
	s.conn.out.send(&frame{kind: kindCredit, stream: s.queue.id, number: uint64(n)}) //nolint:gosec // never negative
}

// finish closes the stream on this side. The first call counts.
func (s *ServerStream) finish(code int, reason string) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.closed, s.code, s.reason = true, code, reason
	s.mu.Unlock()
	s.session.Stop()
	s.conn.out.wake()
	s.mu.Lock()
	s.startLocked() // for Session.Closed
	s.mu.Unlock()
}

// Send queues a message, which it keeps and which must not change, and returns at once. The
// same slice sent to many streams in a row crosses once. After ErrFull the caller should
// close the stream. Messages to a closed stream are dropped.
func (s *ServerStream) Send(message []byte) error { return s.conn.out.deliver(&s.queue, message) }

// Close closes the stream behind what was sent, with a close code and a reason for the
// client. It returns at once, and does nothing if the stream is closed already.
func (s *ServerStream) Close(code int, reason string) {
	if s.conn.remove(s) {
		s.conn.out.sendAfter(&s.queue, &frame{kind: kindServerClose, stream: s.queue.id, number: uint64(code), text: reason[:min(len(reason), maxText)]}) //nolint:gosec // never negative
	}
	s.finish(0, "")
}
