package pg_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/pgtest"
)

func collect(into *[]string) func(pgx.Rows) error {
	return func(rows pgx.Rows) (err error) {
		*into, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	}
}

//nolint:paralleltest // the parts use each other's notes and connections
func TestBatch(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t, notes())
	db := d.Open(t, notes())
	ours, theirs := id.New[id.Workspace](), id.New[id.Workspace]()
	mustAdd(t, db, theirs, "theirs")
	insert := "insert into notes (id, workspace_id, text) values ($1, $2, $3)"
	read := "select text from notes order by text"

	t.Run("is one transaction with claims", func(t *testing.T) {
		var got []string
		b := &pgx.Batch{}
		b.Queue(insert, id.New[id.Message](), ours, "a")
		b.Queue(insert, id.New[id.Message](), ours, "b")
		b.Queue(read).Query(collect(&got))
		if err := db.WriteInWorkspace(t.Context(), ours, b); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"a", "b"}, got); diff != "" {
			t.Errorf("the batch reads (-want +got):\n%s", diff)
		}
	})
	t.Run("happens as a whole or not at all", func(t *testing.T) {
		b := &pgx.Batch{}
		b.Queue(insert, id.New[id.Message](), ours, "c")
		b.Queue(insert, id.New[id.Message](), ours, "a")
		if err := db.WriteInWorkspace(t.Context(), ours, b); !pg.IsUniqueViolation(err, "notes_text_key") {
			t.Errorf("WriteInWorkspace() = %v, want a violation of notes_text_key", err)
		}
		if diff := cmp.Diff([]string{"a", "b"}, seen(t, inWorkspace(db, ours))); diff != "" {
			t.Errorf("after a failed batch there are (-want +got):\n%s", diff)
		}
	})
	t.Run("leaves no claim behind", func(t *testing.T) {
		var got []string
		b := &pgx.Batch{}
		b.Queue(read).Query(collect(&got))
		for range 20 { // for each connection of the pool
			if err := db.ReadAsMember(t.Context(), id.New[id.Member](), b); err != nil {
				t.Fatal(err)
			}
			if len(got) != 0 {
				t.Fatalf("another workspace reads %v", got)
			}
		}
	})
	t.Run("refuses rows of other workspaces", func(t *testing.T) {
		b := &pgx.Batch{}
		b.Queue(insert, id.New[id.Message](), theirs, "d")
		if err := db.WriteInWorkspace(t.Context(), ours, b); err == nil {
			t.Error("WriteInWorkspace() of another workspace's row = nil, want an error")
		}
	})
	t.Run("a read survives dead connections", func(t *testing.T) {
		seen(t, inWorkspace(db, ours)) // the pool does not ping a connection that was just in use
		terminate(t, d.AdminURL)
		var got []string
		b := &pgx.Batch{}
		// A statement that is new: the next connection must not rely on what a dead one had prepared.
		b.Queue("select text from notes where text <> $1 order by text", "c").Query(collect(&got))
		if err := db.ReadInWorkspace(t.Context(), ours, b); err != nil || len(got) != 2 {
			t.Errorf("ReadInWorkspace() = %v with %v, want two notes", err, got)
		}
	})
	t.Run("needs a workspace", func(t *testing.T) {
		if err := db.WriteInWorkspace(t.Context(), id.Workspace{}, &pgx.Batch{}); err == nil {
			t.Error("WriteInWorkspace() without a workspace = nil, want an error")
		}
	})
}

//nolint:paralleltest // the parts use each other's notes and connections
func TestChange(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t, notes())
	db := d.Open(t, notes())
	ours, theirs := id.New[id.Workspace](), id.New[id.Workspace]()
	mustAdd(t, db, theirs, "theirs")
	mustAdd(t, db, ours, "a")
	insert := "insert into notes (id, workspace_id, text) values ($1, $2, $3)"
	look := func(into *[]string) *pgx.Batch {
		b := &pgx.Batch{}
		b.Queue("select text from notes order by text for update").Query(collect(into))
		return b
	}

	t.Run("sees what it read, and commits", func(t *testing.T) {
		var got []string
		err := db.ChangeInWorkspace(t.Context(), ours, look(&got), func(b *pgx.Batch) error {
			b.Queue(insert, id.New[id.Message](), ours, got[0]+"b")
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"a", "ab"}, seen(t, inWorkspace(db, ours))); diff != "" {
			t.Errorf("after the change there are (-want +got):\n%s", diff)
		}
	})
	errAny := errors.New("any")
	failing := map[string]func(b *pgx.Batch) error{
		"nothing queued":   func(*pgx.Batch) error { return nil },
		"fails":            func(b *pgx.Batch) error { b.Queue(insert, id.New[id.Message](), ours, "c"); return errAny },
		"refused by a key": func(b *pgx.Batch) error { queueTwice(b, insert, ours); return nil },
		"not our rows":     func(b *pgx.Batch) error { b.Queue(insert, id.New[id.Message](), theirs, "c"); return nil },
	}
	for name, change := range failing {
		t.Run(name, func(t *testing.T) {
			var got []string
			err := db.ChangeInWorkspace(t.Context(), ours, look(&got), change)
			if (err == nil) != (name == "nothing queued") {
				t.Errorf("ChangeInWorkspace() = %v", err)
			}
			if name == "fails" && !errors.Is(err, errAny) {
				t.Errorf("ChangeInWorkspace() = %v, want the change's error", err)
			}
			// On the same connections, and the rows are no longer locked.
			if diff := cmp.Diff([]string{"a", "ab"}, seen(t, inWorkspace(db, ours))); diff != "" {
				t.Errorf("after a failed change there are (-want +got):\n%s", diff)
			}
			if err := db.ChangeInWorkspace(t.Context(), ours, look(&got), func(b *pgx.Batch) error { b.Queue("select"); return nil }); err != nil {
				t.Errorf("the next change = %v", err)
			}
		})
	}
	t.Run("survives dead connections until it writes", func(t *testing.T) {
		var got []string
		terminate(t, d.AdminURL)
		if err := db.ChangeInWorkspace(t.Context(), ours, look(&got), func(b *pgx.Batch) error { b.Queue("select"); return nil }); err != nil || len(got) != 2 {
			t.Errorf("ChangeInWorkspace() = %v with %v, want two notes", err, got)
		}
		err := db.ChangeInWorkspace(t.Context(), ours, look(&got), func(b *pgx.Batch) error {
			terminate(t, d.AdminURL)
			b.Queue(insert, id.New[id.Message](), ours, "d")
			return nil
		})
		if fault.KindOf(err) != fault.Unavailable {
			t.Errorf("a change whose connection died = %v, want %v", err, fault.Unavailable)
		}
	})
	t.Run("needs a workspace", func(t *testing.T) {
		if err := db.ChangeInWorkspace(t.Context(), id.Workspace{}, &pgx.Batch{}, func(*pgx.Batch) error { return nil }); err == nil {
			t.Error("ChangeInWorkspace() without a workspace = nil, want an error")
		}
	})
}

func queueTwice(b *pgx.Batch, insert string, ws id.Workspace) {
	for range 2 {
		b.Queue(insert, id.New[id.Message](), ws, "c")
	}
}

// terminate ends all other connections to the database.
func terminate(t *testing.T, adminURL string) {
	t.Helper()
	admin, err := pgx.Connect(t.Context(), adminURL)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close(t.Context())
	if _, err := admin.Exec(t.Context(), `
		select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()`); err != nil {
		t.Fatal(err)
	}
}
