package run

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
)

// Inbox is the unread content of a run's inbox.
type Inbox struct {
	// Stop is true if a person wants the run to end. It stays true, because only the commit
	// that ends the run marks the row as read.
	Stop bool
	// Joined are the steering messages that this call added to the conversation.
	Joined []Message
}

// ReadInbox reads the run's inbox. At a step border it adds steering messages to the
// conversation.
func (s *Store) ReadInbox(ctx context.Context, c *Claim, border bool) (Inbox, error) {
	var held, stop, steering bool
	b := &pgx.Batch{}
	b.Queue(`
		SELECT EXISTS (SELECT FROM runs WHERE workspace_id = @workspace AND id = @run AND epoch = @epoch AND state = 'running'),
			coalesce(bool_or(kind = 'stop'), false), coalesce(bool_or(kind = 'steer'), false)
		FROM run_inbox WHERE workspace_id = @workspace AND run_id = @run AND read_at IS NULL`, c.key()).
		QueryRow(func(row pgx.Row) error { return row.Scan(&held, &stop, &steering) })
	err := s.db.ReadInWorkspace(ctx, c.Run.Workspace, b)
	switch {
	case err != nil:
	case !held:
		err = ErrFenced // taken over, or deleted with its session
	case stop:
		return Inbox{Stop: true}, nil
	case steering && border:
		var joined []Message
		if joined, err = s.JoinSteering(ctx, c); err == nil {
			return Inbox{Joined: joined}, nil
		}
	}
	if err != nil {
		return Inbox{}, fmt.Errorf("read the inbox of run %s: %w", c.Run.ID, err)
	}
	return Inbox{}, nil
}

// queueUnread reads whether the inbox has anything unread.
func queueUnread(b *pgx.Batch, c *Claim, into *bool) {
	b.Queue(`SELECT FROM run_inbox WHERE workspace_id = @workspace AND run_id = @run AND read_at IS NULL LIMIT 1`, c.key()).Query(exists(into))
}

// JoinSteering adds unread steering messages to the conversation.
func (s *Store) JoinSteering(ctx context.Context, c *Claim) (joined []Message, err error) {
	err = s.commitQueued(ctx, c, func(_ context.Context, b *pgx.Batch, w *waiting) error {
		if len(w.unread) == 0 {
			return nil
		}
		args := c.key()
		args["messages"] = texts(w.unread)
		for _, m := range w.unread {
			queueJoin(b, c, m)
		}
		b.Queue(`
			UPDATE run_inbox SET read_at = clock_timestamp()
			WHERE workspace_id = @workspace AND run_id = @run AND message_id = ANY (@messages::uuid[])`, args)
		b.Queue(`
			SELECT `+MessageColumns+` FROM messages
			WHERE workspace_id = @workspace AND id = ANY (@messages::uuid[])
			ORDER BY position`, args).Query(pg.Collect(&joined))
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("add steering messages to run %s: %w", c.Run.ID, err)
	}
	return joined, nil
}

func texts(ids []id.Message) []string {
	out := make([]string, len(ids))
	for i, m := range ids {
		out[i] = m.String()
	}
	return out
}
