package proxy

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are per provider; pool.Meter counts per account. Providers without a request
// profile count as "unknown", and those that a workspace named itself as "other", so that
// callers cannot create series.
type metrics struct {
	requests *prometheus.CounterVec
	gate     *prometheus.HistogramVec
	added    *prometheus.HistogramVec
	open     *prometheus.GaugeVec
}

func newMetrics(reg prometheus.Registerer, providers []string) (*metrics, error) {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "signalbox_broker_requests_total",
			Help: "Requests by provider, and their outcome for the caller.",
		}, []string{"provider", "outcome"}),
		gate: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "signalbox_broker_gate_seconds",
			Help:    "Time that a stream's first events were held back.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 9),
		}, []string{"provider"}),
		added: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "signalbox_broker_added_seconds",
			Help:    "Time that the broker itself added before a request was sent.",
			Buckets: prometheus.ExponentialBuckets(0.00005, 3, 10),
		}, []string{"provider"}),
		open: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "signalbox_broker_open_streams",
			Help: "Event streams that are being forwarded.",
		}, []string{"provider"}),
	}
	for _, c := range []prometheus.Collector{m.requests, m.gate, m.added, m.open} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	for _, provider := range providers { // an alert would miss the first one of a series that begins at 1
		for _, outcome := range []string{outcomeOK, outcomeNoAccount, outcomeExhausted} {
			m.requests.WithLabelValues(provider, outcome)
		}
	}
	return m, nil
}
