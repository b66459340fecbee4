package main

import (
	"context"
	"time"

	"signalbox.dev/services/e2e/flood"
	"signalbox.dev/services/e2e/world"
)

// fairness measures the time to the first token of one workspace while another one has twenty times
// as many runs as there are slots.
func fairness(ctx context.Context, b *bench) error {
	load := flood.Load{Slots: 16, Times: 20, Asks: 18, First: time.Millisecond, Rest: 300 * time.Millisecond}
	w, err := b.world(ctx, world.Options{Replicas: 1, Env: load.Env})
	if err != nil {
		return err
	}
	defer quietly(w.Close)
	r, err := flood.Measure(ctx, w, load)
	if err != nil {
		return err
	}
	idle, flooded := flood.P95(r.Idle), flood.P95(r.Flooded)
	b.figure("time to first token on the idle system, p95", milliseconds(idle), "ms")
	b.figure("beside a flood of 20 times what fits, p95", milliseconds(flooded), "ms")
	b.figure("ratio", float64(flooded)/float64(idle), "x")
	b.figure("runs of the flood left at the end", float64(r.Left), "runs")
	return nil
}
