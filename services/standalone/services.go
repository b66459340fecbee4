package standalone

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/httpserver"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/rpc"
	"signalbox.dev/pkg/subject"
	"signalbox.dev/pkg/telemetry"
	agentrunner "signalbox.dev/services/agent-runner"
	credentialbroker "signalbox.dev/services/credential-broker"
	documentsync "signalbox.dev/services/document-sync"
	"signalbox.dev/services/gateway"
	"signalbox.dev/services/simulator"
	"signalbox.dev/services/standalone/internal/datadir"
	toolexecutor "signalbox.dev/services/tool-executor"
)

// Migrations are what all services bring to a database.
func Migrations() []pg.Migrations {
	return []pg.Migrations{
		gateway.Migrations(), agentrunner.Migrations(), toolexecutor.Migrations(), documentsync.Migrations(), credentialbroker.Migrations(),
	}
}

// Callers says whose calls a service takes.
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

// connections bounds each service's part of the private database's hundred.
const connections = 16

// place is what one service has for itself.
type place struct {
	db       *pg.DB
	bus      *bus.Bus
	listener net.Listener
	url      string
	signer   *identity.Signer
	verifier *identity.Verifier
}

// keyring is the services' keys of this start: contexts are good for a minute, so
// none has to outlive the process.
type keyring map[string]identity.Key

func newKeyring() (keyring, error) {
	ring := keyring{}
	for _, s := range []string{subject.Gateway, subject.AgentRunner, subject.ToolExecutor, subject.DocumentSync, subject.CredentialBroker} {
		k, err := identity.NewKey()
		if err != nil {
			return nil, err
		}
		ring[s] = k
	}
	return ring, nil
}

// placeFor opens a service's connections; they are closed with the world.
func (w *world) placeFor(ctx context.Context, ring keyring, service string, m pg.Migrations) (*place, error) {
	var cfg telemetry.Config
	err := w.load(&cfg, nil)
	if err != nil {
		return nil, err
	}
	p := &place{signer: identity.NewSigner(service, ring[service])}
	trusted := map[string]string{}
	for _, caller := range Callers(service) {
		trusted[caller] = ring[caller].Public()
	}
	if p.verifier, err = identity.NewVerifier(service, trusted); err != nil {
		return nil, err
	}
	database, err := w.databaseURL(m.Role)
	if err != nil {
		return nil, err
	}
	p.db, err = pg.Open(ctx, pg.Config{
		URL: database, Role: m.Role, Schema: m.Schema, MaxConns: connections, Application: service, Tracer: cfg.QueryTracer(),
	})
	if err != nil {
		return nil, err
	}
	w.onClose(func(context.Context) error { p.db.Close(); return nil })
	if p.bus, err = w.bus(ctx, service); err != nil {
		return nil, err
	}
	w.onClose(func(context.Context) error { p.bus.Close(); return nil })
	if p.listener, err = httpserver.Listen(ctx, "127.0.0.1:0"); err != nil {
		return nil, err
	}
	p.url = "http://" + p.listener.Addr().String()
	return p, nil
}

// startServices starts the five in three stages, those that others call first: a
// stage ends only when the ones after it have.
func (w *world) startServices(ctx context.Context) error {
	ring, err := newKeyring()
	if err != nil {
		return err
	}
	simulatorURL, err := w.startSimulator(ctx)
	if err != nil {
		return err
	}
	broker, err := w.startBroker(ctx, ring, simulatorURL)
	if err != nil {
		return err
	}
	documents, err := w.startDocuments(ctx, ring)
	if err != nil {
		return err
	}
	tools, err := w.startTools(ctx, ring, documents)
	if err != nil {
		return err
	}
	runner, err := w.startRunner(ctx, ring, tools, broker)
	if err != nil {
		return err
	}
	return w.startGateway(ctx, ring, map[string]string{
		"AGENT_RUNNER_URL": runner, "TOOL_EXECUTOR_URL": tools, "DOCUMENT_SYNC_URL": documents, "CREDENTIAL_BROKER_URL": broker,
	})
}

// required stands for the settings of a service that its binary cannot do without
// and that standalone hands over as open connections.
var required = map[string]string{"DATABASE_URL": "handed over", "SERVICE_KEY": "handed over", "TRUSTED_KEYS": "handed over"}

func with(more map[string]string) map[string]string {
	out := map[string]string{}
	for _, m := range []map[string]string{required, more} {
		maps.Copy(out, m)
	}
	return out
}

// closing gives a service's idle connections back when it has ended: the services
// behind them would wait for it.
func closing(client *http.Client, run func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		defer client.CloseIdleConnections()
		return run(ctx)
	}
}

func (w *world) startSimulator(ctx context.Context) (url string, err error) {
	var cfg simulator.Config
	if err := w.load(&cfg, nil); err != nil {
		return "", err
	}
	sim, err := simulator.New(cfg, simulator.Deps{Log: w.log("simulator")})
	if err != nil {
		return "", err
	}
	listener, err := httpserver.Listen(ctx, "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	w.stage(ctx, "simulator", func(ctx context.Context) error {
		stop := context.AfterFunc(ctx, sim.Close)
		defer stop()
		return httpserver.Serve(ctx, httpserver.Config{Listener: listener, Handler: sim, Log: w.log("simulator"), Drain: simulatorDrain})
	})
	return "http://" + listener.Addr().String(), nil
}

func (w *world) startBroker(ctx context.Context, ring keyring, simulatorURL string) (url string, err error) {
	var cfg credentialbroker.Config
	err = w.load(&cfg, with(map[string]string{"SIMULATOR_URL": simulatorURL, "CREDENTIAL_BROKER_KEY_FILE": KeyFile(w.dir), "CREDENTIAL_BROKER_ACCOUNTS_FILE": ""}))
	if err != nil {
		return "", err
	}
	cfg.AllowLoopback = true
	if at, ok := w.public.Addr().(*net.TCPAddr); ok && cfg.OAuth.Redirect == "" && !at.IP.IsUnspecified() {
		cfg.OAuth.Redirect = "http://" + at.String() + gateway.CallbackPath
	}
	p, err := w.placeFor(ctx, ring, subject.CredentialBroker, credentialbroker.Migrations())
	if err != nil {
		return "", err
	}
	s, err := credentialbroker.New(cfg, credentialbroker.Deps{
		Log: w.log(subject.CredentialBroker), DB: p.db, Bus: p.bus, Listener: p.listener, Verifier: p.verifier, Registerer: w.metrics(subject.CredentialBroker),
	})
	if err != nil {
		return "", err
	}
	w.stage(ctx, subject.CredentialBroker, s.Run)
	return p.url, nil
}

func (w *world) startDocuments(ctx context.Context, ring keyring) (url string, err error) {
	var cfg documentsync.Config
	if err := w.load(&cfg, with(nil)); err != nil {
		return "", err
	}
	p, err := w.placeFor(ctx, ring, subject.DocumentSync, documentsync.Migrations())
	if err != nil {
		return "", err
	}
	s, err := documentsync.New(ctx, cfg, documentsync.Deps{
		Log: w.log(subject.DocumentSync), DB: p.db, Bus: p.bus, Listener: p.listener, Verifier: p.verifier, Registerer: w.metrics(subject.DocumentSync),
	})
	if err != nil {
		return "", err
	}
	w.stage(ctx, subject.DocumentSync, s.Run)
	return p.url, nil
}

func (w *world) startTools(ctx context.Context, ring keyring, documents string) (url string, err error) {
	var cfg toolexecutor.Config
	if err := w.load(&cfg, with(map[string]string{"DOCUMENT_SYNC_URL": documents})); err != nil {
		return "", err
	}
	p, err := w.placeFor(ctx, ring, subject.ToolExecutor, toolexecutor.Migrations())
	if err != nil {
		return "", err
	}
	client := rpc.NewHTTPClient()
	s, err := toolexecutor.New(cfg, toolexecutor.Deps{
		Log: w.log(subject.ToolExecutor), DB: p.db, Bus: p.bus, Listener: p.listener, Verifier: p.verifier, Signer: p.signer,
		HTTP: client, Registerer: w.metrics(subject.ToolExecutor),
	})
	if err != nil {
		return "", err
	}
	w.stage(ctx, subject.ToolExecutor, closing(client, s.Run))
	return p.url, nil
}

func (w *world) startRunner(ctx context.Context, ring keyring, tools, broker string) (url string, err error) {
	var cfg agentrunner.Config
	if err := w.load(&cfg, with(map[string]string{"TOOL_EXECUTOR_URL": tools, "CREDENTIAL_BROKER_URL": broker})); err != nil {
		return "", err
	}
	p, err := w.placeFor(ctx, ring, subject.AgentRunner, agentrunner.Migrations())
	if err != nil {
		return "", err
	}
	s, err := agentrunner.New(cfg, agentrunner.Deps{
		Log: w.log(subject.AgentRunner), DB: p.db, Bus: p.bus, Listener: p.listener, Verifier: p.verifier, Signer: p.signer,
		Registerer: w.metrics(subject.AgentRunner),
	})
	if err != nil {
		return "", err
	}
	w.stage(ctx, subject.AgentRunner, s.Run)
	return p.url, nil
}

// startGateway is told where the others are.
func (w *world) startGateway(ctx context.Context, ring keyring, peers map[string]string) error {
	var cfg gateway.Config
	peers["GATEWAY_DEV_SECRET"] = w.who.Secret
	if err := w.load(&cfg, with(peers)); err != nil {
		return err
	}
	p, err := w.placeFor(ctx, ring, subject.Gateway, gateway.Migrations())
	if err != nil {
		return err
	}
	client := rpc.NewHTTPClient()
	s, err := gateway.New(cfg, gateway.Deps{
		Log: w.log(subject.Gateway), DB: p.db, Bus: p.bus, Public: w.public, Ops: p.listener, Signer: p.signer, HTTP: client,
		Registerer: w.metrics(subject.Gateway), Gatherer: w.registry, DiskFull: w.diskFull,
	})
	if err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	w.opsURL = p.url
	w.stage(ctx, subject.Gateway, closing(client, s.Run))
	return nil
}
