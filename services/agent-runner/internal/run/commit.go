package run

import (
	"context"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
)

// SQLSTATEs of the function fence.
const (
	codeFenced    = "SB001"
	codeCommitted = "SB002"
)

// commit runs a transaction of a claim: what write queues, in one round trip. It
// returns ErrFenced when the claim does not hold any more. step and state say what the
// transaction brings about, so that a repetition does nothing (the answer to the first
// try was lost) and is told by again; state is empty where a repetition is harmless.
func (s *Store) commit(ctx context.Context, c *Claim, step int, state string, write func(b *pgx.Batch) error) (again bool, err error) {
	args := c.key()
	args["step"], args["state"] = step, state
	b := &pgx.Batch{}
	b.Queue(`SELECT fence(@workspace, @session, @run, @epoch, @step, @state)`, args)
	if err := write(b); err != nil {
		return false, err
	}
	err = s.db.WriteInWorkspace(ctx, c.Run.Workspace, b)
	switch {
	case pg.HasCode(err, codeFenced):
		return false, ErrFenced
	case pg.HasCode(err, codeCommitted):
		return true, nil
	}
	return false, err
}

// waiting is what a session has for after a step or a run.
type waiting struct {
	unread []id.Message // steering messages that nobody has read
	next   []id.Run     // the first queued run
	other  []Claimable  // a run of another session of the workspace that waits for a runner
}

// commitQueued is commit for what depends on what waits: it locks and looks in one
// round trip, and writes in another.
func (s *Store) commitQueued(ctx context.Context, c *Claim, write func(ctx context.Context, b *pgx.Batch, w *waiting) error) error {
	var (
		held bool
		w    waiting
	)
	look := &pgx.Batch{}
	look.Queue(`SELECT FROM sessions WHERE workspace_id = @workspace AND id = @session FOR UPDATE`, c.key())
	look.Queue(`
		SELECT FROM runs WHERE workspace_id = @workspace AND id = @run AND epoch = @epoch AND state = 'running'
		FOR UPDATE`, c.key()).Query(exists(&held))
	queueWaiting(look, c, &w)
	return s.db.ChangeInWorkspace(ctx, c.Run.Workspace, look, func(b *pgx.Batch) error {
		if !held {
			return ErrFenced
		}
		return write(ctx, b, &w)
	})
}

func queueWaiting(b *pgx.Batch, c *Claim, w *waiting) {
	b.Queue(`
		SELECT message_id FROM run_inbox
		WHERE workspace_id = @workspace AND run_id = @run AND kind = 'steer' AND read_at IS NULL
		ORDER BY id`, c.key()).Query(collectIDs(&w.unread))
	b.Queue(`
		SELECT id FROM runs
		WHERE workspace_id = @workspace AND session_id = @session AND state = 'queued'
		ORDER BY ordinal LIMIT 1`, c.key()).Query(collectIDs(&w.next))
	b.Queue(selectWaiting, c.key()).Query(func(rows pgx.Rows) (err error) {
		w.other, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Claimable])
		return err
	})
}

// exists returns a function for a batch that tells whether there is a row.
func exists(into *bool) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		*into = rows.Next()
		return rows.Err()
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
func queueMessage(b *pgx.Batch, args pg.Args) {
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

// queueProgress notes in the run's row what a transaction brings: tokens, the number
// of complete steps, and that of the event that announces it.
func queueProgress(b *pgx.Batch, c *Claim, u Usage, steps int, lastEvent int64) {
	args := c.key()
	args["in"], args["cacheread"], args["cachewrite"] = u.Input, u.CacheRead, u.CacheWrite
	args["out"], args["reasoning"], args["estimated"] = u.Output, u.Reasoning, u.Estimated
	args["steps"], args["event"] = steps, lastEvent
	b.Queue(`
		UPDATE runs SET input_tokens = input_tokens + @in, cache_read_tokens = cache_read_tokens + @cacheread,
			cache_write_tokens = cache_write_tokens + @cachewrite, output_tokens = output_tokens + @out,
			reasoning_tokens = reasoning_tokens + @reasoning, estimated = estimated OR @estimated, steps = greatest(steps, @steps), last_event = @event, fruitless = 0
		WHERE workspace_id = @workspace AND id = @run`, args)
}
