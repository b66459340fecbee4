package docproxy

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	open     prometheus.Gauge
	closed   *prometheus.CounterVec
	up, down prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	const namespace, subsystem = "gateway", "sockets"
	bytes := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: "bytes_total", Help: "Bytes that were passed on, to document-sync (up) and to clients (down)."}, []string{"direction"})
	m := &metrics{
		open:   prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Subsystem: subsystem, Name: "open", Help: "Sockets of documents that are relayed."}),
		closed: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: "closed_total", Help: "Sockets of documents that ended or were refused, by close code; 1005 and 1006 as in RFC 6455: none, and cut."}, []string{"code"}),
		up:     bytes.WithLabelValues("up"),
		down:   bytes.WithLabelValues("down"),
	}
	if reg != nil {
		reg.MustRegister(m.open, m.closed, bytes)
	}
	return m
}

// ended counts a socket by its code. Clients choose codes too: only those that mean
// something here have a label.
func (m *metrics) ended(code int) {
	label := "other"
	switch {
	case code >= 1000 && code <= 1015, code >= codeInvalid && code <= codeNotFound:
		label = strconv.Itoa(code)
	}
	m.closed.WithLabelValues(label).Inc()
}
