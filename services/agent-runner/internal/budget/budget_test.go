package budget_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/pgtest"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
	"signalbox.dev/services/agent-runner/internal/budget"
	"signalbox.dev/services/agent-runner/internal/outbox"
	"signalbox.dev/services/agent-runner/internal/run"
	"signalbox.dev/services/agent-runner/migrations"
)

// world is a workspace with runs and budgets.
type world struct {
	t       *testing.T
	db      *pg.DB
	runs    *run.Store
	budgets *budget.Store
	owner   identity.Actor
}

func newWorld(t *testing.T) *world {
	t.Helper()
	migrated := pg.Migrations{Schema: "agent", Role: "signalbox_agent", FS: migrations.FS}
	db := pgtest.New(t, migrated).Open(t, migrated)
	return &world{
		t: t, db: db, budgets: budget.NewStore(db),
		runs:  run.NewStore(db, outbox.New(db, nil, slog.New(slog.DiscardHandler)), "r", run.Config{Lease: time.Hour, WallTime: time.Hour, Partitions: 4}),
		owner: identity.Actor{Workspace: id.New[id.Workspace](), Member: id.New[id.Member](), Role: identity.Owner},
	}
}

// claim returns a claimed run of a new session.
func (w *world) claim(member id.Member) *run.Claim {
	w.t.Helper()
	session, r := id.New[id.Session](), id.New[id.Run]()
	args := pg.Args{"ws": w.owner.Workspace, "session": session, "run": r, "message": id.New[id.Message](), "member": member}
	b := &pgx.Batch{}
	b.Queue(`
		INSERT INTO sessions (id, workspace_id, created_by, model, provider, preset, created_at, updated_at)
		VALUES (@session, @ws, @member, 'm', 'p', 'workspace', now(), now())`, args)
	b.Queue(`
		INSERT INTO runs (id, workspace_id, session_id, ordinal, state, user_message_id, created_by, role, provider, model, created_at)
		VALUES (@run, @ws, @session, 1, 'queued', @message, @member, 'editor', 'p', 'm', now())`, args)
	if err := w.db.WriteInWorkspace(w.t.Context(), w.owner.Workspace, b); err != nil {
		w.t.Fatal(err)
	}
	c, err := w.runs.Claim(w.t.Context(), w.owner.Workspace, session, r)
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

func (w *world) set(b budget.Budget) *budget.Budget {
	w.t.Helper()
	out, err := w.budgets.Set(w.t.Context(), w.owner, b)
	if err != nil {
		w.t.Fatalf("Set() = %v", err)
	}
	return out
}

// reserve reserves a step of c that may use tokens.
func (w *world) reserve(ctx context.Context, c *run.Claim, tokens int64) (budget.Verdict, error) {
	r := &c.Run
	return w.budgets.Reserve(ctx, budget.Reservation{
		Workspace: r.Workspace, Session: r.Session, Run: r.ID, Epoch: r.Epoch, Member: r.CreatedBy,
		Estimate: budget.Amount{Tokens: tokens, CostMicros: tokens},
	})
}

// step commits a step that has used tokens.
func (w *world) step(ctx context.Context, c *run.Claim, tokens int64) error {
	return w.runs.CompleteStep(ctx, c, run.Answer{
		ID: id.New[id.Message](), Step: c.Run.Steps, Content: json.RawMessage(`[{"type":"text","text":"hello"}]`), RawDialect: "anthropic", Raw: []byte(`[]`), Model: "m",
		FinishReason: "pause", Usage: run.Usage{Input: tokens - 1, Output: 1}, CostMicros: new(tokens),
	}, int64(c.Run.Steps*4+4))
}

// verdict is what Reserve says for a step of 100 tokens.
func (w *world) verdict(c *run.Claim) string {
	w.t.Helper()
	v, err := w.reserve(w.t.Context(), c, 100)
	if err != nil {
		w.t.Fatalf("Reserve() = %v", err)
	}
	if v.Wait {
		return "wait"
	}
	return v.Reason
}

func (w *world) take(c *run.Claim, tokens int64) {
	w.t.Helper()
	if err := w.step(w.t.Context(), c, tokens); err != nil {
		w.t.Fatal(err)
	}
}

// A thousand runs share a budget. They end with it used up and, since their estimates are
// right, exceed it by one step in all.
func TestSharedBudget(t *testing.T) {
	t.Parallel()
	const runs, limit, size = 1000, 120_000, 100
	w := newWorld(t)
	w.set(budget.Budget{Scope: budget.Workspace, Tokens: new(int64(limit))})
	claims := make([]*run.Claim, runs)
	for i := range claims {
		claims[i] = w.claim(w.owner.Member)
	}
	g, ctx := errgroup.WithContext(t.Context())
	g.SetLimit(64)
	var mu sync.Mutex
	open := claims
	for range 64 { // each goes on with one run after the other, so that all are in the middle
		g.Go(func() error {
			for {
				mu.Lock()
				if len(open) == 0 {
					mu.Unlock()
					return nil
				}
				c := open[0]
				open = open[1:]
				mu.Unlock()
				v, err := w.reserve(ctx, c, size)
				switch {
				case err != nil:
					return err
				case v.Reason != "":
					continue
				case !v.Wait:
					if err := w.step(ctx, c, size); err != nil {
						return err
					}
				}
				mu.Lock()
				open = append(open, c)
				mu.Unlock()
			}
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	all, err := w.budgets.List(t.Context(), w.owner)
	if err != nil {
		t.Fatal(err)
	}
	if used := all[0].Used.Tokens; used != limit {
		t.Errorf("%d tokens were used, want the limit of %d", used, limit)
	}
}

// A budget that steps in progress have reserved makes others wait; what they really used
// counts afterwards, and a claim that comes again replaces its reservation.
func TestReserve(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.set(budget.Budget{Scope: budget.Workspace, Tokens: new(int64(100))})
	one, two := w.claim(w.owner.Member), w.claim(w.owner.Member)
	if got := w.verdict(one); got != "" {
		t.Fatalf("first reservation: %s, want none", got)
	}
	if got := w.verdict(one); got != "" {
		t.Errorf("the same run again: %s, want its reservation replaced", got)
	}
	if got := w.verdict(two); got != "wait" {
		t.Errorf("while all is reserved: %s, want wait", got)
	}
	w.take(one, 40) // less than reserved
	if got := w.verdict(two); got != "" {
		t.Errorf("after the commit of less: %s, want none", got)
	}
	w.take(two, 90)
	v, err := w.reserve(t.Context(), one, 1)
	if err != nil || v.Reason != "budget-tokens" || !strings.HasPrefix(v.Detail, "Today's budget of the workspace, 100 tokens, is spent. Runs go on at ") {
		t.Errorf("Reserve() = %+v, %v, want the day's tokens spent", v, err)
	}
	w.set(budget.Budget{Scope: budget.Workspace, Tokens: new(int64(1000))})
	if got := w.verdict(one); got != "" {
		t.Errorf("after the owner raised it: %s, want none", got)
	}
}

// Runs whose runner died hold no reservation once they are claimed again. Otherwise each of
// them would wait for the other one's.
func TestReservationsOfDeadRunner(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.set(budget.Budget{Scope: budget.Workspace, Tokens: new(int64(300))})
	one, two, third := w.claim(w.owner.Member), w.claim(w.owner.Member), w.claim(w.owner.Member)
	for _, c := range []*run.Claim{one, two} {
		if got := w.verdict(c); got != "" {
			t.Fatalf("first reservation: %s, want none", got)
		}
	}
	w.take(third, 200)
	for _, c := range []**run.Claim{&one, &two} {
		r := &(*c).Run
		if err := w.runs.Release(t.Context(), *c, -time.Second); err != nil {
			t.Fatal(err)
		}
		again, err := w.runs.Claim(t.Context(), r.Workspace, r.Session, r.ID)
		if err != nil {
			t.Fatal(err)
		}
		*c = again
	}
	if got := w.verdict(one); got != "" {
		t.Errorf("after the new claims: %s, want none", got)
	}
}

// Budgets come and go while steps are committed. No commit fails for it.
func TestDeleteDuringCommits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var committed atomic.Bool
	g, changes := errgroup.Group{}, errgroup.Group{}
	for range 4 {
		c := w.claim(w.owner.Member)
		g.Go(func() error {
			for range 100 {
				if _, err := w.reserve(t.Context(), c, 1); err != nil {
					return err
				}
				if err := w.step(t.Context(), c, 10); err != nil {
					return err
				}
			}
			return nil
		})
	}
	for _, scope := range []string{budget.Workspace, budget.Member, budget.Run} {
		changes.Go(func() error {
			for !committed.Load() {
				b, err := w.budgets.Set(t.Context(), w.owner, budget.Budget{Scope: scope, Tokens: new(int64(1 << 40))})
				if err != nil {
					return err
				}
				if err := w.budgets.Delete(t.Context(), w.owner, b.ID); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err := g.Wait()
	committed.Store(true)
	if err := errors.Join(err, changes.Wait()); err != nil {
		t.Error(err)
	}
}

// Each scope counts what is its own.
func TestScopes(t *testing.T) {
	t.Parallel()
	steps := func(n int64) budget.Budget { return budget.Budget{Steps: &n} }
	for _, scope := range []string{budget.Workspace, budget.Member, budget.Session, budget.Run} {
		t.Run(scope, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			b := steps(1)
			b.Scope = scope
			w.set(b)
			one, other := w.claim(w.owner.Member), w.claim(id.New[id.Member]())
			if got := w.verdict(one); got != "" {
				t.Fatalf("first step: %s", got)
			}
			w.take(one, 10)
			if got := w.verdict(one); got != "budget-steps" {
				t.Errorf("second step: %s, want budget-steps", got)
			}
			want := ""
			if scope == budget.Workspace {
				want = "budget-steps"
			}
			if got := w.verdict(other); got != want {
				t.Errorf("another member's run: %q, want %q", got, want)
			}
		})
	}
}

// A budget of one member concerns nobody else, and a new day begins it anew.
func TestDayAndSubject(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.set(budget.Budget{Scope: budget.Member, Subject: &w.owner.Member.UUID, CostMicros: new(int64(2_500_000))})
	one, other := w.claim(w.owner.Member), w.claim(id.New[id.Member]())
	w.take(one, 2_500_000)
	w.take(other, 2_500_000)
	v, err := w.reserve(t.Context(), one, 1)
	if err != nil || v.Reason != "budget-cost" || !strings.HasPrefix(v.Detail, "Today's budget of this member, $2.50, is spent.") {
		t.Errorf("Reserve() = %+v, %v, want $2.50 spent", v, err)
	}
	if got := w.verdict(other); got != "" {
		t.Errorf("another member: %s, want no budget", got)
	}
	b := &pgx.Batch{}
	b.Queue(`UPDATE budget_use SET day = day - 1`)
	if err := w.db.WriteInWorkspace(t.Context(), w.owner.Workspace, b); err != nil {
		t.Fatal(err)
	}
	if got := w.verdict(one); got != "" {
		t.Errorf("the next day: %s, want none", got)
	}
	w.take(one, 7)
	all, err := w.budgets.List(t.Context(), w.owner)
	if diff := cmp.Diff(&budget.Amount{Tokens: 7, CostMicros: 7, Steps: 1}, all[0].Used); err != nil || diff != "" {
		t.Errorf("used (-want +got):\n%s%v", diff, err)
	}
}

// A step that ends after midnight is counted on the day on which it began.
func TestMidnight(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.set(budget.Budget{Scope: budget.Workspace, Tokens: new(int64(100))})
	exec := func(sql string, args pg.Args) {
		t.Helper()
		b := &pgx.Batch{}
		b.Queue(sql, args)
		if err := w.db.WriteInWorkspace(t.Context(), w.owner.Workspace, b); err != nil {
			t.Fatal(err)
		}
	}
	yesterday := func(c *run.Claim) {
		t.Helper()
		exec(`UPDATE runs SET reserved_day = reserved_day - 1 WHERE id = @run`, pg.Args{"run": c.Run.ID})
	}
	used := func(when string, want int64) {
		t.Helper()
		if all, err := w.budgets.List(t.Context(), w.owner); err != nil || all[0].Used.Tokens != want {
			t.Errorf("%s: used %+v, %v, want %d tokens", when, all[0].Used, err, want)
		}
	}
	late, later, today := w.claim(w.owner.Member), w.claim(w.owner.Member), w.claim(w.owner.Member)
	for _, c := range []*run.Claim{late, later} {
		if got := w.verdict(c); got != "" {
			t.Fatalf("a step yesterday: %s", got)
		}
		if got := w.verdict(today); got != "wait" {
			t.Errorf("while it is reserved: %q, want wait", got)
		}
		yesterday(c)
	}
	w.take(late, 60)
	used("after a step of yesterday", 0)
	if got := w.verdict(today); got != "" {
		t.Errorf("today, with a reservation of yesterday: %s", got)
	}
	w.take(today, 30)
	w.take(later, 50)
	used("after another step of yesterday", 30)
}

// Running time is counted with the answer, the results and the waits of a step.
func TestRunningTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.set(budget.Budget{Scope: budget.Run, Seconds: new(int64(3))})
	c := w.claim(w.owner.Member)
	answer := run.Answer{
		ID: id.New[id.Message](), Content: json.RawMessage(`[]`), RawDialect: "anthropic", Raw: []byte(`[]`), Model: "m", FinishReason: "tool-calls", Time: 1200 * time.Millisecond,
	}
	if err := w.runs.CommitAnswer(t.Context(), c, answer, 4); err != nil {
		t.Fatal(err)
	}
	if got := w.verdict(c); got != "" {
		t.Errorf("after 1.2 seconds: %s, want 1.8 seconds left", got)
	}
	c.Budgeted = true
	results := run.Results{Content: json.RawMessage(`[]`), Time: 1800 * time.Millisecond}
	if _, err := w.runs.CommitResults(t.Context(), c, results, 5); err != nil {
		t.Fatal(err)
	}
	v, err := w.reserve(t.Context(), c, 1)
	const want = "The budget of this run, 3 seconds of running time, is spent. An owner can raise it."
	if err != nil || v.Reason != "budget-time" || v.Detail != want {
		t.Errorf("Reserve() = %+v, %v, want budget-time with %q", v, err, want)
	}
}

// Running time of steps that have no answer is counted when the run ends or is given back.
func TestRunningTimeWithoutAnswer(t *testing.T) {
	t.Parallel()
	for name, give := range map[string]func(w *world, c *run.Claim) error{
		"end": func(w *world, c *run.Claim) error {
			return w.runs.Finish(t.Context(), c, run.End{
				State: run.Failed, ErrorMessage: "m", ErrorCode: "C", Time: 3 * time.Second, Events: []*runv1.Event{{RunId: c.Run.ID.String(), Number: 2}},
			})
		},
		"given back": func(w *world, c *run.Claim) error {
			c.Worked = 3 * time.Second
			return w.runs.Release(t.Context(), c, 0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.set(budget.Budget{Scope: budget.Workspace, Seconds: new(int64(3))})
			c, other := w.claim(w.owner.Member), w.claim(w.owner.Member)
			c.Budgeted = true
			if got := w.verdict(other); got != "" {
				t.Fatalf("before: %s, want 3 seconds left", got)
			}
			if err := give(w, c); err != nil {
				t.Fatal(err)
			}
			if got := w.verdict(other); got != "budget-time" {
				t.Errorf("after 3 seconds: %q, want budget-time", got)
			}
		})
	}
}

func TestSetAndDelete(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, b := range []budget.Budget{
		{Scope: "planet", Steps: new(int64(1))},
		{Scope: budget.Workspace},
		{Scope: budget.Run, Steps: new(int64(-1))},
		{Scope: budget.Run, Seconds: new(int64(-1))},
		{Scope: budget.Run, Seconds: new(int64(math.MaxInt64))},
		{Scope: budget.Workspace, Subject: new(uuid.New()), Steps: new(int64(1))},
	} {
		if _, err := w.budgets.Set(t.Context(), w.owner, b); fault.KindOf(err) != fault.Invalid {
			t.Errorf("Set(%+v) = %v, want it refused", b, err)
		}
	}
	first := w.set(budget.Budget{Scope: budget.Run, Steps: new(int64(3))})
	second := w.set(budget.Budget{Scope: budget.Run, Tokens: new(int64(5))})
	if first.ID != second.ID || second.Steps != nil || *second.Tokens != 5 {
		t.Errorf("Set() = %+v, want the limits of %s replaced", second, first.ID)
	}
	for i := range 99 {
		w.set(budget.Budget{Scope: budget.Session, Subject: new(uuid.New()), Steps: new(int64(i))})
	}
	if _, err := w.budgets.Set(t.Context(), w.owner, budget.Budget{Scope: budget.Member, Steps: new(int64(1))}); fault.KindOf(err) != fault.Conflict {
		t.Errorf("Set() of the 101st = %v, want a conflict", err)
	}
	w.set(budget.Budget{Scope: budget.Run, Tokens: new(int64(6))}) // not a new one
	stranger := identity.Actor{Workspace: id.New[id.Workspace](), Member: w.owner.Member, Role: identity.Owner}
	if err := w.budgets.Delete(t.Context(), stranger, first.ID); fault.KindOf(err) != fault.NotFound {
		t.Errorf("Delete() from another workspace = %v, want it not found", err)
	}
	if err := w.budgets.Delete(t.Context(), w.owner, first.ID); err != nil {
		t.Errorf("Delete() = %v", err)
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	other := id.New[id.Member]()
	one, two := w.claim(w.owner.Member), w.claim(other)
	w.take(one, 10)
	w.take(one, 20)
	w.take(two, 100)
	if err := w.runs.AddWaste(t.Context(), two, 1, run.Usage{Input: 5}, nil); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	query := budget.UsageQuery{From: now.Add(-time.Hour), To: now.Add(time.Hour)}
	for by, want := range map[string][]string{
		"day":       {now.UTC().Format(time.DateOnly) + " 3 132 3 5 130 1"},
		"model":     {"p/m 3 132 3 5 130 1"},
		"day-model": {now.UTC().Format(time.DateOnly) + " p/m 3 132 3 5 130 1"},
		"member":    {other.String() + " 1 104 1 5 100 1", w.owner.Member.String() + " 2 28 2 0 30 0"},
		"session":   {two.Run.Session.String() + " 1 104 1 5 100 1", one.Run.Session.String() + " 2 28 2 0 30 0"},
		"tool":      nil,
	} {
		query.By = by
		rows, more, err := w.budgets.Usage(t.Context(), w.owner, query)
		var got []string
		for _, r := range rows {
			got = append(got, fmt.Sprint(r.Key, " ", r.Calls, " ", r.Input, " ", r.Output, " ", r.Wasted, " ", r.CostMicros, " ", r.Unpriced))
		}
		if diff := cmp.Diff(want, got); err != nil || more || diff != "" {
			t.Errorf("Usage by %s: %v (-want +got):\n%s", by, err, diff)
		}
	}
	query.By, query.Member = "member", &w.owner.Member
	if rows, _, err := w.budgets.Usage(t.Context(), w.owner, query); err != nil || len(rows) != 1 || rows[0].Key != w.owner.Member.String() {
		t.Errorf("Usage of one member = %+v, %v, want only theirs", rows, err)
	}
	query.By = "mood"
	if _, _, err := w.budgets.Usage(t.Context(), w.owner, query); fault.KindOf(err) != fault.Invalid {
		t.Errorf("Usage by mood = %v, want it refused", err)
	}
}
