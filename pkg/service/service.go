// Package service has what the services' main functions share: the command line (settings come
// from the environment), logs, traces, metrics and signals. A main function fills in a Command
// and exits with the result of Main.
package service

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/httpserver"
	"signalbox.dev/pkg/mtls"
	"signalbox.dev/pkg/process"
	"signalbox.dev/pkg/telemetry"
)

// Command describes a service's binary.
type Command struct {
	// Name is the service's, as in package subject.
	Name string
	// About is a sentence for --help, without the name: "keeps documents".
	About string
	// Config is a pointer to the settings, which are loaded before Run.
	Config any
	// Telemetry, HealthAddr and TLS return parts of the loaded settings: the telemetry, the
	// address that serves /health, and the certificates, with which it then uses TLS. TLS may be
	// nil.
	Telemetry  func() telemetry.Config
	HealthAddr func() string
	TLS        func() mtls.Config
	// Run runs the service and returns nil after a drain.
	Run func(ctx context.Context, env Env) error
}

// Env is what every service gets.
type Env struct {
	Log      *slog.Logger
	Registry *prometheus.Registry
}

// Main runs the command with the process's arguments and environment, and returns the exit
// code.
func (c Command) Main() int {
	return process.Main(func(ctx context.Context) error {
		return c.Execute(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr)
	})
}

const healthTimeout = 3 * time.Second

// Execute runs the command with the given arguments and environment.
func (c Command) Execute(ctx context.Context, args, environ []string, stdout, stderr io.Writer) error {
	option := ""
	switch {
	case len(args) == 1:
		option = args[0]
	case len(args) > 1:
		return process.Usage("%s takes its settings from the environment; --help lists them", c.Name)
	}
	switch option {
	case "--help", "-h":
		fmt.Fprintf(stdout, "%s %s.\n\nUsage: %s [--help | --version | --healthcheck]\n\nEnvironment:\n", c.Name, c.About, c.Name)
		return conf.WriteHelp(stdout, c.Config)
	case "--version":
		_, err := fmt.Fprintf(stdout, "%s %s\n", c.Name, process.Version())
		return err
	case "", "--healthcheck":
	default:
		return process.Usage("%s has no option %q; --help lists them", c.Name, option)
	}
	if err := conf.Load(c.Config, environ); err != nil {
		return err
	}
	if option == "--healthcheck" {
		ctx, cancel := context.WithTimeout(ctx, healthTimeout)
		defer cancel()
		return httpserver.CheckHealth(ctx, c.HealthAddr(), c.TLS != nil && c.TLS().Enabled())
	}
	return c.serve(ctx, stderr)
}

func (c Command) serve(ctx context.Context, stderr io.Writer) error {
	cfg := c.Telemetry()
	log, err := telemetry.NewLogger(stderr, cfg, c.Name)
	if err != nil {
		return err
	}
	stop, err := telemetry.StartTracing(ctx, cfg, c.Name, process.Version())
	if err != nil {
		return err
	}
	defer func() { _ = stop(context.WithoutCancel(ctx)) }() // the last spans may be lost
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	log.InfoContext(ctx, "starting", "version", process.Version())
	if err := c.Run(ctx, Env{Log: log, Registry: registry}); err != nil {
		return err
	}
	log.InfoContext(context.WithoutCancel(ctx), "stopped")
	return nil
}
