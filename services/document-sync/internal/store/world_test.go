package store_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/pgd"
	"signalbox.dev/pkg/pgtest"
	"signalbox.dev/services/document-sync/internal/store"
	"signalbox.dev/services/document-sync/migrations"
)

func TestMain(m *testing.M) {
	// The Postgres test server lives as long as the process.
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("signalbox.dev/pkg/pgd.(*Server).watch"),
		goleak.IgnoreAnyFunction("signalbox.dev/pkg/pgd.(*Server).relay"))
}

func schema() pg.Migrations {
	return pg.Migrations{Schema: "documents", Role: "signalbox_documents", FS: migrations.FS}
}

// world is a database and a store.
type world struct {
	t      testing.TB
	db     *pgtest.Database
	pool   *pg.DB
	store  *store.Store
	ws     id.Workspace
	author store.Author
}

func newWorld(t testing.TB, limits store.Limits) *world {
	t.Helper()
	return newWorldOn(t, pgtest.New(t, schema()), limits)
}

// newServer returns a database on a server of its own.
func newServer(t testing.TB, cfg pgd.Config) *pgtest.Database {
	t.Helper()
	srv, err := pgd.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = srv.Stop(context.WithoutCancel(t.Context())) })
	if err := pg.Migrate(t.Context(), srv.URL("postgres"), slog.New(slog.DiscardHandler), schema()); err != nil {
		t.Fatal(err)
	}
	return &pgtest.Database{AdminURL: srv.URL("postgres")}
}

func newWorldOn(t testing.TB, db *pgtest.Database, limits store.Limits) *world {
	t.Helper()
	w := &world{t: t, db: db, ws: id.New[id.Workspace](), author: person()}
	if limits == (store.Limits{}) {
		limits = store.Limits{Versions: 100, VersionBytes: 1 << 30}
	}
	w.pool, w.store = w.open(limits)
	return w
}

// open returns another store with its own pool.
func (w *world) open(limits store.Limits) (*pg.DB, *store.Store) {
	w.t.Helper()
	pool := w.db.Open(w.t, schema())
	s := store.New(pool, limits)
	w.t.Cleanup(s.Close)
	return pool, s
}

func person() store.Author { return store.Author{Member: id.New[id.Member]()} }

// admin returns a connection in the service's schema to which no row policy applies.
func (w *world) admin() *pgx.Conn {
	w.t.Helper()
	c, err := pgx.Connect(w.t.Context(), w.db.AdminURL+"&search_path=documents")
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = c.Close(context.WithoutCancel(w.t.Context())) })
	return c
}

func (w *world) exec(c *pgx.Conn, sql string, args ...any) {
	w.t.Helper()
	if _, err := c.Exec(w.t.Context(), sql, args...); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
}

// number returns the number that a query returns.
func (w *world) number(c *pgx.Conn, sql string, args ...any) (n int64) {
	w.t.Helper()
	if err := c.QueryRow(w.t.Context(), sql, args...).Scan(&n); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// commits returns the number of transactions that have committed the stored updates.
func (w *world) commits(c *pgx.Conn) int64 {
	return w.number(c, `SELECT count(DISTINCT xmin::text) FROM updates`)
}

// until waits until a query returns another number than 0.
func (w *world) until(c *pgx.Conn, sql string, args ...any) {
	w.t.Helper()
	w.eventually(func() bool { return w.number(c, sql, args...) != 0 })
}

func (w *world) eventually(ok func() bool) {
	w.t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.After(time.Minute); !ok(); {
		select {
		case <-tick.C:
		case <-end:
			w.t.Fatal("the condition was not met within a minute")
		}
	}
}

// blocked counts the sessions of the database that wait for a lock.
const blocked = `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`

func (w *world) ref() store.Ref {
	return store.Ref{Workspace: w.ws, Document: id.New[id.Document]()}
}

// noDeadlocks closes all pools and checks that there were no deadlocks.
func (w *world) noDeadlocks(more ...*pg.DB) {
	w.t.Helper()
	for _, pool := range append(more, w.pool) {
		pool.Close()
	}
	admin := w.admin()
	// Sessions report statistics when they end.
	w.until(admin, `SELECT (count(*) = 0)::int FROM pg_stat_activity
		WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()`)
	if n := w.number(admin, `SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`); n != 0 {
		w.t.Errorf("there were %d deadlocks", n)
	}
}

func (w *world) operation(ref store.Ref) store.Operation {
	return store.Operation{Workspace: ref.Workspace, Document: ref.Document, Author: w.author}
}

func first() store.Snapshot {
	return store.Snapshot{State: []byte("first"), Vector: []byte{0}, Markdown: "# first", Text: "first"}
}

// create creates a document, at sequence 1.
func (w *world) create() store.Ref {
	w.t.Helper()
	ref := w.ref()
	if _, err := w.store.Create(w.t.Context(), w.operation(ref), "name", first()); err != nil {
		w.t.Fatal(err)
	}
	return ref
}

func (w *world) append(ref store.Ref, data string) int64 {
	w.t.Helper()
	n, err := w.store.Append(w.t.Context(), ref, w.author, []byte(data))
	if err != nil {
		w.t.Fatal(err)
	}
	return n
}

func (w *world) load(ref store.Ref) store.State {
	w.t.Helper()
	st, err := w.store.Load(w.t.Context(), ref)
	if err != nil {
		w.t.Fatal(err)
	}
	return st
}

func (w *world) delete(ref store.Ref) store.Answer {
	w.t.Helper()
	a, err := w.store.Delete(w.t.Context(), w.operation(ref))
	if err != nil {
		w.t.Fatal(err)
	}
	return a
}

// snapshot returns a snapshot whose contents name its sequence.
func snapshot(ref store.Ref, sequence int64) store.Snapshot {
	return store.Snapshot{
		Ref: ref, Sequence: sequence, State: fmt.Appendf(nil, "state %d", sequence), Vector: []byte{1},
		Markdown: fmt.Sprintf("# markdown %d", sequence), Text: fmt.Sprintf("text %d", sequence),
	}
}

func (w *world) save(s store.Snapshot) {
	w.t.Helper()
	if err := w.store.Save(w.t.Context(), s); err != nil {
		w.t.Fatal(err)
	}
}

func data(updates []store.Update) (out []string) {
	for _, u := range updates {
		out = append(out, fmt.Sprintf("%d:%s", u.Sequence, u.Data))
	}
	return out
}

func wantKind(t testing.TB, what string, err error, want fault.Kind) {
	t.Helper()
	if err == nil || fault.KindOf(err) != want {
		t.Errorf("%s = %v, want %v", what, err, want)
	}
}
