package pg_test

import (
	"context"
	"io/fs"
	"testing"
	"testing/fstest"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
)

const notesUp = `-- +goose Up
CREATE TABLE notes (
	id uuid PRIMARY KEY,
	workspace_id uuid NOT NULL,
	member_id uuid,
	text text NOT NULL CONSTRAINT notes_text_key UNIQUE
);
CREATE TABLE numbers (n bigint GENERATED ALWAYS AS IDENTITY, at timestamptz NOT NULL DEFAULT now());
ALTER TABLE notes ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON notes USING (workspace_id = claim_workspace() OR member_id = claim_member() OR claim_system());
-- +goose Down
DROP TABLE notes, numbers;
`

// notes is a service with a table of tenants and a shared one.
func notes() pg.Migrations {
	return pg.Migrations{Schema: "notes", Role: "pgtest_notes", FS: files("00001_notes.sql", notesUp)}
}

func files(nameText ...string) fs.FS {
	m := fstest.MapFS{}
	for i := 0; i < len(nameText); i += 2 {
		m[nameText[i]] = &fstest.MapFile{Data: []byte(nameText[i+1])}
	}
	return m
}

func add(ctx context.Context, tx pgx.Tx, ws id.Workspace, text string) error {
	_, err := tx.Exec(ctx, "insert into notes (id, workspace_id, text) values ($1, $2, $3)", id.New[id.Message](), ws, text)
	return err
}

// mustAdd writes a note in a transaction of its own.
func mustAdd(t *testing.T, db *pg.DB, ws id.Workspace, text string) {
	t.Helper()
	if err := db.InWorkspace(t.Context(), ws, func(ctx context.Context, tx pgx.Tx) error { return add(ctx, tx, ws, text) }); err != nil {
		t.Fatalf("add %q: %v", text, err)
	}
}

// texts returns what a transaction sees.
func texts(ctx context.Context, tx pgx.Tx) ([]string, error) {
	rows, err := tx.Query(ctx, "select text from notes order by text")
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

type begin func(context.Context, func(context.Context, pgx.Tx) error) error

func inWorkspace(db *pg.DB, ws id.Workspace) begin {
	return func(ctx context.Context, fn func(context.Context, pgx.Tx) error) error {
		return db.InWorkspace(ctx, ws, fn)
	}
}

func asMember(db *pg.DB, m id.Member) begin {
	return func(ctx context.Context, fn func(context.Context, pgx.Tx) error) error {
		return db.AsMember(ctx, m, fn)
	}
}

// seen returns the texts that such a transaction sees.
func seen(t *testing.T, b begin) []string {
	t.Helper()
	var out []string
	err := b(t.Context(), func(ctx context.Context, tx pgx.Tx) (err error) {
		out, err = texts(ctx, tx)
		return err
	})
	if err != nil {
		t.Fatalf("read notes: %v", err)
	}
	return out
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.WithoutCancel(t.Context())) })
	return c
}

func exec(t *testing.T, c *pgx.Conn, sql string) {
	t.Helper()
	// Cleanups use it too, when the test's context has ended.
	if _, err := c.Exec(context.WithoutCancel(t.Context()), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}
