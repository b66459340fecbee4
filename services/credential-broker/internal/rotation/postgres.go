package rotation

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
)

// postgres is the tables of a database.
type postgres struct{ db *pg.DB }

func (t postgres) read(ctx context.Context, ws id.Workspace, f *field, version int, after uuid.UUID) (all []row, err error) {
	err = t.db.AsSystem(ctx, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, f.behind(), pg.Args{"workspace": ws, "version": version, "after": after, "n": batch})
		if err != nil {
			return err
		}
		all, err = pgx.CollectRows(rows, pgx.RowToStructByName[row])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read what is sealed in %s: %w", f.table, err)
	}
	return all, nil
}

func (t postgres) write(ctx context.Context, ws id.Workspace, f *field, version int, rows []resealed) (written int, err error) {
	n := len(rows)
	keys, olds, versions, news := make([]uuid.UUID, n), make([][]byte, n), make([]int, n), make([][]byte, n)
	for i, r := range rows {
		keys[i], olds[i], versions[i], news[i] = r.Key, r.Sealed, r.Version, r.now
	}
	args := pg.Args{"workspace": ws, "version": version, "keys": keys, "olds": olds, "versions": versions, "news": news}
	err = t.db.AsSystem(ctx, func(ctx context.Context, tx pgx.Tx) error {
		// Two rotations could lock the same rows in different orders.
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended('key rotation ' || $1, 0))`, ws.String()); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, f.swap(), args)
		written = int(tag.RowsAffected())
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("write what was sealed anew in %s: %w", f.table, err)
	}
	return written, nil
}

func (t postgres) remove(ctx context.Context, ws id.Workspace, grace time.Duration) (removed int, err error) {
	err = t.db.AsSystem(ctx, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `
			DELETE FROM data_keys AS k WHERE workspace_id = @workspace AND retired_at <= now() - @grace::interval AND `+unused(),
			pg.Args{"workspace": ws, "grace": grace})
		removed = int(tag.RowsAffected())
		return err
	})
	if err != nil && !pg.IsForeignKeyViolation(err, "") { // a row has just come to use it: later, then
		return 0, fmt.Errorf("remove retired data keys: %w", err)
	}
	return removed, nil
}
