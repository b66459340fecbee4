package room_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"signalbox.dev/pkg/yjs"
	"signalbox.dev/services/document-sync/internal/room"
)

func TestHubsConverge(t *testing.T) {
	t.Parallel()
	for _, seed := range []uint64{1, 2, 3, 4} {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { converge(t, seed) })
		})
	}
}

// converge has clients of three hubs edit at once while the bus loses a third of its messages,
// some commits fail, clients come and go, and hubs end or die.
func converge(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 7))
	m := newMemory()
	ref := m.create()
	w := newWire()
	w.lose, w.delay = 0.3, 20*time.Millisecond
	hubs, stops, stores := make([]*room.Hub, 3), make([]func(), 3), make([]*mortal, 3)
	begin := func(i int) {
		stores[i] = &mortal{memory: m}
		hubs[i], stops[i] = open(t, room.Config{Store: stores[i], Bus: w})
	}
	clients, at := make([]*client, 9), make([]int, 9)
	for i := range hubs {
		begin(i)
	}
	for i := range clients {
		at[i] = i % 3
		clients[i] = join(t, hubs[at[i]], ref)
	}
	var ends sync.WaitGroup
	for step := range 600 {
		i := r.IntN(len(clients))
		c := clients[i]
		switch n := r.IntN(100); {
		case n < 2:
			m.failing("Append", errDown)
		case n < 8:
			m.failing("Append", nil)
		case n < 10:
			c.seat.Leave()
			at[i] = r.IntN(3)
			c.join(hubs[at[i]], ref)
		case n < 12 && step > 50:
			m.failing("Append", nil)
			hub := r.IntN(3)
			if n == 10 {
				stops[hub]()
			} else {
				stores[hub].die()
				ends.Go(stops[hub])
			}
			begin(hub)
			for j, c := range clients {
				if at[j] == hub {
					c.join(hubs[hub], ref)
				}
			}
		case n < 15:
			key := fmt.Sprint("agent ", step)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_ = hubs[r.IntN(3)].Do(ctx, ref, operation(m, ref, func(d *yjs.Doc) error {
				d.Text("t").Insert(0, key)
				return nil
			}))
			cancel()
		case n < 30:
			pass(time.Duration(r.IntN(50)) * time.Millisecond)
		case n < 45 && c.doc.Text("t").Len() > 2:
			c.read()
			place := r.IntN(c.doc.Text("t").Len() - 1)
			if u := c.edit(func(t *yjs.Text) { t.Delete(place, 1) }); u != nil {
				c.send(u)
			}
		default:
			c.read()
			c.write(r.IntN(c.doc.Text("t").Len()+1), string(rune('a'+r.IntN(26))))
		}
		for _, c := range clients {
			c.read()
			m.hasAllBut(t, ref, c.doc, c.doc.ClientID())
		}
	}
	m.failing("Append", nil)
	for range 3 {
		pass(10 * time.Second) // heads are checked
		settle(clients...)
	}
	want := m.text(t, ref)
	state := string(clients[0].doc.EncodeStateAsUpdate(nil))
	for i, c := range clients {
		if got := c.text(); got != want || string(c.doc.EncodeStateAsUpdate(nil)) != state {
			t.Errorf("client %d has %d characters, want the %d stored ones, and the same bytes as others", i, len(got), len(want))
		}
	}
	for _, stop := range stops {
		stop()
	}
	ends.Wait()
}

func TestGapsAreRepaired(t *testing.T) {
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
		a.write(0, "1")
		pass(time.Second)
		settle(a, b)
		equal(t, "b", b.text(), "1")
		w.losing(1)
		a.write(1, "2")
		pass(10 * time.Millisecond)
		w.losing(0)
		a.write(2, "3")
		pass(50 * time.Millisecond)
		equal(t, "b, which waits for the gap to close", b.text(), "1")
		pass(60 * time.Millisecond)
		equal(t, "b", b.text(), "123")
		w.losing(1) // heads reveal a lost last message; here its rows are pruned too
		a.write(3, "4")
		pass(3 * time.Second)
		equal(t, "updates after the snapshot", m.behind(ref), 0)
		pass(10 * time.Second)
		equal(t, "b", b.text(), "1234")
		w.losing(0) // too large for the bus
		a.write(0, strings.Repeat("x", 800_000))
		pass(time.Second)
		equal(t, "b", len(b.text()), 800_004)
	})
}
