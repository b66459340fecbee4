package archive

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/pg"
)

// readPosition returns the position up to which the stream is copied.
func (c *copier) readPosition(ctx context.Context) (position, error) {
	var at position
	args := pg.Args{"stream": c.stream}
	// AsSystem: a stream has the events of all workspaces.
	err := c.cfg.DB.AsSystem(ctx, func(ctx context.Context, tx pgx.Tx) error {
		read := func() error {
			return tx.QueryRow(ctx, `SELECT stream_created, sequence FROM run_log_positions WHERE stream = @stream`, args).Scan(&at.Created, &at.Sequence)
		}
		err := read()
		if !pg.NoRows(err) {
			return err
		}
		_, err = tx.Exec(ctx, `
			INSERT INTO run_log_positions (stream, stream_created, sequence) VALUES (@stream, 0, 0) ON CONFLICT DO NOTHING`, args)
		if err != nil {
			return err
		}
		return read()
	})
	if err != nil {
		return at, fmt.Errorf("read the position of the run log's copy: %w", err)
	}
	return at, nil
}

// commit writes the chunks of a batch and advances the position, or returns errOvertaken.
// Chunks of deleted sessions are left out.
func (c *copier) commit(ctx context.Context, b *batch, to position) error {
	statements := &pgx.Batch{}
	// A crash loses the position together with the rows, and they are copied again.
	statements.Queue(`SELECT set_config('synchronous_commit', 'off', true)`)
	statements.Queue(`
		UPDATE run_log_positions SET stream_created = @new_created, sequence = @new, moved_at = now()
		WHERE stream = @stream AND stream_created = @created AND sequence = @old`,
		pg.Args{
			"stream": c.stream, "created": c.at.Created, "old": c.at.Sequence, "new_created": to.Created, "new": to.Sequence,
		},
	)
	if len(b.chunks) > 0 {
		// This statement comes after the one that may wait for the position, so that its
		// snapshot shows which sessions were deleted meanwhile.
		statements.Queue(`
			INSERT INTO run_log (workspace_id, session_id, run_ordinal, epoch, first_number, last_number, ends, stream_created, events)
			SELECT s.workspace_id, s.id, c.run, c.epoch, c.first, c.last, c.ends, @created, c.events
			FROM unnest(@workspaces::uuid[], @sessions::uuid[], @runs::bigint[], @epochs::bigint[], @firsts::bigint[], @lasts::bigint[],
				@ends::boolean[], @events::bytea[]) WITH ORDINALITY
				AS c (workspace, session, run, epoch, first, last, ends, events, place)
			JOIN sessions s ON s.workspace_id = c.workspace AND s.id = c.session
			ORDER BY c.place`, columns(b.chunks, to.Created))
	}
	// AsSystem: a batch has the events of all workspaces.
	err := c.cfg.DB.AsSystem(ctx, func(ctx context.Context, tx pgx.Tx) error {
		results := tx.SendBatch(ctx, statements)
		_, err := results.Exec()
		if err != nil {
			_ = results.Close() // the same error
			return err
		}
		moved, err := results.Exec()
		if err != nil {
			_ = results.Close() // the same error
			return err
		}
		if err := results.Close(); err != nil {
			return err
		}
		if moved.RowsAffected() == 0 {
			return errOvertaken
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("write the copy of the run log: %w", err)
	}
	return nil
}

// columns turns chunks into one array for each column.
func columns(chunks []*chunk, created int64) pg.Args {
	n := len(chunks)
	workspaces, sessions := make([]uuid.UUID, n), make([]uuid.UUID, n)
	runs, epochs, firsts, lasts := make([]int64, n), make([]int64, n), make([]int64, n), make([]int64, n)
	ends, events := make([]bool, n), make([][]byte, n)
	for i, c := range chunks {
		workspaces[i], sessions[i] = c.workspace.UUID, c.session.UUID
		runs[i], epochs[i], firsts[i], lasts[i] = c.run, c.epoch, c.first, c.last
		ends[i], events[i] = c.ends, c.events
	}
	return pg.Args{
		"workspaces": workspaces, "sessions": sessions, "runs": runs, "epochs": epochs, "firsts": firsts, "lasts": lasts,
		"ends": ends, "events": events, "created": created,
	}
}

const (
	// expireBatch bounds the rows that one transaction deletes.
	expireBatch = 1000
	// expireParts divides Config.Keep into the intervals at which old rows are deleted.
	expireParts = 1440
)

// expire deletes rows older than Config.Keep until ctx is done. All replicas do so.
func (a *Archive) expire(ctx context.Context) {
	every := max(a.cfg.Keep/expireParts, time.Millisecond)
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(every/2 + rand.N(every)):
		}
		for more := true; more && ctx.Err() == nil; {
			begun := time.Now()
			n, err := a.expireSome(ctx)
			if err != nil && ctx.Err() == nil {
				a.cfg.Log.WarnContext(ctx, "old run log not deleted, trying again", "error", err)
			}
			more = err == nil && n == expireBatch
			if more { // leaves half of the time to others
				select {
				case <-ctx.Done():
				case <-time.After(time.Since(begun)):
				}
			}
		}
	}
}

func (a *Archive) expireSome(ctx context.Context) (n int64, err error) {
	// AsSystem: rows of all workspaces expire.
	err = a.cfg.DB.AsSystem(ctx, func(ctx context.Context, tx pgx.Tx) error {
		deleted, err := tx.Exec(ctx, `
			DELETE FROM run_log WHERE ctid = ANY (ARRAY(
				SELECT ctid FROM run_log WHERE written_at < now() - @keep::interval
				ORDER BY written_at LIMIT @limit FOR UPDATE SKIP LOCKED))`,
			pg.Args{"keep": a.cfg.Keep, "limit": expireBatch})
		n = deleted.RowsAffected()
		return err
	})
	return n, err
}
