package store_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/services/document-sync/internal/store"
)

func TestSave(t *testing.T) {
	t.Parallel()
	w := newWorld(t, store.Limits{StateBytes: 100, Versions: 10, VersionBytes: 1 << 20})
	ref := w.create()
	created := w.load(ref).Document
	ann := person()
	for range 4 { // 2 to 5
		w.typed(ref, ann, time.Now())
	}
	if d := w.load(ref).Document; d.UpdatedAt != created.UpdatedAt {
		t.Error("an update without a snapshot changed updated_at")
	}
	w.save(snapshot(ref, 4))
	st := w.load(ref)
	if string(st.Snapshot) != "state 4" || st.At != 4 || cmp.Diff([]string{"5:u"}, data(st.Updates)) != "" {
		t.Errorf("Load = %+v", st)
	}
	if d := st.Document; !d.UpdatedAt.After(created.UpdatedAt) || d.Author != ann || d.Sequence != 5 {
		t.Errorf("the document = %+v", d)
	}
	if _, _, current, err := w.store.Markdown(t.Context(), w.ws, ref.Document); err != nil || current {
		t.Errorf("Markdown of sequence 4 counts as current at 5: %v", err)
	}
	// A reader gets the snapshot if updates that it lacks are pruned, otherwise not.
	for after, want := range map[int64]string{2: "state 4", 3: "state 4", 4: "", 5: ""} {
		st, err := w.store.Since(t.Context(), ref, after)
		if err != nil || string(st.Snapshot) != want || st.At != max(after, 4) || len(st.Updates) != int(5-st.At) {
			t.Errorf("Since(%d) = %+v, %v, want the snapshot %q", after, st, err, want)
		}
	}
	// The same snapshot and an older one have no effect.
	for _, sequence := range []int64{4, 3} {
		old := snapshot(ref, sequence)
		old.State = []byte("other")
		w.save(old)
	}
	if again := w.load(ref); cmp.Diff(st, again) != "" {
		t.Errorf("an older snapshot changed the document: %s", cmp.Diff(st, again))
	}
	if err := w.store.Save(t.Context(), snapshot(ref, 6)); err == nil {
		t.Error("Save of an uncommitted sequence = nil")
	}
	w.save(snapshot(ref, 5))
	if d, markdown, current, err := w.store.Markdown(t.Context(), w.ws, ref.Document); err != nil || markdown != "# markdown 5" || !current || d.Author != ann {
		t.Errorf("Markdown = %q, %t, %v", markdown, current, err)
	}
	// A snapshot that could not be rendered is saved too.
	w.append(ref, "u")
	odd := snapshot(ref, 6)
	odd.Unrendered, odd.Markdown, odd.Text = true, "", ""
	w.save(odd)
	if st := w.load(ref); st.At != 6 || string(st.Snapshot) != "state 6" {
		t.Errorf("Load = %+v", st)
	}
	if old, err := w.store.Version(t.Context(), ref, 6); err != nil || old.Markdown != "# markdown 5" || string(old.State) != "state 6" {
		t.Errorf("Version(6) = %+v, %v", old, err)
	}
	if n := w.number(w.admin(), `SELECT count(*) FROM snapshots WHERE text = 'text 5'`); n != 1 {
		t.Error("the search text was not kept")
	}
	big := snapshot(ref, 6)
	big.State = make([]byte, 101)
	wantKind(t, "Save of too much", w.store.Save(t.Context(), big), fault.TooLarge)
}

// typed appends a live edit.
func (w *world) typed(ref store.Ref, author store.Author, at time.Time) int64 {
	w.t.Helper()
	n, err := w.store.Append(w.t.Context(), ref, author, []byte("u"))
	if err != nil {
		w.t.Fatal(err)
	}
	w.exec(w.admin(), `UPDATE updates SET created_at = $3 WHERE document_id = $1 AND sequence = $2`, ref.Document, n, at)
	return n
}

// history returns the kept versions, newest first.
func (w *world) history(ref store.Ref) (out []string) {
	w.t.Helper()
	all, err := w.store.Versions(w.t.Context(), ref.Workspace, ref.Document, 0, 1000)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, v := range all {
		out = append(out, fmt.Sprintf("%d:%s", v.Version, v.Operation))
	}
	return out
}

// TestLiveVersions checks that a stretch of live editing by one author is one version.
func TestLiveVersions(t *testing.T) {
	t.Parallel()
	w := newWorld(t, store.Limits{})
	ref := w.create()
	ann, bob := person(), person()
	begin := time.Now().Add(-time.Hour)
	live := func(author store.Author, at time.Duration) {
		t.Helper()
		w.save(snapshot(ref, w.typed(ref, author, begin.Add(at))))
	}
	check := func(want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, w.history(ref)); diff != "" {
			t.Errorf("history (-want +got):\n%s", diff)
		}
	}
	live(ann, 0) // 2
	check("2:write", "1:create")
	live(ann, time.Minute) // 3
	live(bob, 2*time.Minute)
	live(ann, 3*time.Minute)
	live(bob, 4*time.Minute)
	check("6:write", "5:write", "1:create")
	live(ann, 5*time.Minute) // 7: the stretch began five minutes ago
	check("7:write", "6:write", "5:write", "1:create")
	// An operation ends a stretch: the version before it stays.
	op := w.operation(ref)
	op.Name = store.Edit
	if _, err := w.store.Operate(t.Context(), op, func(d store.Document) (store.Change, error) {
		return store.Change{Update: []byte("u"), State: []byte("op"), Markdown: "op", Since: d.Sequence}, nil
	}); err != nil {
		t.Fatal(err)
	}
	live(ann, 6*time.Minute)
	check("9:write", "8:edit", "7:write", "6:write", "5:write", "1:create")
	// A snapshot without live editing is no version, and an existing version stays.
	w.save(snapshot(ref, w.append(ref, "\x00\x00")))
	check("9:write", "8:edit", "7:write", "6:write", "5:write", "1:create")
	if old, err := w.store.Version(t.Context(), ref, 5); err != nil || old.Author != ann || string(old.State) != "state 5" || old.Markdown != "# markdown 5" ||
		!old.CreatedAt.Equal(begin.Add(3*time.Minute).Truncate(time.Microsecond)) {
		t.Errorf("Version(5) = %+v, %v", old, err)
	}
	admin := w.admin()
	var n, bytes, sum int64
	if err := admin.QueryRow(t.Context(), `SELECT d.versions, d.version_bytes, (SELECT sum(bytes) FROM versions v WHERE v.document_id = d.id) FROM documents d WHERE id = $1`,
		ref.Document).Scan(&n, &bytes, &sum); err != nil || n != 6 || bytes != sum {
		t.Errorf("the document's row counts %d versions with %d bytes, there are 6 with %d, %v", n, bytes, sum, err)
	}
}

// TestTyping checks that there is no version while people type, and that the one afterwards
// belongs to the last author, whatever was pruned meanwhile.
func TestTyping(t *testing.T) {
	t.Parallel()
	w := newWorld(t, store.Limits{})
	ref := w.create()
	ann, bob := person(), person()
	begin := time.Now().Add(-time.Hour)
	typing := func(sequence int64) store.Snapshot {
		s := snapshot(ref, sequence)
		s.Typing = true
		return s
	}
	check := func(updates int64, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, w.history(ref)); diff != "" {
			t.Errorf("history (-want +got):\n%s", diff)
		}
		if n := w.number(w.admin(), `SELECT count(*) FROM updates WHERE document_id = $1`, ref.Document); n != updates {
			t.Errorf("%d updates are kept, want %d", n, updates)
		}
	}
	w.typed(ref, ann, begin)
	w.save(typing(w.typed(ref, bob, begin.Add(time.Second)))) // 3
	w.save(typing(w.append(ref, "\x00\x00")))                 // 4 changes nothing
	check(2, "1:create")
	if st := w.load(ref); st.At != 4 || len(st.Updates) != 0 {
		t.Errorf("Load = %+v", st)
	}
	w.save(snapshot(ref, w.append(ref, "\x00\x00"))) // 5
	check(0, "3:write", "1:create")
	if v, err := w.store.Version(t.Context(), ref, 3); err != nil || v.Author != bob || string(v.State) != "state 5" {
		t.Errorf("Version(3) = %+v, %v", v, err)
	}
	w.save(typing(w.typed(ref, ann, begin.Add(2*time.Second)))) // 6
	op := w.operation(ref)
	op.Name = store.Edit
	w.mustOperate(op) // 7
	check(2, "7:edit", "6:write", "3:write", "1:create")
}

func TestHistoryIsThinned(t *testing.T) {
	t.Parallel()
	w := newWorld(t, store.Limits{Versions: 8, VersionBytes: 1 << 20})
	ref := w.create()
	for i := range 30 {
		w.save(snapshot(ref, w.typed(ref, person(), time.Now().Add(time.Duration(i)*time.Second))))
		if n := len(w.history(ref)); n > 8 {
			t.Fatalf("there are %d versions, want 8 at most", n)
		}
	}
	all := w.history(ref)
	if all[0] != "31:write" || all[len(all)-1] != "1:create" {
		t.Errorf("history = %v, want it to include the first and the last", all)
	}
}

// TestLabels gives a version a label: it is not thinned, and its stretch of live editing ends.
func TestLabels(t *testing.T) {
	t.Parallel()
	w := newWorld(t, store.Limits{Versions: 8, VersionBytes: 1 << 20})
	ref := w.create()
	ann, begin := person(), time.Now()
	w.save(snapshot(ref, w.typed(ref, ann, begin))) // 2
	v, err := w.store.Label(t.Context(), ref, 2, "First draft")
	if err != nil || v.Label != "First draft" || v.Author != ann {
		t.Fatalf("Label = %+v, %v", v, err)
	}
	w.save(snapshot(ref, w.typed(ref, ann, begin.Add(time.Second)))) // 3, of the same stretch if 2 had no label
	if diff := cmp.Diff([]string{"3:write", "2:write", "1:create"}, w.history(ref)); diff != "" {
		t.Errorf("history (-want +got):\n%s", diff)
	}
	for i := range 30 {
		w.save(snapshot(ref, w.typed(ref, person(), begin.Add(time.Duration(i+2)*time.Second))))
	}
	if old, err := w.store.Version(t.Context(), ref, 2); err != nil || old.Label != "First draft" {
		t.Errorf("after 30 more versions it is %+v, %v", old, err)
	}
	if _, err := w.store.Label(t.Context(), ref, 3, "gone"); fault.KindOf(err) != fault.NotFound {
		t.Errorf("Label of a version that is thinned = %v, want NotFound", err)
	}
	if v, err := w.store.Label(t.Context(), ref, 2, ""); err != nil || v.Label != "" {
		t.Errorf("Label without one = %+v, %v", v, err)
	}
}

// TestConcurrentSaves has several instances save the same document.
func TestConcurrentSaves(t *testing.T) {
	t.Parallel()
	w := newWorld(t, store.Limits{})
	_, other := w.open(store.Limits{Versions: 100, VersionBytes: 1 << 20})
	ref := w.create()
	const n = 20
	for range n {
		w.append(ref, "u")
	}
	var wg sync.WaitGroup
	for i := range n {
		for _, s := range []*store.Store{w.store, other} {
			wg.Go(func() {
				if err := s.Save(t.Context(), snapshot(ref, int64(i+2))); err != nil {
					t.Error(err)
				}
			})
		}
	}
	wg.Wait()
	if st := w.load(ref); st.At != n+1 || string(st.Snapshot) != fmt.Sprint("state ", n+1) || len(st.Updates) != 0 {
		t.Errorf("Load = %+v", st)
	}
	if diff := cmp.Diff([]string{fmt.Sprint(n+1, ":write"), "1:create"}, w.history(ref)); diff != "" {
		t.Errorf("history (-want +got):\n%s", diff)
	}
}
