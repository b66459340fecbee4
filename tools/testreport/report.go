package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// event is a line of go test -json (see go doc test2json).
type event struct {
	Action, Package, Test, Output, ImportPath, FailedBuild string
}

// name is a test of a package; the empty test is the package itself.
type name struct{ pkg, test string }

func (n name) String() string {
	if n.test == "" {
		return n.pkg
	}
	return n.pkg + "." + n.test
}

// report collects events. It keeps output until the result of its test is known.
type report struct {
	w        io.Writer
	output   map[name]*strings.Builder
	passed   int
	pkgs     int
	failed   []name
	broken   bool   // a process died, or a data race was found
	unsteady []name // tests that failed, and passed alone
	skipped  []string
}

// maxRetries is the number of tests that may be run again. When more fail, it is not chance.
const maxRetries = 3

// retries returns the failed tests to run again, without subtests.
func (r *report) retries() []name {
	tests := map[name]bool{}
	packages := map[string]bool{} // of these tests
	for _, n := range r.failed {
		if n.test != "" {
			top, _, _ := strings.Cut(n.test, "/")
			tests[name{n.pkg, top}], packages[n.pkg] = true, true
		}
	}
	for _, n := range r.failed {
		if !packages[n.pkg] {
			return nil // the package failed, and none of its tests: it hung or does not build
		}
	}
	if r.broken || len(tests) > maxRetries {
		return nil
	}
	return slices.SortedFunc(maps.Keys(tests), func(a, b name) int { return strings.Compare(a.String(), b.String()) })
}

func newReport(w io.Writer) *report {
	return &report{w: w, output: map[name]*strings.Builder{}}
}

// read reads events until the end, and prints other lines as they are.
func (r *report) read(in io.Reader) error {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadString('\n')
		var e event
		switch {
		case line == "":
		case line[0] == '{' && json.Unmarshal([]byte(line), &e) == nil && e.Action != "":
			r.take(e)
		default:
			r.say("%s", line)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the test events: %w", err)
		}
	}
}

func (r *report) take(e event) {
	n := name{e.Package, e.Test}
	switch e.Action {
	case "build-output":
		r.say("%s", e.Output)
	case "output":
		if r.output[n] == nil {
			r.output[n] = &strings.Builder{}
		}
		r.output[n].WriteString(e.Output)
	case "pass":
		r.pass(n)
	case "skip":
		r.skip(n)
	case "fail":
		r.fail(n)
	}
}

func (r *report) pass(n name) {
	if n.test != "" {
		r.passed++
		// What a dying process says last is put down to the test that printed last,
		// and that may be one that passed.
		if !died(r.output[n]) {
			delete(r.output, n)
		}
		return
	}
	r.pkgs++
	r.lines(n)
}

func (r *report) skip(n name) {
	if n.test == "" { // a package without tests
		r.lines(n)
		return
	}
	r.skipped = append(r.skipped, n.String()+": "+reason(r.text(n)))
}

func (r *report) fail(n name) {
	r.failed = append(r.failed, n)
	if n.test != "" {
		r.sayFailed(n)
		return
	}
	r.pkgs++
	// Tests that never ended: the one that panicked or hung, and those beside it.
	for _, other := range slices.SortedFunc(maps.Keys(r.output), func(a, b name) int { return strings.Compare(a.test, b.test) }) {
		if other.pkg == n.pkg && other.test != "" {
			r.sayFailed(other)
		}
	}
	r.sayFailed(n)
}

func (r *report) sayFailed(n name) {
	r.broken = r.broken || died(r.output[n])
	r.say("%s", r.text(n))
}

// lines prints what go test says of a package that did not fail.
func (r *report) lines(n name) {
	for line := range strings.Lines(r.text(n)) {
		if strings.HasPrefix(line, "ok  \t") || strings.HasPrefix(line, "?   \t") {
			r.say("%s", line)
		}
	}
}

// died reports whether output holds the last words of a process, or a data race.
func died(output *strings.Builder) bool {
	if output == nil {
		return false
	}
	for line := range strings.Lines(output.String()) {
		if strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ") || strings.HasPrefix(line, "SIG") || strings.HasPrefix(line, "WARNING: DATA RACE") {
			return true
		}
	}
	return false
}

// text takes the output of n.
func (r *report) text(n name) string {
	b := r.output[n]
	delete(r.output, n)
	if b == nil {
		return ""
	}
	return b.String()
}

// reason is what a test said when it skipped itself.
func reason(output string) string {
	var said []string
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "=== ") && !strings.HasPrefix(line, "--- ") {
			said = append(said, line)
		}
	}
	return strings.Join(said, " ")
}

// summary prints the numbers and reports whether all is well.
func (r *report) summary(took time.Duration) bool {
	failedTests := 0
	for _, n := range r.failed {
		if n.test != "" {
			failedTests++
		}
	}
	for _, s := range r.skipped {
		r.say("skipped: %s\n", s)
	}
	ok := r.ok()
	for _, n := range r.failed {
		if !ok {
			r.say("FAILED: %s\n", n)
		}
	}
	for _, n := range r.unsteady {
		r.say("unsteady: %s failed, and passed alone\n", n)
	}
	r.say("%d packages, %d tests passed, %d failed, %d skipped in %s\n", r.pkgs, r.passed, failedTests, len(r.skipped), took.Round(100*time.Millisecond))
	if r.pkgs == 0 {
		r.say("no test ran\n")
	}
	return ok
}

// ok reports whether tests ran, and each passed, be it the second time.
func (r *report) ok() bool {
	retried := len(r.unsteady) > 0 && len(r.unsteady) == len(r.retries())
	return r.pkgs > 0 && (len(r.failed) == 0 || retried)
}

func (r *report) say(format string, args ...any) {
	_, _ = fmt.Fprintf(r.w, format, args...) // a terminal that is gone shows nothing
}
