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

// took returns the messages of a kind since the last call.
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

// TestAnswersAreShared checks that equal requests in a document get one answer, encoded once.
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
		for range 3 { // few peers get separate answers
			join(t, h, ref)
		}
		first := joinMany(t, h, ref, 200)
		equal(t, "answers for 200", len(first), 1)
		a.write(0, "More ")
		settle(a)
		second := joinMany(t, h, ref, 200)
		equal(t, "answers for 200 more", len(second), 1)
		for m := range second {
			if first[m] {
				t.Error("an answer from before the edit")
			}
		}
		pass(15 * time.Second) // without requests
		for m := range joinMany(t, h, ref, 3) {
			if second[m] {
				t.Error("an unused answer is still cached")
			}
		}
	})
}

// TestAnswersContainPendingUpdates checks that answers contain pending updates, though they do not change
// the document.
func TestAnswersContainPendingUpdates(t *testing.T) {
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
		joinMany(t, h, ref, 10)
		a.send(second)
		settle(a)
		late := join(t, h, ref)
		if err := late.doc.ApplyUpdate(first, nil); err != nil {
			t.Fatal(err)
		}
		equal(t, "late", late.text(), "ab")
	})
}

// joinMany has n new clients join and returns their answers.
func joinMany(t *testing.T, h *room.Hub, ref store.Ref, n int) map[*room.Message]bool {
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

// TestRequestsAreRateLimited checks that repeated requests are rate-limited, and delay nobody else.
func TestRequestsAreRateLimited(t *testing.T) {
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
			t.Errorf("%d bytes for 100 requests at once", n)
		}
		b := join(t, h, ref)
		equal(t, "another one", b.synced, true)
		for i := range 120 {
			ask(t, a.seat, i)
			pass(500 * time.Millisecond)
		}
		if n := sizeOf(a.took(room.KindStep2)); n < 40<<20 || n > 80<<20 {
			t.Errorf("%d bytes in a minute for 120 requests", n)
		}
		pass(time.Minute)
		a.took(room.KindStep2)
		ask(t, a.seat, 0)
		equal(t, "answers at once after a while", len(a.took(room.KindStep2)), 1)
		a.seat.Leave()
		pass(time.Minute)
	})
}

// ask requests everything, each time with the state vector of another unknown client.
func ask(t *testing.T, s *room.Seat, i int) {
	t.Helper()
	if err := s.Sync([]byte{1, byte(1 + i%100), 1}); err != nil {
		t.Fatal(err)
	}
}

// TestEqualRequests checks that equal pending requests get one answer.
func TestEqualRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		h, stop := open(t, room.Config{Store: m})
		defer stop()
		a, b := join(t, h, ref), join(t, h, ref)
		settle(a, b)
		release := m.block("Append")
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

// TestJoinsAreRateLimited checks that a connection that repeatedly joins stays within its rate
// limit, and that a new one is answered at once.
func TestJoinsAreRateLimited(t *testing.T) {
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
			t.Errorf("%d bytes for a connection that joined 200 times", sent)
		}
		equal(t, "a new connection", join(t, h, ref).synced, true)
		sent = 0
		for range 300 {
			rejoin()
			pass(200 * time.Millisecond)
		}
		if sent < 40<<20 || sent > 80<<20 {
			t.Errorf("%d bytes in a minute for a connection that joined 300 times", sent)
		}
	})
}

func TestBadRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		h, stop := open(t, room.Config{Store: m})
		defer stop()
		a := join(t, h, ref)
		if err := a.seat.Sync([]byte{5}); fault.KindOf(err) != fault.Invalid {
			t.Errorf("Sync() with a malformed state vector = %v, want Invalid", err)
		}
		if err := a.seat.Sync(make([]byte, 1<<20)); fault.KindOf(err) != fault.TooLarge {
			t.Errorf("Sync() with a large state vector = %v, want TooLarge", err)
		}
	})
}

// TestSmallRequestsAreUnlimited checks that requests in small documents are not limited.
func TestSmallRequestsAreUnlimited(t *testing.T) {
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

// TestAwarenessRequestsAreRateLimited checks that requests for awareness are rate-limited too.
func TestAwarenessRequestsAreRateLimited(t *testing.T) {
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
		release := m.block("Append") // presence does not need Postgres
		a.write(0, "x")
		synctest.Wait()
		b.took(room.KindAwareness)
		for range 1000 {
			b.seat.QueryAwareness()
		}
		if n := sizeOf(b.took(room.KindAwareness)); n < 1<<20 || n > 10<<20 {
			t.Errorf("%d bytes for 1,000 requests", n)
		}
		release()
		pass(time.Minute)
		if n := len(b.took(room.KindAwareness)); n < 1 {
			t.Error("the last request was not answered")
		}
	})
}
