// Package pgtest gives each test a migrated PostgreSQL database of its own.
//
// It applies a set of migrations once, to a template database, which New clones in a fraction
// of the time. The server is the one in SIGNALBOX_TEST_POSTGRES (a superuser's URL). For whole
// test runs,
//
//	go run ./pkg/pgtest/withpg -- go test ./...
//
// starts one and sets the variable. Without the variable, the first New of a test process
// starts a private server (package pgd), which ends with the process. Its two goroutines run
// until then: a package that looks for leaked goroutines passes
// signalbox.dev/pkg/pgd.(*Server).watch and …relay to goleak.IgnoreAnyFunction.
//
// Processes may share a server: an advisory lock lets one of them create a template while the
// others wait.
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

// revision is part of every template's name. Raise it when the effect of pg.Migrate changes,
// so that a server that outlives test runs gets new templates.
const revision = "1"

const limit = 2 * time.Minute // for creating or dropping a database

// Database is one test's database.
type Database struct {
	// AdminURL connects as a superuser, who bypasses all policies.
	AdminURL string
}

// New returns a database with the migrations applied, which is dropped when the test ends.
// Tests may call it concurrently.
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
		if err := do(ctx, admin, func(c *pgx.Conn) error { return exec(ctx, c, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)") }); err != nil {
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

// Folder returns a temporary folder for a PostgreSQL of the test's own. A test run by root
// starts PostgreSQL as another user, who could not enter the folder of t.TempDir.
func Folder(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	LetIn(t, dir)
	return dir
}

// LetIn lets other users enter a folder of the test and its parent.
func LetIn(t testing.TB, dir string) {
	t.Helper()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o711); err != nil {
			t.Fatal(err)
		}
	}
}

// Bin returns the folder of the PostgreSQL programs, for SIGNALBOX_PG_BIN of a program that
// runs outside the checkout and would not find them.
func Bin(t testing.TB) string {
	t.Helper()
	bin, err := pgd.Bin(t.Context(), pgd.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return bin
}

// server is a variable because the server belongs to the process, whose TestMain is not ours.
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

// templates remembers the templates that this process has seen.
var templates = templateSet{known: map[string]func(context.Context) error{}}

type templateSet struct {
	mu    sync.Mutex
	known map[string]func(context.Context) error // guarded by mu
}

// get returns the name of the template for these migrations, and creates it if necessary.
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

// once returns a function that runs f until it succeeds, one caller at a time.
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

// ensureTemplate creates the template under another name and renames it when it is complete,
// so that a killed test leaves no partial one.
func ensureTemplate(ctx context.Context, admin, name string, migrations []pg.Migrations) error {
	return do(ctx, admin, func(c *pgx.Conn) error {
		// Released with the session. The key is the template's, so that templates do not wait for each other.
		if err := exec(ctx, c, "SELECT pg_advisory_lock(hashtextextended($1, 0))", name); err != nil {
			return err
		}
		var exists bool
		if err := c.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", name).Scan(&exists); err != nil || exists {
			return err
		}
		draft := name + "_draft"
		if err := exec(ctx, c, "DROP DATABASE IF EXISTS "+draft+" WITH (FORCE)"); err != nil {
			return err
		}
		if err := clone(ctx, c, draft, "template0"); err != nil {
			return err
		}
		if err := pg.Migrate(ctx, withDatabase(admin, draft), slog.New(slog.DiscardHandler), migrations...); err != nil {
			return err
		}
		// A database that is being cloned must not have connections.
		if err := exec(ctx, c, "ALTER DATABASE "+draft+" WITH ALLOW_CONNECTIONS false"); err != nil {
			return err
		}
		return retry(ctx, func() error { return exec(ctx, c, "ALTER DATABASE "+draft+" RENAME TO "+name) })
	})
}

// clone creates a database. file_copy is faster than copying through the log if the server
// does not sync.
func clone(ctx context.Context, c *pgx.Conn, name, template string) error {
	return retry(ctx, func() error {
		return exec(ctx, c, "CREATE DATABASE "+name+" TEMPLATE "+template+" STRATEGY file_copy")
	})
}

// retry repeats f while a session that is ending, or an autovacuum worker, still uses the
// database.
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
		return admin // connecting will report the error
	}
	u.Path = "/" + name
	return u.String()
}
