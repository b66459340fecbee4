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

// absentDocument is one that the fake does not have.
const absentDocument = "00000000-0000-4000-8000-000000000404"

// fakeSync is document-sync as far as sockets go. It has every document but one, says
// hello on each, and sends back what comes; some messages make it do other things.
type fakeSync struct {
	verifier *identity.Verifier
	seats    chan *seat    // the sockets it let in, as they come
	asked    chan struct{} // gets one for each trunk that has to wait
	trunks   mux.Server

	mu    sync.Mutex         // guards what follows
	away  int                // when set, trunks are answered with this status
	begin chan struct{}      // when set, trunks are answered when it is closed
	asks  []*http.Request    // for trunks
	conns map[*deafConn]bool // that trunks are on
	deaf  bool               // new trunks are not read
}

// seat is a socket at the fake.
type seat struct {
	fake    *fakeSync
	stream  *mux.ServerStream
	opening mux.OpenRequest
	actor   identity.Actor
	message []byte
	stopped chan struct{}
	ended   chan left // how it ended
}

// left is how a stream ended.
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
	f := &fakeSync{verifier: v, seats: make(chan *seat, 1000), asked: make(chan struct{}, 1000), conns: map[*deafConn]bool{}}
	f.trunks.Accept = func(s *mux.ServerStream, o mux.OpenRequest) mux.Session {
		return &seat{fake: f, stream: s, opening: o, stopped: make(chan struct{}), ended: make(chan left, 1)}
	}
	return f
}

// set makes the fake answer trunks with a status, or late.
func (f *fakeSync) set(away int, begin chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.away, f.begin = away, begin
}

// deafen makes the fake hear no pings on new trunks.
func (f *fakeSync) deafen() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.deaf = true
}

// cut cuts all trunks, by a reset or not.
func (f *fakeSync) cut(reset bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := range f.conns {
		if tcp, ok := c.Conn.(*net.TCPConn); ok && reset {
			_ = tcp.SetLinger(0)
		}
		_ = c.Close() // twice is as good
	}
	clear(f.conns)
}

// deafConn is a trunk's connection, which may hear no pings.
type deafConn struct {
	net.Conn
	deaf bool
}

func (c *deafConn) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		// Pings are five bytes.
		if c.deaf && err == nil && n == 5 && binary.BigEndian.Uint32(p) == 1 {
			continue
		}
		return n, err
	}
}

const hello = "hello"

// ServeHTTP implements http.Handler.
func (f *fakeSync) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	away, begin, deaf := f.away, f.begin, f.deaf
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
	c := &deafConn{Conn: under, deaf: deaf}
	f.mu.Lock()
	f.conns[c] = true
	f.mu.Unlock()
	_ = f.trunks.Serve(c, first) // which ends with the gateway's end, or is cut
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

func (s *seat) send(b []byte) { _ = s.stream.Send(message(b)) } // full when the gateway is slow, which ends in its own way

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
		_ = s.stream.Send(make([]byte, 1<<20)) // in pieces, at the first of which it dies
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
