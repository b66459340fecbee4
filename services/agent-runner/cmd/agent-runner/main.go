// Agent-runner answers user messages: see package agentrunner. It is configured
// by environment variables, which --help lists.
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
	agentrunner "signalbox.dev/services/agent-runner"
)

func main() {
	var cfg agentrunner.Config
	os.Exit(service.Command{
		Name:       subject.AgentRunner,
		About:      "keeps conversations and answers them: it runs the agent loop",
		Config:     &cfg,
		Telemetry:  func() telemetry.Config { return cfg.Telemetry },
		HealthAddr: func() string { return cfg.Addr },
		TLS:        func() mtls.Config { return cfg.TLS },
		Run:        func(ctx context.Context, env service.Env) error { return run(ctx, cfg, env) },
	}.Main())
}

func run(ctx context.Context, cfg agentrunner.Config, env service.Env) error {
	p, err := service.Open(ctx, env, service.Options{
		Name: subject.AgentRunner, Addr: cfg.Addr, AddrSetting: "AGENT_RUNNER_ADDR", ServiceKey: cfg.ServiceKey, TrustedKeys: cfg.TrustedKeys,
		TLS: cfg.TLS, Peers: cfg.Peers(),
		Database: pg.Config{URL: cfg.DatabaseURL, DirectURL: cfg.DatabaseDirect, Role: agentrunner.Role, Schema: agentrunner.Schema, MaxConns: cfg.DatabaseConns, Tracer: cfg.Telemetry.QueryTracer()},
		Bus:      bus.Config{URL: cfg.NATSURL, User: cfg.NATSUser, Password: cfg.NATSPassword, CAFile: cfg.NATSCA},
	})
	if err != nil {
		return err
	}
	defer p.Close()
	s, err := agentrunner.New(cfg, agentrunner.Deps{
		Log: env.Log, DB: p.DB, Bus: p.Bus, Listener: p.Listener, Verifier: p.Verifier, Signer: p.Signer, Secure: p.Secure, Registerer: env.Registry, Gatherer: env.Registry,
	})
	if err != nil {
		return err
	}
	return s.Run(ctx)
}
