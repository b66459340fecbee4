package run

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/subject"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
	"signalbox.dev/services/agent-runner/internal/outbox"
)

// Work returns the body of a run's wake-up.
func Work(ws id.Workspace, session id.Session, run id.Run) *runv1.Work {
	return &runv1.Work{RunId: run.String(), WorkspaceId: ws.String(), SessionId: session.String()}
}

// Wake returns a run's first wake-up. Its message id is the run's id.
func Wake(ws id.Workspace, session id.Session, run id.Run) outbox.Message {
	return wake(ws, session, run, "")
}

// wake returns a wake-up. A later one has an occasion, without which the stream would drop
// it as a duplicate of the first.
func wake(ws id.Workspace, session id.Session, run id.Run, occasion string) outbox.Message {
	message := run.String()
	if occasion != "" {
		message += ":" + occasion
	}
	return outbox.Message{
		Workspace: ws,
		Subject:   subject.RunWork(subject.Shard(session)),
		ID:        message,
		Body:      Work(ws, session, run),
	}
}

// WakeNext wakes the first queued run of a session, if none is active. The caller
// holds the session's lock.
func WakeNext(ctx context.Context, tx pgx.Tx, ws id.Workspace, session id.Session) error {
	var next id.Run
	err := tx.QueryRow(ctx, `
		SELECT id FROM runs
		WHERE workspace_id = @workspace AND session_id = @session AND state = 'queued'
			AND NOT EXISTS (SELECT FROM runs o WHERE o.session_id = @session AND o.state IN ('running', 'waiting'))
		ORDER BY ordinal LIMIT 1`,
		pg.Args{"workspace": ws, "session": session}).Scan(&next)
	if pg.NoRows(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for the next run: %w", err)
	}
	return outbox.Add(ctx, tx, Wake(ws, session, next))
}
