package editor_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gorilla/websocket"
	"github.com/prometheus/client_golang/prometheus"

	"signalbox.dev/services/gateway/internal/docproxy/editor"
)

// pipes is a listener in memory. Its connections have no buffers, so that a client that does not
// read is slow at once.
type pipes struct {
	accept chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.accept:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.closed) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes"} }

// world is a host whose connections record their messages.
type world struct {
	t     *testing.T
	p     *pipes
	host  *editor.Host
	conns chan *served
}

type served struct {
	*editor.Conn
	messages chan string
	ended    chan editor.Closing
	hold     chan struct{} // if set, the reader waits for it
}

// bubble runs a test with a simulated clock and connections in memory.
func bubble(t *testing.T, queue int, f func(w *world)) {
	t.Helper()
	crowd(t, queue, 1<<30, f)
}

// crowd is bubble with a bound on the bytes queued for all clients.
func crowd(t *testing.T, queue, held int, f func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, p: &pipes{accept: make(chan net.Conn), closed: make(chan struct{})}, conns: make(chan *served, 100)}
		count := prometheus.NewCounter(prometheus.CounterOpts{Name: "bytes"})
		w.host = editor.NewHost(editor.Config{
			Message: 1 << 20, Queue: queue, QueueTotal: held, WriteWait: 10 * time.Second, CloseWait: time.Second, In: count, Out: count,
		}, func(w http.ResponseWriter, reason error) { http.Error(w, reason.Error(), http.StatusBadRequest) })
		server := &http.Server{Handler: w}
		var all sync.WaitGroup
		all.Go(func() { _ = server.Serve(w.p) })
		t.Cleanup(func() { server.Close(); all.Wait() })
		f(w)
	})
}

func (w *world) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	c, err := w.host.Take(rw, r)
	if err != nil {
		return
	}
	s := &served{Conn: c, messages: make(chan string, 1000), ended: make(chan editor.Closing, 1), hold: make(chan struct{})}
	c.SetIdle(editor.Idle([]byte("idle")))
	stop := make(chan struct{})
	go func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				w.host.Tick()
				c.CheckTimeouts()
			case <-stop:
				return
			}
		}
	}()
	w.conns <- s
	s.ended <- c.Finish(s.talk())
	close(stop)
}

func (s *served) talk() editor.Closing {
	for {
		r, err := s.NextReader()
		if err != nil {
			return editor.ReadError(err)
		}
		b, err := io.ReadAll(r)
		if err != nil {
			return editor.ReadError(err)
		}
		if string(b) == "hold" {
			_ = s.WithoutReading(func() error { <-s.hold; return nil })
		}
		s.messages <- string(b)
	}
}

func (w *world) dial() (*websocket.Conn, *served) {
	w.t.Helper()
	d := websocket.Dialer{NetDial: func(string, string) (net.Conn, error) {
		here, there := net.Pipe()
		w.p.accept <- there
		return here, nil
	}}
	ws, res, err := d.DialContext(w.t.Context(), "ws://pipes/", nil)
	if err != nil {
		w.t.Fatal(err)
	}
	res.Body.Close()
	w.t.Cleanup(func() { ws.Close() })
	return ws, <-w.conns
}

// end reads to the end and returns the close code and reason.
func end(ws *websocket.Conn) (int, string) {
	for {
		_, _, err := ws.ReadMessage()
		if c, ok := errors.AsType[*websocket.CloseError](err); ok {
			return c.Code, c.Text
		}
		if err != nil {
			return 0, err.Error()
		}
	}
}

func TestBadFrames(t *testing.T) {
	t.Parallel()
	bubble(t, 1<<20, func(w *world) {
		other, o := w.dial()
		for name, tt := range map[string]struct {
			send   func(*websocket.Conn) error
			code   int
			reason string
		}{
			"text":       {func(ws *websocket.Conn) error { return ws.WriteMessage(websocket.TextMessage, []byte("x")) }, 1007, "Messages have to be binary."},
			"too large":  {func(ws *websocket.Conn) error { return ws.WriteMessage(websocket.BinaryMessage, make([]byte, 1<<20+1)) }, 1009, "The message is too large"},
			"not masked": {func(ws *websocket.Conn) error { _, err := ws.NetConn().Write([]byte("\x82\x01x")); return err }, 1007, "This is not how"},
			"a close": {func(ws *websocket.Conn) error {
				return ws.WriteMessage(websocket.CloseMessage, websocket.FormatCloseMessage(4200, "enough"))
			}, 4200, ""},
			"an empty close": {func(ws *websocket.Conn) error { return ws.WriteMessage(websocket.CloseMessage, nil) }, 1000, ""},
		} {
			ws, s := w.dial()
			go func() { _ = tt.send(ws) }() // a message that is too large is not read
			if code, reason := end(ws); code != tt.code || !strings.HasPrefix(reason, tt.reason) || len(reason) > 123 {
				t.Errorf("%s: %d %q, want %d %q", name, code, reason, tt.code, tt.reason)
			}
			ws.Close()
			if why := <-s.ended; why.Code != tt.code {
				t.Errorf("%s: the connection ended with %d, want %d", name, why.Code, tt.code)
			}
		}
		_ = other.WriteMessage(websocket.BinaryMessage, []byte("still here"))
		if got := <-o.messages; got != "still here" {
			t.Errorf("the other connection = %q", got)
		}
	})
}

// A client that does not read is closed with a reason.
func TestSlowReader(t *testing.T) {
	t.Parallel()
	for _, pieces := range []int{1, 3} {
		bubble(t, 1<<20, func(w *world) {
			ws, s := w.dial()
			piece := editor.Message(make([]byte, 50_000))
			began := time.Now()
			for range 100 {
				for i := range pieces {
					at := len(piece) * i / pieces
					s.Queue(piece[at:len(piece)*(i+1)/pieces], i < pieces-1, 1)
				}
				s.Flush()
			}
			<-s.Done()
			if time.Since(began) != 0 {
				t.Error("who queues has waited")
			}
			// The current write completes, then the close frame is sent.
			if code, reason := end(ws); code != 1013 || !strings.Contains(reason, "too slow") {
				t.Errorf("the end: %d %q", code, reason)
			}
			ws.Close()
			if why := <-s.ended; why.Code != 1013 {
				t.Errorf("the connection ended with %d, want 1013", why.Code)
			}
		})
	}
}

// A client that reads nothing is cut after ten seconds, even if few bytes are queued for it.
func TestStuckReader(t *testing.T) {
	t.Parallel()
	bubble(t, 1<<20, func(w *world) {
		_, s := w.dial()
		began := time.Now()
		s.Send(editor.Message([]byte("x")))
		if why := <-s.ended; why.Code != editor.CodeLost || time.Since(began) > 11*time.Second {
			t.Errorf("it ended with %d after %v, want 1006 after 10 s", why.Code, time.Since(began))
		}
	})
}

// A frame that is larger than the queue is sent in pieces, without another frame between them. A
// second one waits for the first.
func TestLargeFrame(t *testing.T) {
	t.Parallel()
	bubble(t, 100_000, func(w *world) {
		ws, s := w.dial()
		large := editor.Message(bytes.Repeat([]byte("x"), 1<<20))
		for at := 0; at < len(large); at += 64 << 10 {
			s.Queue(large[at:min(len(large), at+64<<10)], at+64<<10 < len(large), 1)
			s.Flush()
			s.Send(editor.Message([]byte("between")))
			if at == 64<<10 {
				go func() { _ = ws.WriteControl(websocket.PingMessage, []byte("p"), time.Now().Add(time.Second)) }()
				synctest.Wait()
			}
		}
		pongs := make(chan string, 1)
		ws.SetPongHandler(func(data string) error { pongs <- data; return nil })
		s.Queue(editor.Message([]byte("last")), false, 1)
		s.Flush()
		for _, want := range []string{string(bytes.Repeat([]byte("x"), 1<<20)), "between", "last"} {
			if _, got, err := ws.ReadMessage(); err != nil || string(got) != want {
				t.Fatalf("%d bytes came, %v, want %d", len(got), err, len(want))
			}
		}
		if got := <-pongs; got != "p" {
			t.Errorf("pong = %q", got)
		}
		// In the middle of a frame no close frame can be sent.
		s.Queue([]byte{0x82, 100, 'h'}, true, 1)
		s.Flush()
		synctest.Wait()
		s.End(editor.Closing{Code: 4401, Reason: "late"})
		if code, _ := end(ws); code == 4401 {
			t.Error("a close frame came in the middle of another one")
		}
		if why := <-s.ended; why.Code != editor.CodeLost {
			t.Errorf("the connection ended with %d, want 1006", why.Code)
		}
	})
}

// A client that answers pings stays connected. A silent one is closed after a minute, but not while
// the gateway does not read from it.
func TestLiveness(t *testing.T) {
	t.Parallel()
	bubble(t, 1<<20, func(w *world) {
		live, l := w.dial()
		dead, d := w.dial()
		busy, b := w.dial()
		go func() { _, _ = io.Copy(io.Discard, dead.NetConn()) }()
		go func() { _, _ = io.Copy(io.Discard, busy.NetConn()) }()
		_ = busy.WriteMessage(websocket.BinaryMessage, []byte("hold"))
		var longest time.Duration
		count := 0
		over := make(chan struct{})
		go func() { // answers pings while it reads
			defer close(over)
			for last := time.Now(); ; last = time.Now() {
				if _, got, err := live.ReadMessage(); err != nil || string(got) != "idle" {
					return
				}
				longest = max(longest, time.Since(last))
				count++
			}
		}()
		began := time.Now()
		if why := <-d.ended; why.Code != editor.CodeLost || time.Since(began) < 59*time.Second || time.Since(began) > 62*time.Second {
			t.Errorf("the silent client ended with %d after %v", why.Code, time.Since(began))
		}
		<-time.After(10 * time.Minute)
		select {
		case why := <-b.ended:
			t.Errorf("the client that is not read ended with %d", why.Code)
		default:
		}
		close(b.hold)
		<-b.ended // now its silence counts
		l.End(editor.Closing{Code: 1000})
		<-over
		if longest > 25*time.Second || count < 20 {
			t.Errorf("%d messages came, the longest pause was %v: clients reconnect after 30 s", count, longest)
		}
	})
}

// Control frames are read more slowly if there are many.
func TestPingFlood(t *testing.T) {
	t.Parallel()
	bubble(t, 1<<20, func(w *world) {
		ws, s := w.dial()
		go func() { _, _ = io.Copy(io.Discard, ws.NetConn()) }()
		began := time.Now()
		for range 500 {
			if err := ws.WriteControl(websocket.PingMessage, nil, time.Time{}); err != nil {
				t.Fatal(err)
			}
		}
		_ = ws.WriteMessage(websocket.BinaryMessage, []byte("x"))
		<-s.messages
		if d := time.Since(began); d < 8*time.Second {
			t.Errorf("500 pings were answered in %v", d)
		}
		ws.Close()
		<-s.ended
	})
}

// A reason is clipped to the size of a control frame, and only the first call of End counts.
func TestReasons(t *testing.T) {
	t.Parallel()
	bubble(t, 1<<20, func(w *world) {
		ws, s := w.dial()
		s.End(editor.Closing{Code: 1013, Reason: strings.Repeat("ä", 200)})
		s.End(editor.Closing{Code: 4404, Reason: "the second one does not count"})
		s.Send(editor.Message([]byte("nor does this")))
		code, reason := end(ws)
		if code != 1013 || len(reason) > 123 || !strings.HasSuffix(reason, "ä…") {
			t.Errorf("the end is %d %q (%d bytes)", code, reason, len(reason))
		}
		ws.Close()
		<-s.ended
	})
}
