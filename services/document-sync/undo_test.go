package documentsync_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/testing/protocmp"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/prosemirror"
	"signalbox.dev/pkg/yjs"
	documentv1 "signalbox.dev/proto/signalbox/document/v1"
	"signalbox.dev/proto/signalbox/document/v1/documentv1connect"
	documentsync "signalbox.dev/services/document-sync"
	"signalbox.dev/services/document-sync/internal/edit"
	"signalbox.dev/services/document-sync/internal/store"
)

// person edits a document live, with an editor's messages.
type person struct {
	t      testing.TB
	store  *store.Store
	ref    store.Ref
	author store.Author
	doc    *yjs.Doc
}

// person returns a new person who has a document open in another editor.
func (w *world) person(t testing.TB, ws id.Workspace, doc string) *person {
	t.Helper()
	s := store.New(w.db.Open(t, documentsync.Migrations()), store.Limits{Versions: 1000, VersionBytes: 1 << 30})
	t.Cleanup(s.Close)
	d, err := id.Parse[id.Document](doc)
	if err != nil {
		t.Fatal(err)
	}
	return &person{t: t, store: s, ref: store.Ref{Workspace: ws, Document: d}, author: store.Author{Member: id.New[id.Member]()}, doc: yjs.New(yjs.Options{})}
}

// pull applies the changes of others.
func (p *person) pull() {
	p.t.Helper()
	st, err := p.store.Load(p.t.Context(), p.ref)
	if err == nil && st.Snapshot != nil {
		err = p.doc.ApplyUpdateV2(st.Snapshot, nil)
	}
	for _, u := range st.Updates {
		if err == nil {
			err = p.doc.ApplyUpdate(u.Data, nil)
		}
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

// types inserts text after other text, as one live edit.
func (p *person) types(behind, text string) {
	p.t.Helper()
	p.pull()
	var update []byte
	defer p.doc.OnUpdate(func(u *yjs.Update) { update = u.V1() })()
	x, at := p.find(behind)
	x.Insert(at+prosemirror.Len16(behind), text)
	if _, err := p.store.Append(p.t.Context(), p.ref, p.author, update); err != nil {
		p.t.Fatal(err)
	}
}

// find returns the text that contains a string, and its position.
func (p *person) find(s string) (found *yjs.Text, at int) {
	p.t.Helper()
	var walk func(f *yjs.XMLFragment)
	walk = func(f *yjs.XMLFragment) {
		f.Each(func(n any) bool {
			switch n := n.(type) {
			case *yjs.XMLElement:
				walk(n.Fragment())
			case *yjs.XMLText:
				var plain strings.Builder
				for _, op := range n.Text().Delta() {
					fmt.Fprint(&plain, op.Insert)
				}
				if i := strings.Index(plain.String(), s); i >= 0 {
					found, at = n.Text(), prosemirror.Len16(plain.String()[:i])
				}
			}
			return found == nil
		})
	}
	walk(p.doc.XMLFragment(prosemirror.Field))
	if found == nil {
		p.t.Fatalf("%q is not in the document", s)
	}
	return found, at
}

func (p *person) reads() string {
	p.t.Helper()
	p.pull()
	markdown, _, err := edit.New(prosemirror.TipTap()).Render(p.doc)
	if err != nil {
		p.t.Fatal(err)
	}
	return markdown
}

// history returns a document's versions, newest first.
func history(ctx context.Context, t testing.TB, c documentv1connect.DocumentServiceClient, doc string) (out []string) {
	t.Helper()
	res, err := c.Versions(ctx, &documentv1.VersionsRequest{Id: doc, PageSize: 100})
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range res.GetVersions() {
		line := fmt.Sprint(v.GetVersion(), " ", v.GetOperation())
		if v.GetUndoes() != 0 {
			line += fmt.Sprint(" of ", v.GetUndoes())
		}
		out = append(out, line)
	}
	return out
}

// TestUndo has an agent change a document and people type next to and inside the change, and
// then undoes, redoes and undoes the agent's operation.
func TestUndo(t *testing.T) {
	t.Parallel()
	const begin = "# Plan\n\nThe **first** thing to do.\n\n- one\n- two\n\nThe last words.\n"
	w := newWorld(t)
	c := w.start(t, documentsync.Config{}).client(t)
	type client = documentv1connect.DocumentServiceClient
	for _, tt := range []struct {
		name         string
		run          func(ctx context.Context, c client, doc string) error
		types        [][2]string // insert the second after the first
		with, undone string
	}{
		{
			"edit", func(ctx context.Context, c client, doc string) error {
				return second(c.Edit(ctx, &documentv1.EditRequest{Id: doc, OldText: "**first** thing", NewText: "*next* great things"}))
			},
			[][2]string{{"great", " big"}, {"The last", " few"}},
			"# Plan\n\nThe *next* great big things to do.\n\n- one\n- two\n\nThe last few words.\n",
			"# Plan\n\nThe  big**first** thing to do.\n\n- one\n- two\n\nThe last few words.\n",
		},
		{
			"edit all", func(ctx context.Context, c client, doc string) error {
				return second(c.Edit(ctx, &documentv1.EditRequest{Id: doc, OldText: "The", NewText: "Our", ReplaceAll: true}))
			},
			[][2]string{{"Plan", " B"}},
			"# Plan B\n\nOur **first** thing to do.\n\n- one\n- two\n\nOur last words.\n",
			"# Plan B\n\nThe **first** thing to do.\n\n- one\n- two\n\nThe last words.\n",
		},
		{
			"append", func(ctx context.Context, c client, doc string) error {
				return second(c.Append(ctx, &documentv1.AppendRequest{Id: doc, Markdown: "Appended.\n\n1. a\n2. b"}))
			},
			[][2]string{{"one", " more"}, {"b", " and mine"}},
			"# Plan\n\nThe **first** thing to do.\n\n- one more\n- two\n\nThe last words.\n\nAppended.\n\n1. a\n2. b and mine\n",
			"# Plan\n\nThe **first** thing to do.\n\n- one more\n- two\n\nThe last words.\n\n1. &#32;and mine\n",
		},
		{
			"replace", func(ctx context.Context, c client, doc string) error {
				return second(c.Replace(ctx, &documentv1.ReplaceRequest{Id: doc, Markdown: "# Another plan\n\n> All new.\n\nThe last words.\n"}))
			},
			[][2]string{{"The last", " few"}},
			"# Another plan\n\n> All new.\n\nThe last few words.\n",
			"# Plan\n\nThe **first** thing to do.\n\n- one\n- two\n\nThe last few words.\n",
		},
		{
			"everything goes", func(ctx context.Context, c client, doc string) error {
				return second(c.Replace(ctx, &documentv1.ReplaceRequest{Id: doc}))
			},
			nil, "", begin,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			agent := actor()
			ctx := as(t, agent)
			d := mustCreate(ctx, t, c, "n", begin)
			doc := d.GetId()
			p := w.person(t, agent.Workspace, doc)
			p.pull()
			text, at := p.find("words")
			cursor, err := p.doc.RelativePosition(text, at, 0)
			if err != nil {
				t.Fatal(err)
			}
			if err := tt.run(ctx, c, doc); err != nil {
				t.Fatal(err)
			}
			for _, typed := range tt.types {
				p.types(typed[0], typed[1])
			}
			if got := p.reads(); got != tt.with {
				t.Fatalf("content before undo = %q, want %q", got, tt.with)
			}
			versions, err := c.Versions(ctx, &documentv1.VersionsRequest{Id: doc})
			if err != nil {
				t.Fatal(err)
			}
			undo := func(version int64, want string) int64 {
				t.Helper()
				res, err := c.Undo(ctx, &documentv1.UndoRequest{Id: doc, Version: version})
				if err != nil {
					t.Fatalf("Undo(%d) = %v", version, err)
				}
				if got := content(ctx, t, c, doc); got != want {
					t.Errorf("content after Undo(%d) = %q, want %q", version, got, want)
				}
				if got := p.reads(); got != want { //nolint:contextcheck // it uses the test's
					t.Errorf("the editor after Undo(%d) shows %q, want %q", version, got, want)
				}
				return res.GetDocument().GetSequence()
			}
			first := undo(versions.GetVersions()[0].GetVersion(), tt.undone)
			second := undo(first, tt.with)
			undo(second, tt.undone)
			if _, index, ok := p.doc.AbsolutePosition(cursor); tt.name == "edit" && (!ok || index != at+len(" few")) {
				t.Errorf("the person's cursor is at %d, want %d", index, at+len(" few"))
			}
		})
	}
}

// TestUndoOfRestore undoes a Restore: what it removed is back.
func TestUndoOfRestore(t *testing.T) {
	t.Parallel()
	a := actor()
	w := newWorld(t)
	ctx, c := as(t, a), w.start(t, documentsync.Config{}).client(t)
	doc := mustCreate(ctx, t, c, "n", "one\n\ntwo").GetId()
	p := w.person(t, a.Workspace, doc)
	p.types("two", " and mine")
	if _, err := c.Restore(ctx, &documentv1.RestoreRequest{Id: doc, Version: 1}); err != nil {
		t.Fatal(err)
	}
	p.types("one", "!")
	if got := content(ctx, t, c, doc); got != "one!\n\ntwo\n" {
		t.Errorf("content after Restore = %q", got)
	}
	if _, err := c.Undo(ctx, &documentv1.UndoRequest{Id: doc, Version: 3}); err != nil {
		t.Fatal(err)
	}
	if got := content(ctx, t, c, doc); got != "one!\n\ntwo and mine\n" {
		t.Errorf("content after Undo = %q", got)
	}
	// Each stretch of typing belongs to its author, each operation to the run.
	want := []string{"5 undo of 3", "4 write", "3 restore", "2 write", "1 create"}
	if diff := gocmp.Diff(want, history(ctx, t, c, doc)); diff != "" {
		t.Errorf("Versions (-want +got):\n%s", diff)
	}
	res, err := c.Versions(ctx, &documentv1.VersionsRequest{Id: doc})
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range res.GetVersions() {
		author := store.Author{Member: a.Member, Run: a.Run}
		if v.GetOperation() == store.Write {
			author = p.author
		}
		if diff := gocmp.Diff(author.Proto(), v.GetAuthor(), protocmp.Transform()); diff != "" {
			t.Errorf("author of version %d (-want +got):\n%s", v.GetVersion(), diff)
		}
		if undoable := v.GetVersion() == 5; v.GetUndoable() != undoable {
			t.Errorf("version %d: undoable = %t", v.GetVersion(), v.GetUndoable())
		}
	}
}

// TestUndoStaysValid undoes the nodes around another person's words: the words stay, in a
// place that the schema allows.
func TestUndoStaysValid(t *testing.T) {
	t.Parallel()
	a := actor()
	w := newWorld(t)
	ctx, c := as(t, a), w.start(t, documentsync.Config{}).client(t)
	for name, tt := range map[string]struct{ markdown, behind, want string }{
		"a list in a list": {"- outer\n  - inner", "inner", "begin\n\n- &nbsp;\n  - &#32;and mine\n"},
		"a table":          {"| a | b |\n| --- | --- |\n| c | d |", "d", "begin\n\n<table>\n<tr>\n<td>\n\n&#32;and mine\n\n</td>\n</tr>\n</table>\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			doc := mustCreate(ctx, t, c, "n", "begin").GetId()
			p := w.person(t, a.Workspace, doc) //nolint:contextcheck // it uses the test's
			if _, err := c.Append(ctx, &documentv1.AppendRequest{Id: doc, Markdown: tt.markdown}); err != nil {
				t.Fatal(err)
			}
			p.types(tt.behind, " and mine") //nolint:contextcheck // it uses the test's
			if _, err := c.Undo(ctx, &documentv1.UndoRequest{Id: doc, Version: 2}); err != nil {
				t.Fatal(err)
			}
			p.pull() //nolint:contextcheck // it uses the test's
			tree := edit.New(prosemirror.TipTap()).Tree(p.doc)
			if err := prosemirror.TipTap().Check(tree); err != nil {
				t.Errorf("the document is invalid: %v", err)
			}
			if got := content(ctx, t, c, doc); got != tt.want {
				t.Errorf("the document says %q, want %q", got, tt.want)
			}
		})
	}
}

func TestUndoRefused(t *testing.T) {
	t.Parallel()
	a := actor()
	w := newWorld(t)
	ctx, c := as(t, a), w.start(t, documentsync.Config{Versions: 4}).client(t)
	doc := mustCreate(ctx, t, c, "n", "one").GetId()
	p := w.person(t, a.Workspace, doc)
	p.types("one", " two") // 2
	if _, err := c.Edit(ctx, &documentv1.EditRequest{Id: doc, OldText: "two", NewText: "2"}); err != nil {
		t.Fatal(err) // 3
	}
	viewer := a
	viewer.Role = identity.Viewer
	undo := func(ctx context.Context, version int64) error {
		return second(c.Undo(ctx, &documentv1.UndoRequest{Id: doc, Version: version}))
	}
	check := func(name string, err error, kind fault.Kind, code, says string) {
		t.Helper()
		if f := fault.From(err); err == nil || f.Kind != kind || f.Code != code && code != "" || !strings.Contains(f.Message, says) {
			t.Errorf("%s = %v, want %v %s %q", name, err, kind, code, says)
		}
	}
	check("Undo by a viewer", undo(as(t, viewer), 3), fault.Forbidden, "", "editor")
	check("Undo from another workspace", undo(as(t, actor()), 3), fault.NotFound, "", "")
	check("Undo of nothing", undo(ctx, 0), fault.Invalid, "", "version: is 0")
	check("Undo of Create", undo(ctx, 1), fault.Conflict, "NOT_UNDOABLE", "created the document")
	check("Undo of typing", undo(ctx, 2), fault.Conflict, "NOT_UNDOABLE", "restore the version before")
	check("Undo of no version", undo(ctx, 9), fault.NotFound, "", "restore one of them")
	if err := undo(ctx, 3); err != nil { // 4
		t.Fatal(err)
	}
	check("a second Undo", undo(ctx, 3), fault.Conflict, "ALREADY_UNDONE", "undo version 4 to restore it")
	if _, err := c.Rename(ctx, &documentv1.RenameRequest{Id: doc, Name: "other"}); err != nil { // 5; versions from 2 on are thinned out
		t.Fatal(err)
	}
	check("Undo of Rename", undo(ctx, 5), fault.Conflict, "NOT_UNDOABLE", "rename it again")
	// The history before it must contain what an undo deletes.
	admin, err := pgx.Connect(ctx, w.db.AdminURL+"&search_path=documents")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = admin.Close(context.WithoutCancel(ctx)) })
	if _, err := admin.Exec(ctx, `UPDATE versions SET state = NULL WHERE version < 4`); err != nil {
		t.Fatal(err)
	}
	check("Undo of what is thinned out", undo(ctx, 4), fault.Conflict, "HISTORY_THINNED", "restore a version instead")
	if _, err := admin.Exec(ctx, `UPDATE versions SET change = NULL`); err != nil {
		t.Fatal(err)
	}
	check("Undo of what an earlier release did", undo(ctx, 4), fault.Conflict, "NOT_UNDOABLE", "earlier release")
	if got := content(ctx, t, c, doc); got != "one two\n" {
		t.Errorf("content after refused calls = %q", got)
	}
	if _, err := c.Append(ctx, &documentv1.AppendRequest{Id: doc, Markdown: "more"}); err != nil { // 6
		t.Fatal(err)
	}
	if _, err := admin.Exec(ctx, `UPDATE versions SET state = NULL`); err != nil {
		t.Fatal(err)
	}
	if err := undo(ctx, 6); err != nil { // it deleted nothing, so nothing is missing
		t.Errorf("Undo of Append = %v", err)
	}
}

// TestUndoOfNothing undoes a change that is already gone.
func TestUndoOfNothing(t *testing.T) {
	t.Parallel()
	ctx, c := as(t, actor()), newWorld(t).start(t, documentsync.Config{}).client(t)
	doc := mustCreate(ctx, t, c, "n", "one").GetId()
	if _, err := c.Append(ctx, &documentv1.AppendRequest{Id: doc, Markdown: "two"}); err != nil { // 2
		t.Fatal(err)
	}
	if _, err := c.Replace(ctx, &documentv1.ReplaceRequest{Id: doc, Markdown: "one"}); err != nil { // 3
		t.Fatal(err)
	}
	res, err := c.Undo(ctx, &documentv1.UndoRequest{Id: doc, Version: 2})
	if err != nil || res.GetDocument().GetSequence() != 3 {
		t.Errorf("Undo of a change that is gone = %v, %v, want the document unchanged", res, err)
	}
	if diff := gocmp.Diff([]string{"3 replace", "2 append", "1 create"}, history(ctx, t, c, doc)); diff != "" {
		t.Errorf("Versions (-want +got):\n%s", diff)
	}
}

// TestUndoWithUnknownResult ends the connection to Postgres during an undo's commit: the caller learns
// that the result is unknown, nothing is done in part, and a repetition works, once, on any
// instance.
func TestUndoWithUnknownResult(t *testing.T) {
	t.Parallel()
	a := actor()
	w := newWorld(t)
	ctx := as(t, a)
	one, two := w.start(t, documentsync.Config{}).client(t), w.start(t, documentsync.Config{}).client(t)
	doc := mustCreate(ctx, t, one, "n", "one two").GetId()
	if _, err := one.Edit(ctx, &documentv1.EditRequest{Id: doc, OldText: "two", NewText: "2"}); err != nil {
		t.Fatal(err)
	}
	admin, err := pgx.Connect(ctx, w.db.AdminURL+"&search_path=documents")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = admin.Close(context.WithoutCancel(ctx)) })
	exec := func(sql string) {
		t.Helper()
		if _, err := admin.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	exec(`CREATE FUNCTION wait_for_the_test() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN PERFORM pg_advisory_xact_lock(4711); RETURN NULL; END $$`)
	exec(`CREATE CONSTRAINT TRIGGER wait_for_the_test AFTER INSERT ON updates DEFERRABLE INITIALLY DEFERRED
		FOR EACH ROW EXECUTE FUNCTION wait_for_the_test()`)
	exec(`SELECT pg_advisory_lock(4711)`)
	request := &documentv1.UndoRequest{Id: doc, Version: 2, OperationKey: newKey()}
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := one.Undo(ctx, request); fault.KindOf(err) != fault.Unavailable {
			t.Errorf("Undo with an unknown result = %v, want Unavailable", err)
		}
	})
	waitForLock(ctx, t, w)
	exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE datname = current_database() AND wait_event_type = 'Lock' AND pid <> pg_backend_pid()`)
	wg.Wait()
	exec(`SELECT pg_advisory_unlock(4711)`)
	if got := content(ctx, t, one, doc); got != "one 2\n" {
		t.Errorf("content without the commit = %q", got)
	}
	assertSame(t, "undo", func(c documentv1connect.DocumentServiceClient) (any, error) { return c.Undo(ctx, request) }, two, one)
	if got := content(ctx, t, two, doc); got != "one two\n" {
		t.Errorf("content after Undo = %q", got)
	}
	if diff := gocmp.Diff([]string{"3 undo of 2", "2 edit", "1 create"}, history(ctx, t, one, doc)); diff != "" {
		t.Errorf("Versions (-want +got):\n%s", diff)
	}
}
