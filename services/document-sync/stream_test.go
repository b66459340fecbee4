package documentsync_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	gocmp "github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	documentv1 "signalbox.dev/proto/signalbox/document/v1"
	"signalbox.dev/proto/signalbox/document/v1/documentv1connect"
	documentsync "signalbox.dev/services/document-sync"
)

type changes = *connect.ServerStreamForClient[documentv1.SubscribeResponse]

func subscribe(ctx context.Context, t *testing.T, c documentv1connect.DocumentServiceClient, doc string) changes {
	t.Helper()
	s, err := c.Subscribe(ctx, &documentv1.SubscribeRequest{Id: doc})
	if err != nil {
		t.Fatalf("Subscribe(%q) = %v", doc, err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// next receives one change, as "kind name sequence".
func next(t *testing.T, s changes) string {
	t.Helper()
	if !s.Receive() {
		t.Fatalf("the stream ended: %v", s.Err())
	}
	return describe(s.Msg())
}

func describe(m *documentv1.SubscribeResponse) string {
	return fmt.Sprintf("%s %s %d", strings.TrimPrefix(m.GetKind().String(), "KIND_"), m.GetDocument().GetName(), m.GetDocument().GetSequence())
}

func TestSubscribeAcrossInstances(t *testing.T) {
	t.Parallel()
	w, a := newWorld(t), actor()
	ctx := as(t, a)
	one, two := w.start(t, documentsync.Config{}).client(t), w.start(t, documentsync.Config{}).client(t)
	d := mustCreate(ctx, t, one, "a", "x")
	other := mustCreate(ctx, t, one, "other", "x")

	doc, all := subscribe(ctx, t, two, d.GetId()), subscribe(ctx, t, two, "")
	if got := next(t, doc); got != "CURRENT a 1" {
		t.Errorf("first message about the document = %q, want CURRENT a 1", got)
	}
	if diff := gocmp.Diff([]string{"CURRENT other 1", "CURRENT a 1"}, []string{next(t, all), next(t, all)}); diff != "" {
		t.Errorf("first messages about the workspace (-want +got):\n%s", diff)
	}
	mustCreate(as(t, actor()), t, one, "of strangers", "x")
	do := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	do(one.Append(ctx, &documentv1.AppendRequest{Id: other.GetId(), Markdown: "y"}))
	do(one.Append(ctx, &documentv1.AppendRequest{Id: d.GetId(), Markdown: "y"}))
	do(two.Rename(ctx, &documentv1.RenameRequest{Id: d.GetId(), Name: "b"}))
	key := newKey()
	for range 2 { // the repetition changes nothing
		do(one.Replace(ctx, &documentv1.ReplaceRequest{Id: d.GetId(), Markdown: "z", OperationKey: key}))
	}
	do(one.Create(ctx, &documentv1.CreateRequest{Name: "new"}))
	do(two.Delete(ctx, &documentv1.DeleteRequest{Id: d.GetId()}))

	var got []string
	for doc.Receive() {
		got = append(got, describe(doc.Msg()))
		if a := doc.Msg().GetAuthor(); a.GetMemberId() == "" || a.GetRunId() == "" {
			t.Errorf("change %s has author %v", describe(doc.Msg()), a)
		}
	}
	if doc.Err() != nil {
		t.Errorf("the stream of a deleted document ended with %v", doc.Err())
	}
	if diff := gocmp.Diff([]string{"CHANGED a 2", "RENAMED b 3", "CHANGED b 4", "DELETED b 5"}, got); diff != "" {
		t.Errorf("changes of the document (-want +got):\n%s", diff)
	}
	got = nil
	for range 6 {
		got = append(got, next(t, all))
	}
	want := map[string]bool{"CHANGED other 2": true, "CHANGED a 2": true, "RENAMED b 3": true, "CHANGED b 4": true, "CREATED new 1": true, "DELETED b 5": true}
	for _, g := range got {
		if !want[g] {
			t.Errorf("change of the workspace %q is repeated or foreign: %v", g, got)
		}
		delete(want, g)
	}
}

func TestSubscribeRefused(t *testing.T) {
	t.Parallel()
	ctx := as(t, actor())
	c := newWorld(t).start(t, documentsync.Config{Streams: 1}).client(t)
	d := mustCreate(ctx, t, c, "n", "")
	for name, tt := range map[string]struct {
		ctx  context.Context //nolint:containedctx // a table of callers
		doc  string
		kind fault.Kind
	}{
		"bad id":            {ctx, "x", fault.Invalid},
		"unknown":           {ctx, newKey(), fault.NotFound},
		"another workspace": {as(t, actor()), d.GetId(), fault.NotFound},
	} {
		s := subscribe(tt.ctx, t, c, tt.doc)
		if s.Receive() || fault.KindOf(s.Err()) != tt.kind {
			t.Errorf("Subscribe, %s = %v, want %v", name, s.Err(), tt.kind)
		}
	}
	s := subscribe(ctx, t, c, d.GetId())
	next(t, s)
	full := subscribe(ctx, t, c, d.GetId())
	if full.Receive() || fault.KindOf(full.Err()) != fault.Unavailable {
		t.Errorf("Subscribe to a full instance = %v, want Unavailable", full.Err())
	}
}

func TestSubscribeEndsWithTheInstance(t *testing.T) {
	t.Parallel()
	ctx := as(t, actor())
	i := newWorld(t).start(t, documentsync.Config{})
	c := i.client(t)
	s := subscribe(ctx, t, c, mustCreate(ctx, t, c, "n", "").GetId())
	next(t, s)
	i.stop()
	if s.Receive() || fault.KindOf(s.Err()) != fault.Unavailable {
		t.Errorf("the stream of a stopped instance = %v, want Unavailable", s.Err())
	}
}

// TestSubscribeWithoutAnnouncements changes rows directly: announcements are lost when a process
// or a connection dies.
func TestSubscribeWithoutAnnouncements(t *testing.T) {
	t.Parallel()
	w, a := newWorld(t), actor()
	ctx := as(t, a)
	c := w.start(t, documentsync.Config{Resync: 50 * time.Millisecond}).client(t)
	d := mustCreate(ctx, t, c, "a", "")
	doc, all := subscribe(ctx, t, c, d.GetId()), subscribe(ctx, t, c, "")
	next(t, doc)
	next(t, all)
	for _, statement := range []string{
		`UPDATE documents SET sequence = 2, name = 'b', updated_at = now() WHERE workspace_id = $1 AND id = $2`,
		`UPDATE documents SET sequence = 3, deleted_at = now(), updated_at = now() WHERE workspace_id = $1 AND id = $2`,
	} {
		err := w.db.Open(t, documentsync.Migrations()).InWorkspace(t.Context(), a.Workspace, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, statement, a.Workspace, id.Must[id.Document](d.GetId()))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		want := "CHANGED b 2"
		if strings.Contains(statement, "deleted_at") {
			want = "DELETED b 3"
		}
		for name, s := range map[string]changes{"document": doc, "workspace": all} {
			if got := next(t, s); got != want {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
		}
	}
}
