package room_test

import (
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"signalbox.dev/pkg/natsd"
	"signalbox.dev/pkg/natsd/natstest"
	"signalbox.dev/pkg/subject"
	"signalbox.dev/services/document-sync/internal/room"
	"signalbox.dev/services/document-sync/internal/store"
)

// listener is a peer that signals messages.
type listener struct {
	*client

	came chan struct{}
}

func (l *listener) Send(m *room.Message) {
	l.client.Send(m)
	select {
	case l.came <- struct{}{}:
	default:
	}
}

// until reads messages until a condition is met.
func (l *listener) until(t *testing.T, what string, so func() bool) {
	t.Helper()
	limit := time.After(20 * time.Second)
	for l.read(); !so(); l.read() {
		select {
		case <-l.came:
		case <-limit:
			t.Fatalf("%s: not within 20 seconds; text %q", what, l.doc.Text("t").String())
		}
	}
}

func listen(t *testing.T, h *room.Hub, ref store.Ref) *listener {
	t.Helper()
	l := &listener{client: newClient(t), came: make(chan struct{}, 1)}
	seat, err := h.Join(t.Context(), ref, editor(), l)
	if err != nil {
		t.Fatal(err)
	}
	l.seat = seat
	if err := seat.Sync([]byte{0}); err != nil {
		t.Fatal(err)
	}
	return l
}

func natsHub(t *testing.T, m *memory, srv *natsd.Server) *room.Hub {
	t.Helper()
	b, err := natstest.Dial(t, srv, subject.DocumentSync).WithoutEcho(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	h, stop := open(t, room.Config{Store: m, Bus: room.NewNATS(b, slog.New(slog.DiscardHandler))})
	t.Cleanup(stop)
	return h
}

func TestInstancesOverNATS(t *testing.T) {
	t.Parallel()
	m := newMemory()
	ref := m.create()
	srv := natstest.New(t)
	h1, h2 := natsHub(t, m, srv), natsHub(t, m, srv)
	a, b := listen(t, h1, ref), listen(t, h2, ref)
	a.until(t, "synced", func() bool { return a.synced })
	b.until(t, "synced", func() bool { return b.synced })
	var wg sync.WaitGroup
	for _, l := range []*listener{a, b} {
		wg.Go(func() {
			for range 100 {
				l.write(0, "x")
			}
		})
	}
	wg.Wait()
	for _, l := range []*listener{a, b} {
		l.until(t, "all is there", func() bool { return l.doc.Text("t").Len() == 200 })
	}
	if string(a.doc.EncodeStateAsUpdate(nil)) != string(b.doc.EncodeStateAsUpdate(nil)) {
		t.Error("the states differ")
	}
	c := listen(t, h1, ref)
	c.say(t, 1, 1, `{"n":"c"}`)
	b.until(t, "b sees c", func() bool { return b.seen(t) == `1 {"n":"c"}` })
	c.seat.Leave()
	b.until(t, "c is gone", func() bool { return b.seen(t) == "" })

	// The server is down for a while; messages are lost meanwhile.
	cfg := srv.Config()
	srv.Shutdown()
	a.write(0, strings.Repeat("y", 10))
	a.say(t, 9, 1, `{"n":"a"}`)
	a.until(t, "committed without a bus", func() bool { return m.head(ref) > 0 && a.stored >= 102 })
	again, err := natsd.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(again.Shutdown)
	b.until(t, "b caught up", func() bool { return b.doc.Text("t").Len() == 210 })
	b.until(t, "b sees a", func() bool { return b.seen(t) == `9 {"n":"a"}` })
}
