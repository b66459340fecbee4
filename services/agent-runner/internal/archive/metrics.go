package archive

import "github.com/prometheus/client_golang/prometheus"

// metrics are the archive's metrics.
type metrics struct {
	events  prometheus.Counter
	lost    prometheus.Counter
	lag     prometheus.Histogram
	batches prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		events: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "signalbox_run_log_copied_events_total", Help: "Events of the run log that were copied to Postgres.",
		}),
		lost: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "signalbox_run_log_lost_events_total", Help: "Events that the bus dropped before they were copied.",
		}),
		lag: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "signalbox_run_log_copy_lag_seconds", Help: "Age of a batch's oldest event when the batch was committed.",
			Buckets: prometheus.ExponentialBuckets(0.05, 2.5, 10),
		}),
		batches: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "signalbox_run_log_copy_seconds", Help: "Time to write a batch of the run log to Postgres.",
			Buckets: prometheus.ExponentialBuckets(0.001, 3, 10),
		}),
	}
	reg.MustRegister(m.events, m.lost, m.lag, m.batches)
	return m
}
