package gateway_test

import (
	"net"
	"net/http"
	"sync"
	"testing"

	"github.com/gorilla/websocket"

	"signalbox.dev/pkg/identity"

	"signalbox.dev/services/gateway"
)

// absentDocument is one that the fake does not have.
const absentDocument = "00000000-0000-4000-8000-000000000404"

// fakeSync is document-sync as far as sockets go. It has every document but one, says
// hello on each, and sends back what comes; some messages make it do other things.
type fakeSync struct {
	verifier *identity.Verifier
	seats    chan *seat    // the sockets it let in, as they come
	asked    chan struct{} // gets one for each upgrade that has to wait

	mu    sync.Mutex    // guards what follows
	away  int           // when set, upgrades are answered with this status
	begin chan struct{} // when set, upgrades are answered when it is closed
}

// seat is a socket at the fake.
type seat struct {
	request *http.Request
	actor   identity.Actor
	conn    *websocket.Conn
	pongs   chan string // what its pings were answered with
	ended   chan error  // how it ended
}

func newFakeSync(t testing.TB, key identity.Key) *fakeSync {
	t.Helper()
	v, err := identity.NewVerifier("document-sync", map[string]string{gateway.Name: key.Public()})
	if err != nil {
		t.Fatal(err)
	}
	return &fakeSync{verifier: v, seats: make(chan *seat, 1000), asked: make(chan struct{}, 1000)}
}

// set makes the fake answer upgrades with a status, or late.
func (f *fakeSync) set(away int, begin chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.away, f.begin = away, begin
}

const hello = "hello"

// ServeHTTP implements http.Handler.
func (f *fakeSync) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	away, begin := f.away, f.begin
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
	actor, err := f.verifier.Verify(r.Header.Get(identity.Header))
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnauthorized)
		return
	}
	up := websocket.Upgrader{CheckOrigin: func(*http.Request) bool { return true }}
	c, err := up.Upgrade(w, r, nil)
	if err != nil {
		return
	}
	defer c.Close()
	if r.URL.Path == "/ws/documents/"+absentDocument {
		_ = c.WriteMessage(websocket.CloseMessage, websocket.FormatCloseMessage(4404, "no such document"))
		_, _, _ = c.ReadMessage()
		return
	}
	s := &seat{request: r, actor: actor, conn: c, pongs: make(chan string, 10), ended: make(chan error, 1)}
	c.SetPongHandler(func(data string) error {
		s.pongs <- data
		return nil
	})
	f.seats <- s
	s.ended <- s.serve()
}

func (s *seat) serve() error {
	if err := s.conn.WriteMessage(websocket.BinaryMessage, []byte(hello)); err != nil {
		return err
	}
	for {
		kind, msg, err := s.conn.ReadMessage()
		if err != nil {
			return err
		}
		switch string(msg) {
		case "die":
			return nil
		case "die in a frame":
			_, _ = s.conn.NetConn().Write([]byte{0x82, 100, 'h', 'a', 'l', 'f'})
			return nil
		case "reset":
			_ = s.conn.NetConn().(*net.TCPConn).SetLinger(0)
			return nil
		case "close":
			_ = s.conn.WriteMessage(websocket.CloseMessage, websocket.FormatCloseMessage(4404, "the document was deleted"))
			_, _, err := s.conn.ReadMessage()
			return err
		case "flood":
			for {
				if err := s.conn.WriteMessage(websocket.BinaryMessage, make([]byte, 64<<10)); err != nil {
					return err
				}
			}
		}
		if err := s.conn.WriteMessage(kind, msg); err != nil {
			return err
		}
	}
}
