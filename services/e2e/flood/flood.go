// Package flood measures how a workspace is affected by another one that floods the runners: the
// time to the first token of its messages, on the idle system and during the flood. Both are
// measured in one run, so that their ratio is comparable between machines.
package flood

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"signalbox.dev/pkg/subject"
	"signalbox.dev/services/e2e/world"
)

// Load configures a measurement.
type Load struct {
	Slots int // of the world's only runner: see Env
	Times int // the size of the flood as a multiple of the slots
	Asks  int // messages of the other workspace, one after the other, without and with the flood
	// First is the time until the provider's first word, Rest the time from there to its last.
	First, Rest time.Duration
}

// Result has the time to the first token of each ask.
type Result struct {
	Idle, Flooded []time.Duration
	// Left is the number of the flood's unfinished runs when the last ask got its first token.
	Left int
}

// P95 returns the 95th percentile of a sample.
func P95(sample []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(sample))
	return sorted[min(len(sorted)*95/100, len(sorted)-1)]
}

// Env returns a part's environment for the load: few slots, and a queue that is large enough for
// the flood. One workspace may have three quarters of the slots, as by default.
func (l Load) Env(service string, _ int) []string {
	switch service {
	case subject.AgentRunner:
		return []string{
			"AGENT_RUNNER_SLOTS=" + strconv.Itoa(l.Slots), "AGENT_RUNNER_WORKSPACE_RUNS=" + strconv.Itoa(l.Slots*3/4),
			"AGENT_RUNNER_WORKSPACE_WAITING=" + strconv.Itoa(l.Times*l.Slots),
		}
	case subject.Gateway:
		return []string{"GATEWAY_MEMBER_REQUESTS_BURST=100000", "GATEWAY_MEMBER_REQUESTS_PER_MINUTE=1000000"}
	default:
		return nil
	}
}

// Measure puts the load on a world that was started with l.Env.
func Measure(ctx context.Context, w *world.World, l Load) (*Result, error) {
	script := fmt.Sprintf("rules:\n  - then:\n      - wait: %s\n      - say: \"first\"\n      - wait: %s\n      - say: \"last\"\n", l.First, l.Rest)
	if err := w.PutScript(ctx, "flood", script); err != nil {
		return nil, err
	}
	members := make([]world.Member, 2)
	for i := range members {
		var err error
		if members[i], err = w.NewMember(ctx, "", "owner"); err != nil {
			return nil, err
		}
	}
	many, one := w.Client(0, members[0]), w.Client(0, members[1])
	var r Result
	var err error
	if _, err = asks(ctx, one, 3); err != nil { // warm up
		return nil, err
	}
	if r.Idle, err = asks(ctx, one, l.Asks); err != nil {
		return nil, err
	}
	runs := make([]string, l.Times*l.Slots)
	var submitting errgroup.Group
	submitting.SetLimit(8)
	for i := range runs {
		submitting.Go(func() (err error) {
			runs[i], err = submit(ctx, many)
			return err
		})
	}
	if err = submitting.Wait(); err != nil {
		return nil, fmt.Errorf("flood: %w", err)
	}
	var refilling errgroup.Group
	until, stop := context.WithCancel(ctx)
	defer stop()
	refilling.Go(func() error { return refill(until, many, runs) })
	r.Flooded, err = asks(ctx, one, l.Asks)
	stop()
	if err = errors.Join(err, refilling.Wait()); err != nil {
		return nil, err
	}
	for _, id := range runs {
		run, err := many.Run(ctx, id)
		if err != nil {
			return nil, err
		}
		if open(run) {
			r.Left++
		}
	}
	return &r, nil
}

// submit starts a run of the flood.
func submit(ctx context.Context, c world.Client) (string, error) {
	session, err := c.NewSession(ctx, "sim/flood")
	if err != nil {
		return "", err
	}
	run, err := c.Submit(ctx, session, world.Sending{Content: "flood"})
	return run.ID, err
}

// refill replaces ended runs in the order of their starts until ctx is done, so that the flood
// outlasts the asks and does not grow.
func refill(ctx context.Context, c world.Client, runs []string) error {
	for i := 0; ; {
		run, err := c.Run(ctx, runs[i])
		switch {
		case err != nil:
		case open(run):
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
		default:
			var next string
			if next, err = submit(ctx, c); err == nil {
				runs[i] = next
				i = (i + 1) % len(runs)
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("refill the flood: %w", err)
		}
	}
}

func open(r world.Run) bool { return r.State == "queued" || r.State == "running" }

// asks sends messages one after the other, each in a new session, and returns the time to the first
// token of each.
func asks(ctx context.Context, c world.Client, n int) ([]time.Duration, error) {
	var out []time.Duration
	for range n {
		session, err := c.NewSession(ctx, "sim/flood")
		if err != nil {
			return nil, err
		}
		first, err := ask(ctx, c, session)
		if err != nil {
			return nil, err
		}
		out = append(out, first)
	}
	return out, nil
}

func ask(ctx context.Context, c world.Client, session string) (first time.Duration, err error) {
	begin := time.Now()
	stream, err := c.Send(ctx, session, world.Sending{Content: "hello"})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, stream.Close()) }()
	for {
		e, err := stream.Next()
		switch {
		case err != nil:
			return 0, fmt.Errorf("the stream ended early: %w", err)
		case e.Type == "text-delta" && first == 0:
			first = time.Since(begin)
		case e.Type == "error":
			return 0, fmt.Errorf("the run failed: %s", e.Data)
		case e.Type == "done":
			return first, nil
		}
	}
}
