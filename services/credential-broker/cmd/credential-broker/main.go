// Credential-broker holds every secret and forwards requests to providers: see
// package credentialbroker. It is configured by environment variables, which
// --help lists.
package main

import (
	"context"
	"fmt"
	"os"
	"runtime"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/httpserver"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/service"
	"signalbox.dev/pkg/subject"
	"signalbox.dev/pkg/telemetry"
	credentialbroker "signalbox.dev/services/credential-broker"
	_ "signalbox.dev/services/credential-broker/kms" // the key services that may hold the key
)

func main() {
	var cfg credentialbroker.Config
	os.Exit(service.Command{
		Name:       subject.CredentialBroker,
		About:      "holds every secret and forwards requests to providers",
		Config:     &cfg,
		Telemetry:  func() telemetry.Config { return cfg.Telemetry },
		HealthAddr: func() string { return cfg.Addr },
		Run:        func(ctx context.Context, env service.Env) error { return run(ctx, cfg, env) },
	}.Main())
}

func run(ctx context.Context, cfg credentialbroker.Config, env service.Env) error {
	if err := keepMemory(); err != nil {
		return err
	}
	// What it does for one chunk takes less time than waking another processor for
	// it, which is what Go would do.
	if cfg.Procs > 0 && os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(cfg.Procs)
	}
	verifier, err := identity.OpenVerifier(subject.CredentialBroker, cfg.TrustedKeys)
	if err != nil {
		return fmt.Errorf("TRUSTED_KEYS: %w", err)
	}
	deps := credentialbroker.Deps{Log: env.Log, Verifier: verifier, Registerer: env.Registry, Gatherer: env.Registry}
	if cfg.AccountsFile == "" {
		shared, err := share(ctx, cfg, env, &deps)
		defer shared()
		if err != nil {
			return err
		}
	}
	listener, err := httpserver.Listen(ctx, cfg.Addr)
	if err != nil {
		return err
	}
	deps.Listener = listener
	s, err := credentialbroker.New(cfg, deps)
	if err != nil {
		_ = listener.Close() // New failed, so Run will not
		return err
	}
	env.Log.InfoContext(ctx, "serving", "address", listener.Addr().String())
	return s.Run(ctx)
}

// share opens what this instance shares with the others. What it returns closes that,
// also after an error.
func share(ctx context.Context, cfg credentialbroker.Config, env service.Env, deps *credentialbroker.Deps) (end func(), err error) {
	deps.DB, err = pg.Open(ctx, pg.Config{
		URL: cfg.DatabaseURL, Role: credentialbroker.Role, Schema: credentialbroker.Schema, MaxConns: cfg.DatabaseConns,
		Application: subject.CredentialBroker, Tracer: cfg.Telemetry.QueryTracer(),
	})
	if err != nil {
		return func() {}, fmt.Errorf("DATABASE_URL: %w", err)
	}
	deps.Bus, err = bus.Connect(ctx, bus.Config{
		URL: cfg.NATSURL, Service: subject.CredentialBroker, User: cfg.NATSUser, Password: cfg.NATSPassword, Log: env.Log, Metrics: env.Registry,
	})
	if err != nil {
		return deps.DB.Close, err
	}
	return func() { deps.Bus.Close(); deps.DB.Close() }, nil
}
