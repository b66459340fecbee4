package room_test

import (
	"testing"
	"testing/synctest"
	"time"

	"signalbox.dev/pkg/yjs"
	"signalbox.dev/services/document-sync/internal/room"
	"signalbox.dev/services/document-sync/internal/store"
)

func TestSnapshots(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		render := func(d *yjs.Doc) (string, string, error) {
			return "# " + d.Text("t").String(), d.Text("t").String(), nil
		}
		h, stop := open(t, room.Config{Store: m, Render: render})
		defer stop()
		a := join(t, h, ref)
		a.write(0, "x")
		pass(1900 * time.Millisecond)
		equal(t, "snapshots before the pause", len(m.saves(ref)), 0)
		pass(200 * time.Millisecond)
		saves := m.saves(ref)
		if len(saves) != 1 || saves[0].Markdown != "# x" || saves[0].Text != "x" || saves[0].Sequence != 1 || saves[0].Unrendered {
			t.Fatalf("snapshots = %+v", saves)
		}
		pass(time.Minute)
		equal(t, "snapshots without edits", len(m.saves(ref)), 1)
		for range 25 { // edits during 25 seconds
			a.write(0, "y")
			pass(time.Second)
		}
		equal(t, "snapshots while editing", len(m.saves(ref)), 3)
		pass(3 * time.Second)
		equal(t, "snapshots after it", len(m.saves(ref)), 4)
	})
}

// TestTyping checks that long typing makes a version each minute, and one at the end or when the
// instance ends.
func TestTyping(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		h, stop := open(t, room.Config{Store: m})
		a := join(t, h, ref)
		versions := func() (n int) {
			for _, s := range m.saves(ref) {
				if !s.Typing {
					n++
				}
			}
			return n
		}
		typing := func(seconds int) {
			for range seconds {
				a.write(0, "y")
				pass(time.Second)
			}
		}
		typing(55)
		equal(t, "snapshots", len(m.saves(ref)), 5)
		equal(t, "versions", versions(), 0)
		typing(70)
		equal(t, "versions after two minutes", versions(), 2)
		pass(3 * time.Second)
		equal(t, "versions after it", versions(), 3)
		typing(5)
		equal(t, "versions while typing", versions(), 3)
		stop()
		equal(t, "versions after the end", versions(), 4)
	})
}

// TestFailedSnapshots checks that nothing accumulates while the store is down, and that unsaved
// states are saved later.
func TestFailedSnapshots(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		var refs []store.Ref
		render := func(*yjs.Doc) (string, string, error) { panic("cannot") }
		h, stop := open(t, room.Config{Store: m, Render: render, Snapshots: 2})
		defer stop()
		release := m.block("Save")
		for range 10 {
			ref := m.create()
			refs = append(refs, ref)
			join(t, h, ref).write(0, "x")
		}
		pass(30 * time.Second)
		equal(t, "snapshots at once", m.count("Save"), 2)
		m.failing("Save", errDown)
		release()
		pass(time.Second)
		equal(t, "snapshots tried", m.count("Save"), 10)
		m.failing("Save", nil)
		pass(10 * time.Second)
		for _, ref := range refs {
			saves := m.saves(ref)
			if len(saves) != 1 || !saves[0].Unrendered || saves[0].Markdown != "" {
				t.Errorf("snapshots = %+v, want one without Markdown", saves)
			}
		}
	})
}

// TestBusyRoomDoesNotDelaySnapshots checks that a hanging commit does not delay the snapshots of others.
func TestBusyRoomDoesNotDelaySnapshots(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		hangs, other := m.create(), m.create()
		h, stop := open(t, room.Config{Store: m, Snapshots: 1})
		defer stop()
		a, b := join(t, h, hangs), join(t, h, other)
		a.write(0, "x")
		pass(500 * time.Millisecond)
		b.write(0, "y")
		settle(a, b)
		release := m.block("Append")
		a.write(0, "is being committed")
		pass(20 * time.Second)
		equal(t, "snapshots of the other", len(m.saves(other)), 1)
		equal(t, "snapshots while a commit hangs", len(m.saves(hangs)), 0)
		release()
		pass(10 * time.Second)
		equal(t, "snapshots", len(m.saves(hangs)), 1)
		equal(t, "rows after the snapshot", m.behind(hangs), 0)
	})
}

// TestLoaderSaves checks that loading a state with updates after its snapshot saves a new one: the
// instance that wrote them may be dead.
func TestLoaderSaves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		if _, err := m.Append(t.Context(), ref, store.Author{}, newClient(t).edit(func(t *yjs.Text) { t.Insert(0, "x") })); err != nil {
			t.Fatal(err)
		}
		h, stop := open(t, room.Config{Store: m})
		defer stop()
		if err := h.Read(t.Context(), ref, func(*yjs.Doc, int64) error { return nil }); err != nil {
			t.Fatal(err)
		}
		pass(3 * time.Second)
		equal(t, "snapshots", len(m.saves(ref)), 1)
		pass(time.Minute)
		equal(t, "rooms", h.Open(), 0)
	})
}
