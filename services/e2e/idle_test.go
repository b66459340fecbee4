package e2e_test

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"signalbox.dev/pkg/subject"
	"signalbox.dev/services/e2e/world"
)

// TestIdleReplicas: what idle services ask of PostgreSQL does not grow with their replicas.
func TestIdleReplicas(t *testing.T) {
	t.Parallel()
	const (
		replicas = 4
		settle   = time.Second
		watched  = 3 * time.Second
		chance   = 8 // transactions of rare work, such as the removal of old rows
	)
	w, err := world.Start(t.Context(), world.Options{Dir: t.TempDir(), Programs: bin, Replicas: replicas})
	if w != nil {
		t.Cleanup(func() { _ = w.Close() })
	}
	if err != nil {
		t.Fatal(err)
	}
	measure := func() map[string]int {
		time.Sleep(settle) //nolint:forbidigo // what is measured is what happens by itself
		before := transactions(t, w)
		time.Sleep(watched) //nolint:forbidigo // as above
		rise := transactions(t, w)
		for service := range rise {
			rise[service] -= before[service]
		}
		return rise
	}
	all := measure()
	for _, p := range w.Procs() {
		if p.Replica > 1 {
			if err := p.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	one := measure()
	t.Logf("transactions in %s with %d replicas: %v; with one: %v", watched, replicas, all, one)
	if one[subject.AgentRunner] == 0 {
		t.Error("one agent-runner had no transaction: it does not sweep, or they are not counted")
	}
	for service, n := range all {
		if n > 2*one[service]+chance {
			t.Errorf("%d idle replicas of %s had %d transactions in %s, and one had %d", replicas, service, n, watched, one[service])
		}
	}
}

// transactions returns the number of transactions of the running replicas of each service.
func transactions(t *testing.T, w *world.World) map[string]int {
	t.Helper()
	sum := map[string]int{}
	for _, p := range w.Procs() {
		if p.Service == world.NATSName || p.Service == world.SimulatorName || !p.Running() {
			continue
		}
		n, err := readMetric(t.Context(), w, p, "signalbox_pg_transactions_total")
		if err != nil {
			t.Fatal(err)
		}
		sum[p.Service] += int(n)
	}
	return sum
}

// readMetric returns the value of a metric without labels.
func readMetric(ctx context.Context, w *world.World, p *world.Proc, name string) (float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.Ops+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	res, err := w.HTTP.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			return strconv.ParseFloat(value, 64)
		}
	}
	return 0, fmt.Errorf("%s has no metric %s", p.Name(), name)
}
