package room_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/yjs"
	"signalbox.dev/services/document-sync/internal/room"
)

var errDown = errors.New("the database does not answer")

func TestPeersSeeEachOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		h, stop := open(t, room.Config{Store: m, Metrics: prometheus.NewRegistry()})
		defer stop()
		a, b := join(t, h, ref), join(t, h, ref)
		a.write(0, "Hello")
		settle(a, b)
		b.write(5, ", world")
		settle(a, b)
		late := join(t, h, ref)
		for name, c := range map[string]*client{"a": a, "b": b, "late": late} {
			equal(t, name, c.text(), "Hello, world")
		}
		equal(t, "stored", m.text(t, ref), "Hello, world")
		equal(t, "told stored", fmt.Sprint(a.stored, a.sent, b.stored, b.sent), "2 2 2 2") // including the answers to step 1
		equal(t, "rooms", h.Open(), 1)
		a.seat.Leave()
		a.seat.Leave() // the second call has no effect
		if err := a.seat.Update(t.Context(), []byte{0, 0}); err == nil {
			t.Error("Update() after Leave = nil, want an error")
		}
	})
}

// TestOfflineEdits checks that the server's step 1 requests offline edits, and the client's step
// 1 the others.
func TestOfflineEdits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		h, stop := open(t, room.Config{Store: m})
		defer stop()
		a, b := join(t, h, ref), join(t, h, ref)
		b.seat.Leave()
		b.edit(func(t *yjs.Text) { t.Insert(0, "offline") })
		a.write(0, "online")
		settle(a)
		b.join(h, ref)
		settle(a, b)
		if a.text() != b.text() || !strings.Contains(a.text(), "offline") || !strings.Contains(a.text(), "online") {
			t.Errorf("texts = %q, %q, want both with both", a.text(), b.text())
		}
	})
}

func TestNothingIsVisibleBeforeItIsCommitted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		w := newWire()
		h, stop := open(t, room.Config{Store: m, Bus: w})
		defer stop()
		a, b := join(t, h, ref), join(t, h, ref)
		settle(a, b)
		said := w.count()
		release := m.block("Append")
		a.write(0, "x")
		settle(a, b)
		late := newClient(t)
		late.join(h, ref)
		read := make(chan string)
		go func() {
			_ = h.Read(t.Context(), ref, func(d *yjs.Doc, _ int64) error {
				read <- d.Text("t").String()
				return nil
			})
		}()
		settle(a, b, late)
		pass(time.Second)
		settle(a, b, late)
		equal(t, "b", b.text(), "")
		equal(t, "late synced", late.synced, false)
		equal(t, "told stored", a.stored, 1) // the answer to step 1
		equal(t, "said on the bus", w.count(), said)
		select {
		case s := <-read:
			t.Errorf("Read before the commit saw %q", s)
		default:
		}
		release()
		equal(t, "Read", <-read, "x")
		settle(a, b, late)
		equal(t, "b", b.text(), "x")
		equal(t, "late", late.text(), "x")
		equal(t, "late synced", late.synced, true)
		equal(t, "told stored", a.stored, 2)
	})
}

func TestViewersDoNotWrite(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		h, stop := open(t, room.Config{Store: m})
		defer stop()
		a := join(t, h, ref)
		a.write(0, "abc")
		a.remove(1, 1)
		settle(a)
		c := newClient(t)
		c.actor = identity.Actor{Member: id.New[id.Member](), Role: identity.Viewer}
		c.mute = true
		c.join(h, ref)
		head := m.head(ref)
		known, err := yjs.DiffUpdate(c.doc.EncodeStateAsUpdate(nil), c.doc.StateVector())
		if err != nil {
			t.Fatal(err)
		}
		for _, tt := range []struct {
			name   string
			update []byte
			want   fault.Kind // 0: it is reported as stored
		}{
			{"nothing", []byte{0, 0}, 0},
			{"deletions of others", known, 0},
			{"the same again", known, 0},
			{"a deletion of its own", c.edit(func(t *yjs.Text) { t.Delete(0, 1) }), fault.Forbidden},
			{"text", c.edit(func(t *yjs.Text) { t.Insert(0, "x") }), fault.Forbidden},
			{"text that is there", c.doc.EncodeStateAsUpdate(nil), fault.Forbidden},
			{"no update", []byte{1, 1, 1}, fault.Forbidden},
		} {
			stored := c.stored
			err := c.seat.Update(t.Context(), tt.update)
			c.read()
			switch {
			case tt.want == 0:
				equal(t, tt.name+", told stored", c.stored, stored+1)
			case fault.KindOf(err) != tt.want:
				t.Errorf("Update(%s) = %v, want %v", tt.name, err, tt.want)
			default:
				equal(t, tt.name+", told stored", c.stored, stored)
			}
		}
		equal(t, "head", m.head(ref), head)
		equal(t, "a", a.text(), "ac")
	})
}

// TestAllMessageKinds checks that all root types and subdocuments are accepted.
func TestAllMessageKinds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		h, stop := open(t, room.Config{Store: m})
		a := join(t, h, ref)
		var update []byte
		a.doc.OnUpdate(func(u *yjs.Update) { update = u.V1() })
		a.doc.Transact(nil, func(*yjs.Txn) {
			_ = a.doc.Map("map").Set("sub", yjs.NewSubdoc("guid", nil))
			_ = a.doc.Array("list").Push(1, "two", yjs.Undefined)
			_ = a.doc.XMLFragment("default").Push(yjs.NewXMLElement("paragraph"), yjs.NewXMLHook("hook"))
			_ = a.doc.Text("t").InsertEmbed(0, yjs.Object{{Key: "image", Value: "x"}}, nil)
		})
		a.send(update)
		settle(a)
		stop()
		h, stop = open(t, room.Config{Store: m})
		defer stop()
		b := join(t, h, ref)
		if got, want := b.doc.EncodeStateAsUpdate(nil), a.doc.EncodeStateAsUpdate(nil); string(got) != string(want) {
			t.Errorf("state = %x, want %x", got, want)
		}
	})
}

func TestDrain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		h, stop := open(t, room.Config{Store: m})
		a := join(t, h, ref)
		settle(a)
		release := m.block("Append")
		a.write(0, "x")
		synctest.Wait()
		a.write(1, "y") // in the inbox
		time.AfterFunc(time.Second, release)
		stop()
		equal(t, "code", a.closed(), room.CloseRestart)
		equal(t, "stored", m.text(t, ref), "xy")
		equal(t, "snapshots", len(m.saves(ref)), 1)
		if _, err := h.Join(t.Context(), ref, editor(), newClient(t)); fault.KindOf(err) != fault.Unavailable {
			t.Errorf("Join() after Run = %v, want Unavailable", err)
		}
		if err := h.Read(t.Context(), ref, func(*yjs.Doc, int64) error { return nil }); fault.KindOf(err) != fault.Unavailable {
			t.Errorf("Read() after Run = %v, want Unavailable", err)
		}
		a.seat.Leave()

		// A database that stays down does not delay the end.
		h, stop = open(t, room.Config{Store: m})
		b := join(t, h, ref)
		settle(b)
		defer m.block("Append")()
		b.write(0, "z")
		synctest.Wait()
		late := newClient(t)
		late.join(h, ref)
		start := time.Now()
		stop()
		equal(t, "time", time.Since(start), 10*time.Second)
		late.read()
		equal(t, "late synced", late.synced, false)
	})
}
