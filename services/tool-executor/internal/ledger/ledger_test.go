package ledger_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/hashchain"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/pgtest"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/tool-executor/internal/ledger"
	"signalbox.dev/services/tool-executor/migrations"
)

func schema() pg.Migrations {
	return pg.Migrations{Schema: "tools", Role: "signalbox_tools", FS: migrations.FS}
}

func open(t *testing.T) *pg.DB { return pgtest.New(t, schema()).Open(t, schema()) }

func newCall() ledger.Call {
	return ledger.Call{
		Ref: ledger.Ref{Workspace: id.New[id.Workspace](), Key: id.New[id.Operation]()},
		Run: id.New[id.Run](), Session: id.New[id.Session](), ToolCallID: "toolu_1", ToolName: "act", Effect: toolv1.Effect_EFFECT_KEYED,
		Work: []byte("the call"), Request: []byte("digest"),
	}
}

func mustClaim(t *testing.T, l *ledger.Ledger, c ledger.Call) ledger.Claim {
	t.Helper()
	claim, err := l.Claim(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return claim
}

// find returns the row of a call as Open gives it.
func find(t *testing.T, l *ledger.Ledger, c ledger.Call) (ledger.Open, bool) {
	t.Helper()
	all, err := l.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(all, func(o ledger.Open) bool { return o.Ref == c.Ref })
	if i < 0 {
		return ledger.Open{}, false
	}
	return all[i], true
}

func done(c ledger.Call) *toolv1.Outcome {
	return &toolv1.Outcome{Key: c.Key.String(), State: toolv1.OutcomeState_OUTCOME_STATE_OK, ResultJson: `{}`}
}

func TestClaims(t *testing.T) {
	t.Parallel()
	db := open(t)
	one, two := ledger.New(db, "one", time.Minute), ledger.New(db, "two", time.Minute)
	c := newCall()
	if got := mustClaim(t, one, c); got.Attempt != 1 || got.Effect != c.Effect || len(got.Former) != 0 {
		t.Errorf("first claim = %+v, want attempt 1", got)
	}
	if got := mustClaim(t, two, c); got.Attempt != 0 || got.Done != nil || !got.Stored {
		t.Errorf("claim of another's = %+v, want none", got)
	}
	if got := mustClaim(t, one, c); got.Attempt != 2 || len(got.Former) != 0 {
		t.Errorf("claim of the own = %+v, want attempt 2", got)
	}
	if err := one.Record(t.Context(), c.Workspace, 1, done(c), id.Member{}); !errors.Is(err, ledger.ErrLost) {
		t.Errorf("Record of an old attempt = %v, want ErrLost", err)
	}
	if err := two.Record(t.Context(), c.Workspace, 2, done(c), id.Member{}); !errors.Is(err, ledger.ErrLost) {
		t.Errorf("Record of another's attempt = %v, want ErrLost", err)
	}
	if held, err := one.Renew(t.Context(), []ledger.Ref{c.Ref, newCall().Ref}); err != nil || len(held) != 1 || held[c.Ref] != 2 {
		t.Errorf("Renew = %v, %v, want attempt 2 of one call", held, err)
	}
	if held, err := two.Renew(t.Context(), []ledger.Ref{c.Ref}); err != nil || len(held) != 0 {
		t.Errorf("Renew of another's = %v, %v, want none", held, err)
	}
	if err := one.Release(t.Context(), c.Ref, 2); err != nil {
		t.Errorf("Release = %v", err)
	}
	if held, err := one.Renew(t.Context(), []ledger.Ref{c.Ref}); err != nil || len(held) != 0 {
		t.Errorf("Renew of what was let go of = %v, %v, want none", held, err)
	}
	if got := mustClaim(t, two, c); got.Attempt != 3 || !slices.Equal(got.Former, []string{"one"}) {
		t.Errorf("claim after a release = %+v, want attempt 3 after one", got)
	}
	if err := two.Record(t.Context(), c.Workspace, 3, done(c), id.Member{}); err != nil {
		t.Errorf("Record = %v", err)
	}
	if err := two.Record(t.Context(), c.Workspace, 3, done(c), id.Member{}); !errors.Is(err, ledger.ErrLost) {
		t.Errorf("a second Record = %v, want ErrLost", err)
	}
	if got := mustClaim(t, one, c); got.Attempt != 0 || got.Done.GetResultJson() != `{}` || got.Done.GetToolCallId() != "toolu_1" {
		t.Errorf("claim of what is done = %+v, want its outcome", got)
	}
}

// TestAudit has a row for each call with an effect, exactly if its outcome is recorded.
func TestAudit(t *testing.T) {
	t.Parallel()
	db := open(t)
	one, two := ledger.New(db, "one", time.Minute), ledger.New(db, "two", time.Minute)
	ws, member := id.New[id.Workspace](), id.New[id.Member]()
	var wg sync.WaitGroup
	for _, tt := range []struct {
		state toolv1.OutcomeState
		by    id.Member
	}{
		{toolv1.OutcomeState_OUTCOME_STATE_OK, member},
		{toolv1.OutcomeState_OUTCOME_STATE_ERROR, member},
		{toolv1.OutcomeState_OUTCOME_STATE_UNKNOWN, member},
		{toolv1.OutcomeState_OUTCOME_STATE_OK, id.Member{}},
	} {
		c := newCall()
		c.Workspace = ws
		mustClaim(t, one, c)
		o := done(c)
		o.State = tt.state
		wg.Go(func() {
			if err := two.Record(t.Context(), ws, 1, o, tt.by); !errors.Is(err, ledger.ErrLost) {
				t.Errorf("Record of another's call = %v, want ErrLost", err)
			}
			if err := one.Record(t.Context(), ws, 1, o, tt.by); err != nil {
				t.Errorf("Record = %v", err)
			}
			if err := one.Record(t.Context(), ws, 1, o, tt.by); !errors.Is(err, ledger.ErrLost) {
				t.Errorf("a second Record = %v, want ErrLost", err)
			}
		})
	}
	wg.Wait()
	var got string
	err := db.InWorkspace(t.Context(), ws, func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, `
			SELECT string_agg(concat_ws(' ', a.action, a.tool_name, a.tool_call_id, a.member_id = @member, o.outcome), ', ' ORDER BY a.action)
			FROM mcp_audit a JOIN outcomes o USING (workspace_id, session_id, run_id) WHERE a.workspace_id = @workspace`,
			pg.Args{"workspace": ws, "member": member}).Scan(&got)
	})
	if want := "call-done act toolu_1 t 1, call-failed act toolu_1 t 2, call-unknown act toolu_1 t 3"; err != nil || got != want {
		t.Errorf("the audit has %q (%v), want %q", got, err, want)
	}
	v, err := hashchain.Verify(t.Context(), "", ledger.AuditTable(db), nil)
	if err != nil || v.Rows != 3 || len(v.Problems) > 0 {
		t.Errorf("Verify = %+v, %v, want 3 rows and no problem", v, err)
	}
}

func TestReusedKey(t *testing.T) {
	t.Parallel()
	l := ledger.New(open(t), "one", time.Minute)
	c := newCall()
	mustClaim(t, l, c)
	other := c
	other.Request = []byte("another digest")
	if _, err := l.Claim(t.Context(), other); !errors.Is(err, ledger.ErrReused) {
		t.Errorf("Claim for another request = %v, want ErrReused", err)
	}
	if err := l.Record(t.Context(), c.Workspace, 1, done(c), id.Member{}); err != nil {
		t.Errorf("Record after that = %v", err)
	}
	if _, err := l.Claim(t.Context(), other); !errors.Is(err, ledger.ErrReused) {
		t.Errorf("Claim for another request when it is done = %v, want ErrReused", err)
	}
	// In another workspace the same key is another call.
	other.Workspace = id.New[id.Workspace]()
	if got := mustClaim(t, l, other); got.Attempt != 1 {
		t.Errorf("Claim in another workspace = %+v, want attempt 1", got)
	}
}

func TestTakeOver(t *testing.T) {
	t.Parallel()
	db := open(t)
	one, two, three := ledger.New(db, "one", time.Minute), ledger.New(db, "two", time.Minute), ledger.New(db, "three", time.Minute)
	c := newCall()
	mustClaim(t, one, c)
	row, ok := find(t, two, c)
	if want := (ledger.Open{Ref: c.Ref, Executor: "one"}); !ok || cmp.Diff(want, row, cmpopts.IgnoreFields(ledger.Open{}, "Version")) != "" {
		t.Fatalf("Open has %+v, %v, want %+v", row, ok, want)
	}
	if again, _ := find(t, two, c); again != row {
		t.Errorf("Open of a row that stands still = %+v, then %+v", row, again)
	}
	if work, err := two.Work(t.Context(), c.Ref); err != nil || string(work) != "the call" {
		t.Errorf("Work = %q, %v, want the call", work, err)
	}

	// A call whose lease was renewed in between is not taken over.
	if _, err := one.Renew(t.Context(), []ledger.Ref{c.Ref}); err != nil {
		t.Fatal(err)
	}
	if _, err := two.TakeOver(t.Context(), row); !errors.Is(err, ledger.ErrLost) {
		t.Errorf("TakeOver after a renewal = %v, want ErrLost", err)
	}
	// Only one of several concurrent attempts succeeds.
	row, _ = find(t, two, c)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var claims []ledger.Claim
	for range 4 {
		for _, l := range []*ledger.Ledger{two, three} {
			wg.Go(func() {
				claim, err := l.TakeOver(t.Context(), row)
				if errors.Is(err, ledger.ErrLost) {
					return
				}
				if err != nil {
					t.Errorf("TakeOver = %v", err)
				}
				mu.Lock()
				defer mu.Unlock()
				claims = append(claims, claim)
			})
		}
	}
	wg.Wait()
	want := []ledger.Claim{{Attempt: 2, Former: []string{"one"}, Effect: c.Effect}}
	if diff := cmp.Diff(want, claims); diff != "" {
		t.Fatalf("claims (-want +got):\n%s", diff)
	}
	if err := one.Record(t.Context(), c.Workspace, 1, done(c), id.Member{}); !errors.Is(err, ledger.ErrLost) {
		t.Errorf("Record by the one before = %v, want ErrLost", err)
	}
	// Former has every earlier executor once.
	for _, l := range []*ledger.Ledger{one, two, one} {
		row, _ = find(t, l, c)
		if _, err := l.TakeOver(t.Context(), row); err != nil {
			t.Fatal(err)
		}
	}
	row, _ = find(t, three, c)
	last, err := three.TakeOver(t.Context(), row)
	slices.Sort(last.Former)
	if err != nil || !slices.Equal(last.Former, []string{"one", "two"}) || last.Attempt != 6 {
		t.Errorf("TakeOver = %+v, %v, want attempt 6 after one and two", last, err)
	}
	if err := three.Record(t.Context(), c.Workspace, 6, done(c), id.Member{}); err != nil {
		t.Fatal(err)
	}
	if row, ok := find(t, one, c); ok {
		t.Errorf("Open has %+v, which is done", row)
	}
	if _, err := one.Work(t.Context(), c.Ref); !errors.Is(err, ledger.ErrLost) {
		t.Errorf("Work of what is done = %v, want ErrLost", err)
	}
	// The call and its arguments are deleted when it is done.
	var kept bool
	err = db.InWorkspace(t.Context(), c.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, `select work is not null from outcomes where workspace_id = $1 and key = $2`, c.Workspace, c.Key).Scan(&kept)
	})
	if err != nil || kept {
		t.Errorf("the call is kept when it is done: %v, %v", kept, err)
	}
}

// A row of the previous version has no call: it is not swept, and another executor claims it with
// its message after its lease has expired.
func TestRowsOfThePreviousVersion(t *testing.T) {
	t.Parallel()
	db := open(t)
	c := newCall()
	write := func(statement string) {
		t.Helper()
		err := db.InWorkspace(t.Context(), c.Workspace, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, statement, pgx.NamedArgs{"ws": c.Workspace, "key": c.Key, "run": c.Run, "session": c.Session})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	write(`insert into outcomes (workspace_id, key, run_id, session_id, tool_call_id, tool_name, effect, started_at, state, attempt, owner, lease_until)
		values (@ws, @key, @run, @session, 'toolu_1', 'act', 3, now(), 'started', 1, gen_random_uuid(), now() + '1 hour')`)
	l := ledger.New(db, "one", time.Minute)
	if got := mustClaim(t, l, c); got.Attempt != 0 || got.Stored {
		t.Errorf("claim while the lease is good = %+v, want none", got)
	}
	if row, ok := find(t, l, c); ok {
		t.Errorf("Open has %+v, which nobody could go on with", row)
	}
	write(`update outcomes set lease_until = now() - interval '1 second' where workspace_id = @ws and key = @key`)
	if got := mustClaim(t, l, c); got.Attempt != 2 || !slices.Equal(got.Former, []string{""}) {
		t.Errorf("claim after the lease = %+v, want attempt 2 after somebody without a name", got)
	}
	if row, ok := find(t, l, c); !ok || row.Executor != "one" {
		t.Errorf("Open has %+v, %v, want the row: now it holds the call", row, ok)
	}
}

func TestHousekeep(t *testing.T) {
	t.Parallel()
	l := ledger.New(open(t), "one", time.Minute)
	ended, running := newCall(), newCall()
	mustClaim(t, l, ended)
	mustClaim(t, l, running)
	if err := l.Record(t.Context(), ended.Workspace, 1, done(ended), id.Member{}); err != nil {
		t.Fatal(err)
	}
	if n, err := l.Housekeep(t.Context(), time.Hour); err != nil || n != 0 {
		t.Errorf("Housekeep of what is young = %d, %v, want 0", n, err)
	}
	if n, err := l.Housekeep(t.Context(), 0); err != nil || n != 1 {
		t.Errorf("Housekeep = %d, %v, want 1: what runs is kept", n, err)
	}
}
