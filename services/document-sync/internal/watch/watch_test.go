package watch_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/natsd/natstest"
	"signalbox.dev/pkg/subject"
	documentv1 "signalbox.dev/proto/signalbox/document/v1"
	"signalbox.dev/services/document-sync/internal/store"
	"signalbox.dev/services/document-sync/internal/watch"
)

// rows is a Source in memory.
type rows struct {
	mu  sync.Mutex // guards all
	all []store.Document
}

func (r *rows) Changed(_ context.Context, ws id.Workspace, _ time.Duration, _ *store.Cursor, _ int) ([]store.Document, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []store.Document
	for _, d := range r.all {
		if d.Workspace == ws {
			out = append(out, d)
		}
	}
	return out, nil
}

func (r *rows) put(d store.Document) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, d)
}

func run(t *testing.T, cfg watch.Config) *watch.Hub {
	t.Helper()
	cfg.Bus = natstest.Bus(t, natstest.New(t), subject.DocumentSync)
	cfg.Log = natstest.Log(t)
	h := watch.New(cfg)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := h.Run(ctx); err != nil {
			t.Errorf("Run = %v", err)
		}
	})
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	return h
}

func change(d store.Document) *documentv1.SubscribeResponse {
	return &documentv1.SubscribeResponse{Kind: documentv1.SubscribeResponse_KIND_CHANGED, Document: d.Proto(), Author: d.Author.Proto()}
}

func document(ws id.Workspace) store.Document {
	now := time.Now()
	return store.Document{Workspace: ws, ID: id.New[id.Document](), Name: "n", Sequence: 1, CreatedAt: now, UpdatedAt: now}
}

func TestSlowWatcherIsEnded(t *testing.T) {
	t.Parallel()
	h := run(t, watch.Config{Source: &rows{}, Resync: time.Hour, Watchers: 10, Queue: 4})
	ws := id.New[id.Workspace]()
	d := document(ws)
	slow, err := h.Watch(t.Context(), ws, d.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	quick, err := h.Watch(t.Context(), ws, id.Document{})
	if err != nil {
		t.Fatal(err)
	}
	defer quick.Close()
	for range 10 {
		d.Sequence++
		h.Announce(t.Context(), ws, d.ID, change(d))
		c, err := quick.Next(t.Context())
		if err != nil || c.GetDocument().GetSequence() != d.Sequence {
			t.Fatalf("Next of the fast watcher = %v, %v, want sequence %d", c, err, d.Sequence)
		}
	}
	if c, err := slow.Next(t.Context()); fault.KindOf(err) != fault.Limited {
		t.Errorf("Next of the slow watcher = %v, %v, want Limited", c, err)
	}
	if h.Count() != 1 {
		t.Errorf("Count() = %d, want only the fast one", h.Count())
	}
}

func TestOldChangesAreSkipped(t *testing.T) {
	t.Parallel()
	source := &rows{}
	h := run(t, watch.Config{Source: source, Resync: 10 * time.Millisecond, Watchers: 10, Queue: 4})
	ws := id.New[id.Workspace]()
	d := document(ws)
	w, err := h.Watch(t.Context(), ws, id.Document{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for _, sequence := range []int64{2, 3, 3, 2} { // 2 and 3 are queued when the caller reads 2
		d.Sequence = sequence
		h.Announce(t.Context(), ws, d.ID, change(d))
	}
	source.put(d) // sequence 2, repeatedly
	w.MarkSeen(d.ID, 2, d.UpdatedAt)
	c, err := w.Next(t.Context())
	if err != nil || c.GetDocument().GetSequence() != 3 {
		t.Fatalf("Next = %v, %v, want sequence 3", c, err)
	}
	d.Sequence = 4
	source.put(d)
	if c, err = w.Next(t.Context()); err != nil || c.GetDocument().GetSequence() != 4 {
		t.Fatalf("Next = %v, %v, want sequence 4, from the source", c, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if c, err := w.Next(ctx); err == nil {
		t.Errorf("Next = %v, want no more changes", c)
	}
}
