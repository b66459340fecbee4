// Command testreport runs `go test -json` (or what ends up running it) and says
// what happened in the way go test does, and at the end in numbers: how many
// packages and tests passed, which failed, and which were skipped and why.
//
//	testreport go test -json ./...
//
// The output of tests that pass is dropped. It exits with 1 when a test or the
// command failed, or when no test ran.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"time"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: testreport command [argument...]")
		os.Exit(2)
	}
	ok, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
	}
	if !ok || err != nil {
		os.Exit(1)
	}
}

func run(args []string) (ok bool, err error) {
	begin := time.Now()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin, cmd.Stderr = os.Stdin, os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return false, err
	}
	if err := cmd.Start(); err != nil {
		return false, err
	}
	r := newReport(os.Stdout)
	readErr := r.read(out)
	waitErr := cmd.Wait()
	ok = r.summary(time.Since(begin))
	if readErr != nil {
		return false, readErr
	}
	if waitErr != nil && ok { // else the failed tests say it
		return false, fmt.Errorf("%s: %w", args[0], waitErr)
	}
	return ok, nil
}
