package run

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/services/agent-runner/internal/branch"
	"signalbox.dev/services/agent-runner/internal/clienttool"
	"signalbox.dev/services/agent-runner/internal/preset"
)

// Settings are a session's settings for its runs.
type Settings struct {
	SystemPrompt string
	Preset       string
	Tools        []string
	MaxSteps     *int
	// ClientTools are the run's, if it has its own.
	ClientTools []clienttool.Tool
	// OwnPreset is the workspace's own preset with the name Preset, or nil.
	OwnPreset *preset.Preset
	// Compact is true if a person has asked for a summary of the conversation so far.
	Compact bool
	// NoSummaryAt is how many messages the conversation had when the model last failed to summarize
	// it; 0 if it never did.
	NoSummaryAt int
	// TitleSource is where the session's title is from: empty (it has none), message, model or person.
	TitleSource string
	// Summary stands for the first messages of the conversation; nil if there is none.
	Summary *Summary
	// Elsewhere are calls that are not in the conversation, whose effects remain.
	Elsewhere []branch.Call
}

// maxHistory bounds the conversation that a run holds in memory, in bytes.
const maxHistory = 64 << 20

// history holds the rows of a conversation, which is the session's current branch.
type history struct {
	messages []Message
	settings []Settings
	size     int64
}

// sizeOfMessages is the size of a conversation's messages in bytes.
const sizeOfMessages = `(SELECT coalesce(sum(octet_length(content::text) + coalesce(octet_length(raw), 0)), 0) FROM messages
	WHERE workspace_id = @workspace AND session_id = @session AND ` + branch.OnCurrent + `)`

// queueHistory reads the conversation if the condition holds.
func queueHistory(b *pgx.Batch, args pg.Args, condition string) *history {
	h := &history{}
	b.Queue(`SELECT system_prompt, preset, tools, max_steps, title_source, compact, no_summary_at, `+preset.Own+` AS own_preset, `+NewestSummary+` AS summary,
			`+branch.Elsewhere+` AS elsewhere,
			coalesce((SELECT client_tools FROM runs WHERE workspace_id = @workspace AND id = @run), client_tools) AS client_tools
		FROM sessions s
		WHERE workspace_id = @workspace AND id = @session`, args).Query(pg.Collect(&h.settings))
	b.Queue(`SELECT CASE WHEN `+condition+` THEN `+sizeOfMessages+` ELSE 0 END`, args).QueryRow(func(row pgx.Row) error { return row.Scan(&h.size) })
	queueMessages(b, condition, args, &h.messages)
	return h
}

// queueMessages reads the messages of a conversation if the condition holds and they are not
// larger than maxHistory.
func queueMessages(b *pgx.Batch, condition string, args pg.Args, into *[]Message) {
	b.Queue(fmt.Sprintf(`SELECT %s FROM messages
		WHERE workspace_id = @workspace AND session_id = @session AND %s AND %s AND %s <= %d
		ORDER BY position`, MessageColumns, branch.OnCurrent, condition, sizeOfMessages, maxHistory), args).Query(pg.Collect(into))
}

// History returns the conversation, oldest message first, and the session's settings. The
// first call after Claim returns what was read with the claim.
func (s *Store) History(ctx context.Context, c *Claim) ([]Message, Settings, error) {
	h := c.history
	c.history = nil
	if h == nil {
		b := &pgx.Batch{}
		h = queueHistory(b, c.key(), "true")
		if err := s.db.ReadInWorkspace(ctx, c.Run.Workspace, b); err != nil {
			return nil, Settings{}, fmt.Errorf("read the conversation: %w", err)
		}
	}
	switch {
	case len(h.settings) == 0:
		return nil, Settings{}, fmt.Errorf("read the conversation: %w", ErrFenced) // the session was deleted
	case h.size > maxHistory:
		return nil, Settings{}, fault.Coded(fault.TooLarge, "SESSION_FULL", "the conversation is too long to be answered: start a new session")
	}
	return h.messages, h.settings[0], nil
}
