package faults_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"

	"signalbox.dev/services/e2e/world"
)

// programs is where the programs are, made by TestMain.
var programs string

func TestMain(m *testing.M) {
	flag.Parse()
	if full() {
		// The tests wait more than they work: all clusters run at once, on any machine.
		if err := flag.Set("test.parallel", "8"); err != nil {
			panic(err)
		}
	}
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "signalbox-faults-")
		if err == nil {
			defer os.RemoveAll(dir)
			programs = dir
			err = world.Build(context.Background(), dir)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}())
}

// full reports whether all is asked for.
func full() bool { return os.Getenv("SIGNALBOX_E2E_FAULTS") == "full" }

// needFull skips what only `make e2e-faults` has the time for.
func needFull(t *testing.T) {
	t.Helper()
	if !full() {
		t.Skip("part of `make e2e-faults` (SIGNALBOX_E2E_FAULTS=full)")
	}
}
