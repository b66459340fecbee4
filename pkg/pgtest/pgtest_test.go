package pgtest_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/pgd"
	"signalbox.dev/pkg/pgtest"
)

// child marks a test binary as one of several that create the same template.
const child = "PGTEST_CHILD"

// notes returns migrations of this test alone, so that the template is new.
func notes(mark string) pg.Migrations {
	return pg.Migrations{Schema: "notes", Role: "pgtest_clones", FS: fstest.MapFS{"00001_notes.sql": {Data: []byte(`-- +goose Up
CREATE TABLE notes (id uuid PRIMARY KEY, workspace_id uuid NOT NULL);
ALTER TABLE notes ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON notes USING (workspace_id = claim_workspace());
-- ` + mark + `
-- +goose Down
DROP TABLE notes;
`)}}}
}

func TestClonesAreSeparate(t *testing.T) {
	t.Parallel()
	m := notes(uuid.NewString())
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			db, ws := pgtest.New(t, m).Open(t, m), id.New[id.Workspace]()
			err := db.InWorkspace(t.Context(), ws, func(ctx context.Context, tx pgx.Tx) error {
				// The same id everywhere: inserting it fails if two tests share a database.
				if _, err := tx.Exec(ctx, "insert into notes (id, workspace_id) values ($1, $2)", uuid.Nil, ws); err != nil {
					return err
				}
				var n int
				if err := tx.QueryRow(ctx, "select count(*) from notes").Scan(&n); err != nil || n != 1 {
					return errors.Join(err, fmt.Errorf("%d rows, want 1", n))
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestDropped(t *testing.T) {
	t.Parallel()
	var gone *pgtest.Database
	t.Run("use", func(t *testing.T) { // its end drops the database
		gone = pgtest.New(t, notes(""))
		if err := gone.Open(t, notes("")).Ping(t.Context()); err != nil {
			t.Error(err)
		}
	})
	if c, err := pgx.Connect(t.Context(), gone.AdminURL); err == nil {
		_ = c.Close(t.Context())
		t.Error("the test has ended and its database still exists")
	}
}

// Several processes create the same template on one server.
func TestProcessesShareAServer(t *testing.T) {
	t.Parallel()
	if mark := os.Getenv(child); mark != "" {
		db := pgtest.New(t, notes(mark)).Open(t, notes(mark))
		if err := db.Ping(t.Context()); err != nil {
			t.Error(err)
		}
		return
	}
	s, err := pgd.Start(t.Context(), pgd.Config{Fast: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Stop(context.WithoutCancel(t.Context())) })
	mark := uuid.NewString()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestProcessesShareAServer$")
			cmd.Env = append(os.Environ(), child+"="+mark, pgtest.Variable+"="+s.URL("postgres"))
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
	wg.Wait()
	c, err := pgx.Connect(t.Context(), s.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close(t.Context()) }()
	rows, _ := c.Query(t.Context(), "select datname::text from pg_database where datname not in ('postgres', 'template0', 'template1')")
	left, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(left) != 1 || strings.HasSuffix(left[0], "_draft") {
		t.Errorf("databases afterwards: %q, %v, want one template", left, err)
	}
}

func TestWithpg(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "withpg")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./withpg").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	run := func(env string, script string) (string, int) {
		cmd := exec.CommandContext(t.Context(), program, "--", "/bin/sh", "-c", script)
		cmd.Env = append(os.Environ(), pgtest.Variable+"="+env)
		out, err := cmd.CombinedOutput()
		if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(out)), cmd.ProcessState.ExitCode()
	}
	if out, code := run("postgres://there", "echo $"+pgtest.Variable+"; exit 7"); out != "postgres://there" || code != 7 {
		t.Errorf("with a server: %q, exit code %d, want its URL and 7", out, code)
	}
	out, code := run("", "echo $"+pgtest.Variable+"; kill -TERM $$")
	cfg, err := pgx.ParseConfig(out)
	if err != nil || code != 128+int(syscall.SIGTERM) {
		t.Fatalf("without a server: %q, exit code %d, want a URL and 143", out, code)
	}
	if _, err := os.Stat(filepath.Dir(cfg.Host)); err == nil {
		t.Errorf("%s still exists", cfg.Host)
	}

	// A signal reaches the command, and withpg exits with the command's code.
	cmd := exec.CommandContext(t.Context(), program, "/bin/sh", "-c", "trap 'exit 9' TERM; echo ready; while :; do sleep 0.1; done")
	cmd.Env = append(os.Environ(), pgtest.Variable+"=postgres://there")
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := stdout.Read(make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 9 {
		t.Errorf("after a signal: exit code %d, want 9", code)
	}
}

// A test process's server ends with it, however the process ends.
func TestServerEndsWithTheProcess(t *testing.T) {
	t.Parallel()
	if os.Getenv(child) != "" {
		_, _ = fmt.Fprintln(os.Stdout, pgtest.New(t).AdminURL)
		os.Exit(3) // no cleanup runs
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestServerEndsWithTheProcess$")
	cmd.Env = append(os.Environ(), child+"=x", pgtest.Variable+"=")
	out, _ := cmd.Output()
	cfg, err := pgx.ParseConfig(strings.TrimSpace(string(out)))
	if err != nil {
		t.Fatalf("the child says %q", out)
	}
	limit := time.After(30 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := os.Stat(filepath.Dir(cfg.Host)); errors.Is(err, os.ErrNotExist) {
			return
		}
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("%s still exists", cfg.Host)
		}
	}
}

func BenchmarkNew(b *testing.B) {
	m := notes("")
	pgtest.New(b, m) // the server and the template
	b.ReportAllocs()
	for b.Loop() {
		pgtest.New(b, m)
	}
}
