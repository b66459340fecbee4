// Command gateway serves Signalbox' public API.
package main

import (
	"context"
	"errors"
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
	"signalbox.dev/pkg/telemetry"

	"signalbox.dev/services/gateway"
)

func main() {
	os.Exit(process.Main(func(ctx context.Context) error { return run(ctx, os.Args[1:], os.Environ(), os.Stdout) }))
}

func run(ctx context.Context, args, environ []string, out io.Writer) (err error) {
	var cfg gateway.Config
	if len(args) > 0 {
		if args[0] != "--help" && args[0] != "-h" {
			return process.Usage("gateway takes no arguments but --help; its settings come from the environment")
		}
		fmt.Fprintf(out, "gateway %s serves Signalbox' public API. Settings come from the environment:\n\n", process.Version())
		return conf.WriteHelp(out, &cfg)
	}
	if err := conf.Load(&cfg, environ); err != nil {
		return err
	}
	log, err := telemetry.NewLogger(os.Stderr, cfg.Telemetry, gateway.Name)
	if err != nil {
		return err
	}
	flush, err := telemetry.StartTracing(ctx, cfg.Telemetry, gateway.Name, process.Version())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, flush(context.WithoutCancel(ctx))) }()
	key, err := identity.ParseKey(cfg.ServiceKey.Reveal())
	if err != nil {
		return fmt.Errorf("SERVICE_KEY: %w", err)
	}
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m := gateway.Migrations()
	db, err := pg.Open(ctx, pg.Config{URL: cfg.DatabaseURL, Role: m.Role, Schema: m.Schema, MaxConns: cfg.DatabaseMax, Application: gateway.Name})
	if err != nil {
		return fmt.Errorf("DATABASE_URL: %w", err)
	}
	defer db.Close()
	b, err := bus.Connect(ctx, bus.Config{URL: cfg.NATSURL, Service: gateway.Name, User: cfg.NATSUser, Password: cfg.NATSPassword, Log: log, Metrics: reg})
	if err != nil {
		return err
	}
	defer b.Close()
	public, err := httpserver.Listen(ctx, cfg.HTTPAddr)
	if err != nil {
		return fmt.Errorf("GATEWAY_HTTP_ADDR: %w", err)
	}
	ops, err := httpserver.Listen(ctx, cfg.OpsAddr)
	if err != nil {
		return fmt.Errorf("GATEWAY_OPS_ADDR: %w", err)
	}
	s, err := gateway.New(cfg, gateway.Deps{
		Log: log, DB: db, Bus: b, Signer: identity.NewSigner(gateway.Name, key), HTTP: rpc.NewHTTPClient(),
		Public: public, Ops: ops, Registerer: reg, Gatherer: reg,
	})
	if err != nil {
		return err
	}
	return s.Run(ctx)
}
