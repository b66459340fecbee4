// Command compose tests docker-compose.yml with a Docker engine: it builds the images, starts
// everything as a newcomer does, and runs the steps that --help lists. deploy/e2e/compose/run.sh
// provides the engine where none is running.
//
// The installation is Compose's project signalbox-e2e, beside which others may run. Its settings are
// what make-env.sh writes, and an override (override.go). The program reaches PostgreSQL at its
// container's address, so it has to run where the engine's networks are: not with Docker Desktop.
//
// If the program is killed, the next run removes the project before it starts.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"signalbox.dev/pkg/process"

	"signalbox.dev/services/e2e/world"
)

// step is one thing to test. Each begins with a running installation.
type step struct {
	name, about string
	run         func(ctx context.Context, r *rig) error
}

var steps = []step{
	{"stories", "the end-to-end stories", stories},
	{"kill", "containers are killed under load, and Docker restarts them: nothing is lost or doubled", kills},
	{"restart", "the same while containers are restarted one by one", restarts},
	{"upgrade", "agent-runner alone is replaced by another version, under load", upgrade},
	{"backup", "a backup is restored into an empty installation", backup},
	{"replicas", "two replicas of each service behind a balancer: stories on both gateways, and kills", replicas},
	{"monitoring", "Prometheus scrapes every service and has the alerts", monitoring},
	{"browser", "a tool opens a page in the browser's container", browser},
	{"release", "the images of a release (make dist) are loaded and started", release},
}

func main() {
	os.Exit(process.Main(func(ctx context.Context) error { return run(ctx, os.Args[1:], os.Stdout) }))
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("compose", flag.ContinueOnError)
	keep := flags.Bool("keep", false, "leave the installation running")
	numKills := flags.Int("kills", 12, "kills of each step that kills or restarts")
	rate := flags.Float64("rate", 4, "runs per second that are offered meanwhile")
	build := flags.Bool("build", true, "build the images; without, those that are there are used")
	images := flags.String("images", "", "archive of a release's images, for the step release")
	flags.Usage = func() {
		fmt.Fprintln(flags.Output(), "usage: compose [flags] [step …]\n\nSteps (without any, all but release):")
		for _, s := range steps {
			fmt.Fprintf(flags.Output(), "  %-11s %s\n", s.name, s.about)
		}
		fmt.Fprintln(flags.Output(), "\nFlags:")
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return process.Usage("%v", err)
	}
	chosen, err := choose(flags.Args(), *images != "")
	if err != nil {
		return err
	}
	root, err := world.Checkout()
	if err != nil {
		return err
	}
	r := &rig{
		root: root, dir: filepath.Join(root, "bin/compose"), out: out, began: time.Now(),
		kills: *numKills, rate: *rate, images: *images, build: *build, tag: "dev",
	}
	if err := r.docker(ctx, "info"); err != nil {
		return fmt.Errorf("no Docker engine answers (deploy/e2e/compose/run.sh starts one): %w", err)
	}
	err = r.install(ctx)
	for _, s := range chosen {
		if err != nil {
			break
		}
		r.say("── %s: %s", s.name, s.about)
		began := time.Now()
		if err = s.run(ctx, r); err != nil {
			err = fmt.Errorf("%s: %w", s.name, err)
			r.logs(ctx)
		} else {
			r.say("   ok after %.1f s", time.Since(began).Seconds())
		}
	}
	if *keep {
		return err
	}
	return errors.Join(err, r.down(context.WithoutCancel(ctx)))
}

func choose(names []string, released bool) ([]step, error) {
	var chosen []step
	for _, s := range steps {
		if slices.Contains(names, s.name) || len(names) == 0 && (s.name != "release" || released) {
			chosen = append(chosen, s)
		}
	}
	for _, name := range names {
		if !slices.ContainsFunc(steps, func(s step) bool { return s.name == name }) {
			return nil, process.Usage("there is no step %q: see --help", name)
		}
		if name == "release" && !released {
			return nil, process.Usage("the step release needs -images FILE, which `make dist` makes")
		}
	}
	return chosen, nil
}
