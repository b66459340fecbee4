package store_test

import (
	"context"
	"testing"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/pgtest"
	"signalbox.dev/services/document-sync/internal/store"
	"signalbox.dev/services/document-sync/migrations"
)

func schema() pg.Migrations {
	return pg.Migrations{Schema: "documents", Role: "signalbox_documents", FS: migrations.FS}
}

func TestHousekeep(t *testing.T) {
	t.Parallel()
	s := store.New(pgtest.New(t, schema()).Open(t, schema()), store.Limits{Versions: 10, VersionBytes: 1 << 20})
	op := store.Operation{Workspace: id.New[id.Workspace](), Document: id.New[id.Document](), Author: store.Author{Member: id.New[id.Member]()}}
	do := func(name string, key id.Operation, n store.Next) error {
		o := op
		o.Name, o.Key = name, key
		_, err := s.Change(t.Context(), o, func(context.Context, store.Document, store.History) (store.Next, error) { return n, nil })
		return err
	}
	key := id.New[id.Operation]()
	if err := do(store.Create, key, store.Next{Name: "n"}); err != nil {
		t.Fatal(err)
	}
	if err := do(store.Delete, id.New[id.Operation](), store.Next{Deleted: true}); err != nil {
		t.Fatal(err)
	}
	if n, err := s.Housekeep(t.Context(), time.Hour); err != nil || n != 0 {
		t.Errorf("Housekeep of what is young = %d, %v, want 0", n, err)
	}
	if changed, err := s.Changed(t.Context(), op.Workspace, time.Hour, nil, 10); err != nil || len(changed) != 1 || !changed[0].Deleted {
		t.Errorf("Changed = %v, %v, want the tombstone", changed, err)
	}
	// Two operations and one tombstone.
	if n, err := s.Housekeep(t.Context(), 0); err != nil || n != 3 {
		t.Errorf("Housekeep of all = %d, %v, want 3", n, err)
	}
	if changed, err := s.Changed(t.Context(), op.Workspace, time.Hour, nil, 10); err != nil || len(changed) != 0 {
		t.Errorf("Changed = %v, %v, want none", changed, err)
	}
	// The key is forgotten: the same request is a new one.
	if err := do(store.Rename, key, store.Next{Name: "m"}); fault.KindOf(err) != fault.NotFound {
		t.Errorf("Rename of a document that is gone = %v, want NotFound", err)
	}
}
