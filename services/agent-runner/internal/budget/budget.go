// Package budget limits what a workspace spends on runs: tokens, cost, steps and running time,
// of the workspace or a member each day (UTC), and of a session or a run in total. Running time
// is the time that a runner works on a run, including its tools. A run that waits for a person
// or for a budget takes none.
//
// # How a budget holds
//
// Before each step the run reserves an estimate of what the step may use (Reserve). The
// reservation is on the run's row and counts as spent while the run is running. The step's
// commit adds the actual usage to the budgets and clears the reservation, in one transaction
// (QueueSpent). Reservations of one workspace are made one after the other, because they lock
// its budgets. So a budget that many runs share is exceeded by at most one step of each, and
// by less where the estimates are right.
//
//	spent   the limit is used up                       the run ends and says which budget and until when
//	wait    the limit is reserved but not used up      the run waits until the other steps are committed
//	ok      something is left                          the step begins
//
// If a runner dies, its reservation counts until the run is claimed again, which clears it,
// or has ended. Nothing is reserved of running time. A step is counted on the day of its
// reservation, also if it is committed after midnight. Runs that wait have no reservation, so they cannot wait for each other. Usage
// is never lost: it is in the transaction that commits the step. The running time of a step without an
// answer is in the transaction that ends the run or gives it back; that of a runner that dies is not counted.
package budget

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/services/agent-runner/internal/audit"
)

// The scopes of budgets.
const (
	Workspace = "workspace"
	Member    = "member"
	Session   = "session"
	Run       = "run"
)

// Amount is what was spent or reserved.
type Amount struct {
	Tokens, CostMicros, Steps int64
	Time                      time.Duration
}

// Budget is a row of budgets.
type Budget struct {
	ID    uuid.UUID
	Scope string
	// Subject is the member or session; nil if each one has a budget of its own.
	Subject    *uuid.UUID
	Tokens     *int64
	CostMicros *int64
	Steps      *int64
	Seconds    *int64 // of running time
	CreatedBy  id.Member
	CreatedAt  time.Time
	// Used is what the subject has spent in the current period; for a budget of each member,
	// the reader. It is nil for a budget of each session or run.
	Used *Amount `db:"-"`
}

// Daily reports whether the budget begins anew each day.
func (b *Budget) Daily() bool { return b.Scope == Workspace || b.Scope == Member }

// String describes the budget's limits.
func (b *Budget) String() string {
	var out strings.Builder
	out.WriteString(b.Scope)
	if b.Subject != nil {
		out.WriteString(" " + b.Subject.String())
	}
	for _, l := range []struct {
		name  string
		limit *int64
	}{{"tokens", b.Tokens}, {"cost_micros", b.CostMicros}, {"steps", b.Steps}, {"seconds", b.Seconds}} {
		if l.limit != nil {
			fmt.Fprintf(&out, ", %s %d", l.name, *l.limit)
		}
	}
	return out.String()
}

// maxBudgets bounds the budgets of a workspace, because each step reads all of them.
const maxBudgets = 100

// maxSeconds bounds a limit of running time, which is counted in milliseconds.
const maxSeconds = 1 << 40

// Store reads and writes budgets. It is safe for concurrent use.
type Store struct {
	db *pg.DB

	mu    sync.Mutex // guards known
	known map[id.Workspace]known
}

// known is whether a workspace has budgets.
type known struct {
	some  bool
	until time.Time
}

const (
	// knownFor is how long it may take until another process notices a workspace's first budget.
	knownFor = 5 * time.Second
	maxKnown = 10_000
)

// NewStore returns a store.
func NewStore(db *pg.DB) *Store { return &Store{db: db, known: map[id.Workspace]known{}} }

// subject is the key of budget_use for a budget b: what the budget is counted for.
const subject = `CASE b.scope WHEN 'workspace' THEN @workspace::uuid WHEN 'member' THEN @member::uuid WHEN 'session' THEN @session::uuid ELSE @run::uuid END`

// concerns is true of budgets b of the run's workspace that limit the run.
const concerns = `b.workspace_id = @workspace AND (b.subject IS NULL OR b.subject = ` + subject + `)`

// today is the day in UTC; period is the day on which a budget b is counted today.
const (
	today  = `(clock_timestamp() AT TIME ZONE 'UTC')::date`
	daily  = `b.scope IN ('workspace', 'member')`
	period = `CASE WHEN ` + daily + ` THEN ` + today + ` ELSE 'epoch'::date END`
)

// QueueSpent adds what a step has used to the budgets of its run, in the transaction that
// commits the step. args has workspace, session, run and member.
func QueueSpent(b *pgx.Batch, args pg.Args, a Amount) {
	// FOR KEY SHARE: a budget that is deleted at the same time is gone or waits, instead of
	// failing the commit by its foreign key.
	args["spent_tokens"], args["spent_micros"], args["spent_steps"], args["spent_ms"] = a.Tokens, a.CostMicros, a.Steps, a.Time.Milliseconds()
	b.Queue(`
		INSERT INTO budget_use AS u (budget_id, subject, workspace_id, day, tokens, cost_micros, steps, milliseconds)
		SELECT b.id, `+subject+`, b.workspace_id,
			CASE WHEN `+daily+` THEN coalesce((SELECT reserved_day FROM runs WHERE workspace_id = @workspace AND id = @run), `+today+`) ELSE 'epoch' END,
			@spent_tokens, @spent_micros, @spent_steps, @spent_ms FROM budgets b WHERE `+concerns+`
		ORDER BY b.id FOR KEY SHARE
		ON CONFLICT (budget_id, subject) DO UPDATE SET
			day = excluded.day,
			tokens = excluded.tokens + CASE WHEN u.day = excluded.day THEN u.tokens ELSE 0 END,
			cost_micros = excluded.cost_micros + CASE WHEN u.day = excluded.day THEN u.cost_micros ELSE 0 END,
			steps = excluded.steps + CASE WHEN u.day = excluded.day THEN u.steps ELSE 0 END,
			milliseconds = excluded.milliseconds + CASE WHEN u.day = excluded.day THEN u.milliseconds ELSE 0 END
		WHERE u.day <= excluded.day`, args) // nobody looks at a day that is over
}

// Reservation is a step that is about to begin.
type Reservation struct {
	Workspace id.Workspace
	Session   id.Session
	Run       id.Run
	Epoch     int64
	Member    id.Member
	Estimate  Amount // Steps is ignored: it is one
}

// Verdict is the answer to a reservation.
type Verdict struct {
	// Reason is the finish reason if a budget is spent: budget-tokens, budget-cost,
	// budget-steps or budget-time.
	Reason string
	// Detail tells a person which budget is spent, and when it begins anew.
	Detail string
	// Wait means that steps in progress have reserved what is left.
	Wait bool
	// Budgeted means that the workspace has budgets.
	Budgeted bool
}

// Reserve reserves what a step may use. The reservation is made unless the verdict has a
// reason or says to wait.
func (s *Store) Reserve(ctx context.Context, r Reservation) (Verdict, error) {
	if some, err := s.some(ctx, r.Workspace); err != nil || !some {
		return Verdict{}, err
	}
	args := pg.Args{
		"workspace": r.Workspace, "session": r.Session, "run": r.Run, "epoch": r.Epoch, "member": r.Member,
		"tokens": max(r.Estimate.Tokens, 1), "micros": r.Estimate.CostMicros,
	}
	var states []state
	read := &pgx.Batch{}
	// Not FOR UPDATE: that would wait for commits, which refer to budgets.
	read.Queue(`SELECT FROM budgets b WHERE `+concerns+` ORDER BY b.id FOR NO KEY UPDATE`, args)
	// One statement, so that a commit between spent and reserved is in both or in neither.
	read.Queue(`
		SELECT b.scope, b.subject IS NOT NULL, b.tokens, b.cost_micros, b.steps,
			coalesce(u.tokens, 0), coalesce(u.cost_micros, 0), coalesce(u.steps, 0), r.tokens, r.cost_micros, r.steps,
			b.seconds * 1000, coalesce(u.milliseconds, 0)
		FROM budgets b
		LEFT JOIN budget_use u ON u.budget_id = b.id AND u.subject = `+subject+` AND u.day = `+period+`
		CROSS JOIN LATERAL (
			SELECT coalesce(sum(o.reserved_tokens), 0)::bigint AS tokens, coalesce(sum(o.reserved_cost_micros), 0)::bigint AS cost_micros,
				count(*) FILTER (WHERE o.reserved_tokens > 0) AS steps
			FROM runs o WHERE o.workspace_id = @workspace AND o.state = 'running' AND o.id <> @run
				AND (NOT `+daily+` OR coalesce(o.reserved_day, `+today+`) = `+today+`) AND CASE b.scope
				WHEN 'workspace' THEN true WHEN 'member' THEN o.created_by = @member WHEN 'session' THEN o.session_id = @session ELSE false END
		) r
		WHERE `+concerns, args).Query(func(rows pgx.Rows) (err error) {
		states, err = pgx.CollectRows(rows, pgx.RowToStructByPos[state])
		return err
	})
	var v Verdict
	err := s.db.ChangeInWorkspace(ctx, r.Workspace, read, func(b *pgx.Batch) error {
		for _, st := range states {
			if got := st.verdict(time.Now()); got.Reason != "" || got.Wait && v.Reason == "" {
				v = got
			}
		}
		if v == (Verdict{}) && len(states) > 0 {
			b.Queue(`
				UPDATE runs SET reserved_tokens = @tokens, reserved_cost_micros = @micros, reserved_day = `+today+`
				WHERE workspace_id = @workspace AND id = @run AND epoch = @epoch AND state = 'running'`, args)
		}
		return nil
	})
	if err != nil {
		return Verdict{}, fmt.Errorf("reserve a step of run %s: %w", r.Run, err)
	}
	v.Budgeted = true
	return v, nil
}

// state is a budget with what is spent and reserved of it.
type state struct {
	Scope                                     string
	Named                                     bool // for one member or session
	Tokens, CostMicros, Steps                 *int64
	UsedTokens, UsedMicros, UsedSteps         int64
	OthersTokens, OthersMicros, OthersReserve int64
	Milliseconds                              *int64
	UsedMilliseconds                          int64
}

// verdict returns the zero Verdict if something is left.
func (s *state) verdict(now time.Time) Verdict {
	for _, l := range []struct {
		name         string
		limit        *int64
		used, others int64
		shown        func(int64) string
	}{
		{"tokens", s.Tokens, s.UsedTokens, s.OthersTokens, func(n int64) string { return count(n, "token") }},
		{"cost", s.CostMicros, s.UsedMicros, s.OthersMicros, dollars},
		{"steps", s.Steps, s.UsedSteps, s.OthersReserve, func(n int64) string { return count(n, "step") }},
		{"time", s.Milliseconds, s.UsedMilliseconds, 0, func(n int64) string { return count(n/1000, "second") + " of running time" }},
	} {
		switch {
		case l.limit == nil || l.used+l.others < *l.limit:
		case l.used < *l.limit:
			return Verdict{Wait: true}
		default:
			return Verdict{Reason: "budget-" + l.name, Detail: s.detail(l.shown(*l.limit), now)}
		}
	}
	return Verdict{}
}

func (s *state) detail(limit string, now time.Time) string {
	switch s.Scope {
	case Workspace, Member:
		whose := "of the workspace"
		if s.Scope == Member {
			whose = "of this member"
		}
		midnight := now.UTC().Truncate(24 * time.Hour).Add(24 * time.Hour)
		return fmt.Sprintf("Today's budget %s, %s, is spent. Runs go on at %s, or when an owner raises it.", whose, limit, midnight.Format(time.RFC3339))
	}
	return fmt.Sprintf("The budget of this %s, %s, is spent. An owner can raise it.", s.Scope, limit)
}

func count(n int64, unit string) string {
	if n != 1 {
		unit += "s"
	}
	return fmt.Sprintf("%d %s", n, unit)
}

// dollars formats an amount with two to six digits after the point.
func dollars(micros int64) string {
	s := strings.TrimRight(fmt.Sprintf("$%.6f", float64(micros)/1e6), "0")
	for len(s)-strings.IndexByte(s, '.') < 3 {
		s += "0"
	}
	return s
}

// some reports whether a workspace has budgets, as of a few seconds ago.
func (s *Store) some(ctx context.Context, ws id.Workspace) (bool, error) {
	s.mu.Lock()
	k := s.known[ws]
	s.mu.Unlock()
	if time.Now().Before(k.until) {
		return k.some, nil
	}
	b := &pgx.Batch{}
	b.Queue(`SELECT EXISTS (SELECT FROM budgets WHERE workspace_id = @workspace)`, pg.Args{"workspace": ws}).
		QueryRow(func(row pgx.Row) error { return row.Scan(&k.some) })
	if err := s.db.ReadInWorkspace(ctx, ws, b); err != nil {
		return false, fmt.Errorf("look for budgets: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.known) >= maxKnown {
		clear(s.known)
	}
	s.known[ws] = known{k.some, time.Now().Add(knownFor)}
	return k.some, nil
}

// forget makes the next reservation of a workspace look for budgets.
func (s *Store) forget(ws id.Workspace) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.known, ws)
}

// List returns the workspace's budgets, oldest first, with what is used of them.
func (s *Store) List(ctx context.Context, a identity.Actor) ([]Budget, error) {
	var out []Budget
	b := &pgx.Batch{}
	b.Queue(`
		SELECT b.id, b.scope, b.subject, b.tokens, b.cost_micros, b.steps, b.seconds, b.created_by, b.created_at,
			coalesce(u.tokens, 0), coalesce(u.cost_micros, 0), coalesce(u.steps, 0), coalesce(u.milliseconds, 0)
		FROM budgets b
		LEFT JOIN budget_use u ON u.budget_id = b.id AND u.day = `+period+`
			AND u.subject = coalesce(b.subject, CASE b.scope WHEN 'workspace' THEN b.workspace_id WHEN 'member' THEN @member END)
		WHERE b.workspace_id = @workspace ORDER BY b.created_at, b.id`, pg.Args{"workspace": a.Workspace, "member": a.Member}).
		Query(func(rows pgx.Rows) (err error) {
			out, err = pgx.CollectRows(rows, func(r pgx.CollectableRow) (b Budget, err error) {
				var used Amount
				var ms int64
				err = r.Scan(&b.ID, &b.Scope, &b.Subject, &b.Tokens, &b.CostMicros, &b.Steps, &b.Seconds, &b.CreatedBy, &b.CreatedAt,
					&used.Tokens, &used.CostMicros, &used.Steps, &ms)
				used.Time = time.Duration(ms) * time.Millisecond
				if b.Subject != nil || b.Daily() {
					b.Used = &used
				}
				return b, err
			})
			return err
		})
	if err := s.db.ReadInWorkspace(ctx, a.Workspace, b); err != nil {
		return nil, fmt.Errorf("list budgets: %w", err)
	}
	return out, nil
}

// Set creates a budget, or replaces the limits of the one with the same scope and subject.
func (s *Store) Set(ctx context.Context, a identity.Actor, n Budget) (*Budget, error) {
	if err := n.validate(); err != nil {
		return nil, err
	}
	args := pg.Args{
		"id": uuid.Must(uuid.NewV7()), "workspace": a.Workspace, "scope": n.Scope, "subject": n.Subject,
		"tokens": n.Tokens, "micros": n.CostMicros, "steps": n.Steps, "seconds": n.Seconds, "member": a.Member, "most": maxBudgets,
	}
	err := s.db.InWorkspace(ctx, a.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		var set uuid.UUID
		err := tx.QueryRow(ctx, `
		INSERT INTO budgets (id, workspace_id, scope, subject, tokens, cost_micros, steps, seconds, created_by)
		SELECT @id, @workspace, @scope, @subject, @tokens, @micros, @steps, @seconds, @member
		WHERE (SELECT count(*) FROM budgets WHERE workspace_id = @workspace AND (scope, coalesce(subject, workspace_id)) <> (@scope, coalesce(@subject, @workspace))) < @most
		ON CONFLICT ON CONSTRAINT budgets_subject DO UPDATE SET tokens = @tokens, cost_micros = @micros, steps = @steps, seconds = @seconds
		RETURNING id`, args).Scan(&set)
		if pg.NoRows(err) {
			return fault.New(fault.Conflict, "the workspace has %d budgets, the most that are allowed: delete one first", maxBudgets)
		}
		if err != nil {
			return err
		}
		return audit.Add(ctx, tx, audit.Row{Workspace: a.Workspace, Member: &a.Member, Action: audit.BudgetSet, Subject: set.String(), Detail: n.String()})
	})
	if err != nil {
		return nil, fmt.Errorf("set a budget: %w", err)
	}
	s.forget(a.Workspace)
	all, err := s.List(ctx, a)
	if err != nil {
		return nil, err
	}
	for i := range all {
		if all[i].Scope == n.Scope && same(all[i].Subject, n.Subject) {
			return &all[i], nil
		}
	}
	return nil, fault.New(fault.Conflict, "the budget was deleted meanwhile: set it again")
}

func same(a, b *uuid.UUID) bool { return a == nil && b == nil || a != nil && b != nil && *a == *b }

func (b *Budget) validate() error {
	switch b.Scope {
	case Workspace, Run:
		if b.Subject != nil {
			return fault.New(fault.Invalid, "subject is for the scopes member and session only")
		}
	case Member, Session:
	default:
		return fault.New(fault.Invalid, "scope must be workspace, member, session or run")
	}
	limits := 0
	for name, limit := range map[string]*int64{"tokens": b.Tokens, "cost_micros": b.CostMicros, "steps": b.Steps, "seconds": b.Seconds} {
		if limit == nil {
			continue
		}
		limits++
		if *limit < 0 {
			return fault.New(fault.Invalid, "%s must not be negative", name)
		}
		if name == "seconds" && *limit > maxSeconds {
			return fault.New(fault.Invalid, "seconds must be at most %d", int64(maxSeconds))
		}
	}
	if limits == 0 {
		return fault.New(fault.Invalid, "at least one of tokens, cost_micros, steps and seconds is required")
	}
	return nil
}

// Delete deletes a budget and what was counted for it.
func (s *Store) Delete(ctx context.Context, a identity.Actor, budget uuid.UUID) error {
	err := s.db.InWorkspace(ctx, a.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		var gone Budget
		err := tx.QueryRow(ctx, `
			DELETE FROM budgets WHERE workspace_id = @workspace AND id = @id
			RETURNING scope, subject, tokens, cost_micros, steps, seconds`, pg.Args{"workspace": a.Workspace, "id": budget}).
			Scan(&gone.Scope, &gone.Subject, &gone.Tokens, &gone.CostMicros, &gone.Steps, &gone.Seconds)
		if pg.NoRows(err) {
			return fault.New(fault.NotFound, "there is no such budget")
		}
		if err != nil {
			return err
		}
		return audit.Add(ctx, tx, audit.Row{Workspace: a.Workspace, Member: &a.Member, Action: audit.BudgetDeleted, Subject: budget.String(), Detail: gone.String()})
	})
	if err != nil {
		return fmt.Errorf("delete a budget: %w", err)
	}
	s.forget(a.Workspace)
	return nil
}
