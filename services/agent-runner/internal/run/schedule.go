package run

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/services/agent-runner/internal/outbox"
)

// turns selects the workspaces with claimable runs in the order in which they are served:
// those with the fewest running runs first, and of these the least recently served one. It
// skips through the index of queued runs one workspace at a time, so that its cost grows with
// the number of waiting workspaces and running runs but not with the number of queued runs.
const turns = `
	RECURSIVE queuing AS (
		(SELECT workspace_id FROM runs WHERE state = 'queued' ORDER BY workspace_id LIMIT 1)
		UNION ALL
		SELECT (SELECT r.workspace_id FROM runs r WHERE r.state = 'queued' AND r.workspace_id > queuing.workspace_id ORDER BY r.workspace_id LIMIT 1)
		FROM queuing WHERE queuing.workspace_id IS NOT NULL
	), active AS (
		SELECT workspace_id, count(*) FILTER (WHERE lease_until >= clock_timestamp()) AS held,
			count(*) FILTER (WHERE lease_until < clock_timestamp()) AS lost
		FROM runs WHERE state = 'running' GROUP BY workspace_id
	), turns AS (
		SELECT workspace_id, coalesce(held, 0) AS held, coalesce(lost, 0) AS lost,
			(SELECT max(started_at) FROM runs r WHERE r.workspace_id = w.workspace_id) AS served
		FROM (SELECT workspace_id FROM queuing WHERE workspace_id IS NOT NULL UNION SELECT workspace_id FROM active WHERE lost > 0) w
			LEFT JOIN active USING (workspace_id)
		ORDER BY held, served NULLS FIRST
	)`

// claimableRuns selects the claimable runs of a workspace t of turns: first those that lost
// their runner and, if the workspace is below its limit, those that an answer has resumed, then
// the longest queued ones. more is a further condition on a run r.
func claimableRuns(more string) string {
	return `(
		SELECT * FROM (
			SELECT r.workspace_id, r.session_id, r.id, r.epoch, ` + needsSlot + ` AS queued FROM runs r
			WHERE t.lost > 0 AND r.workspace_id = t.workspace_id AND r.state = 'running' AND r.lease_until < clock_timestamp()
				AND (t.held < @most OR NOT ` + needsSlot + `) AND ` + more + `
			ORDER BY r.lease_until LIMIT @limit) lost
		UNION ALL
		SELECT * FROM (
			SELECT r.workspace_id, r.session_id, r.id, r.epoch, true FROM runs r
			WHERE t.held < @most AND r.workspace_id = t.workspace_id AND r.state = 'queued' AND ` + firstInSession + ` AND ` + more + `
			ORDER BY r.created_at LIMIT @limit) queued
	)`
}

// published is true of a run r if no event of its session waits in the outbox.
const published = `NOT EXISTS (
	SELECT FROM unnest(@logs::text[]) log JOIN outbox o ON o.subject = log || r.workspace_id || '.' || r.session_id)`

// maxCandidates is how many runs Next returns, so that concurrent runners try different ones.
const maxCandidates = 8

// yieldAfter is how long a run waits before a run of another workspace yields to it. A free
// slot would have taken it by then.
const yieldAfter = 500 * time.Millisecond

// Next returns claimable runs of the workspace to serve next. Other runners may claim them
// first. If there are none, it returns ErrTooEarly if some wait only for the outbox, otherwise
// ErrNotClaimable.
func (s *Store) Next(ctx context.Context) ([]Claimable, error) {
	found, err := s.next(ctx, published, maxCandidates)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		if found, err = s.next(ctx, `true`, 1); err != nil {
			return nil, err
		}
		if len(found) == 0 {
			return nil, fmt.Errorf("look for the next run: %w", ErrNotClaimable)
		}
		s.out.Poke()
		return nil, fmt.Errorf("look for the next run: %w", ErrTooEarly)
	}
	for i, r := range found {
		if r.Workspace != found[0].Workspace {
			return found[:i], nil
		}
	}
	return found, nil
}

func (s *Store) next(ctx context.Context, condition string, limit int) (found []Claimable, err error) {
	b := &pgx.Batch{}
	b.Queue(`WITH `+turns+`
		SELECT r.* FROM turns t CROSS JOIN LATERAL `+claimableRuns(condition)+` r LIMIT @limit`,
		pg.Args{"most": s.cfg.PerWorkspace, "limit": limit, "logs": s.logs}).Query(func(rows pgx.Rows) (err error) {
		found, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Claimable])
		return err
	})
	// AsSystem: the choice depends on the runs of all workspaces.
	if err = s.db.ReadAsSystem(ctx, b); err != nil {
		return nil, fmt.Errorf("look for the next run: %w", err)
	}
	return found, nil
}

// queueWorkspaceLock serializes the claims of a workspace until the transaction ends, so that
// two of them cannot both use the last slot. The session must be locked before.
func queueWorkspaceLock(b *pgx.Batch, args pg.Args) {
	b.Queue(`SELECT pg_advisory_xact_lock(hashtextextended('runs of ' || @workspace::uuid, 0))`, args)
}

// countRunning counts the runs of a workspace with a valid lease.
const countRunning = `(SELECT count(*) FROM runs w WHERE w.workspace_id = @workspace AND w.state = 'running' AND w.lease_until >= clock_timestamp())`

// selectWaiting selects a run of the workspace that waits for a slot: one that an answer has
// resumed, or else the oldest queued one that could start. It is woken when another run ends,
// because its own wake-up may have been acked while the workspace was at its limit.
const selectWaiting = `
	(SELECT workspace_id, session_id, id, epoch, true FROM runs r
	WHERE workspace_id = @workspace AND state = 'running' AND lease_until < clock_timestamp() AND ` + needsSlot + `
	ORDER BY lease_until LIMIT 1)
	UNION ALL
	(SELECT workspace_id, session_id, id, epoch, true FROM runs r
	WHERE workspace_id = @workspace AND state = 'queued' AND ` + firstInSession + `
	ORDER BY created_at LIMIT 1)
	LIMIT 1`

// WakeOther wakes a runner for a waiting run of the workspace, if there is one, after another
// run has ended.
func WakeOther(ctx context.Context, tx pgx.Tx, ws id.Workspace, ended id.Run) error {
	rows, err := tx.Query(ctx, selectWaiting, pg.Args{"workspace": ws})
	if err != nil {
		return fmt.Errorf("look for a waiting run: %w", err)
	}
	waits, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Claimable])
	if err != nil || len(waits) == 0 {
		return err
	}
	return outbox.Add(ctx, tx, wakeAfter(waits[0], ended))
}

// wakeAfter returns a wake-up for a waiting run after another one has ended.
func wakeAfter(waits Claimable, ended id.Run) outbox.Message {
	return wake(waits.Workspace, waits.Session, waits.Run, "after-"+ended.String())
}
