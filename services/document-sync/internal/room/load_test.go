package room_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/yjs"
	documentv1 "signalbox.dev/proto/signalbox/document/v1"
	"signalbox.dev/services/document-sync/internal/room"
	"signalbox.dev/services/document-sync/internal/store"
)

// TestLoadsByTurn checks that many loads of one workspace do not delay another workspace.
func TestLoadsByTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		h, stop := open(t, room.Config{Store: m, Loads: 1})
		defer stop()
		release := m.block("Load")
		flood := newRef().Workspace
		var mu sync.Mutex
		before, ended := 0, false // documents of the flood opened before the other one
		var wg sync.WaitGroup
		for range 20 {
			ref := m.createIn(flood)
			wg.Go(func() {
				join(t, h, ref)
				mu.Lock()
				defer mu.Unlock()
				if !ended {
					before++
				}
			})
		}
		synctest.Wait()
		other := m.create()
		wg.Go(func() {
			join(t, h, other)
			mu.Lock()
			defer mu.Unlock()
			ended = true
		})
		synctest.Wait()
		release()
		wg.Wait()
		if before > 2 { // the one that was loading, and one that finished at the same moment
			t.Errorf("%d documents of the flood were opened before, want one or two", before)
		}
	})
}

func TestLoading(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		h, stop := open(t, room.Config{Store: m})
		defer stop()
		release := m.block("Load")
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() { join(t, h, ref) })
		}
		synctest.Wait()
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := h.Join(gone, ref, editor(), newClient(t)); !errors.Is(err, context.Canceled) {
			t.Errorf("Join() with a cancelled context = %v", err)
		}
		release()
		wg.Wait()
		equal(t, "loads", m.count("Load"), 1)

		// An error goes to the callers and is not cached.
		broken := m.create()
		m.failing("Load", errDown)
		if _, err := h.Join(t.Context(), broken, editor(), newClient(t)); !errors.Is(err, errDown) {
			t.Errorf("Join() = %v, want %v", err, errDown)
		}
		m.failing("Load", nil)
		join(t, h, broken)
		if _, err := h.Join(t.Context(), newRef(), editor(), newClient(t)); fault.KindOf(err) != fault.NotFound {
			t.Errorf("Join() of a missing document = %v, want NotFound", err)
		}
		if _, err := m.Append(t.Context(), broken, store.Author{}, []byte{1, 1, 1}); err != nil {
			t.Fatal(err)
		}
		h2, stop2 := open(t, room.Config{Store: m})
		defer stop2()
		if _, err := h2.Join(t.Context(), broken, editor(), newClient(t)); !errors.Is(err, yjs.ErrMalformed) {
			t.Errorf("Join() of a broken document = %v, want %v", err, yjs.ErrMalformed)
		}
		equal(t, "rooms", h2.Open(), 0)
	})
}

func TestUnloadAndReload(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref, full := m.create(), m.create()
		h, stop := open(t, room.Config{Store: m, Rooms: 1})
		defer stop()
		a := join(t, h, ref)
		a.write(0, "x")
		settle(a)
		if _, err := h.Join(t.Context(), full, editor(), newClient(t)); fault.KindOf(err) != fault.Unavailable {
			t.Errorf("Join() of one too many = %v, want Unavailable", err)
		}
		a.seat.Leave()
		if _, err := h.Join(t.Context(), full, editor(), newClient(t)); fault.KindOf(err) != fault.Unavailable {
			t.Errorf("Join() while the other one is unsaved = %v, want Unavailable", err)
		}
		pass(3 * time.Second)
		b := join(t, h, full) // evicts the idle one
		equal(t, "rooms", h.Open(), 1)
		b.seat.Leave()
		pass(29 * time.Second)
		equal(t, "rooms", h.Open(), 1)
		pass(10 * time.Second)
		equal(t, "rooms", h.Open(), 0)
		equal(t, "again", join(t, h, ref).text(), "x")
	})
}

// TestShare checks that a workspace with more than its share of the rooms leaves the last share
// to others.
func TestShare(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		h, stop := open(t, room.Config{Store: m, Rooms: 8})
		defer stop()
		ws := id.New[id.Workspace]()
		var greedy []*client
		for range 6 {
			greedy = append(greedy, join(t, h, m.createIn(ws)))
		}
		more := m.createIn(ws)
		if _, err := h.Join(t.Context(), more, editor(), newClient(t)); fault.KindOf(err) != fault.Unavailable {
			t.Errorf("Join() of more than three quarters = %v, want Unavailable", err)
		}
		join(t, h, m.create()) // of another workspace
		greedy[0].seat.Leave()
		greedy[1].seat.Leave()
		join(t, h, more)
		equal(t, "rooms", h.Open(), 6)
		other := id.New[id.Workspace]()
		join(t, h, m.createIn(other))
		join(t, h, m.createIn(other))
		equal(t, "rooms", h.Open(), 8)
	})
}

// TestIdleRoomsCatchUp checks that a peer who joins an idle room soon gets an update that the bus
// lost.
func TestIdleRoomsCatchUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		changed, deleted := m.create(), m.create()
		h, stop := open(t, room.Config{Store: m})
		defer stop()
		for _, ref := range []store.Ref{changed, deleted} {
			a := join(t, h, ref)
			a.write(0, "x")
			settle(a)
			pass(5 * time.Second) // until it is saved
			a.seat.Leave()
		}
		m.mu.Lock()
		m.docs[changed].append(store.Author{}, newClient(t).edit(func(t *yjs.Text) { t.Insert(0, "y") }))
		m.mu.Unlock()
		m.remove(deleted)
		pass(10 * time.Second)
		equal(t, "rooms", h.Open(), 1)
		equal(t, "who comes", len(join(t, h, changed).text()), 2)
		if _, err := h.Join(t.Context(), deleted, editor(), newClient(t)); fault.KindOf(err) != fault.NotFound {
			t.Errorf("Join() = %v, want NotFound", err)
		}
	})
}

// TestDeletedDuringReload checks that callers who wait for a reload learn of a deletion.
func TestDeletedDuringReload(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		h, stop := open(t, room.Config{Store: m, ApplySeed: func(*yjs.Doc, store.Seed) error { return nil }})
		defer stop()
		join(t, h, ref)
		m.seed(ref, store.Seed{After: "text"})
		m.failing("Load", fault.New(fault.NotFound, "it is not there"))
		if err := h.Read(t.Context(), ref, func(*yjs.Doc, int64) error { return nil }); fault.KindOf(err) != fault.NotFound {
			t.Errorf("Read() = %v, want NotFound", err)
		}
	})
}

func TestDeletion(t *testing.T) {
	t.Parallel()
	deleted := &documentv1.Change{Change: &documentv1.SubscribeResponse{Kind: documentv1.SubscribeResponse_KIND_DELETED}}
	for _, tt := range []struct {
		name string
		find func(t *testing.T, h *room.Hub, w *wire, ref store.Ref, a *client)
	}{
		{"by the bus", func(t *testing.T, _ *room.Hub, w *wire, ref store.Ref, _ *client) {
			_ = w.Publish(t.Context(), ref, deleted)
		}},
		{"by a commit", func(_ *testing.T, _ *room.Hub, _ *wire, _ store.Ref, a *client) { a.write(0, "x") }},
		{"by the heads", func(*testing.T, *room.Hub, *wire, store.Ref, *client) { pass(10 * time.Second) }},
		{"by an operation", func(t *testing.T, h *room.Hub, _ *wire, ref store.Ref, _ *client) {
			err := h.Read(t.Context(), ref, func(*yjs.Doc, int64) error { return nil })
			if fault.KindOf(err) != fault.NotFound {
				t.Errorf("Read() = %v, want NotFound", err)
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m := newMemory()
				ref := m.create()
				w := newWire()
				h, stop := open(t, room.Config{Store: m, Bus: w})
				defer stop()
				a := join(t, h, ref)
				settle(a)
				m.remove(ref)
				tt.find(t, h, w, ref, a)
				settle(a)
				equal(t, "code", a.closed(), room.CloseGone)
				equal(t, "rooms", h.Open(), 0)
				if err := a.seat.Update(t.Context(), []byte{0, 0}); fault.KindOf(err) != fault.NotFound {
					t.Errorf("Update() = %v, want NotFound", err)
				}
				if err := a.seat.Sync([]byte{0}); fault.KindOf(err) != fault.NotFound {
					t.Errorf("Sync() = %v, want NotFound", err)
				}
				a.seat.Leave()
			})
		})
	}
}

// TestSeeds has an older release write Markdown before the document is opened and while it is.
func TestSeeds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		plant := func(d *yjs.Doc, s store.Seed) error {
			d.Text("t").Delete(0, len(s.Before))
			d.Text("t").Insert(0, s.After)
			return nil
		}
		w := newWire()
		h, stop := open(t, room.Config{Store: m, Bus: w, ApplySeed: plant})
		defer stop()
		m.seed(ref, store.Seed{After: "old"})
		a, b := join(t, h, ref), join(t, h, ref)
		equal(t, "a", a.text(), "old")
		equal(t, "stored", m.text(t, ref), "old")
		m.seed(ref, store.Seed{Before: "old", After: "older"})
		_ = w.Publish(t.Context(), ref, &documentv1.Change{Change: &documentv1.SubscribeResponse{
			Kind: documentv1.SubscribeResponse_KIND_CHANGED, Document: &documentv1.Document{Sequence: 99},
		}})
		pass(time.Second)
		settle(a, b)
		equal(t, "b", b.text(), "older")
		since := m.count("Since")
		pass(time.Minute)
		if n := m.count("Since") - since; n > 2 {
			t.Errorf("%d reads in a minute for a sequence that does not exist", n)
		}
	})
}
