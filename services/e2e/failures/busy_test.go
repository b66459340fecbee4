package failures_test

import (
	"io"
	"os"
	"os/exec"
	"runtime"
	"testing"
)

// busyVariable makes this program keep a processor busy and do nothing else.
const busyVariable = "SIGNALBOX_BUSY"

// oversubscribed is the number of busy programs per processor.
const oversubscribed = 8

// beBusy spins until standard input ends, because the parent closed it or has ended.
func beBusy() {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // an error also means the end
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
			_ = cmd.Process.Kill() // it may have ended already
			_ = cmd.Wait()         // it was killed
		})
	}
}
