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
	bytes := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: "bytes_total", Help: "Bytes relayed to document-sync (up) and to clients (down)."}, []string{"direction"})
	m := &metrics{
		open:   prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Subsystem: subsystem, Name: "open", Help: "Open document sockets."}),
		closed: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: "closed_total", Help: "Document sockets that ended or were refused, by close code. As in RFC 6455, 1005 is a close frame without a code and 1006 a connection without a close frame."}, []string{"code"}),
		up:     bytes.WithLabelValues("up"),
		down:   bytes.WithLabelValues("down"),
	}
	if reg != nil {
		reg.MustRegister(m.open, m.closed, bytes)
	}
	return m
}

// ended counts a socket by its close code. Unknown codes share a label.
func (m *metrics) ended(code int) {
	label := "other"
	if code >= 1000 && code <= 1015 || code >= codeInvalid && code <= codeNotFound {
		label = strconv.Itoa(code)
	}
	m.closed.WithLabelValues(label).Inc()
}
