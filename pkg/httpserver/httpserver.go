// Package httpserver runs the HTTP servers of all services: with limits for headers and read
// times, HTTP/1.1 and HTTP/2 on one port, pages for health, readiness and metrics, and a graceful
// shutdown.
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
	"signalbox.dev/pkg/process"
)

// Check returns an error if a dependency of the service does not work.
type Check func(ctx context.Context) error

// Ops are the pages for operators. Anybody may request /ready, which queries dependencies,
// so its result is cached for a second, and one check runs at a time.
type Ops struct {
	// Checks are the checks of /ready, by name.
	Checks   map[string]Check
	Gatherer prometheus.Gatherer
	// Log gets the cause when a check begins to fail, which /ready does not show; nil for none.
	Log *slog.Logger
}

const (
	checkTimeout = 2 * time.Second
	checkCache   = time.Second // how long a result of /ready is cached
)

// Mount adds /health (the process is running, and its version), /ready (all checks pass; a 503
// names those that fail) and, with a Gatherer, /metrics.
func (o Ops) Mount(mux *http.ServeMux) {
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]string{"status": "ok", "version": process.Version()})
	})
	ready := &readiness{checks: o.Checks, log: o.Log}
	mux.Handle("GET /ready", ready)
	if o.Gatherer != nil {
		checks := prometheus.NewRegistry()
		checks.MustRegister(ready)
		mux.Handle("GET /metrics", promhttp.HandlerFor(prometheus.Gatherers{o.Gatherer, checks}, promhttp.HandlerOpts{}))
	}
}

var readyDesc = prometheus.NewDesc("signalbox_ready", "Whether a check of /ready passes: 1 or 0.", []string{"check"}, nil)

// Describe implements prometheus.Collector.
func (s *readiness) Describe(ch chan<- *prometheus.Desc) { ch <- readyDesc }

// Collect implements prometheus.Collector. It takes no longer than checkTimeout.
func (s *readiness) Collect(ch chan<- prometheus.Metric) {
	_, page := s.answer(context.Background())
	for check, result := range page.Checks {
		value := 0.0
		if result == "ok" {
			value = 1
		}
		ch <- prometheus.MustNewConstMetric(readyDesc, prometheus.GaugeValue, value, check)
	}
}

// readiness serves /ready. Requests that come while the checks run wait for their result.
type readiness struct {
	checks map[string]Check
	log    *slog.Logger

	mu     sync.Mutex // guards what follows, and is held while the checks run
	at     time.Time  // of the cached result; zero before the first
	status int
	page   readyPage
}

// readyPage is the answer of /ready.
type readyPage struct {
	Status string            `json:"status"`
	Checks map[string]string `json:"checks"`
}

// ServeHTTP implements http.Handler.
func (s *readiness) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	status, page := s.answer(r.Context())
	writeJSON(w, status, page)
}

func (s *readiness) answer(ctx context.Context) (int, readyPage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at.IsZero() || time.Since(s.at) >= checkCache {
		// Others may wait for the result: it must not end with the first request.
		s.run(context.WithoutCancel(ctx))
		s.at = time.Now()
	}
	return s.status, s.page
}

// run runs all checks concurrently; s.mu is held.
func (s *readiness) run(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	var (
		wg     sync.WaitGroup
		mu     sync.Mutex // guards status, checks
		status = http.StatusOK
		checks = map[string]string{}
	)
	for name, check := range s.checks {
		wg.Go(func() {
			err := panics.Try(func() error { return check(ctx) })
			mu.Lock()
			defer mu.Unlock()
			checks[name] = "ok"
			if err != nil {
				// Without the cause, because this page is public.
				checks[name] = "not ready"
				status = http.StatusServiceUnavailable
				if s.log != nil && s.page.Checks[name] != checks[name] {
					s.log.WarnContext(ctx, "not ready", "check", name, "error", err)
				}
			}
		})
	}
	wg.Wait()
	word := "ready"
	if status != http.StatusOK {
		word = "not ready"
	}
	s.status, s.page = status, readyPage{word, checks}
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // fails only if the client is gone
}

// Config configures a server.
type Config struct {
	Listener net.Listener
	Handler  http.Handler
	Log      *slog.Logger
	// Drain is how long requests may continue after ctx is done, before their connections are
	// closed.
	Drain time.Duration
	// Headers is how long a client may take for a request's headers; 0 means 5 s. For the
	// first request this includes the time since it connected. A new connection that takes
	// longer is closed without a response, so that a client that dialled in advance drops it.
	Headers time.Duration
	// Body is how long a request's body may take unless its handler sets a read deadline;
	// 0 means 30 s.
	Body time.Duration
	// HTTP1 disables HTTP/2 without TLS. The handler then gets the first request of such a
	// connection, PRI * HTTP/2.0.
	HTTP1 bool
	// ConnContext, if set, is http.Server.ConnContext.
	ConnContext func(context.Context, net.Conn) context.Context
}

// Serve serves until ctx is done, then drains and returns nil. The end of ctx does not cancel
// the requests' contexts: the service itself has to end its streams. Over TLS (mtls.Listen),
// clients without a certificate get the pages of Ops only.
func Serve(ctx context.Context, cfg Config) error {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(!cfg.HTTP1)
	protocols.SetUnencryptedHTTP2(!cfg.HTTP1)
	headers := cmp.Or(cfg.Headers, 5*time.Second)
	arrivals := newArrivals(headers * 9 / 10) // earlier than net/http, which responds to some with 400
	srv := &http.Server{
		Handler:           requireCertificate(BoundBodies(cfg.Handler, cmp.Or(cfg.Body, bodyTimeout))),
		ReadHeaderTimeout: headers,
		ConnState:         arrivals.note,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		Protocols:         protocols,
		// ReadHeaderTimeout does not apply to HTTP/2. A client that stalls in the middle of its
		// headers does not answer pings.
		HTTP2:       &http.HTTP2Config{MaxConcurrentStreams: 1000, SendPingTimeout: headers / 2, PingTimeout: headers / 2},
		ErrorLog:    slog.NewLogLogger(cfg.Log.Handler(), slog.LevelWarn),
		BaseContext: func(net.Listener) context.Context { return context.WithoutCancel(ctx) },
		ConnContext: cfg.ConnContext,
	}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(cfg.Listener) }()
	select {
	case err := <-done:
		_ = srv.Close() // closes the accepted connections; the error of Serve is the cause
		return fmt.Errorf("serve %s: %w", cfg.Listener.Addr(), err)
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), cfg.Drain)
	defer cancel()
	if err := srv.Shutdown(drain); err != nil {
		cfg.Log.WarnContext(ctx, "connections closed at shutdown: requests did not end in time", "address", cfg.Listener.Addr().String())
		_ = srv.Close() // closes the connections
	}
	if err := <-done; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", cfg.Listener.Addr(), err)
	}
	return nil
}

// requireCertificate refuses requests over TLS from clients without a certificate, unless they
// are for a page of Ops: probes and Prometheus have none. The handshake has verified those that
// were given.
func requireCertificate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS != nil && len(r.TLS.VerifiedChains) == 0 && r.URL.Path != "/health" && r.URL.Path != "/ready" && r.URL.Path != "/metrics" {
			http.Error(w, "This service is for other services: call it with a client certificate of the installation's authority.", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// Listen opens a TCP listener. The error for a port in use says what to do.
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
