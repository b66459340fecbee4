package feed_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/sse"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	runv1 "signalbox.dev/proto/signalbox/run/v1"

	"signalbox.dev/services/gateway/internal/feed"
)

// server is an HTTP server that answers every request with an attached stream: of the session named by
// the path or, without one, of the world's run. ?after= is the event to resume after.
type server struct {
	addr  string
	ended chan error // how each stream ended
	mu    sync.Mutex // guards the rest
	views []*feed.Viewer
}

// deaf hides that a connection supports non-blocking writes.
type deaf struct{ net.Listener }

func (l deaf) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return struct{ net.Conn }{c}, err
}

func (w *world) open(t testing.TB, timeout time.Duration, wrap func(net.Listener) net.Listener) *server {
	t.Helper()
	d := &server{ended: make(chan error, 4096)}
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		v, err := w.view(r)
		if err != nil {
			http.Error(rw, err.Error(), http.StatusServiceUnavailable)
			return
		}
		rw.Header().Set("Content-Type", "text/event-stream")
		if r.URL.Query().Get("serve") != "" {
			defer v.Close()
			d.ended <- v.Serve(r.Context(), &flusher{rw}, []byte(":\n"))
			return
		}
		rw.Header().Set("Connection", "keep-alive") // the application must not set it
		c, err := feed.Hijack(rw, r, timeout)
		if err != nil {
			t.Error(err)
			v.Close()
			return
		}
		d.mu.Lock()
		d.views = append(d.views, v)
		d.mu.Unlock()
		v.Attach(c, []byte(":\n"), func(err error) { d.ended <- err })
	}))
	if wrap != nil {
		srv.Listener = wrap(srv.Listener)
	}
	srv.Start()
	t.Cleanup(srv.Close)
	d.addr = srv.Listener.Addr().String()
	return d
}

// flusher is a feed.Sink over net/http.
type flusher struct{ w http.ResponseWriter }

func (f *flusher) Write(p []byte) error {
	if _, err := f.w.Write(p); err != nil {
		return err
	}
	return http.NewResponseController(f.w).Flush()
}

func (w *world) view(r *http.Request) (*feed.Viewer, error) {
	session, err := id.Parse[id.Session](strings.TrimPrefix(r.URL.Path, "/"))
	if err == nil {
		return w.feed.Open(w.ctx, session)
	}
	v, err := w.feed.Open(w.ctx, w.session)
	if err != nil {
		return nil, err
	}
	if p, ok := feed.ParsePosition(r.URL.Query().Get("after")); ok {
		if found, err := v.After(w.ctx, p); err != nil || !found {
			v.Close()
			return nil, fmt.Errorf("After(%s) = %v, %w", p, found, err)
		}
	}
	if r.URL.Query().Get("all") == "" {
		v.FollowRun(&agentv1.Run{Id: w.run.String(), Ordinal: 1}, feed.Follow{})
	}
	return v, nil
}

// end returns how the next stream ended.
func (d *server) end(t testing.TB) error {
	t.Helper()
	select {
	case err := <-d.ended:
		return err
	case <-time.After(timeout):
		t.Fatal("no stream ended")
		return nil
	}
}

// client is a viewer's connection.
type client struct {
	t    testing.TB
	conn net.Conn
	r    *bufio.Reader
}

// ask sends a raw request and returns when the stream has begun.
func (d *server) ask(t testing.TB, request string) *client {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", d.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetReadBuffer(64 << 10) // small, so that it fills up soon
	}
	if err := conn.SetDeadline(time.Now().Add(2 * timeout)); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(conn, request)
	return &client{t, conn, bufio.NewReader(conn)}
}

func (d *server) get(t testing.TB, path string) *client {
	t.Helper()
	return d.ask(t, "GET /"+path+" HTTP/1.1\r\nHost: x\r\n\r\n")
}

// enough large events exceed the buffers of the sockets.
const enough = 12

var large = strings.Repeat("x", 700<<10)

// answer reads the response's head and returns the body.
func (c *client) answer() io.Reader {
	c.t.Helper()
	res, err := http.ReadResponse(c.r, nil) //nolint:bodyclose // the connection is closed
	if err != nil {
		c.t.Fatal(err)
	}
	if res.StatusCode != http.StatusOK || res.Header.Get("Content-Type") != "text/event-stream" || !res.Close {
		c.t.Errorf("answer = %v %v, want 200, the type, and the connection not kept", res.Status, res.Header)
	}
	return res.Body
}

// events reads to the end and returns the events' names and ids, and the error at the end.
func events(r io.Reader) (ids []string, err error) {
	all := sse.NewReader(r, 64<<20)
	for {
		e, err := all.Next()
		if err != nil {
			if errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				err = nil
			}
			return ids, err
		}
		ids = append(ids, e.Type+" "+string(e.ID))
	}
}

var listeners = map[string]func(net.Listener) net.Listener{
	"without waiting":                  nil,
	"with a goroutine for every write": func(l net.Listener) net.Listener { return deaf{l} },
}

func TestAttach(t *testing.T) {
	t.Parallel()
	for name, wrap := range listeners {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const n = 300
			w := newWorld(t, nil, func(c *feed.Config) { c.RingFrames, c.GroupSize = 64, 3 })
			d := w.open(t, 10*time.Second, wrap)
			var bodies []io.Reader
			for range 10 { // several groups
				c := d.get(t, "")
				body := c.answer()
				first := make([]byte, 2)
				if _, err := io.ReadFull(body, first); err != nil || string(first) != ":\n" {
					t.Fatalf("stream begins with %q, %v, want the opening at once", first, err)
				}
				bodies = append(bodies, body)
			}
			for i := range n {
				w.say(fmt.Sprint(i))
			}
			// From the ring, and from before it.
			bodies = append(bodies, d.get(t, "?after=1-290").answer(), d.get(t, "?after=1-5").answer())
			w.end()
			for i, body := range bodies {
				got, err := events(body)
				if err != nil {
					t.Errorf("stream %d ended with %v, want a clean end", i, err)
				}
				want := wantIDs(n)
				switch i {
				case 10:
					want = want[291:]
				case 11:
					want = want[6:]
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("stream %d's events differ (-want +got):\n%s", i, diff)
				}
				if err := d.end(t); err != nil {
					t.Errorf("ended(%v), want nil", err)
				}
			}
		})
	}
}

// TestAttachOnTheWire checks that only chunks of whole events are sent.
func TestAttachOnTheWire(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	d := w.open(t, 10*time.Second, nil)
	c := d.get(t, "")
	head, err := readTo(c.r, "\r\n\r\n")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"HTTP/1.1 200 OK\r\n", "\r\nTransfer-Encoding: chunked\r\n", "\r\nConnection: close\r\n", "\r\nDate: "} {
		if strings.Count(head, want) != 1 {
			t.Errorf("head = %q, want %q once", head, want)
		}
	}
	if strings.Contains(head, "keep-alive") {
		t.Errorf("head = %q, want the connection closed", head)
	}
	if got, err := readTo(c.r, ":\n\r\n"); got != "2\r\n:\n\r\n" {
		t.Errorf("opening = %q, %v, want one chunk", got, err)
	}
	w.say("a")
	want := "event: text-delta\ndata: {\"type\":\"text-delta\",\"delta\":\"a\"}\nid: 1-0\n\n"
	want = fmt.Sprintf("%x\r\n%s\r\n", len(want), want)
	if got, err := readTo(c.r, "\n\n\r\n"); got != want {
		t.Errorf("event = %q, %v, want %q", got, err, want)
	}
	w.end()
	rest, err := io.ReadAll(c.r)
	if err != nil || !strings.HasSuffix(string(rest), "id: 1-1\n\n\r\n0\r\n\r\n") {
		t.Errorf("end = %q, %v, want the last chunk", rest, err)
	}
}

func readTo(r *bufio.Reader, end string) (string, error) {
	var got []byte
	for !strings.HasSuffix(string(got), end) {
		b, err := r.ReadByte()
		if err != nil {
			return string(got), err
		}
		got = append(got, b)
	}
	return string(got), nil
}

// TestCut checks that a client can distinguish a cut stream from one that ended, with both versions of
// HTTP/1, and that ended gets the reason.
func TestCut(t *testing.T) {
	t.Parallel()
	why := errors.New("the token has expired")
	for _, version := range []string{"1.0", "1.1"} {
		for name, wrap := range listeners {
			if version == "1.0" && wrap != nil {
				continue // it cannot be reset
			}
			t.Run("HTTP/"+version+" "+name, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, nil)
				d := w.open(t, 10*time.Second, wrap)
				ask := func() io.Reader {
					c := d.ask(t, "GET / HTTP/"+version+"\r\nHost: x\r\n\r\n")
					return c.answer()
				}
				cut, whole := ask(), ask()
				w.say("a")
				d.mu.Lock()
				d.views[0].Cut(why)
				d.views[0].Cut(errors.New("another reason"))
				d.mu.Unlock()
				if _, err := events(cut); err == nil {
					t.Error("cut stream ended cleanly")
				}
				if err := d.end(t); !errors.Is(err, why) {
					t.Errorf("ended(%v), want the reason", err)
				}
				w.end()
				got, err := events(whole)
				if diff := cmp.Diff(wantIDs(1), got); diff != "" || err != nil {
					t.Errorf("complete stream ended with %v, and its events differ (-want +got):\n%s", err, diff)
				}
				if err := d.end(t); err != nil {
					t.Errorf("ended(%v), want nil", err)
				}
			})
		}
	}
}

func TestCutBeforeAttach(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	why := errors.New("the right has gone")
	ended := make(chan error, 2)
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		v, err := w.view(r)
		if err != nil {
			ended <- err
			return
		}
		v.Cut(why)
		c, err := feed.Hijack(rw, r, time.Second)
		if err != nil {
			ended <- err
			return
		}
		v.Attach(c, nil, func(err error) { ended <- err })
	}))
	defer srv.Close()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, srv.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	if res, err := http.DefaultTransport.RoundTrip(req); err == nil {
		_, err = io.ReadAll(res.Body)
		res.Body.Close()
		if err == nil {
			t.Error("stream ended cleanly, want it cut")
		}
	}
	if err := <-ended; !errors.Is(err, why) || len(ended) != 0 {
		t.Errorf("ended(%v) and %d times more, want the reason once", err, len(ended))
	}
}

func TestAttachHeartbeat(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil, func(c *feed.Config) { c.Heartbeat = 40 * time.Millisecond })
	body := w.open(t, 10*time.Second, nil).get(t, "").answer()
	got := make([]byte, 8)
	if _, err := io.ReadFull(body, got); err != nil || string(got) != ":\n:\n:\n:\n" {
		t.Errorf("silent stream = %q, %v, want an opening and heartbeats", got, err)
	}
}

// TestClientLeaves checks that a stream ends soon after its client has left, whatever the client has
// sent.
func TestClientLeaves(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(c net.Conn){
		"closes":      func(c net.Conn) { c.Close() },
		"resets":      func(c net.Conn) { _ = c.(*net.TCPConn).SetLinger(0); c.Close() },
		"half-closes": func(c net.Conn) { _ = c.(*net.TCPConn).CloseWrite() },
		"goes on with something else": func(c net.Conn) {
			fmt.Fprint(c, "GET /other HTTP/1.1\r\nHost: x\r\n\r\n", strings.Repeat("garbage\x00", 2000))
			_ = c.(*net.TCPConn).CloseWrite()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, nil, func(c *feed.Config) { c.Heartbeat = 400 * time.Millisecond })
			d := w.open(t, 10*time.Second, nil)
			c := d.ask(t, "GET / HTTP/1.1\r\nHost: x\r\n\r\nGET /pipelined HTTP/1.1\r\n")
			body := c.answer()
			w.say("a")
			if _, err := io.ReadFull(body, make([]byte, 20)); err != nil {
				t.Fatalf("stream of a client that pipelines = %v, want it to continue", err)
			}
			leave(c.conn)
			if err := d.end(t); !errors.Is(err, feed.ErrLeft) {
				t.Errorf("ended(%v), want ErrLeft", err)
			}
		})
	}
}

// TestClientSendsMore checks that a client that keeps sending gets its complete stream with a clean
// end.
func TestClientSendsMore(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil, func(c *feed.Config) { c.Heartbeat = 40 * time.Millisecond })
	d := w.open(t, 10*time.Second, nil)
	c := d.get(t, "")
	body := c.answer()
	for i := range 20 {
		fmt.Fprint(c.conn, strings.Repeat("x", 1000))
		w.say(fmt.Sprint(i))
	}
	w.end()
	if got, err := events(body); err != nil || len(got) != 21 {
		t.Errorf("stream = %d events, %v, want 21 and a clean end", len(got), err)
	}
}

// TestSlowClient checks that a client that does not read delays no other, and gets a snapshot before it
// is cut.
func TestSlowClient(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil, func(c *feed.Config) { c.BehindBytes = 512 << 10 })
	w.rows.snap = feed.Snapshot{Data: []byte(`{"type":"snapshot"}`)}
	d := w.open(t, 20*time.Second, nil)
	slow, quick := d.get(t, "").answer(), d.get(t, "").answer()
	const n = 160
	all := sse.NewReader(quick, 1<<20)
	piece := strings.Repeat("x", 64<<10)
	for i := range n { // 10 MiB: more than the buffers of the sockets
		w.say(piece)
		if e, err := all.Next(); err != nil || string(e.ID) != fmt.Sprintf("1-%d", i) {
			t.Fatalf("quick client's event %d = %q, %v", i, e.ID, err)
		}
	}
	w.end()
	if e, err := all.Next(); err != nil || e.Type != "done" {
		t.Errorf("quick client's last event = %q, %v, want done", e.Type, err)
	}
	if err := d.end(t); err != nil {
		t.Errorf("ended(%v), want nil", err)
	}
	got, err := events(slow)
	if err == nil || len(got) == 0 || got[len(got)-1] != "snapshot 0-0" {
		t.Errorf("slow client's last of %d events before %v = %q, want a snapshot and a cut", len(got), err, got[max(0, len(got)-1):])
	}
	if err := d.end(t); !errors.Is(err, feed.ErrSlow) {
		t.Errorf("ended(%v), want ErrSlow", err)
	}
}

// TestClientThatNeverReads checks that a write to such a client ends.
func TestClientThatNeverReads(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	d := w.open(t, 100*time.Millisecond, nil)
	d.get(t, "").answer()
	for range enough {
		w.say(large)
	}
	if err := d.end(t); !errors.Is(err, feed.ErrSlow) {
		t.Errorf("ended(%v), want ErrSlow", err)
	}
}

// TestBurst checks that a burst of events is delivered without further events.
func TestBurst(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	body := w.open(t, 10*time.Second, nil).get(t, "").answer()
	const n = 60
	piece := strings.Repeat("x", 16<<10)
	for range n {
		e := &runv1.Event{RunId: w.run.String(), RunOrdinal: 1, Epoch: 1, Number: w.next, Body: &runv1.Event_TextDelta{TextDelta: &runv1.TextDelta{Delta: piece}}}
		w.next++
		if _, err := w.writer.PublishAsync(t.Context(), w.subject, fmt.Sprint(w.run, e.GetNumber()), e); err != nil {
			t.Fatal(err)
		}
	}
	all := sse.NewReader(body, 1<<20)
	for i := range n {
		if e, err := all.Next(); err != nil || string(e.ID) != fmt.Sprintf("1-%d", i) {
			t.Fatalf("event %d = %q, %v", i, e.ID, err)
		}
	}
}

// TestSlowClientReadsOn checks that a slow client that reads again misses nothing and catches up.
func TestSlowClientReadsOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil, func(c *feed.Config) { c.BehindBytes = 64 << 20 })
	d := w.open(t, 20*time.Second, nil)
	body := d.get(t, "").answer()
	const n = 120
	piece := strings.Repeat("x", 64<<10)
	for range n {
		w.say(piece)
	}
	all := sse.NewReader(body, 1<<20)
	for i := range n {
		if e, err := all.Next(); err != nil || string(e.ID) != fmt.Sprintf("1-%d", i) {
			t.Fatalf("event %d = %q, %v", i, e.ID, err)
		}
	}
	w.end()
	if e, err := all.Next(); err != nil || e.Type != "done" {
		t.Errorf("event after the backlog = %q, %v, want done", e.Type, err)
	}
	if _, err := all.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("end = %v, want it clean", err)
	}
}

// TestRunEnds checks that all connections end with the feed, even one to which it is writing.
func TestRunEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil, func(c *feed.Config) { c.BehindBytes = 64 << 20 })
	d := w.open(t, time.Hour, nil)
	stuck := d.get(t, "").answer()
	for range enough {
		w.say(large)
	}
	idle := d.get(t, "?all=1").answer()
	w.stop()
	for range 2 {
		if err := d.end(t); !errors.Is(err, feed.ErrDraining) {
			t.Errorf("ended(%v), want ErrDraining", err)
		}
	}
	for name, r := range map[string]io.Reader{"idle": idle, "stuck": stuck} {
		if _, err := io.Copy(io.Discard, r); err == nil {
			t.Errorf("%s stream ended cleanly, want it cut", name)
		}
	}
}

// TestDrain checks that the streams of all sessions end, and that Drained is then closed.
func TestDrain(t *testing.T) {
	t.Parallel()
	const n = 60
	w := newWorld(t, nil, func(c *feed.Config) { c.DrainWindow, c.GroupSize = 200*time.Millisecond, 7 })
	d := w.open(t, 10*time.Second, nil)
	for i := range n {
		session := ""
		if i%2 == 0 {
			session = id.New[id.Session]().String()
		}
		d.get(t, session).answer()
	}
	w.feed.Drain()
	<-w.feed.Drained()
	for range n {
		if err := d.end(t); !errors.Is(err, feed.ErrDraining) {
			t.Fatalf("ended(%v), want ErrDraining", err)
		}
	}
}

func TestDrainedWithoutStreams(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	select {
	case <-w.feed.Drained():
		t.Error("Drained is closed before Drain")
	default:
	}
	w.feed.Drain()
	<-w.feed.Drained()
}

// TestComingAndGoing checks that clients miss nothing while others join, leave and are cut, and that
// each stream ends once.
func TestComingAndGoing(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	w := newWorld(t, nil, func(c *feed.Config) {
		// A viewer that falls off the ring before its first event gets a snapshot and is
		// cut, so the ring holds all.
		c.GroupSize, c.RingFrames, c.Metrics, c.Heartbeat = 3, 512, registry, 50*time.Millisecond
	})
	d := w.open(t, 10*time.Second, nil)
	const n, clients = 300, 90
	var all sync.WaitGroup
	for i := range clients {
		c := d.get(t, "")
		body := c.answer()
		all.Go(func() {
			switch i % 3 {
			case 0:
				if got, err := events(body); err != nil || len(got) != n+1 {
					t.Errorf("client %d got %d events and %v, want %d and a clean end", i, len(got), err, n+1)
				}
			case 1:
				_, _ = io.CopyN(io.Discard, body, int64(rand.IntN(4000)))
				c.conn.Close()
			case 2:
				_, _ = io.Copy(io.Discard, body)
			}
		})
	}
	for i := range n {
		w.say(fmt.Sprint(i))
		if i%9 == 0 {
			d.mu.Lock()
			d.views[2+i/9*3%clients].Cut(feed.ErrGone)
			d.mu.Unlock()
		}
	}
	w.end()
	all.Wait()
	ends := map[string]int{}
	for range clients {
		err := d.end(t)
		switch {
		case err == nil:
			ends["clean"]++
		case errors.Is(err, feed.ErrGone):
			ends["cut"]++
		case errors.Is(err, feed.ErrLeft):
			ends["left"]++
		default:
			t.Errorf("ended(%v), want nil, ErrGone or ErrLeft", err)
		}
	}
	if ends["clean"] < clients/3 || ends["cut"] == 0 || ends["left"] == 0 {
		t.Errorf("ends = %v, want some of each kind, and a third of them clean", ends)
	}
	if got := metric(t, registry, "gateway_feed_viewers"); got != 0 || len(d.ended) != 0 {
		t.Errorf("%v viewers and %d further ends, want none", got, len(d.ended))
	}
}

// TestDelay checks that the delay of an event lasts from its storage until it is there for viewers.
func TestDelay(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	const late = 50 * time.Millisecond
	lose := func(int) bool {
		time.Sleep(late) //nolint:forbidigo // what is measured
		return false
	}
	w := newWorld(t, lose, func(c *feed.Config) { c.Metrics = registry })
	wait := w.watch(&buffer{})
	began := time.Now()
	w.say("late")
	w.end()
	if err := wait(); err != nil {
		t.Fatal(err)
	}
	least, most := 2*late.Seconds(), 2*time.Since(began).Seconds()
	if sum := metric(t, registry, "gateway_feed_delay_seconds"); sum < least || sum > most {
		t.Errorf("two events were delayed by %v s, want %v to %v", sum, least, most)
	}
}

// metric returns the value of a counter or a gauge, or the sum of a histogram.
func metric(t testing.TB, registry *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			m := f.GetMetric()[0]
			return m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetHistogram().GetSampleSum()
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}
