// Package credentialbroker is the service that holds every secret. Other services
// reach providers through its egress (routes.go, internal/proxy), which takes a
// signed context in place of a credential and adds the credential on the way out;
// nobody ever gets one back. Workspaces keep their credentials here over Connect
// (rpc.go), and their members connect tools (connections.go); the operator does so
// through Accounts or the environment. All go by way of a Scope: the accounts of one
// workspace, or the shared ones, and who acts on them. It works on the database alone,
// so that the command line needs no broker: those that run find out when they read the
// accounts again, within a second.
//
// The rooms: proxy forwards one request and decides what may still be retried;
// upstream carries it to the provider, over connections that sock makes cheap; pool
// chooses the account; profile knows how requests of a credential look, as data;
// transform edits bodies where a profile wants it, and scan finds the places; usage
// reads what an answer took, and meter counts what accounts do; oauth keeps alive what somebody signed in to; dialect
// speaks of errors the way providers do; vault seals, and rotation replaces its keys;
// store keeps what is sealed, and audit verifies what it wrote of that; target keeps
// workspaces' base URLs out of the operator's network; opencode reads what other
// programs keep, for an import.
//
// A single user needs no database: with CREDENTIAL_BROKER_ACCOUNTS_FILE the shared accounts
// are in a file (internal/accountfile), which the command line works on too. There are no
// workspaces' own accounts then, one chain of the audit, beside the file, and no bus. What
// is said of the database is true of the file. While it is damaged nobody's credential is
// used in the place of those that are in it.
//
// A Service shares the database with the other instances, and what they learn of
// accounts over the bus; it goes on without either, and instances start and stop in
// any order. When it is told to stop it goes on with open
// requests for a bounded time; streams that are still open then get an error event
// and a broken end, which every caller takes for what it is. If it dies, they
// break without one.
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
	"signalbox.dev/pkg/httpserver"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/panics"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/price"
	"signalbox.dev/pkg/process"
	"signalbox.dev/services/credential-broker/internal/pool"
	"signalbox.dev/services/credential-broker/internal/profile"
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
	fileEvery    = time.Second     // a file is written as a whole
)

// Migrations returns what the service brings to the database.
func Migrations() pg.Migrations {
	return pg.Migrations{Schema: Schema, Role: Role, FS: migrations.FS, AppendOnly: migrations.AppendOnly()}
}

// Deps is what the service works with. Whoever opened these closes them, after
// Run; the listener is closed by Run.
type Deps struct {
	Log *slog.Logger
	// DB is the database, as Role, in Schema; nil where the settings name a file.
	DB *pg.DB
	// Bus is where other instances are, as subject.CredentialBroker; nil for none.
	Bus *bus.Bus
	// Listener takes egress requests, calls of other services and the pages for operators.
	Listener net.Listener
	// Verifier knows who may call: gateway, agent-runner and tool-executor.
	Verifier   *identity.Verifier
	Registerer prometheus.Registerer // nil: no metrics
	Gatherer   prometheus.Gatherer   // nil: no /metrics page
}

// Service is one broker.
type Service struct {
	cfg        Config
	deps       Deps
	accounts   *Accounts
	pool       *pool.Set
	proxy      *proxy.Proxy
	transports []*upstream.Transport
	handler    http.Handler
}

// New wires a Service. It touches the key file and the accounts file and nothing else
// outside: the database may be away.
func New(cfg Config, deps Deps) (*Service, error) {
	if deps.Log == nil || (deps.DB == nil) == (cfg.AccountsFile == "") || deps.Listener == nil || deps.Verifier == nil {
		return nil, errors.New("credential-broker: log, database (or accounts file), listener and verifier are needed")
	}
	if deps.Registerer == nil {
		deps.Registerer = prometheus.NewRegistry() // nobody looks
	}
	if cfg.Drain <= 0 {
		cfg.Drain = defaultDrain
	}
	s := &Service{cfg: cfg, deps: deps}
	profiles, err := profile.Open(process.Version(), cfg.Profiles)
	if err != nil {
		return nil, fmt.Errorf("load request profiles: %w", err)
	}
	s.accounts, err = openAccounts(AccountsConfig{DB: deps.DB, File: cfg.AccountsFile, KeyFile: cfg.KeyFile, Keys: cfg.Keys, AllowPrivate: cfg.AllowPrivate, AllowLoopback: cfg.AllowLoopback, OAuth: cfg.OAuth, Log: deps.Log}, profiles)
	if err != nil {
		return nil, err
	}
	if err := s.wire(profiles); err != nil {
		s.accounts.Close()
		return nil, err
	}
	return s, nil
}

// wire makes what stands on the accounts.
func (s *Service) wire(profiles *profile.Set) error {
	cfg, deps := s.cfg, s.deps
	counts, err := pool.NewMeter(deps.Registerer)
	if err != nil {
		return fmt.Errorf("count what accounts do: %w", err)
	}
	if s.pool, err = newPool(cfg, deps, s.accounts, counts); err != nil {
		return err
	}
	open, guarded := upstream.New(upstream.Config{}), upstream.New(upstream.Config{Control: s.accounts.policy.Control})
	s.transports = []*upstream.Transport{open, guarded}
	s.proxy, err = proxy.New(proxy.Config{
		Pool: s.pool, Profiles: profiles, Verifier: deps.Verifier, Open: open, Guarded: guarded,
		Timers: cfg.timers(), Limits: proxy.Limits{Requests: cfg.MaxRequests, Bodies: cfg.MaxBodies},
		Metrics: deps.Registerer, Meter: counts, Log: deps.Log,
	})
	if err != nil {
		return err
	}
	s.handler, err = s.routes()
	return err
}

func newPool(cfg Config, deps Deps, a *Accounts, counts *pool.Meter) (*pool.Set, error) {
	prices, err := price.Load(cfg.ModelPrices)
	if err != nil {
		return nil, err
	}
	environment, err := cfg.Environment.accounts()
	if err != nil {
		return nil, err
	}
	simulator, err := cfg.simulator()
	if err != nil {
		return nil, err
	}
	every, forget := time.Duration(0), a.keeper.ForgetOf
	if a.file != nil { // of which the keeper sees all with each of its looks
		every, forget = fileEvery, nil
	}
	return pool.New(pool.Config{
		WriteEvery: every, UsesBehind: a.file != nil,
		Store: a.store, Vault: a.vault, Tokens: a.keeper, Forget: forget, Profiles: a.profiles, Environment: environment, Simulator: simulator,
		CheckBase: a.policy.CheckBase, Bus: deps.Bus, Prices: prices, Meter: counts, Log: deps.Log,
	})
}

// Run serves until ctx is done and open requests have ended or were ended. It
// returns nil then. A Service runs once.
func (s *Service) Run(ctx context.Context) error {
	if f := s.accounts.file; f != nil {
		// It serves all the same, and is well as soon as the file is.
		if _, err := f.View(ctx); err != nil {
			s.deps.Log.ErrorContext(ctx, "accounts cannot be used: requests are refused until the accounts file is put right", "error", err)
		}
		if err := f.CanRecord(); err != nil {
			s.deps.Log.WarnContext(ctx, "the audit cannot be written: no access token is renewed, and nobody can sign in, until it can", "error", err)
		}
	}
	stopped := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { s.abortLate(ctx, stopped) })
	serving, served := context.WithCancel(ctx)
	defer served()
	supervise := func(what string, loop func(context.Context, *slog.Logger)) {
		wg.Go(func() {
			_ = panics.Supervise(serving, s.deps.Log, what, func(ctx context.Context) error { loop(ctx, s.deps.Log); return nil })
		})
	}
	supervise("token renewal", func(ctx context.Context, _ *slog.Logger) { _ = s.accounts.keeper.Run(ctx) }) // nil when ctx is done
	supervise("key rotation", s.accounts.sweepKeys)
	supervise("key check", s.accounts.tellKey)
	sharing, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var shared errgroup.Group
	shared.Go(func() error { return s.pool.Run(sharing) })
	err := httpserver.Serve(ctx, httpserver.Config{
		Listener: sock.Listen(s.deps.Listener), Handler: s.handler, Log: s.deps.Log, Drain: s.cfg.Drain + abortGrace,
	})
	close(stopped)
	served()
	s.proxy.Abort() // what is left has no connection any more
	s.proxy.Wait()
	stop() // the pool writes what the last requests have taught it
	err = errors.Join(err, shared.Wait())
	s.pool.Wait()
	wg.Wait()
	s.accounts.Close()
	for _, t := range s.transports {
		t.CloseIdleConnections()
	}
	return err
}

// abortLate ends what is still open when the drain's time is up.
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
