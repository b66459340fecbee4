// Mutants introduces faults into the protocols of Signalbox, one at a time, and checks that the tests
// find each: a test that cannot fail proves nothing.
//
// A mutant is an edit of one file or two (table.go), compiled with go's -overlay, so that the
// checkout is unchanged. Two sets of tests must fail with it. One of them tests from outside:
// through the public API of the running programs, or through the doors of a service or package
// with real Postgres and NATS. A mutant that a set does not find has survived, and the program
// exits with 1.
//
//	go run ./services/e2e/mutants            all of them: up to an hour on two cores
//	go run ./services/e2e/mutants -only fence
//	go run ./services/e2e/mutants -list
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"signalbox.dev/pkg/process"
	"signalbox.dev/services/e2e/world"
)

// mutant is an artificial fault.
type mutant struct {
	name string
	what string // the rule that it violates
	file string // from the root of the checkout
	old  string // occurs once in the file
	new  string
	also *edit // for a rule that is implemented in two places
	// inside and outside are the tests that must fail: of the code, and from outside.
	inside, outside test
}

// edit is a second edit of a mutant.
type edit struct{ file, old, new string }

// test is a set of tests of a package.
type test struct {
	dir string // of the package, from the root of the checkout
	run string // for go test -run; empty for all
}

// String names the tests.
func (t test) String() string {
	return t.dir + " " + strings.NewReplacer("^", "", "$", "").Replace(t.run)
}

// running reports whether the package's tests run programs, which must be built with the mutant.
func (t test) running() bool { return strings.HasPrefix(t.dir+"/", "services/e2e/") }

func main() {
	os.Exit(process.Main(func(ctx context.Context) error { return run(ctx, os.Args[1:], os.Stdout) }))
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("mutants", flag.ContinueOnError)
	flags.SetOutput(out)
	only := flags.String("only", "", "run the mutants whose `names` match this pattern")
	list := flags.Bool("list", false, "list the mutants and run none")
	show := flags.Bool("v", false, "show what the tests print")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return process.Usage("%v", err)
	}
	pattern, err := regexp.Compile(*only)
	if err != nil {
		return process.Usage("-only: %v", err)
	}
	root, err := world.Checkout()
	if err != nil {
		return err
	}
	ran, survived := 0, 0
	sound := map[test]bool{}
	for _, m := range mutants {
		if !pattern.MatchString(m.name) || ctx.Err() != nil {
			continue
		}
		if *list {
			fmt.Fprintf(out, "%-28s %s\n", m.name, m.what)
			continue
		}
		begun := time.Now()
		if err := m.baseline(ctx, root, sound); err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		found, err := m.try(ctx, root, out, *show)
		if err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		ran++
		verdict := "found"
		if !found {
			verdict = "SURVIVED"
			survived++
		}
		fmt.Fprintf(out, "%-9s %-28s %4.0f s  %s\n%9s inside:  %s\n%9s outside: %s\n",
			verdict, m.name, time.Since(begun).Seconds(), m.what, "", m.inside, "", m.outside)
	}
	if *list {
		return ctx.Err()
	}
	fmt.Fprintf(out, "%d mutants, %d survived\n", ran, survived)
	if survived > 0 {
		return process.ErrShown
	}
	return ctx.Err()
}

// mutated returns the changed files by path.
func (m *mutant) mutated(root string) (map[string][]byte, error) {
	edits := []edit{{m.file, m.old, m.new}}
	if m.also != nil {
		edits = append(edits, *m.also)
	}
	files := map[string][]byte{}
	for _, e := range edits {
		text, err := os.ReadFile(filepath.Join(root, e.file))
		if err != nil {
			return nil, err
		}
		if n := bytes.Count(text, []byte(e.old)); n != 1 {
			return nil, fmt.Errorf("%s has the text to replace %d times, want once: %q", e.file, n, e.old)
		}
		files[e.file] = bytes.Replace(text, []byte(e.old), []byte(e.new), 1)
	}
	return files, nil
}

// baseline runs the tests without the mutant, unless they are known to pass: a test that fails
// anyway finds nothing.
func (m *mutant) baseline(ctx context.Context, root string, sound map[test]bool) error {
	for _, t := range []test{m.inside, m.outside} {
		if sound[t] {
			continue
		}
		dir, err := os.MkdirTemp("", "signalbox-baseline-")
		if err != nil {
			return err
		}
		var said bytes.Buffer
		fails, err := t.fails(ctx, root, dir, "", &said, true)
		_ = os.RemoveAll(dir)
		if err != nil {
			return err
		}
		if fails {
			return fmt.Errorf("%s -run '%s' fails without any mutant:\n%s", t.dir, t.run, &said)
		}
		sound[t] = true
	}
	return nil
}

// try runs the tests with the mutant and reports whether all of them have failed.
func (m *mutant) try(ctx context.Context, root string, out io.Writer, show bool) (found bool, err error) {
	dir, err := os.MkdirTemp("", "signalbox-mutant-")
	if err != nil {
		return false, err
	}
	defer func() { _ = os.RemoveAll(dir) }() // leftovers are small
	files, err := m.mutated(root)
	if err != nil {
		return false, err
	}
	replace := map[string]string{}
	for file, text := range files {
		place := filepath.Join(dir, strings.ReplaceAll(file, "/", "_"))
		replace[filepath.Join(root, file)] = place
		if err := os.WriteFile(place, text, 0o600); err != nil {
			return false, err
		}
	}
	overlay, _ := json.Marshal(map[string]any{"Replace": replace}) // a map of strings always marshals
	flags := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(flags, overlay, 0o600); err != nil {
		return false, err
	}
	found = true
	for _, t := range []test{m.inside, m.outside} {
		fails, err := t.fails(ctx, root, dir, flags, out, show)
		if err != nil {
			return false, err
		}
		if !fails {
			fmt.Fprintf(out, "          %s passes %s\n", m.name, t)
			found = false
		}
	}
	return found, nil
}

// fails runs tests, with an overlay unless it is "", and reports whether they fail. The error is one of compiling.
func (t test) fails(ctx context.Context, root, dir, overlay string, out io.Writer, show bool) (bool, error) {
	env := os.Environ()
	if t.running() {
		bin := filepath.Join(dir, "bin")
		if err := os.MkdirAll(bin, 0o755); err != nil {
			return false, err
		}
		programs, err := filepath.Glob(filepath.Join(root, "services/*/cmd/*"))
		if err != nil {
			return false, err
		}
		build := exec.CommandContext(ctx, "go", append([]string{"build", "-overlay=" + overlay, "-o", bin + "/"}, programs...)...)
		build.Dir = root
		if msg, err := build.CombinedOutput(); err != nil {
			return false, fmt.Errorf("build: %w\n%s", err, msg)
		}
		env = append(env, world.Built+"="+bin)
	}
	cmd := exec.CommandContext(ctx, "go", "test", "-v", "-vet=off", "-count=1", "-timeout", "5m", "-overlay="+overlay, "-run", t.run, "./"+t.dir)
	cmd.Dir, cmd.Env = root, env
	msg, err := cmd.CombinedOutput()
	if show {
		fmt.Fprintf(out, "%s\n", msg)
	}
	switch {
	case ctx.Err() != nil:
		return false, ctx.Err()
	case err == nil && !t.reached(msg):
		return false, fmt.Errorf("%s has no test %q", t.dir, t.run)
	case err == nil:
		return false, nil
	case bytes.Contains(msg, []byte("[build failed]")) || bytes.Contains(msg, []byte("[setup failed]")):
		return false, fmt.Errorf("the mutant does not compile: %s", msg)
	}
	return true, nil
}

// reached reports whether a test matched the whole pattern: a test without the requested subtest
// would pass.
func (t test) reached(output []byte) bool {
	for line := range strings.Lines(string(output)) {
		name, runs := strings.CutPrefix(line, "=== RUN ")
		if runs && strings.Count(name, "/") >= strings.Count(t.run, "/") {
			return true
		}
	}
	return false
}
