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
		updates:     counter("updates_total", "Updates that connections sent."),
		batches:     counter("batches_total", "Commits of what connections sent."),
		deliveries:  counter("deliveries_total", "Messages with updates that were handed to connections."),
		refused:     counter("updates_refused_total", "Updates that were malformed or asked for too much."),
		repairs:     counter("gaps_repaired_total", "Times that updates missing from the bus were read from Postgres."),
		resets:      counter("resets_total", "Times that a document in memory was thrown away and loaded again."),
		quarantined: counter("updates_quarantined_total", "Updates that made the program panic twice."),
		loads:       counter("loads_total", "Documents that were loaded."),
		saves:       counter("snapshots_total", "Snapshots that were saved."),
		unsaved:     counter("snapshots_failed_total", "Snapshots that were not saved and are tried again."),
		dropped:     counter("messages_dropped_total", "Messages that the bus was too slow for."),
		commit: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "signalbox_room_commit_seconds", Help: "Time of a commit, repeated attempts included.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 3, 9),
		}),
	}
	open := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "signalbox_rooms", Help: "Documents that are in memory."}, rooms)
	memory := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "signalbox_rooms_bytes", Help: "What documents that are in memory take, about."}, bytes)
	if reg != nil {
		reg.MustRegister(open, memory, m.seats, m.updates, m.batches, m.deliveries, m.refused, m.repairs, m.resets, m.loads, m.saves, m.unsaved, m.dropped, m.quarantined, m.commit)
	}
	return m
}
