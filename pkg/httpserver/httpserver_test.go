package httpserver_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"signalbox.dev/pkg/httpserver"
)

func get(t *testing.T, h http.Handler, path string) (int, http.Header, string) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
	return w.Code, w.Header(), w.Body.String()
}

func TestOps(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		counter := prometheus.NewCounter(prometheus.CounterOpts{Name: "signalbox_test_total", Help: "A test."})
		registry.MustRegister(counter)
		broken := errors.New("dial tcp 10.0.0.7:5432: connection refused")
		var mu sync.Mutex // guards natsErr
		var natsErr error
		var asked atomic.Int64
		mux := http.NewServeMux()
		var logs strings.Builder
		httpserver.Ops{
			Gatherer: registry, Log: slog.New(slog.NewTextHandler(&logs, nil)),
			Checks: map[string]httpserver.Check{
				"postgres": func(context.Context) error {
					asked.Add(1)
					return nil
				},
				"nats": func(context.Context) error {
					mu.Lock()
					defer mu.Unlock()
					return natsErr
				},
			},
		}.Mount(mux)

		ready := func() (int, map[string]any) {
			status, header, body := get(t, mux, "/ready")
			if got := header.Get("Cache-Control"); got != "no-store" {
				t.Errorf("/ready: Cache-Control = %q, want no-store", got)
			}
			if strings.Contains(body, "10.0.0.7") {
				t.Errorf("/ready shows the cause: %s", body)
			}
			var page map[string]any
			if err := json.Unmarshal([]byte(body), &page); err != nil {
				t.Fatalf("/ready = %s: %v", body, err)
			}
			return status, page
		}

		status, page := ready()
		want := map[string]any{"status": "ready", "checks": map[string]any{"postgres": "ok", "nats": "ok"}}
		if d := cmp.Diff(want, page); status != http.StatusOK || d != "" {
			t.Errorf("/ready = %d (-want +got):\n%s", status, d)
		}
		mu.Lock()
		natsErr = broken
		mu.Unlock()
		for range 100 { // repeated requests get the cached result
			if status, _ := ready(); status != http.StatusOK {
				t.Fatalf("/ready = %d within the second, want 200", status)
			}
		}
		if n := asked.Load(); n != 1 {
			t.Errorf("a hundred requests made %d checks, want 1", n)
		}
		<-time.After(time.Second)
		status, page = ready()
		want = map[string]any{"status": "not ready", "checks": map[string]any{"postgres": "ok", "nats": "not ready"}}
		if d := cmp.Diff(want, page); status != http.StatusServiceUnavailable || d != "" {
			t.Errorf("/ready = %d (-want +got):\n%s", status, d)
		}
		<-time.After(time.Second)
		ready()
		if n := strings.Count(logs.String(), "10.0.0.7:5432"); n != 1 {
			t.Errorf("the log has the cause %d times, want once, when the check began to fail:\n%s", n, &logs)
		}
		if status, _, body := get(t, mux, "/health"); status != http.StatusOK || body != `{"status":"ok","version":"devel"}`+"\n" {
			t.Errorf("/health = %d %s, want 200: it does not depend on the checks", status, body)
		}
		status, _, body := get(t, mux, "/metrics")
		for _, line := range []string{"signalbox_test_total 0", `signalbox_ready{check="postgres"} 1`, `signalbox_ready{check="nats"} 0`} {
			if status != http.StatusOK || !strings.Contains(body, line+"\n") {
				t.Errorf("/metrics = %d without %s:\n%s", status, line, body)
			}
		}
	})
}

func TestOpsWithoutChecksOrMetrics(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	httpserver.Ops{}.Mount(mux)
	if status, _, body := get(t, mux, "/ready"); status != http.StatusOK {
		t.Errorf("/ready = %d %s, want 200", status, body)
	}
	if status, _, _ := get(t, mux, "/metrics"); status != http.StatusNotFound {
		t.Errorf("/metrics = %d, want 404", status)
	}
}

// A check that hangs only makes the page report it.
func TestReadyIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mux := http.NewServeMux()
		httpserver.Ops{Checks: map[string]httpserver.Check{
			"peer": func(ctx context.Context) error {
				<-ctx.Done()
				return ctx.Err()
			},
		}}.Mount(mux)
		begin := time.Now()
		status, _, _ := get(t, mux, "/ready")
		if took := time.Since(begin); status != http.StatusServiceUnavailable || took != 2*time.Second {
			t.Errorf("/ready = %d after %v, want 503 after 2 s", status, took)
		}
	})
}

// server runs Serve on a free port.
type server struct {
	url    string
	logs   *bytes.Buffer // read it only after wait
	cancel context.CancelFunc
	done   chan error
}

func serve(t *testing.T, h http.Handler, drain time.Duration, change ...func(*httpserver.Config)) *server {
	t.Helper()
	l, err := httpserver.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &server{url: "http://" + l.Addr().String(), logs: &bytes.Buffer{}, cancel: cancel, done: make(chan error, 1)}
	cfg := httpserver.Config{Listener: l, Handler: h, Log: slog.New(slog.NewTextHandler(s.logs, nil)), Drain: drain}
	for _, c := range change {
		c(&cfg)
	}
	go func() { s.done <- httpserver.Serve(ctx, cfg) }()
	t.Cleanup(func() { cancel() })
	return s
}

func (s *server) wait(t *testing.T) error {
	t.Helper()
	select {
	case err := <-s.done:
		return err
	case <-time.After(20 * time.Second):
		t.Fatal("Serve does not return")
		return nil
	}
}

// client speaks HTTP/1.1, or HTTP/2 without TLS.
func client(t *testing.T, http2 bool) *http.Client {
	t.Helper()
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!http2)
	protocols.SetUnencryptedHTTP2(http2)
	transport := &http.Transport{Protocols: protocols}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 20 * time.Second}
}

func fetch(t *testing.T, c *http.Client, url string) (string, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := c.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return string(body), err
}

var bothProtocols = map[string]bool{"HTTP/1.1": false, "HTTP/2.0": true}

func TestServeDrains(t *testing.T) {
	t.Parallel()
	for proto, http2 := range bothProtocols {
		t.Run(proto, func(t *testing.T) {
			t.Parallel()
			started, finish := make(chan struct{}), make(chan struct{})
			s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/slow" {
					close(started)
					<-finish
				}
				if err := r.Context().Err(); err != nil {
					t.Errorf("the request's context ended: %v", err)
				}
				_, _ = io.WriteString(w, r.Proto)
			}), 10*time.Second)
			c := client(t, http2)

			if body, err := fetch(t, c, s.url); err != nil || body != proto {
				t.Fatalf("GET = %q, %v, want %s", body, err, proto)
			}
			answer := make(chan error, 1)
			go func() {
				body, err := fetch(t, c, s.url+"/slow")
				if err == nil && body != proto {
					err = fmt.Errorf("body %q", body)
				}
				answer <- err
			}()
			<-started
			s.cancel()
			waitRefused(t, s.url)
			close(finish)
			if err := <-answer; err != nil {
				t.Errorf("the request in flight = %v, want its answer", err)
			}
			if err := s.wait(t); err != nil {
				t.Errorf("Serve = %v, want nil after a drain", err)
			}
			if strings.Contains(s.logs.String(), "cut") {
				t.Errorf("a clean drain was logged as a cut: %s", s.logs)
			}
		})
	}
}

// waitRefused waits until url refuses connections.
func waitRefused(t *testing.T, url string) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimPrefix(url, "http://"))
		if err != nil {
			return
		}
		conn.Close()
	}
	t.Fatal("the listener stays open during the drain")
}

// A request that does not end is cut after the drain, and its client notices: the response does
// not end cleanly.
func TestServeCuts(t *testing.T) {
	t.Parallel()
	for proto, http2 := range bothProtocols {
		t.Run(proto, func(t *testing.T) {
			t.Parallel()
			open, left := make(chan struct{}), make(chan struct{})
			s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				defer close(left)
				w.WriteHeader(http.StatusOK)
				_ = http.NewResponseController(w).Flush()
				close(open)
				<-r.Context().Done()
			}), 50*time.Millisecond)
			answer := make(chan error, 1)
			go func() {
				_, err := fetch(t, client(t, http2), s.url)
				answer <- err
			}()
			<-open
			s.cancel()
			if err := <-answer; err == nil {
				t.Error("a stream that was cut ended cleanly")
			}
			if err := s.wait(t); err != nil {
				t.Errorf("Serve = %v, want nil", err)
			}
			<-left
			if !strings.Contains(s.logs.String(), "connections closed at shutdown") {
				t.Errorf("the cut was not logged: %q", s.logs)
			}
		})
	}
}

// Kept-alive connections, and connections that never sent a byte, do not delay the shutdown.
func TestIdleConnectionsDoNotDelay(t *testing.T) {
	t.Parallel()
	for proto, http2 := range bothProtocols {
		t.Run(proto, func(t *testing.T) {
			t.Parallel()
			s := serve(t, http.NotFoundHandler(), 15*time.Second)
			if _, err := fetch(t, client(t, http2), s.url); err != nil {
				t.Fatal(err)
			}
			begin := time.Now()
			s.cancel()
			if err := s.wait(t); err != nil {
				t.Errorf("Serve = %v", err)
			}
			if took := time.Since(begin); took > 5*time.Second {
				t.Errorf("an idle connection held the end up for %v", took)
			}
		})
	}
}

func TestServeAfterTheEnd(t *testing.T) {
	t.Parallel()
	l, err := httpserver.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := httpserver.Serve(ctx, httpserver.Config{Listener: l, Handler: http.NotFoundHandler(), Log: slog.New(slog.DiscardHandler), Drain: time.Second}); err != nil {
		t.Errorf("Serve = %v, want nil", err)
	}
	if _, err := l.Accept(); err == nil {
		t.Error("the listener is still open")
	}
}

// A listener that breaks ends Serve with an error and closes its connections.
func TestServeFails(t *testing.T) {
	t.Parallel()
	l, err := httpserver.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	entered := make(chan struct{})
	cut := make(chan struct{})
	done := make(chan error, 1)
	go func() {
		done <- httpserver.Serve(context.Background(), httpserver.Config{Listener: l, Log: slog.New(slog.DiscardHandler), Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			close(entered)
			<-r.Context().Done()
			close(cut)
		})})
	}()
	answer := make(chan error, 1)
	go func() {
		_, err := fetch(t, client(t, false), "http://"+l.Addr().String())
		answer <- err
	}()
	<-entered
	l.Close()
	if err := <-done; err == nil || !strings.Contains(err.Error(), l.Addr().String()) {
		t.Errorf("Serve = %v, want an error that names the address", err)
	}
	if err := <-answer; err == nil {
		t.Error("the open request ended well")
	}
	<-cut
}

func TestHeaderBounds(t *testing.T) {
	t.Parallel()
	s := serve(t, http.NotFoundHandler(), time.Second)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Pad", strings.Repeat("x", 80<<10))
	res, err := client(t, false).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("80 KiB of headers = %d, want 431", res.StatusCode)
	}
}

// A client that never finishes its headers is dropped.
func TestSlowHeaders(t *testing.T) {
	t.Parallel()
	s := serve(t, http.NotFoundHandler(), time.Second)
	const h2 = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + "\x00\x00\x00\x04\x00\x00\x00\x00\x00" // the preface, and empty settings
	for name, said := range map[string]string{
		"no frame of HTTP/2": h2, "half of HTTP/2's headers": h2 + "\x00\x00\x01\x01\x00\x00\x00\x00\x01\x82",
		"nothing": "", "a little": "GET", "half the headers": "GET / HTTP/1.1\r\nHost: a\r\n", "half of HTTP/2's preface": "PRI * HTTP/2.0\r\n\r\n",
		"a second request": "GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := dial(t, s.url)
			if _, err := io.WriteString(conn, said); err != nil {
				t.Fatal(err)
			}
			begin := time.Now()
			if err := conn.SetReadDeadline(begin.Add(15 * time.Second)); err != nil {
				t.Fatal(err)
			}
			answer, err := io.ReadAll(conn)
			if err != nil {
				t.Errorf("read = %v, want the server to close", err)
			}
			if bytes.Contains(answer, []byte(" 400 ")) {
				t.Errorf("response = %q, want none to an incomplete request", answer)
			}
			if took := time.Since(begin); took < 4*time.Second || took > 7*time.Second {
				t.Errorf("dropped after %v, want 5s", took)
			}
		})
	}
}

func dial(t *testing.T, url string) net.Conn {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// A body that trickles in does not hold its handler, even if nobody reads it.
func TestSlowBody(t *testing.T) {
	t.Parallel()
	for name, h := range map[string]http.HandlerFunc{
		"read":     func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) },
		"not read": func(http.ResponseWriter, *http.Request) {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, h, time.Second, func(c *httpserver.Config) { c.Body = time.Second })
			conn := dial(t, s.url)
			if _, err := io.WriteString(conn, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				_, _ = io.Copy(io.Discard, conn) // until the server closes
			}()
			trickle := time.NewTicker(100 * time.Millisecond)
			defer trickle.Stop()
			for late := time.After(10 * time.Second); ; {
				select {
				case <-ended:
					return
				case <-late:
					t.Fatal("a body that trickles in holds the connection")
				case <-trickle.C:
					_, _ = io.WriteString(conn, "x") // fails when the server has closed
				}
			}
		})
	}
}

// The number of clients that never finish their headers is bounded, and others are still served.
func TestHalfOpenConnections(t *testing.T) {
	t.Parallel()
	s := serve(t, http.NotFoundHandler(), time.Second, func(c *httpserver.Config) { c.Headers = time.Minute })
	var open atomic.Int64
	for range 3000 {
		conn := dial(t, s.url)
		if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\n"); err != nil {
			continue // closed already, as it should be
		}
		open.Add(1)
		go func() {
			_, _ = conn.Read(make([]byte, 1)) // until either side closes
			open.Add(-1)
		}()
	}
	for range 100 {
		began := time.Now()
		res, err := client(t, false).Get(s.url) //nolint:noctx // the client has a time of its own
		if err != nil {
			t.Fatalf("an honest request among half-open connections: %v", err)
		}
		_ = res.Body.Close()
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("an honest request took %v", took)
		}
	}
	for late := time.After(10 * time.Second); open.Load() > 1000; {
		select {
		case <-late:
			t.Fatalf("%d half-open connections are left, want 1000 at most", open.Load())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func TestListen(t *testing.T) {
	t.Parallel()
	l, err := httpserver.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	addr := l.Addr().String()
	if _, err := httpserver.Listen(t.Context(), addr); err == nil || !strings.Contains(err.Error(), addr+" is in use") {
		t.Errorf("Listen(%s) = %v, want an error that says it is in use", addr, err)
	}
	for _, in := range []string{"nowhere", "127.0.0.1:port", "127.0.0.1:70000"} {
		if l, err := httpserver.Listen(t.Context(), in); err == nil {
			l.Close()
			t.Errorf("Listen(%q) = nil, want an error", in)
		} else if !strings.Contains(err.Error(), in) {
			t.Errorf("Listen(%q) = %v, want an error that names the address", in, err)
		}
	}
}
