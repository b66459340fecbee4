// Command e2e-kube tests Signalbox on Kubernetes. It installs the Helm chart on the node of
// deploy/e2e/kube with two pods of each service, a NATS cluster of three and a PostgreSQL with a
// synchronous standby, runs the stories of package e2e, keeps conversations going (package kill) and
// documents edited (package editing), and restarts, kills and upgrades what runs there. It writes the
// figures as JSON and as a table.
//
// It has to run in the node's network, as `make e2e-kube` does:
//
//	deploy/e2e/kube/node.sh exec bin/e2e-kube -bin bin
//
// Who owns what: node.sh owns the node and everything on it, and `node.sh down` removes all of it,
// whatever this program leaves behind. Clients reach the gateway through its Service: the node has
// no ingress controller.
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
	"slices"
	"strings"
	"time"

	"signalbox.dev/pkg/process"

	"signalbox.dev/services/e2e/kill"
	"signalbox.dev/services/e2e/world"
)

func main() {
	os.Exit(process.Main(func(ctx context.Context) error { return run(ctx, os.Args[1:], os.Stdout) }))
}

var errBroken = errors.New("promises were broken; see above")

// suite is one run of the program.
type suite struct {
	*cluster
	programs string // folder of the programs
	dir      string // for evidence
	long     bool
	tls      bool
	from     string // checkout of the version that is installed first
	rate     float64
	talkers  int
	rnd      *rand.Rand
	out      io.Writer
	world    *world.World
	release  world.Installation
	results  []result
}

// result is the outcome of a scenario.
type result struct {
	Name    string       `json:"name"`
	Seconds float64      `json:"seconds"`
	Load    *kill.Report `json:"load,omitempty"`    // of scenarios under load
	Figures []figure     `json:"figures,omitempty"` // of others
	Broken  []string     `json:"broken,omitempty"`  // what did not hold
}

// figure is a measured value.
type figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
}

func run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) > 0 && args[0] == "dial" {
		return dial(ctx, args[1:], out)
	}
	s := &suite{out: out}
	flags := flag.NewFlagSet("e2e-kube", flag.ContinueOnError)
	flags.StringVar(&s.programs, "bin", "bin", "folder of the programs that `make build-e2e` built")
	flags.BoolVar(&s.long, "long", false, "with the flood, and pods killed for ten minutes instead of one")
	flags.BoolVar(&s.tls, "tls", false, "with TLS between the services, to NATS and to PostgreSQL, which refuse anything else")
	flags.StringVar(&s.from, "from", "", "checkout of an older version, whose chart is installed first and whose programs the images have that are tagged dev")
	flags.Float64Var(&s.rate, "rate", 4, "runs per second that are offered")
	flags.IntVar(&s.talkers, "talkers", 24, "conversations at a time")
	flags.StringVar(&s.dir, "logs", "bin/kube", "folder for evidence of broken promises")
	seed := flags.Uint64("seed", rand.Uint64N(1_000_000), "seed of all random choices")
	only := flags.String("only", "", "names of scenarios, separated by commas; all without it")
	results := flags.String("json", "", "file for the figures")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return process.Usage("%v", err)
	}
	s.rnd = rand.New(rand.NewPCG(*seed, 1))
	var err error
	if s.cluster, err = newCluster(out); err != nil {
		return err
	}
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return err
	}
	for _, sc := range scenarios {
		if !sc.always && (*only == "" && sc.long && !s.long || *only != "" && !slices.Contains(strings.Split(*only, ","), sc.name)) {
			continue
		}
		if s.from != "" && sc.current {
			continue
		}
		fmt.Fprintf(out, "== %s\n", sc.name)
		begun := time.Now()
		r := result{Name: sc.name}
		err := sc.run(ctx, s, &r)
		r.Seconds = time.Since(begun).Seconds()
		s.results = append(s.results, r)
		if err != nil {
			err = fmt.Errorf("%s: %w", sc.name, err)
			s.explain(context.WithoutCancel(ctx))
			return errors.Join(err, s.write(*results))
		}
	}
	if err := s.write(*results); err != nil {
		return err
	}
	for _, r := range s.results {
		if len(r.Broken) > 0 {
			return errBroken
		}
	}
	return nil
}

// load keeps conversations going, and documents edited, while cfg.Disturb breaks things, and checks
// each of them.
func (s *suite) load(ctx context.Context, r *result, cfg kill.Config) error {
	cfg.World, cfg.FarEnd, cfg.Dir, cfg.Seed, cfg.Talkers, cfg.Out = s.world, farEnd, s.dir, s.rnd.Uint64N(1_000_000), s.talkers, s.out
	cfg.Versions = s.from != ""
	people, err := s.edit(ctx)
	if err != nil {
		return err
	}
	defer people.connect()
	report, err := kill.Run(ctx, cfg)
	if err != nil {
		return err
	}
	r.Load = report
	report.Write(s.out)
	if !report.OK() {
		r.Broken = append(r.Broken, fmt.Sprintf("conversations: %v", report.Problems))
	}
	return s.settle(ctx, people, r)
}

// write prints the figures as a table, and writes them as JSON.
func (s *suite) write(file string) error {
	fmt.Fprintf(s.out, "\n| scenario | seconds | runs | broken | lost, doubled, gaps | pauses ≥ 0.4 s | p99 | longest |\n|---|---|---|---|---|---|---|---|\n")
	for _, r := range s.results {
		if r.Load == nil {
			continue
		}
		broken, problems := 0, 0
		for _, n := range r.Load.Kills {
			broken += n
		}
		for _, n := range r.Load.Problems {
			problems += n
		}
		fmt.Fprintf(s.out, "| %s | %.0f | %d | %d | %d | %d | %.1f s | %.1f s |\n", r.Name, r.Seconds, r.Load.Runs, broken, problems,
			r.Load.All.N, r.Load.All.P99.Seconds(), r.Load.All.Max.Seconds())
	}
	fmt.Fprintln(s.out)
	for _, r := range s.results {
		for _, f := range r.Figures {
			fmt.Fprintf(s.out, "%s: %s %.1f %s\n", r.Name, f.Name, f.Value, f.Unit)
		}
		for _, b := range r.Broken {
			fmt.Fprintf(s.out, "BROKEN %s: %s\n", r.Name, b)
		}
	}
	if file == "" {
		return nil
	}
	b, err := json.MarshalIndent(s.results, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Clean(file), append(b, '\n'), 0o600)
}
