package store_test

import (
	"fmt"
	"testing"

	"signalbox.dev/services/document-sync/internal/store"
)

// TestQuarantine checks that quarantined updates are stored once: all committed ones and the
// newest others of each document, until it is deleted.
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
		t.Errorf("%d committed updates are in quarantine, want 2", n)
	}
	for i := range 10 {
		keep(ref, fmt.Sprint("committed ", i), true)
	}
	if n := w.number(c, `SELECT count(*) FROM quarantine WHERE committed AND cardinality(updates) = 2`); n != 8 {
		t.Errorf("%d quarantined updates have what reproduces the panic, want 8", n)
	}
	if n := w.number(c, `SELECT count(*) FROM quarantine WHERE committed AND updates[cardinality(updates)] IN ('one of the document', 'committed 0', 'committed 9')`); n != 3 {
		t.Errorf("%d of 3 committed updates are there", n)
	}
	if n := w.number(c, `SELECT count(*) FROM quarantine WHERE document_id = $1 AND NOT committed AND cardinality(updates) = 2`, ref.Document); n != 8 {
		t.Errorf("%d are in quarantine, want 8", n)
	}
	if n := w.number(c, `SELECT count(*) FROM quarantine WHERE updates[2] = 'update 9' AND panic = 'nil pointer' AND state = ''`); n != 1 {
		t.Errorf("the newest occurs %d times", n)
	}
	w.delete(ref)
	keep(ref, "late", false)
	if n := w.number(c, `SELECT count(*) FROM quarantine`); n != 0 {
		t.Errorf("%d of a deleted document are in quarantine", n)
	}
}
