// Command simulator serves the simulated model provider.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"time"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/httpserver"
	"signalbox.dev/pkg/process"
	"signalbox.dev/pkg/telemetry"
	"signalbox.dev/services/simulator"
)

const (
	drain         = 5 * time.Second
	healthTimeout = 3 * time.Second
)

type settings struct {
	simulator.Config

	LogLevel  slog.Level `env:"LOG_LEVEL" envDefault:"info" doc:"Lowest level that is logged: debug, info, warn or error."`
	LogFormat string     `env:"LOG_FORMAT" envDefault:"json" doc:"Format of log lines: json or text."`

	healthcheck bool // check the health of the simulator at Addr instead of running one
}

func main() {
	os.Exit(process.Main(func(ctx context.Context) error {
		return run(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr)
	}))
}

func run(ctx context.Context, args, environ []string, stdout, stderr io.Writer) error {
	cfg, err := load(args, environ, stdout)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	if cfg.healthcheck {
		ctx, cancel := context.WithTimeout(ctx, healthTimeout)
		defer cancel()
		return httpserver.CheckHealth(ctx, cfg.Addr, false)
	}
	log, err := telemetry.NewLogger(stderr, telemetry.Config{LogLevel: cfg.LogLevel, LogFormat: cfg.LogFormat}, "simulator")
	if err != nil {
		return err
	}
	sim, err := simulator.New(cfg.Config, simulator.Deps{Log: log})
	if err != nil {
		return err
	}
	listener, err := httpserver.Listen(ctx, cfg.Addr)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, sim.Close)
	defer stop()
	mux := http.NewServeMux()
	httpserver.Ops{}.Mount(mux)
	mux.Handle("/", sim)
	log.InfoContext(ctx, "simulated provider listens", "address", listener.Addr().String(), "pace", cfg.Pace)
	return httpserver.Serve(ctx, httpserver.Config{Listener: listener, Handler: mux, Log: log, Drain: drain})
}

// load reads the settings from the environment and from flags, which override it.
func load(args, environ []string, stdout io.Writer) (settings, error) {
	var cfg settings
	if err := conf.Load(&cfg, environ); err != nil {
		return cfg, err
	}
	flags := flag.NewFlagSet("simulator", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // errors are returned, and help is printed below
	flags.StringVar(&cfg.Addr, "addr", cfg.Addr, "")
	flags.StringVar(&cfg.Script, "script", cfg.Script, "")
	flags.Float64Var(&cfg.Pace, "pace", cfg.Pace, "")
	flags.BoolVar(&cfg.Services, "services", cfg.Services, "")
	flags.BoolVar(&cfg.healthcheck, "healthcheck", false, "")
	version := flags.Bool("version", false, "")
	err := flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return cfg, errors.Join(err, help(stdout))
	}
	if err != nil {
		return cfg, process.Usage("%v (see simulator --help)", err)
	}
	if *version {
		_, err := fmt.Fprintln(stdout, "simulator", process.Version())
		return cfg, cmp.Or(err, flag.ErrHelp)
	}
	if flags.NArg() > 0 {
		return cfg, process.Usage("unexpected argument %q (see simulator --help)", flags.Arg(0))
	}
	return cfg, cfg.Validate()
}

func help(w io.Writer) error {
	_, err := fmt.Fprint(w, `simulator serves the simulated model provider: the Anthropic Messages API under
/anthropic, OpenAI Chat Completions under /openai, OpenRouter under
/openrouter/api, answered from scripts. The model id sim/<name> plays the script
of that name, every other id the default one.

Usage: simulator [--addr host:port] [--script file-or-directory] [--pace factor] [--services]
       simulator --healthcheck [--addr host:port]
       simulator --version

--services adds fakes of Google Calendar, Google Tasks, Notion and GitHub.
--healthcheck asks the simulator that runs at the address for its health.

Flags take precedence over the environment:
  --addr    SIMULATOR_ADDR
  --script  SIMULATOR_SCRIPT
  --pace    SIMULATOR_PACE
  --services  SIMULATOR_SERVICES

Environment:
`)
	if err != nil {
		return err
	}
	return conf.WriteHelp(w, new(settings))
}
