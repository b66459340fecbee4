package faults_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"

	"signalbox.dev/services/e2e/world"
)

// programs is the folder of the programs, created by TestMain.
var programs string

func TestMain(m *testing.M) {
	flag.Parse()
	if full() {
		// The tests mostly wait: all clusters run at once, on any machine.
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

// full reports whether the full tests are requested.
func full() bool { return os.Getenv("SIGNALBOX_E2E_FAULTS") == "full" }

// needFull skips a test that only `make e2e-faults` runs.
func needFull(t *testing.T) {
	t.Helper()
	if !full() {
		t.Skip("part of `make e2e-faults` (SIGNALBOX_E2E_FAULTS=full)")
	}
}
