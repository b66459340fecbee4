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
	// What it does for one chunk takes less time than waking another processor for
	// it, which is what Go would do.
	if cfg.Procs > 0 && os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(cfg.Procs)
	}
	verifier, err := identity.OpenVerifier(subject.CredentialBroker, cfg.TrustedKeys)
	if err != nil {
		return fmt.Errorf("TRUSTED_KEYS: %w", err)
	}
	db, err := pg.Open(ctx, pg.Config{
		URL: cfg.DatabaseURL, Role: credentialbroker.Role, Schema: credentialbroker.Schema, MaxConns: cfg.DatabaseConns,
		Application: subject.CredentialBroker, Tracer: cfg.Telemetry.QueryTracer(),
	})
	if err != nil {
		return fmt.Errorf("DATABASE_URL: %w", err)
	}
	defer db.Close()
	b, err := bus.Connect(ctx, bus.Config{
		URL: cfg.NATSURL, Service: subject.CredentialBroker, User: cfg.NATSUser, Password: cfg.NATSPassword, Log: env.Log, Metrics: env.Registry,
	})
	if err != nil {
		return err
	}
	defer b.Close()
	listener, err := httpserver.Listen(ctx, cfg.Addr)
	if err != nil {
		return err
	}
	s, err := credentialbroker.New(cfg, credentialbroker.Deps{
		Log: env.Log, DB: db, Bus: b, Listener: listener, Verifier: verifier, Registerer: env.Registry, Gatherer: env.Registry,
	})
	if err != nil {
		_ = listener.Close() // New failed, so Run will not
		return err
	}
	env.Log.InfoContext(ctx, "serving", "address", listener.Addr().String())
	return s.Run(ctx)
}
