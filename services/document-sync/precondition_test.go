package documentsync_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/proto"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	documentv1 "signalbox.dev/proto/signalbox/document/v1"
	"signalbox.dev/proto/signalbox/document/v1/documentv1connect"
	documentsync "signalbox.dev/services/document-sync"
	"signalbox.dev/services/document-sync/internal/store"
)

// readBase returns a document's sequence and content, and has it kept as a base.
func readBase(ctx context.Context, t testing.TB, c documentv1connect.DocumentServiceClient, doc string) (int64, string) {
	t.Helper()
	res, err := c.Read(ctx, &documentv1.ReadRequest{Id: doc, KeepBase: true})
	if err != nil {
		t.Fatal(err)
	}
	return res.GetDocument().GetSequence(), res.GetMarkdown()
}

func code(err error) string { return fault.From(err).Code }

// TestIfSequence writes changes made from an older state.
func TestIfSequence(t *testing.T) {
	t.Parallel()
	w, a := newWorld(t), actor()
	ctx := as(t, a)
	c, other := w.start(t, documentsync.Config{}).client(t), w.start(t, documentsync.Config{}).client(t)
	doc := mustCreate(ctx, t, c, "n", "one\n").GetId()
	p := w.person(t, a.Workspace, doc)
	seq, _ := readBase(ctx, t, c, doc)

	key := newKey()
	first := &documentv1.ReplaceRequest{Id: doc, Markdown: "two", IfSequence: seq, OperationKey: key}
	res, err := c.Replace(ctx, first)
	if err != nil || !res.GetExact() || res.GetDocument().GetSequence() != seq+1 {
		t.Fatalf("Replace at %d = %v, %v, want exactly %d", seq, res, err, seq+1)
	}
	// A repetition gets the first response; without its key it is out of date.
	if again, err := other.Replace(ctx, first); err != nil || again.GetDocument().GetSequence() != seq+1 {
		t.Errorf("the same Replace again = %v, %v", again, err)
	}
	name := "new"
	for what, err := range map[string]error{
		"Replace":            second(other.Replace(ctx, &documentv1.ReplaceRequest{Id: doc, Markdown: "three", IfSequence: seq})),
		"Replace of nothing": second(c.Replace(ctx, &documentv1.ReplaceRequest{Id: doc, Markdown: "two", IfSequence: seq})),
		"Replace with name":  second(c.Replace(ctx, &documentv1.ReplaceRequest{Id: doc, Markdown: "two", Name: &name, IfSequence: seq})),
		"Rename":             second(c.Rename(ctx, &documentv1.RenameRequest{Id: doc, Name: name, IfSequence: seq})),
		"Restore":            second(c.Restore(ctx, &documentv1.RestoreRequest{Id: doc, Version: 1, IfSequence: seq})),
		"Undo":               second(c.Undo(ctx, &documentv1.UndoRequest{Id: doc, Version: 2, IfSequence: seq})),
		"Delete":             second(c.Delete(ctx, &documentv1.DeleteRequest{Id: doc, IfSequence: seq})),
		"Replace from ahead": second(c.Replace(ctx, &documentv1.ReplaceRequest{Id: doc, Markdown: "three", IfSequence: seq + 2})),
	} {
		if fault.KindOf(err) != fault.Conflict || code(err) != fault.CodePrecondition {
			t.Errorf("%s of an old state = %v, want %s", what, err, fault.CodePrecondition)
		}
	}
	// Typing counts before it is in a snapshot.
	p.types("two", "!")
	if err := second(c.Replace(ctx, &documentv1.ReplaceRequest{Id: doc, Markdown: "three", IfSequence: seq + 1})); code(err) != fault.CodePrecondition {
		t.Errorf("Replace after somebody typed = %v, want %s", err, fault.CodePrecondition)
	}
	if got := content(ctx, t, c, doc); got != "two!\n" {
		t.Errorf("content = %q", got)
	}
	seq, _ = readBase(ctx, t, other, doc)
	if _, err := c.Rename(ctx, &documentv1.RenameRequest{Id: doc, Name: name, IfSequence: seq}); err != nil {
		t.Errorf("Rename at the current sequence = %v", err)
	}
}

// TestIfSequenceRace has many write from the same state: one succeeds.
func TestIfSequenceRace(t *testing.T) {
	t.Parallel()
	w, a := newWorld(t), actor()
	ctx := as(t, a)
	clients := []documentv1connect.DocumentServiceClient{w.start(t, documentsync.Config{}).client(t), w.start(t, documentsync.Config{}).client(t)}
	doc := mustCreate(ctx, t, clients[0], "n", "0\n").GetId()
	const rounds, writers = 10, 6
	for round := range rounds {
		seq, _ := readBase(ctx, t, clients[0], doc)
		results := make(chan error, writers)
		for i := range writers {
			go func() {
				results <- second(clients[i%2].Replace(ctx, &documentv1.ReplaceRequest{Id: doc, Markdown: fmt.Sprint(round, i), IfSequence: seq}))
			}()
		}
		done := 0
		for range writers {
			switch err := <-results; {
			case err == nil:
				done++
			case code(err) != fault.CodePrecondition:
				t.Fatal(err)
			}
		}
		if done != 1 {
			t.Fatalf("%d of %d writers from the same state succeeded, want 1", done, writers)
		}
	}
}

// TestBase merges Markdown made from what somebody read with what others have typed since,
// with snapshots, versions and another instance in between.
func TestBase(t *testing.T) {
	t.Parallel()
	w, a := newWorld(t), actor()
	ctx := as(t, a)
	c, other := w.start(t, documentsync.Config{}).client(t), w.start(t, documentsync.Config{}).client(t)
	doc := mustCreate(ctx, t, c, "n", "# Plan\n\nThe quick fox.\n\nLast.\n").GetId()
	p := w.person(t, a.Workspace, doc)
	p.types("Last.", " Typed before.")
	base, text := readBase(ctx, t, c, doc)
	if text != p.reads() {
		t.Fatalf("Read = %q, want %q", text, p.reads())
	}
	p.types("quick", " brown")
	readBase(ctx, t, other, doc) // another member's base
	if _, err := other.Append(ctx, &documentv1.AppendRequest{Id: doc, Markdown: "Appended."}); err != nil {
		t.Fatal(err)
	}
	p.types("Appended.", " Typed after.")
	key := newKey()
	ask := &documentv1.ReplaceRequest{
		Id: doc, Markdown: strings.ReplaceAll(strings.ReplaceAll(text, "fox", "cat"), "# Plan", "## Plan"), Base: base, OperationKey: key,
	}
	res, err := other.Replace(ctx, ask)
	want := "## Plan\n\nThe quick brown cat.\n\nLast. Typed before.\n\nAppended. Typed after.\n"
	if err != nil || res.GetMarkdown() != want || !res.GetExact() {
		t.Fatalf("Replace = %v, %v, want %q", res, err, want)
	}
	if got := content(ctx, t, c, doc); got != want {
		t.Errorf("content = %q, want %q", got, want)
	}
	if again, err := c.Replace(ctx, ask); err != nil || !proto.Equal(again, res) {
		t.Errorf("the same again = %v, %v, want %v", again, err, res)
	}
	// The result of an operation can be a base too, and so can any operation's version.
	p.types("Plan", " B")
	for _, tt := range []struct {
		base int64
		next string
	}{
		{res.GetDocument().GetSequence(), strings.Replace(want, "Last.", "End.", 1)},
		{1, "# Plan\n\nThe quick fox.\n\nEnd.\n"},
	} {
		res, err := c.Replace(ctx, &documentv1.ReplaceRequest{Id: doc, Markdown: tt.next, Base: tt.base})
		if want := "## Plan B\n\nThe quick brown cat.\n\nEnd. Typed before.\n\nAppended. Typed after.\n"; err != nil || res.GetMarkdown() != want {
			t.Errorf("Replace from %d = %v, %v, want %q", tt.base, res, err, want)
		}
	}
	for _, base := range []int64{5, 1_000_000, -1} {
		err := second(c.Replace(ctx, &documentv1.ReplaceRequest{Id: doc, Markdown: "x", Base: base}))
		if fault.KindOf(err) != fault.Conflict || code(err) != store.CodeBaseGone {
			t.Errorf("Replace from %d, which nobody read = %v, want %s", base, err, store.CodeBaseGone)
		}
	}
	if err := second(c.Replace(ctx, &documentv1.ReplaceRequest{Id: doc, Markdown: "x", Base: base, OperationKey: key})); code(err) != store.CodeKeyReused {
		t.Errorf("another Replace with the same key = %v, want %s", err, store.CodeKeyReused)
	}
}

// TestReadWithoutBase reads a document without keeping the base: as a viewer, and when the
// database refuses it. Both reads succeed.
func TestReadWithoutBase(t *testing.T) {
	t.Parallel()
	w, a := newWorld(t), actor()
	ctx := as(t, a)
	c := w.start(t, documentsync.Config{}).client(t)
	doc := mustCreate(ctx, t, c, "n", "one").GetId()
	conn, err := pgx.Connect(ctx, w.db.AdminURL+"&search_path=documents")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	viewer := a
	viewer.Role = identity.Viewer
	if seq, text := readBase(as(t, viewer), t, c, doc); seq != 1 || text != "one\n" {
		t.Errorf("Read by a viewer = %d, %q", seq, text)
	}
	var n int64
	if err := conn.QueryRow(ctx, `SELECT count(*) FROM bases`).Scan(&n); err != nil || n != 0 {
		t.Errorf("%d bases kept for a viewer (%v)", n, err)
	}
	if _, err := conn.Exec(ctx, `ALTER TABLE bases add check (false)`); err != nil {
		t.Fatal(err)
	}
	if seq, text := readBase(ctx, t, c, doc); seq != 1 || text != "one\n" {
		t.Errorf("Read without keeping a base = %d, %q", seq, text)
	}
}

// TestBasesAreBounded reads a document after each of many changes, and large ones.
func TestBasesAreBounded(t *testing.T) {
	t.Parallel()
	w, a := newWorld(t), actor()
	ctx := as(t, a)
	c := w.start(t, documentsync.Config{}).client(t)
	doc := mustCreate(ctx, t, c, "n", "").GetId()
	conn, err := pgx.Connect(ctx, w.db.AdminURL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	bases := func() (n int64) {
		t.Helper()
		if err := conn.QueryRow(ctx, `SELECT count(*) FROM documents.bases`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	ref, err := id.Parse[id.Document](doc)
	if err != nil {
		t.Fatal(err)
	}
	s := store.New(w.db.Open(t, documentsync.Migrations()), store.Limits{})
	defer s.Close()
	keep := func(sequence int64, markdown string) {
		t.Helper()
		if err := s.KeepBase(ctx, store.Ref{Workspace: a.Workspace, Document: ref}, sequence, markdown); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 100 {
		keep(int64(i+1), "small")
	}
	if n := bases(); n != 64 {
		t.Errorf("%d bases kept, want 64", n)
	}
	large := strings.Repeat("x", 9<<20)
	keep(200, large)
	if n := bases(); n != 64 {
		t.Errorf("%d bases kept with a large one, want 64", n)
	}
	keep(201, large)
	if n := bases(); n != 1 {
		t.Errorf("%d bases kept with two large ones, want the newest", n)
	}
	if _, err := c.Delete(ctx, &documentv1.DeleteRequest{Id: doc}); err != nil {
		t.Fatal(err)
	}
	keep(300, "late")
	if n := bases(); n != 0 {
		t.Errorf("%d bases kept of a deleted document", n)
	}
	if _, err := s.Base(ctx, store.Ref{Workspace: a.Workspace, Document: ref}, 201); err == nil {
		t.Error("the base of a deleted document was found")
	}
}
