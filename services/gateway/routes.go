package gateway

import (
	"bufio"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
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

// routes returns the public handler. Its layers, from the outside in: timeouts of bodies and
// writes; removal of the token from the URL, before anything else sees it; tracing, metrics and
// logs; headers for browsers; the API.
func (s *Service) routes(requests *requestMetrics) http.Handler {
	mux := http.NewServeMux()
	httpserver.Ops{Checks: s.checks(), Log: s.deps.Log}.Mount(mux) // without a Gatherer: metrics are not public
	mux.HandleFunc("GET /openapi.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(s.api.Spec()) // fails if the client has left
	})
	reference.Mount(mux)
	mux.HandleFunc("GET /ws/documents/{id}", s.proxy.Document)
	mux.HandleFunc("GET /ws/hocuspocus", s.proxy.Hocuspocus)
	mux.Handle("/mcp", s.mcp)
	mux.Handle("/api/", s.api)
	mux.Handle("/v1/", s.api)
	if s.deps.Console != nil {
		mux.Handle("/", s.deps.Console)
		mux.Handle("GET "+api.SharePath, noIndex(s.deps.Console))
	} else {
		mux.Handle("/", s.api)
		mux.Handle("GET /{$}", http.RedirectHandler("/docs", http.StatusFound))
	}

	var h http.Handler = mux
	h = recoverPanics(s.deps.Log, h)
	h = cors(s.cfg.origins(), h)
	h = secure(h)
	h = requests.observe(s.deps.Log, h)
	h = otelhttp.NewHandler(h, "http",
		// Traces begin here: clients decide neither a trace's id nor whether it is sampled.
		otelhttp.WithPropagators(propagation.NewCompositeTextMapPropagator()),
		otelhttp.WithSpanNameFormatter(func(_ string, r *http.Request) string { return r.Method }))
	h = api.Cookies(h)
	h = api.HideToken(h)
	h = clearBodies(h)
	h = httpserver.BoundBodies(h, s.cfg.BodyTimeout)
	return httpserver.BoundWrites(h, s.cfg.WriteTimeout)
}

// secure sets headers against content sniffing, framing and leaking of URLs.
func secure(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer") // EventSource URLs contain tokens
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		if h.Get("Cache-Control") == "" {
			h.Set("Cache-Control", "no-store")
		}
		next.ServeHTTP(w, r)
	})
}

// noIndex asks search engines not to list a page.
func noIndex(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Robots-Tag", "noindex, nofollow")
		next.ServeHTTP(w, r)
	})
}

// cors lets pages of the given origins call the API, without credentials in the sense of CORS:
// browsers neither send nor store cookies, so that api.CallbackPath cannot complete a sign-in
// that was started by a page of another origin.
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
		h.Set("Access-Control-Expose-Headers", "Retry-After, Preference-Applied, Location, X-Run-Id, X-Missed-Events, ETag, X-Session-Id, X-Vercel-AI-UI-Message-Stream, X-Workflow-Run-Id, X-Workflow-Stream-Tail-Index")
		if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
			next.ServeHTTP(w, r)
			return
		}
		h.Set("Access-Control-Allow-Methods", "GET, POST, PUT, PATCH, DELETE")
		h.Set("Access-Control-Allow-Headers", "Authorization, Content-Type, X-Workspace-Id, Idempotency-Key, If-Match, Last-Event-ID, Prefer, Accept, Cache-Control, X-Session-Id, X-AI-SDK-Version, Mcp-Protocol-Version, Mcp-Method, Mcp-Name, User-Agent"+stainlessHeaders(r))
		h.Set("Access-Control-Max-Age", "600")
		w.WriteHeader(http.StatusNoContent)
	})
}

// stainlessHeaders continues the list of allowed headers with those that a preflight of an OpenAI
// client asks for: they tell which client and try a request is of, and differ by version.
func stainlessHeaders(r *http.Request) string {
	var list strings.Builder
	for name := range strings.SplitSeq(r.Header.Get("Access-Control-Request-Headers"), ",") {
		if name = strings.ToLower(strings.TrimSpace(name)); stainlessHeader.MatchString(name) {
			list.WriteString(", " + name)
		}
	}
	return list.String()
}

var stainlessHeader = regexp.MustCompile(`^x-stainless-[a-z0-9-]+$`)

// recoverPanics answers 500 to a panic without showing it. http.ErrAbortHandler, which aborts
// the connection on purpose, passes through.
func recoverPanics(log *slog.Logger, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		defer func() {
			p := recover()
			if p == nil {
				return
			}
			if p == http.ErrAbortHandler { //nolint:errorlint // as net/http compares it
				panic(p)
			}
			log.ErrorContext(ctx, "handler panicked", "method", r.Method, "error", &panics.Error{Value: p, Stack: debug.Stack()})
			if o, ok := w.(*observed); ok && o.status != 0 {
				panic(http.ErrAbortHandler) // a part of the answer was sent
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

// observe counts and logs requests by the pattern of their route: paths contain ids, and
// queries may contain secrets.
func (m *requestMetrics) observe(log *slog.Logger, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, start := r.Context(), time.Now()
		o := &observed{ResponseWriter: w, start: start, hijacked: http.StatusOK}
		if websocket.IsWebSocketUpgrade(r) {
			o.hijacked = http.StatusSwitchingProtocols
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

// observed records an answer's status and the time of its first byte.
type observed struct {
	http.ResponseWriter
	status       int
	hijacked     int // the status if the connection is hijacked
	start, first time.Time
}

// Unwrap is for http.ResponseController.
func (o *observed) Unwrap() http.ResponseWriter { return o.ResponseWriter }

// Hijack implements http.Hijacker. The answer is a stream or a socket.
func (o *observed) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(o.ResponseWriter).Hijack()
	if err == nil {
		o.status, o.first = o.hijacked, time.Now()
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
