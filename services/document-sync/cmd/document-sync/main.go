// Document-sync keeps documents and their history: see package documentsync. It
// is configured by environment variables, which --help lists.
package main

import (
	"context"
	"fmt"
	"os"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/httpserver"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/service"
	"signalbox.dev/pkg/subject"
	"signalbox.dev/pkg/telemetry"
	documentsync "signalbox.dev/services/document-sync"
)

func main() {
	var cfg documentsync.Config
	os.Exit(service.Command{
		Name:       subject.DocumentSync,
		About:      "keeps documents and their history",
		Config:     &cfg,
		Telemetry:  func() telemetry.Config { return cfg.Telemetry },
		HealthAddr: func() string { return cfg.Addr },
		Run:        func(ctx context.Context, env service.Env) error { return run(ctx, cfg, env) },
	}.Main())
}

func run(ctx context.Context, cfg documentsync.Config, env service.Env) error {
	verifier, err := identity.OpenVerifier(subject.DocumentSync, cfg.TrustedKeys)
	if err != nil {
		return fmt.Errorf("TRUSTED_KEYS: %w", err)
	}
	db, err := pg.Open(ctx, pg.Config{
		URL: cfg.DatabaseURL, Role: documentsync.Role, Schema: documentsync.Schema, MaxConns: cfg.DatabaseConns,
		Application: subject.DocumentSync, Tracer: cfg.Telemetry.QueryTracer(),
	})
	if err != nil {
		return fmt.Errorf("DATABASE_URL: %w", err)
	}
	defer db.Close()
	b, err := bus.Connect(ctx, bus.Config{
		URL: cfg.NATSURL, Service: subject.DocumentSync, User: cfg.NATSUser, Password: cfg.NATSPassword, Log: env.Log, Metrics: env.Registry,
	})
	if err != nil {
		return err
	}
	defer b.Close()
	listener, err := httpserver.Listen(ctx, cfg.Addr)
	if err != nil {
		return err
	}
	s, err := documentsync.New(ctx, cfg, documentsync.Deps{
		Log: env.Log, DB: db, Bus: b, Listener: listener, Verifier: verifier, Registerer: env.Registry, Gatherer: env.Registry,
	})
	if err != nil {
		return err
	}
	env.Log.InfoContext(ctx, "serving", "address", listener.Addr().String())
	return s.Run(ctx)
}
