package store_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pgtest"
	"signalbox.dev/services/document-sync/internal/store"
)

func TestCatalogue(t *testing.T) {
	t.Parallel()
	problems, err := pgtest.CheckCatalogue(t.Context(), newWorld(t, store.Limits{}).db.AdminURL, nil, schema())
	if err != nil || len(problems) > 0 {
		t.Errorf("CheckCatalogue() = %q, %v, want none", problems, err)
	}
}

func TestCreate(t *testing.T) {
	t.Parallel()
	w := newWorld(t, store.Limits{StateBytes: 100, Versions: 10, VersionBytes: 1 << 20})
	ref := w.ref()
	op := w.operation(ref)
	op.Key, op.Request = id.New[id.Operation](), []string{"name"}
	a, err := w.store.Create(t.Context(), op, "name", first())
	if err != nil || !a.Changed || a.Repeated || a.Document.GetSequence() != 1 || a.Document.GetName() != "name" {
		t.Fatalf("Create = %v, %v", a, err)
	}
	other := op
	other.Document = id.New[id.Document]()
	b, err := w.store.Create(t.Context(), other, "name", first())
	if err != nil || b.Changed || !b.Repeated {
		t.Errorf("the same Create = %v, %v, want it repeated", b, err)
	}
	if diff := cmp.Diff(a.Document, b.Document, protocmp.Transform()); diff != "" {
		t.Errorf("the same Create (-want +got):\n%s", diff)
	}
	op.Request = []string{"other"}
	_, err = w.store.Create(t.Context(), op, "other", first())
	if f := fault.From(err); f.Kind != fault.Conflict || f.Code != store.CodeKeyReused {
		t.Errorf("another Create with the key = %v, want %s", err, store.CodeKeyReused)
	}
	st := w.load(ref)
	want := store.State{Document: st.Document, Snapshot: []byte("first"), At: 1}
	if diff := cmp.Diff(want, st, cmp.AllowUnexported(store.Document{})); diff != "" || st.Document.Sequence != 1 {
		t.Errorf("Load at %d (-want +got):\n%s", st.Document.Sequence, diff)
	}
	d, markdown, current, err := w.store.Markdown(t.Context(), w.ws, ref.Document)
	if err != nil || markdown != "# first" || !current || d.Name != "name" {
		t.Errorf("Markdown = %v, %q, %t, %v", d, markdown, current, err)
	}
	old, err := w.store.Version(t.Context(), ref, 1)
	if err != nil || old.Operation != store.Create || old.Markdown != "# first" || string(old.State) != "first" || old.Author != w.author {
		t.Errorf("Version(1) = %+v, %v", old, err)
	}
	big := first()
	big.State = make([]byte, 101)
	_, err = w.store.Create(t.Context(), w.operation(w.ref()), "big", big)
	wantKind(t, "Create of too much", err, fault.TooLarge)
}

func TestOperate(t *testing.T) {
	t.Parallel()
	w := newWorld(t, store.Limits{})
	ref := w.create()
	op := w.operation(ref)
	op.Name, op.Key = store.Edit, id.New[id.Operation]()
	op.Author.Run = id.New[id.Run]()
	calls := 0
	change := func(d store.Document) (store.Change, error) {
		calls++
		return store.Change{Update: []byte("update"), State: []byte("state"), Markdown: "# edited", Since: d.Sequence, Replacements: 3}, nil
	}
	a, err := w.store.Operate(t.Context(), op, change)
	if err != nil || !a.Changed || a.Document.GetSequence() != 2 || a.Replacements != 3 {
		t.Fatalf("Operate = %v, %v", a, err)
	}
	b, err := w.store.Operate(t.Context(), op, change)
	if err != nil || b.Changed || !b.Repeated || b.Document.GetSequence() != 2 || b.Replacements != 3 || calls != 1 {
		t.Errorf("Operate again = %v, %v after %d calls, want the same answer and no call", b, err, calls)
	}
	other := op
	other.Name = store.Replace
	_, err = w.store.Operate(t.Context(), other, change)
	if f := fault.From(err); f.Code != store.CodeKeyReused {
		t.Errorf("another operation with the key = %v", err)
	}
	st := w.load(ref)
	if st.At != 1 || len(st.Updates) != 1 || st.Updates[0].Sequence != 2 || st.Updates[0].Author != op.Author || st.Document.Author != op.Author {
		t.Errorf("Load = %+v", st)
	}
	if _, markdown, current, err := w.store.Markdown(t.Context(), w.ws, ref.Document); err != nil || markdown != "# edited" || !current {
		t.Errorf("Markdown = %q, %t, %v", markdown, current, err)
	}
	old, err := w.store.Version(t.Context(), ref, 2)
	if err != nil || old.Operation != store.Edit || old.Markdown != "# edited" || string(old.State) != "state" || old.Author != op.Author {
		t.Errorf("Version(2) = %+v, %v", old, err)
	}

	op.Key = id.Operation{}
	for name, tc := range map[string]struct {
		change store.Change
		err    error
	}{
		"nothing to change": {change: store.Change{Since: 2}},
		"its fault":         {err: fault.New(fault.Conflict, "no")},
	} {
		a, err := w.store.Operate(t.Context(), op, func(store.Document) (store.Change, error) { return tc.change, tc.err })
		if !errors.Is(err, tc.err) || a.Changed || err == nil && a.Document.GetSequence() != 2 {
			t.Errorf("%s: Operate = %v, %v", name, a, err)
		}
	}
	// A commit meanwhile is missing in the operation's Markdown.
	w.append(ref, "typed")
	a, err = w.store.Operate(t.Context(), op, func(store.Document) (store.Change, error) {
		return store.Change{Update: []byte("update"), State: []byte("state"), Markdown: "# behind", Since: 2}, nil
	})
	if err != nil || a.Document.GetSequence() != 4 {
		t.Fatalf("Operate = %v, %v", a, err)
	}
	if d, markdown, current, err := w.store.Markdown(t.Context(), w.ws, ref.Document); err != nil || current || d.Sequence != 4 {
		t.Errorf("Markdown = %q, %t at %d, %v, want it not to be current", markdown, current, d.Sequence, err)
	}
	_, err = w.store.Operate(t.Context(), w.operation(w.ref()), change)
	wantKind(t, "Operate on nothing", err, fault.NotFound)
}

func TestRename(t *testing.T) {
	t.Parallel()
	w := newWorld(t, store.Limits{})
	ref := w.create()
	a, err := w.store.Rename(t.Context(), w.operation(ref), "other")
	if err != nil || !a.Changed || a.Document.GetName() != "other" || a.Document.GetSequence() != 2 {
		t.Fatalf("Rename = %v, %v", a, err)
	}
	// The state is unchanged: the content is as current as before, and in the version.
	if _, markdown, current, err := w.store.Markdown(t.Context(), w.ws, ref.Document); err != nil || !current || markdown != "# first" {
		t.Errorf("Markdown = %q, %t, %v", markdown, current, err)
	}
	if st := w.load(ref); st.At != 1 || cmp.Diff([]string{"2:\x00\x00"}, data(st.Updates)) != "" {
		t.Errorf("Load = %+v", st)
	}
	old, err := w.store.Version(t.Context(), ref, 2)
	if err != nil || old.Operation != store.Rename || old.Name != "other" || old.Markdown != "# first" || string(old.State) != "first" {
		t.Errorf("Version(2) = %+v, %v", old, err)
	}
	if a, err := w.store.Rename(t.Context(), w.operation(ref), "other"); err != nil || a.Changed || a.Document.GetSequence() != 2 {
		t.Errorf("Rename to the same = %v, %v", a, err)
	}
	w.append(ref, "typed")
	if _, err := w.store.Rename(t.Context(), w.operation(ref), "third"); err != nil {
		t.Fatal(err)
	}
	if _, _, current, err := w.store.Markdown(t.Context(), w.ws, ref.Document); err != nil || current {
		t.Errorf("Markdown became current: %v", err)
	}
}

func TestDelete(t *testing.T) {
	t.Parallel()
	w := newWorld(t, store.Limits{})
	ref, stays := w.create(), w.create()
	w.append(ref, "typed")
	w.append(stays, "typed")
	op := w.operation(ref)
	op.Key = id.New[id.Operation]()
	a, err := w.store.Delete(t.Context(), op)
	if err != nil || a.Document.GetSequence() != 3 {
		t.Fatalf("Delete = %v, %v, want the sequence 3", a, err)
	}
	if b, err := w.store.Delete(t.Context(), op); err != nil || !b.Repeated {
		t.Errorf("Delete again = %v, %v, want it repeated", b, err)
	}
	ctx := t.Context()
	for name, call := range map[string]func() error{
		"Load":      func() error { _, err := w.store.Load(ctx, ref); return err },
		"Since":     func() error { _, err := w.store.Since(ctx, ref, 1); return err },
		"Append":    func() error { _, err := w.store.Append(ctx, ref, w.author, []byte("x")); return err },
		"Save":      func() error { return w.store.Save(ctx, snapshot(ref, 2)) },
		"Rename":    func() error { _, err := w.store.Rename(ctx, w.operation(ref), "x"); return err },
		"Delete":    func() error { _, err := w.store.Delete(ctx, w.operation(ref)); return err },
		"Get":       func() error { _, err := w.store.Get(ctx, w.ws, ref.Document); return err },
		"Markdown":  func() error { _, _, _, err := w.store.Markdown(ctx, w.ws, ref.Document); return err },
		"Versions":  func() error { _, err := w.store.Versions(ctx, w.ws, ref.Document, 0, 10); return err },
		"Version":   func() error { _, err := w.store.Version(ctx, ref, 1); return err },
		"ApplySeed": func() error { _, _, err := w.store.ApplySeed(ctx, ref, store.Seed{}, nil); return err },
	} {
		wantKind(t, name, call(), fault.NotFound)
	}
	heads, err := w.store.Heads(ctx, []store.Ref{ref, stays})
	if diff := cmp.Diff(map[store.Ref]int64{stays: 2}, heads); err != nil || diff != "" {
		t.Errorf("Heads: %v (-want +got):\n%s", err, diff)
	}
	changed, err := w.store.Changed(ctx, w.ws, time.Hour, nil, 10)
	if err != nil || len(changed) != 2 || changed[1].ID != ref.Document || !changed[1].Deleted || changed[1].Sequence != 3 {
		t.Errorf("Changed = %v, %v, want the tombstone last", changed, err)
	}
	for _, table := range []string{"heads", "snapshots", "updates", "versions"} {
		if n := w.number(w.admin(), `SELECT count(*) FROM `+table+` WHERE document_id = $1`, ref.Document); n != 0 {
			t.Errorf("%s has %d rows of the deleted document", table, n)
		}
	}
}

func TestList(t *testing.T) {
	t.Parallel()
	w := newWorld(t, store.Limits{})
	a, b := w.create(), w.create()
	ann := person()
	w.save(snapshot(a, w.typed(a, ann, time.Now())))
	list, err := w.store.List(t.Context(), w.ws, []string{"nam"}, nil, 10)
	if err != nil || len(list) != 2 || list[0].ID != a.Document || list[0].Sequence != 2 || list[0].Author != ann || list[1].ID != b.Document {
		t.Errorf("List = %v, %v, want the last edited document first, with its head's sequence", list, err)
	}
	list, err = w.store.List(t.Context(), w.ws, nil, &store.Cursor{UpdatedAt: list[0].UpdatedAt, ID: list[0].ID}, 10)
	if err != nil || len(list) != 1 || list[0].ID != b.Document {
		t.Errorf("List of the second page = %v, %v", list, err)
	}
	if d, err := w.store.Get(t.Context(), w.ws, a.Document); err != nil || d.Sequence != 2 || d.UpdatedAt.Before(d.CreatedAt) {
		t.Errorf("Get = %v, %v", d, err)
	}
}

// TestOtherWorkspaces checks that another workspace can neither read nor change anything.
func TestOtherWorkspaces(t *testing.T) {
	t.Parallel()
	w := newWorld(t, store.Limits{})
	ref := w.create()
	w.append(ref, "typed")
	theirs := store.Ref{Workspace: id.New[id.Workspace](), Document: ref.Document}
	op := w.operation(theirs)
	ctx := t.Context()
	for name, call := range map[string]func() error{
		"Load":     func() error { _, err := w.store.Load(ctx, theirs); return err },
		"Since":    func() error { _, err := w.store.Since(ctx, theirs, 1); return err },
		"Append":   func() error { _, err := w.store.Append(ctx, theirs, w.author, []byte("x")); return err },
		"Save":     func() error { return w.store.Save(ctx, snapshot(theirs, 2)) },
		"Delete":   func() error { _, err := w.store.Delete(ctx, op); return err },
		"Get":      func() error { _, err := w.store.Get(ctx, theirs.Workspace, ref.Document); return err },
		"Versions": func() error { _, err := w.store.Versions(ctx, theirs.Workspace, ref.Document, 0, 10); return err },
		"Version":  func() error { _, err := w.store.Version(ctx, theirs, 1); return err },
	} {
		wantKind(t, name, call(), fault.NotFound)
	}
	if heads, err := w.store.Heads(ctx, []store.Ref{theirs}); err != nil || len(heads) != 0 {
		t.Errorf("Heads = %v, %v, want none", heads, err)
	}
	if got := data(w.load(ref).Updates); cmp.Diff([]string{"2:typed"}, got) != "" {
		t.Errorf("the document has %v", got)
	}
	// Nor can a statement without a condition on the workspace.
	for _, table := range []string{"heads", "updates", "snapshots"} {
		sees := func(ws id.Workspace) (n int64) {
			b := batch(`SELECT count(*) FROM `+table, &n)
			if err := w.pool.ReadInWorkspace(ctx, ws, b); err != nil {
				t.Fatal(err)
			}
			return n
		}
		if n := sees(w.ws); n != 1 {
			t.Errorf("the workspace sees %d rows of %s, want 1", n, table)
		}
		if n := sees(theirs.Workspace); n != 0 {
			t.Errorf("another workspace sees %d rows of %s", n, table)
		}
		steal := batch(`WITH d AS (DELETE FROM `+table+` RETURNING 1) SELECT count(*) FROM d`, new(int64))
		if err := w.pool.WriteInWorkspace(ctx, theirs.Workspace, steal); err != nil {
			t.Fatal(err)
		}
		if n := sees(w.ws); n != 1 {
			t.Errorf("another workspace deleted a row of %s", table)
		}
	}
}

func TestHousekeep(t *testing.T) {
	t.Parallel()
	w := newWorld(t, store.Limits{})
	ref := w.ref()
	key := id.New[id.Operation]()
	op := w.operation(ref)
	op.Key = key
	if _, err := w.store.Create(t.Context(), op, "n", first()); err != nil {
		t.Fatal(err)
	}
	op.Key = id.New[id.Operation]()
	if _, err := w.store.Delete(t.Context(), op); err != nil {
		t.Fatal(err)
	}
	if n, err := w.store.Housekeep(t.Context(), time.Hour); err != nil || n != 0 {
		t.Errorf("Housekeep of recent rows = %d, %v, want 0", n, err)
	}
	// Two operations and one tombstone.
	if n, err := w.store.Housekeep(t.Context(), 0); err != nil || n != 3 {
		t.Errorf("Housekeep of all = %d, %v, want 3", n, err)
	}
	if changed, err := w.store.Changed(t.Context(), w.ws, time.Hour, nil, 10); err != nil || len(changed) != 0 {
		t.Errorf("Changed = %v, %v, want none", changed, err)
	}
	// The key is forgotten: the same request is new.
	op.Key = key
	_, err := w.store.Rename(t.Context(), op, "m")
	wantKind(t, "Rename of a document that is gone", err, fault.NotFound)
}
