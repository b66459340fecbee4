package room_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"signalbox.dev/pkg/yjs"
	"signalbox.dev/services/document-sync/internal/room"
	"signalbox.dev/services/document-sync/internal/store"
)

// TestRefusedUpdateIsResent checks that an editor that keeps sending a refused update has it tried
// less and less often. Others do not wait for it, nor does the reloaded page.
func TestRefusedUpdateIsResent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ref := m.create()
		h, stop := open(t, room.Config{Store: m})
		defer stop()
		m.mu.Lock()
		m.docs[ref].append(store.Author{}, chain(2000))
		m.mu.Unlock()
		b := join(t, h, ref)
		settle(b)
		loads := m.count("Load")
		stubborn := newClient(t)
		stubborn.mute = true
		began := time.Now()
		tries := 0
		for time.Since(began) < 90*time.Second {
			stubborn.join(h, ref)
			stubborn.send(hammer(3))
			settle(b, stubborn)
			equal(t, "code", stubborn.closed(), room.CloseRefused)
			if !strings.Contains(stubborn.reason, "open the document anew") || len(stubborn.reason) > 123 {
				t.Errorf("reason = %q", stubborn.reason)
			}
			stubborn.seat.Leave()
			tries++
		}
		// After 0, 1, 3, 7 and 15 s, and then every 8 s to 95.
		equal(t, "tries", tries, 15)
		equal(t, "the document was loaded", m.count("Load")-loads, tries)

		stubborn.join(h, ref)
		ctx, leave := context.WithCancel(t.Context())
		waits := make(chan error, 1)
		go func() { waits <- stubborn.seat.Update(ctx, hammer(3)) }()
		synctest.Wait()
		b.write(0, "b")
		settle(b)
		equal(t, "stored at once", m.text(t, ref), "b")
		anew := newClient(t)
		anew.actor = stubborn.actor
		anew.join(h, ref)
		anew.write(1, "c")
		settle(b, anew)
		equal(t, "stored by the reloaded page", m.text(t, ref), "bc")
		leave()
		if err := <-waits; !errors.Is(err, context.Canceled) {
			t.Errorf("Update() of a peer that leaves = %v", err)
		}
	})
}

// TestRefusedUpdateBacksOff checks the same for malformed updates and those that do not fit; after a long
// time they are tried at once.
func TestRefusedUpdateBacksOff(t *testing.T) {
	t.Parallel()
	for name, update := range map[string]func(*client) []byte{
		"malformed": func(*client) []byte { return []byte{1, 1, 1} },
		"full":      func(c *client) []byte { return c.edit(func(t *yjs.Text) { t.Insert(0, big(200)) }) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m := newMemory()
				ref := m.create()
				h, stop := open(t, room.Config{Store: m, DocumentBytes: 100 << 10})
				defer stop()
				a := newClient(t)
				a.mute = true
				refused := update(a)
				took := func() time.Duration {
					t.Helper()
					began := time.Now()
					if err := a.seat.Update(t.Context(), refused); err != nil {
						t.Fatalf("Update() = %v", err)
					}
					return time.Since(began).Round(time.Second)
				}
				for _, want := range []time.Duration{0, time.Second, 2 * time.Second} {
					a.join(h, ref)
					equal(t, "it waited", took(), want)
					settle(a)
					if a.closed() == 0 {
						t.Error("it was accepted")
					}
					a.seat.Leave()
				}
				a.join(h, ref)
				pass(15 * time.Minute)
				equal(t, "it waited, a long time later", took(), time.Duration(0))
			})
		})
	}
}
