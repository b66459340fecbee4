// Package ledger records the outcome of every tool call, so that a call which is delivered
// again is answered and not run again.
//
// A call has one row, under its key. An executor claims it before it runs the tool: the row
// says "started" and has the executor's name, the whole call, and a lease that the executor
// renews while the tool runs. Afterwards the executor records the outcome, once, and the call
// itself is removed from the row.
//
// The row of a dead executor no longer changes. The others read the open rows (Open) and
// measure with their own clocks how long a row has not changed. TakeOver succeeds only if the
// row still has not changed, and increments the attempt. The caller decides what that means
// for a tool that may have run already. Rows contain only Postgres' clock, and clocks of
// different machines are never compared.
//
// An executor that was wrongly thought dead cannot write: Record fails unless its claim is
// still the latest.
package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"signalbox.dev/pkg/hashchain"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
)

// Ledger is one executor's access to the table. It is safe for concurrent use.
type Ledger struct {
	db       *pg.DB
	owner    uuid.UUID
	executor string
	lease    time.Duration
}

// New returns a ledger that claims in the name of executor, whose presence tells others
// whether the process is alive. Every process needs a name of its own. A claim is valid for
// lease unless it is renewed.
func New(db *pg.DB, executor string, lease time.Duration) *Ledger {
	return &Ledger{db: db, owner: uuid.New(), executor: executor, lease: lease}
}

// Ref names a call.
type Ref struct {
	Workspace id.Workspace
	Key       id.Operation
}

// Call is what a claim stores about a call.
type Call struct {
	Ref
	Run        id.Run
	Session    id.Session
	ToolCallID string
	ToolName   string
	Effect     toolv1.Effect
	// Work is the whole call, for an executor that takes it over.
	Work []byte
	// Request is a digest that tells requests with the same key apart.
	Request []byte
}

// Claim is the result of Claim and TakeOver: a claim (Attempt), an outcome (Done), or
// neither if another executor has the call.
type Claim struct {
	// Attempt is set if the caller has the call now. It is 1 the first time, and more if an
	// earlier claim may have run the tool.
	Attempt int
	// Former are the other executors that had claimed the call. They may be dead or only
	// silent.
	Former []string
	// Effect is the tool's effect as the first of them knew it.
	Effect toolv1.Effect
	// Done is the outcome if it was recorded before.
	Done *toolv1.Outcome
	// Stored is true if another executor has the call and its row holds the whole call, so
	// that it does not depend on its message.
	Stored bool
}

var (
	// ErrLost means that the claim is no longer the latest: another executor has the call, or
	// its outcome is recorded.
	ErrLost = errors.New("the claim of the call is lost")
	// ErrReused means that the key was claimed for another request before.
	ErrReused = errors.New("the key was used for another request")
)

// takeClaim sets the columns of an open row that is claimed again. It adds the executor to
// the former ones unless it is among them.
const takeClaim = `attempt = outcomes.attempt + 1, owner = @owner, executor = @executor, lease_until = now() + make_interval(secs => @lease),
	former = CASE WHEN outcomes.executor = @executor OR outcomes.executor = ANY (outcomes.former) THEN outcomes.former
		ELSE outcomes.former || outcomes.executor END`

// Claim claims a call that was never claimed or whose claim was released (Release). It also
// renews an open claim of this very ledger, because the caller knows that it does not work on
// the call. ErrReused means that the key was used for another request.
//
// A row without its call was written by the previous version, whose claims can be taken once
// their lease has expired.
func (l *Ledger) Claim(ctx context.Context, c Call) (Claim, error) {
	var out Claim
	b := &pgx.Batch{}
	args := pg.Args{
		"workspace": c.Workspace, "key": c.Key, "run": c.Run, "session": c.Session, "call": c.ToolCallID, "tool": c.ToolName,
		"effect": int16(c.Effect), "owner": l.owner, "executor": l.executor, "lease": l.lease.Seconds(), "work": c.Work, "request": c.Request,
	}
	b.Queue(`
		INSERT INTO outcomes (workspace_id, key, run_id, session_id, tool_call_id, tool_name, effect, started_at,
			state, attempt, owner, executor, lease_until, work, request)
		VALUES (@workspace, @key, @run, @session, @call, @tool, @effect, now(),
			'started', 1, @owner, @executor, now() + make_interval(secs => @lease), @work, @request)
		ON CONFLICT (workspace_id, key) DO UPDATE SET `+takeClaim+`, work = excluded.work, request = excluded.request
			WHERE outcomes.state = 'started' AND coalesce(outcomes.request, excluded.request) IS NOT DISTINCT FROM excluded.request
				AND (outcomes.lease_until = '-infinity' OR outcomes.owner = excluded.owner OR outcomes.work IS NULL AND outcomes.lease_until < clock_timestamp())
		RETURNING attempt, array_remove(former, @executor), effect`, args).QueryRow(func(r pgx.Row) error {
		err := scanClaim(r, &out)
		if pg.NoRows(err) {
			return nil
		}
		return err
	})
	err := l.db.WriteInWorkspace(ctx, c.Workspace, b)
	if err == nil && out.Attempt == 0 {
		out, err = l.explain(ctx, c, args)
	}
	if err != nil {
		return Claim{}, fmt.Errorf("claim call %s: %w", c.Key, err)
	}
	return out, nil
}

// scanClaim reads the columns attempt, former and effect.
func scanClaim(r pgx.Row, c *Claim) error {
	var effect int16
	err := r.Scan(&c.Attempt, &c.Former, &effect)
	c.Effect = toolv1.Effect(effect)
	return err
}

// explain returns why a call could not be claimed.
func (l *Ledger) explain(ctx context.Context, c Call, args pg.Args) (out Claim, err error) {
	b := &pgx.Batch{}
	b.Queue(`
		SELECT `+columns+`, state = 'done', coalesce(request, @request) IS DISTINCT FROM @request, array_remove(former, @executor), effect, work IS NOT NULL
		FROM outcomes WHERE workspace_id = @workspace AND key = @key`, args).QueryRow(func(r pgx.Row) error {
		var done, other bool
		var effect int16
		o, err := scan(r, &done, &other, &out.Former, &effect, &out.Stored)
		switch {
		case err != nil:
			return err
		case other:
			return ErrReused
		case done:
			out.Done = o
		}
		out.Effect = toolv1.Effect(effect)
		return nil
	})
	return out, l.db.ReadInWorkspace(ctx, c.Workspace, b)
}

// Open is a claimed call without an outcome.
type Open struct {
	Ref
	// Version changes with every change of the row, including renewals of the lease.
	Version string
	// Executor has the claim, or has released it if Released is set.
	Executor string
	Released bool
}

// maxOpen bounds what Open returns. It is far more than the slots of all executors.
const maxOpen = 10_000

// Open returns the open calls of all executors and workspaces.
func (l *Ledger) Open(ctx context.Context) ([]Open, error) {
	var out []Open
	// AsSystem: a dead executor had calls of many workspaces.
	err := l.db.AsSystem(ctx, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			SELECT workspace_id, key, xmin::text, executor, lease_until = '-infinity' FROM outcomes
			WHERE state = 'started' AND work IS NOT NULL LIMIT @limit`, pg.Args{"limit": maxOpen})
		if err != nil {
			return err
		}
		out, err = pgx.CollectRows(rows, func(r pgx.CollectableRow) (o Open, err error) {
			return o, r.Scan(&o.Workspace, &o.Key, &o.Version, &o.Executor, &o.Released)
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read open calls: %w", err)
	}
	return out, nil
}

// Work returns the Work of an open call, or ErrLost if it is no longer open.
func (l *Ledger) Work(ctx context.Context, ref Ref) ([]byte, error) {
	var work []byte
	b := &pgx.Batch{}
	b.Queue(`
		SELECT work FROM outcomes WHERE workspace_id = @workspace AND key = @key AND state = 'started' AND work IS NOT NULL`,
		pg.Args{"workspace": ref.Workspace, "key": ref.Key}).QueryRow(func(r pgx.Row) error {
		err := r.Scan(&work)
		if pg.NoRows(err) {
			return ErrLost
		}
		return err
	})
	err := l.db.ReadInWorkspace(ctx, ref.Workspace, b)
	if err != nil {
		return nil, fmt.Errorf("read call %s: %w", ref.Key, err)
	}
	return work, nil
}

// TakeOver claims an open call of another executor, or returns ErrLost if its row has changed
// since o was read.
func (l *Ledger) TakeOver(ctx context.Context, o Open) (Claim, error) {
	var out Claim
	b := &pgx.Batch{}
	b.Queue(`
		UPDATE outcomes SET `+takeClaim+`
		WHERE workspace_id = @workspace AND key = @key AND state = 'started' AND xmin::text = @version
		RETURNING attempt, array_remove(former, @executor), effect`, pg.Args{
		"workspace": o.Workspace, "key": o.Key, "version": o.Version, "owner": l.owner, "executor": l.executor, "lease": l.lease.Seconds(),
	}).QueryRow(func(r pgx.Row) error {
		err := scanClaim(r, &out)
		if pg.NoRows(err) {
			return ErrLost
		}
		return err
	})
	err := l.db.WriteInWorkspace(ctx, o.Workspace, b)
	if err != nil {
		return Claim{}, fmt.Errorf("take over call %s: %w", o.Key, err)
	}
	return out, nil
}

// Record writes the outcome of a claimed call, which is final, or returns ErrLost. If by is set, the
// call may have taken effect, on behalf of that member, and the audit gets a row, too.
func (l *Ledger) Record(ctx context.Context, ws id.Workspace, attempt int, o *toolv1.Outcome, by id.Member) error {
	key, err := id.Parse[id.Operation](o.GetKey())
	if err != nil {
		return fmt.Errorf("record an outcome: key: %w", err)
	}
	statement := `
		UPDATE outcomes SET state = 'done', outcome = @outcome, result = @result, error_type = @type, summary = @summary,
			duration_ms = @duration, bytes = @bytes, finished_at = now(), work = NULL
		WHERE workspace_id = @workspace AND key = @key AND owner = @owner AND attempt = @attempt AND state = 'started'`
	args := pg.Args{
		"workspace": ws, "key": key, "owner": l.owner, "attempt": attempt,
		"outcome": int16(o.GetState()), "result": o.GetResultJson(), "type": o.GetErrorType(), "summary": o.GetSummary(),
		"duration": o.GetDurationMs(), "bytes": len(o.GetResultJson()),
	}
	if !id.IsZero(by) {
		statement = `WITH done AS (` + statement + ` RETURNING workspace_id, session_id, run_id, tool_call_id, tool_name),
			audited AS (
				INSERT INTO mcp_audit (id, workspace_id, member_id, action, session_id, run_id, tool_call_id, tool_name)
				SELECT @row, workspace_id, @member, @action, session_id, run_id, tool_call_id, tool_name FROM done)
			SELECT FROM done`
		args["row"], args["member"], args["action"] = uuid.Must(uuid.NewV7()), by, action(o.GetState())
	}
	err = l.write(ctx, ws, statement, args)
	if err != nil {
		return fmt.Errorf("record the outcome of call %s: %w", key, err)
	}
	return nil
}

// action returns what the audit calls the end of a call.
func action(s toolv1.OutcomeState) string {
	switch s {
	case toolv1.OutcomeState_OUTCOME_STATE_OK:
		return "call-done"
	case toolv1.OutcomeState_OUTCOME_STATE_ERROR:
		return "call-failed"
	}
	return "call-unknown"
}

// AuditTable returns the audit in the service's database: of calls that may have taken effect, and,
// with a server in place of a call, of changes to MCP servers.
func AuditTable(db *pg.DB) hashchain.Table {
	return hashchain.Table{DB: db, Name: "mcp_audit", Fields: []string{
		"member_id", "action", "server_id", "server_name", "detail", "session_id", "run_id", "tool_call_id", "tool_name",
	}}
}

// Release ends a claim without an outcome, so that another executor can take the call at
// once. Like Record, it returns ErrLost.
func (l *Ledger) Release(ctx context.Context, ref Ref, attempt int) error {
	err := l.write(ctx, ref.Workspace, `
		UPDATE outcomes SET lease_until = '-infinity'
		WHERE workspace_id = @workspace AND key = @key AND owner = @owner AND attempt = @attempt AND state = 'started'`,
		pg.Args{"workspace": ref.Workspace, "key": ref.Key, "owner": l.owner, "attempt": attempt})
	if err != nil {
		return fmt.Errorf("release call %s: %w", ref.Key, err)
	}
	return nil
}

func (l *Ledger) write(ctx context.Context, ws id.Workspace, statement string, args pg.Args) error {
	b := &pgx.Batch{}
	b.Queue(statement, args).Exec(func(tag pgconn.CommandTag) error {
		if tag.RowsAffected() == 0 {
			return ErrLost
		}
		return nil
	})
	return l.db.WriteInWorkspace(ctx, ws, b)
}

// Renew renews the leases of the given claims and returns the current attempt of each. A claim
// that is missing or has a higher attempt is lost or was released.
func (l *Ledger) Renew(ctx context.Context, refs []Ref) (map[Ref]int, error) {
	workspaces, keys := make([]uuid.UUID, len(refs)), make([]uuid.UUID, len(refs))
	for i, r := range refs {
		workspaces[i], keys[i] = r.Workspace.UUID, r.Key.UUID
	}
	held := make(map[Ref]int, len(refs))
	// AsSystem: an executor has calls of many workspaces. Only its own rows are changed.
	err := l.db.AsSystem(ctx, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			UPDATE outcomes SET lease_until = now() + make_interval(secs => @lease)
			WHERE owner = @owner AND state = 'started' AND lease_until <> '-infinity'
				AND (workspace_id, key) IN (SELECT * FROM unnest(@workspaces::uuid[], @keys::uuid[]))
			RETURNING workspace_id, key, attempt`,
			pg.Args{"owner": l.owner, "lease": l.lease.Seconds(), "workspaces": workspaces, "keys": keys})
		if err != nil {
			return err
		}
		var ref Ref
		var attempt int
		_, err = pgx.ForEachRow(rows, []any{&ref.Workspace, &ref.Key, &attempt}, func() error {
			held[ref] = attempt
			return nil
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("renew leases: %w", err)
	}
	return held, nil
}

// Outcomes returns the recorded outcomes of keys. Calls without an outcome are absent.
func (l *Ledger) Outcomes(ctx context.Context, ws id.Workspace, keys []id.Operation) ([]*toolv1.Outcome, error) {
	plain := make([]uuid.UUID, len(keys))
	for i, k := range keys {
		plain[i] = k.UUID
	}
	var out []*toolv1.Outcome
	b := &pgx.Batch{}
	b.Queue(`SELECT `+columns+` FROM outcomes WHERE workspace_id = @workspace AND key = ANY (@keys) AND state = 'done'`,
		pg.Args{"workspace": ws, "keys": plain}).Query(func(rows pgx.Rows) (err error) {
		out, err = pgx.CollectRows(rows, func(r pgx.CollectableRow) (*toolv1.Outcome, error) { return scan(r) })
		return err
	})
	err := l.db.ReadInWorkspace(ctx, ws, b)
	if err != nil {
		return nil, fmt.Errorf("read outcomes: %w", err)
	}
	return out, nil
}

const columns = `key, run_id, tool_call_id, tool_name, coalesce(outcome, 0), coalesce(result, ''), coalesce(error_type, ''), coalesce(summary, ''), coalesce(duration_ms, 0)`

func scan(r pgx.Row, rest ...any) (*toolv1.Outcome, error) {
	var (
		o     toolv1.Outcome
		key   id.Operation
		run   id.Run
		state int16
	)
	into := append([]any{&key, &run, &o.ToolCallId, &o.ToolName, &state, &o.ResultJson, &o.ErrorType, &o.Summary, &o.DurationMs}, rest...)
	if err := r.Scan(into...); err != nil {
		return nil, err
	}
	o.Key, o.RunId, o.State = key.String(), run.String(), toolv1.OutcomeState(state)
	return &o, nil
}

// housekeepBatch bounds one transaction of Housekeep.
const housekeepBatch = 1000

// Housekeep deletes rows older than age. All executors may run it at once.
func (l *Ledger) Housekeep(ctx context.Context, age time.Duration) (removed int64, err error) {
	for {
		var n int64
		// AsSystem: rows of all workspaces expire.
		err := l.db.AsSystem(ctx, func(ctx context.Context, tx pgx.Tx) error {
			tag, err := tx.Exec(ctx, `
				DELETE FROM outcomes WHERE (workspace_id, key) IN (
					SELECT workspace_id, key FROM outcomes
					WHERE started_at < now() - make_interval(secs => @age) AND (state = 'done' OR lease_until < now())
					LIMIT @limit FOR UPDATE SKIP LOCKED)`, pg.Args{"age": age.Seconds(), "limit": housekeepBatch})
			n = tag.RowsAffected()
			return err
		})
		if err != nil {
			return removed, fmt.Errorf("remove old outcomes: %w", err)
		}
		if removed += n; n < housekeepBatch {
			return removed, nil
		}
	}
}
