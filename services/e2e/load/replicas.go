package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/services/e2e/world"
)

// Times of the measurement of idle replicas.
const (
	settle  = 15 * time.Second
	idleFor = 30 * time.Second
)

// replicas measures what idle services cost PostgreSQL and the processors, by the number of their
// replicas. It needs the extension pg_stat_statements.
func replicas(ctx context.Context, b *bench) error {
	counts := []int{1, 8}
	if text := os.Getenv("REPLICAS"); text != "" {
		counts = nil
		for field := range strings.FieldsSeq(text) {
			var n int
			if _, err := fmt.Sscan(field, &n); err != nil || n < 1 {
				return fmt.Errorf("REPLICAS has %q: want numbers from 1 on", field)
			}
			counts = append(counts, n)
		}
	}
	for _, n := range counts {
		if err := b.idleReplicas(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) idleReplicas(ctx context.Context, n int) error {
	w, err := b.world(ctx, world.Options{Replicas: n, Partitions: stagePartitions, Statements: true})
	if err != nil {
		return err
	}
	defer quietly(w.Close)
	if err := pause(ctx, settle); err != nil {
		return err
	}
	c, err := pgx.Connect(ctx, w.Database)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close(ctx) }()
	var connections int
	if err := c.QueryRow(ctx, "SELECT count(*) FROM pg_stat_activity WHERE usename <> current_user").Scan(&connections); err != nil {
		return err
	}
	before, begin, err := usage(w), time.Now(), resetStatements(ctx, w)
	if err != nil {
		return err
	}
	if err := pause(ctx, idleFor); err != nil {
		return err
	}
	calls, err := statements(ctx, w)
	if err != nil {
		return err
	}
	seconds := time.Since(begin).Seconds()
	of := fmt.Sprintf("%d idle replicas of each service, ", n)
	var total int64
	for _, s := range calls {
		total += s.calls
	}
	b.figure(of+"statements", float64(total)/seconds, "1/s")
	b.figure(of+"connections to PostgreSQL", float64(connections), "")
	after := usage(w)
	cost := map[string]time.Duration{}
	for part, used := range after {
		service := strings.TrimRight(strings.TrimRight(part, "0123456789"), "-")
		cost[service] += used - before[part]
	}
	for service, used := range cost {
		b.figure(of+"processor time of "+service, milliseconds(used)/seconds, "ms/s")
	}
	for _, s := range calls {
		if rate := float64(s.calls) / seconds; rate >= 0.05 {
			fmt.Fprintf(b.out, "    %8.2f/s %-22s %s\n", rate, s.role, s.query)
		}
	}
	return nil
}

// statement is how often a role has run a statement.
type statement struct {
	role, query string
	calls       int64
}

func resetStatements(ctx context.Context, w *world.World) error {
	_, err := countedStatements(ctx, w, "SELECT pg_stat_statements_reset()::text, '', 0::bigint")
	return err
}

// statements returns what the services have run since resetStatements, the most frequent first.
func statements(ctx context.Context, w *world.World) ([]statement, error) {
	return countedStatements(ctx, w, `
		SELECT u.rolname, left(regexp_replace(s.query, '\s+', ' ', 'g'), 110), sum(s.calls)::bigint
		FROM pg_stat_statements s JOIN pg_roles u ON u.oid = s.userid
		WHERE u.rolname LIKE 'signalbox%' GROUP BY 1, 2 ORDER BY 3 DESC`)
}

func countedStatements(ctx context.Context, w *world.World, query string) ([]statement, error) {
	config, err := pgx.ParseConfig(w.Database)
	if err != nil {
		return nil, err
	}
	config.Database = "postgres"
	c, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close(ctx) }()
	rows, err := c.Query(ctx, query)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (s statement, err error) {
		return s, row.Scan(&s.role, &s.query, &s.calls)
	})
}

// pause waits.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
