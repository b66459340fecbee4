package room_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/yjs"
	documentv1 "signalbox.dev/proto/signalbox/document/v1"
	"signalbox.dev/services/document-sync/internal/room"
	"signalbox.dev/services/document-sync/internal/store"
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
		equal(t, "told stored", fmt.Sprint(a.stored, a.sent, b.stored, b.sent), "2 2 2 2") // with the answers to step 1
		equal(t, "rooms", h.Open(), 1)
		a.seat.Leave()
		a.seat.Leave() // a second time does nothing
		if err := a.seat.Update(t.Context(), []byte{0, 0}); err == nil {
			t.Error("Update() after Leave = nil, want an error")
		}
	})
}

// An offline edit comes in on the server's step 1, and the server's on the client's.
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

func TestNothingIsSeenBeforeItIsCommitted(t *testing.T) {
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
		release := m.hold("Append")
		a.write(0, "x")
		settle(a, b)
		late := newClient(t)
		late.join(h, ref)
		read := make(chan string)
		go func() {
			_ = h.Read(t.Context(), ref, func(d *yjs.Doc) error {
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

func TestCommitsAreTriedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		h, stop := open(t, room.Config{Store: m})
		defer stop()
		a, b := join(t, h, ref), join(t, h, ref)
		settle(a, b)
		m.failing("Append", errDown)
		a.write(0, "x")
		pass(time.Minute)
		if n := m.count("Append"); n < 10 || n > 60 {
			t.Errorf("Append was tried %d times in a minute", n)
		}
		settle(a, b)
		equal(t, "b", b.text(), "")
		m.lieOnce() // one that is committed, and fails
		m.failing("Append", nil)
		pass(5 * time.Second)
		settle(a, b)
		equal(t, "b", b.text(), "x")
		equal(t, "head", m.head(ref), 2)
		a.write(1, "y")
		pass(time.Second)
		settle(a, b)
		equal(t, "b", b.text(), "xy")
		equal(t, "stored", m.text(t, ref), "xy")
	})
}

// What waits for updates that have not arrived survives the process.
func TestPendingSurvives(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		h, stop := open(t, room.Config{Store: m})
		source := newClient(t)
		first := source.edit(func(t *yjs.Text) { t.Insert(0, "a") })
		second := source.edit(func(t *yjs.Text) { t.Insert(1, "b") })
		third := source.edit(func(t *yjs.Text) { t.Insert(2, "c") })
		a, b := join(t, h, ref), join(t, h, ref)
		a.send(third)
		settle(a, b)
		a.send(second)
		settle(a, b)
		equal(t, "b", b.text(), "")
		stop() // saves a snapshot, too
		equal(t, "snapshots", len(m.saves(ref)), 1)

		h, stop = open(t, room.Config{Store: m})
		defer stop()
		c := join(t, h, ref)
		c.send(first)
		settle(c)
		late := join(t, h, ref)
		equal(t, "late", late.text(), "abc")
		equal(t, "stored", m.text(t, ref), "abc")
		if err := b.doc.ApplyUpdate(first, nil); err != nil {
			t.Fatal(err)
		}
		equal(t, "b, who saw the others", b.text(), "abc")
	})
}

func TestBadUpdatesAreRefusedAlone(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		update []byte
		code   int
	}{
		{"malformed", []byte{1, 1, 1}, room.CloseMalformed},
		{"empty", nil, room.CloseMalformed},
		{"truncated", []byte{1, 2, 200}, room.CloseMalformed},
		// It says that it has 2^27 structs.
		{"too many structs", []byte{1, 0x80, 0x80, 0x80, 0x40, 1, 0}, room.CloseTooBig},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m := newMemory()
				ref := m.create()
				h, stop := open(t, room.Config{Store: m})
				defer stop()
				a, b, c := join(t, h, ref), join(t, h, ref), join(t, h, ref)
				settle(a, b, c)
				release := m.hold("Append")
				c.write(0, "1")
				synctest.Wait() // what follows is one batch
				a.write(0, "2")
				b.send(tt.update)
				c.write(1, "3")
				release()
				settle(a, b, c)
				late := join(t, h, ref)
				settle(late)
				equal(t, "code", b.closed(), tt.code)
				equal(t, "others", fmt.Sprint(a.closed(), c.closed()), "0 0")
				if s := late.text(); len(s) != 3 || a.text() != s || c.text() != s {
					t.Errorf("texts = %q, %q, %q, want 3 characters everywhere", s, a.text(), c.text())
				}
			})
		})
	}
}

// A batch that the store will never take is undone, and its senders are closed.
func TestStoreRefuses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		m.refuse = func(update []byte) error {
			if strings.Contains(string(update), "BAD") {
				return fault.New(fault.TooLarge, "the document is too large")
			}
			return nil
		}
		h, stop := open(t, room.Config{Store: m})
		defer stop()
		a, b := join(t, h, ref), join(t, h, ref)
		a.write(0, "good")
		settle(a, b)
		b.write(0, "BAD")
		settle(a, b)
		equal(t, "code", b.closed(), room.CloseTooBig)
		a.write(4, "!")
		settle(a)
		late := join(t, h, ref)
		equal(t, "a", a.text(), "good!")
		equal(t, "late", late.text(), "good!")
	})
}

func TestHubsConverge(t *testing.T) {
	t.Parallel()
	for _, seed := range []uint64{1, 2, 3, 4} {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { converge(t, seed) })
		})
	}
}

// converge has clients of three hubs edit at once while the bus loses a third of what is
// said, commits fail now and then, clients come and go, and hubs end or die.
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
		pass(10 * time.Second) // heads are read
		settle(clients...)
	}
	want := m.text(t, ref)
	state := string(clients[0].doc.EncodeStateAsUpdate(nil))
	for i, c := range clients {
		if got := c.text(); got != want || string(c.doc.EncodeStateAsUpdate(nil)) != state {
			t.Errorf("client %d has %d characters, want the %d that are stored, and the same bytes as others", i, len(got), len(want))
		}
	}
	for _, stop := range stops {
		stop()
	}
	ends.Wait()
}

// operation is an operation that commits as the service does.
func operation(m *memory, ref store.Ref, edit func(*yjs.Doc) error) room.Operation {
	return room.Operation{
		Origin: "agent",
		Edit:   edit,
		Commit: func(ctx context.Context, e room.Edited) (int64, bool, error) {
			if e.Update == nil {
				return 0, false, nil
			}
			seq, err := m.Append(ctx, ref, store.Author{}, e.Update)
			return seq, false, err
		},
	}
}

func TestOperations(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		w := newWire()
		w.losing(1) // an operation catches up by itself
		h1, stop1 := open(t, room.Config{Store: m, Bus: w})
		defer stop1()
		h2, stop2 := open(t, room.Config{Store: m, Bus: w})
		defer stop2()
		a, b := join(t, h1, ref), join(t, h2, ref)
		a.write(0, "one")
		settle(a)
		var seen string
		err := h2.Do(t.Context(), ref, operation(m, ref, func(d *yjs.Doc) error {
			seen = d.Text("t").String()
			d.Text("t").Insert(d.Text("t").Len(), " two")
			return nil
		}))
		if err != nil || seen != "one" {
			t.Fatalf("Do() = %v and saw %q, want %q", err, seen, "one")
		}
		equal(t, "b", b.text(), "one two")
		if err := h1.Read(t.Context(), ref, func(d *yjs.Doc) error { seen = d.Text("t").String(); return nil }); err != nil || seen != "one two" {
			t.Errorf("Read() = %v and saw %q, want %q", err, seen, "one two")
		}
		settle(a)
		equal(t, "a", a.text(), "one two")
	})
}

func TestOperationThatIsNotCommitted(t *testing.T) {
	t.Parallel()
	refused := fault.New(fault.Invalid, "no")
	commit := func(done bool, err error) func(context.Context, room.Edited) (int64, bool, error) {
		return func(context.Context, room.Edited) (int64, bool, error) { return 0, done, err }
	}
	write := func(d *yjs.Doc) error { return d.Array("bad").Push("BAD") }
	for _, tt := range []struct {
		name  string
		op    room.Operation
		want  error
		loads int
	}{
		{"commit fails", room.Operation{Edit: write, Commit: commit(false, errDown)}, errDown, 2},
		{"was done before", room.Operation{Edit: write, Commit: commit(true, nil)}, nil, 2},
		{"edit fails", room.Operation{Edit: func(d *yjs.Doc) error { return errors.Join(write(d), refused) }, Commit: commit(false, nil)}, refused, 2},
		{"edit fails before", room.Operation{Edit: func(*yjs.Doc) error { return refused }, Commit: commit(false, nil)}, refused, 1},
		{"nothing to change", room.Operation{Edit: func(*yjs.Doc) error { return nil }, Commit: commit(false, errDown)}, errDown, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m := newMemory()
				ref := m.create()
				h, stop := open(t, room.Config{Store: m})
				defer stop()
				a, b := join(t, h, ref), join(t, h, ref)
				a.write(0, "good")
				settle(a, b)
				if err := h.Do(t.Context(), ref, tt.op); !errors.Is(err, tt.want) {
					t.Errorf("Do() = %v, want %v", err, tt.want)
				}
				b.write(4, "!")
				settle(a, b)
				equal(t, "a", a.text(), "good!")
				equal(t, "late", join(t, h, ref).text(), "good!")
				equal(t, "loads", m.count("Load"), tt.loads)
			})
		})
	}
}

// An operation that panics leaves nothing behind, whoever catches that.
func TestOperationThatPanics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		h, stop := open(t, room.Config{Store: m})
		defer stop()
		a := join(t, h, ref)
		for _, op := range []room.Operation{
			{Edit: func(d *yjs.Doc) error { d.Text("t").Insert(0, "BAD"); panic("edit") }},
			{
				Edit:   func(d *yjs.Doc) error { d.Text("t").Insert(0, "BAD"); return nil },
				Commit: func(context.Context, room.Edited) (int64, bool, error) { panic("commit") },
			},
		} {
			func() {
				defer func() { _ = recover() }()
				_ = h.Do(t.Context(), ref, op)
			}()
			a.write(0, "x")
			settle(a)
		}
		equal(t, "late", join(t, h, ref).text(), "xx")
		equal(t, "stored", m.text(t, ref), "xx")
	})
}

// While a document that was thrown away cannot be loaded, nothing is lost.
func TestLostWhilePostgresIsAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		w := newWire()
		h, stop := open(t, room.Config{Store: m, Bus: w})
		defer stop()
		other, stopOther := open(t, room.Config{Store: m, Bus: w})
		defer stopOther()
		a, b, c := join(t, h, ref), join(t, h, ref), join(t, other, ref)
		a.write(0, "1")
		settle(a, b, c)
		m.failing("Load", errDown)
		err := h.Do(t.Context(), ref, room.Operation{
			Edit:   func(d *yjs.Doc) error { d.Text("t").Insert(0, "BAD"); return nil },
			Commit: func(context.Context, room.Edited) (int64, bool, error) { return 0, false, errDown },
		})
		if !errors.Is(err, errDown) {
			t.Fatalf("Do() = %v", err)
		}
		w.losing(1)
		a.write(1, "2")
		c.write(1, "3")
		pass(5 * time.Second)
		settle(a, b, c)
		equal(t, "b", b.text(), "1")
		m.failing("Load", nil)
		pass(20 * time.Second)
		settle(a, b, c)
		if s := m.text(t, ref); len(s) != 3 || a.text() != s || b.text() != s || c.text() != s {
			t.Errorf("texts = %q, %q, %q, want %q", a.text(), b.text(), c.text(), s)
		}
		// When it lasts, the peers are sent away.
		m.failing("Load", errDown)
		_ = h.Do(t.Context(), ref, room.Operation{
			Edit:   func(d *yjs.Doc) error { d.Text("t").Insert(0, "BAD"); return nil },
			Commit: func(context.Context, room.Edited) (int64, bool, error) { return 0, false, errDown },
		})
		pass(2 * time.Minute)
		equal(t, "code", a.closed(), room.CloseBusy)
	})
}

func TestLoading(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		h, stop := open(t, room.Config{Store: m})
		defer stop()
		release := m.hold("Load")
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() { join(t, h, ref) })
		}
		synctest.Wait()
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := h.Join(gone, ref, editor(), newClient(t)); !errors.Is(err, context.Canceled) {
			t.Errorf("Join() of who went away = %v", err)
		}
		release()
		wg.Wait()
		equal(t, "loads", m.count("Load"), 1)

		// An error is that of the callers, and not remembered.
		broken := m.create()
		m.failing("Load", errDown)
		if _, err := h.Join(t.Context(), broken, editor(), newClient(t)); !errors.Is(err, errDown) {
			t.Errorf("Join() = %v, want %v", err, errDown)
		}
		m.failing("Load", nil)
		join(t, h, broken)
		if _, err := h.Join(t.Context(), newRef(), editor(), newClient(t)); fault.KindOf(err) != fault.NotFound {
			t.Errorf("Join() of no document = %v, want NotFound", err)
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
			t.Errorf("Join() while the other one is not saved = %v, want Unavailable", err)
		}
		pass(3 * time.Second)
		b := join(t, h, full) // pushes the idle one out
		equal(t, "rooms", h.Open(), 1)
		b.seat.Leave()
		pass(29 * time.Second)
		equal(t, "rooms", h.Open(), 1)
		pass(10 * time.Second)
		equal(t, "rooms", h.Open(), 0)
		equal(t, "again", join(t, h, ref).text(), "x")
	})
}

// A workspace that has its share of the rooms leaves the others to the others.
func TestShare(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		h, stop := open(t, room.Config{Store: m, Rooms: 8})
		defer stop()
		ws := id.New[id.Workspace]()
		greedy := []store.Ref{m.createIn(ws), m.createIn(ws), m.createIn(ws)}
		join(t, h, greedy[0])
		leaves := join(t, h, greedy[1])
		if _, err := h.Join(t.Context(), greedy[2], editor(), newClient(t)); fault.KindOf(err) != fault.Unavailable {
			t.Errorf("Join() of more than the share = %v, want Unavailable", err)
		}
		join(t, h, m.create()) // of another workspace
		leaves.seat.Leave()
		join(t, h, greedy[2])
		equal(t, "rooms", h.Open(), 3)
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
			err := h.Read(t.Context(), ref, func(*yjs.Doc) error { return nil })
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
		if len(saves) != 1 || saves[0].Markdown != "# x" || saves[0].Text != "x" || saves[0].Sequence != 1 ||
			id.IsZero(saves[0].Author.Member) || saves[0].EditedAt.IsZero() || saves[0].Unrendered {
			t.Fatalf("snapshots = %+v", saves)
		}
		pass(time.Minute)
		equal(t, "snapshots without edits", len(m.saves(ref)), 1)
		for range 25 { // editing goes on for 25 seconds
			a.write(0, "y")
			pass(time.Second)
		}
		equal(t, "snapshots while editing", len(m.saves(ref)), 3)
		pass(3 * time.Second)
		equal(t, "snapshots after it", len(m.saves(ref)), 4)
	})
}

// A store that is down piles nothing up, and what could not be saved is saved later.
func TestSnapshotsThatFail(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		var refs []store.Ref
		render := func(*yjs.Doc) (string, string, error) { panic("cannot") }
		h, stop := open(t, room.Config{Store: m, Render: render, Snapshots: 2})
		defer stop()
		release := m.hold("Save")
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

// Who loads a state with updates behind its snapshot saves one: its author may be dead.
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
		if err := h.Read(t.Context(), ref, func(*yjs.Doc) error { return nil }); err != nil {
			t.Fatal(err)
		}
		pass(3 * time.Second)
		equal(t, "snapshots", len(m.saves(ref)), 1)
		pass(time.Minute)
		equal(t, "rooms", h.Open(), 0)
	})
}

func TestBackpressure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		h, stop := open(t, room.Config{Store: m, QueueBytes: 10_000})
		defer stop()
		a, b := join(t, h, ref), join(t, h, ref)
		settle(a, b)
		release := m.hold("Append")
		a.write(0, "first") // is being committed
		synctest.Wait()
		a.write(0, strings.Repeat("x", 100_000)) // one is always taken
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		update := a.edit(func(t *yjs.Text) { t.Insert(0, "late") })
		if err := a.seat.Update(ctx, update); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Update() into a full inbox = %v, want %v", err, context.DeadlineExceeded)
		}
		done := make(chan error, 1)
		go func() { done <- a.seat.Update(t.Context(), update) }()
		synctest.Wait()
		select {
		case err := <-done:
			t.Fatalf("Update() into a full inbox = %v at once", err)
		default:
		}
		release()
		if err := <-done; err != nil {
			t.Errorf("Update() = %v", err)
		}
		pass(time.Second)
		settle(a, b)
		equal(t, "b", len(b.text()), 100_009)
	})
}

// What comes within a few milliseconds goes out as one message, and the only sender of a
// batch is not told what it said.
func TestGathering(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		h, stop := open(t, room.Config{Store: m})
		defer stop()
		a, b, c := join(t, h, ref), join(t, h, ref), join(t, h, ref)
		pass(time.Second)
		settle(a, b, c)
		a.write(0, "1")
		synctest.Wait() // at once
		equal(t, "head", m.head(ref), 1)
		equal(t, "messages to a", kinds(a), "stored")
		for range 10 {
			a.write(0, "x")
			b.write(0, "y")
		}
		synctest.Wait()
		equal(t, "head before the time", m.head(ref), 1)
		a.read()
		c.read()
		pass(6 * time.Millisecond)
		equal(t, "head", m.head(ref), 2)
		equal(t, "messages to c", kinds(c), "update")
		equal(t, "messages to a", kinds(a), "update"+strings.Repeat(" stored", 10))
	})
}

// kinds are those of the messages that wait.
func kinds(c *client) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	for _, m := range c.got {
		out = append(out, map[room.Kind]string{
			room.KindStep1: "step1", room.KindStep2: "step2", room.KindUpdate: "update", room.KindAwareness: "awareness", room.KindStored: "stored",
		}[m.Kind])
	}
	return strings.Join(out, " ")
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
		equal(t, "b, which waits for the hole to close", b.text(), "1")
		pass(60 * time.Millisecond)
		equal(t, "b", b.text(), "123")
		w.losing(1) // a lost last message shows in the heads; here the rows are gone, too
		a.write(3, "4")
		pass(3 * time.Second)
		equal(t, "updates behind the snapshot", m.behind(ref), 0)
		pass(10 * time.Second)
		equal(t, "b", b.text(), "1234")
		w.losing(0) // too large for the bus
		a.write(0, strings.Repeat("x", 800_000))
		pass(time.Second)
		equal(t, "b", len(b.text()), 800_004)
	})
}

// An older program writes Markdown while the document is open, and before it is.
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
		h, stop := open(t, room.Config{Store: m, Bus: w, Plant: plant})
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

func TestViewersDoNotWrite(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		h, stop := open(t, room.Config{Store: m})
		defer stop()
		c := newClient(t)
		seat, err := h.Join(t.Context(), ref, identity.Actor{Member: id.New[id.Member](), Role: identity.Viewer}, c)
		if err != nil {
			t.Fatal(err)
		}
		defer seat.Leave()
		if err := seat.Update(t.Context(), c.edit(func(t *yjs.Text) { t.Insert(0, "x") })); fault.KindOf(err) != fault.Forbidden {
			t.Errorf("Update() of a viewer = %v, want Forbidden", err)
		}
		synctest.Wait()
		equal(t, "head", m.head(ref), 0)
	})
}

// All root types and subdocuments pass.
func TestEverythingPasses(t *testing.T) {
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
		release := m.hold("Append")
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
		if err := h.Read(t.Context(), ref, func(*yjs.Doc) error { return nil }); fault.KindOf(err) != fault.Unavailable {
			t.Errorf("Read() after Run = %v, want Unavailable", err)
		}
		a.seat.Leave()

		// A database that does not come back does not hold up the end.
		h, stop = open(t, room.Config{Store: m})
		b := join(t, h, ref)
		settle(b)
		defer m.hold("Append")()
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
