package e2e_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"signalbox.dev/services/e2e/world"
)

// block is a fenced block of a Markdown page: its language and its text.
var block = regexp.MustCompile("(?ms)^```([a-z]+)\n(.*?)^```$")

// TestAPIExamples runs the examples of docs/api.md in one shell, in order, and compares the
// output of each with the block that follows it.
func TestAPIExamples(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("the examples use curl, which is not installed")
	}
	root, err := world.Checkout()
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs/api.md"))
	if err != nil {
		t.Fatal(err)
	}
	w := standalone.up(t)
	member, err := w.newMember("", "owner")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	var script strings.Builder
	want := map[string]string{} // by the file with the example's output
	last := ""
	for i, m := range block.FindAllStringSubmatch(string(page), -1) {
		if m[1] == "jsx" {
			continue // see TestUseChatExample
		}
		if m[1] == "sh" {
			last = fmt.Sprintf("printed-%d", i)
			fmt.Fprintf(&script, "{\n%s} >%s\n", m[2], last)
		} else {
			want[last] = m[2]
		}
	}
	if len(want) < 16 {
		t.Fatalf("docs/api.md has %d examples with an answer, want at least 16", len(want))
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-eu", "-c", script.String())
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "SIGNALBOX_URL="+w.Gateways[0], "SIGNALBOX_TOKEN="+member.Token, "SIGNALBOX_WORKSPACE="+member.Workspace)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("the examples end with %v\n%s", err, out)
	}
	for file, pattern := range want {
		got, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		expression := strings.ReplaceAll(regexp.QuoteMeta(pattern), "…", ".*?")
		if !regexp.MustCompile(`(?s)^` + expression + `$`).Match(got) {
			t.Errorf("an example printed\n%s\nwant\n%s", got, pattern)
		}
	}
}

// TestExamples runs the programs of examples/. The console's tests run its pages.
func TestExamples(t *testing.T) {
	t.Parallel()
	root, err := world.Checkout()
	if err != nil {
		t.Fatal(err)
	}
	w := standalone.up(t)
	member, err := w.newMember("", "owner")
	if err != nil {
		t.Fatal(err)
	}
	for name, command := range map[string][]string{
		"curl": {"sh", "examples/chat.sh"},
		"Go":   {"go", "run", "examples/chat.go"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, needed := range []string{command[0], "curl"} {
				if _, err := exec.LookPath(needed); err != nil {
					t.Skipf("the example needs %s, which is not installed", needed)
				}
			}
			cmd := exec.CommandContext(t.Context(), command[0], append(command[1:], `say "one" \ two`)...)
			cmd.Dir = root
			cmd.Env = append(os.Environ(), "SIGNALBOX_URL="+w.Gateways[0], "SIGNALBOX_TOKEN="+member.Token, "SIGNALBOX_WORKSPACE="+member.Workspace)
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "simulated") {
				t.Errorf("the example ends with %v and printed\n%s\nwant the simulator's answer", err, out)
			}
		})
	}
}
