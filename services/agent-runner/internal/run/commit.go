package run

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/id"
)

// standing is what a commit finds before it writes.
type standing struct {
	held   bool         // the claim is the newest, and the run has not ended
	done   bool         // the step is there already: the answer to an earlier try of this commit was lost
	unread []id.Message // steering messages that nobody has read
	next   []id.Run     // the queued runs of the session, in order
}

// commit runs a transaction of a claim: it locks the session and then the run,
// looks how things stand, and sends what write queues, each in one round trip. It
// returns ErrFenced when the claim does not hold any more. step and state say what
// the transaction brings about, so that a repetition does nothing; state is empty
// where a repetition is harmless.
func (s *Store) commit(ctx context.Context, c *Claim, step int, state string, write func(ctx context.Context, b *pgx.Batch, st *standing) error) error {
	args := c.key()
	args["step"], args["state"] = step, state
	return s.db.InWorkspace(ctx, c.Run.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		var st standing
		look := &pgx.Batch{}
		look.Queue(`SELECT FROM sessions WHERE workspace_id = @workspace AND id = @session FOR UPDATE`, args)
		look.Queue(`
			SELECT FROM runs WHERE workspace_id = @workspace AND id = @run AND epoch = @epoch AND state = 'running'
			FOR UPDATE`, args).
			Query(func(rows pgx.Rows) error {
				st.held = rows.Next()
				return rows.Err()
			})
		look.Queue(`
			SELECT EXISTS (SELECT FROM steps
				WHERE workspace_id = @workspace AND run_id = @run AND step_index = @step AND @state <> '' AND state IN (@state, 'complete'))`, args).
			QueryRow(func(row pgx.Row) error { return row.Scan(&st.done) })
		look.Queue(`
			SELECT message_id FROM run_inbox
			WHERE workspace_id = @workspace AND run_id = @run AND kind = 'steer' AND read_at IS NULL
			ORDER BY id`, args).
			Query(collectIDs(&st.unread))
		look.Queue(`
			SELECT id FROM runs
			WHERE workspace_id = @workspace AND session_id = @session AND state = 'queued'
			ORDER BY ordinal LIMIT 1`, args).
			Query(collectIDs(&st.next))
		if err := tx.SendBatch(ctx, look).Close(); err != nil {
			return fmt.Errorf("look at run %s: %w", c.Run.ID, err)
		}
		switch {
		case !st.held:
			return ErrFenced
		case st.done:
			return nil
		}
		b := &pgx.Batch{}
		if err := write(ctx, b, &st); err != nil || b.Len() == 0 {
			return err
		}
		return tx.SendBatch(ctx, b).Close()
	})
}

// collect returns a function for a batch that reads all rows by name.
func collect[T any](into *[]T) func(pgx.Rows) error {
	return func(rows pgx.Rows) (err error) {
		*into, err = pgx.CollectRows(rows, pgx.RowToStructByName[T])
		return err
	}
}

func collectIDs[T any](into *[]T) func(pgx.Rows) error {
	return func(rows pgx.Rows) (err error) {
		*into, err = pgx.CollectRows(rows, pgx.RowTo[T])
		return err
	}
}

// queueMessage gives a message of the run the next place in the conversation. args
// are its columns.
func queueMessage(b *pgx.Batch, args pgx.NamedArgs) {
	b.Queue(`
		WITH place AS (
			UPDATE sessions SET next_position = next_position + 1
			WHERE workspace_id = @workspace AND id = @session
			RETURNING next_position - 1 AS position
		)
		INSERT INTO messages (id, workspace_id, session_id, run_id, position, step_index, role, content, raw_dialect, raw,
			interrupted, tokens_in, tokens_out, model, created_at)
		SELECT @id, @workspace, @session, @run, position, @step, @role, @content, @dialect, @raw,
			@interrupted, @in, @out, @model, clock_timestamp() FROM place`, args)
}

// queueJoin gives a message that waited its place at the end of the conversation.
func queueJoin(b *pgx.Batch, c *Claim, message id.Message) {
	args := c.key()
	args["message"] = message
	b.Queue(`
		WITH waiting AS (
			SELECT id FROM messages WHERE workspace_id = @workspace AND id = @message AND position IS NULL
		), place AS (
			UPDATE sessions SET next_position = next_position + 1
			WHERE workspace_id = @workspace AND id = @session AND EXISTS (SELECT FROM waiting)
			RETURNING next_position - 1 AS position
		)
		UPDATE messages m SET position = place.position, created_at = clock_timestamp()
		FROM place, waiting WHERE m.workspace_id = @workspace AND m.id = waiting.id`, args)
}

// queueAnnounce notes the number of the event that announces what is committed.
func queueAnnounce(b *pgx.Batch, c *Claim, lastEvent int64) {
	args := c.key()
	args["event"] = lastEvent
	b.Queue(`
		UPDATE runs SET last_event = @event, fruitless = 0
		WHERE workspace_id = @workspace AND id = @run AND epoch = @epoch`, args)
}
