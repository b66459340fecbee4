package room

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	seats                                           prometheus.Gauge
	updates, batches, deliveries, refused           prometheus.Counter
	repairs, resets, loads, saves, unsaved, dropped prometheus.Counter
	quarantined                                     prometheus.Counter
	commit                                          prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer, rooms, bytes func() float64) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "signalbox_room_" + name, Help: help})
	}
	m := &metrics{
		seats:       prometheus.NewGauge(prometheus.GaugeOpts{Name: "signalbox_room_seats", Help: "Connections in documents."}),
		updates:     counter("updates_total", "Updates received from connections."),
		batches:     counter("batches_total", "Committed batches of updates."),
		deliveries:  counter("deliveries_total", "Update messages sent to connections."),
		refused:     counter("updates_refused_total", "Updates refused as malformed or too large."),
		repairs:     counter("gaps_repaired_total", "Times that updates missed on the bus were read from Postgres."),
		resets:      counter("resets_total", "Times that a document in memory was discarded and reloaded."),
		quarantined: counter("updates_quarantined_total", "Updates that panicked twice."),
		loads:       counter("loads_total", "Loaded documents."),
		saves:       counter("snapshots_total", "Saved snapshots."),
		unsaved:     counter("snapshots_failed_total", "Failed saves of snapshots, which are retried."),
		dropped:     counter("messages_dropped_total", "Messages dropped because the bus was slow or down."),
		commit: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "signalbox_room_commit_seconds", Help: "Time of a commit, including retries.",
			Buckets: []float64{0.0005, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10},
		}),
	}
	open := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "signalbox_rooms", Help: "Documents in memory."}, rooms)
	memory := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "signalbox_rooms_bytes", Help: "Approximate memory of open documents."}, bytes)
	if reg != nil {
		reg.MustRegister(open, memory, m.seats, m.updates, m.batches, m.deliveries, m.refused, m.repairs, m.resets, m.loads, m.saves, m.unsaved, m.dropped, m.quarantined, m.commit)
	}
	return m
}
