package documentsync_test

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/testing/protocmp"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/natsd/natstest"
	"signalbox.dev/pkg/pgtest"
	documentv1 "signalbox.dev/proto/signalbox/document/v1"
	"signalbox.dev/proto/signalbox/document/v1/documentv1connect"
	documentsync "signalbox.dev/services/document-sync"
)

func newKey() string { return id.New[id.Operation]().String() }

func mustCreate(ctx context.Context, t testing.TB, c documentv1connect.DocumentServiceClient, name, markdown string) *documentv1.Document {
	t.Helper()
	res, err := c.Create(ctx, &documentv1.CreateRequest{Name: name, Markdown: markdown})
	if err != nil {
		t.Fatalf("Create(%q) = %v", name, err)
	}
	return res.GetDocument()
}

func content(ctx context.Context, t testing.TB, c documentv1connect.DocumentServiceClient, doc string) string {
	t.Helper()
	res, err := c.Read(ctx, &documentv1.ReadRequest{Id: doc})
	if err != nil {
		t.Fatalf("Read(%s) = %v", doc, err)
	}
	return res.GetMarkdown()
}

func TestCatalogue(t *testing.T) {
	t.Parallel()
	problems, err := pgtest.CheckCatalogue(t.Context(), newWorld(t).db.AdminURL, nil, documentsync.Migrations())
	if err != nil || len(problems) > 0 {
		t.Errorf("CheckCatalogue() = %q, %v, want none", problems, err)
	}
}

func TestDocumentLifecycle(t *testing.T) {
	t.Parallel()
	a := actor()
	ctx, c := as(t, a), newWorld(t).start(t, documentsync.Config{}).client(t)

	d := mustCreate(ctx, t, c, " Plan ", "# Plan\r\n\r\none two")
	if d.GetName() != "Plan" || d.GetSequence() != 1 || d.GetWorkspaceId() != a.Workspace.String() || d.GetCreatedBy() != a.Member.String() || !d.GetCreatedAt().IsValid() {
		t.Errorf("Create = %v", d)
	}
	if got, want := content(ctx, t, c, d.GetId()), "# Plan\n\none two\n"; got != want {
		t.Errorf("content after Create = %q, want %q", got, want)
	}
	edited, err := c.Edit(ctx, &documentv1.EditRequest{Id: d.GetId(), OldText: "two", NewText: "2"})
	if err != nil || edited.GetReplacements() != 1 || edited.GetDocument().GetSequence() != 2 {
		t.Errorf("Edit = %v, %v", edited, err)
	}
	if _, err := c.Append(ctx, &documentv1.AppendRequest{Id: d.GetId(), Markdown: "- three"}); err != nil {
		t.Errorf("Append = %v", err)
	}
	if _, err := c.Rename(ctx, &documentv1.RenameRequest{Id: d.GetId(), Name: "Plan B"}); err != nil {
		t.Errorf("Rename = %v", err)
	}
	if _, err := c.Replace(ctx, &documentv1.ReplaceRequest{Id: d.GetId(), Markdown: "new"}); err != nil {
		t.Errorf("Replace = %v", err)
	}
	if _, err := c.Restore(ctx, &documentv1.RestoreRequest{Id: d.GetId(), Version: 3}); err != nil {
		t.Errorf("Restore = %v", err)
	}
	if got, want := content(ctx, t, c, d.GetId()), "# Plan\n\none 2\n\n- three\n"; got != want {
		t.Errorf("content after Restore = %q, want %q", got, want)
	}
	got, err := c.Get(ctx, &documentv1.GetRequest{Id: d.GetId()})
	if err != nil || got.GetDocument().GetName() != "Plan B" || got.GetDocument().GetSequence() != 6 {
		t.Errorf("Get = %v, %v, want Plan B at sequence 6", got, err)
	}
	history, err := c.Versions(ctx, &documentv1.VersionsRequest{Id: d.GetId()})
	if err != nil {
		t.Fatalf("Versions = %v", err)
	}
	var operations []string
	for _, v := range history.GetVersions() {
		operations = append(operations, fmt.Sprintf("%d %s %s", v.GetVersion(), v.GetOperation(), v.GetName()))
		if diff := gocmp.Diff(&documentv1.Author{MemberId: a.Member.String(), RunId: a.Run.String()}, v.GetAuthor(), protocmp.Transform()); diff != "" {
			t.Errorf("author of version %d (-want +got):\n%s", v.GetVersion(), diff)
		}
	}
	want := []string{"6 restore Plan B", "5 replace Plan B", "4 rename Plan B", "3 append Plan", "2 edit Plan", "1 create Plan"}
	if diff := gocmp.Diff(want, operations); diff != "" {
		t.Errorf("Versions (-want +got):\n%s", diff)
	}
	if _, err := c.Delete(ctx, &documentv1.DeleteRequest{Id: d.GetId()}); err != nil {
		t.Errorf("Delete = %v", err)
	}
	for call, err := range map[string]error{
		"Read":     second(c.Read(ctx, &documentv1.ReadRequest{Id: d.GetId()})),
		"Get":      second(c.Get(ctx, &documentv1.GetRequest{Id: d.GetId()})),
		"Versions": second(c.Versions(ctx, &documentv1.VersionsRequest{Id: d.GetId()})),
		"Append":   second(c.Append(ctx, &documentv1.AppendRequest{Id: d.GetId(), Markdown: "x"})),
		"Delete":   second(c.Delete(ctx, &documentv1.DeleteRequest{Id: d.GetId()})),
	} {
		if fault.KindOf(err) != fault.NotFound {
			t.Errorf("%s of a deleted document = %v, want NotFound", call, err)
		}
	}
	if list, err := c.List(ctx, &documentv1.ListRequest{}); err != nil || len(list.GetDocuments()) != 0 {
		t.Errorf("List after Delete = %v, %v, want none", list, err)
	}
}

func second[T any](_ T, err error) error { return err }

func TestNothingToChange(t *testing.T) {
	t.Parallel()
	ctx, c := as(t, actor()), newWorld(t).start(t, documentsync.Config{}).client(t)
	d := mustCreate(ctx, t, c, "n", "same")
	key := newKey()
	for range 2 { // the second one is a repetition
		r, err := c.Replace(ctx, &documentv1.ReplaceRequest{Id: d.GetId(), Markdown: "same", OperationKey: key})
		if err != nil || r.GetDocument().GetSequence() != 1 {
			t.Errorf("Replace with the same content = %v, %v, want sequence 1", r, err)
		}
	}
	if r, err := c.Rename(ctx, &documentv1.RenameRequest{Id: d.GetId(), Name: "n"}); err != nil || r.GetDocument().GetSequence() != 1 {
		t.Errorf("Rename to the same name = %v, %v, want sequence 1", r, err)
	}
	if r, err := c.Edit(ctx, &documentv1.EditRequest{Id: d.GetId(), OldText: "am", NewText: "am"}); err != nil || r.GetDocument().GetSequence() != 1 || r.GetReplacements() != 1 {
		t.Errorf("Edit to the same text = %v, %v, want sequence 1 and one replacement", r, err)
	}
	if v, err := c.Versions(ctx, &documentv1.VersionsRequest{Id: d.GetId()}); err != nil || len(v.GetVersions()) != 1 {
		t.Errorf("Versions = %v, %v, want one", v, err)
	}
	// The key is used although nothing changed.
	if _, err := c.Replace(ctx, &documentv1.ReplaceRequest{Id: d.GetId(), Markdown: "other", OperationKey: key}); fault.From(err).Code != "IDEMPOTENCY_KEY_REUSED" {
		t.Errorf("Replace with a used key = %v, want IDEMPOTENCY_KEY_REUSED", err)
	}
}

// TestReplaceWithName changes name and content together, as one version, or not at all.
func TestReplaceWithName(t *testing.T) {
	t.Parallel()
	ctx, c := as(t, actor()), newWorld(t).start(t, documentsync.Config{}).client(t)
	d := mustCreate(ctx, t, c, "old", "old")
	key := newKey()
	replace := func(key, name, markdown string) (*documentv1.Document, error) {
		r, err := c.Replace(ctx, &documentv1.ReplaceRequest{Id: d.GetId(), Markdown: markdown, Name: &name, OperationKey: key})
		return r.GetDocument(), err
	}
	for name, tt := range map[string]struct {
		name, markdown string
		kind           fault.Kind
	}{
		"content": {"new", strings.Repeat("x", 10<<20+1), fault.TooLarge},
		"a block": {"new", strings.Repeat("x", 1<<20+1), fault.TooLarge},
		"no name": {" ", "new", fault.Invalid},
	} {
		if _, err := replace(newKey(), tt.name, tt.markdown); fault.KindOf(err) != tt.kind {
			t.Errorf("Replace with a bad %s = %v, want %v", name, err, tt.kind)
		}
	}
	if got, err := c.Get(ctx, &documentv1.GetRequest{Id: d.GetId()}); err != nil || got.GetDocument().GetName() != "old" || got.GetDocument().GetSequence() != 1 {
		t.Errorf("Get after refused changes = %v, %v, want old, unchanged", got, err)
	}
	for range 2 { // the second one is a repetition
		if got, err := replace(key, " new ", "new"); err != nil || got.GetName() != "new" || got.GetSequence() != 2 {
			t.Errorf("Replace = %v, %v, want new at sequence 2", got, err)
		}
	}
	if _, err := replace(key, "another", "new"); fault.From(err).Code != "IDEMPOTENCY_KEY_REUSED" {
		t.Errorf("Replace with the used key and another name = %v, want IDEMPOTENCY_KEY_REUSED", err)
	}
	if got, err := replace("", "newer", "new"); err != nil || got.GetName() != "newer" || got.GetSequence() != 3 {
		t.Errorf("Replace with a new name only = %v, %v, want newer at sequence 3", got, err)
	}
	if got, err := replace("", "newer", "new"); err != nil || got.GetSequence() != 3 {
		t.Errorf("Replace with nothing new = %v, %v, want sequence 3", got, err)
	}
	if _, err := c.Undo(ctx, &documentv1.UndoRequest{Id: d.GetId(), Version: 2}); err != nil {
		t.Errorf("Undo = %v", err)
	}
	if got := content(ctx, t, c, d.GetId()); got != "old\n" {
		t.Errorf("content after Undo = %q, want old", got)
	}
	history, err := c.Versions(ctx, &documentv1.VersionsRequest{Id: d.GetId()})
	if err != nil {
		t.Fatalf("Versions = %v", err)
	}
	var operations []string
	for _, v := range history.GetVersions() {
		operations = append(operations, v.GetOperation()+" "+v.GetName())
	}
	if diff := gocmp.Diff([]string{"undo newer", "rename newer", "replace new", "create old"}, operations); diff != "" {
		t.Errorf("Versions (-want +got):\n%s", diff)
	}
}

func TestBadInput(t *testing.T) {
	t.Parallel()
	ctx, c := as(t, actor()), newWorld(t).start(t, documentsync.Config{}).client(t)
	d := mustCreate(ctx, t, c, "n", "x x")
	doc := d.GetId()
	big := strings.Repeat("a", 1<<20)
	for name, tt := range map[string]struct {
		err  error
		kind fault.Kind
		says string
	}{
		"no name":             {second(c.Create(ctx, &documentv1.CreateRequest{})), fault.Invalid, "name:"},
		"long name":           {second(c.Create(ctx, &documentv1.CreateRequest{Name: strings.Repeat("x", 201)})), fault.Invalid, "201"},
		"control in name":     {second(c.Rename(ctx, &documentv1.RenameRequest{Id: doc, Name: "a\tb"})), fault.Invalid, "U+0009"},
		"NUL":                 {second(c.Create(ctx, &documentv1.CreateRequest{Name: "n", Markdown: "a\x00"})), fault.Invalid, "NUL"},
		"too large":           {second(c.Create(ctx, &documentv1.CreateRequest{Name: "n", Markdown: big + "a"})), fault.TooLarge, "1 MiB"},
		"too much for a call": {second(c.Append(ctx, &documentv1.AppendRequest{Id: doc, Markdown: big + "a"})), fault.TooLarge, "1 MiB"},
		"bad id":              {second(c.Read(ctx, &documentv1.ReadRequest{Id: "nope"})), fault.Invalid, `id: "nope" is not a UUID`},
		"no id":               {second(c.Append(ctx, &documentv1.AppendRequest{Markdown: "x"})), fault.Invalid, "id:"},
		"unknown id":          {second(c.Read(ctx, &documentv1.ReadRequest{Id: newKey()})), fault.NotFound, "does not exist"},
		"bad key":             {second(c.Delete(ctx, &documentv1.DeleteRequest{Id: doc, OperationKey: "k"})), fault.Invalid, "operation_key:"},
		"empty old text":      {second(c.Edit(ctx, &documentv1.EditRequest{Id: doc})), fault.Invalid, "old_text:"},
		"no match":            {second(c.Edit(ctx, &documentv1.EditRequest{Id: doc, OldText: "y"})), fault.Conflict, "0 matches"},
		"two matches":         {second(c.Edit(ctx, &documentv1.EditRequest{Id: doc, OldText: "x"})), fault.Conflict, "2 times"},
		"nothing appended":    {second(c.Append(ctx, &documentv1.AppendRequest{Id: doc, Markdown: "\n"})), fault.Invalid, "empty"},
		"no such version":     {second(c.Restore(ctx, &documentv1.RestoreRequest{Id: doc, Version: 9})), fault.NotFound, "no version 9"},
		"page size":           {second(c.List(ctx, &documentv1.ListRequest{PageSize: 101})), fault.Invalid, "page_size:"},
		"negative size":       {second(c.Versions(ctx, &documentv1.VersionsRequest{Id: doc, PageSize: -1})), fault.Invalid, "page_size:"},
		"page token":          {second(c.List(ctx, &documentv1.ListRequest{PageToken: "x"})), fault.Invalid, "page_token:"},
		"token's time":        {second(c.List(ctx, &documentv1.ListRequest{PageToken: strings.Repeat("_", 32)})), fault.Invalid, "page_token:"},
		"versions token":      {second(c.Versions(ctx, &documentv1.VersionsRequest{Id: doc, PageToken: strings.Repeat("_", 11)})), fault.Invalid, "page_token:"},
		"query":               {second(c.List(ctx, &documentv1.ListRequest{Query: strings.Repeat("x ", 11)})), fault.Invalid, "query:"},
	} {
		if f := fault.From(tt.err); tt.err == nil || f.Kind != tt.kind || !strings.Contains(f.Message, tt.says) {
			t.Errorf("%s: %v, want %v %q", name, tt.err, tt.kind, tt.says)
		}
	}
	if got := content(ctx, t, c, doc); got != "x x\n" {
		t.Errorf("content after refused changes = %q, want it unchanged", got)
	}
}

// A version is read beside the one before it, and lists count the words that changed between.
func TestReadVersion(t *testing.T) {
	t.Parallel()
	ctx := as(t, actor())
	c := newWorld(t).start(t, documentsync.Config{}).client(t)
	d := mustCreate(ctx, t, c, "n", "one two three")
	for _, markdown := range []string{"one three two four", strings.Repeat("long ", 30_000)} {
		if _, err := c.Replace(ctx, &documentv1.ReplaceRequest{Id: d.GetId(), Markdown: markdown}); err != nil {
			t.Fatal(err)
		}
	}
	all, err := c.Versions(ctx, &documentv1.VersionsRequest{Id: d.GetId(), WithWords: true})
	if err != nil || len(all.GetVersions()) != 3 {
		t.Fatalf("Versions = %v, %v, want three", all, err)
	}
	var got []string
	for _, v := range all.GetVersions() {
		if v.WordsAdded == nil {
			got = append(got, "unknown")
			continue
		}
		got = append(got, fmt.Sprintf("+%d -%d", v.GetWordsAdded(), v.GetWordsRemoved()))
	}
	if diff := gocmp.Diff([]string{"unknown", "+1 -0", "+3 -0"}, got); diff != "" {
		t.Errorf("words of the versions, newest first (-want +got):\n%s", diff)
	}
	res, err := c.ReadVersion(ctx, &documentv1.ReadVersionRequest{Id: d.GetId(), Version: all.GetVersions()[1].GetVersion()})
	if err != nil || res.GetMarkdown() != "one three two four\n" || res.GetBeforeMarkdown() != "one two three\n" {
		t.Errorf("ReadVersion = %v, %v, want the second text and the first", res, err)
	}
	if _, err := c.ReadVersion(ctx, &documentv1.ReadVersionRequest{Id: d.GetId(), Version: 99}); fault.KindOf(err) != fault.NotFound {
		t.Errorf("ReadVersion of none = %v, want NotFound", err)
	}
}

func TestRolesAndTenants(t *testing.T) {
	t.Parallel()
	a := actor()
	c := newWorld(t).start(t, documentsync.Config{}).client(t)
	d := mustCreate(as(t, a), t, c, "n", "x")

	viewer := a
	viewer.Role = identity.Viewer
	ctx := as(t, viewer)
	if got := content(ctx, t, c, d.GetId()); got != "x\n" {
		t.Errorf("Read by a viewer = %q, want x", got)
	}
	for call, err := range map[string]error{
		"Create":  second(c.Create(ctx, &documentv1.CreateRequest{Name: "v"})),
		"Rename":  second(c.Rename(ctx, &documentv1.RenameRequest{Id: d.GetId(), Name: "v"})),
		"Edit":    second(c.Edit(ctx, &documentv1.EditRequest{Id: d.GetId(), OldText: "x", NewText: "y"})),
		"Append":  second(c.Append(ctx, &documentv1.AppendRequest{Id: d.GetId(), Markdown: "y"})),
		"Replace": second(c.Replace(ctx, &documentv1.ReplaceRequest{Id: d.GetId(), Markdown: "y"})),
		"Restore": second(c.Restore(ctx, &documentv1.RestoreRequest{Id: d.GetId(), Version: 1})),
		"Undo":    second(c.Undo(ctx, &documentv1.UndoRequest{Id: d.GetId(), Version: 1})),
		"Delete":  second(c.Delete(ctx, &documentv1.DeleteRequest{Id: d.GetId()})),
	} {
		if f := fault.From(err); f.Kind != fault.Forbidden || !strings.Contains(f.Message, "needs the role editor") {
			t.Errorf("%s by a viewer = %v, want Forbidden", call, err)
		}
	}

	stranger := as(t, actor())
	key := newKey()
	if _, err := c.Replace(as(t, a), &documentv1.ReplaceRequest{Id: d.GetId(), Markdown: "x2", OperationKey: key}); err != nil {
		t.Fatal(err)
	}
	for call, err := range map[string]error{
		"Get":         second(c.Get(stranger, &documentv1.GetRequest{Id: d.GetId()})),
		"Read":        second(c.Read(stranger, &documentv1.ReadRequest{Id: d.GetId()})),
		"ReadVersion": second(c.ReadVersion(stranger, &documentv1.ReadVersionRequest{Id: d.GetId(), Version: 1})),
		"Versions":    second(c.Versions(stranger, &documentv1.VersionsRequest{Id: d.GetId(), WithWords: true})),
		"Append":      second(c.Append(stranger, &documentv1.AppendRequest{Id: d.GetId(), Markdown: "y"})),
		"Delete":      second(c.Delete(stranger, &documentv1.DeleteRequest{Id: d.GetId()})),
		// Operation keys of other workspaces are unknown here.
		"Replace with their key": second(c.Replace(stranger, &documentv1.ReplaceRequest{Id: d.GetId(), Markdown: "x2", OperationKey: key})),
	} {
		if fault.KindOf(err) != fault.NotFound {
			t.Errorf("%s from another workspace = %v, want NotFound", call, err)
		}
	}
	if l, err := c.List(stranger, &documentv1.ListRequest{}); err != nil || len(l.GetDocuments()) != 0 {
		t.Errorf("List from another workspace = %v, %v, want none", l, err)
	}
	if _, err := c.List(t.Context(), &documentv1.ListRequest{}); err == nil {
		t.Error("List without an identity succeeded")
	}
}

func TestOperationKeys(t *testing.T) {
	t.Parallel()
	w, a := newWorld(t), actor()
	ctx := as(t, a)
	one, two := w.start(t, documentsync.Config{}).client(t), w.start(t, documentsync.Config{}).client(t)

	create := &documentv1.CreateRequest{Name: "n", Markdown: "a a", OperationKey: newKey()}
	first, err := one.Create(ctx, create)
	if err != nil {
		t.Fatal(err)
	}
	doc := first.GetDocument().GetId()
	for name, call := range map[string]func(documentv1connect.DocumentServiceClient) (any, error){
		"create": func(c documentv1connect.DocumentServiceClient) (any, error) { return c.Create(ctx, create) },
	} {
		assertSame(t, name, call, one, two)
	}
	steps := []struct {
		name string
		call func(c documentv1connect.DocumentServiceClient, key string) (any, error)
	}{
		{"edit", func(c documentv1connect.DocumentServiceClient, k string) (any, error) {
			return c.Edit(ctx, &documentv1.EditRequest{Id: doc, OldText: "a", NewText: "b", ReplaceAll: true, OperationKey: k})
		}},
		{"append", func(c documentv1connect.DocumentServiceClient, k string) (any, error) {
			return c.Append(ctx, &documentv1.AppendRequest{Id: doc, Markdown: "c", OperationKey: k})
		}},
		{"rename", func(c documentv1connect.DocumentServiceClient, k string) (any, error) {
			return c.Rename(ctx, &documentv1.RenameRequest{Id: doc, Name: "m", OperationKey: k})
		}},
		{"replace", func(c documentv1connect.DocumentServiceClient, k string) (any, error) {
			return c.Replace(ctx, &documentv1.ReplaceRequest{Id: doc, Markdown: "d", OperationKey: k})
		}},
		{"restore", func(c documentv1connect.DocumentServiceClient, k string) (any, error) {
			return c.Restore(ctx, &documentv1.RestoreRequest{Id: doc, Version: 1, OperationKey: k})
		}},
		{"undo", func(c documentv1connect.DocumentServiceClient, k string) (any, error) {
			return c.Undo(ctx, &documentv1.UndoRequest{Id: doc, Version: 5, OperationKey: k})
		}},
		{"delete", func(c documentv1connect.DocumentServiceClient, k string) (any, error) {
			return c.Delete(ctx, &documentv1.DeleteRequest{Id: doc, OperationKey: k})
		}},
	}
	for _, s := range steps {
		key := newKey()
		assertSame(t, s.name, func(c documentv1connect.DocumentServiceClient) (any, error) { return s.call(c, key) }, one, two)
	}
	if _, err := two.Create(ctx, &documentv1.CreateRequest{Name: "other", OperationKey: create.GetOperationKey()}); fault.KindOf(err) != fault.Conflict {
		t.Errorf("Create with the key of another request = %v, want Conflict", err)
	}
	if _, err := two.Delete(ctx, &documentv1.DeleteRequest{Id: doc, OperationKey: create.GetOperationKey()}); fault.KindOf(err) != fault.Conflict {
		t.Errorf("Delete with Create's key = %v, want Conflict", err)
	}
}

// TestRepeatedAppendToAFullDocument repeats an operation that would not fit a second time: it
// gets the first response.
func TestRepeatedAppendToAFullDocument(t *testing.T) {
	t.Parallel()
	ctx, c := as(t, actor()), newWorld(t).start(t, documentsync.Config{DocumentMB: 1}).client(t)
	d := mustCreate(ctx, t, c, "n", "start")
	text := strings.Repeat("word ", 120_000)
	key := newKey()
	assertSame(t, "append", func(c documentv1connect.DocumentServiceClient) (any, error) {
		return c.Append(ctx, &documentv1.AppendRequest{Id: d.GetId(), Markdown: text, OperationKey: key})
	}, c)
	if _, err := c.Append(ctx, &documentv1.AppendRequest{Id: d.GetId(), Markdown: text, OperationKey: newKey()}); fault.KindOf(err) != fault.TooLarge {
		t.Errorf("Append of more than fits = %v, want TooLarge", err)
	}
	if got := content(ctx, t, c, d.GetId()); got != "start\n\n"+strings.TrimSpace(text)+"\n" {
		t.Errorf("the document has %d bytes", len(got))
	}
}

// TestLargeDocument writes a document of the maximum size in one call, and changes it.
func TestLargeDocument(t *testing.T) {
	t.Parallel()
	ctx, c := as(t, actor()), newWorld(t).start(t, documentsync.Config{}).client(t)
	var b strings.Builder
	for i := 0; b.Len() < 10<<20-3000; i++ {
		fmt.Fprintf(&b, "Paragraph %d is *long*.%s\n\n", i, strings.Repeat(" It goes on.", 200))
	}
	text := strings.TrimSuffix(b.String(), "\n")
	doc := mustCreate(ctx, t, c, "n", text).GetId()
	if got := content(ctx, t, c, doc); got != text {
		t.Fatalf("a document of %d bytes was read as %d different bytes", len(text), len(got))
	}
	changed := strings.Replace(text, "Paragraph 2000 is", "Paragraph 2000 was", 1)
	if _, err := c.Replace(ctx, &documentv1.ReplaceRequest{Id: doc, Markdown: changed}); err != nil {
		t.Fatal(err)
	}
	for name, markdown := range map[string]string{
		"too long":        text + text[:4000],
		"one block":       strings.Repeat("x", 2<<20),
		"too many blocks": strings.Repeat("x\n\n", 1<<20),
	} {
		if _, err := c.Replace(ctx, &documentv1.ReplaceRequest{Id: doc, Markdown: markdown}); fault.KindOf(err) != fault.TooLarge {
			t.Errorf("Replace with %s = %v, want TooLarge", name, err)
		}
	}
	if got := content(ctx, t, c, doc); got != changed {
		t.Error("a refused change had an effect")
	}
}

// assertSame checks that a call returns the same response whenever and wherever it is repeated.
func assertSame(t *testing.T, name string, call func(documentv1connect.DocumentServiceClient) (any, error), clients ...documentv1connect.DocumentServiceClient) {
	t.Helper()
	want, err := call(clients[0])
	if err != nil {
		t.Fatalf("%s = %v", name, err)
	}
	for i, c := range slices.Concat(clients, clients) {
		got, err := call(c)
		if err != nil {
			t.Errorf("%s, repetition %d = %v", name, i, err)
		}
		if diff := gocmp.Diff(want, got, protocmp.Transform()); diff != "" {
			t.Errorf("%s, repetition %d (-first +repeated):\n%s", name, i, diff)
		}
	}
}

// TestOneKeyManyCallers sends each operation from many callers at once to two instances: it
// takes effect once.
func TestOneKeyManyCallers(t *testing.T) {
	t.Parallel()
	w, a := newWorld(t), actor()
	ctx := as(t, a)
	clients := []documentv1connect.DocumentServiceClient{w.start(t, documentsync.Config{}).client(t), w.start(t, documentsync.Config{}).client(t)}
	d := mustCreate(ctx, t, clients[0], "n", "start")

	const operations, callers = 8, 6
	var wg sync.WaitGroup
	ids := make([][]string, operations)
	for op := range operations {
		appendKey, createKey := newKey(), newKey()
		ids[op] = make([]string, callers)
		for i := range callers {
			c := clients[i%2]
			wg.Go(func() {
				if _, err := c.Append(ctx, &documentv1.AppendRequest{Id: d.GetId(), Markdown: fmt.Sprintf("line %d", op), OperationKey: appendKey}); err != nil {
					t.Errorf("Append = %v", err)
				}
				r, err := c.Create(ctx, &documentv1.CreateRequest{Name: "made", OperationKey: createKey})
				if err != nil {
					t.Errorf("Create = %v", err)
				}
				ids[op][i] = r.GetDocument().GetId()
			})
		}
	}
	wg.Wait()
	got := content(ctx, t, clients[0], d.GetId())
	for op := range operations {
		if n := strings.Count(got, fmt.Sprintf("line %d", op)); n != 1 {
			t.Errorf("line %d occurs %d times, want once", op, n)
		}
		if len(slices.Compact(ids[op])) != 1 {
			t.Errorf("one key created the documents %v", ids[op])
		}
	}
	list, err := clients[0].List(ctx, &documentv1.ListRequest{PageSize: 100})
	if err != nil || len(list.GetDocuments()) != operations+1 {
		t.Errorf("List = %d documents, %v, want %d", len(list.GetDocuments()), err, operations+1)
	}
}

func TestListPages(t *testing.T) {
	t.Parallel()
	w, a := newWorld(t), actor()
	ctx := as(t, a)
	c := w.start(t, documentsync.Config{}).client(t)
	var want []string
	for i := range 25 {
		want = append(want, mustCreate(ctx, t, c, fmt.Sprintf("doc %d", i), "x").GetId())
	}
	slices.Reverse(want)
	// Among documents with the same time, the id decides.
	db := w.db.Open(t, documentsync.Migrations())
	err := db.InWorkspace(t.Context(), a.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE documents SET updated_at = '2026-01-01' WHERE workspace_id = $1 AND name LIKE 'doc 1%'`, a.Workspace)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int32{1, 7, 12, 25, 100} {
		if got := pages(ctx, t, c, size, nil); len(got) != 25 || len(slices.Compact(slices.Sorted(slices.Values(got)))) != 25 {
			t.Errorf("pages of %d hold %d documents, want each of 25 once: %v", size, len(got), got)
		}
	}

	// While somebody pages, documents on earlier and later pages change.
	seen := pages(ctx, t, c, 5, func(page int) {
		for _, i := range []int{0, 20} {
			if _, err := c.Append(ctx, &documentv1.AppendRequest{Id: want[24-i], Markdown: fmt.Sprint(page)}); err != nil {
				t.Fatal(err)
			}
		}
	})
	counts := map[string]int{}
	for _, d := range seen {
		counts[d]++
	}
	for i, d := range want {
		n := counts[d]
		if moved := 24-i == 0 || 24-i == 20; n > 1 || n < 1 && !moved {
			t.Errorf("document %d was on %d pages", 24-i, n)
		}
	}

	found, err := c.List(ctx, &documentv1.ListRequest{Query: "DOC 24"})
	if err != nil || len(found.GetDocuments()) != 1 || found.GetDocuments()[0].GetName() != "doc 24" {
		t.Errorf(`List of "DOC 24" = %v, %v`, found, err)
	}
	mustCreate(ctx, t, c, `100% of_it\`, "")
	for query, n := range map[string]int{"%": 1, "_": 1, `\`: 1, "doc_": 0, "of 100": 1, "": 20} {
		if l, err := c.List(ctx, &documentv1.ListRequest{Query: query}); err != nil || len(l.GetDocuments()) != n {
			t.Errorf("List of %q = %d documents, %v, want %d", query, len(l.GetDocuments()), err, n)
		}
	}
}

// pages reads all pages and calls between after each.
func pages(ctx context.Context, t *testing.T, c documentv1connect.DocumentServiceClient, size int32, between func(page int)) []string {
	t.Helper()
	var out []string
	token := ""
	for page := range 50 {
		res, err := c.List(ctx, &documentv1.ListRequest{PageSize: size, PageToken: token})
		if err != nil {
			t.Fatalf("List page %d = %v", page, err)
		}
		for _, d := range res.GetDocuments() {
			out = append(out, d.GetId())
		}
		if token = res.GetNextPageToken(); token == "" {
			return out
		}
		if between != nil {
			between(page)
		}
	}
	t.Fatal("the pages never end")
	return nil
}

func TestHistoryIsBounded(t *testing.T) {
	t.Parallel()
	ctx := as(t, actor())
	w := newWorld(t)
	c := w.start(t, documentsync.Config{Versions: 20}).client(t)
	d := mustCreate(ctx, t, c, "n", "v1")
	for i := 2; i <= 100; i++ {
		if _, err := c.Replace(ctx, &documentv1.ReplaceRequest{Id: d.GetId(), Markdown: fmt.Sprintf("v%d", i)}); err != nil {
			t.Fatal(err)
		}
	}
	var all []int64
	token := ""
	for {
		res, err := c.Versions(ctx, &documentv1.VersionsRequest{Id: d.GetId(), PageSize: 6, PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range res.GetVersions() {
			all = append(all, v.GetVersion())
		}
		if token = res.GetNextPageToken(); token == "" {
			break
		}
	}
	if len(all) > 20 || !slices.IsSortedFunc(all, func(a, b int64) int { return cmp.Compare(b, a) }) {
		t.Errorf("history = %v, want at most 20 versions, newest first", all)
	}
	if !slices.Contains(all, 1) || !slices.Contains(all, 100) || !slices.Contains(all, 96) {
		t.Errorf("history = %v, want the first version and all of the newest", all)
	}
	// Kept versions can be restored.
	for _, v := range []int64{1, all[1]} {
		if _, err := c.Restore(ctx, &documentv1.RestoreRequest{Id: d.GetId(), Version: v}); err != nil {
			t.Errorf("Restore(%d) = %v", v, err)
		}
		if got := content(ctx, t, c, d.GetId()); got != fmt.Sprintf("v%d\n", v) {
			t.Errorf("content after Restore(%d) = %q", v, got)
		}
	}
}

func TestHistoryIsBoundedInBytes(t *testing.T) {
	t.Parallel()
	a := actor()
	ctx := as(t, a)
	w := newWorld(t)
	c := w.start(t, documentsync.Config{HistoryMB: 1}).client(t)
	d := mustCreate(ctx, t, c, "n", "")
	for i := range 40 {
		if _, err := c.Replace(ctx, &documentv1.ReplaceRequest{Id: d.GetId(), Markdown: strings.Repeat(fmt.Sprint(i%10), 100<<10)}); err != nil {
			t.Fatal(err)
		}
	}
	var count, counted int
	var size, added int64
	err := w.db.Open(t, documentsync.Migrations()).InWorkspace(t.Context(), a.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, `SELECT d.versions, d.version_bytes, count(*), sum(octet_length(v.content) + coalesce(octet_length(v.state), 0) + coalesce(octet_length(v.change), 0)) FROM documents d, versions v
			WHERE d.workspace_id = $1 AND v.workspace_id = $1 AND v.document_id = d.id GROUP BY 1, 2`, a.Workspace).Scan(&count, &size, &counted, &added)
	})
	if err != nil || count != counted || size != added {
		t.Errorf("the document's row counts %d versions of %d bytes, %v; there are %d of %d", count, size, err, counted, added)
	}
	if added > 1<<20 {
		t.Errorf("history has %d bytes, want at most 1 MiB", added)
	}
}

func TestOps(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := w.start(t, documentsync.Config{})
	for path, want := range map[string]string{"/health": `"status":"ok"`, "/ready": `"nats":"ok"`} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, i.url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil || res.StatusCode != http.StatusOK || !strings.Contains(string(body), want) {
			t.Errorf("GET %s = %d %s, %v", path, res.StatusCode, body, err)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestDrainLetsCallsFinish(t *testing.T) {
	t.Parallel()
	w, a := newWorld(t), actor()
	ctx := as(t, a)
	i := w.start(t, documentsync.Config{})
	c := i.client(t)
	d := mustCreate(ctx, t, c, "n", "")
	// The call waits for a locked row, and the service for the call.
	db := w.db.Open(t, documentsync.Migrations())
	answered := make(chan error, 1)
	err := db.InWorkspace(t.Context(), a.Workspace, func(txctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(txctx, `SELECT FROM documents WHERE workspace_id = $1 FOR UPDATE`, a.Workspace); err != nil {
			return err
		}
		go func() { answered <- second(c.Append(ctx, &documentv1.AppendRequest{Id: d.GetId(), Markdown: "x"})) }()
		waitForLock(txctx, t, w)
		go i.stop()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-answered; err != nil {
		t.Errorf("Append during the drain = %v", err)
	}
	i.stop()
}

// waitForLock returns when a session of the test's database waits for a lock.
func waitForLock(ctx context.Context, t *testing.T, w *world) {
	t.Helper()
	conn, err := pgx.Connect(ctx, w.db.AdminURL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	for {
		var waiting bool
		err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')`).Scan(&waiting)
		if err != nil {
			t.Fatal(err)
		}
		if waiting {
			return
		}
	}
}

func TestStartsWithoutNATS(t *testing.T) {
	t.Parallel()
	w, a := newWorld(t), actor()
	ctx := as(t, a)
	b := natstest.Bus(t, w.nats, "document-sync")
	w.nats.Shutdown()
	c := w.startOn(t, documentsync.Config{}, b).client(t)
	d := mustCreate(ctx, t, c, "n", "x")
	if got := content(ctx, t, c, d.GetId()); got != "x\n" {
		t.Errorf("content = %q, want x", got)
	}
}

func BenchmarkAppend(b *testing.B) {
	w := newWorld(b)
	ctx, c := as(b, actor()), w.start(b, documentsync.Config{}).client(b)
	d := mustCreate(ctx, b, c, "n", "")
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if _, err := c.Append(ctx, &documentv1.AppendRequest{Id: d.GetId(), Markdown: "a line of text", OperationKey: newKey()}); err != nil {
			b.Fatal(err)
		}
		if i%200 == 199 { // measure an append, not a growing document
			if _, err := c.Replace(ctx, &documentv1.ReplaceRequest{Id: d.GetId(), Markdown: ""}); err != nil {
				b.Fatal(err)
			}
		}
	}
}
