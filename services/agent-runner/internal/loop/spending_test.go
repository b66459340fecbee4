package loop

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/services/agent-runner/internal/llm"
	"signalbox.dev/services/agent-runner/internal/run"
)

// A server's numbers neither overflow sums nor give back what was spent.
func TestUsageOf(t *testing.T) {
	t.Parallel()
	reported := llm.Usage{InputTokens: math.MinInt64, CacheRead: -1, CacheWrite: 7, OutputTokens: math.MaxInt64, Reasoning: 1 << 40}
	want := run.Usage{CacheWrite: 7, Output: maxTokens, Reasoning: maxTokens}
	if diff := cmp.Diff(want, usageOf(&llm.Response{Usage: reported})); diff != "" {
		t.Errorf("usageOf() (-want +got):\n%s", diff)
	}
}
