package feed

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	frames, dropped, gaps, logReads, recordReads, snapshots, synthesized, catchUps, writes, bytes prometheus.Counter

	delay   prometheus.Histogram
	viewers prometheus.Gauge
	cut     *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer, backlogs func() float64) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "gateway", Subsystem: "feed", Name: name, Help: help})
	}
	m := &metrics{
		frames:      counter("events_total", "Events that were encoded for viewers."),
		dropped:     counter("events_dropped_total", "Duplicate events and events of older claims."),
		gaps:        counter("gaps_total", "Live events that did not follow the one before."),
		logReads:    counter("log_reads_total", "Reads of the run log."),
		recordReads: counter("record_reads_total", "Reads of the run log's record in PostgreSQL."),
		snapshots:   counter("snapshots_total", "Snapshots that were fetched for viewers."),
		synthesized: counter("ends_made_up_total", "Ends of runs synthesized because the log did not have them."),
		catchUps:    counter("catch_ups_total", "Times that a viewer was handed to a goroutine."),
		writes:      counter("writes_total", "Writes by workers to viewers' connections."),
		bytes:       counter("written_bytes_total", "Bytes in writes by workers to viewers' connections."),
		delay:       prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "gateway", Subsystem: "feed", Name: "delay_seconds", Help: "Time from the storage of an event in the run log until it was encoded for viewers.", Buckets: prometheus.ExponentialBuckets(0.001, 3, 10)}),
		viewers:     prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "gateway", Subsystem: "feed", Name: "viewers", Help: "Viewers of sessions."}),
		cut:         prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "gateway", Subsystem: "feed", Name: "streams_ended_total", Help: "Streams that ended, by reason."}, []string{"reason"}),
	}
	backlog := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "gateway", Subsystem: "feed", Name: "backlog_bytes", Help: "Bytes read for resuming viewers and not written yet."}, backlogs)
	if reg != nil {
		reg.MustRegister(m.frames, m.dropped, m.gaps, m.logReads, m.recordReads, m.snapshots, m.synthesized, m.catchUps, m.writes, m.bytes, m.delay, m.viewers, m.cut, backlog)
	}
	return m
}
