package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"signalbox.dev/services/e2e/world"
)

// busy calls a tool in each step except the last.
const busy = `
rules:
  - when: {turn: 20}
    then:
      - say: "done"
  - then:
      - call: {tool: get_current_datetime, args: {}}
`

const stepsOfBusy = 20

// steps measures the number of durable steps committed per second: a model call, its tool call
// through the executor and both commits, with all syncs to disk.
func steps(ctx context.Context, b *bench) error {
	w, err := b.world(ctx, world.Options{Replicas: 1})
	if err != nil {
		return err
	}
	defer quietly(w.Close)
	if err := w.PutScript(ctx, "busy", busy); err != nil {
		return err
	}
	members, err := w.NewMembers(ctx, "", "owner", 32)
	if err != nil {
		return err
	}
	runRound := func(runs int) (took time.Duration, err error) {
		var next atomic.Int64
		var group sync.WaitGroup
		failed := make(chan error, len(members))
		begin := time.Now()
		for _, m := range members {
			group.Go(func() {
				for next.Add(1) <= int64(runs) {
					if err := finishRun(ctx, w.Client(0, m)); err != nil {
						failed <- err
						return
					}
				}
			})
		}
		group.Wait()
		close(failed)
		return time.Since(begin), <-failed
	}
	if _, err := runRound(len(members)); err != nil {
		return err
	}
	runs := b.times(1000)
	before := usage(w)
	took, err := runRound(runs)
	if err != nil {
		return err
	}
	count := float64(runs * stepsOfBusy)
	b.figure("durable steps per second, all services on this machine", count/took.Seconds(), "1/s")
	b.costs("processor time per step", before, usage(w), count)
	return nil
}

// costs prints the processor time of each part of a world, per unit of work.
func (b *bench) costs(name string, before, after map[string]time.Duration, units float64) {
	var all float64
	parts := []string{world.PostgresName, world.NATSName, world.SimulatorName}
	for _, service := range world.Services() {
		parts = append(parts, service+"-1")
	}
	for _, part := range parts {
		cost := milliseconds(after[part]-before[part]) * 1000 / units
		b.figure(fmt.Sprintf("%s, %s", name, part), cost, "µs")
		if part != world.SimulatorName {
			all += cost
		}
	}
	b.figure(name+", all but the simulated provider", all, "µs")
}

// finishRun creates a session, sends a message and reads until the run has ended.
func finishRun(ctx context.Context, c world.Client) error {
	session, err := c.NewSession(ctx, "sim/busy")
	if err != nil {
		return err
	}
	stream, err := c.Send(ctx, session, world.Sending{Content: "go"})
	if err != nil {
		return err
	}
	defer quietly(stream.Close)
	var kinds []string
	for {
		e, err := stream.Next()
		if err != nil {
			return fmt.Errorf("the run did not end: %w", err)
		}
		switch e.Type {
		case "error":
			return fmt.Errorf("the run failed: %s", e.Data)
		case "done":
			if n := len(slices.DeleteFunc(kinds, func(k string) bool { return k != "step-complete" })); n != stepsOfBusy {
				return fmt.Errorf("the run had %d steps, want %d", n, stepsOfBusy)
			}
			return nil
		}
		kinds = append(kinds, e.Type)
	}
}
