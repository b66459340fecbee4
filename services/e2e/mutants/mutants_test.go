package main

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"signalbox.dev/services/e2e/world"
)

// TestMutantsApply checks that every mutant applies: its file contains the old text once, the
// result parses, and its tests exist. A change of that text requires a change of the mutant.
func TestMutantsApply(t *testing.T) {
	t.Parallel()
	root, err := world.Checkout()
	if err != nil {
		t.Fatal(err)
	}
	if len(mutants) < 25 {
		t.Errorf("there are %d mutants, want 25 at least", len(mutants))
	}
	names := map[string]bool{}
	for _, m := range mutants {
		if names[m.name] || m.what == "" {
			t.Errorf("%s: the name is used twice, or the mutant violates no rule", m.name)
		}
		names[m.name] = true
		files, err := m.mutated(root)
		if err != nil {
			t.Errorf("%s: %v", m.name, err)
			continue
		}
		for file, text := range files {
			if _, err := parser.ParseFile(token.NewFileSet(), file, text, parser.SkipObjectResolution); err != nil {
				t.Errorf("%s: %v", m.name, err)
			}
		}
		for _, tests := range []test{m.inside, m.outside} {
			if !hasTest(t, filepath.Join(root, tests.dir), tests.run) {
				t.Errorf("%s: %s has no test %q", m.name, tests.dir, tests.run)
			}
		}
	}
}

// hasTest reports whether the package in dir has the test that a pattern begins with.
func hasTest(t *testing.T, dir, run string) bool {
	t.Helper()
	name, _, _ := strings.Cut(strings.Trim(run, "^$"), "/")
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	declared := regexp.MustCompile(`(?m)^func (` + strings.Trim(name, "^$()") + `)\(t \*testing\.T`)
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if declared.Match(text) {
			return true
		}
	}
	return false
}
