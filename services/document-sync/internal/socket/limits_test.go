package socket_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gorilla/websocket"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/yjs"
	"signalbox.dev/services/document-sync/internal/room"
	"signalbox.dev/services/document-sync/internal/socket"
	"signalbox.dev/services/document-sync/internal/store"
	"signalbox.dev/services/document-sync/internal/yproto"
)

// TestBadInput checks that bad input closes its own connection only, with a code and a reason.
func TestBadInput(t *testing.T) {
	t.Parallel()
	w := newWorld(t, socket.Limits{Message: 1 << 20})
	ref := w.rooms.open(w.workspace)
	name := ref.Document.String()
	other := w.dial(t, nil, path(name, ""))
	other.until(yproto.Step1)
	for _, tc := range []struct {
		name, path string
		kind       int
		in         []byte
		code       int
		reason     string
	}{
		{"nothing", path(name, ""), websocket.BinaryMessage, nil, room.CloseMalformed, "The message cannot be read"},
		{"truncated", path(name, ""), websocket.BinaryMessage, []byte{0, 2, 9, 1}, room.CloseMalformed, "The message cannot be read"},
		{"no update", path(name, ""), websocket.BinaryMessage, yproto.AppendUpdate(nil, []byte("\xff\xff\xff")), room.CloseMalformed, "The message cannot be read"},
		{"no state vector", path(name, ""), websocket.BinaryMessage, yproto.AppendStep1(nil, []byte{9}), room.CloseMalformed, "The message cannot be read"},
		{"no awareness", path(name, ""), websocket.BinaryMessage, yproto.AppendAwareness(nil, []byte{1, 1, 1, 100}), room.CloseMalformed, "The message cannot be read"},
		{"too large", path(name, ""), websocket.BinaryMessage, make([]byte, 1<<20+1), room.CloseTooBig, "The message is too large"},
		{"much too large", path(name, ""), websocket.BinaryMessage, make([]byte, 20<<20), room.CloseTooBig, "The message is too large"},
		{"no document", "/ws/documents/x", websocket.BinaryMessage, nil, room.CloseGone, "There is no such document."},
		{"no door", "/ws/elsewhere", websocket.BinaryMessage, nil, room.CloseGone, "There is no such document."},
		{"nothing", "/ws/hocuspocus", websocket.BinaryMessage, nil, room.CloseMalformed, "The message cannot be read"},
		{"truncated", "/ws/hocuspocus", websocket.BinaryMessage, []byte{4, 'n', 'a', 'm'}, room.CloseMalformed, "The message cannot be read"},
		{"a long name", "/ws/hocuspocus", websocket.BinaryMessage, joinDocument(strings.Repeat("n", 1000)), room.CloseMalformed, "The message cannot be read"},
	} {
		r := w.dial(t, nil, tc.path)
		if err := r.ws.WriteMessage(tc.kind, tc.in); err != nil && tc.code != room.CloseTooBig && tc.code != room.CloseGone {
			t.Fatal(err)
		}
		code, reason := r.end()
		if code != tc.code || !strings.HasPrefix(reason, tc.reason) || len(reason) > 123 {
			t.Errorf("%s on %s: %d %q, want %d %q", tc.name, tc.path, code, reason, tc.code, tc.reason)
		}
		r.ws.Close()
	}
	other.send(queryAwareness)
	other.until(yproto.Awareness)
	eventually(t, "only the other connection is left", func() bool { return w.handler.Count() == 1 && w.rooms.seats(ref) == 1 })
	if got := w.count("signalbox_document_socket_closed_total", "too_big"); got != 2 {
		t.Errorf("%v connections closed for too large messages, want 2", got)
	}
}

// TestUnknownMessages checks that unknown messages are ignored.
func TestUnknownMessages(t *testing.T) {
	t.Parallel()
	w := newWorld(t, socket.Limits{})
	name := w.rooms.open(w.workspace).Document.String()
	r := w.dial(t, nil, path(name, ""))
	r.send([]byte{77, 1, 2, 3})
	r.send(yproto.AppendDenied(nil, "no"))
	r.send(queryAwareness)
	r.until(yproto.Awareness)

	h := w.dial(t, nil, "/ws/hocuspocus")
	h.send(yproto.AppendUpdate(yproto.AppendDocument(nil, name), []byte("not joined, not read")))
	h.send(ping)
	if _, b, err := h.ws.ReadMessage(); err != nil || !bytes.Equal(b, yproto.AppendPong(nil)) {
		t.Errorf("the answer to a ping is %x, %v", b, err)
	}
}

// TestUnauthenticatedMux checks that mux connections require authentication.
func TestUnauthenticatedMux(t *testing.T) {
	t.Parallel()
	w := newWorld(t, socket.Limits{})
	mux := http.NewServeMux()
	w.handler.Mount(mux)
	for _, token := range []string{"", "e30.e30.AAAA"} {
		req := get(t, "/trunk")
		req.Header.Set("Signalbox-Context", token)
		rec := newRecorder()
		mux.ServeHTTP(rec, req)
		if rec.status != http.StatusUnauthorized {
			t.Errorf("with the context %q: status %d, want 401", token, rec.status)
		}
	}
}

// TestBusy checks that a server over its limits asks clients to try again later.
func TestBusy(t *testing.T) {
	t.Parallel()
	w := newWorld(t, socket.Limits{Connections: 2, Documents: 2})
	ref := w.rooms.open(w.workspace)
	first := w.dial(t, nil, path(ref.Document.String(), ""))
	h := w.dial(t, nil, "/ws/hocuspocus")
	eventually(t, "both are counted", func() bool { return w.handler.Count() == 2 })
	if code, reason := w.dial(t, nil, path(ref.Document.String(), "")).end(); code != room.CloseBusy || !strings.Contains(reason, "too many") {
		t.Errorf("one connection too many: %d %q", code, reason)
	}
	first.until(yproto.Step1)

	join := func(name string) yproto.Message {
		h.send(joinDocument(name))
		for {
			_, b, err := h.ws.ReadMessage()
			if err != nil {
				t.Fatal(err)
			}
			m, err := yproto.DecodeHocuspocus(b)
			if err != nil {
				t.Fatal(err)
			}
			if m.Kind == yproto.Authenticated || m.Kind == yproto.Denied {
				return m
			}
		}
	}
	a, b, c := ref.Document.String(), w.rooms.open(w.workspace), w.rooms.open(w.workspace).Document.String()
	for name, want := range map[string]yproto.Kind{a: yproto.Authenticated, b.Document.String(): yproto.Authenticated} {
		if m := join(name); m.Kind != want {
			t.Fatalf("joining %s: %+v", name, m)
		}
	}
	if m := join(c); m.Kind != yproto.Denied || !strings.Contains(string(m.Payload), "too many documents") {
		t.Errorf("one document too many: %+v", m)
	}
	w.rooms.remove(b) // makes room
	if m := join(c); m.Kind == yproto.Denied {
		m = join(c) // skips the message about b
		if m.Kind != yproto.Authenticated {
			t.Errorf("a document in the place of another: %s", m.Payload)
		}
	}
}

// TestLargeDocument transfers a document that is larger than all buffers.
func TestLargeDocument(t *testing.T) {
	t.Parallel()
	w := newWorld(t, socket.Limits{})
	ref := w.rooms.open(w.workspace)
	d := yjs.New(yjs.Options{})
	d.Text("t").Insert(0, strings.Repeat("x", 3_000_000))
	a := w.dial(t, nil, path(ref.Document.String(), ""))
	a.send(yproto.AppendUpdate(nil, d.EncodeStateAsUpdate(nil)))
	a.send(yproto.AppendStep1(nil, []byte{0}))
	if m := a.until(yproto.Step2); len(m.Payload) < 3_000_000 {
		t.Errorf("the step 2 has %d bytes", len(m.Payload))
	}
	b := w.dial(t, nil, path(ref.Document.String(), ""))
	b.send(yproto.AppendStep1(nil, []byte{0}))
	if m := b.until(yproto.Step2); len(m.Payload) < 3_000_000 {
		t.Errorf("the other's step 2 has %d bytes", len(m.Payload))
	}
}

// TestPartial checks that large, slow messages share a budget.
func TestPartial(t *testing.T) {
	t.Parallel()
	bubble(t, socket.Limits{Partial: 1 << 20}, func(t *testing.T, w *world, p *pipes) {
		name := w.rooms.open(w.workspace).Document.String()
		large := func() *raw {
			r := w.dial(t, p, path(name, ""))
			go func() { // not read to its end
				msg, err := r.ws.NextWriter(websocket.BinaryMessage)
				if err == nil {
					_, _ = msg.Write(make([]byte, 600_000))
				}
			}()
			return r
		}
		a := large()
		a.until(yproto.Step1)
		synctest.Wait()
		b := large()
		if code, reason := b.end(); code != room.CloseBusy || !strings.Contains(reason, "large messages") {
			t.Errorf("the second: %d %q", code, reason)
		}
		a.ws.Close()
		synctest.Wait()
		c := w.dial(t, p, path(name, ""))
		c.until(yproto.Step1)
		c.send(yproto.AppendAwareness(nil, append([]byte{1, 1, 1, 0x80, 0xea, 0x30}, make([]byte, 800_000)...)))
		c.send(queryAwareness)
		c.until(yproto.Awareness)
	})
}

// TestRate checks that a fast sender is read more slowly, without loss.
func TestRate(t *testing.T) {
	t.Parallel()
	bubble(t, socket.Limits{Messages: 10}, func(t *testing.T, w *world, p *pipes) {
		ref := w.rooms.open(w.workspace)
		r := w.dial(t, p, path(ref.Document.String(), ""))
		r.until(yproto.Step1)
		go func() { _, _ = io.Copy(io.Discard, r.ws.NetConn()) }()
		began := time.Now()
		for range 500 {
			r.send(yproto.AppendUpdate(nil, []byte{0, 0}))
		}
		for w.rooms.updates(ref) < 500 && time.Since(began) < time.Minute {
			<-time.After(time.Second / 2)
			synctest.Wait()
		}
		if d := time.Since(began).Round(time.Second); d < 40*time.Second || d > 45*time.Second {
			t.Errorf("500 messages took %v, want 42 s: 80 at once, and 10 a second", d)
		}
		if got := w.count("signalbox_document_socket_throttled_total", ""); got == 0 {
			t.Error("the metric does not show that it was read more slowly")
		}
	})
}

// TestJoinRate checks that documents are joined one by one, at a rate above normal use.
func TestJoinRate(t *testing.T) {
	t.Parallel()
	bubble(t, socket.Limits{}, func(t *testing.T, w *world, p *pipes) {
		const n = 500
		h := w.dial(t, p, "/ws/hocuspocus")
		began := time.Now()
		go func() {
			for range n {
				name := id.New[id.Document]().String()
				_ = h.ws.WriteMessage(websocket.BinaryMessage, joinDocument(name))
			}
		}()
		for i := range n {
			if _, _, err := h.ws.ReadMessage(); err != nil {
				t.Fatal(err)
			}
			if d := time.Since(began); i == 100 && d > 0 {
				t.Errorf("the first 100 documents took %v", d)
			}
		}
		if d := time.Since(began); d < 15*time.Second || d > 20*time.Second {
			t.Errorf("%d documents that do not exist were looked for within %v, want 17 s", n, d)
		}
	})
}

// TestBackpressure checks that a slow room blocks its writers, which are not considered dead.
func TestBackpressure(t *testing.T) {
	t.Parallel()
	bubble(t, socket.Limits{}, func(t *testing.T, w *world, p *pipes) {
		w.rooms.stored = make(chan struct{})
		ref := w.rooms.open(w.workspace)
		r := w.dial(t, p, path(ref.Document.String(), ""))
		go func() { _, _ = io.Copy(io.Discard, r.ws.NetConn()) }()
		r.send(yproto.AppendUpdate(nil, []byte{0, 0}))
		synctest.Wait()
		<-time.After(10 * time.Minute)
		if n := w.rooms.seats(ref); n != 1 {
			t.Fatalf("%d seats are taken after ten minutes, want 1", n)
		}
		close(w.rooms.stored)
		synctest.Wait()
		if got := w.rooms.updates(ref); got != 1 {
			t.Errorf("%d updates arrived, want 1", got)
		}
	})
}

// TestExpiry checks that an expired token closes a live connection.
func TestExpiry(t *testing.T) {
	t.Parallel()
	bubble(t, socket.Limits{}, func(t *testing.T, w *world, p *pipes) {
		ref := w.rooms.open(w.workspace)
		began := time.Now()
		r := w.dial(t, p, path(ref.Document.String(), "expires="+in(90*time.Second)))
		code, reason := r.end()
		if code != room.CloseToken || !strings.Contains(reason, "token has expired") {
			t.Errorf("the end is %d %q", code, reason)
		}
		if d := time.Since(began); d < 90*time.Second || d > 91*time.Second {
			t.Errorf("it closed after %v, want 90 s", d)
		}
		synctest.Wait()
		if n := w.rooms.seats(ref); n != 0 {
			t.Errorf("%d seats are taken, want 0", n)
		}
	})
}

// TestDrainSpread checks that Run spreads the closes over time, and ends although a client does
// not.
func TestDrainSpread(t *testing.T) {
	t.Parallel()
	bubble(t, socket.Limits{Drain: 10 * time.Second}, func(t *testing.T, w *world, p *pipes) {
		ref := w.rooms.open(w.workspace)
		began := time.Now()
		ends := make(chan time.Duration, 20)
		for range 20 {
			r := w.dial(t, p, path(ref.Document.String(), ""))
			go func() {
				code, _ := r.end()
				if code != room.CloseRestart {
					t.Errorf("the code is %d, want 1012", code)
				}
				ends <- time.Since(began)
				r.ws.Close()
			}()
		}
		stuck := w.dial(t, p, path(ref.Document.String(), ""))
		stuck.until(yproto.Step1) // and nothing more
		synctest.Wait()
		w.stop()
		var first, last time.Duration
		for i := range 20 {
			d := <-ends
			if i == 0 {
				first = d
			}
			last = d
		}
		if last-first < 500*time.Millisecond || last > 5*time.Second {
			t.Errorf("the ends came from %v to %v, want them spread within 5 s", first, last)
		}
		<-w.stopped
		if d := time.Since(began); d > 10*time.Second {
			t.Errorf("Run took %v to end", d)
		}
		if code, reason := w.dial(t, p, path(ref.Document.String(), "")).end(); code != room.CloseBusy || !strings.Contains(reason, "away") {
			t.Errorf("a new connection: %d %q, want no mux connection", code, reason)
		}
	})
}

// TestRefused checks the close codes for errors of joining.
func TestRefused(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		err    error
		code   int
		reason string
		alone  bool // a Hocuspocus connection stays open
	}{
		{fault.New(fault.NotFound, "Gone."), room.CloseGone, "Gone.", true},
		{fault.New(fault.Forbidden, "Not yours."), room.CloseForbidden, "Not yours.", true},
		{fault.New(fault.Unauthenticated, "Who?"), room.CloseToken, "Who?", true},
		{fault.New(fault.TooLarge, "Too large."), room.CloseTooBig, "Too large.", true},
		{fault.Wrap(net.ErrClosed, fault.Unavailable, "The database is away."), room.CloseBusy, "The database is away.", false},
		{&net.OpError{Op: "read", Err: net.ErrClosed}, room.CloseBusy, "Something went wrong here: try again later.", true},
		{fmt.Errorf("load: %w", context.DeadlineExceeded), room.CloseBusy, "The document takes too long to load: try again later.", false},
		{fmt.Errorf("snapshot: %w", yjs.ErrMalformed), room.CloseMalformed, "The message cannot be read: snapshot: malformed yjs data", true},
	} {
		w := prepareRooms(t, socket.Limits{}, refusing{tc.err})
		w.listen()
		name := id.New[id.Document]().String()
		if code, reason := w.dial(t, nil, path(name, "")).end(); code != tc.code || reason != tc.reason {
			t.Errorf("%v: %d %q, want %d %q", tc.err, code, reason, tc.code, tc.reason)
		}
		h := w.dial(t, nil, "/ws/hocuspocus")
		h.send(joinDocument(name))
		if !tc.alone {
			if code, reason := h.end(); code != tc.code || reason != tc.reason {
				t.Errorf("%v on Hocuspocus: %d %q, want %d %q", tc.err, code, reason, tc.code, tc.reason)
			}
			continue
		}
		_, b, err := h.ws.ReadMessage()
		if want := yproto.AppendHocuspocusDenied(yproto.AppendDocument(nil, name), tc.reason); err != nil || !bytes.Equal(b, want) {
			t.Errorf("%v on Hocuspocus: %q, %v, want %q", tc.err, b, err, want)
		}
	}
}

// refusing is a Rooms that refuses every join.
type refusing struct{ err error }

func (r refusing) Join(context.Context, store.Ref, identity.Actor, room.Peer) (socket.Seat, error) {
	return nil, r.err
}

// TestReasons checks that reasons are truncated, and that only the first close counts.
func TestReasons(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("ä", 200)
	w := newWorld(t, socket.Limits{})
	ref := w.rooms.open(w.workspace)
	r := w.dial(t, nil, path(ref.Document.String(), ""))
	r.until(yproto.Step1)
	w.rooms.mu.Lock()
	for s := range w.rooms.docs[ref].seats {
		s.peer.Close(room.CloseBusy, long)
		s.peer.Close(room.CloseGone, "the second one does not count")
		s.peer.Send(&room.Message{Kind: room.KindUpdate, Payload: []byte("nor does this")})
	}
	w.rooms.mu.Unlock()
	code, reason := r.end()
	if code != room.CloseBusy || len(reason) > 123 || !strings.HasSuffix(reason, "ä…") {
		t.Errorf("the end is %d %q (%d bytes)", code, reason, len(reason))
	}
}

// recorder is a ResponseWriter that cannot be hijacked.
type recorder struct {
	header http.Header
	status int
}

func newRecorder() *recorder                    { return &recorder{header: http.Header{}, status: http.StatusOK} }
func (r *recorder) Header() http.Header         { return r.header }
func (r *recorder) WriteHeader(status int)      { r.status = status }
func (r *recorder) Write(p []byte) (int, error) { return len(p), nil }
func get(t testing.TB, path string) *http.Request {
	return must(http.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(fmt.Sprint("test: ", err))
	}
	return v
}
