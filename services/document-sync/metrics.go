package documentsync

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"signalbox.dev/pkg/fault"
)

type metrics struct {
	changes *prometheus.HistogramVec
}

func newMetrics(reg prometheus.Registerer, watchers func() int) (*metrics, error) {
	m := &metrics{changes: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "signalbox_document_change_seconds", Help: "Time of one operation that changes a document, by operation and outcome.",
		Buckets: prometheus.ExponentialBuckets(0.0005, 3, 9),
	}, []string{"operation", "outcome"})}
	streams := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "signalbox_document_subscribers", Help: "Open streams of document changes.",
	}, func() float64 { return float64(watchers()) })
	if reg == nil {
		return m, nil
	}
	return m, errors.Join(reg.Register(m.changes), reg.Register(streams))
}

func (m *metrics) changed(operation string, start time.Time, err error) {
	outcome := "ok"
	if err != nil {
		outcome = fault.KindOf(err).String()
	}
	m.changes.WithLabelValues(operation, outcome).Observe(time.Since(start).Seconds())
}
