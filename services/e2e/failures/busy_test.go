package failures_test

import (
	"io"
	"os"
	"os/exec"
	"runtime"
	"testing"
)

// busyVariable makes this program one that does nothing but keep a processor busy.
const busyVariable = "SIGNALBOX_BUSY"

// oversubscribed is how many programs want each processor beside what is tested.
const oversubscribed = 8

// beBusy spins until standard input ends: when it was closed, or who started this has
// gone.
func beBusy() {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // how it ends does not matter
		os.Exit(0)
	}()
	for n := 0; ; n++ {
	}
}

// oversubscribe keeps every processor busy until the test ends.
func oversubscribe(t *testing.T) {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for range oversubscribed * runtime.NumCPU() {
		cmd := exec.Command(program)
		cmd.Env = []string{busyVariable + "=1"}
		stdin, err := cmd.StdinPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = stdin.Close()
			_ = cmd.Process.Kill() // by its id; it may have ended
			_ = cmd.Wait()         // it was killed
		})
	}
}
