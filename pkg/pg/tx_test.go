package pg_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/pgtest"
)

func TestClaims(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, notes()).Open(t, notes())
	a, b, m := id.New[id.Workspace](), id.New[id.Workspace](), id.New[id.Member]()
	mustAdd(t, db, a, "a")
	mustAdd(t, db, b, "b")
	err := db.InWorkspace(t.Context(), b, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "insert into notes (id, workspace_id, member_id, text) values ($1, $2, $3, 'mine')", id.New[id.Message](), b, m)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name  string
		begin begin
		want  []string
	}{
		{"own workspace", inWorkspace(db, a), []string{"a"}},
		{"other workspace", inWorkspace(db, b), []string{"b", "mine"}},
		{"strange workspace", inWorkspace(db, id.New[id.Workspace]()), []string{}},
		{"member", asMember(db, m), []string{"mine"}},
		{"strange member", asMember(db, id.New[id.Member]()), []string{}},
		{"the workspace's id as a member's", asMember(db, id.Member(a)), []string{}},
		{"system", db.AsSystem, []string{"a", "b", "mine"}},
	} {
		if diff := cmp.Diff(tc.want, seen(t, tc.begin)); diff != "" {
			t.Errorf("%s: seen (-want +got):\n%s", tc.name, diff)
		}
	}
	for name, err := range map[string]error{
		"write into another workspace": db.InWorkspace(t.Context(), a, func(ctx context.Context, tx pgx.Tx) error { return add(ctx, tx, b, "x") }),
		"move to another workspace": db.InWorkspace(t.Context(), a, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "update notes set workspace_id = $1", b)
			return err
		}),
	} {
		if e, ok := errors.AsType[*pgconn.PgError](err); !ok || e.Code != "42501" {
			t.Errorf("%s: %v, want insufficient privilege", name, err)
		}
	}
	nothing := func(context.Context, pgx.Tx) error { return nil }
	if err := db.InWorkspace(t.Context(), id.Workspace{}, nothing); err == nil {
		t.Error("InWorkspace of no workspace worked")
	}
	if err := db.AsMember(t.Context(), id.Member{}, nothing); err == nil {
		t.Error("AsMember of no member worked")
	}
}

// Whatever a transaction did, the next one on the same connection sees only its own
// workspace, and between the two the connection sees nothing.
func TestClaimsEndWithTheTransaction(t *testing.T) {
	t.Parallel()
	errAny := errors.New("any")
	for name, end := range map[string]func(context.Context, pgx.Tx) error{
		"commit":       func(context.Context, pgx.Tx) error { return nil },
		"error":        func(context.Context, pgx.Tx) error { return errAny },
		"panic":        func(context.Context, pgx.Tx) error { panic(errAny) },
		"failed query": func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, "select 1/0"); return err },
		"swallowed failure": func(ctx context.Context, tx pgx.Tx) error {
			_, _ = tx.Exec(ctx, "select 1/0")
			return nil
		},
		"rows left open": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Query(ctx, "select generate_series(1, 100000)") //nolint:sqlclosecheck // the slip that is tested
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := pgtest.New(t, notes())
			db := openWith(t, pg.Config{URL: conf.Secret(d.AdminURL), MaxConns: 1})
			a, b := id.New[id.Workspace](), id.New[id.Workspace]()
			mustAdd(t, db, a, "a")
			mustAdd(t, db, b, "b")
			conn := func() (c *pgx.Conn) {
				defer func() {
					if r := recover(); r != nil && r != any(errAny) {
						t.Errorf("recovered %v, want fn's own panic", r)
					}
				}()
				_ = db.InWorkspace(t.Context(), a, func(ctx context.Context, tx pgx.Tx) error {
					c = tx.Conn()
					return end(ctx, tx)
				})
				return c
			}()
			if !conn.IsClosed() { // it is idle in the pool
				var claim *string
				var rows int
				if err := conn.QueryRow(t.Context(), "select nullif(current_setting('signalbox.workspace', true), ''), (select count(*) from notes)").Scan(&claim, &rows); err != nil {
					t.Fatal(err)
				}
				if claim != nil || rows != 0 {
					t.Errorf("the idle connection has claim %v and sees %d rows, want none", *claim, rows)
				}
			}
			if diff := cmp.Diff([]string{"b"}, seen(t, inWorkspace(db, b))); diff != "" {
				t.Errorf("the next transaction sees (-want +got):\n%s", diff)
			}
		})
	}
}

// A statement that sets claims for the whole session would leak them; begin covers them.
// batches are the ways to send statements for a workspace at once.
func batches(db *pg.DB) map[string]func(context.Context, id.Workspace, *pgx.Batch) error {
	return map[string]func(context.Context, id.Workspace, *pgx.Batch) error{
		"read": db.ReadInWorkspace, "write": db.WriteInWorkspace,
		"change": func(ctx context.Context, ws id.Workspace, b *pgx.Batch) error {
			return db.ChangeInWorkspace(ctx, ws, b, func(b *pgx.Batch) error { b.Queue("select 1"); return nil })
		},
		"look": func(ctx context.Context, ws id.Workspace, b *pgx.Batch) error {
			return db.ChangeInWorkspace(ctx, ws, b, func(*pgx.Batch) error { return nil })
		},
	}
}

func TestClaimsEndWithTheBatch(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t, notes())
	db := openWith(t, pg.Config{URL: conf.Secret(d.AdminURL), MaxConns: 1})
	ws := id.New[id.Workspace]()
	mustAdd(t, db, ws, "a")
	conn := onlyConn(t, db, ws)
	for name, send := range batches(db) {
		b := &pgx.Batch{}
		b.Queue("select 1")
		if err := send(t.Context(), ws, b); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var claim string
		if err := conn.QueryRow(t.Context(), "select current_setting('signalbox.workspace', true)").Scan(&claim); err != nil || claim != "" {
			t.Errorf("after a %s the connection has the claim %q, %v, want none", name, claim, err)
		}
	}
}

// onlyConn returns the connection of a pool of one.
func onlyConn(t *testing.T, db *pg.DB, ws id.Workspace) (c *pgx.Conn) {
	t.Helper()
	if err := db.InWorkspace(t.Context(), ws, func(_ context.Context, tx pgx.Tx) error { c = tx.Conn(); return nil }); err != nil {
		t.Fatal(err)
	}
	return c
}

// Two tenants that take turns on a connection see only their own rows, and a statement
// without claims sees none.
func TestTenantsOnOneConnection(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t, notes())
	db := openWith(t, pg.Config{URL: conf.Secret(d.AdminURL), MaxConns: 1})
	tenants := map[id.Workspace]string{id.New[id.Workspace](): "a", id.New[id.Workspace](): "b"}
	var conn *pgx.Conn
	for ws, text := range tenants {
		mustAdd(t, db, ws, text)
		conn = onlyConn(t, db, ws)
	}
	for range 5 {
		for ws, text := range tenants {
			for name, send := range batches(db) { // in another order each time
				var got []string
				b := &pgx.Batch{}
				b.Queue("select text from notes").Query(func(rows pgx.Rows) (err error) {
					got, err = pgx.CollectRows(rows, pgx.RowTo[string])
					return err
				})
				if err := send(t.Context(), ws, b); err != nil || len(got) != 1 || got[0] != text {
					t.Errorf("a %s of tenant %s sees %q, %v", name, text, got, err)
				}
				var rows int
				if err := conn.QueryRow(t.Context(), "select count(*) from notes").Scan(&rows); err != nil || rows != 0 {
					t.Errorf("after a %s of tenant %s a statement without claims sees %d rows, %v", name, text, rows, err)
				}
			}
		}
	}
}

func TestSessionClaimsAreCovered(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t, notes())
	db := openWith(t, pg.Config{URL: conf.Secret(d.AdminURL), MaxConns: 1})
	a, b := id.New[id.Workspace](), id.New[id.Workspace]()
	mustAdd(t, db, a, "a")
	err := db.InWorkspace(t.Context(), a, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "select set_config('signalbox.system', 'on', false), set_config('signalbox.workspace', $1, false)", a.String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string]begin{"workspace": inWorkspace(db, b), "member": asMember(db, id.New[id.Member]())} {
		if got := seen(t, b); len(got) != 0 {
			t.Errorf("the next %s sees %q, want nothing", name, got)
		}
	}
}

func TestUnsetClaimsSeeNothing(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t, notes())
	mustAdd(t, d.Open(t, notes()), id.New[id.Workspace](), "a")
	c := connect(t, d.AdminURL+"&role=pgtest_notes&search_path=notes")
	for _, claim := range []string{"", "set signalbox.workspace = ''", "set signalbox.member = ''", "set signalbox.system = 'off'", "set signalbox.system = 'true'"} {
		exec(t, c, claim)
		var n int
		if err := c.QueryRow(t.Context(), "select count(*) from notes").Scan(&n); err != nil || n != 0 {
			t.Errorf("after %q: %d rows, %v, want none", claim, n, err)
		}
	}
	for _, sql := range []string{
		"insert into notes (id, workspace_id, text) values (gen_random_uuid(), gen_random_uuid(), 'x')",
		"set row_security = off; select * from notes", // an error instead of rows
		"alter table notes disable row level security",
		"drop policy tenant on notes",
		"truncate notes",
		"create table mine ()",
		"select * from goose_db_version",
		"create or replace function claim_system() returns boolean language sql as 'select true'",
	} {
		_, err := c.Exec(t.Context(), sql)
		if e, ok := errors.AsType[*pgconn.PgError](err); !ok || e.Code != "42501" {
			t.Errorf("%s: %v, want insufficient privilege", sql, err)
		}
	}
}

func TestClaimFunctionsAreInlined(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, notes()).Open(t, notes())
	err := db.InWorkspace(t.Context(), id.New[id.Workspace](), func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, "explain select * from notes")
		if err != nil {
			return err
		}
		plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if text := strings.Join(plan, "\n"); strings.Contains(text, "claim_") || !strings.Contains(text, "current_setting") {
			t.Errorf("the plan calls the functions:\n%s", text)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// statements records what is sent, one entry per round trip.
type statements struct {
	mu  sync.Mutex
	sql []string // guarded by mu
}

func (s *statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sql = append(s.sql, d.SQL)
	return ctx
}

func (s *statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func TestOneRoundTrip(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t, notes())
	var got statements
	db := openWith(t, pg.Config{URL: conf.Secret(d.AdminURL), Tracer: &got})
	if err := db.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	got.sql = nil
	ws := id.New[id.Workspace]()
	if err := db.InWorkspace(t.Context(), ws, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "select 1")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"BEGIN; SELECT set_config('signalbox.workspace', '" + ws.String() + "', true), set_config('signalbox.member', '', true), set_config('signalbox.system', '', true)",
		"select 1",
		"commit",
	}
	if diff := cmp.Diff(want, got.sql); diff != "" {
		t.Error(diff)
	}
}

func TestTransactionsAreAtomic(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, notes()).Open(t, notes())
	ws := id.New[id.Workspace]()
	errAny := errors.New("any")
	err := db.InWorkspace(t.Context(), ws, func(ctx context.Context, tx pgx.Tx) error { return errors.Join(add(ctx, tx, ws, "x"), errAny) })
	if !errors.Is(err, errAny) {
		t.Errorf("InWorkspace = %v, want fn's error", err)
	}
	mustAdd(t, db, ws, "taken")
	err = db.InWorkspace(t.Context(), ws, func(ctx context.Context, tx pgx.Tx) error {
		if err := add(ctx, tx, ws, "y"); err != nil {
			return err
		}
		_ = add(ctx, tx, ws, "taken") // this failure must not be swallowed
		return nil
	})
	if !errors.Is(err, pgx.ErrTxCommitRollback) {
		t.Errorf("InWorkspace with a swallowed failure = %v, want %v", err, pgx.ErrTxCommitRollback)
	}
	err = db.InWorkspace(t.Context(), ws, func(ctx context.Context, tx pgx.Tx) error { return add(ctx, tx, ws, "taken") })
	if !pg.IsUniqueViolation(err, "notes_text_key") || !pg.IsUniqueViolation(err, "") || pg.IsUniqueViolation(err, "notes_pkey") || pg.IsForeignKeyViolation(err, "") {
		t.Errorf("%v is not recognized as the violation of notes_text_key alone", err)
	}
	err = db.InWorkspace(t.Context(), ws, func(ctx context.Context, tx pgx.Tx) error {
		var s string
		return tx.QueryRow(ctx, "select text from notes where workspace_id = $1 and text = 'none'", ws).Scan(&s)
	})
	if !pg.NoRows(err) {
		t.Errorf("NoRows(%v) = false", err)
	}
	if got := seen(t, inWorkspace(db, ws)); !slices.Equal(got, []string{"taken"}) {
		t.Errorf("committed: %q, want only what a transaction without error wrote", got)
	}
}

// openWith opens cfg for the role and schema of notes and closes it at the end.
func openWith(t *testing.T, cfg pg.Config) *pg.DB {
	t.Helper()
	cfg.Role, cfg.Schema = notes().Role, notes().Schema
	db, err := pg.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	return db
}
