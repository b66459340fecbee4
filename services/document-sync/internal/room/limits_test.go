package room_test

import (
	"encoding/binary"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/yjs"
	"signalbox.dev/services/document-sync/internal/room"
	"signalbox.dev/services/document-sync/internal/store"
)

// uvarints appends numbers in the encoding of updates.
func uvarints(b []byte, ns ...uint64) []byte {
	for _, n := range ns {
		b = binary.AppendUvarint(b, n)
	}
	return b
}

// chain returns an update of client 1 with two types X and Z in an array, and n between them.
func chain(n int) []byte {
	b := uvarints(nil, 1, uint64(n+2), 1, 0)
	b = append(b, 7, 1, 1, 'x', 0, 0x87, 1, 0, 0)
	prev := uint64(0)
	for i := range n {
		b = append(uvarints(append(b, 0xc7), 1, prev, 1, 1), 0)
		prev = uint64(i + 2)
	}
	return append(b, 0)
}

// hammer returns an update with 4,500 types between X and Z of a chain of 2,000. Each scans the
// whole chain, which exceeds the limit of untrusted updates.
func hammer(client uint64) []byte {
	b := uvarints(nil, 1, 4501, client, 0)
	b = append(uvarints(append(b, 0x87), 1, 2001), 0)
	for range 4500 {
		b = append(uvarints(append(b, 0xc7), 1, 0, 1, 1), 0)
	}
	return append(b, 0)
}

// TestSlowUpdates checks that a small update that would take seconds is refused, but loaded and
// read if it is already committed.
func TestSlowUpdates(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		h, stop := open(t, room.Config{Store: m})
		defer stop()
		a, b := join(t, h, ref), join(t, h, ref)
		m.mu.Lock()
		m.docs[ref].append(store.Author{}, chain(2000))
		m.docs[ref].append(store.Author{}, hammer(2))
		m.mu.Unlock()
		read := func() (hammered uint32, text string) {
			t.Helper()
			if err := h.Read(t.Context(), ref, func(doc *yjs.Doc, _ int64) error {
				hammered, text = doc.StateVector()[2], doc.Text("t").String()
				return nil
			}); err != nil {
				t.Fatalf("Read() = %v", err)
			}
			return hammered, text
		}
		hammered, _ := read()
		equal(t, "read", hammered, 4501)
		equal(t, "loads", m.count("Load"), 1)
		a.send(hammer(3)) // the limits apply again
		settle()
		equal(t, "code", a.closed(), room.CloseRefused)
		b.write(0, "fine")
		settle()
		equal(t, "other's code", b.closed(), 0)
		hammered, text := read()
		equal(t, "loaded again", hammered, 4501)
		equal(t, "text", text, "fine")
		equal(t, "loads", m.count("Load"), 2)
	})
}

// TestPendingStructsAreInSnapshots checks that a snapshot contains pending structs, also together with
// many others that compress well.
func TestPendingStructsAreInSnapshots(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		h, stop := open(t, room.Config{Store: m})
		defer stop()
		a, b := join(t, h, ref), join(t, h, ref)
		const n = 40_000 // types of client 1, without the first one
		gap := uvarints(nil, 1, n, 1, 1)
		for i := range n {
			gap = append(uvarints(append(gap, 0x87), 1, uint64(i)), 0)
		}
		a.send(append(gap, 0))
		settle(a, b)
		first := b.edit(func(x *yjs.Text) { x.Insert(0, "one ") })
		b.send(b.edit(func(x *yjs.Text) { x.Insert(4, "two") }))
		settle(a, b)
		pass(15 * time.Second)
		equal(t, "rows that no snapshot has", m.behind(ref), 0)
		st, err := m.Load(t.Context(), ref)
		if err != nil {
			t.Fatal(err)
		}
		d := yjs.New(yjs.Options{Limits: yjs.Unlimited()})
		if err := d.ApplyUpdateV2(st.Snapshot, nil); err != nil {
			t.Fatal(err)
		}
		if err := d.ApplyUpdate(first, nil); err != nil {
			t.Fatal(err)
		}
		equal(t, "text", d.Text("t").String(), "one two")
	})
}

// TestTooLargeTogether checks that a batch too large for the store is committed per sender.
func TestTooLargeTogether(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		length int // of b's text
		code   int // with which b is closed
		want   int // characters stored
	}{
		{"one is to blame", 200, room.CloseRefused, 2},
		{"all together", 70, 0, 72},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m := newMemory()
				ref := m.create()
				m.refuse = func(update []byte) error {
					if len(update) > 100 {
						return fault.New(fault.TooLarge, "the update is too large")
					}
					return nil
				}
				h, stop := open(t, room.Config{Store: m})
				defer stop()
				a, b, c := join(t, h, ref), join(t, h, ref), join(t, h, ref)
				settle(a, b, c)
				release := m.block("Append")
				c.send([]byte{0, 1, 9, 1, 0, 1}) // starts a commit
				synctest.Wait()                  // the following is one batch
				a.write(0, "1")
				b.write(0, strings.Repeat("b", tt.length))
				c.write(0, "3")
				before := a.stored
				release()
				settle(a, b, c)
				equal(t, "code", b.closed(), tt.code)
				equal(t, "others", [2]int{a.closed(), c.closed()}, [2]int{})
				equal(t, "a was told", a.stored-before, 1)
				equal(t, "stored", len(m.text(t, ref)), tt.want)
				late := join(t, h, ref)
				equal(t, "a", a.text(), late.text())
				equal(t, "c", c.text(), late.text())
			})
		})
	}
}

// TestTooManyPendingStructs checks that pending structs stay below the maximum update of the store.
func TestTooManyPendingStructs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		h, stop := open(t, room.Config{Store: m})
		defer stop()
		a, b := join(t, h, ref), join(t, h, ref)
		gap := func(client uint64, size int) []byte { // lacks the client's first character
			b := uvarints(nil, 1, 1, client, 1)
			b = uvarints(append(b, 0x84), client, 0, uint64(size))
			return append(append(b, strings.Repeat("x", size)...), 0)
		}
		a.send(gap(1, store.MaxUpdate/4))
		settle(a, b)
		equal(t, "code within the bound", a.closed(), 0)
		a.send(gap(2, store.MaxUpdate/3))
		settle(a, b)
		equal(t, "code", a.closed(), room.CloseRefused)
		b.write(0, "fine")
		settle(b)
		equal(t, "stored", m.text(t, ref), "fine")
	})
}
