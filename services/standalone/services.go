package standalone

import (
	"context"
	"fmt"
	"net"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/httpserver"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/rpc"
	"signalbox.dev/pkg/subject"
	agentrunner "signalbox.dev/services/agent-runner"
	"signalbox.dev/services/console"
	credentialbroker "signalbox.dev/services/credential-broker"
	documentsync "signalbox.dev/services/document-sync"
	"signalbox.dev/services/gateway"
	"signalbox.dev/services/simulator"
	"signalbox.dev/services/simulator/apis"
	"signalbox.dev/services/simulator/site"
	"signalbox.dev/services/standalone/internal/datadir"
	toolexecutor "signalbox.dev/services/tool-executor"
)

// Migrations returns the migrations of all services.
func Migrations() []pg.Migrations {
	return []pg.Migrations{
		gateway.Migrations(), agentrunner.Migrations(), toolexecutor.Migrations(), documentsync.Migrations(), credentialbroker.Migrations(),
	}
}

// Services returns the names of the five services.
func Services() []string {
	return []string{subject.Gateway, subject.AgentRunner, subject.ToolExecutor, subject.DocumentSync, subject.CredentialBroker}
}

// Callers returns the services whose calls a service accepts.
func Callers(service string) []string {
	switch service {
	case subject.AgentRunner:
		return []string{subject.Gateway}
	case subject.ToolExecutor:
		return []string{subject.Gateway, subject.AgentRunner}
	case subject.DocumentSync:
		return []string{subject.Gateway, subject.ToolExecutor}
	case subject.CredentialBroker:
		return []string{subject.Gateway, subject.AgentRunner, subject.ToolExecutor}
	default:
		return nil
	}
}

// KeyFile is where a data folder keeps the key that seals stored credentials.
func KeyFile(dir *datadir.Dir) string { return dir.Path("keys", "broker.key") }

// connections bounds each service's share of the private database's hundred.
const connections = 16

// resources are what one service has for itself.
type resources struct {
	db       *pg.DB
	bus      *bus.Bus
	listener net.Listener
	url      string
	signer   *identity.Signer
	verifier *identity.Verifier
	metrics  prometheus.Registerer
	client   *http.Client // for calls to other services
}

// open opens a service's resources, which are closed with the stack.
func (s *stack) open(ctx context.Context, service string, m pg.Migrations) (*resources, error) {
	r := &resources{signer: identity.NewSigner(service, s.keys[service]), metrics: s.metrics(service), client: rpc.NewHTTPClient(nil)}
	trusted := map[string]string{}
	for _, caller := range Callers(service) {
		trusted[caller] = s.keys[caller].Public()
	}
	var err error
	if r.verifier, err = identity.NewVerifier(service, trusted); err != nil {
		return nil, err
	}
	database, err := s.databaseURL(m.Role)
	if err != nil {
		return nil, err
	}
	r.db, err = pg.Open(ctx, pg.Config{
		URL: database, Role: m.Role, Schema: m.Schema, MaxConns: connections, Application: service, Tracer: s.telemetry.QueryTracer(),
	})
	if err != nil {
		return nil, err
	}
	s.onClose(func(context.Context) error { r.db.Close(); return nil })
	r.metrics.MustRegister(r.db.Collector())
	if r.bus, err = s.bus(ctx, service); err != nil {
		return nil, err
	}
	s.onClose(func(context.Context) error { r.bus.Close(); return nil })
	if r.listener, err = httpserver.Listen(ctx, "127.0.0.1:0"); err != nil {
		return nil, err
	}
	r.url = "http://" + r.listener.Addr().String()
	return r, nil
}

// runner is a wired service.
type runner interface {
	Run(ctx context.Context) error
}

// start loads a service's settings, opens its resources, wires it and runs it. It returns
// the URL of the service's own listener.
func (s *stack) start(ctx context.Context, service string, m pg.Migrations, cfg any, decided map[string]string, wire func(r *resources) (runner, error)) (url string, err error) {
	if err := s.load(cfg, decided); err != nil {
		return "", err
	}
	r, err := s.open(ctx, service, m)
	if err != nil {
		return "", err
	}
	wired, err := wire(r)
	if err != nil {
		return "", fmt.Errorf("%s: %w", service, err)
	}
	s.stage(ctx, service, func(ctx context.Context) error {
		defer r.client.CloseIdleConnections() // else the services behind them would wait
		return wired.Run(ctx)
	})
	return r.url, nil
}

// startServices starts the services in the order of their dependencies: each ends after
// those that call it.
func (s *stack) startServices(ctx context.Context) error {
	s.keys = map[string]identity.Key{} // of this start: signed contexts are valid for a minute only
	for _, service := range Services() {
		k, err := identity.NewKey()
		if err != nil {
			return err
		}
		s.keys[service] = k
	}
	simulated := s.setting("SIMULATED_SERVICES", "true")
	simulatorURL, err := s.startSimulator(ctx, simulated)
	if err != nil {
		return err
	}
	broker, err := s.startBroker(ctx, simulatorURL, simulated)
	if err != nil {
		return err
	}
	var documentsConfig documentsync.Config
	documents, err := s.start(ctx, subject.DocumentSync, documentsync.Migrations(), &documentsConfig, nil, func(r *resources) (runner, error) {
		return documentsync.New(ctx, documentsConfig, documentsync.Deps{
			Log: s.log(subject.DocumentSync), DB: r.db, Bus: r.bus, Listener: r.listener, Verifier: r.verifier, Registerer: r.metrics,
		})
	})
	if err != nil {
		return err
	}
	research := s.setting("RESEARCH_REPO", "")
	if research == "" && simulated == "true" {
		research = apis.Repo
	}
	pages := s.setting("TOOL_EXECUTOR_BROWSER", "local")
	if simulated == "true" && pages == "local" {
		if s.example, err = s.startExample(ctx); err != nil {
			return err
		}
	}
	var toolsConfig toolexecutor.Config
	tools, err := s.start(ctx, subject.ToolExecutor, toolexecutor.Migrations(), &toolsConfig, map[string]string{
		"DOCUMENT_SYNC_URL": documents, "CREDENTIAL_BROKER_URL": broker, "RESEARCH_REPO": research,
		"TOOL_EXECUTOR_BROWSER": pages,
	}, func(r *resources) (runner, error) {
		toolsConfig.LocalBrowser.Example = s.example
		return toolexecutor.New(toolsConfig, toolexecutor.Deps{
			Log: s.log(subject.ToolExecutor), DB: r.db, Bus: r.bus, Listener: r.listener, Verifier: r.verifier, Signer: r.signer, HTTP: r.client, Registerer: r.metrics,
		})
	})
	if err != nil {
		return err
	}
	var agentConfig agentrunner.Config
	agent, err := s.start(ctx, subject.AgentRunner, agentrunner.Migrations(), &agentConfig, map[string]string{"TOOL_EXECUTOR_URL": tools, "CREDENTIAL_BROKER_URL": broker}, func(r *resources) (runner, error) {
		return agentrunner.New(agentConfig, agentrunner.Deps{
			Log: s.log(subject.AgentRunner), DB: r.db, Bus: r.bus, Listener: r.listener, Verifier: r.verifier, Signer: r.signer, Registerer: r.metrics,
		})
	})
	if err != nil {
		return err
	}
	screens, err := console.Handler()
	if err != nil {
		return err
	}
	var gatewayConfig gateway.Config
	s.opsURL, err = s.start(ctx, subject.Gateway, gateway.Migrations(), &gatewayConfig, map[string]string{
		"GATEWAY_DEV_SECRET": s.identity.Secret,
		"AGENT_RUNNER_URL":   agent, "TOOL_EXECUTOR_URL": tools, "DOCUMENT_SYNC_URL": documents, "CREDENTIAL_BROKER_URL": broker,
	}, func(r *resources) (runner, error) {
		return gateway.New(gatewayConfig, gateway.Deps{
			Log: s.log(subject.Gateway), DB: r.db, Bus: r.bus, Public: s.public, Ops: r.listener, Signer: r.signer, HTTP: r.client,
			Registerer: r.metrics, Gatherer: s.registry, DiskFull: s.diskFull, Console: screens,
		})
	})
	return err
}

func (s *stack) startSimulator(ctx context.Context, services string) (url string, err error) {
	var cfg simulator.Config
	if err := s.load(&cfg, map[string]string{"SIMULATOR_SERVICES": services}); err != nil {
		return "", err
	}
	sim, err := simulator.New(cfg, simulator.Deps{Log: s.log("simulator")})
	if err != nil {
		return "", err
	}
	listener, err := httpserver.Listen(ctx, "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	s.stage(ctx, "simulator", func(ctx context.Context) error {
		stop := context.AfterFunc(ctx, sim.Close)
		defer stop()
		return httpserver.Serve(ctx, httpserver.Config{Listener: listener, Handler: sim, Log: s.log("simulator"), Drain: simulatorDrain})
	})
	return "http://" + listener.Addr().String(), nil
}

// startExample starts the web site for trying the browser, and returns its host and port. It is on a
// listener of its own because the browser may reach all of that.
func (s *stack) startExample(ctx context.Context) (address string, err error) {
	listener, err := httpserver.Listen(ctx, "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	s.stage(ctx, "example", func(ctx context.Context) error {
		return httpserver.Serve(ctx, httpserver.Config{Listener: listener, Handler: site.Handler(), Log: s.log("simulator"), Drain: simulatorDrain})
	})
	return listener.Addr().String(), nil
}

func (s *stack) startBroker(ctx context.Context, simulatorURL, simulated string) (url string, err error) {
	var cfg credentialbroker.Config
	return s.start(ctx, subject.CredentialBroker, credentialbroker.Migrations(), &cfg, map[string]string{
		"SIMULATOR_URL": simulatorURL, "SIMULATED_SERVICES": simulated, "CREDENTIAL_BROKER_KEY_FILE": KeyFile(s.dir), "CREDENTIAL_BROKER_ACCOUNTS_FILE": "",
	}, func(r *resources) (runner, error) {
		cfg.AllowLoopback = true
		if at, ok := s.public.Addr().(*net.TCPAddr); ok && cfg.OAuth.Redirect == "" && !at.IP.IsUnspecified() {
			cfg.OAuth.Redirect = "http://" + at.String() + gateway.CallbackPath
		}
		return credentialbroker.New(cfg, credentialbroker.Deps{
			Log: s.log(subject.CredentialBroker), DB: r.db, Bus: r.bus, Listener: r.listener, Verifier: r.verifier, Registerer: r.metrics,
		})
	})
}
