// Command load measures Signalbox: it starts the services of this checkout as processes, puts load
// on them, and prints the results. `make bench-load` runs all measurements; BENCHMARKS.md has the
// results.
//
//	go run ./services/e2e/load ttft steps
//
// Each measurement starts its own world. Compared systems are measured alternately in the same run.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"signalbox.dev/pkg/subject"
	"signalbox.dev/services/e2e/stops"
	"signalbox.dev/services/e2e/world"
)

// measurement is one thing to measure.
type measurement struct {
	name, about string
	run         func(ctx context.Context, b *bench) error
}

var measurements = []measurement{
	{"ttft", "time to the first token that we add to the provider's own", ttft},
	{"live", "publish to socket, and what an event costs, beside nginx with nchan", live},
	{"idle", "memory of open streams", idle},
	{"replicas", "statements of idle services, by the number of their replicas (REPLICAS=\"1 8 50\")", replicas},
	{"scale", "what each unit of work costs, and whether that predicts other loads within 20 %", scale},
	{"wide", "what a step and a stream cost with four replicas of each service, beside one", wide},
	{"failover", "a gateway is killed, and stopped, under 2,000 streams", failover},
	{"steps", "durable steps per second", steps},
	{"stops", "from a stop to the closed connection of a running tool", stopsOfTools},
	{"tools", "a tool's call to its result, alone and with 1,000 others, and a person's approval", toolCalls},
	{"fairness", "time to the first token of one workspace while another one floods", fairness},
	{"documents", "live documents, beside the npm servers of y-websocket and Hocuspocus", documents},
}

// bench is the context of measurements.
type bench struct {
	programs string
	dir      string
	brief    bool // a tenth of the work
	out      io.Writer
	figures  []figure
}

// figure is one line of the result.
type figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
}

func main() {
	stops.Serve()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("load", flag.ContinueOnError)
	flags.SetOutput(stderr)
	asJSON := flags.Bool("json", false, "print the figures as JSON")
	brief := flags.Bool("brief", false, "do a tenth of the work: to see that it runs")
	flags.Usage = func() {
		fmt.Fprintln(stderr, "usage: load [flags] [measurement …]\n\nMeasurements (all when none is given):")
		for _, m := range measurements {
			fmt.Fprintf(stderr, "  %-10s %s\n", m.name, m.about)
		}
		fmt.Fprintln(stderr, "\nFlags:")
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	chosen, err := choose(flags.Args())
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "signalbox-load-")
	if err != nil {
		return err
	}
	defer quietly(func() error { return os.RemoveAll(dir) })
	b := &bench{programs: filepath.Join(dir, "bin"), dir: dir, brief: *brief, out: stdout}
	if *asJSON {
		b.out = stderr
	}
	if err := os.Mkdir(b.programs, 0o755); err != nil {
		return err
	}
	if err := world.Build(ctx, b.programs); err != nil {
		return err
	}
	for _, m := range chosen {
		fmt.Fprintf(b.out, "%s: %s\n", m.name, m.about)
		if err := m.run(ctx, b); err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
	}
	if *asJSON {
		return json.NewEncoder(stdout).Encode(b.figures)
	}
	return nil
}

func choose(names []string) ([]measurement, error) {
	if len(names) == 0 {
		return measurements, nil
	}
	var chosen []measurement
	for _, name := range names {
		i := slices.IndexFunc(measurements, func(m measurement) bool { return m.name == name })
		if i < 0 {
			return nil, fmt.Errorf("unknown measurement %q; see load --help", name)
		}
		chosen = append(chosen, measurements[i])
	}
	return chosen, nil
}

// world starts a cluster whose database and streams are on disk, as in production.
func (b *bench) world(ctx context.Context, o world.Options) (*world.World, error) {
	dir, err := os.MkdirTemp(b.dir, "w")
	if err != nil {
		return nil, err
	}
	// PostgreSQL may run as another user, who must be able to enter its folder.
	for _, d := range []string{b.dir, dir} {
		if err := os.Chmod(d, 0o711); err != nil {
			return nil, err
		}
	}
	o.Dir, o.Programs, o.Durable, o.LogLevel = dir, b.programs, true, "warn"
	if o.Env == nil {
		o.Env = unlimited
	}
	o.DataDir = filepath.Join(dir, "d")
	if err := os.Mkdir(o.DataDir, 0o711); err != nil {
		return nil, err
	}
	w, err := world.Start(ctx, o)
	if err != nil && w != nil {
		quietly(w.Close)
	}
	return w, err
}

// unlimited lifts the limits per member, workspace and runner, of which a load has few.
func unlimited(service string, _ int) []string {
	if service == subject.AgentRunner {
		return []string{"AGENT_RUNNER_SLOTS=4096", "AGENT_RUNNER_WORKSPACE_RUNS=4096", "AGENT_RUNNER_WORKSPACE_WAITING=100000"}
	}
	if service == subject.DocumentSync {
		return []string{"DOCUMENT_SYNC_CONNECTIONS=100000"}
	}
	if service != subject.Gateway {
		return nil
	}
	return []string{
		"GATEWAY_MEMBER_REQUESTS_PER_MINUTE=10000000", "GATEWAY_MEMBER_REQUESTS_BURST=1000000", "GATEWAY_MEMBER_STREAMS=100000",
		"GATEWAY_WORKSPACE_REQUESTS_PER_MINUTE=10000000", "GATEWAY_WORKSPACE_REQUESTS_BURST=1000000", "GATEWAY_WORKSPACE_STREAMS=100000",
		"GATEWAY_MEMBER_SOCKETS=100000", "GATEWAY_WORKSPACE_SOCKETS=100000", "GATEWAY_SOCKETS=100000",
	}
}

// times returns n, or a tenth of it in a brief run.
func (b *bench) times(n int) int {
	if b.brief {
		return max(n/10, 1)
	}
	return n
}

func (b *bench) figure(name string, value float64, unit string) {
	b.figures = append(b.figures, figure{name, value, unit})
	fmt.Fprintf(b.out, "  %-58s %12s %s\n", name, strings.TrimRight(strings.TrimRight(fmt.Sprintf("%.3f", value), "0"), "."), unit)
}

// quietly closes something and ignores the error.
func quietly(end func() error) { _ = end() }

// milliseconds returns a duration in milliseconds.
func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// sample is durations of one kind.
type sample []time.Duration

// quantile returns the duration below which a share of the sample lies.
func (s sample) quantile(q float64) time.Duration {
	sorted := slices.Sorted(slices.Values(s))
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}
