package gateway_test

import (
	"encoding/binary"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/mux"

	"signalbox.dev/services/gateway"
)

// absentDocument is a document that does not exist.
const absentDocument = "00000000-0000-4000-8000-000000000404"

// fakeSync is a document-sync with sockets only. It has every document except absentDocument,
// greets each socket and echoes its messages. Some messages are commands.
type fakeSync struct {
	verifier *identity.Verifier
	seats    chan *seat    // the accepted sockets
	asked    chan struct{} // receives once for each connection that waits for begin
	mux      mux.Server

	mu      sync.Mutex             // guards what follows
	away    int                    // when set, mux are answered with this status
	begin   chan struct{}          // when set, mux are answered when it is closed
	asks    []*http.Request        // for mux
	conns   map[*pinglessConn]bool // that mux are on
	noPings bool                   // new mux connections don't answer pings
}

// seat is a socket at the fake.
type seat struct {
	fake    *fakeSync
	stream  *mux.ServerStream
	opening mux.OpenRequest
	actor   identity.Actor
	message []byte
	stopped chan struct{}
	ended   chan left // receives the end of the stream
}

// left is the end of a stream.
type left struct {
	code   int
	reason string
}

func newFakeSync(t testing.TB, key identity.Key) *fakeSync {
	t.Helper()
	v, err := identity.NewVerifier("document-sync", map[string]string{gateway.Name: key.Public()})
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeSync{verifier: v, seats: make(chan *seat, 1000), asked: make(chan struct{}, 1000), conns: map[*pinglessConn]bool{}}
	f.mux.Accept = func(s *mux.ServerStream, o mux.OpenRequest) mux.Session {
		return &seat{fake: f, stream: s, opening: o, stopped: make(chan struct{}), ended: make(chan left, 1)}
	}
	return f
}

// set makes the fake answer mux with a status, or late.
func (f *fakeSync) set(away int, begin chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.away, f.begin = away, begin
}

// ignorePings makes the fake hear no pings on new mux.
func (f *fakeSync) ignorePings() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.noPings = true
}

// cut cuts all mux, by a reset or not.
func (f *fakeSync) cut(reset bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := range f.conns {
		if tcp, ok := c.Conn.(*net.TCPConn); ok && reset {
			_ = tcp.SetLinger(0)
		}
		_ = c.Close() // a second Close is harmless
	}
	clear(f.conns)
}

// pinglessConn is a mux connection that can drop pings.
type pinglessConn struct {
	net.Conn
	noPings bool
}

func (c *pinglessConn) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		// Pings are five bytes.
		if c.noPings && err == nil && n == 5 && binary.BigEndian.Uint32(p) == 1 {
			continue
		}
		return n, err
	}
}

const hello = "hello"

// ServeHTTP implements http.Handler.
func (f *fakeSync) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	away, begin, noPings := f.away, f.begin, f.noPings
	f.asks = append(f.asks, r)
	f.mu.Unlock()
	if begin != nil {
		f.asked <- struct{}{}
		select {
		case <-begin:
		case <-r.Context().Done():
			return
		}
	}
	if away != 0 {
		http.Error(w, "away", away)
		return
	}
	if _, err := f.verifier.Verify(r.Header.Get(identity.Header)); err != nil {
		http.Error(w, err.Error(), http.StatusUnauthorized)
		return
	}
	under, first, err := mux.Hijack(w, r)
	if err != nil {
		return
	}
	c := &pinglessConn{Conn: under, noPings: noPings}
	f.mu.Lock()
	f.conns[c] = true
	f.mu.Unlock()
	_ = f.mux.Serve(c, first) // returns when the gateway closes the connection or it is cut
	f.mu.Lock()
	delete(f.conns, c)
	f.mu.Unlock()
}

// message returns a WebSocket frame.
func message(b []byte) []byte {
	f := []byte{0x82, 127}
	return append(binary.BigEndian.AppendUint64(f, uint64(len(b))), b...)
}

// Begin implements mux.Session.
func (s *seat) Begin() {
	var err error
	if s.actor, err = s.fake.verifier.Verify(s.opening.Context); err != nil {
		s.stream.Close(4401, err.Error())
		return
	}
	if s.opening.Path == "/ws/documents/"+absentDocument {
		s.stream.Close(4404, "no such document")
		return
	}
	s.send([]byte(hello))
	s.fake.seats <- s
}

func (s *seat) send(b []byte) { _ = s.stream.Send(message(b)) } // fails if the gateway is slow, which ends the stream anyway

// Receive implements mux.Session.
func (s *seat) Receive(part []byte, more bool) {
	s.message = append(s.message, part...)
	if more {
		return
	}
	msg := s.message
	s.message = nil
	switch string(msg) {
	case "die":
		s.fake.cut(false)
	case "die in a frame":
		_ = s.stream.Send([]byte{0x82, 126, 0xff})
		_ = s.stream.Send(make([]byte, 1<<20)) // in pieces; the connection is cut after the first
	case "reset":
		s.fake.cut(true)
	case "close":
		s.stream.Close(4404, "the document was deleted")
	case "flood":
		for {
			select {
			case <-s.stopped:
				return
			case <-time.After(time.Millisecond):
				s.send(make([]byte, 32<<10))
			}
		}
	default:
		s.send(msg)
	}
}

// Stop implements mux.Session.
func (s *seat) Stop() { close(s.stopped) }

// Closed implements mux.Session.
func (s *seat) Closed(code int, reason string) { s.ended <- left{code, reason} }
