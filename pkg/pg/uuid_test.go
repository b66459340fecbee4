package pg_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/pgtest"
)

func TestUUIDs(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, notes()).Open(t, notes())
	ws, run, plain := id.New[id.Workspace](), id.New[id.Run](), uuid.New()
	var none *id.Run
	type row struct {
		ID, Again id.Run
		Text      string
		Plain     uuid.UUID
		Some      *id.Run
		None      *id.Run
		IDs       []id.Run
		Plains    []uuid.UUID
	}
	var got []row
	b := &pgx.Batch{}
	b.Queue(`SELECT @id::uuid AS id, @pointer::uuid AS again, @id::uuid::text AS text, @plain::uuid AS plain, @pointer::uuid AS some, @none::uuid AS none,
		@ids::uuid[] AS ids, @texts::uuid[] AS plains WHERE @plain = ANY (@plains::uuid[])`, pg.Args{
		"id": run, "pointer": &run, "plain": plain, "none": none, "ids": []id.Run{run}, "plains": []uuid.UUID{run.UUID, plain}, "texts": []string{plain.String()},
	}).Query(pg.Collect(&got))
	if err := db.ReadInWorkspace(t.Context(), ws, b); err != nil {
		t.Fatal(err)
	}
	want := []row{{ID: run, Again: run, Text: run.String(), Plain: plain, Some: &run, IDs: []id.Run{run}, Plains: []uuid.UUID{plain}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("UUIDs written and read back (-want +got):\n%s", diff)
	}
	kept := run
	b = &pgx.Batch{}
	b.Queue(`SELECT NULL::uuid`).QueryRow(func(r pgx.Row) error { return r.Scan(&kept) })
	if err := db.ReadInWorkspace(t.Context(), ws, b); err != nil || kept != run {
		t.Errorf("NULL read into an id = %v, %v, want it unchanged", kept, err)
	}
}
