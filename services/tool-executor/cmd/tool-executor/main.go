// Tool-executor runs the tools that models call: see package toolexecutor. It is
// configured by environment variables, which --help lists.
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
	"signalbox.dev/pkg/rpc"
	"signalbox.dev/pkg/subject"
	"signalbox.dev/pkg/telemetry"
	toolexecutor "signalbox.dev/services/tool-executor"
)

func main() {
	os.Exit(process.Main(func(ctx context.Context) error { return run(ctx, os.Args[1:], os.Environ(), os.Stdout) }))
}

func run(ctx context.Context, args, environ []string, stdout io.Writer) error {
	var cfg toolexecutor.Config
	if len(args) > 0 {
		if args[0] != "--help" && args[0] != "-h" {
			return process.Usage("tool-executor takes no arguments; --help lists its environment variables")
		}
		fmt.Fprintln(stdout, "tool-executor runs the tools that models call. Environment variables:")
		return conf.WriteHelp(stdout, &cfg)
	}
	if err := conf.Load(&cfg, environ); err != nil {
		return err
	}
	log, err := telemetry.NewLogger(os.Stderr, cfg.Telemetry, subject.ToolExecutor)
	if err != nil {
		return err
	}
	stopTracing, err := telemetry.StartTracing(ctx, cfg.Telemetry, subject.ToolExecutor, process.Version())
	if err != nil {
		return err
	}
	defer func() { _ = stopTracing(context.WithoutCancel(ctx)) }() // at worst the last spans are missing
	key, err := identity.ParseKey(cfg.ServiceKey.Reveal())
	if err != nil {
		return fmt.Errorf("SERVICE_KEY: %w", err)
	}
	trusted, err := identity.ParseTrusted(cfg.TrustedKeys)
	if err != nil {
		return fmt.Errorf("TRUSTED_KEYS: %w", err)
	}
	verifier, err := identity.NewVerifier(subject.ToolExecutor, trusted)
	if err != nil {
		return fmt.Errorf("TRUSTED_KEYS: %w", err)
	}
	db, err := pg.Open(ctx, pg.Config{URL: cfg.DatabaseURL, Role: toolexecutor.Role, Schema: toolexecutor.Schema, MaxConns: cfg.DatabaseConns, Application: subject.ToolExecutor})
	if err != nil {
		return fmt.Errorf("DATABASE_URL: %w", err)
	}
	defer db.Close()
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	b, err := bus.Connect(ctx, bus.Config{URL: cfg.NATSURL, Service: subject.ToolExecutor, User: cfg.NATSUser, Password: cfg.NATSPassword, Log: log, Metrics: registry})
	if err != nil {
		return err
	}
	defer b.Close()
	listener, err := httpserver.Listen(ctx, cfg.Addr)
	if err != nil {
		return err
	}
	client := rpc.NewHTTPClient()
	defer client.CloseIdleConnections()
	s, err := toolexecutor.New(cfg, toolexecutor.Deps{
		Log: log, DB: db, Bus: b, Listener: listener, Verifier: verifier,
		Signer: identity.NewSigner(subject.ToolExecutor, key), HTTP: client, Registerer: registry, Gatherer: registry,
	})
	if err != nil {
		return err
	}
	log.InfoContext(ctx, "serving", "address", listener.Addr().String())
	return s.Run(ctx)
}
