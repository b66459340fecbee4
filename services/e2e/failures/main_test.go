package failures_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"signalbox.dev/services/e2e/world"
)

// programs is the folder of the programs, created by TestMain.
var programs string

func TestMain(m *testing.M) {
	if os.Getenv(busyVariable) != "" {
		beBusy()
	}
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "signalbox-failures-")
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
