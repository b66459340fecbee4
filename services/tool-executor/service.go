// Package toolexecutor is the service that runs the tools which models call.
//
// Calls come over the bus (consume.go), each with a key that names it for ever,
// and are run once as far as anybody can tell: see internal/execute for a call's
// way and what happens after a crash at each point of it, internal/ledger for what
// is remembered, internal/tool for what a tool is, and internal/tools for the
// built-in ones. Other services ask here what tools there are and what became of
// calls (rpc.go).
//
// Executors share a queue; any of them takes any call. If one dies here, its calls
// come to another one after subject.AckWait.
package toolexecutor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/httpserver"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/rpc"
	"signalbox.dev/pkg/subject"
	"signalbox.dev/proto/signalbox/document/v1/documentv1connect"
	"signalbox.dev/proto/signalbox/tool/v1/toolv1connect"
	"signalbox.dev/services/tool-executor/internal/execute"
	"signalbox.dev/services/tool-executor/internal/ledger"
	"signalbox.dev/services/tool-executor/internal/tool"
	"signalbox.dev/services/tool-executor/internal/tools"
	"signalbox.dev/services/tool-executor/migrations"
)

// Schema and Role are the service's place in Postgres.
const (
	Schema = "tools"
	Role   = "signalbox_tools"
)

// Migrations returns what the service brings to the database.
func Migrations() pg.Migrations {
	return pg.Migrations{Schema: Schema, Role: Role, FS: migrations.FS}
}

// Deps is what the service works with. Whoever opened these closes them, after
// Run; the listener is closed by Run.
type Deps struct {
	Log *slog.Logger
	DB  *pg.DB   // as Role, in Schema
	Bus *bus.Bus // as subject.ToolExecutor
	// Listener takes calls of other services and the pages for operators.
	Listener net.Listener
	// Verifier knows who may call: gateway and agent-runner.
	Verifier *identity.Verifier
	// Signer and HTTP are for calls to Config.DocumentSyncURL.
	Signer     *identity.Signer
	HTTP       *http.Client
	Registerer prometheus.Registerer // nil: no metrics
	Gatherer   prometheus.Gatherer   // nil: no /metrics page
}

// Bounds that nobody needs to set.
const (
	announceTimeout = time.Second
	toolGrace       = 2 * time.Second
	insistFor       = 20 * time.Second
	housekeepEvery  = time.Hour
)

// Service is tool-executor.
type Service struct {
	cfg      Config
	deps     Deps
	ledger   *ledger.Ledger
	executor *execute.Executor
	handler  http.Handler
}

// New wires the service; it takes no call before Run.
func New(cfg Config, deps Deps) (*Service, error) {
	if deps.Log == nil || deps.DB == nil || deps.Bus == nil || deps.Listener == nil || deps.Verifier == nil || deps.Signer == nil || deps.HTTP == nil {
		return nil, errors.New("tool-executor: log, database, bus, listener, verifier, signer and HTTP client are needed")
	}
	cfg = cfg.withDefaults()
	s := &Service{cfg: cfg, deps: deps, ledger: ledger.New(deps.DB, cfg.Lease)}
	catalogue, err := s.catalogue()
	if err != nil {
		return nil, fmt.Errorf("tool-executor: %w", err)
	}
	metrics, err := execute.NewMetrics(deps.Registerer)
	if err != nil {
		return nil, fmt.Errorf("tool-executor: register metrics: %w", err)
	}
	s.executor = execute.New(execute.Config{
		Catalogue: catalogue, Ledger: s.ledger, Announce: announce(deps.Bus, deps.Log), Log: deps.Log, Metrics: metrics,
		Slots: cfg.Slots, PerWorkspace: cfg.PerWorkspace, Renew: cfg.Lease / 3, Grace: toolGrace, Insist: insistFor,
	})
	options, err := rpc.Server{Verifier: deps.Verifier, Log: deps.Log}.HandlerOptions()
	if err != nil {
		return nil, fmt.Errorf("tool-executor: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle(toolv1connect.NewToolServiceHandler(&calls{catalogue, s.ledger}, options...))
	httpserver.Ops{
		Checks:   map[string]httpserver.Check{"postgres": deps.DB.Ping, "nats": deps.Bus.Ready},
		Gatherer: deps.Gatherer,
	}.Mount(mux)
	s.handler = mux
	return s, nil
}

func (s *Service) catalogue() (*tool.Catalogue, error) {
	options, err := rpc.Client{Signer: s.deps.Signer, Audience: subject.DocumentSync}.ClientOptions()
	if err != nil {
		return nil, err
	}
	all, err := tools.New(tools.Deps{Documents: documentv1connect.NewDocumentServiceClient(s.deps.HTTP, s.cfg.DocumentSyncURL, options...)})
	if err != nil {
		return nil, err
	}
	return tool.NewCatalogue(all...)
}

// Run takes calls until ctx is done; then those in hand are finished within
// Config.Drain or handed to another executor, and it returns nil. It is called once.
func (s *Service) Run(ctx context.Context) error {
	cancels, err := s.hearCancels() //nolint:contextcheck // a message has its sender's context
	if err != nil {
		return fmt.Errorf("tool-executor: %w", err)
	}
	defer func() { _ = cancels.Unsubscribe() }() // fails only when the connection is gone, and so is the interest
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.work(ctx) })
	g.Go(func() error {
		return httpserver.Serve(ctx, httpserver.Config{Listener: s.deps.Listener, Handler: s.handler, Log: s.deps.Log, Drain: s.cfg.Drain})
	})
	g.Go(func() error { return s.housekeep(ctx) })
	if err := g.Wait(); err != nil {
		return fmt.Errorf("tool-executor: %w", err)
	}
	return nil
}

// work consumes until ctx is done. Leases are kept until the last call has ended.
func (s *Service) work(ctx context.Context) error {
	until, done := context.WithCancel(context.WithoutCancel(ctx))
	var leases sync.WaitGroup
	leases.Go(func() { s.executor.KeepLeases(until) })
	defer leases.Wait()
	defer done()
	if err := s.consume(ctx); err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(until, toolGrace)
	defer cancel()
	if err := s.executor.Wait(limited); err != nil {
		s.deps.Log.WarnContext(ctx, "tools left behind", "error", err)
	}
	return nil
}

func (s *Service) housekeep(ctx context.Context) error {
	t := time.NewTicker(housekeepEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		n, err := s.ledger.Housekeep(ctx, s.cfg.KeepOutcomes)
		if err != nil && ctx.Err() == nil {
			s.deps.Log.WarnContext(ctx, "old outcomes not removed", "error", err)
		}
		if n > 0 {
			s.deps.Log.InfoContext(ctx, "old outcomes removed", "rows", n)
		}
	}
}
