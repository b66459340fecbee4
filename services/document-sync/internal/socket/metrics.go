package socket

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	plain, hocuspocus       prometheus.Gauge
	messagesIn, messagesOut prometheus.Counter
	bytesIn, bytesOut       prometheus.Counter
	throttled               prometheus.Counter
	closed                  *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	open := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "signalbox_document_sockets", Help: "Open editor connections, by envelope.",
	}, []string{"envelope"})
	messages := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "signalbox_document_socket_messages_total", Help: "Messages on editor connections, by direction.",
	}, []string{"direction"})
	bytes := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "signalbox_document_socket_bytes_total", Help: "Bytes of messages on editor connections, by direction.",
	}, []string{"direction"})
	m := &metrics{
		plain: open.WithLabelValues("y-protocols"), hocuspocus: open.WithLabelValues("hocuspocus"),
		messagesIn: messages.WithLabelValues("in"), messagesOut: messages.WithLabelValues("out"),
		bytesIn: bytes.WithLabelValues("in"), bytesOut: bytes.WithLabelValues("out"),
		throttled: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "signalbox_document_socket_throttled_total", Help: "Times that an editor connection exceeded its rate limit and was delayed.",
		}),
		closed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "signalbox_document_socket_closed_total", Help: "Closed editor connections, by reason.",
		}, []string{"reason"}),
	}
	if reg == nil {
		return m, nil
	}
	var errs []error
	for _, c := range []prometheus.Collector{open, messages, bytes, m.throttled, m.closed} {
		errs = append(errs, reg.Register(c))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("socket: register metrics: %w", err)
	}
	return m, nil
}

func (m *metrics) open(s session) prometheus.Gauge {
	if _, ok := s.(*hocuspocus); ok {
		return m.hocuspocus
	}
	return m.plain
}
