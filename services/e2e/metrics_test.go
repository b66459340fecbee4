package e2e_test

import (
	"bufio"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"signalbox.dev/services/e2e/world"
)

// TestMetricsAreDocumented looks up every metric of a standalone Signalbox in
// docs/metrics.md, and compares its type.
func TestMetricsAreDocumented(t *testing.T) {
	t.Parallel()
	root, err := world.Checkout()
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs/metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	w := standalone.up(t)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.Proc(world.Standalone).Ops+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := w.HTTP.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	found := 0
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		line, isType := strings.CutPrefix(lines.Text(), "# TYPE ")
		name, kind, _ := strings.Cut(line, " ")
		if !isType || strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") {
			continue
		}
		found++
		if row := "| `" + name + "` | " + kind + " |"; !strings.Contains(string(page), row) {
			t.Errorf("docs/metrics.md has no row %q", row)
		}
	}
	if found < 30 {
		t.Errorf("/metrics has %d metrics of ours, want more", found)
	}
}
