package room_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/yjs"
	documentv1 "signalbox.dev/proto/signalbox/document/v1"
	"signalbox.dev/services/document-sync/internal/room"
	"signalbox.dev/services/document-sync/internal/store"
)

// joinSoon joins, and fails the test if the room does not respond.
func joinSoon(t *testing.T, h *room.Hub, ref store.Ref, c *client) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	seat, err := h.Join(ctx, ref, editor(), c)
	if ctx.Err() != nil {
		t.Fatalf("Join() = %v, want an answer", err)
	}
	c.seat = seat
	return err
}

// rejoin opens the document again for a client that was closed, and has it send what the server
// lacks.
func rejoin(t *testing.T, h *room.Hub, ref store.Ref, c *client) {
	t.Helper()
	if c.closed() != room.CloseBusy {
		t.Fatalf("the client was closed with %d, want %d", c.closed(), room.CloseBusy)
	}
	c.seat.Leave()
	c.mu.Lock()
	c.code, c.got = 0, nil
	c.mu.Unlock()
	if err := joinSoon(t, h, ref, c); err != nil {
		t.Fatalf("Join() after a panic = %v", err)
	}
	settle(c)
}

// TestLoadPanics checks that a panic during a load is an error of that call; the next one works.
func TestLoadPanics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		h, stop := open(t, room.Config{Store: m, Loads: 1})
		defer stop()
		m.panicOnce("Load")
		if err := joinSoon(t, h, ref, newClient(t)); err == nil {
			t.Error("Join() while loading panics = nil, want an error")
		}
		equal(t, "rooms", h.Open(), 0)
		a := newClient(t)
		if err := joinSoon(t, h, ref, a); err != nil {
			t.Fatalf("Join() after a panic = %v", err)
		}
		a.write(0, "text")
		settle(a)
		equal(t, "stored", m.text(t, ref), "text")
	})
}

// TestCommitPanics checks that a panic in a commit closes the peers, who reconnect and lose
// nothing, and that waiting updates release their budget.
func TestCommitPanics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		// One update exceeds the budget, so it is accepted only while nothing else waits.
		h, stop := open(t, room.Config{Store: m, MemoryBytes: 16 << 10})
		defer stop()
		a := newClient(t)
		a.mute = true
		if err := joinSoon(t, h, ref, a); err != nil {
			t.Fatal(err)
		}
		settle(a)
		m.panicOnce("Append")
		text := strings.Repeat("x", 3<<10)
		a.write(0, text)
		settle(a)
		rejoin(t, h, ref, a)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := a.seat.Update(ctx, a.doc.EncodeStateAsUpdate(nil)); err != nil {
			t.Fatalf("Update() after a panic = %v", err)
		}
		settle(a)
		if m.text(t, ref) != text {
			t.Error("the text is not stored")
		}
		err := h.Read(ctx, ref, func(doc *yjs.Doc, _ int64) error {
			equal(t, "read", doc.Text("t").String(), text)
			return nil
		})
		if err != nil {
			t.Errorf("Read() after a panic = %v", err)
		}
	})
}

// TestReloadPanics checks the same for a panic while a discarded doc is reloaded.
func TestReloadPanics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		h, stop := open(t, room.Config{Store: m})
		defer stop()
		a := newClient(t)
		if err := joinSoon(t, h, ref, a); err != nil {
			t.Fatal(err)
		}
		a.write(0, "text")
		settle(a)
		m.panicOnce("Load")
		if err := h.Read(t.Context(), ref, func(*yjs.Doc, int64) error { panic("a bug") }); err == nil {
			t.Error("Read() with a panic = nil")
		}
		settle(a)
		rejoin(t, h, ref, a)
		a.write(4, " and more")
		settle(a)
		equal(t, "stored", m.text(t, ref), "text and more")
	})
}

// TestSavePanics checks that saving a snapshot is retried after a panic.
func TestSavePanics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		h, stop := open(t, room.Config{Store: m})
		defer stop()
		a := join(t, h, ref)
		m.panicOnce("Save")
		a.write(0, "text")
		pass(time.Minute)
		equal(t, "snapshots", len(m.saves(ref)), 1)
		equal(t, "code", a.closed(), 0)
	})
}

// TestRepairPanics checks that reading missing updates is retried after a panic.
func TestRepairPanics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		h, stop := open(t, room.Config{Store: m})
		defer stop()
		a := join(t, h, ref)
		settle(a)
		if _, err := m.Append(t.Context(), ref, store.Author{}, written("elsewhere")); err != nil {
			t.Fatal(err)
		}
		m.panicOnce("Since")
		pass(time.Minute) // heads reveal it
		equal(t, "text", a.text(), "elsewhere")
		equal(t, "code", a.closed(), 0)
	})
}

// TestDrainPanics checks that a panic during the drain prevents the last snapshot, but not the end.
func TestDrainPanics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		h, stop := open(t, room.Config{Store: m})
		a := join(t, h, ref)
		a.write(0, "text")
		settle(a)
		m.panicOnce("Save")
		stop()
		equal(t, "stored", m.text(t, ref), "text")
		_, err := h.Join(t.Context(), ref, editor(), newClient(t))
		equal(t, "kind of Join() at the end", fault.KindOf(err), fault.Unavailable)
	})
}

// contained is a wire that recovers panics of subscribers, like pkg/bus.
type contained struct{ *wire }

func (c contained) Subscribe(ref store.Ref, receive func(*documentv1.Change)) (func(), error) {
	return c.wire.Subscribe(ref, func(change *documentv1.Change) {
		defer func() { _ = recover() }()
		receive(change)
	})
}

// jumpy is a client that panics once when it receives an update.
type jumpy struct {
	*client

	calm bool
}

func (j *jumpy) Send(m *room.Message) {
	if m.Kind == room.KindUpdate && !j.calm {
		j.calm = true
		panic("a bug in Send")
	}
	j.client.Send(m)
}

// TestPeerPanicsOnBusMessage checks that a peer that panics while it receives another
// instance's update gets it again, and that the document works.
func TestPeerPanicsOnBusMessage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		w := newWire()
		h1, stop1 := open(t, room.Config{Store: m, Bus: w})
		defer stop1()
		h2, stop2 := open(t, room.Config{Store: m, Bus: contained{w}})
		defer stop2()
		a := join(t, h1, ref)
		b := &jumpy{client: newClient(t)}
		seat, err := h2.Join(t.Context(), ref, editor(), b)
		if err != nil {
			t.Fatal(err)
		}
		b.seat = seat
		settle(a, b.client)
		a.write(0, "text")
		pass(time.Second)
		equal(t, "panicked", b.calm, true)
		equal(t, "text", b.text(), "text")
		c := join(t, h2, ref)
		settle(a, c)
		c.write(0, "more ")
		settle(a, c)
		equal(t, "stored", m.text(t, ref), "more text")
	})
}
