// Peers measures the egress of credential-broker beside Bifrost, a well-known
// gateway to model providers, in one run on one machine.
//
// # What runs
//
// Each of these is a process of its own:
//
//	upstream      the provider: prepared bytes at a given pace (upstream.go)
//	egress        the real credential-broker as it is deployed (broker.go): Postgres,
//	              signed contexts, audit, metrics, a pool of stored accounts chosen by
//	              score, and a request profile that puts a bearer token and other
//	              headers in and translates names of tools, both ways
//	bifrost       Bifrost's core behind net/http, as one embeds it, with a pool of as
//	              many keys (bifrost.go)
//	passthrough   the same program, asked to forward bytes as they are
//	bare          the least that a proxy over net/http does (bare.go)
//	peers         this one: the callers, and all clocks (load.go)
//
// All of them speak Anthropic's dialect on both sides. Bifrost runs without plugins: no
// authentication, no log, no metrics, no names to translate. That is less than the egress
// does, which checks a signature for each request. Every program runs as it comes: the egress on the one processor that it takes unless it
// is told otherwise, the others on as many as Go finds; --procs gives them another
// number.
//
// # What is measured
//
// The same requests go straight to the provider and through each of the others,
// in turns, in an order that changes from round to round, so that whatever else
// the machine does meets all of them alike. What a way adds is its figure less
// the straight way's (report.go). Three loads: one request at a time, many streams
// at a model's pace, and the same streams as fast as they come (measure.go).
// A stream that misses an event, its call of a tool under the name that the caller knows,
// or its end, fails the run.
//
// The programs end with this one: they read their standard input, which ends.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

// run is the program, or one of those that it starts.
func run(ctx context.Context, args []string, in io.Reader, out, errs io.Writer) error {
	if len(args) > 0 {
		switch args[0] {
		case "upstream":
			return serve(ctx, in, out, upstreamHandler())
		case "bifrost":
			return serveBifrost(ctx, args[1:], in, out)
		case "bare":
			return serveBare(ctx, args[1:], in, out)
		}
	}
	var p plan
	var asJSON bool
	var bin string
	f := flag.NewFlagSet("peers", flag.ContinueOnError)
	f.SetOutput(errs)
	f.BoolVar(&asJSON, "json", false, "print JSON instead of a table")
	f.StringVar(&bin, "bin", "", "folder with credential-broker and signalbox; built from the checkout when empty")
	f.IntVar(&p.Rounds, "rounds", 4, "rounds; each figure is the median of its rounds")
	f.IntVar(&p.Requests, "requests", 400, "requests of each round, one at a time, for the time to the first token")
	f.IntVar(&p.Streams, "streams", 32, "streams at once")
	f.IntVar(&p.Chunks, "chunks", 200, "chunks of each stream")
	f.DurationVar(&p.Pace, "pace", 5*time.Millisecond, "pause between two chunks of a stream")
	f.IntVar(&p.Flood, "flood", 1000, "chunks of each stream when they come as fast as they can")
	f.IntVar(&p.Body, "body", 4<<10, "bytes of text in a request")
	f.IntVar(&p.Procs, "procs", 0, "processors for Bifrost and the bare proxy; 0 leaves it to Go")
	limit := f.Duration("max", time.Minute, "longest time to measure")
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("%q is not understood: see --help", f.Arg(0))
	}
	if err := p.check(); err != nil {
		return err
	}
	ways, err := start(ctx, bin, p, errs)
	defer ways.stop()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, *limit, errors.New("the time is up: ask for fewer rounds, or give it --max"))
	defer cancel()
	r, err := measure(ctx, p, ways)
	if err != nil {
		return err
	}
	if asJSON {
		return r.writeJSON(out)
	}
	return r.writeTable(out)
}
