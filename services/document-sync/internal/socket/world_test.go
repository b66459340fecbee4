package socket_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"signalbox.dev/pkg/httpserver"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/services/document-sync/internal/socket"
)

// timeout bounds every wait of a test.
const timeout = time.Minute

// world is a handler behind a front.
type world struct {
	t         testing.TB
	rooms     *rooms
	handler   *socket.Handler
	registry  *prometheus.Registry
	workspace id.Workspace
	front     *front
	doors     http.Handler  // of the handler
	url       string        // ws://…
	stop      func()        // ends Run
	stopped   chan struct{} // Run has returned
}

// newWorld returns a world that listens; prepare returns one that does not.
func newWorld(t testing.TB, limits socket.Limits) *world {
	t.Helper()
	w := prepare(t, limits)
	w.listen()
	return w
}

func (w *world) listen() {
	server, inner := httptest.NewServer(w.front), httptest.NewServer(w.doors)
	w.t.Cleanup(server.Close)
	w.t.Cleanup(inner.Close)
	w.url = "ws" + strings.TrimPrefix(server.URL, "http")
	w.front.dial = func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", inner.Listener.Addr().String())
	}
	w.run()
}

func prepare(t testing.TB, limits socket.Limits) *world {
	t.Helper()
	r := newRooms()
	w := prepareRooms(t, limits, r)
	w.rooms = r
	return w
}

func prepareRooms(t testing.TB, limits socket.Limits, r socket.Rooms) *world {
	t.Helper()
	key, err := identity.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	verifier, err := identity.NewVerifier("document-sync", map[string]string{"gateway": key.Public()})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, registry: prometheus.NewRegistry(), workspace: id.New[id.Workspace](), stopped: make(chan struct{})}
	w.handler, err = socket.New(socket.Config{
		Rooms: r, Verifier: verifier, Log: slog.New(slog.DiscardHandler), Registerer: w.registry, Limits: limits,
	})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	w.handler.Mount(mux)
	w.doors = httpserver.BoundWrites(mux, time.Minute) // stricter than in the service
	w.front = newFront(w, identity.NewSigner("gateway", key))
	return w
}

func (w *world) run() {
	ctx, cancel := context.WithCancel(context.Background())
	w.stop = cancel
	go func() {
		defer close(w.stopped)
		_ = w.handler.Run(ctx) // returns nil
	}()
	w.front.run(w.t)
	w.t.Cleanup(func() {
		cancel()
		<-w.stopped
		if n := w.handler.Count(); n != 0 {
			w.t.Errorf("%d connections are left after Run", n)
		}
	})
}

// count returns a counter by its name and the value of its only label.
func (w *world) count(name, label string) float64 {
	w.t.Helper()
	families, err := w.registry.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && (label == "" || m.GetLabel()[0].GetValue() == label) {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return 0
}

// eventually waits until a condition is met.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	end := time.NewTimer(timeout)
	defer end.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-end.C:
			t.Fatalf("never happened: %s", what)
		}
	}
}

const clientsDir = "../../../e2e/yclients"

// browser is a Node process with npm clients.
type browser struct {
	t  testing.TB
	in io.WriteCloser

	mu      sync.Mutex // guards the rest
	next    int
	waiting map[int]chan json.RawMessage
}

func newBrowser(t testing.TB) *browser {
	t.Helper()
	if _, err := os.Stat(clientsDir + "/node_modules/.installed"); err != nil {
		t.Fatal("the npm clients are not installed: run `make clients`")
	}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "node", "clients.mjs")
	cmd.Dir = clientsDir
	var complaints strings.Builder
	cmd.Stderr = &complaints
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	b := &browser{t: t, in: in, waiting: map[int]chan json.RawMessage{}}
	read := make(chan struct{})
	go func() {
		defer close(read)
		b.read(out)
	}()
	t.Cleanup(func() {
		in.Close()
		<-read
		if err := cmd.Wait(); err != nil {
			t.Errorf("node: %v", err)
		}
		if t.Failed() {
			t.Logf("node printed:\n%s", &complaints)
		}
	})
	return b
}

func (b *browser) read(out io.Reader) {
	lines := bufio.NewReaderSize(out, 1<<20)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var a struct {
			N     int
			Error string
		}
		if err := json.Unmarshal(line, &a); err != nil || a.N == 0 {
			b.t.Errorf("node: %s", line)
			continue
		}
		b.mu.Lock()
		ch := b.waiting[a.N]
		delete(b.waiting, a.N)
		b.mu.Unlock()
		if ch != nil {
			ch <- line
		}
	}
}

type args = map[string]any

// tell runs a command and returns its response.
func (b *browser) tell(id, do string, more args) seen {
	b.t.Helper()
	q := args{"id": id, "do": do}
	maps.Copy(q, more)
	answer := make(chan json.RawMessage, 1)
	b.mu.Lock()
	b.next++
	q["n"] = b.next
	b.waiting[b.next] = answer
	line, err := json.Marshal(q)
	if err == nil {
		_, err = b.in.Write(append(line, '\n'))
	}
	b.mu.Unlock()
	if err != nil {
		b.t.Fatal(err)
	}
	select {
	case a := <-answer:
		var s struct {
			seen
			Error string
		}
		if err := json.Unmarshal(a, &s); err != nil {
			b.t.Fatal(err)
		}
		if s.Error != "" {
			b.t.Fatalf("%s: %s", line, s.Error)
		}
		return s.seen
	case <-time.After(timeout):
		if do == "until" {
			b.t.Fatalf("%s never happened; state %+v", line, b.tell(id, "state", nil))
		}
		b.t.Fatalf("%s: no response", line)
	}
	return seen{}
}

// seen is the state that a client reports.
type seen struct {
	Client         uint64
	Text, Scope    string
	Synced         bool
	Unsynced       int
	Peers          map[string]json.RawMessage
	Update, Vector []byte
	Ends           []struct {
		Code   int
		Reason string
	}
	Told []map[string]string
}

// denied is why a document was closed for the client.
func (s seen) denied() string {
	for _, t := range slices.Backward(s.Told) {
		if v, ok := t["denied"]; ok {
			return v
		}
	}
	return ""
}

// open starts a client of a kind on a document.
func (b *browser) open(w *world, id, kind, name string, more args) {
	b.t.Helper()
	path := "/ws/hocuspocus"
	if kind == "y-websocket" {
		path = "/ws/documents"
	}
	q := args{"kind": kind, "url": w.url + path, "name": name}
	maps.Copy(q, more)
	b.tell(id, "open", q)
}

func in(d time.Duration) string { return strconv.FormatInt(time.Now().Add(d).Unix(), 10) }

var providers = []string{"hocuspocus2", "hocuspocus3", "hocuspocus4"}

// everyKind runs a test with each kind of client, and with them mixed.
func everyKind(t *testing.T, f func(t *testing.T, kind func(i int) string)) {
	for _, kind := range append([]string{"y-websocket", "mixed"}, providers...) {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			f(t, func(i int) string {
				if kind == "mixed" {
					return append([]string{"y-websocket"}, providers...)[i%4]
				}
				return kind
			})
		})
	}
}

func named(name string) args { return args{"state": args{"name": name}} }

func join(parts ...any) string { return fmt.Sprint(parts...) }
