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

func TestMain(m *testing.M) {
	stops.Serve()
	os.Exit(m.Run())
}

// TestStops stops runs while a tool of each kind runs. The far end's connection is closed long
// before the tool's deadline. `make bench-load ARGS=stops` measures how long it takes.
func TestStops(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 8*world.Timeout)
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
	const bound = 10 * time.Second // tools have 15 s at least

	for _, k := range stops.Kinds { //nolint:paralleltest // one stop at a time
		t.Run(k.Name, func(t *testing.T) {
			if why := r.Missing(k); why != "" {
				t.Skipf("NOT TESTED: %s", why)
			}
			for range 2 {
				one, cancel := context.WithTimeout(ctx, 9*bound) // Chromium may have to start
				took, err := r.Stop(one, k)
				cancel()
				if err != nil || took > bound {
					t.Fatalf("%s from the stop to the closed connection, %v; want less than %s", took, err, bound)
				}
				t.Logf("%s from the stop to the closed connection", took)
			}
		})
	}
}
