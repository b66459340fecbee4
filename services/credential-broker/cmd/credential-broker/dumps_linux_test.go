package main

import (
	"fmt"
	"os"
	"regexp"
	"syscall"
	"testing"
)

// A broker leaves no core dump.
func TestNoCoreDumps(t *testing.T) {
	t.Parallel()
	p := newSingle(t).start()
	defer p.stop(syscall.SIGTERM)
	limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`(?m)^Max core file size +0 +0 `).Match(limits) {
		t.Errorf("the broker's limits are:\n%s", limits)
	}
}
