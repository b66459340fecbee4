// Credential-broker holds every secret and forwards requests to providers: see
// package credentialbroker. It is configured by environment variables, which
// --help lists.
package main

import (
	"context"
	"io"
	"log"
	"os"
	"runtime"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/mtls"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/service"
	"signalbox.dev/pkg/subject"
	"signalbox.dev/pkg/telemetry"
	credentialbroker "signalbox.dev/services/credential-broker"
	_ "signalbox.dev/services/credential-broker/kms" // the key services that may hold the key
)

func main() {
	var cfg credentialbroker.Config
	// Everything here logs with slog. Only net/http uses the standard logger, also for
	// unexpected bytes from a provider, which may contain a secret.
	log.SetOutput(io.Discard)
	os.Exit(service.Command{
		Name:       subject.CredentialBroker,
		About:      "holds every secret and forwards requests to providers",
		Config:     &cfg,
		Telemetry:  func() telemetry.Config { return cfg.Telemetry },
		HealthAddr: func() string { return cfg.Addr },
		TLS:        func() mtls.Config { return cfg.TLS },
		Run:        func(ctx context.Context, env service.Env) error { return run(ctx, cfg, env) },
	}.Main())
}

func run(ctx context.Context, cfg credentialbroker.Config, env service.Env) error {
	if err := protectMemory(); err != nil {
		return err
	}
	// Handling a chunk takes less time than waking another processor for it, as Go would.
	if cfg.Procs > 0 && os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(cfg.Procs)
	}
	o := service.Options{Name: subject.CredentialBroker, Addr: cfg.Addr, AddrSetting: "CREDENTIAL_BROKER_ADDR", TrustedKeys: cfg.TrustedKeys, TLS: cfg.TLS}
	if cfg.AccountsFile == "" {
		o.Database = pg.Config{
			URL: cfg.DatabaseURL, Role: credentialbroker.Role, Schema: credentialbroker.Schema, MaxConns: cfg.DatabaseConns,
			Tracer: cfg.Telemetry.QueryTracer(),
		}
		o.Bus = bus.Config{URL: cfg.NATSURL, User: cfg.NATSUser, Password: cfg.NATSPassword, CAFile: cfg.NATSCA}
	}
	p, err := service.Open(ctx, env, o)
	if err != nil {
		return err
	}
	defer p.Close()
	s, err := credentialbroker.New(cfg, credentialbroker.Deps{
		Log: env.Log, Verifier: p.Verifier, DB: p.DB, Bus: p.Bus, Listener: p.Listener, Registerer: env.Registry, Gatherer: env.Registry,
	})
	if err != nil {
		return err
	}
	return s.Run(ctx)
}
