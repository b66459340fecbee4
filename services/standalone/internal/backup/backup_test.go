package backup_test

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/pgtest"
	"signalbox.dev/services/standalone/internal/backup"
)

var quiet = slog.New(slog.DiscardHandler)

// shop is a service whose tables have everything that a backup has to bear in mind.
func shop(schema string) pg.Migrations {
	return pg.Migrations{
		Schema: schema, Role: "backuptest_" + schema, AppendOnly: []string{"later"}, Derived: map[string]string{"words": "index_item"},
		FS: fstest.MapFS{
			"00001_shop.sql": {Data: []byte(`-- +goose Up
CREATE TABLE orders (workspace_id uuid NOT NULL, id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, version int NOT NULL, at timestamptz NOT NULL DEFAULT now());
CREATE TABLE items (workspace_id uuid NOT NULL, order_id bigint NOT NULL REFERENCES orders, parent bigint, id bigint PRIMARY KEY, "Text" text, data bytea, share float8,
	twice text GENERATED ALWAYS AS ("Text" || "Text") STORED, FOREIGN KEY (parent) REFERENCES items (id));
CREATE TABLE words (workspace_id uuid NOT NULL, item_id bigint NOT NULL, word text);
-- +goose StatementBegin
CREATE FUNCTION index_item() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
	INSERT INTO words VALUES (NEW.workspace_id, NEW.id, NEW."Text");
	RETURN NULL;
END $$;
CREATE FUNCTION count_version() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
	NEW.version := NEW.version + 1;
	RETURN NEW;
END $$;
-- +goose StatementEnd
CREATE TRIGGER index_item AFTER INSERT ON items FOR EACH ROW EXECUTE FUNCTION index_item();
CREATE TRIGGER count_version BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION count_version();
ALTER TABLE orders ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE items ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE words ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON orders USING (workspace_id = claim_workspace() OR claim_system());
CREATE POLICY tenant ON items USING (workspace_id = claim_workspace() OR claim_system());
CREATE POLICY searching ON words FOR SELECT USING (workspace_id = claim_workspace());
CREATE POLICY adding ON words FOR INSERT WITH CHECK (workspace_id = claim_workspace() OR claim_system());
`)},
			"00002_later.sql": {Data: []byte(`-- +goose Up
CREATE TABLE later (workspace_id uuid NOT NULL, n int);
ALTER TABLE later ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON later USING (workspace_id = claim_workspace() OR claim_system());
INSERT INTO later SELECT workspace_id, 1 FROM orders WHERE id = 1;
`)},
		},
	}
}

func through(m pg.Migrations, last int64) pg.Migrations {
	m.Through = last
	return m
}

// owned returns an empty database and the URL of its owner, who is no superuser.
func owned(t *testing.T, all ...pg.Migrations) (admin string) {
	t.Helper()
	d := pgtest.New(t)
	root := connect(t, d.AdminURL)
	owner := fmt.Sprintf("backuptest_owner_%x", root.PgConn().PID())
	run(t, root, "CREATE ROLE "+owner+" LOGIN CREATEROLE")
	run(t, root, "DO $$ BEGIN EXECUTE format('GRANT CREATE ON DATABASE %I TO "+owner+"', current_database()); END $$")
	for _, m := range all {
		run(t, root, "DO $$ BEGIN CREATE ROLE "+m.Role+"; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$")
		run(t, root, "GRANT "+m.Role+" TO "+owner+" WITH ADMIN OPTION")
	}
	t.Cleanup(func() { // before the database is dropped
		c, err := pgx.Connect(context.WithoutCancel(t.Context()), d.AdminURL)
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close(context.WithoutCancel(t.Context()))
		if _, err := c.Exec(context.WithoutCancel(t.Context()), "REASSIGN OWNED BY "+owner+" TO CURRENT_USER; DROP OWNED BY "+owner+" CASCADE; DROP ROLE "+owner); err != nil {
			t.Error(err)
		}
	})
	return strings.Replace(d.AdminURL, "postgres@", owner+"@", 1)
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(context.WithoutCancel(t.Context())) })
	return c
}

func run(t *testing.T, c *pgx.Conn, sql string) {
	t.Helper()
	if _, err := c.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

func migrate(t *testing.T, url string, all ...pg.Migrations) {
	t.Helper()
	if err := pg.Migrate(t.Context(), url, quiet, all...); err != nil {
		t.Fatal(err)
	}
}

func noKeys(context.Context, pgx.Tx) ([]string, error) { return nil, nil }

func write(t *testing.T, url string, all ...pg.Migrations) (file string, m backup.Manifest) {
	t.Helper()
	var b bytes.Buffer
	m, err := backup.Write(t.Context(), &b, backup.Options{AdminURL: url, Migrations: all}, nil, noKeys)
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(t.TempDir(), "backup.zip")
	if err := os.WriteFile(file, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return file, m
}

func restore(t *testing.T, file, url string, check func(context.Context, pgx.Tx) error, all ...pg.Migrations) error {
	t.Helper()
	a, err := backup.Open(t.Context(), file)
	if err != nil {
		return err
	}
	defer a.Close()
	if check == nil {
		check = func(context.Context, pgx.Tx) error { return nil }
	}
	return a.Restore(t.Context(), backup.Options{AdminURL: url, Migrations: all}, quiet, check)
}

// rows returns how many rows of a table are in a backup, -1 without the table.
func rows(s backup.Schema, table string) int64 {
	for _, t := range s.Tables {
		if t.Name == table {
			return t.Rows
		}
	}
	return -1
}

const workspace = "0198a000-0000-7000-8000-000000000001"

// sell inserts an order with two items into both schemas, in one transaction.
func sell(ctx context.Context, c *pgx.Conn, n int) error {
	return pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error {
		for _, schema := range []string{"lefts", "rights"} {
			var order int64
			if err := tx.QueryRow(ctx, "INSERT INTO "+schema+".orders (workspace_id, version) VALUES ($1, 0) RETURNING id", workspace).Scan(&order); err != nil {
				return err
			}
			// The parent has the higher id, so that a child can come before it in a file.
			_, err := tx.Exec(ctx, "INSERT INTO "+schema+`.items (workspace_id, order_id, parent, id, "Text", data, share) VALUES ($1, $2, $3, $4, $5, $6, $7), ($1, $2, NULL, $3, '', NULL, 'NaN')`,
				workspace, order, 2*n+1, 2*n, "tab\tline\nback\\slash \\. é", []byte{0, 255, byte(n)}, 0.1+float64(n))
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// A backup is of one moment, and has everything: in another database, of another owner, who is no
// superuser either.
func TestBackupUnderTraffic(t *testing.T) {
	t.Parallel()
	left, right := shop("lefts"), shop("rights")
	from := owned(t, left, right)
	migrate(t, from, left, right)
	ctx, stop := context.WithCancel(t.Context())
	sold, ended := make(chan int), make(chan error, 1)
	seller := connect(t, from)
	run(t, seller, "SET signalbox.system = 'on'")
	go func() {
		for n := 0; ; n++ {
			if err := sell(context.WithoutCancel(ctx), seller, n); err != nil || ctx.Err() != nil {
				ended <- err
				return
			}
			select {
			case sold <- n:
			default:
			}
		}
	}()
	sale := func() int {
		select {
		case n := <-sold:
			return n
		case err := <-ended:
			t.Fatalf("no more can be sold: %v", err)
			panic("not reached")
		}
	}
	for sale() < 50 {
	}
	file, m := write(t, from, left, right)
	sale()
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"orders", "items"} {
		if l, r := rows(m.Schemas[0], name), rows(m.Schemas[1], name); l < 50 || l != r {
			t.Errorf("the backup has %d and %d %s, want the same number, at least 50", l, r, name)
		}
	}

	to := owned(t, left, right)
	if err := restore(t, file, to, nil, left, right); err != nil {
		t.Fatal(err)
	}
	_, again := write(t, to, left, right)
	if diff := cmp.Diff(m, again, cmpopts.IgnoreFields(backup.Manifest{}, "CreatedAt"), cmpopts.IgnoreFields(backup.Schema{}, "Sequences")); diff != "" {
		t.Errorf("a backup of what was restored (-first +second)\n%s", diff)
	}
	c := connect(t, to)
	var items, words, hidden int64
	run(t, c, "SET signalbox.workspace = '"+workspace+"'")
	if err := c.QueryRow(t.Context(), "SELECT (SELECT count(*) FROM lefts.items), (SELECT count(*) FROM lefts.words WHERE word IS NOT NULL)").Scan(&items, &words); err != nil || words != items || items == 0 {
		t.Errorf("%d items have %d words, %v, want the derived rows", items, words, err)
	}
	run(t, c, "SET signalbox.workspace = ''")
	if err := c.QueryRow(t.Context(), "SELECT count(*) FROM lefts.items").Scan(&hidden); err != nil || hidden != 0 {
		t.Errorf("without a claim the owner sees %d items, %v, want row-level security in force", hidden, err)
	}
	// The sequence and the triggers continue.
	run(t, c, "SET signalbox.system = 'on'")
	if err := sell(t.Context(), c, 1_000_000); err != nil {
		t.Errorf("sell in the restored database: %v", err)
	}
	var latest int
	if err := c.QueryRow(t.Context(), "SELECT version FROM lefts.orders ORDER BY id DESC LIMIT 1").Scan(&latest); err != nil || latest != 1 {
		t.Errorf("version of a new order = %d, %v, want 1", latest, err)
	}
	if err := restore(t, file, to, nil, left, right); err == nil || !strings.Contains(err.Error(), "has rows") {
		t.Errorf("Restore into a database in use = %v, want a refusal", err)
	}
}

// A backup of an earlier version becomes one of this version: its migrations see the data.
func TestRestoreEarlier(t *testing.T) {
	t.Parallel()
	left, right := shop("lefts"), shop("rights")
	from := owned(t, left, right)
	migrate(t, from, through(left, 1), through(right, 1))
	c := connect(t, from)
	run(t, c, "SET signalbox.system = 'on'")
	if err := sell(t.Context(), c, 1); err != nil {
		t.Fatal(err)
	}
	file, m := write(t, from, left, right)
	if m.Schemas[0].Migration != 1 {
		t.Errorf("the backup has migration %d, want 1", m.Schemas[0].Migration)
	}
	to := owned(t, left, right)
	if err := restore(t, file, to, nil, left, right); err != nil {
		t.Fatal(err)
	}
	_, again := write(t, to, left, right)
	if got := again.Schemas[1]; got.Migration != 2 || rows(got, "later") != 1 {
		t.Errorf("after the restore: migration %d, %d rows of the new table, want 2 and 1", got.Migration, rows(got, "later"))
	}
	later := owned(t, left, right)
	migrate(t, later, left, right)
	if err := restore(t, file, later, nil, left, right); err == nil || !strings.Contains(err.Error(), "into a new database") {
		t.Errorf("Restore into a newer database = %v, want a refusal", err)
	}
}

func TestRestoreRefuses(t *testing.T) {
	t.Parallel()
	left, right := shop("lefts"), shop("rights")
	from := owned(t, left, right)
	migrate(t, from, left, right)
	c := connect(t, from)
	run(t, c, "SET signalbox.system = 'on'")
	if err := sell(t.Context(), c, 1); err != nil {
		t.Fatal(err)
	}
	file, _ := write(t, from, left, right)
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	to := owned(t, left, right)
	for _, tt := range []struct { //nolint:paralleltest // they share a database
		name  string
		bytes func() []byte
		known []pg.Migrations // what the program knows
		check error
		want  string
	}{
		{name: "no archive", bytes: func() []byte { return []byte("-- PostgreSQL database dump\n") }, want: "is no backup"},
		{name: "truncated", bytes: func() []byte { return whole[:len(whole)-200] }, want: "is no backup"},
		{name: "a changed byte", bytes: func() []byte {
			b := bytes.Clone(whole)
			b[offset(t, whole, "lefts/items.copy")+10] ^= 1
			return b
		}, want: "is no backup"},
		{name: "an edited row", bytes: func() []byte { return repack(t, whole, "lefts/items.copy", "tab", "tap") }, want: "lefts/items.copy: it has another SHA-256"},
		{name: "an edited manifest", bytes: func() []byte { return repack(t, whole, "manifest.json", `"rows": 2`, `"rows": 3`) }, want: "manifest.json has another SHA-256"},
		{name: "a table missing", bytes: func() []byte { return repack(t, whole, "lefts/items.copy", "", "") }, want: "lefts/items.copy: it is missing"},
		{
			name: "newer than the program", known: []pg.Migrations{{Schema: "lefts", Role: left.Role, FS: fstest.MapFS{"00001_shop.sql": left.FS.(fstest.MapFS)["00001_shop.sql"]}}, right},
			want: "this program knows migrations up to 1",
		},
		{name: "a service that the program lacks", known: []pg.Migrations{left}, want: "knows migrations up to 0"},
		{name: "a wrong key", check: errors.New("wrong key"), want: "wrong key"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path, known := file, []pg.Migrations{left, right}
			if tt.bytes != nil {
				path = filepath.Join(t.TempDir(), "b.zip")
				if err := os.WriteFile(path, tt.bytes(), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if tt.known != nil {
				known = tt.known
			}
			err := restore(t, path, to, func(context.Context, pgx.Tx) error { return tt.check }, known...)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Restore = %v, want an error with %q", err, tt.want)
			}
		})
	}
	// Nothing remains of them.
	if err := restore(t, file, to, nil, left, right); err != nil {
		t.Errorf("Restore of the intact file = %v", err)
	}
}

// offset returns where a file's data begins in an archive.
func offset(t *testing.T, whole []byte, name string) int64 {
	t.Helper()
	r, err := zip.NewReader(bytes.NewReader(whole), int64(len(whole)))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range r.File {
		if at, err := f.DataOffset(); f.Name == name && err == nil {
			return at
		}
	}
	t.Fatalf("the archive has no %s", name)
	return 0
}

// repack edits a file of an archive, or leaves it out, with valid checksums of the archive.
func repack(t *testing.T, whole []byte, name, from, to string) []byte {
	t.Helper()
	r, err := zip.NewReader(bytes.NewReader(whole), int64(len(whole)))
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, f := range r.File {
		in, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		if f.Name == name {
			if from == "" {
				continue
			}
			edited := strings.Replace(string(text), from, to, 1)
			if edited == string(text) {
				t.Fatalf("%s does not contain %q", name, from)
			}
			text = []byte(edited)
		}
		out, err := w.Create(f.Name)
		if err == nil {
			_, err = out.Write(text)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.SetComment(r.Comment), w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
