// Far-end is the service that the tools of tool-executor-farends call: see package farend.
// It is configured by environment variables, which --help lists.
package main

import (
	"context"
	"os"

	"signalbox.dev/pkg/httpserver"
	"signalbox.dev/pkg/service"
	"signalbox.dev/pkg/telemetry"
	"signalbox.dev/services/e2e/farend"
)

type config struct {
	Addr     string `env:"FAR_END_ADDR" envDefault:"127.0.0.1:8090" doc:"Address to listen on."`
	BeforeMS int    `env:"FAR_END_BEFORE_MS" doc:"Milliseconds from a request to its effect."`
	AfterMS  int    `env:"FAR_END_AFTER_MS" doc:"Milliseconds from the effect to the answer."`

	Telemetry telemetry.Config
}

func main() {
	var cfg config
	os.Exit(service.Command{
		Name:       "far-end",
		About:      "counts what tools do to it",
		Config:     &cfg,
		Telemetry:  func() telemetry.Config { return cfg.Telemetry },
		HealthAddr: func() string { return cfg.Addr },
		Run:        func(ctx context.Context, env service.Env) error { return run(ctx, cfg, env) },
	}.Main())
}

func run(ctx context.Context, cfg config, env service.Env) error {
	listener, err := httpserver.Listen(ctx, cfg.Addr)
	if err != nil {
		return err
	}
	s := farend.New()
	s.Set(farend.Settings{BeforeMS: cfg.BeforeMS, AfterMS: cfg.AfterMS})
	stop := context.AfterFunc(ctx, s.Close)
	defer stop()
	env.Log.InfoContext(ctx, "serving", "address", listener.Addr().String())
	return httpserver.Serve(ctx, httpserver.Config{Listener: listener, Handler: s, Log: env.Log})
}
