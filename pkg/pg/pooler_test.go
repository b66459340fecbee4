package pg_test

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/pgtest"
)

// pooled is a service with a login of its own. The role's settings belong to a database, so
// that a clone of a template has none.
func pooled(t *testing.T) (*pgtest.Database, pg.Migrations) {
	t.Helper()
	m := notes()
	m.Role, m.Password = "pgtest_pooled", "pooled"
	d := pgtest.New(t)
	if err := pg.Migrate(t.Context(), d.AdminURL, quiet, m); err != nil {
		t.Fatal(err)
	}
	return d, m
}

func openPooled(t *testing.T, cfg pg.Config) *pg.DB {
	t.Helper()
	cfg.Role, cfg.Schema, cfg.MaxConns = "pgtest_pooled", "notes", 8
	db, err := pg.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	return db
}

// Eight connections of a service share two of the server, in transaction mode.
func TestPooler(t *testing.T) {
	t.Parallel()
	d, m := pooled(t)
	db := openPooled(t, pg.Config{URL: conf.Secret(d.Pool(t, 2, m.Role))})
	spaces := []id.Workspace{id.New[id.Workspace](), id.New[id.Workspace]()}
	for i, ws := range spaces {
		mustAdd(t, db, ws, string(rune('a'+i)))
	}
	var wg sync.WaitGroup
	for n := range 8 {
		wg.Go(func() {
			for i := range 30 {
				ws, want := spaces[(n+i)%2], []string{string(rune('a' + (n+i)%2))}
				var batched, changed []string
				b := &pgx.Batch{}
				b.Queue("select text from notes where workspace_id = @ws", pg.Args{"ws": ws}).Query(collect(&batched))
				read := &pgx.Batch{}
				read.Queue("select text from notes where workspace_id = $1 for update", ws).Query(collect(&changed))
				if err := db.ReadInWorkspace(t.Context(), ws, b); err != nil || !slices.Equal(batched, want) {
					t.Errorf("ReadInWorkspace() = %v with %q, want %q", err, batched, want)
				}
				err := db.ChangeInWorkspace(t.Context(), ws, read, func(b *pgx.Batch) error {
					b.Queue("update notes set text = text where workspace_id = $1", ws)
					return nil
				})
				if err != nil || !slices.Equal(changed, want) {
					t.Errorf("ChangeInWorkspace() = %v with %q, want %q", err, changed, want)
				}
				if got := seen(t, inWorkspace(db, ws)); !slices.Equal(got, want) {
					t.Errorf("a transaction sees %q, want %q", got, want)
				}
			}
		})
	}
	wg.Wait()
	// The settings hold behind the pooler too.
	var got [4]string
	err := db.AsSystem(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, `select current_setting('statement_timeout'), current_setting('lock_timeout'),
			current_setting('idle_in_transaction_session_timeout'), current_setting('plan_cache_mode')`).Scan(&got[0], &got[1], &got[2], &got[3])
	})
	if diff := cmp.Diff([4]string{"30s", "10s", "10s", "force_generic_plan"}, got); err != nil || diff != "" {
		t.Errorf("settings: %v (-want +got):\n%s", err, diff)
	}
	// A statement that fails leaves the server's connection to others in good order.
	if err := db.InWorkspace(t.Context(), spaces[0], func(ctx context.Context, tx pgx.Tx) error { return add(ctx, tx, spaces[0], "a") }); !pg.IsUniqueViolation(err, "notes_text_key") {
		t.Errorf("adding twice = %v, want a violation of notes_text_key", err)
	}
	if got := seen(t, inWorkspace(db, spaces[1])); !slices.Equal(got, []string{"b"}) {
		t.Errorf("after a failure a transaction sees %q, want [b]", got)
	}
}

// What cannot work through a pooler is refused with an error that says what to do.
func TestPoolerRefuses(t *testing.T) {
	t.Parallel()
	d, m := pooled(t)
	root := connect(t, d.AdminURL)
	exec(t, root, "drop role if exists pgtest_member; create role pgtest_member login in role pgtest_pooled")
	t.Cleanup(func() { exec(t, root, "drop role pgtest_member") })
	through := d.Pool(t, 2, m.Role, "postgres", "pgtest_member")
	as := func(user string) conf.Secret { return conf.Secret(strings.Replace(through, m.Role, user, 1)) }
	check := func(doing string, err error, want string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s = %v, want an error of one line with %q", doing, err, want)
		}
	}
	const itself = "use the address of the PostgreSQL server itself"
	check("Migrate()", pg.Migrate(t.Context(), as("postgres").Reveal(), quiet, m), itself)
	_, err := pg.CheckAdmin(t.Context(), as("postgres").Reveal())
	check("CheckAdmin()", err, itself)
	check("Ping() as a superuser", openPooled(t, pg.Config{URL: as("postgres")}).Ping(t.Context()), "ignores row-level security")
	check("Ping() as a member", openPooled(t, pg.Config{URL: as("pgtest_member")}).Ping(t.Context()), `its user must be "pgtest_pooled"`)
	check("Ping() with a setting", openPooled(t, pg.Config{URL: as(m.Role) + "&lock_timeout=5s"}).Ping(t.Context()), "unsupported startup parameter: lock_timeout")
	exec(t, root, "do $$ begin execute format('alter role pgtest_pooled in database %I reset all', current_database()); end $$")
	check("Ping() before a migration", openPooled(t, pg.Config{URL: as(m.Role)}).Ping(t.Context()), "run `signalbox migrate`")
}

// A presence needs a session: it uses the direct URL, and without one the service does not work.
func TestPoolerPresence(t *testing.T) {
	t.Parallel()
	d, m := pooled(t)
	through := conf.Secret(d.Pool(t, 2, m.Role))
	db := openPooled(t, pg.Config{URL: through, DirectURL: conf.Secret(d.AdminURL)})
	_, stop := present(t, db, "one")
	until(t, "presence", func() bool { return len(absent(t, db, "one", "two")) == 1 })
	stop()
	until(t, "absence", func() bool { return len(absent(t, db, "one", "two")) == 2 })

	without := openPooled(t, pg.Config{URL: through})
	pg.NewPresence(without, "three", slog.New(slog.DiscardHandler))
	if err := without.Ping(t.Context()); err == nil || !strings.Contains(err.Error(), "set DATABASE_DIRECT_URL") {
		t.Errorf("Ping() with a presence and no direct URL = %v, want an error that names DATABASE_DIRECT_URL", err)
	}
	pooledTwice := openPooled(t, pg.Config{URL: through, DirectURL: through})
	_, stop = present(t, pooledTwice, "four")
	defer stop()
	if err := pooledTwice.Ping(t.Context()); err != nil {
		t.Errorf("Ping() = %v", err)
	}
}
