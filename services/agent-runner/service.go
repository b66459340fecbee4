// Package agentrunner is the service that answers user messages: it stores sessions
// and messages and runs the agent loop.
//
// It takes requests over Connect (rpc.go) and runs from the work queue (consume.go).
// A new run starts at once in the process that stored its message if that process has
// a free slot (start.go). The internal packages are conversation (what people do with
// sessions), run (the durable state of runs), loop (the agent loop), runlog (events
// for viewers), archive (the events' copy in Postgres), outbox (messages published
// after a commit), llm (the protocols of model providers) and toolbox (the client of
// tool-executor).
//
// Replicas share all state through Postgres and the bus. Any replica may die at any
// moment; another one claims its runs.
package agentrunner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"golang.org/x/sync/errgroup"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/hashchain"
	"signalbox.dev/pkg/httpserver"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/mtls"
	"signalbox.dev/pkg/panics"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/price"
	"signalbox.dev/pkg/rpc"
	"signalbox.dev/pkg/subject"
	"signalbox.dev/proto/signalbox/agent/v1/agentv1connect"
	"signalbox.dev/proto/signalbox/credential/v1/credentialv1connect"
	"signalbox.dev/proto/signalbox/tool/v1/toolv1connect"
	"signalbox.dev/services/agent-runner/internal/archive"
	"signalbox.dev/services/agent-runner/internal/audit"
	"signalbox.dev/services/agent-runner/internal/backlog"
	"signalbox.dev/services/agent-runner/internal/budget"
	"signalbox.dev/services/agent-runner/internal/conversation"
	"signalbox.dev/services/agent-runner/internal/llm/catalogue"
	"signalbox.dev/services/agent-runner/internal/loop"
	"signalbox.dev/services/agent-runner/internal/outbox"
	"signalbox.dev/services/agent-runner/internal/preset"
	"signalbox.dev/services/agent-runner/internal/provider"
	"signalbox.dev/services/agent-runner/internal/run"
	"signalbox.dev/services/agent-runner/internal/sweep"
	"signalbox.dev/services/agent-runner/internal/toolbox"
	"signalbox.dev/services/agent-runner/migrations"
)

// Schema and Role are the service's place in Postgres.
const (
	Schema = "agent"
	Role   = "signalbox_agent"
)

// Migrations returns the service's database migrations.
func Migrations() pg.Migrations {
	return pg.Migrations{Schema: Schema, Role: Role, FS: migrations.FS, Derived: map[string]string{"message_words": "index_message"}}
}

// AuditTable returns the service's audit, which is a hash chain.
func AuditTable(db *pg.DB) hashchain.Table { return audit.Table(db) }

// Deps are the service's dependencies. Run closes the listener; the caller closes the
// others after Run has returned.
type Deps struct {
	Log *slog.Logger
	DB  *pg.DB   // as Role, in Schema
	Bus *bus.Bus // as subject.AgentRunner
	// Listener serves Connect, /health, /ready and /metrics.
	Listener net.Listener
	// Verifier authenticates the calling service, which is the gateway.
	Verifier *identity.Verifier
	// Signer authenticates this service to tool-executor and credential-broker.
	Signer     *identity.Signer
	Secure     *mtls.Credentials // for https URLs of these two; may be nil
	Registerer prometheus.Registerer
	Gatherer   prometheus.Gatherer // nil: no /metrics page
}

// Service is the agent-runner service.
type Service struct {
	cfg  Config
	deps Deps
	out  *outbox.Outbox
	runs *run.Store
	// presence shows the other runners that this one is alive.
	presence  *pg.Presence
	keeper    *loop.Keeper
	sweeper   *sweep.Sweeper
	tools     *toolbox.Toolbox
	providers *provider.Providers
	loop      *loop.Loop
	starter   *starter
	archive   *archive.Archive
	streams   *bus.Streams
	budgets   *budget.Store
	handler   http.Handler
	clients   []*http.Client
	catalogue *catalogue.Catalogue
}

// New wires the service. Nothing runs until Run is called.
func New(cfg Config, deps Deps) (*Service, error) {
	if deps.Log == nil || deps.DB == nil || deps.Bus == nil || deps.Listener == nil || deps.Verifier == nil || deps.Signer == nil || deps.Registerer == nil {
		return nil, errors.New("agent-runner: log, database, bus, listener, verifier, signer and metrics are needed")
	}
	presets, err := preset.Builtin()
	if err != nil {
		return nil, fmt.Errorf("agent-runner: %w", err)
	}
	topology, err := subject.NewTopology(subject.Options{Partitions: cfg.Partitions, Replicas: cfg.Replicas})
	if err != nil {
		return nil, fmt.Errorf("agent-runner: EVENT_PARTITIONS, EVENT_REPLICAS: %w", err)
	}
	s := &Service{cfg: cfg, deps: deps, streams: deps.Bus.Owns(slices.Concat(topology.Queue(subject.Runs), topology.Log()))}
	s.budgets = budget.NewStore(deps.DB)
	s.out = outbox.New(deps.DB, deps.Bus, deps.Log)
	name := runnerName()
	s.presence = pg.NewPresence(deps.DB, name, deps.Log)
	s.runs = run.NewStore(deps.DB, s.out, name, run.Config{Lease: cfg.Lease, WallTime: cfg.RunTime, Partitions: cfg.Partitions, PerWorkspace: cfg.WorkspaceRuns})
	s.keeper = loop.NewKeeper(s.runs, cfg.Beat, deps.Log)
	rounds, err := bus.NewRounds(deps.Bus, bus.RoundsConfig{Subject: subject.Swept(subject.AgentRunner), Self: name, Every: sweep.Interval})
	if err != nil {
		return nil, fmt.Errorf("agent-runner: %w", err)
	}
	s.sweeper = sweep.New(sweep.Config{Store: s.runs, Bus: deps.Bus, Presence: s.presence, Rounds: rounds, Outbox: s.out, Beat: cfg.Beat, Log: deps.Log})
	if s.archive, err = archive.New(archive.Config{
		DB: deps.DB, Bus: deps.Bus, Log: deps.Log, Registerer: deps.Registerer,
		Partitions: cfg.Partitions, Delay: cfg.RunLogDelay, Keep: cfg.RunLogKeep,
	}); err != nil {
		return nil, fmt.Errorf("agent-runner: %w", err)
	}
	deps.Registerer.MustRegister(backlog.New(deps.DB, deps.Log))
	if err := s.wireLoop(presets); err != nil {
		return nil, fmt.Errorf("agent-runner: %w", err)
	}
	if err := s.wireHandlers(presets); err != nil {
		return nil, fmt.Errorf("agent-runner: %w", err)
	}
	return s, nil
}

// runnerName returns the unique name under which this process holds claims.
func runnerName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s/%d/%s", host, os.Getpid(), id.New[id.Run]().String()[28:])
}

func (s *Service) wireLoop(presets *preset.Set) error {
	internal, egress := rpc.NewHTTPClient(s.deps.Secure), egressClient(s.deps.Secure)
	s.clients = []*http.Client{internal, egress}
	options := func(audience string) ([]connect.ClientOption, error) {
		return rpc.Client{Signer: s.deps.Signer, Audience: audience}.ClientOptions()
	}
	toolOptions, err1 := options(subject.ToolExecutor)
	brokerOptions, err2 := options(subject.CredentialBroker)
	models, err3 := catalogue.Load(s.cfg.ModelCatalogue)
	s.catalogue = models
	prices, err4 := price.Load(s.cfg.ModelPrices)
	titles, err5 := loop.ParseTitles(s.cfg.TitleModel)
	if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
		return err
	}
	s.tools = toolbox.New(toolv1connect.NewToolServiceClient(internal, s.cfg.ToolExecutorURL, toolOptions...), s.deps.Bus, s.deps.Log)
	s.providers = provider.New(provider.Config{
		BrokerURL: s.cfg.CredentialBrokerURL,
		HTTP:      egress,
		Signer:    s.deps.Signer,
		Accounts:  credentialv1connect.NewAccountServiceClient(internal, s.cfg.CredentialBrokerURL, brokerOptions...),
		FirstByte: s.cfg.FirstByte,
		Idle:      s.cfg.Idle,
		Catalogue: models, Prices: prices, DefaultProvider: s.cfg.DefaultProvider, DefaultModel: s.cfg.DefaultModel,
	})
	s.loop = loop.New(loop.Config{
		Tries: s.cfg.ModelTries, Backoff: s.cfg.ModelBackoff, MaxRetryAfter: s.cfg.MaxRetryAfter, StepTime: s.cfg.StepTime,
		ToolTime: s.cfg.ToolTime, Queueing: s.cfg.ToolQueueing, ApprovalTime: s.cfg.ApprovalTime, Patience: s.cfg.Patience, MaxFruitless: maxFruitless, Partitions: s.cfg.Partitions, CompactAt: s.cfg.CompactAt, CompactKeep: s.cfg.CompactKeep, Titles: titles,
	}, loop.Deps{
		Store: s.runs, Bus: s.deps.Bus, Tools: s.tools, Presets: presets, Models: s.providers, Catalogue: models, Budgets: s.budgets, Prices: prices, Keeper: s.keeper,
		Metrics: loop.NewMetrics(s.deps.Registerer), Log: s.deps.Log,
	})
	s.starter = &starter{
		runs: s.runs, loop: s.loop, bus: s.deps.Bus, log: s.deps.Log,
		slots: make(chan struct{}, s.cfg.Slots), draining: make(chan struct{}), abort: make(chan struct{}),
	}
	return nil
}

// maxFruitless is how many claims in a row may end without a commit before the run fails.
const maxFruitless = 20

// egressClient returns a client for model streams. It uses HTTP/1.1 so that each stream
// has its own connection and closing the connection stops the provider's work.
func egressClient(secure *mtls.Credentials) *http.Client {
	dialer := &net.Dialer{Timeout: 5 * time.Second}
	return &http.Client{
		Transport: otelhttp.NewTransport(&http.Transport{
			DialContext:         dialer.DialContext,
			DialTLSContext:      secure.Dialer(dialer, "http/1.1"),
			MaxIdleConnsPerHost: 256,
			IdleConnTimeout:     time.Minute,
			DisableCompression:  true,
		}),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// maxSession bounds a session's messages. It leaves room for the answers of models and
// tools below rpc.MaxMessage and the request limits of providers.
const maxSession = 24 << 20

func (s *Service) wireHandlers(shipped *preset.Set) error {
	sessions := conversation.NewStore(s.deps.DB, s.out, shipped, conversation.Config{
		Models: s.providers, Tools: s.tools.Names, Partitions: s.cfg.Partitions, MaxQueued: s.cfg.MaxQueued, MaxWaiting: s.cfg.WorkspaceWaiting, MaxBytes: maxSession,
	})
	options, err := rpc.Server{Verifier: s.deps.Verifier, Log: s.deps.Log}.HandlerOptions()
	if err != nil {
		return err
	}
	kinds := &presets{preset.NewStore(s.deps.DB, shipped), s.tools.Catalogue, s.catalogue}
	mux := http.NewServeMux()
	mux.Handle(agentv1connect.NewConversationServiceHandler(&conversations{
		store: sessions, nudge: s.nudge, starter: s.starter, cancelTools: s.tools.Cancel, presets: kinds, log: s.deps.Log,
	}, options...))
	mux.Handle(agentv1connect.NewRunServiceHandler(&runs{store: sessions, archive: s.archive}, options...))
	mux.Handle(agentv1connect.NewApprovalServiceHandler(&approvals{store: sessions, log: s.deps.Log}, options...))
	mux.Handle(agentv1connect.NewModelServiceHandler(&models{s.providers}, options...))
	mux.Handle(agentv1connect.NewPresetServiceHandler(kinds, options...))
	mux.Handle(agentv1connect.NewUsageServiceHandler(&usage{s.budgets}, options...))
	mux.Handle(agentv1connect.NewAuditServiceHandler(&audits{audit.NewStore(s.deps.DB)}, options...))
	httpserver.Ops{
		Checks:   map[string]httpserver.Check{"postgres": s.deps.DB.Ping, "nats": s.streams.Ready},
		Gatherer: s.deps.Gatherer, Log: s.deps.Log,
	}.Mount(mux)
	s.handler = mux
	return nil
}

// Run serves until ctx is done. It then parks each run at its next step border, leaves
// those that do not reach one within Config.Drain to other runners, and returns nil.
// It must be called only once.
func (s *Service) Run(ctx context.Context) error {
	if err := errors.Join(s.keeper.Listen(s.deps.Bus), s.tools.Start()); err != nil {
		return fmt.Errorf("agent-runner: %w", err)
	}
	// The background loops that runs depend on stop after the runs have ended.
	support, stopSupport := context.WithCancel(context.WithoutCancel(ctx))
	defer stopSupport()
	behind, support := errgroup.WithContext(support)
	for name, loop := range map[string]func(context.Context) error{
		"presence": s.presence.Run, "leases": s.keeper.Run, "outbox": s.out.Run, "archive": s.archive.Run, "streams": s.streams.Run,
	} {
		behind.Go(func() error { return panics.Supervise(support, s.deps.Log, name, loop) })
	}

	front, ctx := errgroup.WithContext(ctx)
	front.Go(func() error { return panics.Supervise(ctx, s.deps.Log, "consumer", s.consume) })
	front.Go(func() error {
		<-ctx.Done()
		s.starter.drain(s.cfg.Drain)
		return nil
	})
	front.Go(func() error { return panics.Supervise(ctx, s.deps.Log, "sweeper", s.sweeper.Run) })
	front.Go(func() error {
		return httpserver.Serve(ctx, httpserver.Config{Listener: s.deps.Listener, Handler: s.handler, Log: s.deps.Log, Drain: s.cfg.Drain})
	})
	err := front.Wait()
	s.loop.Close()
	for _, c := range s.clients {
		c.CloseIdleConnections() // otherwise the servers wait for these connections when they stop
	}
	stopSupport()
	if err := errors.Join(err, behind.Wait()); err != nil {
		return fmt.Errorf("agent-runner: %w", err)
	}
	return nil
}
