// Gateway serves Signalbox' public API: see package gateway. It is configured by
// environment variables, which --help lists.
package main

import (
	"context"
	"fmt"
	"os"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/httpserver"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/rpc"
	"signalbox.dev/pkg/service"
	"signalbox.dev/pkg/telemetry"
	"signalbox.dev/services/gateway"
)

func main() {
	var cfg gateway.Config
	os.Exit(service.Command{
		Name:       gateway.Name,
		About:      "serves Signalbox' public API",
		Config:     &cfg,
		Telemetry:  func() telemetry.Config { return cfg.Telemetry },
		HealthAddr: func() string { return cfg.HTTPAddr },
		Run:        func(ctx context.Context, env service.Env) error { return run(ctx, cfg, env) },
	}.Main())
}

func run(ctx context.Context, cfg gateway.Config, env service.Env) error {
	signer, err := identity.OpenSigner(gateway.Name, cfg.ServiceKey.Reveal())
	if err != nil {
		return fmt.Errorf("SERVICE_KEY: %w", err)
	}
	m := gateway.Migrations()
	db, err := pg.Open(ctx, pg.Config{
		URL: cfg.DatabaseURL, Role: m.Role, Schema: m.Schema, MaxConns: cfg.DatabaseMax, Application: gateway.Name, Tracer: cfg.Telemetry.QueryTracer(),
	})
	if err != nil {
		return fmt.Errorf("DATABASE_URL: %w", err)
	}
	defer db.Close()
	b, err := bus.Connect(ctx, bus.Config{
		URL: cfg.NATSURL, Service: gateway.Name, User: cfg.NATSUser, Password: cfg.NATSPassword, Log: env.Log, Metrics: env.Registry,
	})
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
		Log: env.Log, DB: db, Bus: b, Signer: signer, HTTP: rpc.NewHTTPClient(), Public: public, Ops: ops,
		Registerer: env.Registry, Gatherer: env.Registry,
	})
	if err != nil {
		return err
	}
	env.Log.InfoContext(ctx, "serving", "address", public.Addr().String())
	return s.Run(ctx)
}
