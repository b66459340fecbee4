package room_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/yjs"
	"signalbox.dev/services/document-sync/internal/room"
)

// TestUncommittedUpdatesAreLimited stalls Postgres: the updates that wait for a commit are limited in total and
// per workspace.
func TestUncommittedUpdatesAreLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		// An eighth may wait, that is 1 MiB; three quarters of it per workspace.
		h, stop := open(t, room.Config{Store: m, MemoryBytes: 8 << 20})
		defer stop()
		greedy := id.New[id.Workspace]()
		one, two := join(t, h, m.createIn(greedy)), join(t, h, m.createIn(greedy))
		var others []*client
		for range 2 {
			others = append(others, join(t, h, m.create()))
		}
		settle(append(others, one, two)...)
		release := m.block("Append")
		one.write(0, big(700))
		blocked := func(c *client, kib int) bool {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			err := c.seat.Update(ctx, c.edit(func(t *yjs.Text) { t.Insert(0, big(kib)) }))
			if err != nil && !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("Update() = %v", err)
			}
			return err != nil
		}
		equal(t, "more than a workspace's share waits", blocked(two, 200), true)
		for i, c := range others {
			equal(t, "another workspace waits", blocked(c, 200), i == 1)
		}
		last := make(chan error, 1)
		go func() {
			last <- others[1].seat.Update(t.Context(), others[1].doc.EncodeStateAsUpdate(nil))
		}()
		gone := make(chan error, 1)
		go func() { gone <- two.seat.Update(t.Context(), two.doc.EncodeStateAsUpdate(nil)) }()
		synctest.Wait()
		two.seat.Leave()
		release()
		if err := <-last; err != nil {
			t.Errorf("Update() after Postgres resumed = %v", err)
		}
		if err := <-gone; fault.KindOf(err) != fault.Cancelled {
			t.Errorf("Update() of a peer that left = %v, want Cancelled", err)
		}
		pass(10 * time.Second)
		for _, c := range append(others, one) {
			before := c.stored
			c.read()
			if c.stored == before {
				t.Error("the waiting update was not stored")
			}
			equal(t, "nothing waits any more", blocked(c, 250), false)
			pass(10 * time.Second)
		}
	})
}

// TestBudgetIsReleased checks that the budget is released when a document is deleted or the
// instance ends.
func TestBudgetIsReleased(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ws := id.New[id.Workspace]()
		h, stop := open(t, room.Config{Store: m, MemoryBytes: 8 << 20})
		defer stop()
		gone, other := m.createIn(ws), m.createIn(ws)
		a, b := join(t, h, gone), join(t, h, other)
		settle(a, b)
		release := m.block("Append")
		a.write(0, "is on its way")
		synctest.Wait()
		a.write(0, big(200))
		m.remove(gone)
		pass(10 * time.Second) // the next check of heads
		equal(t, "code", a.closed(), room.CloseGone)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := b.seat.Update(ctx, b.edit(func(t *yjs.Text) { t.Insert(0, big(200)) })); err != nil {
			t.Errorf("Update() = %v, want space again", err)
		}
		release()
		pass(10 * time.Second)
		equal(t, "stored", len(m.text(t, other)), 200<<10)
	})
}
