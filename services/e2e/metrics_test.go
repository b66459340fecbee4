package e2e_test

import (
	"bufio"
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"signalbox.dev/services/e2e/monitoring"
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

// TestDashboard runs each query of the dashboard that has a value while nothing is wrong in a real
// Prometheus that scrapes the cluster. `make e2e-metrics` runs the others, and tests the alerts.
func TestDashboard(t *testing.T) {
	t.Parallel()
	root, err := world.Checkout()
	if err != nil {
		t.Fatal(err)
	}
	queries, err := monitoring.Queries(root)
	if err != nil {
		t.Fatal(err)
	}
	rules, _, err := monitoring.Rules(root)
	if err != nil {
		t.Fatal(err)
	}
	w := cluster.up(t)
	p, err := w.StartPrometheus(t.Context(), t.TempDir(), rules)
	if errors.Is(err, world.ErrNoPrometheus) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	}()
	user, err := w.newMember("", "owner")
	if err != nil {
		t.Fatal(err)
	}
	use, stop := context.WithTimeout(t.Context(), 2*timeout)
	defer stop()
	used := make(chan error, 1)
	go func() { used <- monitoring.Use(use, w.World, user) }()
	if err := (monitoring.API{URL: p.Ops, HTTP: w.HTTP}).Await(use, queries); err != nil {
		t.Error(err)
	}
	stop()
	if err := <-used; err != nil {
		t.Error(err)
	}
}
