// Command e2e-kill kills Signalbox's processes under load for a given number of kills, and counts
// the losses: see package kill.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	"signalbox.dev/pkg/process"

	"signalbox.dev/services/e2e/kill"
	"signalbox.dev/services/e2e/world"
)

func main() {
	os.Exit(process.Main(func(ctx context.Context) error { return run(ctx, os.Args[1:], os.Stdout) }))
}

var errBroken = errors.New("promises were broken; see above")

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	flags := flag.NewFlagSet("e2e-kill", flag.ContinueOnError)
	cfg := kill.Config{Out: out}
	flags.Uint64Var(&cfg.Seed, "seed", rand.Uint64N(1_000_000), "seed of all random choices")
	flags.IntVar(&cfg.Kills, "kills", 140, "how many kills")
	flags.Float64Var(&cfg.Rate, "rate", 50, "runs per second that are offered")
	flags.IntVar(&cfg.Talkers, "talkers", 120, "conversations at a time")
	flags.IntVar(&cfg.Restarts, "restarts", 0, "how often to stop and start each replica of each service, one after the other, instead of kills")
	flags.DurationVar(&cfg.Least, "least", 0, "shortest time between two kills (default 1s)")
	flags.DurationVar(&cfg.Most, "most", 0, "longest time between two kills (default 2s)")
	only := flags.String("only", "", "prefixes of the parts to kill, separated by commas: gateway,postgres,agent-runner-1")
	logs := flags.String("logs", "", "folder for the logs of all parts; without it they are removed")
	results := flags.String("json", "", "file for the report as JSON")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return process.Usage("%v", err)
	}
	if *only != "" {
		cfg.Only = strings.Split(*only, ",")
	}
	tmp, err := os.MkdirTemp("", "signalbox-kill-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	cfg.Programs, cfg.Dir = filepath.Join(tmp, "bin"), *logs
	if cfg.Dir == "" {
		cfg.Dir = filepath.Join(tmp, "logs")
	}
	if err := errors.Join(os.MkdirAll(cfg.Dir, 0o755), os.MkdirAll(cfg.Programs, 0o755), world.Build(ctx, cfg.Programs)); err != nil {
		return err
	}
	report, err := kill.Run(ctx, cfg)
	if report == nil {
		return err
	}
	report.Write(out)
	if *results != "" {
		b, jsonErr := json.MarshalIndent(report, "", "  ")
		err = errors.Join(err, jsonErr, os.WriteFile(*results, append(b, '\n'), 0o600))
	}
	if !report.OK() {
		err = errors.Join(err, fmt.Errorf("seed %d: %w", report.Seed, errBroken))
	}
	return err
}
