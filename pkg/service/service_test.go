package service_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"signalbox.dev/pkg/httpserver"
	"signalbox.dev/pkg/process"
	"signalbox.dev/pkg/service"
	"signalbox.dev/pkg/telemetry"
)

type settings struct {
	Addr      string `env:"ADDR,required" doc:"Where to listen."`
	Telemetry telemetry.Config
}

// execute runs a command whose service serves /health until the test ends.
func execute(t *testing.T, run func(context.Context, service.Env) error, environ []string, args ...string) (stdout string, err error) {
	t.Helper()
	var (
		cfg      settings
		out, log strings.Builder
	)
	err = service.Command{
		Name: "thing", About: "does things", Config: &cfg, Telemetry: func() telemetry.Config { return cfg.Telemetry },
		HealthAddr: func() string { return cfg.Addr }, Run: run,
	}.Execute(t.Context(), args, environ, &out, &log)
	return out.String(), err
}

func TestCommandLine(t *testing.T) {
	t.Parallel()
	never := func(context.Context, service.Env) error { return errors.New("it ran") }
	out, err := execute(t, never, nil, "--help")
	if err != nil || !strings.Contains(out, "thing does things") || !strings.Contains(out, "ADDR") || !strings.Contains(out, "LOG_LEVEL") {
		t.Errorf("--help = %v\n%s", err, out)
	}
	if out, err := execute(t, never, nil, "--version"); err != nil || !strings.HasPrefix(out, "thing ") {
		t.Errorf("--version = %q, %v", out, err)
	}
	for _, args := range [][]string{{"serve"}, {"--help", "me"}} {
		if _, err := execute(t, never, nil, args...); !errors.Is(err, process.ErrUsage) {
			t.Errorf("%v = %v, want a usage error", args, err)
		}
	}
	if _, err := execute(t, never, nil); err == nil || !strings.Contains(err.Error(), "ADDR") {
		t.Errorf("without settings: %v, want an error that names ADDR", err)
	}
	if _, err := execute(t, never, []string{"ADDR=x", "LOG_FORMAT=xml"}); err == nil || !strings.Contains(err.Error(), "LOG_FORMAT") {
		t.Errorf("a bad log format: %v", err)
	}
}

func TestHealthcheck(t *testing.T) {
	t.Parallel()
	ready, stop := make(chan string), make(chan struct{})
	go func() {
		_, err := execute(t, func(ctx context.Context, env service.Env) error {
			l, err := httpserver.Listen(ctx, "127.0.0.1:0")
			if err != nil {
				return err
			}
			ctx, cancel := context.WithCancel(ctx)
			go func() { <-stop; cancel() }()
			ready <- l.Addr().String()
			mux := http.NewServeMux()
			httpserver.Ops{Gatherer: env.Registry}.Mount(mux)
			return httpserver.Serve(ctx, httpserver.Config{Listener: l, Handler: mux, Log: env.Log})
		}, []string{"ADDR=127.0.0.1:0"})
		if err != nil {
			t.Errorf("run = %v", err)
		}
		close(ready)
	}()
	addr := <-ready
	if _, err := execute(t, nil, []string{"ADDR=" + addr}, "--healthcheck"); err != nil {
		t.Errorf("--healthcheck of a running service = %v", err)
	}
	close(stop)
	<-ready
	if _, err := execute(t, nil, []string{"ADDR=" + addr}, "--healthcheck"); err == nil {
		t.Error("--healthcheck of nothing is well")
	}
}
