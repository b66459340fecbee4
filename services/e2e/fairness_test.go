package e2e_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"signalbox.dev/services/e2e/flood"
	"signalbox.dev/services/e2e/world"
)

// fewSlots is a world whose only runner has few slots.
var (
	flooding = flood.Load{Slots: 4, Times: 20, Asks: 8, First: 300 * time.Millisecond, Rest: 100 * time.Millisecond}
	fewSlots = &sharedWorld{name: "few-slots", start: func(ctx context.Context, o world.Options) (*world.World, error) {
		o.Replicas, o.Partitions, o.Env = 1, 1, flooding.Env
		return world.Start(ctx, o)
	}}
)

// TestFairness is the small version of `make bench-load ARGS=fairness`: while one workspace
// floods the system, another one's messages are answered about as fast as on an idle system. In
// order of arrival, its first message would wait for eight seconds.
func TestFairness(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*timeout)
	defer cancel()
	r, err := flood.Measure(ctx, fewSlots.up(t).World, flooding)
	if err != nil {
		t.Fatal(err)
	}
	idle, flooded := median(r.Idle), median(r.Flooded)
	t.Logf("time to first token, median: %s on the idle system, %s beside the flood, of which %d runs were left", idle, flooded, r.Left)
	if flooded > 3*idle {
		t.Errorf("during another workspace's flood the first token took %s, on the idle system %s, want at most three times that", flooded, idle)
	}
	if r.Left == 0 {
		t.Error("the flood ended before the last message: nothing was measured")
	}
}

// median is the measure here: the slowest of a few messages says more of the tests that run at the same time.
func median(of []time.Duration) time.Duration { return slices.Sorted(slices.Values(of))[len(of)/2] }
