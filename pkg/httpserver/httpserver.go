// Package httpserver runs an HTTP server the way each of our services does:
// bounded headers and read times, HTTP/1.1 and HTTP/2 without TLS on one port,
// the health, readiness and metrics pages, and an end that lets requests finish.
package httpserver

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"signalbox.dev/pkg/panics"
)

// Check reports whether something the service needs works; its error says what is wrong.
type Check func(ctx context.Context) error

// Ops are the pages for operators. /ready may be asked by anybody and asks others
// itself: its answer is kept for a second, and one check runs at a time.
type Ops struct {
	// Checks are what /ready asks, by name.
	Checks   map[string]Check
	Gatherer prometheus.Gatherer
}

const (
	checkTimeout = 2 * time.Second
	checkAtMost  = time.Second // how long an answer of /ready is kept
)

// Mount adds /health (the process is up), /ready (all checks pass; 503 names
// those that do not) and, with a Gatherer, /metrics.
func (o Ops) Mount(mux *http.ServeMux) {
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]any{"status": "ok"})
	})
	mux.Handle("GET /ready", &readiness{checks: o.Checks})
	if o.Gatherer != nil {
		mux.Handle("GET /metrics", promhttp.HandlerFor(o.Gatherer, promhttp.HandlerOpts{}))
	}
}

// readiness serves /ready. Who asks while the checks run waits for their end, which
// is bounded, and gets the same answer.
type readiness struct {
	checks map[string]Check

	mu     sync.Mutex // guards what follows, and is held while the checks run
	at     time.Time  // when the answer was found; zero before the first
	status int
	page   map[string]any
}

// ServeHTTP implements http.Handler.
func (s *readiness) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	status, page := s.answer(r.Context())
	writeJSON(w, status, page)
}

func (s *readiness) answer(ctx context.Context) (int, map[string]any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at.IsZero() || time.Since(s.at) >= checkAtMost {
		// Others wait for the answer too: it does not end with who asked first.
		s.status, s.page = ask(context.WithoutCancel(ctx), s.checks)
		s.at = time.Now()
	}
	return s.status, s.page
}

// ask runs all checks at once.
func ask(ctx context.Context, all map[string]Check) (int, map[string]any) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	var (
		wg     sync.WaitGroup
		mu     sync.Mutex // guards status, checks
		status = http.StatusOK
		checks = map[string]string{}
	)
	for name, check := range all {
		wg.Go(func() {
			err := panics.Try(func() error { return check(ctx) })
			mu.Lock()
			defer mu.Unlock()
			checks[name] = "ok"
			if err != nil {
				// The cause is for the logs of the part itself; this page is public.
				checks[name] = "not ready"
				status = http.StatusServiceUnavailable
			}
		})
	}
	wg.Wait()
	word := "ready"
	if status != http.StatusOK {
		word = "not ready"
	}
	return status, map[string]any{"status": word, "checks": checks}
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client went away: nobody to tell
}

// Config describes one listener.
type Config struct {
	Listener net.Listener
	Handler  http.Handler
	Log      *slog.Logger
	// Drain bounds how long requests in flight may take after ctx is done. What
	// is left is cut.
	Drain time.Duration
	// Headers bounds how long a client may take for a request's headers, for those of the
	// first from when it connected; 5 s when 0. A new connection that takes longer is
	// closed without an answer, so that a client that dialled it in advance drops it.
	Headers time.Duration
	// Body bounds how long a request's body may take, unless its handler sets a read
	// deadline; 30 s when 0.
	Body time.Duration
	// HTTP1 turns HTTP/2 without TLS off; its connections get the one request that begins
	// them, PRI * HTTP/2.0.
	HTTP1 bool
	// ConnContext, when set, is http.Server.ConnContext.
	ConnContext func(context.Context, net.Conn) context.Context
}

// Serve serves until ctx is done, then drains and returns nil. The requests'
// contexts are not cancelled with ctx: handlers that wait for ever (streams) are
// told to end by their own service.
func Serve(ctx context.Context, cfg Config) error {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(!cfg.HTTP1)
	headers := cmp.Or(cfg.Headers, 5*time.Second)
	fresh := newArrivals(headers * 9 / 10) // before net/http, which would answer some with 400
	srv := &http.Server{
		Handler:           BoundBodies(cfg.Handler, cmp.Or(cfg.Body, bodyTimeout)),
		ReadHeaderTimeout: headers,
		ConnState:         fresh.note,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		Protocols:         protocols,
		// ReadHeaderTimeout does not count for HTTP/2: who stops in the middle of headers
		// answers no ping.
		HTTP2:       &http.HTTP2Config{MaxConcurrentStreams: 1000, SendPingTimeout: headers / 2, PingTimeout: headers / 2},
		ErrorLog:    slog.NewLogLogger(cfg.Log.Handler(), slog.LevelWarn),
		BaseContext: func(net.Listener) context.Context { return context.WithoutCancel(ctx) },
		ConnContext: cfg.ConnContext,
	}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(cfg.Listener) }()
	select {
	case err := <-done:
		_ = srv.Close() // cuts what was accepted; the error of Serve says more
		return fmt.Errorf("serve %s: %w", cfg.Listener.Addr(), err)
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), cfg.Drain)
	defer cancel()
	if err := srv.Shutdown(drain); err != nil {
		cfg.Log.WarnContext(ctx, "requests cut at shutdown", "address", cfg.Listener.Addr().String())
		_ = srv.Close() // the listener is closed already; connections are what matters
	}
	if err := <-done; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", cfg.Listener.Addr(), err)
	}
	return nil
}

// Listen opens a TCP listener; a port in use gives an error that says what to do.
func Listen(ctx context.Context, addr string) (net.Listener, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if isInUse(err) {
		return nil, fmt.Errorf("%s is in use by another program: stop it, or choose another address", addr)
	}
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", addr, err)
	}
	return l, nil
}
