package documentsync_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	documentv1 "signalbox.dev/proto/signalbox/document/v1"
	"signalbox.dev/proto/signalbox/document/v1/documentv1connect"
	documentsync "signalbox.dev/services/document-sync"
)

// TestSeedsOfThePreviousRelease starts with documents of the previous release.
func TestSeedsOfThePreviousRelease(t *testing.T) {
	t.Parallel()
	w, a := newWorld(t), actor()
	ctx := as(t, a)
	db := w.db.Open(t, documentsync.Migrations())
	large := strings.Repeat(strings.Repeat("word ", 100)+"\n\n", 3000) // 1.5 MB
	contents := map[id.Document]string{
		id.New[id.Document](): "# Old\n\nHard    blanks, *stars* and\n\n- a list\n",
		id.New[id.Document](): "",
		id.New[id.Document](): large,
	}
	for doc, content := range contents {
		err := db.InWorkspace(ctx, a.Workspace, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `INSERT INTO documents (workspace_id, id, name, content, sequence, created_by, created_at, updated_by, updated_at, versions, version_bytes)
				VALUES ($1, $2, 'old', $3, 7, $4, now(), $4, now(), 0, 0)`, a.Workspace, doc, content, a.Member)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	c := w.start(t, documentsync.Config{}).client(t)
	for doc, before := range contents {
		got := content(ctx, t, c, doc.String())
		if strings.Join(strings.Fields(got), " ") != strings.Join(strings.Fields(before), " ") {
			t.Errorf("content is %.100q, was %.100q", got, before)
		}
		if _, err := c.Append(ctx, &documentv1.AppendRequest{Id: doc.String(), Markdown: "More."}); err != nil {
			t.Errorf("Append: %v", err)
		}
		if got := content(ctx, t, c, doc.String()); !strings.HasSuffix(got, "More.\n") {
			t.Errorf("content after Append ends with %q", got[max(0, len(got)-40):])
		}
	}
	// All are converted, whether somebody opens them or not.
	var left int
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); {
		err := db.InWorkspace(ctx, a.Workspace, func(ctx context.Context, tx pgx.Tx) error {
			return tx.QueryRow(ctx, `SELECT count(*) FROM documents WHERE seed_before IS NOT NULL`).Scan(&left)
		})
		if err != nil {
			t.Fatal(err)
		}
		if left == 0 {
			return
		}
	}
	t.Errorf("%d documents are still only Markdown", left)
}

// TestOperationsOnTwoInstances repeatedly sends the same operation to both instances at once:
// it takes effect once, and both return the same response.
func TestOperationsOnTwoInstances(t *testing.T) {
	t.Parallel()
	w, a := newWorld(t), actor()
	ctx := as(t, a)
	one, two := w.start(t, documentsync.Config{}).client(t), w.start(t, documentsync.Config{}).client(t)
	d := mustCreate(ctx, t, one, "n", "begin")
	var want strings.Builder
	want.WriteString("begin\n")
	for i := range 20 {
		line, key := fmt.Sprintf("line %d", i), newKey()
		fmt.Fprintf(&want, "\n%s\n", line)
		var answers [2]*documentv1.AppendResponse
		var errs [2]error
		var both sync.WaitGroup
		for j, c := range []documentv1connect.DocumentServiceClient{one, two} {
			both.Go(func() {
				answers[j], errs[j] = c.Append(ctx, &documentv1.AppendRequest{Id: d.GetId(), Markdown: line, OperationKey: key})
			})
		}
		both.Wait()
		if err := errors.Join(errs[:]...); err != nil {
			t.Fatal(err)
		}
		if x, y := answers[0].GetDocument().GetSequence(), answers[1].GetDocument().GetSequence(); x != y {
			t.Errorf("responses to the same operation have sequences %d and %d", x, y)
		}
	}
	for i, c := range []documentv1connect.DocumentServiceClient{one, two} {
		res, err := c.Read(ctx, &documentv1.ReadRequest{Id: d.GetId()})
		if err != nil || res.GetMarkdown() != want.String() {
			t.Errorf("Read on instance %d = %q, %v, want %q", i+1, res.GetMarkdown(), err, want.String())
		}
	}
	// Operations on a deleted document can still be repeated.
	key := newKey()
	done, err := one.Append(ctx, &documentv1.AppendRequest{Id: d.GetId(), Markdown: "last", OperationKey: key})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := two.Delete(ctx, &documentv1.DeleteRequest{Id: d.GetId()}); err != nil {
		t.Fatal(err)
	}
	again, err := two.Append(ctx, &documentv1.AppendRequest{Id: d.GetId(), Markdown: "last", OperationKey: key})
	if err != nil || again.GetDocument().GetSequence() != done.GetDocument().GetSequence() {
		t.Errorf("the operation repeated after the deletion = %v, %v, want %v", again, err, done)
	}
	restore := newKey()
	d = mustCreate(ctx, t, one, "n", "begin")
	if _, err := one.Restore(ctx, &documentv1.RestoreRequest{Id: d.GetId(), Version: 1, OperationKey: restore}); err != nil {
		t.Fatal(err)
	}
	if _, err := two.Delete(ctx, &documentv1.DeleteRequest{Id: d.GetId()}); err != nil {
		t.Fatal(err)
	}
	if _, err := two.Restore(ctx, &documentv1.RestoreRequest{Id: d.GetId(), Version: 1, OperationKey: restore}); err != nil {
		t.Errorf("Restore repeated after the deletion = %v, want the first response", err)
	}
	if _, err := one.Append(ctx, &documentv1.AppendRequest{Id: d.GetId(), Markdown: "x", OperationKey: newKey()}); fault.KindOf(err) != fault.NotFound {
		t.Errorf("Append to a deleted document = %v, want NotFound", err)
	}
}
