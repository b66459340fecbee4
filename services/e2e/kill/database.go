package kill

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/services/e2e/world"
)

// query reads rows from the database as its administrator. It fails at once if the database is
// down.
func query[T any](ctx context.Context, h *harness, limit time.Duration, fn pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	db, err := pgx.Connect(ctx, h.world.Database)
	if err != nil {
		return nil, err
	}
	defer func() { _ = db.Close(context.WithoutCancel(ctx)) }() // nothing was written
	rows, err := db.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, fn)
}

// claimed returns the runs that a runner has claimed, none if the database does not answer at
// once.
func (h *harness) claimed(ctx context.Context, p *world.Proc) []string {
	runs, err := query(ctx, h, 300*time.Millisecond, pgx.RowTo[string],
		`SELECT id::text FROM agent.runs WHERE state = 'running' AND runner LIKE '%/' || $1::text || '/%'`, fmt.Sprint(p.PID()))
	if err != nil {
		return nil
	}
	return runs
}
