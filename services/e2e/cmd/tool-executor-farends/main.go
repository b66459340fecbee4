// Tool-executor-farends is tool-executor with tools that call a far end that counts effects
// (package farend), for each kind of effect: see tools.go. The end-to-end tests kill it. It
// is configured by environment variables, which --help lists.
package main

import (
	"context"
	"net/http"
	"os"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/mtls"
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
		TLS:        func() mtls.Config { return cfg.TLS },
		Run:        func(ctx context.Context, env service.Env) error { return run(ctx, cfg, env) },
	}.Main())
}

func run(ctx context.Context, cfg config, env service.Env) error {
	p, err := service.Open(ctx, env, service.Options{
		Name: subject.ToolExecutor, Addr: cfg.Addr, AddrSetting: "TOOL_EXECUTOR_ADDR", ServiceKey: cfg.ServiceKey, TrustedKeys: cfg.TrustedKeys,
		TLS: cfg.TLS, Peers: cfg.Peers(),
		Database: pg.Config{URL: cfg.DatabaseURL, DirectURL: cfg.DatabaseDirect, Role: toolexecutor.Role, Schema: toolexecutor.Schema, MaxConns: cfg.DatabaseConns, Tracer: cfg.Telemetry.QueryTracer()},
		Bus:      bus.Config{URL: cfg.NATSURL, User: cfg.NATSUser, Password: cfg.NATSPassword, CAFile: cfg.NATSCA},
	})
	if err != nil {
		return err
	}
	defer p.Close()
	client := rpc.NewHTTPClient(p.Secure)
	defer client.CloseIdleConnections()
	far := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: cfg.Slots}}
	defer far.CloseIdleConnections()
	s, err := toolexecutor.New(cfg.Config, toolexecutor.Deps{
		Log: env.Log, DB: p.DB, Bus: p.Bus, Listener: p.Listener, Verifier: p.Verifier, Signer: p.Signer, HTTP: client,
		Tools: tools(farend.NewClient(cfg.FarEndURL, far)), Registerer: env.Registry, Gatherer: env.Registry,
	})
	if err != nil {
		return err
	}
	return s.Run(ctx)
}
