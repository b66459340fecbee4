package gateway

import (
	"bufio"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"slices"
	"strconv"
	"time"

	"github.com/gorilla/websocket"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/propagation"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/httpserver"
	"signalbox.dev/pkg/panics"

	"signalbox.dev/services/gateway/internal/api"
	"signalbox.dev/services/gateway/internal/reference"
)

// routes is the public door. From the outside in: what comes and goes gets its
// time; the token leaves the URL before anything else sees it; then traces, logs
// and metrics; then what a browser needs to know; then the API.
func (s *Service) routes(requests *requestMetrics) (http.Handler, error) {
	mux := http.NewServeMux()
	httpserver.Ops{Checks: s.checks()}.Mount(mux) // no Gatherer: metrics are not public
	mux.HandleFunc("GET /openapi.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(s.api.Spec()) // the client went away: nobody to tell
	})
	if err := reference.Mount(mux); err != nil { // the console will take its place at /
		return nil, err
	}
	mux.HandleFunc("GET /ws/documents/{id}", s.proxy.Document)
	mux.HandleFunc("GET /ws/hocuspocus", s.proxy.Hocuspocus)
	mux.Handle("/", s.api)

	var h http.Handler = mux
	h = recoverPanics(s.deps.Log, h)
	h = cors(s.cfg.origins(), h)
	h = secure(h)
	h = requests.observe(s.deps.Log, h)
	h = otelhttp.NewHandler(h, "http",
		// A trace begins here: clients decide neither its id nor whether it is kept.
		otelhttp.WithPropagators(propagation.NewCompositeTextMapPropagator()),
		otelhttp.WithSpanNameFormatter(func(_ string, r *http.Request) string { return r.Method }))
	h = api.HideToken(h)
	h = forgetBodies(h)
	h = httpserver.BoundBodies(h, s.cfg.BodyTimeout)
	return httpserver.BoundWrites(h, s.cfg.WriteTimeout), nil
}

// secure sets the headers that keep a browser from guessing and from telling others.
func secure(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer") // EventSource URLs hold tokens
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		if h.Get("Cache-Control") == "" {
			h.Set("Cache-Control", "no-store")
		}
		next.ServeHTTP(w, r)
	})
}

// cors lets pages of the given origins call the API, without credentials in the sense
// of CORS: browsers send them no cookies and keep none, so that a sign-in that a page of
// another origin begins cannot be completed by api.CallbackPath.
func cors(allowed []string, next http.Handler) http.Handler {
	if len(allowed) == 0 {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Add("Vary", "Origin")
		origin := r.Header.Get("Origin")
		if origin == "" || !slices.Contains(allowed, origin) && !slices.Contains(allowed, "*") {
			next.ServeHTTP(w, r)
			return
		}
		h.Set("Access-Control-Allow-Origin", origin)
		h.Set("Access-Control-Expose-Headers", "Retry-After, Preference-Applied, Location, X-Run-Id, ETag")
		if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
			next.ServeHTTP(w, r)
			return
		}
		h.Set("Access-Control-Allow-Methods", "GET, POST, PATCH, DELETE")
		h.Set("Access-Control-Allow-Headers", "Authorization, Content-Type, X-Workspace-Id, Idempotency-Key, If-Match, Last-Event-ID, Prefer, Accept, Cache-Control")
		h.Set("Access-Control-Max-Age", "600")
		w.WriteHeader(http.StatusNoContent)
	})
}

// recoverPanics answers 500 for a bug, without a word about it. The panic that
// cuts a connection on purpose goes through.
func recoverPanics(log *slog.Logger, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		defer func() {
			p := recover()
			if p == nil {
				return
			}
			if p == http.ErrAbortHandler { //nolint:errorlint // net/http compares it so
				panic(p)
			}
			log.ErrorContext(ctx, "handler panicked", "method", r.Method, "error", &panics.Error{Value: p, Stack: debug.Stack()})
			if o, ok := w.(*observed); ok && o.status != 0 {
				panic(http.ErrAbortHandler) // half an answer is out
			}
			api.WriteError(w, fault.New(fault.Internal, "panic"))
		}()
		next.ServeHTTP(w, r)
	})
}

// requestMetrics counts requests by route.
type requestMetrics struct {
	count *prometheus.CounterVec
	took  *prometheus.HistogramVec
}

func newRequestMetrics(reg prometheus.Registerer) *requestMetrics {
	m := &requestMetrics{
		count: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "gateway", Name: "http_requests_total", Help: "Requests by route and status."}, []string{"route", "status"}),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "gateway", Name: "http_first_byte_seconds", Help: "Time to the first byte of the answer.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}, []string{"route"}),
	}
	if reg != nil {
		reg.MustRegister(m.count, m.took)
	}
	return m
}

// observe counts and logs requests by their route's pattern: a path holds ids,
// and a query may hold anything.
func (m *requestMetrics) observe(log *slog.Logger, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, start := r.Context(), time.Now()
		o := &observed{ResponseWriter: w, start: start, taken: http.StatusOK}
		if websocket.IsWebSocketUpgrade(r) {
			o.taken = http.StatusSwitchingProtocols
		}
		defer func() {
			route := r.Pattern
			if route == "" || route == "/" {
				route = "other"
			}
			m.count.WithLabelValues(route, strconv.Itoa(o.status)).Inc()
			if !o.first.IsZero() {
				m.took.WithLabelValues(route).Observe(o.first.Sub(start).Seconds())
			}
			log.DebugContext(ctx, "request", "route", route, "method", r.Method, "status", o.status, "took", time.Since(start))
		}()
		next.ServeHTTP(o, r)
	})
}

// observed remembers an answer's status and when it began.
type observed struct {
	http.ResponseWriter
	status       int
	taken        int // the status when the connection is taken over
	start, first time.Time
}

// Unwrap lets http.ResponseController through.
func (o *observed) Unwrap() http.ResponseWriter { return o.ResponseWriter }

// Hijack implements http.Hijacker: the answer is a stream or a socket, which goes out
// beside us.
func (o *observed) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(o.ResponseWriter).Hijack()
	if err == nil {
		o.status, o.first = o.taken, time.Now()
	}
	return conn, rw, err
}

// WriteHeader implements http.ResponseWriter.
func (o *observed) WriteHeader(status int) {
	if o.status == 0 {
		o.status, o.first = status, time.Now()
	}
	o.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (o *observed) Write(p []byte) (int, error) {
	if o.status == 0 {
		o.status, o.first = http.StatusOK, time.Now()
	}
	return o.ResponseWriter.Write(p)
}
