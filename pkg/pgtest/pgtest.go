// Package pgtest gives each test a PostgreSQL database of its own, migrated.
//
// The migrations of a test are applied once per content, into a template
// database; New clones it, which takes a fraction of what migrating takes. The
// server is the one that SIGNALBOX_TEST_POSTGRES names (a superuser's URL); for
// whole test runs,
//
//	go run ./pkg/pgtest/withpg -- go test ./...
//
// starts one and sets the variable. Without it, the first New of a test process
// starts a private one (package pgd), which ends with the process and leaves
// nothing behind. Its two goroutines live as long as the process: a package that
// looks for leaked goroutines gives goleak.IgnoreAnyFunction the names
// signalbox.dev/pkg/pgd.(*Server).watch and …relay.
//
// Several processes may share a server: an advisory lock lets one of them make
// a template while the others wait for it.
package pgtest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/pgd"
)

// Variable names the environment variable with the server to use.
const Variable = "SIGNALBOX_TEST_POSTGRES"

// revision is part of every template's name: raise it when pg.Migrate changes
// what it makes, so that a server that outlives test runs gets new templates.
const revision = "1"

const limit = 2 * time.Minute // for making a template, a clone, or removing one

// Database is one test's database.
type Database struct {
	// AdminURL connects as a superuser, to whom no policy applies.
	AdminURL string
}

// New returns a database with the migrations applied, dropped when the test
// ends. Any number of tests may call it at once.
func New(t testing.TB, migrations ...pg.Migrations) *Database {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	admin, err := server()
	if err != nil {
		t.Fatalf("a PostgreSQL for tests: %v", err)
	}
	template, err := templates.get(ctx, admin, migrations)
	if err != nil {
		t.Fatalf("make the template database: %v", err)
	}
	name := "t_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	if err := do(ctx, admin, func(c *pgx.Conn) error { return clone(ctx, c, name, template) }); err != nil {
		t.Fatalf("clone the template database: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), limit)
		defer cancel()
		if err := do(ctx, admin, func(c *pgx.Conn) error { return exec(ctx, c, "drop database if exists "+name+" with (force)") }); err != nil {
			t.Errorf("drop the test's database: %v", err)
		}
	})
	return &Database{AdminURL: withDatabase(admin, name)}
}

// Open returns a DB that acts as the service of m, closed when the test ends.
func (d *Database) Open(t testing.TB, m pg.Migrations) *pg.DB {
	t.Helper()
	db, err := pg.Open(t.Context(), pg.Config{URL: conf.Secret(d.AdminURL), Role: m.Role, Schema: m.Schema, MaxConns: 8, Application: t.Name()})
	if err != nil {
		t.Fatalf("open the test's database: %v", err)
	}
	t.Cleanup(db.Close)
	return db
}

// Folder returns a temporary folder for a PostgreSQL of the test's own. Where the test
// is run by root, PostgreSQL is not, and could not pass through what t.TempDir returns.
func Folder(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	LetIn(t, dir)
	return dir
}

// LetIn lets others pass through a folder and the one around it, which the test has made.
func LetIn(t testing.TB, dir string) {
	t.Helper()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o711); err != nil {
			t.Fatal(err)
		}
	}
}

// Bin returns the folder of the PostgreSQL that the test's package finds, for the
// SIGNALBOX_PG_BIN of a program that runs outside of the checkout and would find none.
func Bin(t testing.TB) string {
	t.Helper()
	bin, err := pgd.Bin(t.Context(), pgd.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return bin
}

// server is a variable because a server belongs to the process and not to a
// test: TestMain, which could own it, is not ours.
var server = sync.OnceValues(func() (string, error) {
	if admin := os.Getenv(Variable); admin != "" {
		return admin, nil
	}
	s, err := pgd.Start(context.Background(), pgd.Config{Fast: true})
	if err != nil {
		return "", err
	}
	return s.URL("postgres"), nil
})

// templates remembers which templates this process has seen; it is a variable
// for the reason that server is.
var templates = templateSet{known: map[string]func(context.Context) error{}}

type templateSet struct {
	mu    sync.Mutex
	known map[string]func(context.Context) error // guarded by mu
}

// get returns the name of the template for these migrations, made if need be.
func (s *templateSet) get(ctx context.Context, admin string, migrations []pg.Migrations) (string, error) {
	sum := sha256.New()
	_, _ = fmt.Fprintf(sum, "%s\n", revision)
	for _, m := range migrations {
		if err := digest(sum, m); err != nil {
			return "", err
		}
	}
	name := "template_" + hex.EncodeToString(sum.Sum(nil))[:24]
	s.mu.Lock()
	ensure := s.known[name]
	if ensure == nil {
		ensure = once(func(ctx context.Context) error { return ensureTemplate(ctx, admin, name, migrations) })
		s.known[name] = ensure
	}
	s.mu.Unlock()
	return name, ensure(ctx)
}

// once runs f until it has worked, one caller at a time.
func once(f func(context.Context) error) func(context.Context) error {
	var mu sync.Mutex
	done := false
	return func(ctx context.Context) error {
		mu.Lock()
		defer mu.Unlock()
		if done {
			return nil
		}
		err := f(ctx)
		done = err == nil
		return err
	}
}

func digest(sum hash.Hash, m pg.Migrations) error {
	_, _ = fmt.Fprintf(sum, "%q %q %t\n", m.Schema, m.Role, m.FS != nil)
	if m.FS == nil {
		return nil
	}
	files, err := fs.Glob(m.FS, "*.sql")
	if err != nil {
		return err
	}
	for _, f := range files {
		text, err := fs.ReadFile(m.FS, f)
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintf(sum, "%q %d\n%s", f, len(text), text)
	}
	return nil
}

// ensureTemplate makes the template under another name and renames it when it
// is whole, so that a killed test leaves no half of one.
func ensureTemplate(ctx context.Context, admin, name string, migrations []pg.Migrations) error {
	return do(ctx, admin, func(c *pgx.Conn) error {
		// Released with the session. The key is the template's, so that others are made meanwhile.
		if err := exec(ctx, c, "select pg_advisory_lock(hashtextextended($1, 0))", name); err != nil {
			return err
		}
		var exists bool
		if err := c.QueryRow(ctx, "select exists (select from pg_database where datname = $1)", name).Scan(&exists); err != nil || exists {
			return err
		}
		draft := name + "_draft"
		if err := exec(ctx, c, "drop database if exists "+draft+" with (force)"); err != nil {
			return err
		}
		if err := clone(ctx, c, draft, "template0"); err != nil {
			return err
		}
		if err := pg.Migrate(ctx, withDatabase(admin, draft), slog.New(slog.DiscardHandler), migrations...); err != nil {
			return err
		}
		// Without connections, which a database that is being cloned must not have.
		if err := exec(ctx, c, "alter database "+draft+" with allow_connections false"); err != nil {
			return err
		}
		return retry(ctx, func() error { return exec(ctx, c, "alter database "+draft+" rename to "+name) })
	})
}

// clone makes a database. file_copy is faster than copying through the log when
// the server does not sync.
func clone(ctx context.Context, c *pgx.Conn, name, template string) error {
	return retry(ctx, func() error {
		return exec(ctx, c, "create database "+name+" template "+template+" strategy file_copy")
	})
}

// retry repeats what fails because a session that is ending, or an autovacuum
// worker of a server that is not ours, still holds the database.
func retry(ctx context.Context, f func() error) error {
	for {
		err := f()
		if e, ok := errors.AsType[*pgconn.PgError](err); !ok || e.Code != "55006" { // object_in_use
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func exec(ctx context.Context, c *pgx.Conn, sql string, args ...any) error {
	_, err := c.Exec(ctx, sql, args...)
	return err
}

func do(ctx context.Context, admin string, fn func(*pgx.Conn) error) error {
	c, err := pgx.Connect(ctx, admin)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close(context.WithoutCancel(ctx)) }()
	return fn(c)
}

// withDatabase returns the URL with another database's name.
func withDatabase(admin, name string) string {
	u, err := url.Parse(admin)
	if err != nil {
		return admin // connecting will say what is wrong
	}
	u.Path = "/" + name
	return u.String()
}
