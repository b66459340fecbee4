// Package backlog measures what waits, for operators: queued runs by workspace, messages that
// were not published yet, and budgets that are nearly spent.
//
// The figures are those of the whole installation, not of one replica: add them up over
// workspaces, but take the maximum over replicas. They are read from Postgres when somebody
// asks for metrics, at most once in each interval, and are left out when Postgres does not
// answer in time.
package backlog

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"signalbox.dev/pkg/pg"
)

const (
	interval = 10 * time.Second
	timeout  = 2 * time.Second
	// most bounds the workspaces and budgets that have series of their own.
	most = 20
)

var (
	runsDesc   = prometheus.NewDesc("signalbox_runs", "Runs by state: queued, running, waiting (for a person).", []string{"state"}, nil)
	queuedDesc = prometheus.NewDesc("signalbox_queue_runs", "Queued runs of the 20 workspaces whose first one has waited longest.", []string{"workspace"}, nil)
	oldestDesc = prometheus.NewDesc("signalbox_queue_oldest_seconds", "How long the first queued run of each of these workspaces has waited. Runs behind another one of their session do not count.", []string{"workspace"}, nil)
	outboxDesc = prometheus.NewDesc("signalbox_outbox_oldest_seconds", "Age of the oldest message that was committed and not published yet.", nil, nil)
	budgetDesc = prometheus.NewDesc("signalbox_budget_used_ratio", "Used part of the 20 budgets that are used most, from a half on: 1 is all of it.", []string{"workspace", "scope"}, nil)
)

// Collector is a prometheus.Collector. It is safe for concurrent use.
type Collector struct {
	db  *pg.DB
	log *slog.Logger

	mu   sync.Mutex // held while Postgres is asked
	at   time.Time
	last []prometheus.Metric
}

// New returns a collector, which the caller registers.
func New(db *pg.DB, log *slog.Logger) *Collector { return &Collector{db: db, log: log} }

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{runsDesc, queuedDesc, oldestDesc, outboxDesc, budgetDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.at.IsZero() || time.Since(c.at) >= interval {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		metrics, err := c.read(ctx)
		if err != nil {
			c.log.WarnContext(ctx, "backlog not measured", "error", err)
		}
		c.last, c.at = metrics, time.Now()
	}
	for _, m := range c.last {
		ch <- m
	}
}

// queued is true of a run r that no runner has had yet, or that was resumed and waits for one.
const queued = `(r.state = 'queued' OR r.state = 'running' AND r.runner = '')`

// read returns nothing with an error.
func (c *Collector) read(ctx context.Context) ([]prometheus.Metric, error) {
	var metrics []prometheus.Metric
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		metrics = append(metrics, prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...))
	}
	b := &pgx.Batch{}
	b.Queue(`
		SELECT s.state, count(r.state) FROM (VALUES ('queued'), ('running'), ('waiting')) s (state)
		LEFT JOIN runs r ON s.state = CASE WHEN ` + queued + ` THEN 'queued' ELSE r.state END AND r.state IN ('queued', 'running', 'waiting')
		GROUP BY s.state`).Query(func(rows pgx.Rows) error {
		var state string
		var n float64
		_, err := pgx.ForEachRow(rows, []any{&state, &n}, func() error { gauge(runsDesc, n, state); return nil })
		return err
	})
	b.Queue(`
		SELECT r.workspace_id::text, count(*), extract(epoch FROM clock_timestamp() - min(coalesce(r.lease_until, r.created_at)) FILTER (WHERE
			NOT EXISTS (SELECT FROM runs f WHERE f.session_id = r.session_id AND f.ordinal < r.ordinal AND f.state IN ('queued', 'running', 'waiting'))))::float8 AS oldest
		FROM runs r WHERE r.state IN ('queued', 'running') AND `+queued+`
		GROUP BY r.workspace_id ORDER BY oldest DESC NULLS LAST LIMIT @most`, pg.Args{"most": most}).Query(func(rows pgx.Rows) error {
		var workspace string
		var n float64
		var oldest *float64
		_, err := pgx.ForEachRow(rows, []any{&workspace, &n, &oldest}, func() error {
			gauge(queuedDesc, n, workspace)
			if oldest != nil {
				gauge(oldestDesc, *oldest, workspace)
			}
			return nil
		})
		return err
	})
	b.Queue(`SELECT coalesce(extract(epoch FROM clock_timestamp() - (SELECT created_at FROM outbox ORDER BY id LIMIT 1)), 0)::float8`).QueryRow(func(row pgx.Row) error {
		var oldest float64
		err := row.Scan(&oldest)
		gauge(outboxDesc, oldest)
		return err
	})
	b.Queue(`
		SELECT workspace_id::text, scope, max(used) AS used FROM (
			SELECT b.workspace_id, b.scope, greatest(
				u.tokens / nullif(b.tokens, 0)::float8, u.cost_micros / nullif(b.cost_micros, 0)::float8,
				u.steps / nullif(b.steps, 0)::float8, u.milliseconds / nullif(b.seconds * 1000, 0)::float8) AS used
			FROM budget_use u JOIN budgets b ON b.id = u.budget_id
			WHERE u.day IN ('epoch', (clock_timestamp() AT TIME ZONE 'UTC')::date)) each
		WHERE used >= 0.5
		GROUP BY workspace_id, scope ORDER BY used DESC LIMIT @most`, pg.Args{"most": most}).Query(func(rows pgx.Rows) error {
		var workspace, scope string
		var used float64
		_, err := pgx.ForEachRow(rows, []any{&workspace, &scope, &used}, func() error { gauge(budgetDesc, used, workspace, scope); return nil })
		return err
	})
	// AsSystem: operators see all workspaces.
	if err := c.db.ReadAsSystem(ctx, b); err != nil {
		return nil, err
	}
	return metrics, nil
}
