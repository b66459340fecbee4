// Package ledger remembers what became of every call, so that a call which is
// delivered again is answered and not run again.
//
// A call has one row, under its key. An executor claims it before it runs the
// tool: the row says "started", with the executor's name, the whole call, and a
// lease that the executor renews while the tool runs. Afterwards it records the
// outcome, once, and the call itself is forgotten.
//
// When an executor dies, its row stops changing. The others look at the open rows
// (Open) and judge by their own clocks for how long one has not changed; TakeOver
// then succeeds only if it still has not, and counts the attempt up. What that
// means for a tool that may have run already is the caller's to decide. No clock
// but Postgres' is in a row, and none is compared with another.
//
// An executor that was only thought dead cannot write: Record is refused unless
// its claim is still the latest.
package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
)

// Ledger is one executor's hand on the table. It is safe for concurrent use.
type Ledger struct {
	db       *pg.DB
	owner    uuid.UUID
	executor string
	lease    time.Duration
}

// New returns a ledger whose claims are in the name of executor, which is what
// others look for when they want to know whether the process lives. The name must
// be fresh: one process, one name. A claim is good for lease unless it is renewed.
func New(db *pg.DB, executor string, lease time.Duration) *Ledger {
	return &Ledger{db: db, owner: uuid.New(), executor: executor, lease: lease}
}

// Ref names a call.
type Ref struct {
	Workspace id.Workspace
	Key       id.Operation
}

// Call is what is written down about a call when it is claimed.
type Call struct {
	Ref
	Run        id.Run
	Session    id.Session
	ToolCallID string
	ToolName   string
	Effect     toolv1.Effect
	// Work is the whole call, for whoever has to go on with it.
	Work []byte
	// Request tells two requests apart that come under the same key.
	Request []byte
}

// Claim is what Claim and TakeOver found: a claim (Attempt), an outcome (Done), or
// neither, and then another executor has the call.
type Claim struct {
	// Attempt is set when the call is the caller's now: 1 the first time, more when
	// somebody had begun with it before and may have run the tool.
	Attempt int
	// Former are the executors that had begun with it, without the caller. They may
	// be dead, or only silent.
	Former []string
	// Effect is that of the tool as the first of them knew it.
	Effect toolv1.Effect
	// Done is the outcome that was recorded before.
	Done *toolv1.Outcome
	// Kept says that the call of another executor is in its row: it does not depend
	// on its message.
	Kept bool
}

// Refusals.
var (
	// ErrLost means that the claim is not the latest any more: somebody else has the
	// call, or its outcome is recorded.
	ErrLost = errors.New("the call is somebody else's now")
	// ErrReused means that the key was claimed for another request before.
	ErrReused = errors.New("the key stands for another request")
)

// take is what a claim of an open row changes. A name that is among the former
// ones already is not added again.
const take = `attempt = outcomes.attempt + 1, owner = @owner, executor = @executor, lease_until = now() + make_interval(secs => @lease),
	former = case when outcomes.executor = @executor or outcomes.executor = any (outcomes.former) then outcomes.former
		else outcomes.former || outcomes.executor end`

// Claim makes the call the caller's if nobody has begun with it, or whoever had
// has let go of it (Release). A claim of this very ledger that is still open is
// claimed anew: the caller knows that it is not at work on it. ErrReused tells
// that the key stands for something else.
//
// A row without its call is of the version before, whose claims are the next
// one's when their lease has run out.
func (l *Ledger) Claim(ctx context.Context, c Call) (Claim, error) {
	var out Claim
	b := &pgx.Batch{}
	args := pg.Args{
		"ws": c.Workspace, "key": c.Key, "run": c.Run, "session": c.Session, "call": c.ToolCallID, "tool": c.ToolName,
		"effect": int16(c.Effect), "owner": l.owner, "executor": l.executor, "lease": l.lease.Seconds(), "work": c.Work, "request": c.Request,
	}
	b.Queue(`insert into outcomes (workspace_id, key, run_id, session_id, tool_call_id, tool_name, effect, started_at,
			state, attempt, owner, executor, lease_until, work, request)
		values (@ws, @key, @run, @session, @call, @tool, @effect, now(), 'started', 1, @owner, @executor, now() + make_interval(secs => @lease), @work, @request)
		on conflict (workspace_id, key) do update set `+take+`, work = excluded.work, request = excluded.request
			where outcomes.state = 'started' and coalesce(outcomes.request, excluded.request) is not distinct from excluded.request
				and (outcomes.lease_until = '-infinity' or outcomes.owner = excluded.owner or outcomes.work is null and outcomes.lease_until < clock_timestamp())
		returning attempt, array_remove(former, @executor), effect`, args).QueryRow(func(r pgx.Row) error {
		var effect int16
		err := r.Scan(&out.Attempt, &out.Former, &effect)
		if pg.NoRows(err) {
			return nil
		}
		out.Effect = toolv1.Effect(effect)
		return err
	})
	err := l.db.WriteInWorkspace(ctx, c.Workspace, b)
	if err == nil && out.Attempt == 0 {
		out, err = l.look(ctx, c, args)
	}
	if err != nil {
		return Claim{}, fmt.Errorf("claim call %s: %w", c.Key, err)
	}
	return out, nil
}

// look says why a call could not be claimed.
func (l *Ledger) look(ctx context.Context, c Call, args pg.Args) (out Claim, err error) {
	b := &pgx.Batch{}
	b.Queue(`select `+columns+`, state = 'done', coalesce(request, @request) is distinct from @request, array_remove(former, @executor), effect, work is not null
		from outcomes where workspace_id = @ws and key = @key`, args).QueryRow(func(r pgx.Row) error {
		var done, other bool
		var effect int16
		o, err := scan(r, &done, &other, &out.Former, &effect, &out.Kept)
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

// Open is a call that somebody has begun with and nobody has recorded.
type Open struct {
	Ref
	// Version changes with every change of the row, renewals of the lease included.
	Version string
	// Executor has the claim; it has let go of it when Released is set.
	Executor string
	Released bool
}

// maxOpen bounds what Open returns. It is far more than all executors have slots.
const maxOpen = 10_000

// Open returns the calls that are open, of all executors and workspaces.
func (l *Ledger) Open(ctx context.Context) ([]Open, error) {
	var out []Open
	// As the system: the calls of a dead executor are of many workspaces.
	err := l.db.AsSystem(ctx, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `select workspace_id, key, xmin::text, executor, lease_until = '-infinity' from outcomes
			where state = 'started' and work is not null limit $1`, maxOpen)
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

// Work returns an open call as it came, or ErrLost when it is not open any more.
func (l *Ledger) Work(ctx context.Context, ref Ref) ([]byte, error) {
	var work []byte
	b := &pgx.Batch{}
	b.Queue(`select work from outcomes where workspace_id = $1 and key = $2 and state = 'started' and work is not null`,
		ref.Workspace, ref.Key).QueryRow(func(r pgx.Row) error {
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

// TakeOver makes an open call the caller's, whoever has it, provided that its row
// has not changed since o was read; else it returns ErrLost.
func (l *Ledger) TakeOver(ctx context.Context, o Open) (Claim, error) {
	var out Claim
	b := &pgx.Batch{}
	b.Queue(`update outcomes set `+take+`
		where workspace_id = @ws and key = @key and state = 'started' and xmin::text = @version
		returning attempt, array_remove(former, @executor), effect`, pg.Args{
		"ws": o.Workspace, "key": o.Key, "version": o.Version, "owner": l.owner, "executor": l.executor, "lease": l.lease.Seconds(),
	}).QueryRow(func(r pgx.Row) error {
		var effect int16
		err := r.Scan(&out.Attempt, &out.Former, &effect)
		if pg.NoRows(err) {
			return ErrLost
		}
		out.Effect = toolv1.Effect(effect)
		return err
	})
	err := l.db.WriteInWorkspace(ctx, o.Workspace, b)
	if err != nil {
		return Claim{}, fmt.Errorf("take over call %s: %w", o.Key, err)
	}
	return out, nil
}

// Record writes the outcome of a claimed call, or returns ErrLost. It is the
// last word: the outcome never changes again.
func (l *Ledger) Record(ctx context.Context, ws id.Workspace, attempt int, o *toolv1.Outcome) error {
	key, err := id.Parse[id.Operation](o.GetKey())
	if err != nil {
		return fmt.Errorf("record an outcome: key: %w", err)
	}
	err = l.write(ctx, ws, `update outcomes set state = 'done', outcome = @outcome, result = @result, error_type = @type, summary = @summary,
			duration_ms = @duration, bytes = @bytes, finished_at = now(), work = null
		where workspace_id = @ws and key = @key and owner = @owner and attempt = @attempt and state = 'started'`,
		pg.Args{
			"ws": ws, "key": key, "owner": l.owner, "attempt": attempt,
			"outcome": int16(o.GetState()), "result": o.GetResultJson(), "type": o.GetErrorType(), "summary": o.GetSummary(),
			"duration": o.GetDurationMs(), "bytes": len(o.GetResultJson()),
		})
	if err != nil {
		return fmt.Errorf("record the outcome of call %s: %w", key, err)
	}
	return nil
}

// Release ends a claim without an outcome, so that another executor need not
// wait for its silence. It returns ErrLost as Record does.
func (l *Ledger) Release(ctx context.Context, ref Ref, attempt int) error {
	err := l.write(ctx, ref.Workspace, `update outcomes set lease_until = '-infinity'
		where workspace_id = @ws and key = @key and owner = @owner and attempt = @attempt and state = 'started'`,
		pg.Args{"ws": ref.Workspace, "key": ref.Key, "owner": l.owner, "attempt": attempt})
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

// Renew renews the leases of the given claims and returns the current attempt of
// each; a claim that is not there, or with a higher attempt, is lost or was let go of.
func (l *Ledger) Renew(ctx context.Context, refs []Ref) (map[Ref]int, error) {
	workspaces, keys := make([]uuid.UUID, len(refs)), make([]uuid.UUID, len(refs))
	for i, r := range refs {
		workspaces[i], keys[i] = r.Workspace.UUID, r.Key.UUID
	}
	held := make(map[Ref]int, len(refs))
	// As the system: one executor's calls are of many workspaces, and only its own
	// rows are touched.
	err := l.db.AsSystem(ctx, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `update outcomes set lease_until = now() + make_interval(secs => $2)
			where owner = $1 and state = 'started' and lease_until <> '-infinity' and (workspace_id, key) in (select * from unnest($3::uuid[], $4::uuid[]))
			returning workspace_id, key, attempt`, l.owner, l.lease.Seconds(), workspaces, keys)
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

// Outcomes returns what is recorded under keys; calls without an outcome are absent.
func (l *Ledger) Outcomes(ctx context.Context, ws id.Workspace, keys []id.Operation) ([]*toolv1.Outcome, error) {
	plain := make([]uuid.UUID, len(keys))
	for i, k := range keys {
		plain[i] = k.UUID
	}
	var out []*toolv1.Outcome
	b := &pgx.Batch{}
	b.Queue(`select `+columns+` from outcomes where workspace_id = $1 and key = any ($2) and state = 'done'`, ws, plain).Query(func(rows pgx.Rows) (err error) {
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

// Housekeep removes rows older than age. It is safe to run on every executor at once.
func (l *Ledger) Housekeep(ctx context.Context, age time.Duration) (removed int64, err error) {
	for {
		var n int64
		// As the system: age knows no workspace.
		err := l.db.AsSystem(ctx, func(ctx context.Context, tx pgx.Tx) error {
			tag, err := tx.Exec(ctx, `delete from outcomes where (workspace_id, key) in (
				select workspace_id, key from outcomes where started_at < now() - make_interval(secs => $1) and (state = 'done' or lease_until < now())
				limit $2 for update skip locked)`, age.Seconds(), housekeepBatch)
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
