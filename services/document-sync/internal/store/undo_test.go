package store_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/services/document-sync/internal/store"
)

// edited returns the change of an operation whose replica is at sequence since.
func edited(since int64) store.Change {
	return store.Change{
		Update: []byte("op"), State: fmt.Appendf(nil, "after %d", since), Markdown: "op", Since: since,
		Before: fmt.Appendf(nil, "before, %d", since), BeforeMarkdown: fmt.Sprint("# before, ", since),
	}
}

// operate runs an operation on the current document.
func (w *world) operate(op store.Operation) (store.Answer, error) {
	return w.store.Operate(w.t.Context(), op, func(d store.Document) (store.Change, error) { return edited(d.Sequence), nil })
}

func (w *world) mustOperate(op store.Operation) {
	w.t.Helper()
	if a, err := w.operate(op); err != nil || !a.Changed {
		w.t.Fatalf("%s = %v, %v", op.Name, a, err)
	}
}

// TestLiveBeforeAnOperation checks that typing before an operation is a separate version, saved
// or not.
func TestLiveBeforeAnOperation(t *testing.T) {
	t.Parallel()
	w := newWorld(t, store.Limits{})
	ref := w.create()
	ann, bob := person(), person()
	now := time.Now().Add(-time.Minute)
	op := w.operation(ref)
	op.Name = store.Edit
	check := func(want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, w.history(ref)); diff != "" {
			t.Errorf("history (-want +got):\n%s", diff)
		}
	}
	w.typed(ref, bob, now) // 2
	w.typed(ref, ann, now) // 3
	w.mustOperate(op)
	check("4:edit", "3:write", "1:create")
	if v, err := w.store.Version(t.Context(), ref, 3); err != nil || v.Author != ann || string(v.State) != "before, 3" || v.Markdown != "# before, 3" {
		t.Errorf("Version(3) = %+v, %v", v, err)
	}
	w.mustOperate(op) // 5: without typing before
	w.save(snapshot(ref, 5))
	check("5:edit", "4:edit", "3:write", "1:create")

	w.save(snapshot(ref, w.typed(ref, ann, now))) // 6
	w.mustOperate(op)                             // 7: the typing is already saved
	check("7:edit", "6:write", "5:edit", "4:edit", "3:write", "1:create")
	w.save(snapshot(ref, w.typed(ref, ann, now))) // 8
	w.typed(ref, ann, now.Add(time.Second))       // 9, of the same stretch
	if _, err := w.store.Rename(t.Context(), w.operation(ref), "other"); err != nil {
		t.Fatal(err) // 10 has no content
	}
	w.mustOperate(op) // 11
	check("11:edit", "10:rename", "9:write", "7:edit", "6:write", "5:edit", "4:edit", "3:write", "1:create")

	// What is committed during the operation is not part of it, and follows it.
	w.typed(ref, bob, now) // 12
	w.typed(ref, ann, now) // 13
	if _, err := w.store.Operate(t.Context(), op, func(store.Document) (store.Change, error) { return edited(12), nil }); err != nil {
		t.Fatal(err) // 14
	}
	if h := w.history(ref); cmp.Diff([]string{"14:edit", "12:write", "11:edit"}, h[:3]) != "" {
		t.Errorf("history = %v", h)
	}
	admin := w.admin()
	if n := w.number(admin, `SELECT count(*) FROM documents d WHERE d.id = $1
		AND d.versions = (SELECT count(*) FROM versions v WHERE v.document_id = d.id)
		AND d.version_bytes = (SELECT sum(bytes) FROM versions v WHERE v.document_id = d.id)`, ref.Document); n != 1 {
		t.Error("the document's row counts its versions wrongly")
	}
	if _, err := w.operate(store.Operation{Workspace: ref.Workspace, Document: ref.Document, Author: w.author, Name: store.Edit, Key: id.New[id.Operation]()}); err != nil {
		t.Fatal(err)
	}
	// Refused operations leave no version.
	w.typed(ref, ann, now)
	before := w.history(ref)
	_, err := w.store.Operate(t.Context(), op, func(store.Document) (store.Change, error) {
		return edited(16), fault.New(fault.Conflict, "no")
	})
	wantKind(t, "an operation that is refused", err, fault.Conflict)
	if diff := cmp.Diff(before, w.history(ref)); diff != "" {
		t.Errorf("history after refused operations: %s", diff)
	}
}

func TestUndo(t *testing.T) {
	t.Parallel()
	w := newWorld(t, store.Limits{})
	ref := w.create()
	edit := w.operation(ref)
	edit.Name = store.Edit
	w.mustOperate(edit) // 2
	w.typed(ref, person(), time.Now())
	w.mustOperate(edit) // 4

	done, err := w.store.UndoSource(t.Context(), ref, 4)
	if err != nil || string(done.Change) != "op" || string(done.Before) != "before, 3" || !done.Undoable || done.Operation != store.Edit {
		t.Errorf("UndoSource(4) = %+v, %v", done, err)
	}
	if done, err := w.store.UndoSource(t.Context(), ref, 1); err != nil || done.Change != nil || done.Before != nil || done.Undoable {
		t.Errorf("UndoSource(1) = %+v, %v", done, err)
	}
	_, err = w.store.UndoSource(t.Context(), ref, 99)
	wantKind(t, "Done(99)", err, fault.NotFound)

	undo := w.operation(ref)
	undo.Name, undo.Undoes, undo.Key = store.Undo, 4, id.New[id.Operation]()
	first, err := w.operate(undo) // 5
	if err != nil || !first.Changed || first.Document.GetSequence() != 5 {
		t.Fatalf("Undo = %v, %v", first, err)
	}
	again, err := w.operate(undo)
	if err != nil || !again.Repeated || cmp.Diff(first.Document, again.Document, protocmp.Transform()) != "" {
		t.Errorf("the same Undo = %v, %v, want the first answer", again, err)
	}
	undo.Key = id.Operation{}
	_, err = w.operate(undo)
	if f := fault.From(err); f.Kind != fault.Conflict || f.Code != store.CodeUndone {
		t.Errorf("another Undo of it = %v", err)
	}
	undo.Undoes = 99
	_, err = w.operate(undo)
	wantKind(t, "Undo of nothing", err, fault.NotFound)
	undo.Undoes = 5 // to redo 4
	w.mustOperate(undo)
	all, err := w.store.Versions(t.Context(), ref.Workspace, ref.Document, 0, 3)
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	for _, v := range all {
		got += fmt.Sprintf("%d undoes %d, undone by %d, %t; ", v.Version, v.Undoes, v.UndoneBy, v.Undoable)
	}
	if want := "6 undoes 5, undone by 0, true; 5 undoes 4, undone by 6, false; 4 undoes 0, undone by 5, false; "; got != want {
		t.Errorf("history = %s\nwant %s", got, want)
	}
}

// TestConcurrentUndos has many undo the same operation at once: one succeeds.
func TestConcurrentUndos(t *testing.T) {
	t.Parallel()
	w := newWorld(t, store.Limits{})
	ref := w.create()
	edit := w.operation(ref)
	edit.Name = store.Edit
	w.mustOperate(edit)
	var wg sync.WaitGroup
	results := make(chan error, 10)
	for range cap(results) {
		wg.Go(func() {
			undo := w.operation(ref)
			undo.Name, undo.Undoes, undo.Key = store.Undo, 2, id.New[id.Operation]()
			_, err := w.operate(undo)
			results <- err
		})
	}
	wg.Wait()
	close(results)
	worked := 0
	for err := range results {
		if err == nil {
			worked++
		} else if fault.From(err).Code != store.CodeUndone {
			t.Error(err)
		}
	}
	if worked != 1 {
		t.Errorf("%d of them succeeded, want 1", worked)
	}
	if diff := cmp.Diff([]string{"3:undo", "2:edit", "1:create"}, w.history(ref)); diff != "" {
		t.Errorf("history (-want +got):\n%s", diff)
	}
}

// TestOperationsAreThinned checks that a history of operations with live edits in between stays
// within its limits, and that the rest can be undone or says that it cannot.
func TestOperationsAreThinned(t *testing.T) {
	t.Parallel()
	w := newWorld(t, store.Limits{Versions: 9, VersionBytes: 1 << 20})
	ref := w.create()
	edit := w.operation(ref)
	edit.Name = store.Edit
	for range 30 {
		w.typed(ref, person(), time.Now())
		w.mustOperate(edit)
		if n := len(w.history(ref)); n > 9 {
			t.Fatalf("there are %d versions, want 9 at most", n)
		}
	}
	h := w.history(ref)
	if diff := cmp.Diff([]string{"61:edit", "60:write", "59:edit", "58:write"}, h[:4]); diff != "" || h[len(h)-1] != "1:create" {
		t.Errorf("history = %v", h)
	}
	w2 := newWorld(t, store.Limits{Versions: 1000, VersionBytes: 100})
	ref = w2.create()
	edit = w2.operation(ref)
	edit.Name = store.Edit
	for range 30 {
		w2.typed(ref, person(), time.Now())
		w2.mustOperate(edit)
	}
	if n := w2.number(w2.admin(), `SELECT count(*) FROM versions`); n > 8 {
		t.Errorf("there are %d versions, want few because they are large", n)
	}
}
