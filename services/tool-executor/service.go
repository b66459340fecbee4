// Package toolexecutor is the service that runs the tools which models call.
//
// Calls arrive over the bus (consume.go), each with a unique key, and take effect at most once
// if the tool's effect allows it. Package execute runs them and explains what happens after a
// crash at each point, package ledger records them, package tool defines what a tool is, and
// package tools has the built-in ones; package mcp has the tools of MCP servers that workspaces
// have added (rpc_mcp.go), package browser the browser behind the browser_* tools. Other services list the tools and read outcomes over Connect
// (rpc.go).
//
// Executors share a queue, and each can run any call. If an executor dies, the others notice
// that its presence is gone (pg.Presence) and that its rows in the ledger no longer change,
// and take its calls over after about a second. Calls that it had not claimed yet are
// redelivered after subject.AckWait.
package toolexecutor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/hashchain"
	"signalbox.dev/pkg/httpserver"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/netguard"
	"signalbox.dev/pkg/panics"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/rpc"
	"signalbox.dev/pkg/subject"
	"signalbox.dev/proto/signalbox/credential/v1/credentialv1connect"
	"signalbox.dev/proto/signalbox/document/v1/documentv1connect"
	"signalbox.dev/proto/signalbox/tool/v1/toolv1connect"
	"signalbox.dev/services/tool-executor/internal/browser"
	"signalbox.dev/services/tool-executor/internal/egress"
	"signalbox.dev/services/tool-executor/internal/execute"
	"signalbox.dev/services/tool-executor/internal/ledger"
	"signalbox.dev/services/tool-executor/internal/mcp"
	"signalbox.dev/services/tool-executor/internal/tool"
	"signalbox.dev/services/tool-executor/internal/tools"
	"signalbox.dev/services/tool-executor/migrations"
)

// Schema and Role are the service's place in Postgres.
const (
	Schema = "tools"
	Role   = "signalbox_tools"
)

// Migrations returns the service's database migrations.
func Migrations() pg.Migrations {
	return pg.Migrations{Schema: Schema, Role: Role, FS: migrations.FS}
}

// AuditTable returns the service's audit, which is a hash chain.
func AuditTable(db *pg.DB) hashchain.Table { return ledger.AuditTable(db) }

// Deps are the service's dependencies. Run closes the listener; the caller closes the
// others after Run has returned.
type Deps struct {
	Log *slog.Logger
	DB  *pg.DB   // as Role, in Schema
	Bus *bus.Bus // as subject.ToolExecutor
	// Listener serves Connect, /health, /ready and /metrics.
	Listener net.Listener
	// Verifier authenticates the calling services, gateway and agent-runner.
	Verifier *identity.Verifier
	// Signer and HTTP are for calls to Config.DocumentSyncURL and Config.BrokerURL.
	Signer *identity.Signer
	HTTP   *http.Client
	// Tools are added to the built-in ones.
	Tools      []Tool
	Registerer prometheus.Registerer // nil: no metrics
	Gatherer   prometheus.Gatherer   // nil: no /metrics page
}

// Bounds that are not configurable.
const (
	announceTimeout = time.Second
	renewEvery      = 500 * time.Millisecond // of leases, at most a third of one
	sweepEvery      = 250 * time.Millisecond // for calls of dead executors
	toolGrace       = 2 * time.Second
	recordFor       = 20 * time.Second
	housekeepEvery  = time.Hour
)

// Service is the tool-executor service.
type Service struct {
	cfg      Config
	deps     Deps
	ledger   *ledger.Ledger
	presence *pg.Presence
	executor *execute.Executor
	servers  *mcp.Servers
	browser  *browser.Service // nil unless it is in this process
	streams  *bus.Streams
	handler  http.Handler
}

// New wires the service. It takes no calls until Run is called.
func New(cfg Config, deps Deps) (*Service, error) {
	if deps.Log == nil || deps.DB == nil || deps.Bus == nil || deps.Listener == nil || deps.Verifier == nil || deps.Signer == nil || deps.HTTP == nil {
		return nil, errors.New("tool-executor: log, database, bus, listener, verifier, signer and HTTP client are needed")
	}
	if err := conf.SetDefaults(&cfg); err != nil {
		return nil, fmt.Errorf("tool-executor: %w", err)
	}
	name := subject.ToolExecutor + "/" + uuid.NewString()
	topology, err := subject.NewTopology(subject.Options{Replicas: cfg.Replicas})
	if err != nil {
		return nil, fmt.Errorf("tool-executor: EVENT_REPLICAS: %w", err)
	}
	s := &Service{
		cfg: cfg, deps: deps, ledger: ledger.New(deps.DB, name, cfg.Lease), presence: pg.NewPresence(deps.DB, name, deps.Log),
		streams: deps.Bus.Owns(topology.Queue(subject.Tools)),
	}
	if s.servers, err = s.mcpServers(); err != nil {
		return nil, fmt.Errorf("tool-executor: %w", err)
	}
	catalogue, err := s.catalogue()
	if err != nil {
		return nil, fmt.Errorf("tool-executor: %w", err)
	}
	catalogue = catalogue.With(s.servers)
	metrics, err := execute.NewMetrics(deps.Registerer)
	if err != nil {
		return nil, fmt.Errorf("tool-executor: register metrics: %w", err)
	}
	renew := min(renewEvery, cfg.Lease/3)
	rounds, err := bus.NewRounds(deps.Bus, bus.RoundsConfig{Subject: subject.Swept(subject.ToolExecutor), Self: name, Every: sweepEvery})
	if err != nil {
		return nil, fmt.Errorf("tool-executor: %w", err)
	}
	s.executor = execute.New(execute.Config{
		Catalogue: catalogue, Ledger: s.ledger, Presence: executors{deps.DB, s.presence, 2 * renew},
		Announce: s.announce, Report: s.report, Log: deps.Log, Metrics: metrics,
		Slots: cfg.Slots, PerWorkspace: cfg.PerWorkspace, Waiting: 2 * cfg.Slots, Wait: waitForSlot, Renew: renew, Quiet: 2 * renew, Lease: cfg.Lease, SweepEvery: sweepEvery, Rounds: rounds,
		Grace: toolGrace, RecordFor: recordFor,
	})
	options, err := rpc.Server{Verifier: deps.Verifier, Log: deps.Log}.HandlerOptions()
	if err != nil {
		return nil, fmt.Errorf("tool-executor: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle(toolv1connect.NewToolServiceHandler(&calls{catalogue, s.ledger}, options...))
	mux.Handle(toolv1connect.NewMcpServiceHandler(&servers{s.servers}, options...))
	httpserver.Ops{
		Checks:   map[string]httpserver.Check{"postgres": deps.DB.Ping, "nats": s.streams.Ready},
		Gatherer: deps.Gatherer, Log: deps.Log,
	}.Mount(mux)
	s.handler = mux
	return s, nil
}

func (s *Service) mcpServers() (*mcp.Servers, error) {
	allowed, err := netguard.ParseAllowed(s.cfg.AllowPrivate)
	if err != nil {
		return nil, fmt.Errorf("TOOL_EXECUTOR_ALLOW_PRIVATE: %w", err)
	}
	operator, err := mcp.LoadOperator(s.cfg.MCPServers)
	if err != nil {
		return nil, fmt.Errorf("TOOL_EXECUTOR_MCP_SERVERS: %w", err)
	}
	broker := s.deps.HTTP.Transport
	if broker == nil {
		broker = http.DefaultTransport
	}
	return mcp.New(mcp.Config{
		DB: s.deps.DB, Log: s.deps.Log, Guard: netguard.New(netguard.Config{Allowed: allowed, HeaderTimeout: mcp.HeaderTimeout}),
		Broker: broker, BrokerURL: s.cfg.BrokerURL, Signer: s.deps.Signer,
		Operator: operator, Processes: s.cfg.MCPProcesses,
	}), nil
}

func (s *Service) catalogue() (*tool.Catalogue, error) {
	documents, err := rpc.Client{Signer: s.deps.Signer, Audience: subject.DocumentSync}.ClientOptions()
	if err != nil {
		return nil, err
	}
	broker, err := rpc.Client{Signer: s.deps.Signer, Audience: subject.CredentialBroker}.ClientOptions()
	if err != nil {
		return nil, err
	}
	pages, why, err := s.openBrowser()
	if err != nil {
		return nil, err
	}
	all, err := tools.New(tools.Deps{
		Browser: pages, BrowserUnavailable: why, BrowserPrivate: s.cfg.LocalBrowser.AllowPrivate != "",
		Documents: documentv1connect.NewDocumentServiceClient(s.deps.HTTP, s.cfg.DocumentSyncURL, documents...),
		Egress: egress.New(s.cfg.BrokerURL, s.deps.HTTP, s.deps.Signer,
			credentialv1connect.NewConnectionServiceClient(s.deps.HTTP, s.cfg.BrokerURL, broker...)),
		Settings: s.cfg.Tools,
	})
	if err != nil {
		return nil, err
	}
	return tool.NewCatalogue(append(all, s.deps.Tools...)...)
}

// executors implements execute.Presence.
type executors struct {
	db  *pg.DB
	own *pg.Presence
	// steady is how long this process must have been present itself before it calls others
	// absent: when Postgres recovers, every process is absent for a moment.
	steady time.Duration
}

// Absent implements execute.Presence.
func (e executors) Absent(ctx context.Context, names []string) (absent []string, err error) {
	if e.own.Steady() < e.steady {
		return nil, nil
	}
	// Executors of the previous version have no name and no presence.
	names = slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == "" })
	// AsSystem: presence belongs to no workspace.
	err = e.db.AsSystem(ctx, func(ctx context.Context, tx pgx.Tx) error {
		absent, err = pg.Absent(ctx, tx, names)
		return err
	})
	return absent, err
}

// Run takes calls until ctx is done. It then finishes the active calls within Config.Drain,
// hands the rest to other executors, and returns nil. It must be called only once.
func (s *Service) Run(ctx context.Context) error {
	cancels, err := s.subscribeCancels() //nolint:contextcheck // a message has its sender's context
	if err != nil {
		return fmt.Errorf("tool-executor: %w", err)
	}
	defer func() { _ = cancels.Unsubscribe() }() // fails only if the connection is gone
	defer s.servers.Close()
	defer s.runBrowser(ctx)()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.work(ctx) })
	g.Go(func() error {
		return httpserver.Serve(ctx, httpserver.Config{Listener: s.deps.Listener, Handler: s.handler, Log: s.deps.Log, Drain: s.cfg.Drain})
	})
	g.Go(func() error { return s.supervise(ctx, "housekeeping", s.housekeep) })
	g.Go(func() error { return s.supervise(ctx, "stream", s.streams.Run) })
	if err := g.Wait(); err != nil {
		return fmt.Errorf("tool-executor: %w", err)
	}
	return nil
}

// work consumes and sweeps until ctx is done. It keeps leases and presence until the last
// call has ended.
func (s *Service) work(ctx context.Context) error {
	until, done := context.WithCancel(context.WithoutCancel(ctx))
	var behind sync.WaitGroup
	behind.Go(func() {
		_ = s.supervise(until, "leases", func(ctx context.Context) error { s.executor.KeepLeases(ctx); return nil })
	})
	behind.Go(func() { _ = s.supervise(until, "presence", s.presence.Run) }) // it has no error
	defer behind.Wait()
	defer done()
	g, working := errgroup.WithContext(ctx)
	g.Go(func() error { return s.supervise(working, "consumer", s.consume) })
	g.Go(func() error {
		return s.supervise(working, "sweeper", func(ctx context.Context) error { s.executor.Sweep(ctx, s.cfg.Drain); return nil })
	})
	if err := g.Wait(); err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(until, toolGrace)
	defer cancel()
	if err := s.executor.Wait(limited); err != nil {
		s.deps.Log.WarnContext(ctx, "tools are still running at exit", "error", err)
	}
	return nil
}

func (s *Service) supervise(ctx context.Context, what string, loop func(context.Context) error) error {
	return panics.Supervise(ctx, s.deps.Log, what, loop)
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
