package store_test

import (
	"fmt"
	"testing"

	"signalbox.dev/services/document-sync/internal/store"
)

// What is in quarantine is there once, the newest of each document and all that was
// committed, and goes with it.
func TestQuarantine(t *testing.T) {
	t.Parallel()
	w := newWorld(t, store.Limits{})
	ref := w.create()
	keep := func(ref store.Ref, update string, committed bool) {
		t.Helper()
		err := w.store.Quarantine(t.Context(), store.Quarantined{
			Ref: ref, Sequence: 1, Updates: [][]byte{[]byte("before"), []byte(update)}, Author: person(), Panic: "nil pointer",
			Committed: committed,
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	c := w.admin()
	keep(ref, "one of the document", true)
	keep(ref, "refused, and committed elsewhere", false)
	keep(ref, "refused, and committed elsewhere", true)
	keep(ref, "refused, and committed elsewhere", false)
	for i := range 10 {
		keep(ref, fmt.Sprint("update ", i), false)
		keep(ref, fmt.Sprint("update ", i), false)
	}
	if n := w.number(c, `SELECT count(*) FROM quarantine WHERE committed`); n != 2 {
		t.Errorf("%d that were committed are in quarantine, want 2", n)
	}
	for i := range 10 {
		keep(ref, fmt.Sprint("committed ", i), true)
	}
	if n := w.number(c, `SELECT count(*) FROM quarantine WHERE committed AND cardinality(updates) = 2`); n != 8 {
		t.Errorf("%d that were committed have what it takes to see the panic again, want 8", n)
	}
	if n := w.number(c, `SELECT count(*) FROM quarantine WHERE committed AND updates[cardinality(updates)] IN ('one of the document', 'committed 0', 'committed 9')`); n != 3 {
		t.Errorf("%d committed updates of 3 are there", n)
	}
	if n := w.number(c, `SELECT count(*) FROM quarantine WHERE document_id = $1 AND NOT committed AND cardinality(updates) = 2`, ref.Document); n != 8 {
		t.Errorf("%d are in quarantine, want 8", n)
	}
	if n := w.number(c, `SELECT count(*) FROM quarantine WHERE updates[2] = 'update 9' AND panic = 'nil pointer' AND state = ''`); n != 1 {
		t.Errorf("the newest is there %d times", n)
	}
	w.delete(ref)
	keep(ref, "late", false)
	if n := w.number(c, `SELECT count(*) FROM quarantine`); n != 0 {
		t.Errorf("%d are in quarantine of a deleted document", n)
	}
}
