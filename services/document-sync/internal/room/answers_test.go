package room_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/yjs"
	"signalbox.dev/services/document-sync/internal/room"
	"signalbox.dev/services/document-sync/internal/store"
)

// took returns the messages of a kind that came since the last call.
func (c *client) took(kind room.Kind) (out []*room.Message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.got {
		if m.Kind == kind {
			out = append(out, m)
		}
	}
	c.got = nil
	return out
}

func sizeOf(ms []*room.Message) (n int) {
	for _, m := range ms {
		n += len(m.Payload)
	}
	return n
}

// All who ask the same of the same document get one answer, which is encoded once.
func TestAnswersAreShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		h, stop := open(t, room.Config{Store: m})
		defer stop()
		a := join(t, h, ref)
		a.write(0, "Hello")
		settle(a)
		for range 3 { // few are answered one by one
			join(t, h, ref)
		}
		first := cacheFrom(t, h, ref, 200)
		equal(t, "answers for 200", len(first), 1)
		a.write(0, "More ")
		settle(a)
		second := cacheFrom(t, h, ref, 200)
		equal(t, "answers for 200 more", len(second), 1)
		for m := range second {
			if first[m] {
				t.Error("an answer of before the edit")
			}
		}
		pass(15 * time.Second) // nobody asks
		for m := range cacheFrom(t, h, ref, 3) {
			if second[m] {
				t.Error("an answer is kept that nobody asked for lately")
			}
		}
	})
}

// What waits for other updates is told to who comes later, though the document has not
// changed.
func TestAnswersHaveWhatWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		h, stop := open(t, room.Config{Store: m})
		defer stop()
		source := newClient(t)
		first := source.edit(func(t *yjs.Text) { t.Insert(0, "a") })
		second := source.edit(func(t *yjs.Text) { t.Insert(1, "b") })
		a := join(t, h, ref)
		cacheFrom(t, h, ref, 10)
		a.send(second)
		settle(a)
		late := join(t, h, ref)
		if err := late.doc.ApplyUpdate(first, nil); err != nil {
			t.Fatal(err)
		}
		equal(t, "late", late.text(), "ab")
	})
}

// cacheFrom has so many new clients join and returns the answers that they got.
func cacheFrom(t *testing.T, h *room.Hub, ref store.Ref, n int) map[*room.Message]bool {
	t.Helper()
	out := map[*room.Message]bool{}
	for range n {
		c := newClient(t)
		seat, err := h.Join(t.Context(), ref, editor(), c)
		if err != nil {
			t.Fatal(err)
		}
		if err := seat.Sync([]byte{0}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		answers := c.took(room.KindStep2)
		if len(answers) != 1 {
			t.Fatalf("%d answers", len(answers))
		}
		out[answers[0]] = true
	}
	return out
}

// Who asks again and again is answered as often as its share allows, and keeps nobody
// else waiting.
func TestAskingAgainAndAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const kib = 2 << 10
		m := newMemory()
		ref := m.create()
		m.write(t, ref, kib)
		h, stop := open(t, room.Config{Store: m})
		defer stop()
		a := join(t, h, ref)
		for i := range 100 {
			ask(t, a.seat, i)
		}
		if n := sizeOf(a.took(room.KindStep2)); n < kib<<10 || n > 14<<20 {
			t.Errorf("%d bytes for who asked 100 times at once", n)
		}
		b := join(t, h, ref)
		equal(t, "another one", b.synced, true)
		for i := range 120 {
			ask(t, a.seat, i)
			pass(500 * time.Millisecond)
		}
		if n := sizeOf(a.took(room.KindStep2)); n < 40<<20 || n > 80<<20 {
			t.Errorf("%d bytes in a minute for who asked 120 times", n)
		}
		pass(time.Minute)
		a.took(room.KindStep2)
		ask(t, a.seat, 0)
		equal(t, "answers at once after a while", len(a.took(room.KindStep2)), 1)
		a.seat.Leave()
		pass(time.Minute)
	})
}

// ask asks for everything, each time with another state vector of nobody.
func ask(t *testing.T, s *room.Seat, i int) {
	t.Helper()
	if err := s.Sync([]byte{1, byte(1 + i%100), 1}); err != nil {
		t.Fatal(err)
	}
}

// Who asks the same twice, before there was an answer, gets one.
func TestAskingTheSameTwice(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		h, stop := open(t, room.Config{Store: m})
		defer stop()
		a, b := join(t, h, ref), join(t, h, ref)
		settle(a, b)
		release := m.awaitRetry("Append")
		a.write(0, "x")
		synctest.Wait()
		for range 2 {
			ask(t, b.seat, 1)
			ask(t, b.seat, 2)
		}
		equal(t, "answers while the document is busy", len(b.took(room.KindStep2)), 0)
		release()
		synctest.Wait()
		equal(t, "answers", len(b.took(room.KindStep2)), 2)
	})
}

// A connection that comes to a document again and again has no more than its share, and a
// new one is answered at once.
func TestJoiningAgainAndAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const kib = 2 << 10
		m := newMemory()
		ref := m.create()
		m.write(t, ref, kib)
		h, stop := open(t, room.Config{Store: m})
		defer stop()
		share, sent := &room.Share{}, 0
		rejoin := func() {
			c := newClient(t)
			c.share = share
			seat, err := h.Join(t.Context(), ref, editor(), c)
			if err != nil {
				t.Fatal(err)
			}
			ask(t, seat, 0)
			synctest.Wait()
			sent += sizeOf(c.took(room.KindStep2))
			seat.Leave()
		}
		for range 200 {
			rejoin()
		}
		if sent < 50<<20 || sent > 80<<20 {
			t.Errorf("%d bytes for a connection that came 200 times", sent)
		}
		equal(t, "a new connection", join(t, h, ref).synced, true)
		sent = 0
		for range 300 {
			rejoin()
			pass(200 * time.Millisecond)
		}
		if sent < 40<<20 || sent > 80<<20 {
			t.Errorf("%d bytes in a minute for a connection that came 300 times", sent)
		}
	})
}

func TestBadQuestions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		h, stop := open(t, room.Config{Store: m})
		defer stop()
		a := join(t, h, ref)
		if err := a.seat.Sync([]byte{5}); fault.KindOf(err) != fault.Invalid {
			t.Errorf("Sync() of no state vector = %v, want Invalid", err)
		}
		if err := a.seat.Sync(make([]byte, 1<<20)); fault.KindOf(err) != fault.TooLarge {
			t.Errorf("Sync() of a large state vector = %v, want TooLarge", err)
		}
	})
}

// Questions about small documents are not even noticed.
func TestAskingForLittle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		h, stop := open(t, room.Config{Store: m})
		defer stop()
		a := join(t, h, ref)
		a.took(room.KindStep2)
		for i := range 1000 {
			ask(t, a.seat, i)
		}
		equal(t, "answers", len(a.took(room.KindStep2)), 1000)
	})
}

// What somebody is sent who asks for everybody's awareness is bounded as well.
func TestAskingForAwareness(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		h, stop := open(t, room.Config{Store: m})
		defer stop()
		a, b := join(t, h, ref), join(t, h, ref)
		for i := range uint64(20) {
			a.say(t, 1+i, 1, fmt.Sprintf("%q", strings.Repeat("x", 50<<10)))
		}
		pass(time.Second)
		release := m.awaitRetry("Append") // presence goes on while Postgres does not
		a.write(0, "x")
		synctest.Wait()
		b.took(room.KindAwareness)
		for range 1000 {
			b.seat.QueryAwareness()
		}
		if n := sizeOf(b.took(room.KindAwareness)); n < 1<<20 || n > 10<<20 {
			t.Errorf("%d bytes for who asked 1,000 times", n)
		}
		release()
		pass(time.Minute)
		if n := len(b.took(room.KindAwareness)); n < 1 {
			t.Error("the last question was not answered")
		}
	})
}
