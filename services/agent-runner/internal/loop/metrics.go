package loop

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"signalbox.dev/services/agent-runner/internal/run"
)

// Metrics are the loop's metrics.
type Metrics struct {
	inProgress  prometheus.Gauge
	claims      *prometheus.CounterVec
	claimTime   prometheus.Histogram
	takeovers   prometheus.Counter
	runs        *prometheus.CounterVec
	steps       prometheus.Counter
	firstToken  prometheus.Histogram
	pauses      prometheus.Histogram
	modelCalls  *prometheus.CounterVec
	tokens      *prometheus.CounterVec
	cost        *prometheus.CounterVec
	toolCalls   *prometheus.CounterVec
	compactions *prometheus.CounterVec
}

// NewMetrics registers with reg.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		inProgress:  prometheus.NewGauge(prometheus.GaugeOpts{Name: "signalbox_runs_in_hand", Help: "Runs that this runner works on now."}),
		claims:      prometheus.NewCounterVec(prometheus.CounterOpts{Name: "signalbox_run_claims_total", Help: "Claims of runs by how they ended: done, fenced, failed."}, []string{"left"}),
		claimTime:   prometheus.NewHistogram(prometheus.HistogramOpts{Name: "signalbox_run_claim_seconds", Help: "Time from the claim of a run to its end, parking or release.", Buckets: prometheus.ExponentialBuckets(0.05, 3, 9)}),
		takeovers:   prometheus.NewCounter(prometheus.CounterOpts{Name: "signalbox_runs_taken_over_total", Help: "Claims of runs whose runner died, hung or was cut off."}),
		runs:        prometheus.NewCounterVec(prometheus.CounterOpts{Name: "signalbox_runs_total", Help: "Runs that ended, by finish reason."}, []string{"finish_reason"}),
		steps:       prometheus.NewCounter(prometheus.CounterOpts{Name: "signalbox_steps_total", Help: "Steps that were committed."}),
		firstToken:  prometheus.NewHistogram(prometheus.HistogramOpts{Name: "signalbox_model_first_event_seconds", Help: "Time from calling the model to its first event.", Buckets: prometheus.ExponentialBuckets(0.005, 2, 14)}),
		pauses:      prometheus.NewHistogram(prometheus.HistogramOpts{Name: "signalbox_model_pause_seconds", Help: "Longest pause between two events of a model's answer.", Buckets: prometheus.ExponentialBuckets(0.005, 2, 15)}),
		modelCalls:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "signalbox_model_calls_total", Help: "Model calls by provider and outcome."}, []string{"provider", "outcome"}),
		tokens:      prometheus.NewCounterVec(prometheus.CounterOpts{Name: "signalbox_tokens_total", Help: "Tokens by provider and kind."}, []string{"provider", "kind"}),
		cost:        prometheus.NewCounterVec(prometheus.CounterOpts{Name: "signalbox_cost_dollars_total", Help: "List price of committed steps in dollars, by provider."}, []string{"provider"}),
		toolCalls:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "signalbox_run_tool_calls_total", Help: "Tool calls of runs by outcome."}, []string{"outcome"}),
		compactions: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "signalbox_compactions_total", Help: "Summaries of long conversations by outcome: done, failed."}, []string{"outcome"}),
	}
	reg.MustRegister(m.inProgress, m.claims, m.claimTime, m.takeovers, m.runs, m.steps, m.firstToken, m.pauses, m.modelCalls, m.tokens, m.cost, m.toolCalls, m.compactions)
	for _, reason := range []string{"stop", "error"} { // an alert would miss the first one of a series that begins at 1
		m.runs.WithLabelValues(reason)
	}
	return m
}

func (m *Metrics) observeClaim(err error, d time.Duration) {
	left := "done"
	switch {
	case errors.Is(err, run.ErrFenced):
		left = "fenced"
	case err != nil:
		left = "failed"
	}
	m.claims.WithLabelValues(left).Inc()
	m.claimTime.Observe(d.Seconds())
}

func (m *Metrics) observeAnswer(provider string, u run.Usage, costMicros *int64) {
	m.steps.Inc()
	for kind, n := range map[string]int64{
		"input": u.Input, "cache_read": u.CacheRead, "cache_write": u.CacheWrite, "output": u.Output, "reasoning": u.Reasoning,
	} {
		m.tokens.WithLabelValues(provider, kind).Add(float64(max(n, 0)))
	}
	if costMicros != nil {
		m.cost.WithLabelValues(provider).Add(float64(*costMicros) / 1e6)
	}
}
