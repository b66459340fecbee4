package pg_test

import (
	"context"
	"net/url"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/pgd"
	"signalbox.dev/pkg/pgtest"
)

// A service never uses a standby, and finds it once it has become the primary.
func TestFailover(t *testing.T) {
	t.Parallel()
	dir := pgtest.Folder(t)
	start := func(name string) *pgd.Server {
		t.Helper()
		s, err := pgd.Start(t.Context(), pgd.Config{Dir: filepath.Join(dir, name)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Stop(context.WithoutCancel(t.Context())) })
		return s
	}
	first := start("a")
	if err := pg.Migrate(t.Context(), first.URL("postgres"), quiet, notes()); err != nil {
		t.Fatal(err)
	}
	if err := first.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	// A copy that waits for what the first server writes, as a standby does.
	if out, err := osexec.CommandContext(t.Context(), "cp", "-a", filepath.Join(dir, "a"), filepath.Join(dir, "b")).CombinedOutput(); err != nil {
		t.Fatalf("copy the server: %v: %s", err, out)
	}
	if err := os.WriteFile(filepath.Join(dir, "b", "standby.signal"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	first = start("a")
	second := start("b")

	standby := openWith(t, pg.Config{URL: conf.Secret(second.URL("postgres"))})
	if err := standby.Ping(t.Context()); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("Ping() of a standby = %v, want %v", err, fault.Unavailable)
	}
	if err := pg.Migrate(t.Context(), second.URL("postgres"), quiet, notes()); err == nil || !strings.Contains(err.Error(), "the server is a standby") {
		t.Errorf("Migrate() of a standby = %v, want an error that says so", err)
	}
	for _, attrs := range []string{"", "&target_session_attrs=read-write", "&target_session_attrs=primary"} {
		db := openWith(t, pg.Config{URL: conf.Secret(both(t, second, first) + attrs)})
		mustAdd(t, db, id.New[id.Workspace](), "on the primary"+attrs)
	}
	db := openWith(t, pg.Config{URL: conf.Secret(both(t, first, second))})
	mustAdd(t, db, id.New[id.Workspace](), "before")
	if err := first.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	exec(t, connect(t, second.URL("postgres")), "select pg_promote()")
	ws := id.New[id.Workspace]()
	until(t, "a write to the new primary", func() bool {
		return db.InWorkspace(t.Context(), ws, func(ctx context.Context, tx pgx.Tx) error { return add(ctx, tx, ws, "after") }) == nil
	})
}

// both returns a URL with both servers.
func both(t *testing.T, one, two *pgd.Server) string {
	t.Helper()
	folder := func(s *pgd.Server) string {
		u, err := url.Parse(s.URL("postgres"))
		if err != nil {
			t.Fatal(err)
		}
		return u.Query().Get("host")
	}
	return "postgres://postgres@/postgres?sslmode=disable&port=5432,5432&host=" + folder(one) + "," + folder(two)
}

// A server that turns out to be read-only is no longer the primary: its connection is closed.
func TestReadOnlyClosesConnection(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t, notes())
	db, err := pg.Open(t.Context(), pg.Config{URL: conf.Secret(d.AdminURL), Role: "pgtest_notes", Schema: "notes", MaxConns: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	process := func() (pid int) {
		t.Helper()
		err := db.AsSystem(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
			return tx.QueryRow(ctx, "select pg_backend_pid()").Scan(&pid)
		})
		if err != nil {
			t.Fatal(err)
		}
		return pid
	}
	before := process()
	if again := process(); again != before {
		t.Fatalf("the pool of one connection used process %d and then %d", before, again)
	}
	ws := id.New[id.Workspace]()
	err = db.InWorkspace(t.Context(), ws, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "set transaction read only"); err != nil {
			return err
		}
		return add(ctx, tx, ws, "x")
	})
	if fault.KindOf(err) != fault.Unavailable {
		t.Errorf("a write to a read-only server = %v, want %v", err, fault.Unavailable)
	}
	if after := process(); after == before {
		t.Error("the connection to a read-only server is used again")
	}
}
