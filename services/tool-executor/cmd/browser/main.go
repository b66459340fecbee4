// Browser shows web pages to the models of tool-executor's sessions: see package toolexecutor. It
// is configured by environment variables, which --help lists.
package main

import (
	"context"
	"os"

	"signalbox.dev/pkg/mtls"
	"signalbox.dev/pkg/service"
	"signalbox.dev/pkg/telemetry"
	toolexecutor "signalbox.dev/services/tool-executor"
)

func main() {
	toolexecutor.BrowserRelay()
	var cfg toolexecutor.BrowserConfig
	os.Exit(service.Command{
		Name:       toolexecutor.BrowserName,
		About:      "shows web pages to models, in Chromium",
		Config:     &cfg,
		Telemetry:  func() telemetry.Config { return cfg.Telemetry },
		HealthAddr: func() string { return cfg.Addr },
		TLS:        func() mtls.Config { return cfg.TLS },
		Run:        func(ctx context.Context, env service.Env) error { return run(ctx, cfg, env) },
	}.Main())
}

func run(ctx context.Context, cfg toolexecutor.BrowserConfig, env service.Env) error {
	p, err := service.Open(ctx, env, service.Options{
		Name: toolexecutor.BrowserName, Addr: cfg.Addr, AddrSetting: "BROWSER_ADDR", TrustedKeys: cfg.TrustedKeys, TLS: cfg.TLS,
	})
	if err != nil {
		return err
	}
	defer p.Close()
	s, err := toolexecutor.NewBrowser(cfg, toolexecutor.BrowserDeps{Log: env.Log, Listener: p.Listener, Verifier: p.Verifier, Gatherer: env.Registry})
	if err != nil {
		return err
	}
	return s.Run(ctx)
}
