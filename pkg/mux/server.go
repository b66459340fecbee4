package mux

import (
	"fmt"
	"net"
	"sync"
	"time"

	"signalbox.dev/pkg/panics"
)

// Close codes that mean something to trunks: those of RFC 6455, section 7.1.5, and of the
// registry that it began.
const (
	CodeLost = 1006 // the trunk broke, or the client was lost
	CodeBusy = 1013 // the Server has no place: the next streams of the key go to another trunk
)

// silence is for how long a Server waits for a ping.
const silence = 3 * time.Minute

// OpenRequest is what a stream begins with. What is in it is for the Session to judge.
type OpenRequest struct {
	Path    string // what is asked for
	Context string // the signed context of who asks
	Expires int64  // the Unix second in which their right ends; 0 for never
}

// Session is a stream's other half, at a Server. All but Stop are called one after
// the other, by a goroutine of the stream.
type Session interface {
	// Begin comes first, unless the stream is over already. It may wait.
	Begin()
	// Receive takes a part of a message, which is the last one unless there is more.
	// The part is the Session's to keep. It may wait: then the sender does, too. It should
	// (Stream.AwaitRoom) before it answers little with much.
	Receive(part []byte, more bool)
	// Stop says that the stream is over: what waits must return. It may be called by
	// any goroutine and must not wait itself; it comes at most once.
	Stop()
	// Left is the last call, after Stop. code and reason are those of the other end;
	// code is 0 when the stream was ended by ServerStream.Close.
	Closed(code int, reason string)
}

// Server is the end of trunks where streams are served. Its fields are set before Serve.
type Server struct {
	// Accept makes a stream's Session. It must not wait, nor use the stream, which is for
	// Session.Begin and later.
	Accept func(*ServerStream, OpenRequest) Session

	mu    sync.Mutex // guards what follows
	links map[*serverConn]struct{}
	away  bool
	over  bool
	live  sync.WaitGroup // links
}

// serverConn is a trunk at a Server.
type serverConn struct {
	server *Server
	out    outbox
	once   sync.Once
	why    error

	mu      sync.Mutex // guards what follows
	streams map[uint64]*ServerStream
	newest  uint64
	live    sync.WaitGroup // streams
}

// ServerStream is a stream at a Server. It may be used from any goroutine.
type ServerStream struct {
	link    *serverConn
	session Session
	queue   queue

	mu      sync.Mutex // guards what follows
	inbox   []part
	held    int // of the window: what is in the inbox, or was and is not given back
	done    int // of held: what may be given back
	working bool
	begun   bool
	over    bool
	code    int
	reason  string
}

type part struct {
	b    []byte
	more bool
}

// Serve speaks on a trunk until it breaks, and returns why, when all its streams have
// ended. first is what was read of the connection already. It closes conn.
func (s *Server) Serve(conn net.Conn, first []byte) error {
	l := &serverConn{server: s, streams: map[uint64]*ServerStream{}}
	l.out = outbox{conn: conn, fail: l.cut}
	s.mu.Lock()
	if s.over {
		s.mu.Unlock()
		return conn.Close()
	}
	if s.links == nil {
		s.links = map[*serverConn]struct{}{}
	}
	s.links[l] = struct{}{}
	s.live.Add(1)
	away := s.away
	s.mu.Unlock()
	defer s.live.Done()
	if away {
		l.out.send(&frame{kind: kindGoAway})
	}
	l.cut(panics.Try(func() error { return l.read(newReader(conn, first)) }))
	l.breakStreams()
	l.live.Wait()
	s.mu.Lock()
	delete(s.links, l)
	s.mu.Unlock()
	return l.why
}

// Drain asks for no more streams, on all trunks.
func (s *Server) Drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = true
	for l := range s.links {
		l.out.send(&frame{kind: kindGoAway})
	}
}

// Close closes all trunks behind what waits to be written, or cuts them when limit
// comes first, and has new ones closed at once. It returns when all Serve have.
func (s *Server) Close(limit <-chan time.Time) {
	s.mu.Lock()
	s.over = true
	for l := range s.links {
		l.out.finish()
	}
	s.mu.Unlock()
	gone := make(chan struct{})
	go func() {
		s.live.Wait()
		close(gone)
	}()
	select {
	case <-gone:
		return
	case <-limit:
	}
	s.mu.Lock()
	for l := range s.links {
		l.cut(errClosed)
	}
	s.mu.Unlock()
	<-gone
}

// cut breaks the trunk, for the first reason that is given.
func (l *serverConn) cut(why error) {
	l.once.Do(func() {
		l.why = why
		_ = l.out.conn.Close() // nobody is left to tell
		l.out.close()
	})
}

func (l *serverConn) breakStreams() {
	l.mu.Lock()
	all := l.streams
	l.streams = map[uint64]*ServerStream{}
	l.mu.Unlock()
	for _, s := range all {
		s.finish(CodeLost, "the trunk broke")
	}
}

func (l *serverConn) read(r *reader) error {
	if err := l.out.conn.SetReadDeadline(time.Now().Add(silence)); err != nil {
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
		if err := l.handle(&f); err != nil {
			return err
		}
	}
}

func (l *serverConn) handle(f *frame) error {
	switch f.kind {
	case kindOpen:
		return l.open(f)
	case kindData, kindClientClose:
		l.mu.Lock()
		s, late := l.streams[f.stream], f.stream <= l.newest
		l.mu.Unlock()
		switch {
		case s == nil && !late:
			return fmt.Errorf("%w: a stream was never opened", ErrMalformed)
		case s == nil:
			return nil
		case f.kind == kindData:
			return s.receive(f)
		}
		l.out.forget(&s.queue)
		l.remove(s)
		s.finish(int(f.number), f.text) //nolint:gosec // whatever it is
		return nil
	case kindPing:
		l.out.send(&frame{kind: kindPong})
		return l.out.conn.SetReadDeadline(time.Now().Add(silence))
	}
	return fmt.Errorf("%w: kind %d does not go up", ErrMalformed, f.kind)
}

func (l *serverConn) open(f *frame) error {
	if f.stream <= l.newest { // which only this goroutine changes
		return fmt.Errorf("%w: a stream's number comes again", ErrMalformed)
	}
	s := &ServerStream{link: l, queue: queue{id: f.stream}, working: true}
	l.mu.Lock()
	l.newest = f.stream
	l.streams[f.stream] = s
	l.mu.Unlock()
	l.live.Add(1)
	s.session = l.server.Accept(s, OpenRequest{Path: f.path, Context: f.text, Expires: int64(f.number)}) //nolint:gosec // for the session to judge
	go s.work()
	return nil
}

func (l *serverConn) remove(s *ServerStream) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.streams, s.queue.id)
}

// receive puts a part into the inbox.
func (s *ServerStream) receive(f *frame) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return nil
	}
	s.held += len(f.data) + partCost
	if s.held > Window {
		return fmt.Errorf("%w: more came than was asked for", ErrMalformed)
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

// work is the stream's goroutine: it is there while there is something to do.
func (s *ServerStream) work() {
	for {
		s.mu.Lock()
		begun, over, parts := s.begun, s.over, s.inbox
		s.begun, s.inbox = true, nil
		if begun && !over && len(parts) == 0 {
			s.working = false
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		switch {
		case over:
			s.session.Closed(s.code, s.reason)
			s.link.live.Done()
			return // and working stays set
		case !begun:
			s.AwaitRoom()
			s.session.Begin()
		}
		for _, p := range parts {
			if !s.goesOn(p) {
				break
			}
			s.session.Receive(p.b, p.more)
			s.giveBack(len(p.b) + partCost)
		}
	}
}

// goesOn reports whether the stream does, with a part. What is short, as typing is, never
// waits for the bulk of other streams.
func (s *ServerStream) goesOn(p part) bool {
	if p.more {
		return s.AwaitRoom()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.over
}

// AwaitRoom waits until not too much bulk waits on the trunk, and reports whether the
// stream goes on. It is for the Session's calls, before one that may cause bulk.
func (s *ServerStream) AwaitRoom() bool {
	for {
		behind := s.link.out.behind()
		s.mu.Lock()
		over := s.over
		s.mu.Unlock()
		if over || behind == nil {
			return !over
		}
		<-behind
	}
}

// giveBack grants the sender what was done with, when it is worth a frame.
func (s *ServerStream) giveBack(n int) {
	s.mu.Lock()
	s.done += n
	n = s.done
	if n < Window/2 {
		s.mu.Unlock()
		return
	}
	s.done = 0
	s.held -= n
	s.mu.Unlock()
	s.link.out.send(&frame{kind: kindCredit, stream: s.queue.id, number: uint64(n)}) //nolint:gosec // it is none below zero
}

// finish ends the stream on this side. The first end counts.
func (s *ServerStream) finish(code int, reason string) {
	s.mu.Lock()
	if s.over {
		s.mu.Unlock()
		return
	}
	s.over, s.code, s.reason = true, code, reason
	s.mu.Unlock()
	s.session.Stop()
	s.link.out.wake()
	s.mu.Lock()
	s.startLocked() // for Left
	s.mu.Unlock()
}

// Send queues a message, which is kept and must not change, and returns at once. The
// same slice sent to many streams in a row crosses once. After ErrFull the stream should
// be ended; what is sent after its end is lost.
func (s *ServerStream) Send(message []byte) error { return s.link.out.deliver(&s.queue, message) }

// Close ends the stream behind what was sent, with a close code and a reason for the
// client. It returns at once, and does nothing when the stream is over.
func (s *ServerStream) Close(code int, reason string) {
	s.link.mu.Lock()
	_, live := s.link.streams[s.queue.id]
	delete(s.link.streams, s.queue.id)
	s.link.mu.Unlock()
	if live {
		s.link.out.sendBehind(&s.queue, &frame{kind: kindServerClose, stream: s.queue.id, number: uint64(code), text: reason[:min(len(reason), maxText)]}) //nolint:gosec // it is none below zero
	}
	s.finish(0, "")
}
