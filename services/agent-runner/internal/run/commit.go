package run

import (
	"context"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
)

// SQLSTATEs that the function fence raises.
const (
	codeFenced    = "SB001"
	codeCommitted = "SB002"
)

// commit runs what write queues as one transaction of a claim, in one round trip. It returns
// ErrFenced if the claim is no longer the newest. step and state say which state the
// transaction brings the step to. If the step is in that state already, because the reply to
// an earlier try was lost, commit does nothing and returns again. state is empty if a
// repetition is harmless.
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

// waiting has the messages and runs that wait for the end of a step or a run.
type waiting struct {
	unread []id.Message // unread steering messages
	next   []id.Run     // the session's first queued run, if any
	other  []Claimable  // a waiting run of another session of the workspace, if any
}

// commitQueued is commit for writes that depend on waiting messages and runs. It locks and
// reads in one round trip and writes in a second one.
func (s *Store) commitQueued(ctx context.Context, c *Claim, write func(ctx context.Context, b *pgx.Batch, w *waiting) error) error {
	var (
		held bool
		w    waiting
	)
	reads := &pgx.Batch{}
	queueLock(reads, c, &held)
	queueWaiting(reads, c, &w)
	return s.db.ChangeInWorkspace(ctx, c.Run.Workspace, reads, func(b *pgx.Batch) error {
		if !held {
			return ErrFenced
		}
		return write(ctx, b, &w)
	})
}

// queueLock locks the session and then the run, and reads whether the claim is the newest.
func queueLock(b *pgx.Batch, c *Claim, held *bool) {
	b.Queue(`SELECT FROM sessions WHERE workspace_id = @workspace AND id = @session FOR UPDATE`, c.key())
	b.Queue(`
		SELECT FROM runs WHERE workspace_id = @workspace AND id = @run AND epoch = @epoch AND state = 'running'
		FOR UPDATE`, c.key()).Query(exists(held))
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
	queueOther(b, c, &w.other)
}

// queueOther reads a run of another session of the workspace that waits for a slot.
func queueOther(b *pgx.Batch, c *Claim, into *[]Claimable) {
	b.Queue(selectWaiting, c.key()).Query(func(rows pgx.Rows) (err error) {
		*into, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Claimable])
		return err
	})
}

// exists returns a row function for a batch that sets into if there is a row.
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

// queueMessage inserts a message of the run at the end of the conversation. args are its
// columns.
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

// queueJoin moves a waiting message to the end of the conversation.
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

// queueProgress updates the run's row: tokens, the number of complete steps, and the number
// of the event that announces the commit.
func queueProgress(b *pgx.Batch, c *Claim, u Usage, steps int, lastEvent int64) {
	args := c.key()
	args["in"], args["cacheread"], args["cachewrite"] = u.Input, u.CacheRead, u.CacheWrite
	args["out"], args["reasoning"], args["estimated"] = u.Output, u.Reasoning, u.Estimated
	args["steps"], args["event"] = steps, lastEvent
	b.Queue(`
		UPDATE runs SET input_tokens = input_tokens + @in, cache_read_tokens = cache_read_tokens + @cacheread,
			cache_write_tokens = cache_write_tokens + @cachewrite, output_tokens = output_tokens + @out,
			reasoning_tokens = reasoning_tokens + @reasoning, estimated = estimated OR @estimated, steps = greatest(steps, @steps), last_event = @event, fruitless = 0,
			reserved_tokens = 0, reserved_cost_micros = 0, reserved_day = NULL
		WHERE workspace_id = @workspace AND id = @run`, args)
}
