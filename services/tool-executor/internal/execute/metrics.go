package execute

import (
	"errors"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
)

// Metrics count calls by tool. All unknown names share the label value "unknown".
type Metrics struct {
	calls     *prometheus.HistogramVec
	running   prometheus.Gauge
	takeovers *prometheus.CounterVec
}

// NewMetrics registers the metrics; reg may be nil.
func NewMetrics(reg prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		calls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "signalbox_tool_call_seconds", Help: "Time of one tool call, by tool and outcome (ok, error, unknown, cancelled).",
			Buckets: prometheus.ExponentialBuckets(0.001, 3, 11),
		}, []string{"tool", "outcome"}),
		running: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "signalbox_tool_calls_in_hand", Help: "Slots for tool calls in use.",
		}),
		takeovers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "signalbox_tool_calls_taken_over_total", Help: "Calls taken over from another executor, by reason (absent, silent, released).",
		}, []string{"reason"}),
	}
	if reg == nil {
		return m, nil
	}
	return m, errors.Join(reg.Register(m.calls), reg.Register(m.running), reg.Register(m.takeovers))
}

func (m *Metrics) done(j *job, o *toolv1.Outcome) {
	name := "unknown"
	if j.known {
		name = o.GetToolName()
	}
	outcome := strings.ToLower(strings.TrimPrefix(o.GetState().String(), "OUTCOME_STATE_"))
	m.calls.WithLabelValues(name, outcome).Observe(float64(o.GetDurationMs()) / 1000)
}
