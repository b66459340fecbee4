package bus

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are shared by all buses of a registry. The service is a label, so that several
// services fit into one process.
type metrics struct {
	service    string
	publishes  *prometheus.HistogramVec // service, kind, outcome
	deliveries *prometheus.CounterVec   // service, consumer, decision
	handling   *prometheus.HistogramVec // service, consumer
	active     *prometheus.GaugeVec     // service, consumer
	reconnects prometheus.Counter
}

func newMetrics(reg prometheus.Registerer, service string) *metrics {
	return &metrics{
		service: service,
		publishes: register(reg, prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "signalbox_bus_publish_seconds", Help: "Time from publishing to the server's ack, by subject kind and outcome.",
			Buckets: prometheus.ExponentialBuckets(0.0002, 4, 9),
		}, []string{"service", "kind", "outcome"})),
		deliveries: register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "signalbox_bus_deliveries_total", Help: "Work messages handled, by decision: ack, terminal, retry, backoff, panic, unsettled.",
		}, []string{"service", "consumer", "decision"})),
		handling: register(reg, prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "signalbox_bus_handler_seconds", Help: "Duration of handlers of work messages.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 10),
		}, []string{"service", "consumer"})),
		active: register(reg, prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "signalbox_bus_in_hand", Help: "Work messages being handled now.",
		}, []string{"service", "consumer"})),
		reconnects: register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "signalbox_bus_reconnects_total", Help: "Reconnects to NATS.",
		}, []string{"service"})).WithLabelValues(service),
	}
}

// register registers c, and returns it or the collector that another bus has registered.
func register[C prometheus.Collector](reg prometheus.Registerer, c C) C {
	if reg == nil {
		return c
	}
	if err := reg.Register(c); err != nil {
		if first, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
			if same, ok := first.ExistingCollector.(C); ok {
				return same
			}
		}
	}
	return c
}

func (m *metrics) published(kind string, err error, d time.Duration) {
	outcome := "ok"
	switch {
	case err == nil:
	case errors.Is(err, ErrFenced):
		outcome = "fenced"
	case errors.Is(err, ErrFull):
		outcome = "full"
	default:
		outcome = "error"
	}
	m.publishes.WithLabelValues(m.service, kind, outcome).Observe(d.Seconds())
}
