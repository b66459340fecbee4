// Package gateway serves Signalbox' public API: REST, event streams and document sockets. It
// stores workspaces, members and API keys. For everything else it calls the owning service on
// behalf of the caller.
//
// # The path of a request
//
// routes.go removes tokens from URLs, observes the request and passes it to internal/api.
// There internal/auth authenticates the caller (a token or a key) and authorizes it in a
// workspace. A handler validates the input, calls the owning service over Connect with a
// signed context, and converts the answer to its public form. internal/feed serves streams
// from the run log on the bus, and internal/dialect encodes their events. internal/docproxy
// relays document sockets to document-sync.
//
// # What runs
//
// Run starts the HTTP listeners, the feed's workers, the refresh of key sets, and the checks
// of open streams' permissions. When its context is done, it refuses new streams and sockets,
// ends the open ones spread over the drain window, lets requests finish, and stops the rest.
// If the process dies, only connections are lost: clients resume at any gateway with the id
// of their last event.
package gateway

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/hashchain"
	"signalbox.dev/pkg/httpserver"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/mtls"
	"signalbox.dev/pkg/panics"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/process"
	"signalbox.dev/pkg/rpc"
	"signalbox.dev/pkg/subject"
	"signalbox.dev/proto/signalbox/agent/v1/agentv1connect"
	"signalbox.dev/proto/signalbox/credential/v1/credentialv1connect"
	"signalbox.dev/proto/signalbox/document/v1/documentv1connect"
	"signalbox.dev/proto/signalbox/tool/v1/toolv1connect"

	"connectrpc.com/connect"

	"signalbox.dev/services/gateway/internal/api"
	"signalbox.dev/services/gateway/internal/auth"
	"signalbox.dev/services/gateway/internal/dialect"
	"signalbox.dev/services/gateway/internal/docproxy"
	"signalbox.dev/services/gateway/internal/feed"
	"signalbox.dev/services/gateway/internal/limit"
	"signalbox.dev/services/gateway/internal/mcpserver"
	"signalbox.dev/services/gateway/internal/oidc"
	"signalbox.dev/services/gateway/internal/store"
)

// Name is the service's name: on the bus, in signed contexts, in logs.
const Name = "gateway"

// CallbackPath is the page to which providers can redirect browsers after a sign-in.
const CallbackPath = api.CallbackPath

// OIDCCallbackPath is where an OpenID Connect provider sends browsers back.
const OIDCCallbackPath = api.OIDCCallbackPath

//go:embed migrations/*.sql
var migrations embed.FS

// maxSharedStreams limits the open streams of a workspace's share links. They do not count with
// those of its members.
const maxSharedStreams = 200

// Migrations returns the gateway's schema, role and migration files.
func Migrations() pg.Migrations {
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		panic(err) // the path is a constant
	}
	return pg.Migrations{Schema: "gateway", Role: "signalbox_gateway", FS: files}
}

// AuditTable returns the service's audit, which is a hash chain.
func AuditTable(db *pg.DB) hashchain.Table { return store.AuditTable(db) }

// Deps are the gateway's dependencies. The caller closes them after Run.
type Deps struct {
	Log    *slog.Logger
	DB     *pg.DB            // opened with the role and schema of Migrations
	Bus    *bus.Bus          // connected as subject.Gateway
	Signer *identity.Signer  // of this service
	HTTP   *http.Client      // for calls to other services: rpc.NewHTTPClient
	Secure *mtls.Credentials // of HTTP, for sockets to document-sync; may be nil
	Public net.Listener
	Ops    net.Listener // nil if the operators' pages are served elsewhere
	// Console serves the web console's pages; nil for none.
	Console http.Handler
	// Registerer registers the metrics, and Gatherer serves them on Ops; either may be nil.
	Registerer prometheus.Registerer
	Gatherer   prometheus.Gatherer
	// DiskFull reports whether the disk that all services share is full; nil if they share none.
	DiskFull func() bool
}

// Service is the gateway.
type Service struct {
	cfg       Config
	deps      Deps
	verifiers []*identity.TokenVerifier
	streams   *auth.Streams
	sockets   *auth.Streams
	shared    *auth.Streams // of share links
	feed      *feed.Feed
	runLog    *bus.Streams
	proxy     *docproxy.Proxy
	api       *api.API
	mcp       http.Handler
	public    http.Handler
}

// New wires the gateway. It fails if a setting is invalid. Run serves.
func New(cfg Config, deps Deps) (*Service, error) {
	if deps.Log == nil || deps.DB == nil || deps.Bus == nil || deps.Signer == nil || deps.HTTP == nil || deps.Public == nil {
		return nil, errors.New("gateway: a dependency is missing")
	}
	topology, err := subject.NewTopology(subject.Options{Partitions: cfg.NATSPartitions})
	if err != nil {
		return nil, fmt.Errorf("gateway: EVENT_PARTITIONS: %w", err)
	}
	s := &Service{cfg: cfg, deps: deps, runLog: deps.Bus.Reads(topology.Log())}
	if s.verifiers, err = cfg.verifiers(deps.Log); err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	peers, err := s.connect()
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	members := store.New(deps.DB)
	s.streams = auth.NewStreams(auth.StreamsConfig{
		Grants: members, Log: deps.Log, PerMember: cfg.MemberStreams, PerWorkspace: cfg.WorkspaceStreams, Recheck: cfg.Feed.Recheck,
	})
	s.sockets = auth.NewStreams(auth.StreamsConfig{
		Grants: members, Log: deps.Log, PerMember: cfg.MemberSockets, PerWorkspace: cfg.WorkspaceSockets, Recheck: cfg.Feed.Recheck,
	})
	s.shared = auth.NewStreams(auth.StreamsConfig{
		Grants: members, Log: deps.Log, PerMember: maxSharedStreams, PerWorkspace: maxSharedStreams, Recheck: cfg.Feed.Recheck,
	})
	s.feed = feed.New(feed.Config{
		Bus: deps.Bus, Source: api.Origin{Conversations: peers.conversations, Runs: peers.runs}, Dialect: dialect.Plain{},
		Log: deps.Log, Metrics: deps.Registerer, Partitions: cfg.NATSPartitions, DrainWindow: cfg.DrainWindow,
		Linger: cfg.Feed.Linger, Heartbeat: cfg.Feed.Heartbeat, Silence: cfg.Feed.Silence, Pace: cfg.Feed.Pace, Idle: cfg.Feed.Idle,
		MaxBehind: cfg.Feed.MaxBehind, RingFrames: cfg.Feed.RingFrames, BehindBytes: cfg.Feed.BehindBytes, GroupSize: cfg.Feed.GroupSize,
	})
	verifiers := make([]auth.Verifier, len(s.verifiers))
	for i, v := range s.verifiers {
		verifiers[i] = v
	}
	proxies, err := cfg.trustedProxies()
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	authenticator := auth.New(auth.Config{
		Verifiers: verifiers, Members: members, Log: deps.Log, TrustedProxies: proxies,
		PerMember:    limit.Rate{PerMinute: cfg.MemberPerMinute, Burst: cfg.MemberBurst},
		PerWorkspace: limit.Rate{PerMinute: cfg.WorkspacePerMinute, Burst: cfg.WorkspaceBurst},
	})
	s.proxy, err = docproxy.New(docproxy.Config{
		Authenticator: authenticator, Streams: s.sockets, Signer: deps.Signer, URL: cfg.DocumentSyncURL, Secure: deps.Secure, Log: deps.Log, Metrics: deps.Registerer,
		Origins: cfg.origins(), Max: cfg.Sockets, WriteTimeout: cfg.WriteTimeout, DrainWindow: cfg.DrainWindow,
		TokenWait: cfg.Relay.TokenWait,
	})
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	company, err := s.company()
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	s.api = api.New(api.Config{
		Company:       company,
		Conversations: peers.conversations, Runs: peers.runs, Models: peers.models, Approvals: peers.approvals, Usage: peers.usage, Audit: peers.audit, Presets: peers.presets, Tools: peers.tools, McpServers: peers.mcpServers, Documents: peers.documents,
		Accounts: peers.accounts, Connections: peers.connections, ReturnPaths: cfg.ReturnPaths,
		Feed: s.feed, Store: members, Authenticator: authenticator, Streams: s.streams, Shared: s.shared, Log: deps.Log, Version: process.Version(),
		BodyTimeout: cfg.BodyTimeout, WriteTimeout: cfg.WriteTimeout, KeepConnections: cfg.Feed.KeepConnections, DiskFull: deps.DiskFull,
	})
	s.mcp = mcpserver.New(mcpserver.Config{
		Authenticator: authenticator, Streams: s.streams, Conversations: peers.conversations, Runs: peers.runs, Documents: peers.documents,
		Origins: cfg.origins(), OperationKey: api.OperationKey, WriteError: api.WriteError, Log: deps.Log, Version: process.Version(),
	})
	s.public = s.routes(newRequestMetrics(deps.Registerer))
	return s, nil
}

// company returns the sign-in at the OpenID Connect provider; nil without one.
func (s *Service) company() (*api.Company, error) {
	c := s.cfg.OIDC
	if c.Issuer == "" {
		return nil, nil //nolint:nilnil // as api.Config has it
	}
	domains, err := c.domains()
	if err != nil {
		return nil, err
	}
	provider := oidc.New(oidc.Config{
		Issuer: c.Issuer, ClientID: c.ClientID, ClientSecret: c.ClientSecret, RedirectURL: c.RedirectURL, TrustEmail: c.TrustEmail, Log: s.deps.Log,
	})
	return &api.Company{Name: c.Name, Provider: provider, Secure: strings.HasPrefix(c.RedirectURL, "https://"), Domains: domains, Lifetime: c.Session}, nil
}

// peers are clients of the services that the gateway calls.
type peers struct {
	conversations agentv1connect.ConversationServiceClient
	runs          agentv1connect.RunServiceClient
	models        agentv1connect.ModelServiceClient
	approvals     agentv1connect.ApprovalServiceClient
	usage         agentv1connect.UsageServiceClient
	audit         agentv1connect.AuditServiceClient
	presets       agentv1connect.PresetServiceClient
	tools         toolv1connect.ToolServiceClient
	mcpServers    toolv1connect.McpServiceClient
	documents     documentv1connect.DocumentServiceClient
	accounts      credentialv1connect.AccountServiceClient
	connections   credentialv1connect.ConnectionServiceClient
}

func (s *Service) connect() (p peers, err error) {
	options := func(audience string) (opts []connect.ClientOption) {
		if err == nil {
			opts, err = rpc.Client{Signer: s.deps.Signer, Audience: audience}.ClientOptions()
		}
		return opts
	}
	runner, tools, documents, broker := options("agent-runner"), options("tool-executor"), options("document-sync"), options("credential-broker")
	if err != nil {
		return peers{}, err
	}
	return peers{
		agentv1connect.NewConversationServiceClient(s.deps.HTTP, s.cfg.AgentRunnerURL, runner...),
		agentv1connect.NewRunServiceClient(s.deps.HTTP, s.cfg.AgentRunnerURL, runner...),
		agentv1connect.NewModelServiceClient(s.deps.HTTP, s.cfg.AgentRunnerURL, runner...),
		agentv1connect.NewApprovalServiceClient(s.deps.HTTP, s.cfg.AgentRunnerURL, runner...),
		agentv1connect.NewUsageServiceClient(s.deps.HTTP, s.cfg.AgentRunnerURL, runner...),
		agentv1connect.NewAuditServiceClient(s.deps.HTTP, s.cfg.AgentRunnerURL, runner...),
		agentv1connect.NewPresetServiceClient(s.deps.HTTP, s.cfg.AgentRunnerURL, runner...),
		toolv1connect.NewToolServiceClient(s.deps.HTTP, s.cfg.ToolExecutorURL, tools...),
		toolv1connect.NewMcpServiceClient(s.deps.HTTP, s.cfg.ToolExecutorURL, tools...),
		documentv1connect.NewDocumentServiceClient(s.deps.HTTP, s.cfg.DocumentSyncURL, documents...),
		credentialv1connect.NewAccountServiceClient(s.deps.HTTP, s.cfg.credentialBroker(), broker...),
		credentialv1connect.NewConnectionServiceClient(s.deps.HTTP, s.cfg.credentialBroker(), broker...),
	}, nil
}

// checks are the checks of /ready.
func (s *Service) checks() map[string]httpserver.Check {
	all := map[string]httpserver.Check{
		"nats":          s.runLog.Ready,
		"postgres":      s.deps.DB.Ping,
		"agent-runner":  s.healthy(s.cfg.AgentRunnerURL),
		"tool-executor": s.healthy(s.cfg.ToolExecutorURL),
		"document-sync": s.healthy(s.cfg.DocumentSyncURL),
	}
	if s.cfg.CredentialBrokerURL != "" {
		all["credential-broker"] = s.healthy(s.cfg.CredentialBrokerURL)
	}
	if s.deps.DiskFull != nil {
		all["disk"] = func(context.Context) error {
			if s.deps.DiskFull() {
				return errors.New("the disk is full")
			}
			return nil
		}
	}
	return all
}

func (s *Service) healthy(base string) httpserver.Check {
	return func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/health", nil)
		if err != nil {
			return fmt.Errorf("check health: %w", err)
		}
		res, err := s.deps.HTTP.Do(req)
		if err != nil {
			return fmt.Errorf("check health: %w", err)
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return fmt.Errorf("%s answers %s", base, res.Status)
		}
		return nil
	}
}

// Run serves until ctx is done, drains, and returns nil.
func (s *Service) Run(ctx context.Context) error {
	// The background work outlives the listeners: requests in progress need it.
	inner, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	background, inner := errgroup.WithContext(inner)
	supervise := func(what string, loop func(context.Context) error) {
		background.Go(func() error { return panics.Supervise(inner, s.deps.Log, what, loop) })
	}
	background.Go(func() error { return s.feed.Run(inner) })
	background.Go(func() error { return s.proxy.Run(inner) })
	supervise("streams", s.streams.Run)
	supervise("sockets", s.sockets.Run)
	supervise("shared documents", s.shared.Run)
	supervise("run log", s.runLog.Run)
	for _, v := range s.verifiers {
		supervise("token keys", v.Run)
	}

	listeners, outer := errgroup.WithContext(ctx)
	listeners.Go(func() error {
		<-outer.Done()
		s.drainStreams(ctx)
		return nil
	})
	listeners.Go(func() error {
		return httpserver.Serve(outer, httpserver.Config{
			Listener: clearingListener{s.deps.Public}, Handler: s.public, Log: s.deps.Log, Drain: s.cfg.DrainLimit, HTTP1: true, ConnContext: withClearing,
		})
	})
	if s.deps.Ops != nil {
		mux := http.NewServeMux()
		httpserver.Ops{Checks: s.checks(), Gatherer: s.deps.Gatherer, Log: s.deps.Log}.Mount(mux)
		listeners.Go(func() error {
			return httpserver.Serve(outer, httpserver.Config{Listener: s.deps.Ops, Handler: mux, Log: s.deps.Log, Drain: time.Second})
		})
	}
	s.deps.Log.InfoContext(ctx, "gateway serves", "address", s.deps.Public.Addr().String())
	err := listeners.Wait()
	stop()
	return errors.Join(err, background.Wait())
}

// drainStreams ends the streams and sockets and waits for them: hijacked connections are not
// known to the HTTP server.
func (s *Service) drainStreams(ctx context.Context) {
	s.feed.Drain()
	s.proxy.Drain()
	limit := time.NewTimer(s.cfg.DrainLimit)
	defer limit.Stop()
	for _, drained := range []<-chan struct{}{s.feed.Drained(), s.proxy.Drained()} {
		select {
		case <-drained:
		case <-limit.C:
			s.deps.Log.WarnContext(ctx, "streams cut at shutdown")
			return
		}
	}
}

// EnsureMember makes a workspace and its member exist, and gives the member the role. It is
// for the standalone binary and its token command. An existing workspace keeps its name.
func EnsureMember(ctx context.Context, db *pg.DB, ws id.Workspace, name string, member id.Member, role identity.Role) error {
	return store.New(db).Ensure(ctx, ws, name, member, role)
}

// SignInLink returns the key of a link that signs a person in once, until it expires. The link is
// the console's address with the path /in and the key in its fragment: /in#k=<key>.
func SignInLink(ctx context.Context, db *pg.DB, member id.Member, expires time.Time) (conf.Secret, error) {
	return store.New(db).CreateLink(ctx, member, expires)
}
