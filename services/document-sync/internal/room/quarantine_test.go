package room_test

import (
	"bytes"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"signalbox.dev/pkg/yjs"
	"signalbox.dev/services/document-sync/internal/room"
	"signalbox.dev/services/document-sync/internal/store"
)

func soundState(*yjs.Doc) {}

// poisoned panics up to times times for updates with a certain word, and counts.
func poisoned(times int64, tried *atomic.Int64) func([]byte) {
	return func(update []byte) {
		if bytes.Contains(update, []byte("poison")) && tried.Add(1) <= times {
			panic("poison cannot be applied")
		}
	}
}

// TestPanicsTwice checks that an update that panics twice closes only its sender, is kept with
// what reproduces the panic, and is not tried again.
func TestPanicsTwice(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		h, stop := open(t, room.Config{Store: m})
		defer stop()
		var tried atomic.Int64
		h.Faulty(poisoned(1000, &tried), soundState)
		a, b := join(t, h, ref), join(t, h, ref)
		b.write(0, "before ")
		settle(a, b)
		b.write(7, "with ") // in one batch
		bad := a.edit(func(t *yjs.Text) { t.Insert(7, "poison") })
		a.send(bad)
		settle(a, b)
		equal(t, "code", a.closed(), room.CloseRefused)
		equal(t, "reason", a.reason, "the change cannot be applied: copy what it added, and open the document anew")
		equal(t, "code of others", b.closed(), 0)
		equal(t, "tried", tried.Load(), int64(2))
		b.write(0, "still ")
		settle(b)
		equal(t, "stored", m.text(t, ref), "still before with ")

		equal(t, "in quarantine", len(m.quarantined), 1)
		q := m.quarantined[0]
		d := yjs.New(yjs.Options{})
		if err := d.ApplyUpdateV2(q.State, nil); err != nil {
			t.Fatal(err)
		}
		last := len(q.Updates) - 1
		for _, u := range q.Updates[:last] {
			if err := d.ApplyUpdate(u, nil); err != nil {
				t.Fatal(err)
			}
		}
		equal(t, "what it was applied to", strings.TrimSpace(d.Text("t").String()), "before with")
		if !bytes.Equal(q.Updates[last], bad) || !strings.Contains(q.Panic, "poison cannot be applied") || !strings.Contains(q.Panic, "quarantine_test.go") {
			t.Errorf("quarantined = %q, %s", q.Updates, q.Panic)
		}
		equal(t, "author", q.Author.Member, a.actor.Member)

		loads := m.count("Load")
		a.mute = true
		a.join(h, ref)
		a.send(bad)
		settle(a, b)
		equal(t, "code, the second time", a.closed(), room.CloseRefused)
		equal(t, "tried again", tried.Load(), int64(2))
		equal(t, "loaded again", m.count("Load"), loads)
	})
}

// TestBatchPanics checks that a batch that panics, but none of its updates, is kept and refused as
// a whole.
func TestBatchPanics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		h, stop := open(t, room.Config{Store: m})
		defer stop()
		var together atomic.Int64 // halves that were applied to the doc unchecked
		h.Faulty(func(update []byte) {
			if bytes.Contains(update, []byte("half")) && together.Add(1) == 2 {
				together.Store(0)
				panic("both halves cannot be applied")
			}
		}, func(*yjs.Doc) { together.Store(0) })
		a, b, c := join(t, h, ref), join(t, h, ref), join(t, h, ref)
		settle(a, b, c)
		first, second := a.edit(func(t *yjs.Text) { t.Insert(0, "half") }), b.edit(func(t *yjs.Text) { t.Insert(0, "half") })
		a.send(first)
		b.send(second)
		settle(a, b, c)
		equal(t, "codes", []int{a.closed(), b.closed(), c.closed()}, []int{room.CloseRefused, room.CloseRefused, 0})
		if len(m.quarantined) != 1 {
			t.Fatalf("%d are in quarantine, want 1", len(m.quarantined))
		}
		q := m.quarantined[0]
		equal(t, "updates", q.Updates, [][]byte{first, second})
		if !strings.Contains(q.Panic, "both halves cannot be applied") {
			t.Errorf("panic = %s", q.Panic)
		}
		c.write(0, "text")
		settle(c)
		equal(t, "stored", m.text(t, ref), "text")
		b.mute = true
		b.join(h, ref)
		b.send(second) // harmless on its own
		settle(b)
		equal(t, "code, alone", b.closed(), 0)
	})
}

// TestPanicsOnce checks that an update that panics once is applied to the reloaded document.
func TestPanicsOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		h, stop := open(t, room.Config{Store: m})
		defer stop()
		var tried atomic.Int64
		h.Faulty(poisoned(1, &tried), soundState)
		a, b := join(t, h, ref), join(t, h, ref)
		a.write(0, "poison")
		settle(a, b)
		equal(t, "text", b.text(), "poison")
		equal(t, "stored", m.text(t, ref), "poison")
		equal(t, "in quarantine", len(m.quarantined), 0)
	})
}

// TestCommittedUpdatePanics checks that a document is loaded, and saved, without a committed
// update that panics.
func TestCommittedUpdatePanics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		for i, s := range []string{"one", "poison", "two"} {
			d := yjs.New(yjs.Options{ClientID: uint64(i + 1)})
			d.Text("t").Insert(0, s)
			m.docs[ref].append(store.Author{}, d.EncodeStateAsUpdate(nil))
		}
		h, stop := open(t, room.Config{Store: m})
		defer stop()
		var tried atomic.Int64
		h.Faulty(poisoned(1000, &tried), soundState)
		a := join(t, h, ref)
		settle(a)
		equal(t, "text", a.text(), "onetwo")
		equal(t, "in quarantine", len(m.quarantined), 1)
		equal(t, "after", m.quarantined[0].Sequence, int64(1))
		equal(t, "committed", m.quarantined[0].Committed, true)
		pass(time.Minute)
		equal(t, "updates after the snapshot", m.behind(ref), 0)
		equal(t, "stored", m.text(t, ref), "onetwo")
	})
}

// TestReadPanics checks that an update that makes the document panic when it is read is found
// then. Other peers stay.
func TestReadPanics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		h, stop := open(t, room.Config{Store: m})
		defer stop()
		h.Faulty(func([]byte) {}, func(doc *yjs.Doc) {
			if strings.Contains(doc.Text("t").String(), "poison") {
				panic("poison cannot be encoded")
			}
		})
		a := join(t, h, ref)
		a.write(0, "good ")
		settle(a)
		a.write(5, "poison")
		settle(a)
		late := join(t, h, ref)
		settle(a, late)
		equal(t, "text", late.text(), "good ")
		equal(t, "code", a.closed(), 0)
		equal(t, "in quarantine", len(m.quarantined), 1)
	})
}

// TestAlwaysPanics checks that a document that panics without a faulty update is closed, and
// others are not.
func TestAlwaysPanics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref, other := m.create(), m.create()
		h, stop := open(t, room.Config{Store: m})
		defer stop()
		h.Faulty(func([]byte) {}, func(doc *yjs.Doc) {
			if strings.Contains(doc.Text("t").String(), "poison") {
				panic("poison cannot be encoded")
			}
		})
		old := yjs.New(yjs.Options{})
		old.Text("t").Insert(0, "poison")
		m.docs[ref].head, m.docs[ref].snapshot = 1, &store.Snapshot{Sequence: 1, State: old.EncodeStateAsUpdateV2(nil)}
		m.docs[ref].append(store.Author{}, written("innocent"))
		m.docs[other].append(store.Author{}, written("fine"))
		a := join(t, h, ref)
		pass(2 * time.Minute)
		equal(t, "code", a.closed(), room.CloseBusy)
		equal(t, "in quarantine", len(m.quarantined), 0)
		b := join(t, h, other)
		settle(b)
		equal(t, "text of another", b.text(), "fine")
	})
}

// TestOperationPanics checks that a panic in an operation or a read is its caller's error: the
// document is reloaded without uncommitted changes.
func TestOperationPanics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		h, stop := open(t, room.Config{Store: m})
		defer stop()
		a := join(t, h, ref)
		a.write(0, "good")
		settle(a)
		bug := func(doc *yjs.Doc) error {
			doc.Text("t").Insert(0, "half of it, ")
			panic("nil pointer")
		}
		if err := h.Do(t.Context(), ref, room.Operation{Edit: bug}); err == nil {
			t.Error("Do() with a panic = nil")
		}
		if err := h.Read(t.Context(), ref, func(doc *yjs.Doc, _ int64) error { return bug(doc) }); err == nil {
			t.Error("Read() with a panic = nil")
		}
		late := join(t, h, ref)
		settle(a, late)
		equal(t, "text", late.text(), "good")
		equal(t, "code", a.closed(), 0)
	})
}

func written(s string) []byte {
	d := yjs.New(yjs.Options{})
	d.Text("t").Insert(0, s)
	return d.EncodeStateAsUpdate(nil)
}
