package room_test

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/services/document-sync/internal/presence"
	"signalbox.dev/services/document-sync/internal/room"
)

// say returns an awareness update of one client.
func say(client, clock uint64, state string) []byte {
	b := binary.AppendUvarint(nil, 1)
	b = binary.AppendUvarint(binary.AppendUvarint(b, client), clock)
	return append(binary.AppendUvarint(b, uint64(len(state))), state...)
}

// seen formats the awareness that a client has received.
func (c *client) seen(t *testing.T) string {
	t.Helper()
	c.read()
	var table presence.Table
	for _, update := range c.awareness {
		if _, err := table.Apply(nil, update, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	all := table.Encode()
	if all == nil {
		return ""
	}
	n, k := binary.Uvarint(all)
	all = all[k:]
	var out []string
	for range n {
		client, k := binary.Uvarint(all)
		all = all[k:]
		_, k = binary.Uvarint(all)
		all = all[k:]
		size, k := binary.Uvarint(all)
		out = append(out, fmt.Sprintf("%d %s", client, all[k:k+int(size)]))
		all = all[k+int(size):]
	}
	return strings.Join(out, ", ")
}

func (c *client) say(t *testing.T, client, clock uint64, state string) {
	t.Helper()
	if err := c.seat.Awareness(say(client, clock, state)); err != nil {
		t.Errorf("Awareness() = %v", err)
	}
}

func TestPresence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		w := newWire()
		h1, stop1 := open(t, room.Config{Store: m, Bus: w})
		defer stop1()
		a, b := join(t, h1, ref), join(t, h1, ref)
		a.say(t, 1, 1, `{"n":"a"}`)
		synctest.Wait()
		equal(t, "b", b.seen(t), `1 {"n":"a"}`)
		equal(t, "a, who hears itself", a.seen(t), `1 {"n":"a"}`)

		// An instance that opens the document asks the others.
		h2, stop2 := open(t, room.Config{Store: m, Bus: w})
		defer stop2()
		c := join(t, h2, ref)
		pass(100 * time.Millisecond)
		equal(t, "c", c.seen(t), `1 {"n":"a"}`)
		c.say(t, 3, 1, `{"n":"c"}`)
		pass(100 * time.Millisecond)
		equal(t, "b", b.seen(t), `1 {"n":"a"}, 3 {"n":"c"}`)
		late := join(t, h2, ref)
		equal(t, "late", late.seen(t), `1 {"n":"a"}, 3 {"n":"c"}`)

		// Updates close together are sent together.
		before := len(b.awareness)
		for i := range 50 {
			a.say(t, 1, uint64(2+i), fmt.Sprintf(`{"n":%d}`, i))
		}
		pass(100 * time.Millisecond)
		equal(t, "b", b.seen(t), `1 {"n":49}, 3 {"n":"c"}`)
		equal(t, "messages", len(b.awareness)-before, 2)

		// A peer that leaves is removed everywhere, and everybody is told.
		a.seat.Leave()
		pass(100 * time.Millisecond)
		equal(t, "b", b.seen(t), `3 {"n":"c"}`)
		equal(t, "late", late.seen(t), `3 {"n":"c"}`)
		b.awareness = nil
		b.seat.QueryAwareness()
		equal(t, "b", b.seen(t), `3 {"n":"c"}`)

		for name, update := range map[string][]byte{"malformed": {1}, "too large": say(9, 1, `"`+strings.Repeat("x", 1<<17)+`"`)} {
			if err := b.seat.Awareness(update); fault.KindOf(err) != fault.Invalid && fault.KindOf(err) != fault.TooLarge {
				t.Errorf("Awareness(%s) = %v", name, err)
			}
		}

		// An instance dies: nobody announces that its members have gone.
		w.losing(1)
		stop2()
		pass(29 * time.Second)
		equal(t, "b", b.seen(t), `3 {"n":"c"}`)
		pass(10 * time.Second)
		equal(t, "b", b.seen(t), ``)
	})
}

// TestRenewals checks that renewals every 15 seconds are passed on to all.
func TestRenewals(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		h, stop := open(t, room.Config{Store: m})
		defer stop()
		a, b := join(t, h, ref), join(t, h, ref)
		a.say(t, 1, 1, `{}`)
		b.say(t, 2, 1, `{}`)
		pass(time.Second)
		for i := range 10 {
			pass(15 * time.Second)
			b.read()
			before := len(b.awareness)
			a.say(t, 1, uint64(2+i), `{}`)
			b.say(t, 2, uint64(2+i), `{}`)
			pass(1100 * time.Millisecond)
			equal(t, "b", b.seen(t), `1 {}, 2 {}`)
			if n := len(b.awareness) - before; n < 1 || n > 2 {
				t.Errorf("%d messages for two renewals", n)
			}
		}
	})
}

func TestAgentsAreShown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		w := newWire()
		h1, stop1 := open(t, room.Config{Store: m, Bus: w})
		defer stop1()
		h2, stop2 := open(t, room.Config{Store: m, Bus: w})
		defer stop2()
		c := join(t, h1, ref)
		agent := map[string]string{"user": "agent"}
		const seen = `77 {"user":"agent"}`
		if err := h2.Show(t.Context(), ref, 77, agent, 2*time.Minute); err != nil {
			t.Fatal(err)
		}
		for range 11 {
			pass(10 * time.Second)
			equal(t, "c", c.seen(t), seen)
		}
		equal(t, "rooms", h2.Open(), 1)
		pass(11 * time.Second)
		equal(t, "c, when its time is over", c.seen(t), "")
		pass(time.Minute)
		equal(t, "rooms", h2.Open(), 0)

		if err := h2.Show(t.Context(), ref, 77, agent, time.Hour); err != nil {
			t.Fatal(err)
		}
		pass(time.Second)
		equal(t, "c", c.seen(t), seen)
		if err := h1.Show(t.Context(), ref, 77, agent, time.Minute); err != nil { // it continues here
			t.Fatal(err)
		}
		pass(59 * time.Second)
		equal(t, "c", c.seen(t), seen)
		pass(2 * time.Second)
		equal(t, "c", c.seen(t), "")
	})
}

// TestNoImpersonation checks that a client belongs to its member on all instances.
func TestNoImpersonation(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		w := newWire()
		h1, stop1 := open(t, room.Config{Store: m, Bus: w})
		defer stop1()
		h2, stop2 := open(t, room.Config{Store: m, Bus: w})
		defer stop2()
		ada, near, far := join(t, h1, ref), join(t, h1, ref), join(t, h2, ref)
		ada.say(t, 5, 10, `{"n":"ada"}`)
		pass(100 * time.Millisecond)
		for _, c := range []*client{near, far} {
			c.say(t, 5, 11, `{"n":"somebody else"}`)
			c.say(t, 5, 11, `null`)
		}
		pass(100 * time.Millisecond)
		for _, c := range []*client{ada, near, far} {
			equal(t, "everybody sees", c.seen(t), `5 {"n":"ada"}`)
		}

		// She reconnects to the other instance before the first one notices that her connection is
		// lost. Her client responds to its removal with a higher clock.
		again := newClient(t)
		again.actor = ada.actor
		again.join(h2, ref)
		again.say(t, 5, 10, `{"n":"ada"}`)
		pass(100 * time.Millisecond)
		ada.seat.Leave()
		pass(100 * time.Millisecond)
		equal(t, "far, after the connection is lost", far.seen(t), ``)
		equal(t, "she is told", again.seen(t), ``)
		again.say(t, 5, 11, `{"n":"ada"}`)
		pass(100 * time.Millisecond)
		equal(t, "near", near.seen(t), `5 {"n":"ada"}`)
		equal(t, "far", far.seen(t), `5 {"n":"ada"}`)

		// Or she moves before.
		there := newClient(t)
		there.actor = ada.actor
		there.join(h1, ref)
		there.say(t, 5, 12, `{"n":"ada moved"}`)
		pass(100 * time.Millisecond)
		again.seat.Leave()
		pass(100 * time.Millisecond)
		equal(t, "near", near.seen(t), `5 {"n":"ada moved"}`)
		equal(t, "far", far.seen(t), `5 {"n":"ada moved"}`)
	})
}

// TestPresenceAfterBusOutage checks that presence is exchanged as soon as the bus is back.
func TestPresenceAfterBusOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		w := newWire()
		h1, stop1 := open(t, room.Config{Store: m, Bus: w})
		defer stop1()
		h2, stop2 := open(t, room.Config{Store: m, Bus: w})
		defer stop2()
		a, b := join(t, h1, ref), join(t, h2, ref)
		pass(100 * time.Millisecond)
		w.losing(1)
		a.say(t, 1, 1, `{"n":"a"}`)
		b.say(t, 2, 1, `{"n":"b"}`)
		pass(time.Second)
		equal(t, "a", a.seen(t), `1 {"n":"a"}`)
		w.losing(0)
		w.reconnected()
		pass(100 * time.Millisecond)
		equal(t, "a", a.seen(t), `1 {"n":"a"}, 2 {"n":"b"}`)
		equal(t, "b", b.seen(t), `1 {"n":"a"}, 2 {"n":"b"}`)
	})
}

// TestLastToLeave checks that other instances learn who left, though this one ends then.
func TestLastToLeave(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		w := newWire()
		h1, stop1 := open(t, room.Config{Store: m, Bus: w})
		h2, stop2 := open(t, room.Config{Store: m, Bus: w})
		defer stop2()
		a, b := join(t, h1, ref), join(t, h2, ref)
		a.say(t, 1, 1, `{"n":"a"}`)
		pass(time.Second)
		equal(t, "b", b.seen(t), `1 {"n":"a"}`)
		other := join(t, h1, m.create()) // its messages are sent first
		other.say(t, 2, 1, `{}`)
		a.seat.Leave()
		stop1()
		pass(100 * time.Millisecond)
		equal(t, "b", b.seen(t), ``)
	})
}
