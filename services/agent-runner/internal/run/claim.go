package run

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/services/agent-runner/internal/outbox"
)

// Claim is this runner's claim on a run.
type Claim struct {
	Run Run
	// First is true for the run's first claim, before which the log has none of its events.
	First bool
	// TakenOver is true if another runner had the run and neither finished nor released it.
	TakenOver bool
	// RequestedAt is when this process sent the claim. The lease begins later.
	RequestedAt time.Time
	// Budgeted says that the workspace may have budgets, to which commits add running time.
	Budgeted bool
	// Worked is the running time that no commit has counted, for Release.
	Worked time.Duration

	// These were read in the claim's round trip. The first calls of History and LastStep
	// return them.
	history *history
	last    *lastStep
}

func (c *Claim) key() pg.Args {
	return pg.Args{"workspace": c.Run.Workspace, "session": c.Run.Session, "run": c.Run.ID, "epoch": c.Run.Epoch}
}

// Lease identifies a claim for Renew.
type Lease struct {
	Run   id.Run
	Epoch int64
}

// Lease returns the claim's lease.
func (c *Claim) Lease() Lease { return Lease{c.Run.ID, c.Run.Epoch} }

// Claim claims a run: the next queued one of its session, or a running one whose lease has
// expired. It returns ErrNotClaimable if the run is neither, or if it needs a slot and the
// workspace is at its limit. It returns ErrTooEarly while events of the session are in the outbox, so that
// viewers see the end of one run before the start of the next.
func (s *Store) Claim(ctx context.Context, ws id.Workspace, session id.Session, run id.Run) (*Claim, error) {
	// One round trip, because it delays the first word of the answer.
	b := &pgx.Batch{}
	args := pg.Args{"workspace": ws, "session": session}
	b.Queue(`SELECT FROM sessions WHERE workspace_id = @workspace AND id = @session FOR UPDATE`, args)
	queueWorkspaceLock(b, args)
	c := s.queueClaim(b, ws, session, run)
	if err := s.db.WriteInWorkspace(ctx, ws, b); err != nil {
		return nil, fmt.Errorf("claim run %s: %w", run, err)
	}
	claim, err := c.result()
	if errors.Is(err, ErrTooEarly) {
		s.out.Poke()
	}
	return claim, err
}

// claimed is a claimed run, and whether it was taken over.
type claimed struct {
	Run
	TakenOver bool
}

// pendingClaim is a claim whose batch has not run yet.
type pendingClaim struct {
	run     id.Run
	claimed []claimed
	early   bool
	claim   Claim
}

// result returns the claim after the batch has run, or the reason why there is none.
func (c *pendingClaim) result() (*Claim, error) {
	switch {
	case len(c.claimed) == 1:
		c.claim.Run, c.claim.First, c.claim.TakenOver = c.claimed[0].Run, c.claimed[0].Epoch == 1, c.claimed[0].TakenOver
		return &c.claim, nil
	case c.early:
		return nil, fmt.Errorf("claim run %s: %w", c.run, ErrTooEarly)
	}
	return nil, fmt.Errorf("claim run %s: %w", c.run, ErrNotClaimable)
}

// queueClaim adds a claim to a batch that has locked the session.
func (s *Store) queueClaim(b *pgx.Batch, ws id.Workspace, session id.Session, run id.Run) *pendingClaim {
	_, subj := LogSubject(s.cfg.Partitions, ws, session)
	args := pg.Args{
		"workspace": ws, "session": session, "run": run, "subject": subj, "runner": s.runner, "lease": s.cfg.Lease, "wall": s.cfg.WallTime, "most": s.cfg.PerWorkspace,
	}
	c := &pendingClaim{run: run, claim: Claim{RequestedAt: time.Now()}}
	// Each statement has its own snapshot. This one comes before the claim: if the events are
	// published in between, the claim succeeds. In the reverse order the claim could fail
	// without a reason to report.
	queueUnpublished(b, args, &c.early)
	// The subquery of RETURNING sees the row as it was before.
	b.Queue(`
		UPDATE runs r SET
			state = 'running', epoch = epoch + 1, fruitless = fruitless + 1, runner = @runner,
			lease_until = clock_timestamp() + @lease,
			reserved_tokens = 0, reserved_cost_micros = 0, reserved_day = NULL,
			last_event = greatest(last_event, 1),
			started_at = coalesce(started_at, clock_timestamp()),
			deadline = coalesce(deadline + CASE runner WHEN '' THEN clock_timestamp() - lease_until ELSE '0' END, clock_timestamp() + @wall)
		WHERE workspace_id = @workspace AND session_id = @session AND id = @run
			AND NOT EXISTS (SELECT FROM outbox WHERE workspace_id = @workspace AND subject = @subject)
			AND (state = 'running' AND lease_until < clock_timestamp() OR state = 'queued' AND `+firstInSession+`)
			AND (NOT `+needsSlot+` OR `+countRunning+` < @most)
		RETURNING `+Columns+`, (
			SELECT o.state = 'running' AND o.runner <> '' FROM runs o WHERE o.workspace_id = r.workspace_id AND o.id = r.id) AS taken_over`, args).
		Query(pg.Collect(&c.claimed))
	// The user message joins the conversation with the run's first claim.
	b.Queue(`
		WITH asked AS (
			SELECT m.id FROM runs r JOIN messages m ON m.id = r.user_message_id
			WHERE r.workspace_id = @workspace AND r.id = @run AND r.state = 'running' AND r.runner = @runner AND m.position IS NULL
		), place AS (
			UPDATE sessions SET next_position = next_position + 1
			WHERE workspace_id = @workspace AND id = @session AND EXISTS (SELECT FROM asked)
			RETURNING next_position - 1 AS position
		)
		UPDATE messages m SET position = place.position, created_at = clock_timestamp()
		FROM place, asked WHERE m.workspace_id = @workspace AND m.id = asked.id`, args)
	c.claim.history, c.claim.last = queueHistory(b, args, claimedHere), queueLastStep(b, args, claimedHere)
	return c
}

// firstInSession is true of a queued run r if no other run of its session comes before it.
const firstInSession = `NOT EXISTS (
	SELECT FROM runs o WHERE o.session_id = r.session_id AND (
		o.state IN ('running', 'waiting') OR o.state = 'queued' AND o.ordinal < r.ordinal))`

// needsSlot is true of a run r that a claim must not take if the workspace is at its limit: a queued
// one, or one that an answer has resumed. If a person has stopped that one, its claim only ends it.
const needsSlot = `(r.state = 'queued' OR r.runner = '' AND NOT EXISTS (
	SELECT FROM run_inbox i WHERE i.run_id = r.id AND i.kind = 'stop' AND i.read_at IS NULL))`

// claimedHere is true if this runner has the run. It keeps a claim that failed from reading
// a conversation that may be long.
const claimedHere = `EXISTS (SELECT FROM runs WHERE workspace_id = @workspace AND id = @run AND state = 'running' AND runner = @runner)`

// queueUnpublished reads whether events of a session wait in the outbox.
func queueUnpublished(b *pgx.Batch, args pg.Args, into *bool) {
	b.Queue(`SELECT EXISTS (SELECT FROM outbox WHERE workspace_id = @workspace AND subject = @subject)`, args).
		QueryRow(func(row pgx.Row) error { return row.Scan(into) })
}

// Renewal is the result of Renew for one lease.
type Renewal struct {
	Run id.Run
	// Unread is true if the run's inbox has something unread.
	Unread bool
	// Yield is true if another workspace waits for a slot and has at least two fewer running
	// runs. The run must be parked at its next step border.
	Yield bool
}

// Renew extends leases of this process. It skips rows that are locked, which the next call
// renews. A run that is missing from the result is lost: it has another runner or has ended.
func (s *Store) Renew(ctx context.Context, leases []Lease) ([]Renewal, error) {
	runs := make([]string, len(leases))
	epochs := make([]int64, len(leases))
	for i, l := range leases {
		runs[i], epochs[i] = l.Run.String(), l.Epoch
	}
	var renewals []Renewal
	b := &pgx.Batch{}
	args := pg.Args{
		"lease": s.cfg.Lease, "runs": runs, "epochs": epochs, "most": s.cfg.PerWorkspace, "limit": maxCandidates, "logs": s.logs,
		"patience": yieldAfter,
	}
	b.Queue(`
		WITH mine AS MATERIALIZED (
			SELECT * FROM unnest(@runs::uuid[], @epochs::bigint[]) AS mine (id, epoch)
		), free AS MATERIALIZED (
			SELECT r.id FROM runs r JOIN mine USING (id, epoch) WHERE r.state = 'running' FOR NO KEY UPDATE OF r SKIP LOCKED
		), renewed AS (
			UPDATE runs r SET lease_until = clock_timestamp() + @lease FROM free WHERE r.id = free.id
		)
		SELECT r.id, EXISTS (SELECT FROM run_inbox i WHERE i.run_id = r.id AND i.read_at IS NULL), false
		FROM runs r JOIN mine USING (id, epoch) WHERE r.state = 'running'`, args).Query(func(rows pgx.Rows) (err error) {
		renewals, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Renewal])
		return err
	})
	var yield []id.Run
	b.Queue(`WITH `+turns+`, needy AS (
			SELECT min(t.held) AS held, count(*) AS runs FROM turns t
				CROSS JOIN LATERAL `+claimableRuns(published+` AND coalesce(r.lease_until, r.created_at) < clock_timestamp() - @patience::interval`)+` r
			WHERE t.held + 1 < (SELECT max(held) FROM active)
		)
		SELECT r.id FROM unnest(@runs::uuid[], @epochs::bigint[]) AS mine (id, epoch) JOIN runs r USING (id, epoch)
			JOIN active USING (workspace_id) CROSS JOIN needy
		WHERE r.state = 'running' AND active.held > needy.held + 1
		ORDER BY active.held DESC, r.started_at LIMIT (SELECT runs FROM needy)`, args).Query(collectIDs(&yield))
	// AsSystem: a runner holds runs of many workspaces and renews them in one statement.
	err := s.db.WriteAsSystem(ctx, b)
	if err != nil {
		return nil, fmt.Errorf("renew %d leases: %w", len(leases), err)
	}
	for i := range renewals {
		renewals[i].Yield = slices.Contains(yield, renewals[i].Run)
	}
	return renewals, nil
}

// Park gives a run back at a step border: it ends the lease and puts a wake-up into the
// outbox.
func (s *Store) Park(ctx context.Context, c *Claim) error {
	_, err := s.commit(ctx, c, 0, "", func(b *pgx.Batch) error {
		b.Queue(`
			UPDATE runs SET lease_until = clock_timestamp()
			WHERE workspace_id = @workspace AND id = @run AND epoch = @epoch`, c.key())
		return outbox.Queue(ctx, b, wake(c.Run.Workspace, c.Run.Session, c.Run.ID, fmt.Sprintf("parked-%d", c.Run.Epoch)))
	})
	if err != nil {
		return fmt.Errorf("park run %s: %w", c.Run.ID, err)
	}
	s.out.Poke()
	return nil
}

// Release gives a run back after a failure on our side. Its lease ends after wait. It does nothing
// if the claim is no longer the newest. A repetition counts Claim.Worked twice.
func (s *Store) Release(ctx context.Context, c *Claim, wait time.Duration) error {
	_, err := s.commit(ctx, c, 0, "", func(b *pgx.Batch) error {
		args := c.key()
		args["wait"] = wait
		b.Queue(`
			UPDATE runs SET lease_until = clock_timestamp() + @wait
			WHERE workspace_id = @workspace AND id = @run AND epoch = @epoch`, args)
		queueTime(b, c, c.Worked)
		return nil
	})
	if err != nil && !errors.Is(err, ErrFenced) {
		return fmt.Errorf("release run %s: %w", c.Run.ID, err)
	}
	return nil
}

// ReleaseUnconfirmed ends this runner's lease of a run, whatever its epoch, and reports
// whether there was one. It is for a claim whose reply was lost.
func (s *Store) ReleaseUnconfirmed(ctx context.Context, ws id.Workspace, run id.Run) (held bool, err error) {
	b := &pgx.Batch{}
	b.Queue(`
		UPDATE runs SET lease_until = clock_timestamp()
		WHERE workspace_id = @workspace AND id = @run AND runner = @runner AND state = 'running'
		RETURNING id`,
		pg.Args{"workspace": ws, "run": run, "runner": s.runner}).Query(exists(&held))
	if err := s.db.WriteInWorkspace(ctx, ws, b); err != nil {
		return false, fmt.Errorf("release the unconfirmed claim of run %s: %w", run, err)
	}
	return held, nil
}

// stale is true of runs whose lease is valid but was not renewed lately, or ends later than
// a lease can, because the clock was set back.
const stale = `state = 'running' AND lease_until > clock_timestamp()
	AND NOT lease_until BETWEEN clock_timestamp() + @unrenewed AND clock_timestamp() + @lease`

// ExpireAbsent ends the leases of runs whose runner died, and returns these runs. A runner
// is dead if its presence is gone and its last renewal is older than quiet, which must be
// longer than the interval of renewals. Runs whose rows are locked are left to the next call.
func (s *Store) ExpireAbsent(ctx context.Context, quiet time.Duration) ([]Claimable, error) {
	var expired []Claimable
	// AsSystem: a runner that died had runs of many workspaces.
	err := s.db.AsSystem(ctx, func(ctx context.Context, tx pgx.Tx) error {
		args := pg.Args{"unrenewed": s.cfg.Lease - quiet, "lease": s.cfg.Lease}
		rows, err := tx.Query(ctx, `
			SELECT DISTINCT runner FROM runs WHERE `+stale, args)
		if err != nil {
			return err
		}
		silent, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil || len(silent) == 0 {
			return err
		}
		if args["absent"], err = pg.Absent(ctx, tx, silent); err != nil {
			return err
		}
		if rows, err = tx.Query(ctx, `
			WITH free AS MATERIALIZED (
				SELECT id FROM runs WHERE `+stale+` AND runner = ANY (@absent) FOR NO KEY UPDATE SKIP LOCKED
			)
			UPDATE runs r SET lease_until = clock_timestamp() FROM free WHERE r.id = free.id
			RETURNING workspace_id, session_id, r.id, epoch, false`, args); err != nil {
			return err
		}
		expired, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Claimable])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("expire leases of absent runners: %w", err)
	}
	return expired, nil
}

// Claimable is a run without a runner.
type Claimable struct {
	Workspace id.Workspace
	Session   id.Session
	Run       id.Run
	Epoch     int64
	// Queued is true if the run may be waiting for a slot: it is queued, or an answer has resumed it.
	// It is false if the run lost its runner.
	Queued bool
}

// Sweep returns at most limit runs that lost their runner, and runs that could start or go on but
// have waited longer than patience, so that their wake-up must be lost. Those that lost their runner
// come first because they have viewers, then those that have waited longest.
func (s *Store) Sweep(ctx context.Context, patience time.Duration, limit int) ([]Claimable, error) {
	found, err := s.claimable(ctx, `state IN ('queued', 'running')
		AND coalesce(lease_until, created_at) < clock_timestamp() - CASE WHEN `+needsSlot+` THEN @patience::interval ELSE '0'::interval END
		AND (state = 'running' OR `+firstInSession+`)`, pg.Args{"patience": patience, "limit": limit})
	if err != nil {
		return nil, fmt.Errorf("sweep for abandoned runs: %w", err)
	}
	return found, nil
}

// Ready returns at most limit runs that could start, or go on after an answer. Those that have waited
// longest come first.
func (s *Store) Ready(ctx context.Context, limit int) ([]Claimable, error) {
	found, err := s.claimable(ctx, `(state = 'queued' AND `+firstInSession+` OR state = 'running' AND lease_until < clock_timestamp() AND `+needsSlot+`)`,
		pg.Args{"limit": limit})
	if err != nil {
		return nil, fmt.Errorf("list runs that could start: %w", err)
	}
	return found, nil
}

// claimable returns runs that meet a condition.
func (s *Store) claimable(ctx context.Context, condition string, args pg.Args) (found []Claimable, err error) {
	b := &pgx.Batch{}
	b.Queue(`
		SELECT workspace_id, session_id, id, epoch, `+needsSlot+` AS queued FROM runs r
		WHERE `+condition+`
		ORDER BY queued, coalesce(lease_until, created_at) LIMIT @limit`, args).Query(func(rows pgx.Rows) (err error) {
		found, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Claimable])
		return err
	})
	// AsSystem: the sweeper reads the runs of all workspaces.
	return found, s.db.ReadAsSystem(ctx, b)
}
