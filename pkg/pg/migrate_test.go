package pg_test

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/pgd"
	"signalbox.dev/pkg/pgtest"
)

var quiet = slog.New(slog.DiscardHandler)

func TestMigrateTwiceAndOn(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	first := notes()
	first.Role += "_on"
	second := first
	second.FS = files("00001_notes.sql", notesUp, "00002_tags.sql", `-- +goose Up
CREATE TABLE tags (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, workspace_id uuid NOT NULL);
ALTER TABLE tags ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON tags USING (workspace_id = claim_workspace());
-- +goose Down
DROP TABLE tags;
`)
	for i, m := range []pg.Migrations{first, first, second, second} {
		if err := pg.Migrate(t.Context(), d.AdminURL, quiet, m); err != nil {
			t.Fatalf("Migrate, run %d: %v", i, err)
		}
	}
	db, ws := d.Open(t, second), id.New[id.Workspace]()
	mustAdd(t, db, ws, "x")
	err := db.InWorkspace(t.Context(), ws, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "insert into tags (workspace_id) values ($1)", ws)
		return err
	})
	if err != nil {
		t.Errorf("use the table and sequence of the second migration: %v", err)
	}
	checkNoProblems(t, d.AdminURL, second)
}

func TestMigrateConcurrently(t *testing.T) {
	t.Parallel()
	// The same role from several migrators of two databases of one cluster.
	databases := []*pgtest.Database{pgtest.New(t), pgtest.New(t)}
	m := notes()
	m.Role = "pgtest_race"
	m.Password = "hunter2"
	exec(t, connect(t, databases[0].AdminURL), "drop role if exists pgtest_race") // so that creating it is part of the race
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			if err := pg.Migrate(t.Context(), databases[i%2].AdminURL, quiet, m); err != nil {
				t.Errorf("Migrate: %v", err)
			}
		})
	}
	wg.Wait()
	for _, d := range databases {
		mustAdd(t, d.Open(t, m), id.New[id.Workspace](), "x")
	}
}

func TestMigrateDown(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t, notes())
	cfg, err := pgx.ParseConfig(d.AdminURL + "&search_path=notes")
	if err != nil {
		t.Fatal(err)
	}
	db := stdlib.OpenDB(*cfg)
	t.Cleanup(func() { _ = db.Close() })
	p, err := goose.NewProvider(goose.DialectPostgres, db, notes().FS, goose.WithTableName("notes.goose_db_version"), goose.WithSlog(quiet))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.DownTo(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	var left []string
	if err := connect(t, d.AdminURL).QueryRow(t.Context(), "select array_agg(tablename::text) from pg_tables where schemaname = 'notes'").Scan(&left); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"goose_db_version"}, left); diff != "" {
		t.Errorf("tables after all down files (-want +got):\n%s", diff)
	}
	if err := pg.Migrate(t.Context(), d.AdminURL, quiet, notes()); err != nil {
		t.Fatalf("up again: %v", err)
	}
	mustAdd(t, d.Open(t, notes()), id.New[id.Workspace](), "x")
}

// An older program changes nothing in a database that a newer one has migrated.
func TestMigrateRefusesNewer(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	older := notes()
	newer := older
	newer.FS = files("00001_notes.sql", notesUp, "00002_more.sql", "-- +goose Up\nCREATE TABLE more (id bigint PRIMARY KEY);\n-- +goose Down\nDROP TABLE more;\n")
	if err := pg.Migrate(t.Context(), d.AdminURL, quiet, newer); err != nil {
		t.Fatal(err)
	}
	other := pg.Migrations{Schema: "other", Role: "pgtest_notes", FS: files("00001_x.sql", "-- +goose Up\nCREATE TABLE x ();\n-- +goose Down\nDROP TABLE x;\n")}
	err := pg.Migrate(t.Context(), d.AdminURL, quiet, other, older)
	for _, want := range []string{"schema notes", "migration 2", "up to 1", "newer version", "nothing was changed"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Migrate with the older files = %v, want an error with %q", err, want)
		}
	}
	if !errors.Is(err, pg.ErrNewer) {
		t.Errorf("Migrate with the older files = %v, want ErrNewer", err)
	}
	var made bool
	if err := connect(t, d.AdminURL).QueryRow(t.Context(), "select to_regnamespace('other') is not null").Scan(&made); err != nil || made {
		t.Errorf("schema other was created: %t, %v, want nothing changed", made, err)
	}
	if err := pg.Migrate(t.Context(), d.AdminURL, quiet, newer, other); err != nil {
		t.Errorf("Migrate with the newer files = %v", err)
	}
}

func TestMigrateRefuses(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	for _, tc := range []struct {
		name string
		url  string
		m    pg.Migrations
		want string
	}{
		{"bad schema", d.AdminURL, pg.Migrations{Schema: `x"; drop`, Role: "r"}, "lower-case letters"},
		{"bad role", d.AdminURL, pg.Migrations{Schema: "x", Role: ""}, "lower-case letters"},
		{"bad URL", "postgres://u:hunter2@h:x/", notes(), "(DATABASE_URL) does not parse"},
		{"no server", "postgres://u:hunter2@127.0.0.1:1/x", notes(), `connect to PostgreSQL at 127.0.0.1:1 (database "x", user "u"): dial tcp`},
		{"no such database", strings.Replace(d.AdminURL, "dbname", "", 1) + "&dbname=nosuch", notes(), `database "nosuch" does not exist`},
		{"bad SQL", d.AdminURL, pg.Migrations{Schema: "x", Role: "pgtest_notes", FS: files("00001_x.sql", "-- +goose Up\nCREATE TABEL x ();\n")}, "00001_x.sql"},
		{"bad file name", d.AdminURL, pg.Migrations{Schema: "x", Role: "pgtest_notes", FS: files("x.sql", "-- +goose Up\n")}, "x.sql"},
		{"bad password", d.AdminURL, pg.Migrations{Schema: "x", Role: "pgtest_refused", Password: "hünter2"}, "printable ASCII"},
	} {
		err := pg.Migrate(t.Context(), tc.url, quiet, tc.m)
		if err == nil || !strings.Contains(err.Error(), tc.want) || strings.ContainsAny(err.Error(), "\n") && tc.name != "bad SQL" || strings.Contains(err.Error(), "unter2") {
			t.Errorf("%s: Migrate = %v, want an error with %q and no password", tc.name, err, tc.want)
		}
	}
}

// Hosted databases have administrators with CREATEROLE and CREATE on the database who are
// not superusers. Policies apply to them, even in migrations.
func TestMigrateWithoutSuperuser(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	root := connect(t, d.AdminURL)
	exec(t, root, "drop role if exists pgtest_plain, pgtest_admin") // of an earlier run
	exec(t, root, "create role pgtest_admin login createrole")
	exec(t, root, "do $$ begin execute format('grant create on database %I to pgtest_admin', current_database()); end $$")
	admin := strings.Replace(d.AdminURL, "postgres@", "pgtest_admin@", 1)
	m := notes()
	m.Role = "pgtest_plain"
	if err := pg.Migrate(t.Context(), admin, quiet, m); err != nil {
		t.Fatal(err)
	}
	plain := &pgtest.Database{AdminURL: admin}
	db := plain.Open(t, m)
	a, b := id.New[id.Workspace](), id.New[id.Workspace]()
	mustAdd(t, db, a, "a")
	mustAdd(t, db, b, "b")
	if got := seen(t, inWorkspace(db, a)); !slices.Equal(got, []string{"a"}) {
		t.Errorf("seen %q, want [a]", got)
	}
	m.FS = files("00001_notes.sql", notesUp, "00002_upper.sql", "-- +goose Up\nUPDATE notes SET text = upper(text);\n-- +goose Down\nSELECT 1;\n")
	if err := pg.Migrate(t.Context(), admin, quiet, m); err != nil {
		t.Fatal(err)
	}
	if got := seen(t, db.AsSystem); !slices.Equal(got, []string{"A", "B"}) {
		t.Errorf("after a migration of the data: %q, want [A B]", got)
	}
	checkNoProblems(t, d.AdminURL, m)
}

// A role with a password can log in to a server that asks for it.
func TestMigratePassword(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(pgtest.Folder(t), "pg")
	s, err := pgd.Start(t.Context(), pgd.Config{Dir: dir, Fast: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Stop(context.WithoutCancel(t.Context())) })
	admin := s.URL("postgres")
	m := notes()
	m.Password = `p"w' $1`
	for range 2 {
		if err := pg.Migrate(t.Context(), admin, quiet, m); err != nil {
			t.Fatal(err)
		}
	}
	hba := filepath.Join(dir, "pg_hba.conf")
	rules, err := os.ReadFile(hba)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(hba, append([]byte("local all "+m.Role+" scram-sha-256\n"), rules...), fs.ModePerm&0o600); err != nil {
		t.Fatal(err)
	}
	exec(t, connect(t, admin), "select pg_reload_conf()")
	for _, tc := range []struct {
		password string
		want     bool
	}{{"", false}, {"wrong", false}, {`p%22w'%20$1`, true}} {
		url := strings.Replace(admin, "postgres@", m.Role+":"+tc.password+"@", 1)
		err := openWith(t, pg.Config{URL: conf.Secret(url)}).Ping(t.Context())
		if (err == nil) != tc.want {
			t.Errorf("Ping with password %q = %v, want success %t", tc.password, err, tc.want)
		}
	}

	// A password file is read again for each new connection.
	file := filepath.Join(t.TempDir(), "passwords")
	write := func(password string) {
		t.Helper()
		if err := os.WriteFile(file, []byte("*:*:*:*:"+password+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(m.Password.Reveal())
	db := openWith(t, pg.Config{URL: conf.Secret(strings.Replace(admin, "postgres@", m.Role+"@", 1) + "&passfile=" + file)})
	if err := db.Ping(t.Context()); err != nil {
		t.Errorf("Ping with a password file = %v", err)
	}
	m.Password = "replaced"
	if err := pg.Migrate(t.Context(), admin, quiet, m); err != nil {
		t.Fatal(err)
	}
	if err := db.Ping(t.Context()); err != nil {
		t.Errorf("Ping on the connection from before the change = %v", err)
	}
	write(m.Password.Reveal())
	terminate(t, admin)
	until(t, "a connection with the new password", func() bool { return db.Ping(t.Context()) == nil })
}

func checkNoProblems(t *testing.T, adminURL string, m pg.Migrations) {
	t.Helper()
	problems, err := pgtest.CheckCatalogue(t.Context(), adminURL, []string{m.Schema + ".numbers"}, m)
	if err != nil || len(problems) > 0 {
		t.Errorf("CheckCatalogue = %q, %v, want no problems", problems, err)
	}
}
