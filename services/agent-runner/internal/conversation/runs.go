package conversation

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/services/agent-runner/internal/run"
)

// RunQuery says which runs to list.
type RunQuery struct {
	States  []run.State // empty: all
	Session id.Session  // zero: all of the workspace
	Token   string      // from the previous page
	Limit   int         // 0: 20
}

// RunRow is a run in a list.
type RunRow struct {
	run.Run
	SessionTitle string
	// CostMicros is the list price in millionths of a dollar, or nil.
	CostMicros *int64
}

// Runs returns a page of runs, newest first, and the token of the next page, which is empty on
// the last one.
func (s *Store) Runs(ctx context.Context, a identity.Actor, q RunQuery) (page []RunRow, next string, err error) {
	if q.Limit == 0 {
		q.Limit = 20
	}
	if q.Limit < 1 || q.Limit > 100 {
		return nil, "", fault.New(fault.Invalid, "limit must be 1 to 100")
	}
	args := pg.Args{"workspace": a.Workspace, "limit": q.Limit + 1, "session": nil, "states": nil, "before": nil, "run": nil}
	if !id.IsZero(q.Session) {
		args["session"] = q.Session
	}
	if len(q.States) > 0 {
		args["states"] = q.States
	}
	if q.Token != "" {
		var before time.Time
		if before, args["run"], err = parseToken(q.Token); err != nil {
			return nil, "", err
		}
		args["before"] = before
	}
	err = s.db.InWorkspace(ctx, a.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			SELECT `+run.Columns+`, (SELECT s.title FROM sessions s WHERE s.workspace_id = runs.workspace_id AND s.id = runs.session_id) AS session_title,
				`+costOfRun+`
			FROM runs
			WHERE workspace_id = @workspace AND (@states::text[] IS NULL OR state = ANY (@states)) AND (@session::uuid IS NULL OR session_id = @session)
				AND (@before::timestamptz IS NULL OR (created_at, id) < (@before, @run::uuid))
			ORDER BY created_at DESC, id DESC LIMIT @limit`, args)
		if err != nil {
			return err
		}
		page, err = pgx.CollectRows(rows, pgx.RowToStructByName[RunRow])
		return err
	})
	if err != nil {
		return nil, "", fmt.Errorf("list runs: %w", err)
	}
	if len(page) > q.Limit {
		page = page[:q.Limit]
		last := page[q.Limit-1]
		next = tokenOf(last.CreatedAt, last.ID)
	}
	return page, next, nil
}

// PlaceOf returns the session of a run and the run's place in it.
func (s *Store) PlaceOf(ctx context.Context, a identity.Actor, r id.Run) (session id.Session, ordinal int64, err error) {
	err = s.db.InWorkspace(ctx, a.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, `SELECT session_id, ordinal FROM runs WHERE workspace_id = @workspace AND id = @run`,
			pg.Args{"workspace": a.Workspace, "run": r}).Scan(&session, &ordinal)
	})
	if pg.NoRows(err) {
		return session, 0, fault.New(fault.NotFound, "there is no such run")
	}
	if err != nil {
		return session, 0, fmt.Errorf("read run: %w", err)
	}
	return session, ordinal, nil
}
