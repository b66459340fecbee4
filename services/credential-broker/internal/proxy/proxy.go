package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/semaphore"

	"signalbox.dev/pkg/fair"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/services/credential-broker/internal/pool"
	"signalbox.dev/services/credential-broker/internal/profile"
)

// Prefix is the path where the proxy is mounted; the provider's name follows it.
const Prefix = "/egress/"

// Pool chooses accounts and is told how they did.
type Pool interface {
	Select(context.Context, pool.Request) (pool.Account, error)
	// Began is called when the proxy begins to deliver a successful answer.
	Began(pool.Account)
	// Report is called once for each account that Select returned.
	Report(context.Context, pool.Account, pool.Outcome)
}

// Verifier checks signed contexts.
type Verifier interface {
	Verify(token string) (identity.Actor, error)
}

// Timers limit how long the proxy waits. A zero field takes the default given here.
type Timers struct {
	Headers    time.Duration // for the answer's headers; 0 takes the request profile's
	FirstEvent time.Duration // from the headers to a stream's first event: 5 min
	Idle       time.Duration // between two reads of an answer: 5 min
	Gate       time.Duration // how long an answer is held back: 10 s
	Write      time.Duration // for one write to the caller: 30 s
	Body       time.Duration // between two reads of the caller's request, and ten times that for all of it: 1 min
	Last       time.Duration // for the end of a stream after its terminal event: 5 s
}

// Limits bound sizes and counts. A zero field takes the default given here. One workspace may
// use half of Bodies and of Requests. When all Requests are in flight, as many more wait, and
// a slot that becomes free goes to the workspace that holds the fewest.
type Limits struct {
	Body     int64 // bytes of one request: 32 MiB
	Bodies   int64 // bytes of all requests being sent: 1 GiB
	Requests int64 // requests in flight: 4096
	Gate     int   // bytes of an answer that are held back: 64 KiB
}

func (c *Config) setDefaults() {
	t, l := &c.Timers, &c.Limits
	t.FirstEvent = cmp.Or(t.FirstEvent, 5*time.Minute)
	t.Idle = cmp.Or(t.Idle, 5*time.Minute)
	t.Gate = cmp.Or(t.Gate, 10*time.Second)
	t.Write = cmp.Or(t.Write, 30*time.Second)
	t.Body = cmp.Or(t.Body, time.Minute)
	t.Last = cmp.Or(t.Last, 5*time.Second)
	l.Body = cmp.Or(l.Body, 32<<20)
	l.Bodies = max(cmp.Or(l.Bodies, 1<<30), l.Body)
	l.Requests = cmp.Or(l.Requests, 4096)
	l.Gate = cmp.Or(l.Gate, 64<<10)
}

// Config is what a Proxy needs.
type Config struct {
	Pool     Pool
	Profiles *profile.Set
	Verifier Verifier
	// Open may reach any address; Guarded is for base URLs that workspaces chose.
	Open, Guarded http.RoundTripper
	Timers        Timers
	Limits        Limits
	Metrics       prometheus.Registerer
	// Meter counts per account; it may be nil.
	Meter *pool.Meter
	Log   *slog.Logger
}

// Proxy is the egress as an http.Handler. Abort and Wait end it.
type Proxy struct {
	cfg     Config
	waits   waits
	metrics *metrics
	tracer  trace.Tracer
	buffers sync.Pool // of *[]byte
	bodies  *semaphore.Weighted
	shares  *shares
	slots   *fair.Semaphore[id.Workspace]
	open    atomic.Int64

	ending  context.Context //nolint:containedctx // the proxy's own life, not a request's
	end     context.CancelCauseFunc
	serving sync.WaitGroup
}

// errEnding is the cause with which Abort cancels open requests.
var errEnding = errors.New("the broker is shutting down")

// New returns a Proxy.
func New(cfg Config) (*Proxy, error) {
	cfg.setDefaults()
	m, err := newMetrics(cfg.Metrics, append(cfg.Profiles.Providers(), "other"))
	if err != nil {
		return nil, fmt.Errorf("egress: %w", err)
	}
	p := &Proxy{
		cfg:     cfg,
		waits:   newWaits(cfg.Timers),
		metrics: m,
		tracer:  otel.Tracer("signalbox.dev/services/credential-broker"),
		bodies:  semaphore.NewWeighted(cfg.Limits.Bodies),
		shares:  newShares(cfg.Limits),
		slots:   fair.New[id.Workspace](fair.Limits{Slots: int(cfg.Limits.Requests)}),
		buffers: sync.Pool{New: func() any { b := make([]byte, firstBuffer); return &b }},
	}
	p.ending, p.end = context.WithCancelCause(context.Background())
	return p, nil
}

// Abort ends every open request: streams get an error event and a broken end, requests
// without an answer get an error. Later requests are refused.
func (p *Proxy) Abort() { p.end(errEnding) }

// Wait returns when no request is open. Call it after the server has stopped.
func (p *Proxy) Wait() { p.serving.Wait() }

// ServeHTTP serves one request to Prefix. If an answer has begun and must not end cleanly, it
// panics with http.ErrAbortHandler, as net/http requires.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.serving.Add(1)
	defer p.serving.Done()
	x := newExchange(p, w, r)
	defer x.close()
	x.serve() //nolint:contextcheck // an exchange carries its request's context
	if x.broken {
		panic(http.ErrAbortHandler)
	}
}
