// Command testreport runs `go test -json` (or what ends up running it) and says
// what happened in the way go test does, and at the end in numbers: how many
// packages and tests passed, which failed, and which were skipped and why.
//
//	testreport go test -json ./...
//
// The output of tests that pass is dropped. Up to three tests that failed are run once more,
// after all others, because tests that run at the same time can starve each other. One that
// passes then is unsteady: it is reported as such, here and in the file that $PHASES names, and
// its first failure is printed. A test is not run again after a panic, a data race or a timeout.
//
// It exits with 1 when a test or the command failed, or when no test ran.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
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
	r := newReport(os.Stdout)
	waitErr, err := r.command(args)
	if err != nil {
		return false, err
	}
	for _, again := range r.retries() {
		r.say("once more, alone: %s\n", again)
		second := newReport(os.Stdout)
		if failed, err := second.command(again.command(args)); err != nil {
			return false, err
		} else if failed == nil && second.ok() && second.passed > 0 {
			r.unsteady = append(r.unsteady, again)
		}
	}
	ok = r.summary(time.Since(begin))
	if !ok {
		return false, nil
	}
	for _, n := range r.unsteady {
		if err := record(n); err != nil {
			return false, err
		}
	}
	if waitErr != nil && len(r.unsteady) == 0 { // no test says why
		return false, fmt.Errorf("%s: %w", args[0], waitErr)
	}
	return true, nil
}

// command runs args and reads what they print.
func (r *report) command(args []string) (failed *exec.ExitError, err error) {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin, cmd.Stderr = os.Stdin, os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	readErr := r.read(out)
	if err := cmd.Wait(); err != nil && !errors.As(err, &failed) {
		return nil, err
	}
	return failed, readErr
}

// command returns the command that runs the test only: args with its package in place of theirs.
func (n name) command(args []string) []string {
	var out []string
	for _, a := range args {
		if !strings.HasPrefix(a, "./") && !strings.HasPrefix(a, n.module()+"/") {
			out = append(out, a)
		}
	}
	return append(out, "-run", "^"+n.test+"$", n.pkg)
}

// module returns the first element of the package's path.
func (n name) module() string {
	module, _, _ := strings.Cut(n.pkg, "/")
	return module
}

// record notes an unsteady test for the summary of all phases.
func record(n name) error {
	path := os.Getenv("PHASES")
	if path == "" {
		return nil
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "unsteady         %s failed, and passed alone\n", n)
	return errors.Join(err, f.Close())
}
