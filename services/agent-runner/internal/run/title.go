package run

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"signalbox.dev/services/agent-runner/internal/budget"
)

// Title is what a model wrote when it was asked for a session's title, and what that used.
type Title struct {
	// Text is empty if there is no title in it.
	Text            string
	Provider, Model string
	Usage           Usage
	CostMicros      *int64
}

// titleStep is the step of the usage of a run's title.
const titleStep = -1

// SetTitle sets the session's title, unless a person has set one, and records the usage, even if
// the claim is no longer the newest. It reports whether the title was set.
func (s *Store) SetTitle(ctx context.Context, c *Claim, t Title) (set bool, err error) {
	args := usageArgs(c, titleStep, t.Usage, t.CostMicros)
	args["title"], args["provider"], args["model"] = t.Text, t.Provider, t.Model
	b := &pgx.Batch{}
	b.Queue(`
		UPDATE sessions SET title = @title, title_source = 'model', updated_at = clock_timestamp()
		WHERE workspace_id = @workspace AND id = @session AND title_source = 'message' AND @title <> ''`, args).
		Exec(func(tag pgconn.CommandTag) error { set = tag.RowsAffected() > 0; return nil })
	queueUsage(b, args, false)
	budget.QueueSpent(b, args, spent(t.Usage, t.CostMicros, 0))
	if err := s.db.WriteInWorkspace(ctx, c.Run.Workspace, b); err != nil {
		return false, fmt.Errorf("set the title of session %s: %w", c.Run.Session, err)
	}
	return set, nil
}
