// Document-sync keeps documents and their history: see package documentsync. It
// is configured by environment variables, which --help lists.
package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/httpserver"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/process"
	"signalbox.dev/pkg/subject"
	"signalbox.dev/pkg/telemetry"
	documentsync "signalbox.dev/services/document-sync"
)

func main() {
	os.Exit(process.Main(func(ctx context.Context) error { return run(ctx, os.Args[1:], os.Environ(), os.Stdout) }))
}

func run(ctx context.Context, args, environ []string, stdout io.Writer) error {
	var cfg documentsync.Config
	if len(args) > 0 {
		if args[0] != "--help" && args[0] != "-h" {
			return process.Usage("document-sync takes no arguments; --help lists its environment variables")
		}
		fmt.Fprintln(stdout, "document-sync keeps documents and their history. Environment variables:")
		return conf.WriteHelp(stdout, &cfg)
	}
	if err := conf.Load(&cfg, environ); err != nil {
		return err
	}
	log, err := telemetry.NewLogger(os.Stderr, cfg.Telemetry, subject.DocumentSync)
	if err != nil {
		return err
	}
	stopTracing, err := telemetry.StartTracing(ctx, cfg.Telemetry, subject.DocumentSync, process.Version())
	if err != nil {
		return err
	}
	defer func() { _ = stopTracing(context.WithoutCancel(ctx)) }() // at worst the last spans are missing
	trusted, err := identity.ParseTrusted(cfg.TrustedKeys)
	if err != nil {
		return fmt.Errorf("TRUSTED_KEYS: %w", err)
	}
	verifier, err := identity.NewVerifier(subject.DocumentSync, trusted)
	if err != nil {
		return fmt.Errorf("TRUSTED_KEYS: %w", err)
	}
	db, err := pg.Open(ctx, pg.Config{URL: cfg.DatabaseURL, Role: documentsync.Role, Schema: documentsync.Schema, MaxConns: cfg.DatabaseConns, Application: subject.DocumentSync})
	if err != nil {
		return fmt.Errorf("DATABASE_URL: %w", err)
	}
	defer db.Close()
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	b, err := bus.Connect(ctx, bus.Config{URL: cfg.NATSURL, Service: subject.DocumentSync, User: cfg.NATSUser, Password: cfg.NATSPassword, Log: log, Metrics: registry})
	if err != nil {
		return err
	}
	defer b.Close()
	listener, err := httpserver.Listen(ctx, cfg.Addr)
	if err != nil {
		return err
	}
	s, err := documentsync.New(cfg, documentsync.Deps{Log: log, DB: db, Bus: b, Listener: listener, Verifier: verifier, Registerer: registry, Gatherer: registry})
	if err != nil {
		return err
	}
	log.InfoContext(ctx, "serving", "address", listener.Addr().String())
	return s.Run(ctx)
}
