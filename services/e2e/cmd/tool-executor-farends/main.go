// Tool-executor-farends is tool-executor with tools that act upon a far end which
// counts (package farend), one for each effect: see tools.go. It is what the
// end-to-end tests kill. It is configured by environment variables, which --help
// lists.
package main

import (
	"context"
	"fmt"
	"net/http"
	"os"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/httpserver"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/rpc"
	"signalbox.dev/pkg/service"
	"signalbox.dev/pkg/subject"
	"signalbox.dev/pkg/telemetry"
	"signalbox.dev/services/e2e/farend"
	toolexecutor "signalbox.dev/services/tool-executor"
)

type config struct {
	toolexecutor.Config

	FarEndURL string `env:"FAR_END_URL,required" doc:"Where the far end takes calls."`
}

func main() {
	var cfg config
	os.Exit(service.Command{
		Name:       subject.ToolExecutor,
		About:      "runs the tools that models call, and some that tests count",
		Config:     &cfg,
		Telemetry:  func() telemetry.Config { return cfg.Telemetry },
		HealthAddr: func() string { return cfg.Addr },
		Run:        func(ctx context.Context, env service.Env) error { return run(ctx, cfg, env) },
	}.Main())
}

func run(ctx context.Context, cfg config, env service.Env) error {
	signer, err := identity.OpenSigner(subject.ToolExecutor, cfg.ServiceKey.Reveal())
	if err != nil {
		return fmt.Errorf("SERVICE_KEY: %w", err)
	}
	verifier, err := identity.OpenVerifier(subject.ToolExecutor, cfg.TrustedKeys)
	if err != nil {
		return fmt.Errorf("TRUSTED_KEYS: %w", err)
	}
	db, err := pg.Open(ctx, pg.Config{
		URL: cfg.DatabaseURL, Role: toolexecutor.Role, Schema: toolexecutor.Schema, MaxConns: cfg.DatabaseConns,
		Application: subject.ToolExecutor, Tracer: cfg.Telemetry.QueryTracer(),
	})
	if err != nil {
		return fmt.Errorf("DATABASE_URL: %w", err)
	}
	defer db.Close()
	b, err := bus.Connect(ctx, bus.Config{
		URL: cfg.NATSURL, Service: subject.ToolExecutor, User: cfg.NATSUser, Password: cfg.NATSPassword, Log: env.Log, Metrics: env.Registry,
	})
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
	far := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: cfg.Slots}}
	defer far.CloseIdleConnections()
	s, err := toolexecutor.New(cfg.Config, toolexecutor.Deps{
		Log: env.Log, DB: db, Bus: b, Listener: listener, Verifier: verifier, Signer: signer, HTTP: client,
		Tools: tools(farend.NewClient(cfg.FarEndURL, far)), Registerer: env.Registry, Gatherer: env.Registry,
	})
	if err != nil {
		return err
	}
	env.Log.InfoContext(ctx, "serving", "address", listener.Addr().String())
	return s.Run(ctx)
}
