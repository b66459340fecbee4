// Document-sync stores documents and syncs their editors: see package documentsync. It is
// configured by environment variables, which --help lists.
package main

import (
	"context"
	"os"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/mtls"
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
		TLS:        func() mtls.Config { return cfg.TLS },
		Run:        func(ctx context.Context, env service.Env) error { return run(ctx, cfg, env) },
	}.Main())
}

func run(ctx context.Context, cfg documentsync.Config, env service.Env) error {
	p, err := service.Open(ctx, env, service.Options{
		Name: subject.DocumentSync, Addr: cfg.Addr, AddrSetting: "DOCUMENT_SYNC_ADDR", TrustedKeys: cfg.TrustedKeys, TLS: cfg.TLS,
		Database: pg.Config{URL: cfg.DatabaseURL, Role: documentsync.Role, Schema: documentsync.Schema, MaxConns: cfg.DatabaseConns, Tracer: cfg.Telemetry.QueryTracer()},
		Bus:      bus.Config{URL: cfg.NATSURL, User: cfg.NATSUser, Password: cfg.NATSPassword, CAFile: cfg.NATSCA},
	})
	if err != nil {
		return err
	}
	defer p.Close()
	s, err := documentsync.New(ctx, cfg, documentsync.Deps{
		Log: env.Log, DB: p.DB, Bus: p.Bus, Listener: p.Listener, Verifier: p.Verifier, Registerer: env.Registry, Gatherer: env.Registry,
	})
	if err != nil {
		return err
	}
	return s.Run(ctx)
}
