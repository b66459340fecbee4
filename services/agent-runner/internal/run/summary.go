package run

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/id"
	"signalbox.dev/services/agent-runner/internal/branch"
)

// Summary is what the model is told in place of the first messages of a conversation. The
// messages themselves are kept.
type Summary struct {
	// Messages is how many messages it stands for.
	Messages int `json:"messages"`
	// Known is how many messages the conversation had when it was made. The token counts of
	// earlier answers are of prompts without it.
	Known int `json:"known"`
	// Run is the run that made it, in a step of its own, and Nth counts those that the run made.
	Run       id.Run    `json:"run_id"`
	Nth       int       `json:"nth"`
	Text      string    `json:"text"`
	CreatedAt time.Time `json:"created_at"`
}

// NewestSummary selects the summary that counts of a session s as JSON, or null: the longest one of
// which all messages are on the current branch.
const NewestSummary = `(SELECT to_jsonb(m) FROM summaries m
	WHERE m.workspace_id = s.workspace_id AND m.session_id = s.id AND coalesce(m.position, m.messages) <@ (SELECT current_path(s.workspace_id, s.id))
	ORDER BY m.messages DESC LIMIT 1)`

func queueSummary(b *pgx.Batch, c *Claim, s *Summary) {
	args := c.key()
	args["messages"], args["known"], args["nth"], args["text"] = s.Messages, s.Known, s.Nth, s.Text
	// It replaces one of another branch that stands for as many messages, which is made again when
	// it is needed.
	b.Queue(`
		INSERT INTO summaries (session_id, workspace_id, messages, position, known, run_id, nth, text)
		VALUES (@session, @workspace, @messages::integer, (
			SELECT position FROM messages WHERE workspace_id = @workspace AND session_id = @session AND `+branch.OnCurrent+`
			ORDER BY position OFFSET @messages::integer - 1 LIMIT 1), @known, @run, @nth, @text)
		ON CONFLICT (session_id, messages) DO UPDATE SET position = excluded.position, known = @known, run_id = @run, nth = @nth, text = @text, created_at = excluded.created_at`, args)
	queueCompactDone(b, c)
}

// RecordNoSummary records that the model has made no summary of a conversation of so many
// messages, and drops a person's request for one.
func (s *Store) RecordNoSummary(ctx context.Context, c *Claim, messages int) error {
	_, err := s.commit(ctx, c, 0, "", func(b *pgx.Batch) error {
		args := c.key()
		args["messages"] = messages
		b.Queue(`UPDATE sessions SET compact = false, no_summary_at = @messages WHERE workspace_id = @workspace AND id = @session`, args)
		return nil
	})
	if err != nil {
		return fmt.Errorf("record that there is no summary: %w", err)
	}
	return nil
}

func queueCompactDone(b *pgx.Batch, c *Claim) {
	b.Queue(`UPDATE sessions SET compact = false WHERE workspace_id = @workspace AND id = @session`, c.key())
}
