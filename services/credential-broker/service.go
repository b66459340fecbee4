// Package credentialbroker is the service that holds every secret. Other services reach
// providers through its egress (routes.go, internal/proxy): they send a signed context in
// place of a credential, and the egress adds the credential on the way out. Nothing ever
// returns a stored secret. Over Connect (rpc.go), workspaces manage their accounts and
// members connect tools; the operator manages shared accounts at the command line, which
// uses package admin on the same database, with or without a running broker.
//
// The rooms, from outside in: proxy forwards one request and decides what may be retried;
// upstream and sock carry it to the provider; pool chooses the account; profile, transform
// and scan shape requests of a credential kind; usage reads what an answer cost; dialect
// writes errors in the provider's format; oauth keeps sign-ins valid; vault seals secrets,
// and rotation replaces its keys; store keeps accounts, and audit has the rows of the record of
// changes; target keeps workspaces' base URLs out of the operator's network; opencode reads
// other programs' credentials for an import.
//
// A single user needs no database: with CREDENTIAL_BROKER_ACCOUNTS_FILE the shared accounts
// are in a file (internal/accountfile), without a bus and without accounts of workspaces.
// While that file is damaged, requests are refused: no other credential takes its place.
//
// Instances share the database, and over the bus what they learn about accounts. A Service
// keeps working while either is unavailable, and instances start and stop in any order.
// When it is told to stop, open requests get a bounded time to finish; streams that are
// still open then end with an error event and a broken connection. If the process dies,
// they break without the event.
package credentialbroker

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
	"signalbox.dev/pkg/hashchain"
	"signalbox.dev/pkg/httpserver"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/panics"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/price"
	"signalbox.dev/services/credential-broker/admin"
	"signalbox.dev/services/credential-broker/internal/audit"
	"signalbox.dev/services/credential-broker/internal/pool"
	"signalbox.dev/services/credential-broker/internal/proxy"
	"signalbox.dev/services/credential-broker/internal/sock"
	"signalbox.dev/services/credential-broker/internal/upstream"
	"signalbox.dev/services/credential-broker/migrations"
)

// Schema and Role are the service's place in Postgres.
const (
	Schema = "credentials"
	Role   = "signalbox_credentials"
)

const (
	defaultDrain = 25 * time.Second
	abortGrace   = 3 * time.Second // for error events to be written after the drain
	fileEvery    = time.Second     // between writes of the accounts file, which is written as a whole
)

// Migrations returns the service's migrations.
func Migrations() pg.Migrations {
	return pg.Migrations{Schema: Schema, Role: Role, FS: migrations.FS, AppendOnly: migrations.AppendOnly()}
}

// AuditTable returns the service's audit, which is a hash chain.
func AuditTable(db *pg.DB) hashchain.Table { return audit.Table(db) }

// Deps is what the service works with. The caller closes these after Run, except for the
// listener, which Run closes.
type Deps struct {
	Log *slog.Logger
	// DB is the database, as Role, in Schema; nil if the settings name a file.
	DB *pg.DB
	// Bus connects to other instances, as subject.CredentialBroker; nil for none.
	Bus *bus.Bus
	// Listener accepts egress requests, calls of other services and operators' requests.
	Listener net.Listener
	// Verifier authenticates callers: gateway, agent-runner and tool-executor.
	Verifier   *identity.Verifier
	Registerer prometheus.Registerer // nil: no metrics
	Gatherer   prometheus.Gatherer   // nil: no /metrics page
}

// Service is one broker.
type Service struct {
	cfg        Config
	deps       Deps
	accounts   *admin.Accounts
	pool       *pool.Set
	proxy      *proxy.Proxy
	transports []*upstream.Transport
	handler    http.Handler
}

// New wires a Service. It opens the key file and the accounts file and connects to
// nothing: the database may be unavailable.
func New(cfg Config, deps Deps) (*Service, error) {
	if deps.Log == nil || (deps.DB == nil) == (cfg.AccountsFile == "") || deps.Listener == nil || deps.Verifier == nil {
		return nil, errors.New("credential-broker: log, database (or accounts file), listener and verifier are needed")
	}
	if deps.Registerer == nil {
		deps.Registerer = prometheus.NewRegistry() // not exported
	}
	if cfg.Drain <= 0 {
		cfg.Drain = defaultDrain
	}
	accounts, err := admin.Open(admin.Config{
		DB: deps.DB, File: cfg.AccountsFile, KeyFile: cfg.KeyFile, MakeKey: true, Keys: cfg.Keys, Profiles: cfg.Profiles,
		AllowPrivate: cfg.AllowPrivate, AllowLoopback: cfg.AllowLoopback, OAuth: cfg.OAuth, SimulatedServices: cfg.SimulatedServices, Log: deps.Log,
	})
	if err != nil {
		return nil, err
	}
	s := &Service{cfg: cfg, deps: deps, accounts: accounts}
	if err := s.wire(); err != nil {
		accounts.Close()
		return nil, err
	}
	return s, nil
}

// wire builds the egress and the handler on the accounts.
func (s *Service) wire() error {
	counts, err := pool.NewMeter(s.deps.Registerer)
	if err != nil {
		return fmt.Errorf("register account metrics: %w", err)
	}
	if s.pool, err = s.newPool(counts); err != nil {
		return err
	}
	open, guarded := upstream.New(upstream.Config{}), upstream.New(upstream.Config{Control: s.accounts.Policy.Control})
	s.transports = []*upstream.Transport{open, guarded}
	s.proxy, err = proxy.New(proxy.Config{
		Pool: s.pool, Profiles: s.accounts.Profiles, Verifier: s.deps.Verifier, Open: open, Guarded: guarded,
		Timers: s.cfg.timers(), Limits: proxy.Limits{Requests: s.cfg.MaxRequests, Bodies: s.cfg.MaxBodies},
		Metrics: s.deps.Registerer, Meter: counts, Log: s.deps.Log,
	})
	if err != nil {
		return err
	}
	s.handler, err = s.routes()
	return err
}

func (s *Service) newPool(counts *pool.Meter) (*pool.Set, error) {
	prices, err := price.Load(s.cfg.ModelPrices)
	if err != nil {
		return nil, err
	}
	environment, err := s.cfg.environmentAccounts()
	if err != nil {
		return nil, err
	}
	simulator, err := s.cfg.simulator()
	if err != nil {
		return nil, err
	}
	environment = append(environment, s.cfg.services(simulator)...)
	a := s.accounts
	every, forget := time.Duration(0), a.Keeper.ForgetOf
	if a.File != nil { // the keeper reads the whole file each time
		every, forget = fileEvery, nil
	}
	return pool.New(pool.Config{
		WriteEvery: every, UsesBehind: a.File != nil,
		Store: a.Store, Vault: a.Vault, Tokens: a.Keeper, Forget: forget, Profiles: a.Profiles, Environment: environment, Simulator: simulator,
		CheckBase: a.Policy.CheckBase, Bus: s.deps.Bus, Prices: prices, Meter: counts, Log: s.deps.Log,
	})
}

// Run serves until ctx is done and open requests have ended or were ended. It
// returns nil then. A Service runs once.
func (s *Service) Run(ctx context.Context) error {
	if f := s.accounts.File; f != nil {
		// It serves anyway, and recovers as soon as the file does.
		if _, err := f.View(ctx); err != nil {
			s.deps.Log.ErrorContext(ctx, "accounts cannot be used: requests are refused until the accounts file is repaired", "error", err)
		}
		if err := f.CanRecord(); err != nil {
			s.deps.Log.WarnContext(ctx, "cannot write the audit: until that works, no access token is renewed and nobody can sign in", "error", err)
		}
	}
	stopped := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { s.abortLate(ctx, stopped) })
	serving, served := context.WithCancel(ctx)
	defer served()
	for what, loop := range map[string]func(context.Context){
		"token renewal": func(ctx context.Context) { _ = s.accounts.Keeper.Run(ctx) }, // nil when ctx is done
		"key rotation":  s.accounts.SweepKeys,
		"key check":     s.accounts.ReportKey,
	} {
		wg.Go(func() {
			_ = panics.Supervise(serving, s.deps.Log, what, func(ctx context.Context) error { loop(ctx); return nil })
		})
	}
	sharing, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var shared errgroup.Group
	shared.Go(func() error { return s.pool.Run(sharing) })
	err := httpserver.Serve(ctx, httpserver.Config{
		Listener: sock.Listen(s.deps.Listener), Handler: s.handler, Log: s.deps.Log, Drain: s.cfg.Drain + abortGrace,
	})
	close(stopped)
	served()
	s.proxy.Abort() // the remaining requests have no connection any more
	s.proxy.Wait()
	stop() // the pool writes what it learned from the last requests
	err = errors.Join(err, shared.Wait())
	s.pool.Wait()
	wg.Wait()
	s.accounts.Close()
	for _, t := range s.transports {
		t.CloseIdleConnections()
	}
	return err
}

// abortLate ends the requests that are still open when the drain's time is up.
func (s *Service) abortLate(ctx context.Context, stopped <-chan struct{}) {
	select {
	case <-stopped:
		return
	case <-ctx.Done():
	}
	late := time.NewTimer(s.cfg.Drain)
	defer late.Stop()
	select {
	case <-stopped:
	case <-late.C:
		s.proxy.Abort()
	}
}
