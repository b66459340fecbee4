package mux_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"signalbox.dev/pkg/mux"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 20 * time.Second

// world is a server and a pool that dials it over TCP.
type world struct {
	server   *mux.Server
	pool     *mux.Pool
	listener net.Listener
	sessions chan *session

	mu     sync.Mutex // guards what follows
	conns  []net.Conn // of the pool
	served []error    // what Serve returned
}

// session records what it receives, and echoes it unless it is mute.
type session struct {
	stream  *mux.ServerStream
	opening mux.OpenRequest
	mute    bool
	stopped chan struct{}
	hold    chan struct{} // if set, Receive waits until it is closed
	left    chan int
	all     chan *session

	mu       sync.Mutex // guards received
	received bytes.Buffer
	message  []byte
}

func (s *session) Begin() { s.all <- s }
func (s *session) Stop()  { close(s.stopped) }
func (s *session) Closed(code int, _ string) {
	s.left <- code
}

func (s *session) Receive(part []byte, more bool) {
	if s.hold != nil {
		select {
		case <-s.hold:
		case <-s.stopped:
			return
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.received.Write(part)
	if s.message = append(s.message, part...); !more && !s.mute {
		_ = s.stream.Send(s.message) // the client notices what is missing
		s.message = nil
	}
}

func (s *session) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.received.Len()
}

// sink records what it is given.
type sink struct {
	mu     sync.Mutex // guards what follows
	bytes  bytes.Buffer
	pieces int
	parted bool // the last piece was not the end of its message
	flush  bool // since the last piece
	end    string
	over   chan struct{} // closed with end
	some   chan struct{} // receives after a flush
}

func newSink() *sink { return &sink{over: make(chan struct{}), some: make(chan struct{}, 1)} }

func (s *sink) Deliver(piece []byte, more bool, _ int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bytes.Write(piece)
	s.pieces++
	s.parted, s.flush = more, false
}

func (s *sink) Flush() {
	s.mu.Lock()
	s.flush = true
	s.mu.Unlock()
	select {
	case s.some <- struct{}{}:
	default:
	}
}

func (s *sink) Closed(code int, reason string) { s.ended(fmt.Sprint(code, " ", reason)) }
func (s *sink) Broken(why error)               { s.ended("broken: " + why.Error()) }

func (s *sink) ended(how string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end = how
	close(s.over)
}

// await waits until n bytes have come and are flushed, and returns them.
func (s *sink) await(t testing.TB, n int) string {
	t.Helper()
	late := time.After(patience)
	for {
		s.mu.Lock()
		got, flushed := s.bytes.String(), s.flush
		s.mu.Unlock()
		if len(got) >= n && flushed {
			return got
		}
		select {
		case <-s.some:
		case <-late:
			t.Fatalf("got %d bytes, want %d", len(got), n)
		}
	}
}

func (s *sink) wait(t testing.TB) string {
	t.Helper()
	select {
	case <-s.over:
	case <-time.After(patience):
		t.Fatal("the stream did not end")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.end
}

func newWorld(t testing.TB, cfg mux.Config, accept func(*session)) *world {
	t.Helper()
	w := &world{server: &mux.Server{}, sessions: make(chan *session, 10_000)}
	w.server.Accept = func(s *mux.ServerStream, o mux.OpenRequest) mux.Session {
		x := &session{stream: s, opening: o, stopped: make(chan struct{}), left: make(chan int, 1), all: w.sessions}
		if accept != nil {
			accept(x)
		}
		return x
	}
	h := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		conn, first, err := mux.Hijack(rw, r)
		if err != nil {
			return
		}
		err = w.server.Serve(conn, first)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.served = append(w.served, err)
	}))
	t.Cleanup(h.Close)
	w.listener = h.Listener
	cfg.Dial = w.dial
	w.pool = mux.NewPool(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = w.pool.Run(ctx) // which is nil
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		w.server.Close(time.After(patience))
	})
	return w
}

func (w *world) dial(ctx context.Context) (net.Conn, []byte, error) {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", w.listener.Addr().String())
	if err != nil {
		return nil, nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://x/", nil)
	if err != nil {
		return nil, nil, err
	}
	first, err := mux.Upgrade(c, req)
	w.mu.Lock()
	w.conns = append(w.conns, c)
	w.mu.Unlock()
	return c, first, err
}

func (w *world) open(t testing.TB) (*mux.ClientStream, *sink, *session) {
	t.Helper()
	s := newSink()
	u, err := w.pool.Open(t.Context(), "k", mux.OpenRequest{Path: "/p", Context: "c", Expires: 7}, s)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case x := <-w.sessions:
		return u, s, x
	case <-time.After(patience):
		t.Fatal("no session")
		return nil, nil, nil
	}
}

func closedWith(t testing.TB, s *session) int {
	t.Helper()
	select {
	case code := <-s.left:
		return code
	case <-time.After(patience):
		t.Fatal("the session did not end")
		return 0
	}
}

func send(t testing.TB, u *mux.ClientStream, s *sink, msg string) {
	t.Helper()
	for len(msg) > mux.MaxPart {
		if err := u.Send([]byte(msg[:mux.MaxPart]), true, s.over); err != nil {
			t.Fatal(err)
		}
		msg = msg[mux.MaxPart:]
	}
	if err := u.Send([]byte(msg), false, s.over); err != nil {
		t.Fatal(err)
	}
}

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	w := newWorld(t, mux.Config{}, nil)
	u, s, x := w.open(t)
	if want := (mux.OpenRequest{Path: "/p", Context: "c", Expires: 7}); x.opening != want {
		t.Errorf("opening = %+v, want %+v", x.opening, want)
	}
	var all strings.Builder
	for _, n := range []int{0, 1, 100, mux.MaxPart, mux.MaxPart + 1, mux.MaxPiece, mux.MaxPiece + 1, 5 << 20, 3} {
		msg := strings.Repeat(string(rune('a'+n%26)), n)
		all.WriteString(msg)
		send(t, u, s, msg)
		if got := s.await(t, all.Len()); got != all.String() {
			t.Fatalf("%d bytes came back as something else", n)
		}
	}
	u.Close(4200, "enough")
	if code := closedWith(t, x); code != 4200 {
		t.Errorf("the session was closed with %d, want 4200", code)
	}
	u.Close(4201, "again") // without effect
	_, s, x = w.open(t)
	x.stream.Close(4404, "gone")
	x.stream.Close(4405, "again")
	if got := s.wait(t); got != "4404 gone" {
		t.Errorf("end = %q", got)
	}
	if code := closedWith(t, x); code != 0 {
		t.Errorf("the session was closed with %d, want 0: it closed the stream itself", code)
	}
}

// A message for many streams arrives at each, and each stream keeps its order, with large
// messages in between.
func TestDeliverToMany(t *testing.T) {
	t.Parallel()
	w := newWorld(t, mux.Config{Conns: 1}, nil)
	var sinks []*sink
	var sessions []*session
	for range 4500 { // more than one frame's list
		_, s, x := w.open(t)
		sinks, sessions = append(sinks, s), append(sessions, x)
	}
	small, large := []byte("small"), bytes.Repeat([]byte("large"), 100_000)
	for _, m := range [][]byte{small, large, small, []byte("last")} {
		for i, x := range sessions {
			if i > 20 && len(m) > 100 {
				continue // to some
			}
			if err := x.stream.Send(m); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i, s := range sinks {
		want := "small" + "small" + "last"
		if i <= 20 {
			want = "small" + string(large) + "small" + "last"
		}
		if got := s.await(t, len(want)); got != want {
			t.Fatalf("stream %d got %d bytes in the wrong order", i, len(got))
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.conns) != 1 {
		t.Errorf("there are %d connections, want 1", len(w.conns))
	}
}

// A stream that is sent a large message twice gets it twice, and not each piece twice.
func TestDeliverTwiceToOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t, mux.Config{Conns: 1}, nil)
	_, s, x := w.open(t)
	_, other, y := w.open(t)
	before, large := bytes.Repeat([]byte("before"), 1<<20), bytes.Repeat([]byte("large"), 100_000)
	for _, send := range []struct {
		to *session
		m  []byte
	}{{x, before}, {x, large}, {y, large}, {x, large}, {y, large}, {x, large}} { // all wait behind the first one
		if err := send.to.stream.Send(send.m); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		s    *sink
		want string
	}{{s, string(before) + strings.Repeat("large", 300_000)}, {other, strings.Repeat("large", 200_000)}} {
		if got := tt.s.await(t, len(tt.want)); got != tt.want {
			t.Errorf("got %d bytes in the wrong order, want %d", len(got), len(tt.want))
		}
	}
}

// While much bulk waits, work that may produce more of it waits, and short messages do not.
func TestShortMessagesPassBulk(t *testing.T) {
	t.Parallel()
	w := newWorld(t, mux.Config{}, func(s *session) { s.mute = true })
	c, _, err := w.dial(t.Context()) // the test does not read from it
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	write := func(body ...byte) {
		t.Helper()
		if _, err := c.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)); err != nil {
			t.Fatal(err)
		}
	}
	for id := byte(1); id <= 2; id++ {
		write(1, id, 0, 0, 0)
	}
	one, two := <-w.sessions, <-w.sessions
	if err := one.stream.Send(make([]byte, 60<<20)); err != nil {
		t.Fatal(err)
	}
	asked := make(chan bool, 1)
	go func() { asked <- one.stream.AwaitRoom() }()
	for id := byte(1); id <= 2; id++ {
		write(2, id, 0, 'x')
	}
	for _, s := range []*session{one, two} {
		for late := time.After(patience); s.count() == 0; {
			select {
			case <-late:
				t.Fatal("a short message waits behind another stream's bulk")
			case <-time.After(time.Millisecond):
			}
		}
	}
	select {
	case <-asked:
		t.Error("there is room for more bulk")
	default:
	}
	go func() { _, _ = io.Copy(io.Discard, c) }() // ends with the connection
	if !<-asked {
		t.Error("the stream is closed")
	}
}

// A stalled stream stops its own sender, and no other stream.
func TestStalledStream(t *testing.T) {
	t.Parallel()
	hold := make(chan struct{})
	stalled := true
	w := newWorld(t, mux.Config{Conns: 1}, func(s *session) {
		if stalled { // the first one
			s.hold, s.mute, stalled = hold, true, false
		}
	})
	u, s, x := w.open(t)
	const total = 100 * mux.MaxPart
	sent := make(chan error, 1)
	go func() {
		for range 100 {
			if err := u.Send(make([]byte, mux.MaxPart), false, s.over); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	v, live, _ := w.open(t)
	for i := range 100 {
		msg := strings.Repeat("x", 1000)
		send(t, v, live, msg)
		live.await(t, (i+1)*1000)
	}
	select {
	case err := <-sent:
		t.Errorf("everything was sent to a stalled stream: %v", err)
	default:
	}
	close(hold)
	if err := <-sent; err != nil {
		t.Error(err)
	}
	for x.count() < total {
		select {
		case code := <-x.left:
			t.Fatalf("the stalled session ended with %d", code)
		case <-time.After(time.Millisecond):
		}
	}
	// A sender that waits can be stopped.
	stop := make(chan struct{})
	close(stop)
	if err := u.Send(make([]byte, mux.MaxPart), false, stop); err != nil && !errors.Is(err, mux.ErrClosed) {
		t.Error(err)
	}
}

// A connection that breaks in the middle of a message breaks its streams, and the next
// stream opens a new connection.
func TestBrokenConnection(t *testing.T) {
	t.Parallel()
	w := newWorld(t, mux.Config{Conns: 1}, nil)
	_, s, x := w.open(t)
	_, other, y := w.open(t)
	if err := x.stream.Send(make([]byte, 60<<20)); err != nil {
		t.Fatal(err)
	}
	s.await(t, 1)
	w.mu.Lock()
	for _, c := range w.conns {
		c.Close()
	}
	w.mu.Unlock()
	for _, s := range []*sink{s, other} {
		if got := s.wait(t); !strings.HasPrefix(got, "broken: ") {
			t.Errorf("end = %q, want \"broken\"", got)
		}
	}
	for _, x := range []*session{x, y} {
		if code := closedWith(t, x); code != mux.CodeLost {
			t.Errorf("closed with %d, want %d", code, mux.CodeLost)
		}
	}
	u, s, _ := w.open(t)
	send(t, u, s, "again")
	s.await(t, 5)
}

// Bulk is bounded, and dropped with its stream.
func TestBulkLimit(t *testing.T) {
	t.Parallel()
	w := newWorld(t, mux.Config{Conns: 1}, nil)
	u, _, x := w.open(t)
	v, live, _ := w.open(t)
	full := false
	for range 100 {
		if err := x.stream.Send(make([]byte, 10<<20)); errors.Is(err, mux.ErrFull) {
			full = true
			x.stream.Close(1013, "too much")
			break
		}
	}
	if !full {
		t.Error("100 messages of 10 MiB wait in memory")
	}
	send(t, v, live, "hello")
	live.await(t, 5)
	u.Close(1000, "")
	closedWith(t, x)
}

// A violation of the protocol ends its connection.
func TestProtocolViolations(t *testing.T) {
	t.Parallel()
	frame := func(body ...byte) []byte {
		return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
	}
	open := frame(1, 5, 0, 0, 0)
	part := frame(append([]byte{2, 5, 0}, make([]byte, mux.MaxPart)...)...)
	for name, in := range map[string][]byte{
		"stream opened twice": append(bytes.Clone(open), open...),
		"number not growing":  append(bytes.Clone(open), frame(1, 4, 0, 0, 0)...),
		"never opened":        frame(2, 9, 0),
		"frame of a server":   frame(8),
		"more than a window":  append(bytes.Clone(open), bytes.Repeat(part, 5)...),
		"many empty messages": append(bytes.Clone(open), bytes.Repeat(frame(2, 5, 0), 2000)...),
		"not a frame":         []byte("GET / HTTP/1.1\r\n\r\n"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			hold := make(chan struct{})
			defer close(hold)
			w := newWorld(t, mux.Config{}, func(s *session) { s.hold = hold })
			c, first, err := w.dial(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := c.Write(in); err != nil {
				t.Fatal(err)
			}
			_ = c.SetReadDeadline(time.Now().Add(patience))
			if _, err := io.Copy(io.Discard, io.MultiReader(bytes.NewReader(first), c)); err != nil && !strings.Contains(err.Error(), "reset") {
				t.Errorf("read from the connection: %v, want it closed", err)
			}
			if len(w.sessions) > 0 {
				if code := closedWith(t, <-w.sessions); code != mux.CodeLost {
					t.Errorf("the session was closed with %d", code)
				}
			}
		})
	}
	// A late frame is no violation.
	w := newWorld(t, mux.Config{}, nil)
	c, _, err := w.dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write(append(append(append(bytes.Clone(open), frame(3, 5, 1, 0)...), frame(2, 5, 0, 'x')...), frame(4)...)); err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(patience))
	pong := make([]byte, 5)
	if _, err := io.ReadFull(c, pong); err != nil || !bytes.Equal(pong, frame(8)) {
		t.Errorf("the answer to a ping = %x, %v", pong, err)
	}
}

// A server that drains gets no new streams, and the old ones go on.
func TestDrain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, mux.Config{Conns: 1}, nil)
	u, s, x := w.open(t)
	w.server.Drain()
	for { // until the pool knows it
		x := newSink()
		if _, err := w.pool.Open(t.Context(), "k", mux.OpenRequest{}, x); err != nil {
			break
		}
		select {
		case <-w.sessions:
		case <-x.over:
		}
	}
	if n := len(w.dialled()); n < 2 {
		t.Errorf("%d connections were dialled, want another one", n)
	}
	send(t, u, s, "still here")
	s.await(t, 10)
	x.stream.Close(1012, "restart")
	if got := s.wait(t); got != "1012 restart" {
		t.Errorf("end = %q", got)
	}
	w.server.Close(time.After(patience))
}

// An old connection keeps its streams, and new streams go to another one.
func TestMaxAge(t *testing.T) {
	t.Parallel()
	w := newWorld(t, mux.Config{Conns: 1, PeerTimeout: 3 * time.Second, MaxAge: time.Millisecond}, nil)
	u, s, _ := w.open(t)
	for late := time.After(patience); len(w.dialled()) < 2; {
		select {
		case <-late:
			t.Fatal("the first connection takes all streams for good")
		case <-time.After(10 * time.Millisecond):
		}
		v, _, x := w.open(t)
		v.Close(1000, "")
		closedWith(t, x)
	}
	send(t, u, s, "still here")
	s.await(t, 10)
}

// A key whose server is busy goes to another connection next time, one slot further however
// many of its streams were refused.
func TestBusyServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, mux.Config{Conns: 2}, nil)
	_, s1, x1 := w.open(t)
	_, s2, x2 := w.open(t)
	x1.stream.Close(mux.CodeBusy, "full")
	x2.stream.Close(mux.CodeBusy, "full")
	s1.wait(t)
	s2.wait(t)
	for range 2 {
		w.open(t)
		if n := len(w.dialled()); n != 2 {
			t.Errorf("there are %d connections, want a second one", n)
		}
	}
}

func (w *world) dialled() []net.Conn {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.conns
}

// The pool gives up a silent server.
func TestSilence(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p := mux.NewPool(mux.Config{PeerTimeout: 100 * time.Millisecond, Dial: func(ctx context.Context) (net.Conn, []byte, error) {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
		return c, nil, err
	}})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = p.Run(ctx) }()
	defer func() { cancel(); <-done }()
	s := newSink()
	if _, err := p.Open(ctx, "", mux.OpenRequest{}, s); err != nil {
		t.Fatal(err)
	}
	if got := s.wait(t); got != "broken: "+mux.ErrSilent.Error() {
		t.Errorf("end = %q, want silence", got)
	}
}

// Streams open and close at both ends at once while connections break.
func TestRaces(t *testing.T) {
	t.Parallel()
	w := newWorld(t, mux.Config{Conns: 2}, nil)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for j := range 50 {
				s := newSink()
				u, err := w.pool.Open(t.Context(), fmt.Sprint(j%3), mux.OpenRequest{}, s)
				if err != nil {
					continue // the connection broke
				}
				for range 5 {
					if u.Send([]byte("hello"), false, s.over) != nil {
						break
					}
				}
				switch (i + j) % 4 {
				case 0:
					select {
					case x := <-w.sessions:
						x.stream.Close(1000, "")
					default:
					}
				case 1:
					for _, c := range w.dialled() {
						if j == 25 {
							c.Close()
						}
					}
				}
				u.Close(1000, "")
			}
		})
	}
	all.Wait()
	for len(w.sessions) > 0 {
		closedWith(t, <-w.sessions)
	}
}

// A request without the upgrade is told what is missing.
func TestNoUpgrade(t *testing.T) {
	t.Parallel()
	w := newWorld(t, mux.Config{}, nil)
	res, err := http.Get("http://" + w.listener.Addr().String()) //nolint:noctx // a test
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusUpgradeRequired || res.Header.Get("Upgrade") != mux.Protocol {
		t.Errorf("%s with Upgrade: %s", res.Status, res.Header.Get("Upgrade"))
	}
	http.DefaultClient.CloseIdleConnections()
}
