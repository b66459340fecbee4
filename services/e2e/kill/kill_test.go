package kill_test

import (
	"flag"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"signalbox.dev/services/e2e/kill"
	"signalbox.dev/services/e2e/world"
)

var seed = flag.Uint64("seed", rand.Uint64N(1_000_000), "seed of all random choices")

// TestKills checks that nothing is lost, duplicated or reported wrongly while all parts are killed
// for half a minute. The long run is `make e2e-kill`.
func TestKills(t *testing.T) {
	t.Parallel()
	programs, dir := t.TempDir(), t.TempDir()
	if err := world.Build(t.Context(), programs); err != nil {
		t.Fatal(err)
	}
	report, err := kill.Run(t.Context(), kill.Config{
		Programs: programs, Dir: dir, Seed: *seed, Kills: 20, Rate: 12, Talkers: 40, Out: writer{t},
	})
	if err != nil {
		t.Fatalf("seed %d: %v", *seed, err)
	}
	report.Write(writer{t})
	if !report.OK() {
		t.Errorf("seed %d: invariants were violated", *seed)
		show(t, dir)
	}
	if report.Runs < 100 {
		t.Errorf("only %d runs were checked", report.Runs)
	}
}

// show prints the evidence of the first sessions with problems.
func show(t *testing.T, dir string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "problem-*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files[:min(len(files), 3)] {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%.20000s", b)
	}
}

// writer logs what is written to it.
type writer struct{ t *testing.T }

// Write implements io.Writer.
func (w writer) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimRight(string(p), "\n"))
	return len(p), nil
}
