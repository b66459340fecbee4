package room_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/yjs"
	"signalbox.dev/services/document-sync/internal/room"
)

func TestCommitsAreRetried(t *testing.T) {
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
		m.lieOnce() // a commit that succeeds but returns an error
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

// TestPendingStructsSurvive checks that pending structs survive a restart.
func TestPendingStructsSurvive(t *testing.T) {
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
		stop() // saves a snapshot too
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
		// It claims to have 2^27 structs.
		{"too many structs", []byte{1, 0x80, 0x80, 0x80, 0x40, 1, 0}, room.CloseRefused},
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
				release := m.block("Append")
				c.write(0, "1")
				synctest.Wait() // the following is one batch
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

// TestStoreRefuses checks that a batch that the store refuses is undone, and its senders closed.
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
		equal(t, "code", b.closed(), room.CloseRefused)
		a.write(4, "!")
		settle(a)
		late := join(t, h, ref)
		equal(t, "a", a.text(), "good!")
		equal(t, "late", late.text(), "good!")
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
		release := m.block("Append")
		a.write(0, "first") // is being committed
		synctest.Wait()
		a.write(0, strings.Repeat("x", 100_000)) // one update is always accepted
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

// TestBatching checks that updates within a few milliseconds are broadcast as one message, and
// not to the only sender of a batch.
func TestBatching(t *testing.T) {
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

// kinds returns the kinds of the unread messages.
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
