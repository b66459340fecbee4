package pg

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Collector returns the metrics of the pool. The caller registers it, once.
func (db *DB) Collector() prometheus.Collector { return collector{db} }

type collector struct{ db *DB }

var (
	connectionsDesc  = prometheus.NewDesc("signalbox_pg_connections", "Connections of the service's pool, by state: in_use, idle, max.", []string{"state"}, nil)
	transactionsDesc = prometheus.NewDesc("signalbox_pg_transactions_total", "Transactions, counted as connections taken from the service's pool.", nil, nil)
	waitsDesc        = prometheus.NewDesc("signalbox_pg_waits_total", "Times that no connection of the pool was idle, and one had to be waited for or opened.", nil, nil)
	waitedDesc       = prometheus.NewDesc("signalbox_pg_wait_seconds_total", "Time spent waiting for connections of the pool.", nil, nil)
)

// Describe implements prometheus.Collector.
func (collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- connectionsDesc
	ch <- transactionsDesc
	ch <- waitsDesc
	ch <- waitedDesc
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	s := c.db.pool.Stat()
	for state, n := range map[string]int32{"in_use": s.AcquiredConns(), "idle": s.IdleConns(), "max": s.MaxConns()} {
		ch <- prometheus.MustNewConstMetric(connectionsDesc, prometheus.GaugeValue, float64(n), state)
	}
	ch <- prometheus.MustNewConstMetric(transactionsDesc, prometheus.CounterValue, float64(s.AcquireCount()))
	// Transactions wait for a slot first. What waits in the pool itself waits for a connection to be opened.
	waited := time.Duration(c.db.waited.Load()) + s.EmptyAcquireWaitTime()
	ch <- prometheus.MustNewConstMetric(waitsDesc, prometheus.CounterValue, float64(c.db.waits.Load()+s.EmptyAcquireCount()))
	ch <- prometheus.MustNewConstMetric(waitedDesc, prometheus.CounterValue, waited.Seconds())
}
