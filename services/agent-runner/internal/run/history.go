package run

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/fault"
)

// Setting is what a session says about its runs.
type Setting struct {
	SystemPrompt string
	Preset       string
	Tools        []string
	MaxSteps     *int
}

// maxHistory bounds what one run holds of a conversation in memory.
const maxHistory = 64 << 20

// History returns the conversation up to now, oldest first, and the session's settings.
func (s *Store) History(ctx context.Context, c *Claim) ([]Message, Setting, error) {
	var (
		messages []Message
		setting  Setting
	)
	err := s.db.InWorkspace(ctx, c.Run.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			SELECT system_prompt, preset, tools, max_steps FROM sessions
			WHERE workspace_id = @workspace AND id = @session`, c.key())
		if err != nil {
			return err
		}
		if setting, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[Setting]); err != nil {
			return err
		}
		var size int64
		err = tx.QueryRow(ctx, `
			SELECT coalesce(sum(octet_length(content::text) + coalesce(octet_length(raw), 0)), 0) FROM messages
			WHERE workspace_id = @workspace AND session_id = @session AND position IS NOT NULL`, c.key()).Scan(&size)
		if err != nil {
			return err
		}
		if size > maxHistory {
			return fault.Coded(fault.TooLarge, "SESSION_FULL", "the conversation is too long to be answered: start a new session")
		}
		rows, err = tx.Query(ctx, `
			SELECT `+MessageColumns+` FROM messages
			WHERE workspace_id = @workspace AND session_id = @session AND position IS NOT NULL
			ORDER BY position`, c.key())
		if err != nil {
			return err
		}
		messages, err = pgx.CollectRows(rows, pgx.RowToStructByName[Message])
		return err
	})
	if err != nil {
		return nil, Setting{}, fmt.Errorf("read the conversation: %w", err)
	}
	return messages, setting, nil
}
