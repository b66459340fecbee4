package proxy

import (
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

// Prefix is where the proxy is mounted; the provider's name follows it.
const Prefix = "/egress/"

// Pool chooses accounts and hears how they did.
type Pool interface {
	Select(context.Context, pool.Request) (pool.Account, error)
	// Began is called when an answer begins to be shown that is a good one.
	Began(pool.Account)
	// Report is called once for each account that Select returned.
	Report(context.Context, pool.Account, pool.Outcome)
}

// Verifier checks signed contexts.
type Verifier interface {
	Verify(token string) (identity.Actor, error)
}

// Timers bound how long anything is waited for. A zero field takes the default
// that stands behind it.
type Timers struct {
	Headers    time.Duration // until the answer's headers; 0 takes the request profile's
	FirstEvent time.Duration // from the headers to a stream's first event: 5 min
	Idle       time.Duration // between two reads of an answer: 5 min
	Gate       time.Duration // how long an answer is held back: 10 s
	Write      time.Duration // for one write to the caller: 30 s
	Body       time.Duration // between two reads of the caller's request, and ten times that for all of it: 1 min
	Last       time.Duration // for the end of a stream after its terminal event: 5 s
}

func (t *Timers) fill() {
	for _, f := range []struct {
		d   *time.Duration
		def time.Duration
	}{
		{&t.FirstEvent, 5 * time.Minute},
		{&t.Idle, 5 * time.Minute},
		{&t.Gate, 10 * time.Second},
		{&t.Write, 30 * time.Second},
		{&t.Body, time.Minute},
		{&t.Last, 5 * time.Second},
	} {
		if *f.d <= 0 {
			*f.d = f.def
		}
	}
}

// Limits bound sizes and counts. A zero field takes the default behind it. One workspace
// may have half of Bodies and of Requests. When all Requests are in flight, as many more
// wait, and what ends makes place for the workspace that has the fewest.
type Limits struct {
	Body     int64 // bytes of one request: 32 MiB
	Bodies   int64 // bytes of all requests that are being sent: 1 GiB
	Requests int64 // requests in flight: 4096
	Gate     int   // bytes of an answer that are held back: 64 KiB
}

func (l *Limits) fill() {
	if l.Body <= 0 {
		l.Body = 32 << 20
	}
	if l.Bodies <= 0 {
		l.Bodies = 1 << 30
	}
	l.Bodies = max(l.Bodies, l.Body)
	if l.Requests <= 0 {
		l.Requests = 4096
	}
	if l.Gate <= 0 {
		l.Gate = 64 << 10
	}
}

// Config is what a Proxy is made of.
type Config struct {
	Pool     Pool
	Profiles *profile.Set
	Verifier Verifier
	// Open reaches where the operator sends requests; Guarded is for base URLs
	// that workspaces chose.
	Open, Guarded http.RoundTripper
	Timers        Timers
	Limits        Limits
	Metrics       prometheus.Registerer
	// Meter counts for each account; nil for nobody.
	Meter *pool.Meter
	Log   *slog.Logger
}

// Proxy is the egress as an http.Handler. Abort and Wait end it.
type Proxy struct {
	cfg     Config
	metrics *metrics
	tracer  trace.Tracer
	buffers sync.Pool // of *[]byte
	bodies  *semaphore.Weighted
	shares  *shares
	slots   *fair.Semaphore[id.Workspace] // Limits.Requests of them, by workspace in turn
	open    atomic.Int64

	ending  context.Context //nolint:containedctx // the proxy's own life, not a request's
	end     context.CancelCauseFunc
	serving sync.WaitGroup
}

// errEnding is the cause under which Abort ends what is open.
var errEnding = errors.New("the broker is shutting down")

// New returns a Proxy.
func New(cfg Config) (*Proxy, error) {
	cfg.Timers.fill()
	cfg.Limits.fill()
	m, err := newMetrics(cfg.Metrics)
	if err != nil {
		return nil, fmt.Errorf("egress: %w", err)
	}
	p := &Proxy{
		cfg:     cfg,
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

// Abort ends every open request: streams get an error event and a broken end,
// requests that have no answer yet get an error. Later requests are refused.
func (p *Proxy) Abort() { p.end(errEnding) }

// Wait returns when no request is open. Call it after the server has stopped.
func (p *Proxy) Wait() { p.serving.Wait() }

// ServeHTTP serves one request to Prefix. It panics with http.ErrAbortHandler,
// as net/http asks for, where an answer that has begun must not end cleanly.
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
