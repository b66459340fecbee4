package loop_test

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"signalbox.dev/services/agent-runner/internal/loop"
)

// A series that begins at 1 has no increase: an alert would miss the first run that fails.
func TestRunsAreCountedFromZero(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	loop.NewMetrics(reg)
	if err := testutil.GatherAndCompare(reg, strings.NewReader(`# HELP signalbox_runs_total Runs that ended, by finish reason.
# TYPE signalbox_runs_total counter
signalbox_runs_total{finish_reason="error"} 0
signalbox_runs_total{finish_reason="stop"} 0
`), "signalbox_runs_total"); err != nil {
		t.Error(err)
	}
}
