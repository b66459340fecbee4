package stops_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"signalbox.dev/services/e2e/stops"
	"signalbox.dev/services/e2e/world"
)

// TestStops stops runs while a tool of each kind runs. The far end's connection is closed long
// before the tool's deadline. `make bench-load ARGS=stops` measures how long it takes.
func TestStops(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*world.Timeout)
	defer cancel()
	programs := filepath.Join(t.TempDir(), "bin")
	if err := os.Mkdir(programs, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := world.Build(ctx, programs); err != nil {
		t.Fatal(err)
	}
	r, err := stops.Start(ctx, world.Options{Dir: t.ArtifactDir(), Programs: programs, Partitions: 2}, world.Start)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}()
	const bound = 10 * time.Second // tools have 30 s
	for _, k := range stops.Kinds {
		for range 2 {
			one, cancel := context.WithTimeout(ctx, bound)
			took, err := r.Stop(one, k)
			cancel()
			if err != nil {
				t.Fatalf("%s: %v", k.Name, err)
			}
			t.Logf("%s: %s from the stop to the closed connection", k.Name, took)
		}
	}
}
