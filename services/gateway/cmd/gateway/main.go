// Gateway serves Signalbox' public API: see package gateway. It is configured by
// environment variables, which --help lists.
package main

import (
	"context"
	"fmt"
	"os"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/httpserver"
	"signalbox.dev/pkg/mtls"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/rpc"
	"signalbox.dev/pkg/service"
	"signalbox.dev/pkg/telemetry"
	"signalbox.dev/services/console"
	"signalbox.dev/services/gateway"
)

func main() {
	var cfg gateway.Config
	os.Exit(service.Command{
		Name:       gateway.Name,
		About:      "serves Signalbox' public API",
		Config:     &cfg,
		Telemetry:  func() telemetry.Config { return cfg.Telemetry },
		HealthAddr: func() string { return cfg.OpsAddr },
		TLS:        func() mtls.Config { return cfg.TLS },
		Run:        func(ctx context.Context, env service.Env) error { return run(ctx, cfg, env) },
	}.Main())
}

func run(ctx context.Context, cfg gateway.Config, env service.Env) error {
	m := gateway.Migrations()
	p, err := service.Open(ctx, env, service.Options{
		Name: gateway.Name, Addr: cfg.HTTPAddr, AddrSetting: "GATEWAY_HTTP_ADDR", ServiceKey: cfg.ServiceKey,
		TLS: cfg.TLS, Peers: cfg.Peers(), Public: true,
		Database: pg.Config{URL: cfg.DatabaseURL, Role: m.Role, Schema: m.Schema, MaxConns: cfg.DatabaseMax, Tracer: cfg.Telemetry.QueryTracer()},
		Bus:      bus.Config{URL: cfg.NATSURL, User: cfg.NATSUser, Password: cfg.NATSPassword, CAFile: cfg.NATSCA},
	})
	if err != nil {
		return err
	}
	defer p.Close()
	ops, err := httpserver.Listen(ctx, cfg.OpsAddr)
	if err != nil {
		return fmt.Errorf("GATEWAY_OPS_ADDR: %w", err)
	}
	pages, err := console.Handler()
	if err != nil {
		return err
	}
	s, err := gateway.New(cfg, gateway.Deps{
		Log: env.Log, DB: p.DB, Bus: p.Bus, Signer: p.Signer, HTTP: rpc.NewHTTPClient(p.Secure), Secure: p.Secure, Public: p.Listener, Ops: p.Secure.Listen(ops),
		Registerer: env.Registry, Gatherer: env.Registry, Console: pages,
	})
	if err != nil {
		return err
	}
	return s.Run(ctx)
}
