package room_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/yjs"
	"signalbox.dev/services/document-sync/internal/room"
	"signalbox.dev/services/document-sync/internal/store"
)

func (c *client) remove(at, n int) {
	c.t.Helper()
	c.send(c.edit(func(t *yjs.Text) { t.Delete(at, n) }))
}

// big returns text of kib KiB.
func big(kib int) string { return strings.Repeat("0123456789abcdef", kib*64) }

// write stores a document of kib KiB by another author.
func (m *memory) write(t *testing.T, ref store.Ref, kib int) {
	t.Helper()
	h, stop := open(t, room.Config{Store: m})
	defer stop()
	c := join(t, h, ref)
	c.write(0, big(kib))
	settle(c)
	c.seat.Leave()
}

// TestFullDocument checks that a full document accepts no more, keeps its content, and can shrink.
func TestFullDocument(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		h, stop := open(t, room.Config{Store: m, DocumentBytes: 100 << 10})
		defer stop()
		a, b := join(t, h, ref), join(t, h, ref)
		a.write(0, big(90))
		settle(a, b)
		a.write(0, big(20))
		a.write(0, "what builds on it")
		b.remove(0, 1) // at the same time
		settle(a, b)
		equal(t, "code", a.closed(), room.CloseRefused)
		if !strings.Contains(a.reason, "full") {
			t.Errorf("reason = %q", a.reason)
		}
		equal(t, "b", b.closed(), 0)
		equal(t, "stored", len(m.text(t, ref)), 90<<10-1)

		// The same update is refused again; a new client can delete.
		a.join(h, ref)
		settle(a)
		equal(t, "code", a.closed(), room.CloseRefused)
		c := join(t, h, ref)
		c.remove(0, 50<<10)
		settle(b, c)
		c.write(0, big(20))
		settle(b, c)
		equal(t, "c", c.closed(), 0)
		equal(t, "b", len(b.text()), 60<<10-1)
		equal(t, "stored", len(m.text(t, ref)), 60<<10-1)
	})
}

// TestUpdatesAfterARefusedOne checks that later updates of a sender whose update was refused are
// refused too, also after the batch: they would stay pending. The author of the batch is a
// sender with an accepted update.
func TestUpdatesAfterARefusedOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		h, stop := open(t, room.Config{Store: m, DocumentBytes: 100 << 10})
		defer stop()
		a, b := join(t, h, ref), join(t, h, ref)
		a.write(0, big(90))
		settle(a, b)
		release := m.block("Append")
		b.remove(0, 1)
		synctest.Wait() // what follows is one batch
		b.remove(0, 1)
		a.write(0, big(20))
		release()
		release = m.block("Append")
		pass(10 * time.Millisecond) // the commit is running
		a.write(0, "what builds on it")
		release()
		settle(a, b)
		equal(t, "code", a.closed(), room.CloseRefused)
		equal(t, "b", len(b.text()), 90<<10-2)
		if err := h.Read(t.Context(), ref, func(doc *yjs.Doc, _ int64) error {
			equal(t, "something waits", doc.Pending(), false)
			return nil
		}); err != nil {
			t.Errorf("Read() = %v", err)
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		last := m.docs[ref].updates[len(m.docs[ref].updates)-1]
		equal(t, "author", last.Author.Member, b.actor.Member)
	})
}

func TestDocumentOverTheLimitIsLoaded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		m.write(t, ref, 500)
		h, stop := open(t, room.Config{Store: m, DocumentBytes: 100 << 10})
		defer stop()
		c := join(t, h, ref)
		equal(t, "c", len(c.text()), 500<<10)
		op := operation(m, ref, func(d *yjs.Doc) error { d.Text("t").Insert(0, "more"); return nil })
		if err := h.Do(t.Context(), ref, op); fault.KindOf(err) != fault.TooLarge {
			t.Errorf("Do() that grows it = %v, want TooLarge", err)
		}
		op = operation(m, ref, func(d *yjs.Doc) error { d.Text("t").Delete(0, 100<<10); return nil })
		if err := h.Do(t.Context(), ref, op); err != nil {
			t.Errorf("Do() that shrinks it = %v", err)
		}
		c.read()
		c.remove(0, 350<<10)
		settle(c)
		equal(t, "code", c.closed(), 0)
		c.write(0, "!")
		settle(c)
		equal(t, "stored", len(m.text(t, ref)), 50<<10+1)
	})
}

// TestDeletionsUsingMemory checks that deletions that split a text into many are limited too,
// and refused to their sender only.
func TestDeletionsUsingMemory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		h, stop := open(t, room.Config{Store: m, DocumentBytes: 20 << 10})
		defer stop()
		a, b := join(t, h, ref), join(t, h, ref)
		a.write(0, big(18))
		settle(a, b)
		release := m.block("Append")
		b.remove(0, 1)
		synctest.Wait() // what follows is one batch
		a.send(a.edit(func(t *yjs.Text) {
			for i := range 1000 {
				t.Delete(i+1, 1)
			}
		}))
		b.remove(0, 1)
		release()
		settle(a, b)
		equal(t, "code", a.closed(), room.CloseRefused)
		equal(t, "b", b.closed(), 0)
		equal(t, "b", len(b.text()), 18<<10-2)
		equal(t, "stored", len(m.text(t, ref)), 18<<10-2)
	})
}

// TestStateTooLargeToSave checks that a state too large for the store may not grow.
func TestStateTooLargeToSave(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		h, stop := open(t, room.Config{Store: m})
		defer stop()
		m.failing("Save", fault.New(fault.TooLarge, "the state is too large"))
		a, b := join(t, h, ref), join(t, h, ref)
		a.write(0, "abc")
		pass(5 * time.Second)
		a.write(0, "d")
		settle(a, b)
		equal(t, "code", a.closed(), room.CloseRefused)
		m.failing("Save", nil)
		b.read()
		b.remove(0, 1)
		pass(time.Minute)
		b.write(0, "e")
		settle(b)
		equal(t, "b", b.closed(), 0)
		equal(t, "stored", m.text(t, ref), "ebc")
	})
}

// TestTotalMemory fills the memory for documents: idle ones are unloaded, then no more are opened,
// and finally open ones may not grow.
func TestTotalMemory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		refs := make([]store.Ref, 6)
		for i := range refs {
			refs[i] = m.create()
			m.write(t, refs[i], 100)
		}
		h, stop := open(t, room.Config{Store: m, MemoryBytes: 500 << 10})
		defer stop()
		clients := make([]*client, 5)
		for i := range clients {
			clients[i] = join(t, h, refs[i])
		}
		if _, err := h.Join(t.Context(), refs[5], editor(), newClient(t)); fault.KindOf(err) != fault.Unavailable {
			t.Errorf("Join() without memory = %v, want Unavailable", err)
		}
		again := join(t, h, refs[0]) // already in memory
		equal(t, "again", len(again.text()), 100<<10)

		// Unsaved documents stay in memory.
		m.failing("Save", errDown)
		clients[1].write(0, "x")
		settle(clients[1])
		clients[1].seat.Leave()
		if _, err := h.Join(t.Context(), refs[5], editor(), newClient(t)); fault.KindOf(err) != fault.Unavailable {
			t.Errorf("Join() while the idle one is unsaved = %v, want Unavailable", err)
		}
		m.failing("Save", nil)
		pass(10 * time.Second)
		equal(t, "rooms: the hub has let go of the idle one", h.Open(), 4)
		join(t, h, refs[5])
		equal(t, "rooms", h.Open(), 5)

		clients[2].write(0, big(70)) // exceeds the limit, but only slightly
		settle(clients[2])
		equal(t, "code", clients[2].closed(), 0)
		clients[3].write(0, "one too many")
		clients[4].remove(0, 10)
		settle(clients[3], clients[4])
		equal(t, "code", clients[3].closed(), room.CloseBusy)
		equal(t, "code of the deleting client", clients[4].closed(), 0)
		equal(t, "stored", len(m.text(t, refs[3])), 100<<10)
		clients[2].seat.Leave()
		pass(10 * time.Second)
		clients[3].join(h, refs[3]) // sends it again
		settle(clients[3])
		equal(t, "stored", len(m.text(t, refs[3])), 100<<10+len("one too many"))
	})
}

// TestMemoryPerWorkspace checks that a workspace may exceed its share, but not use the last quarter of
// the memory, which is for others.
func TestMemoryPerWorkspace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ws := id.New[id.Workspace]()
		var greedy []store.Ref
		for range 7 {
			greedy = append(greedy, m.createIn(ws))
			m.write(t, greedy[len(greedy)-1], 100)
		}
		h, stop := open(t, room.Config{Store: m, MemoryBytes: 800 << 10})
		defer stop()
		var all []*client
		for _, ref := range greedy[:6] {
			all = append(all, join(t, h, ref))
		}
		if _, err := h.Join(t.Context(), greedy[6], editor(), newClient(t)); fault.KindOf(err) != fault.Unavailable {
			t.Errorf("Join() of more than three quarters = %v, want Unavailable", err)
		}
		other := join(t, h, m.create())
		other.write(0, big(50))
		settle(other)
		equal(t, "the other workspace", other.closed(), 0)
		all[0].write(0, big(80)) // exceeds the limit, but only slightly
		settle(all[0])
		equal(t, "the large workspace", all[0].closed(), 0)
		all[1].write(0, "one too many")
		other.write(0, "and one of mine")
		settle(all[1], other)
		equal(t, "the large workspace, later", all[1].closed(), room.CloseBusy)
		equal(t, "the other workspace, later", other.closed(), 0)
		for _, c := range all[:3] {
			c.seat.Leave()
		}
		pass(10 * time.Second)
		join(t, h, greedy[6])
		equal(t, "an idle one was unloaded", h.Open() <= 7, true)
	})
}
