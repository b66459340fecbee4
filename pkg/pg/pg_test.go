package pg_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/pgd"
	"signalbox.dev/pkg/pgtest"
)

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		cfg  pg.Config
		want string
	}{
		{"no URL", pg.Config{Role: "r", Schema: "s"}, "(DATABASE_URL) is empty"},
		{"bad port", pg.Config{URL: "postgres://u:hunter2@h:hunter2/d", Role: "r", Schema: "s"}, "percent-encoded"},
		{"slash in password", pg.Config{URL: "postgres://u:hunter2/x@h/d", Role: "r", Schema: "s"}, "percent-encoded"},
		{"another kind of URL", pg.Config{URL: "mysql://u:hunter2@h/d", Role: "r", Schema: "s"}, "want postgres://"},
		{"no role", pg.Config{URL: "postgres://h/d", Schema: "s"}, "role"},
		{"bad schema", pg.Config{URL: "postgres://h/d", Role: "r", Schema: "a,b"}, "schema"},
	} {
		db, err := pg.Open(t.Context(), tc.cfg)
		if err == nil {
			db.Close()
		}
		if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: Open = %v, want an error with %q and no password", tc.name, err, tc.want)
		}
	}
}

// Open does not connect. Using the DB without a server is an error.
func TestNoServer(t *testing.T) {
	t.Parallel()
	db := openWith(t, pg.Config{URL: conf.Secret("postgres:///x?host=" + t.TempDir())})
	if err := db.Ping(t.Context()); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("Ping = %v, want %v", err, fault.Unavailable)
	}
	err := db.AsSystem(t.Context(), func(context.Context, pgx.Tx) error { return nil })
	if fault.KindOf(err) != fault.Unavailable {
		t.Errorf("AsSystem = %v, want %v", err, fault.Unavailable)
	}
	db.Close()
	if err := db.Ping(t.Context()); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("Ping after Close = %v, want %v", err, fault.Unavailable)
	}
}

func TestBypassIsRefused(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	db, err := pg.Open(t.Context(), pg.Config{URL: conf.Secret(d.AdminURL), Role: "postgres", Schema: "public"})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.Ping(t.Context()); err == nil || !strings.Contains(err.Error(), "ignores row-level security") {
		t.Errorf("Ping as a superuser = %v, want a refusal", err)
	}
}

func TestUnavailable(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t, notes())
	admin := connect(t, d.AdminURL)
	ws := id.New[id.Workspace]()
	run := func(sql string) func(context.Context, pgx.Tx) error {
		return func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, sql)
			return err
		}
	}
	short := openWith(t, pg.Config{URL: conf.Secret(d.AdminURL + "&statement_timeout=100&lock_timeout=50&idle_in_transaction_session_timeout=50")})
	mustAdd(t, short, ws, "x")
	release := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(release)
	holding := make(chan error, 2)
	holder := d.Open(t, notes())
	wg.Go(func() {
		holding <- holder.InWorkspace(t.Context(), ws, func(ctx context.Context, tx pgx.Tx) error {
			err := run("update notes set text = text")(ctx, tx)
			holding <- err
			<-release
			return err
		})
	})
	if err := <-holding; err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		fn   func(context.Context, pgx.Tx) error
		want fault.Kind
	}{
		{"statement timeout", run("select pg_sleep(10)"), fault.Unavailable},
		{"lock timeout", run("update notes set text = 'y'"), fault.Unavailable},
		{"terminated", func(ctx context.Context, tx pgx.Tx) error {
			_, err := admin.Exec(ctx, "select pg_terminate_backend($1)", tx.Conn().PgConn().PID())
			return errors.Join(err, run("select 1")(ctx, tx))
		}, fault.Unavailable},
		{"idle", func(ctx context.Context, tx pgx.Tx) error {
			<-time.After(200 * time.Millisecond) // longer than the server allows, which is under test
			return run("select 1")(ctx, tx)
		}, fault.Unavailable},
		{"wrong SQL", run("selekt"), fault.Internal},
		{"a fault of fn", func(context.Context, pgx.Tx) error { return fault.New(fault.Conflict, "no") }, fault.Conflict},
		{"network of fn's own", func(context.Context, pgx.Tx) error { return fmt.Errorf("call: %w", errNet{}) }, fault.Internal},
	} {
		if err := short.InWorkspace(t.Context(), ws, tc.fn); fault.KindOf(err) != tc.want {
			t.Errorf("%s: InWorkspace = %v (%v), want %v", tc.name, err, fault.KindOf(err), tc.want)
		}
	}
}

type errNet struct{}

func (errNet) Error() string   { return "far end is gone" }
func (errNet) Timeout() bool   { return true }
func (errNet) Temporary() bool { return true }

func TestPoolExhausted(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t, notes())
	db := openWith(t, pg.Config{URL: conf.Secret(d.AdminURL), MaxConns: 1})
	nothing := func(context.Context, pgx.Tx) error { return nil }
	err := db.AsSystem(t.Context(), func(ctx context.Context, _ pgx.Tx) error { return db.AsSystem(ctx, nothing) })
	if fault.KindOf(err) != fault.Unavailable || !strings.Contains(err.Error(), "1 of 1 in use") {
		t.Errorf("AsSystem in AsSystem with one connection = %v, want %v", err, fault.Unavailable)
	}
	if err := db.AsSystem(t.Context(), nothing); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// A workspace that floods the pool does not hold up another's only transaction by more than
// one of its own.
func TestFairConnections(t *testing.T) {
	t.Parallel()
	db := openWith(t, pg.Config{URL: conf.Secret(pgtest.New(t, notes()).AdminURL), MaxConns: 1})
	flood, other := id.New[id.Workspace](), id.New[id.Workspace]()
	var begun atomic.Int64 // of the flood
	var work sync.WaitGroup
	ask := func(ws id.Workspace, fn func()) {
		work.Go(func() {
			if err := db.InWorkspace(t.Context(), ws, func(context.Context, pgx.Tx) error { fn(); return nil }); err != nil {
				t.Error(err)
			}
		})
	}
	holds, letGo := make(chan struct{}), make(chan struct{})
	ask(flood, func() { close(holds); <-letGo })
	select {
	case <-holds:
	case <-time.After(time.Minute):
		t.Fatal("no transaction began within a minute")
	}
	const many = 50
	for range many {
		ask(flood, func() { begun.Add(1) })
	}
	for pg.Waiting(db) < many && !t.Failed() {
		runtime.Gosched()
	}
	ask(other, func() {
		if n := begun.Load(); n > 0 {
			t.Errorf("%d of another workspace's transactions came first, want none", n)
		}
	})
	for pg.Waiting(db) < many+1 && !t.Failed() {
		runtime.Gosched()
	}
	close(letGo)
	work.Wait()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(db.Collector())
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	waited := map[string]float64{}
	for _, f := range families {
		waited[f.GetName()] = f.GetMetric()[0].GetCounter().GetValue()
	}
	if n := waited["signalbox_pg_waits_total"]; n < many+1 {
		t.Errorf("signalbox_pg_waits_total = %v, want at least %d", n, many+1)
	}
	if waited["signalbox_pg_wait_seconds_total"] <= 0 {
		t.Error("signalbox_pg_wait_seconds_total = 0 after waits")
	}
}

// The end of the caller's context ends its statement, with an error of that kind.
func TestCallersContext(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, notes()).Open(t, notes())
	sleep := func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "select pg_sleep(60)")
		return err
	}
	ctx, cancel := context.WithCancel(t.Context())
	err := db.AsSystem(ctx, func(ctx context.Context, tx pgx.Tx) error {
		time.AfterFunc(50*time.Millisecond, cancel)
		return sleep(ctx, tx)
	})
	if fault.KindOf(err) != fault.Cancelled {
		t.Errorf("cancelled in a statement: %v, want %v", err, fault.Cancelled)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := db.AsSystem(ctx, sleep); fault.KindOf(err) != fault.Deadline {
		t.Errorf("deadline in a statement: %v, want %v", err, fault.Deadline)
	}
	if err := db.AsSystem(ctx, sleep); fault.KindOf(err) != fault.Deadline {
		t.Errorf("deadline before the begin: %v, want %v", err, fault.Deadline)
	}
	ctx, cancel = context.WithCancel(t.Context())
	err = db.AsSystem(ctx, func(context.Context, pgx.Tx) error { cancel(); return nil })
	if fault.KindOf(err) != fault.Cancelled {
		t.Errorf("cancelled before the commit: %v, want %v", err, fault.Cancelled)
	}
	if err := db.Ping(t.Context()); err != nil {
		t.Errorf("Ping afterwards = %v", err)
	}
}

// The DB survives restarts of Postgres.
func TestSurvivesRestart(t *testing.T) {
	t.Parallel()
	cfg := pgd.Config{Dir: filepath.Join(pgtest.Folder(t), "pg"), Fast: true}
	start := func() *pgd.Server {
		s, err := pgd.Start(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Stop(context.WithoutCancel(t.Context())) })
		return s
	}
	s := start()
	if err := pg.Migrate(t.Context(), s.URL("postgres"), quiet, notes()); err != nil {
		t.Fatal(err)
	}
	const conns = 4
	db := openWith(t, pg.Config{URL: conf.Secret(s.URL("postgres")), MaxConns: conns})
	ws := id.New[id.Workspace]()
	mustAdd(t, db, ws, "before")

	// All connections of the pool are open and idle when the server stops.
	var all, ready sync.WaitGroup
	ready.Add(conns)
	for range conns {
		all.Go(func() {
			err := db.AsSystem(t.Context(), func(context.Context, pgx.Tx) error {
				ready.Done()
				ready.Wait()
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	s = start()
	mustAdd(t, db, ws, "after") // at once, and without an error

	// One connection is in a transaction when the server stops.
	err := db.InWorkspace(t.Context(), ws, func(ctx context.Context, tx pgx.Tx) error {
		if err := add(ctx, tx, ws, "lost"); err != nil {
			return err
		}
		return s.Stop(ctx)
	})
	if fault.KindOf(err) != fault.Unavailable {
		t.Errorf("commit without a server = %v, want %v", err, fault.Unavailable)
	}
	if err := db.Ping(t.Context()); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("Ping without a server = %v, want %v", err, fault.Unavailable)
	}
	start()
	if got := seen(t, inWorkspace(db, ws)); strings.Join(got, " ") != "after before" {
		t.Errorf("after the restarts: %q, want [after before]", got)
	}
}

func TestLimitsReachTheServer(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, notes()).Open(t, notes())
	err := db.AsSystem(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		for name, want := range map[string]string{
			"statement_timeout": "30s", "lock_timeout": "10s", "idle_in_transaction_session_timeout": "10s",
			"role": "pgtest_notes", "search_path": "notes", "application_name": t.Name(),
		} {
			var got string
			if err := tx.QueryRow(ctx, "select current_setting($1)", name).Scan(&got); err != nil || got != want {
				return errors.Join(err, fmt.Errorf("%s = %q, want %q", name, got, want))
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// BenchmarkInWorkspace measures the transaction itself: two round trips.
func BenchmarkInWorkspace(b *testing.B) {
	db, ws := pgtest.New(b, notes()).Open(b, notes()), id.New[id.Workspace]()
	b.ReportAllocs()
	for b.Loop() {
		if err := db.InWorkspace(b.Context(), ws, func(context.Context, pgx.Tx) error { return nil }); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkMigrateAgain measures the check of an up-to-date schema at each start.
func BenchmarkMigrateAgain(b *testing.B) {
	d := pgtest.New(b, notes())
	b.ReportAllocs()
	for b.Loop() {
		if err := pg.Migrate(b.Context(), d.AdminURL, quiet, notes()); err != nil {
			b.Fatal(err)
		}
	}
}
