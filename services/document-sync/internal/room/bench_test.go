package room_test

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"signalbox.dev/pkg/yjs"
	documentv1 "signalbox.dev/proto/signalbox/document/v1"
	"signalbox.dev/services/document-sync/internal/room"
	"signalbox.dev/services/document-sync/internal/store"
)

// quick is a Store that commits at once and stores nothing.
type quick struct {
	*memory

	seq atomic.Int64
}

func (q *quick) Append(context.Context, store.Ref, store.Author, []byte) (int64, error) {
	return q.seq.Add(1), nil
}

func (q *quick) Save(context.Context, store.Snapshot) error { return nil }

// void is a Bus without other instances.
type void struct{}

func (void) Run(ctx context.Context)                                       { <-ctx.Done() }
func (void) Publish(context.Context, store.Ref, *documentv1.Change) error  { return nil }
func (void) OnReconnect(func()) func()                                     { return func() {} }
func (void) Subscribe(store.Ref, func(*documentv1.Change)) (func(), error) { return func() {}, nil }

// counter is a peer that counts deliveries.
type counter struct {
	delivered *atomic.Int64
	stored    chan struct{}
}

func (c *counter) Send(m *room.Message) {
	switch m.Kind {
	case room.KindUpdate:
		c.delivered.Add(1)
	case room.KindStored:
		if c.stored != nil {
			c.stored <- struct{}{}
		}
	}
}

func (c *counter) Close(int, string)  {}
func (c *counter) Share() *room.Share { return &room.Share{} }

// typing returns n updates of one typed character each.
func typing(n int) [][]byte {
	d := yjs.New(yjs.Options{})
	updates := make([][]byte, 0, n)
	d.OnUpdate(func(u *yjs.Update) { updates = append(updates, u.V1()) })
	t := d.Text("t")
	for i := range n {
		t.Insert(i, string(rune('a'+i%26)))
	}
	return updates
}

// BenchmarkUpdate measures updates from Seat.Update to all peers, committed one by one or in
// batches.
func BenchmarkUpdate(b *testing.B) {
	for _, peers := range []int{1, 3, 200} {
		for _, window := range []int{1, 100} {
			b.Run(fmt.Sprintf("peers=%d/together=%d", peers, window), func(b *testing.B) { benchUpdate(b, peers, window) })
		}
	}
}

func benchUpdate(b *testing.B, peers, window int) {
	q := &quick{memory: newMemory()}
	ref := q.create()
	h, stop := open(b, room.Config{Store: q, Log: slog.New(slog.DiscardHandler), Bus: void{}, Gather: -1})
	defer stop()
	var delivered atomic.Int64
	sender := &counter{delivered: &delivered, stored: make(chan struct{}, window)}
	seat, err := h.Join(b.Context(), ref, editor(), sender)
	if err != nil {
		b.Fatal(err)
	}
	for range peers - 1 {
		if _, err := h.Join(b.Context(), ref, editor(), &counter{delivered: &delivered}); err != nil {
			b.Fatal(err)
		}
	}
	updates := typing(b.N)
	b.ReportAllocs()
	b.ResetTimer()
	start := cpu()
	for i, u := range updates {
		if err := seat.Update(b.Context(), u); err != nil {
			b.Fatal(err)
		}
		if i >= window-1 {
			<-sender.stored
		}
	}
	for range min(window-1, b.N) {
		<-sender.stored
	}
	b.StopTimer()
	spent := cpu() - start
	b.ReportMetric(float64(spent.Nanoseconds())/float64(b.N), "cpu-ns/op")
	if n := delivered.Load(); n > 0 {
		b.ReportMetric(float64(n)/float64(b.N), "deliveries/op")
	}
}

// BenchmarkLateJoin measures joining 200 others in a document, and receiving all of it.
func BenchmarkLateJoin(b *testing.B) {
	q := &quick{memory: newMemory()}
	ref := q.create()
	h, stop := open(b, room.Config{Store: q, Log: slog.New(slog.DiscardHandler), Bus: void{}, Gather: -1})
	defer stop()
	author := &counter{delivered: &atomic.Int64{}, stored: make(chan struct{}, 1)}
	seat, err := h.Join(b.Context(), ref, editor(), author)
	if err != nil {
		b.Fatal(err)
	}
	if err := seat.Update(b.Context(), pieces(b, 50_000)); err != nil {
		b.Fatal(err)
	}
	<-author.stored
	join := func() *room.Seat {
		s, err := h.Join(b.Context(), ref, editor(), &counter{delivered: author.delivered})
		if err == nil {
			err = s.Sync([]byte{0})
		}
		if err != nil {
			b.Fatal(err)
		}
		return s
	}
	for range 199 {
		join()
	}
	b.ReportAllocs()
	for b.Loop() {
		join().Leave()
	}
}

// pieces returns a document of n pieces.
func pieces(b *testing.B, n int) []byte {
	d := yjs.New(yjs.Options{})
	d.Transact(nil, func(*yjs.Txn) {
		for range n {
			d.Text("t").Insert(0, "word ")
		}
	})
	state := d.EncodeStateAsUpdate(nil)
	b.Logf("a document of %d KiB", len(state)>>10)
	return state
}

// BenchmarkIdle measures the memory of an open document of one paragraph with three peers.
func BenchmarkIdle(b *testing.B) {
	m := newMemory()
	h, stop := open(b, room.Config{Store: m, Rooms: 1 << 20, Bus: void{}})
	defer stop()
	before := heap()
	for range b.N {
		ref := m.create()
		for range 3 {
			if _, err := h.Join(b.Context(), ref, editor(), &counter{}); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(heap()-before)/float64(b.N), "heap-B/room")
	b.ReportMetric(float64(runtime.NumGoroutine()), "goroutines")
	runtime.KeepAlive(h)
}

func heap() uint64 {
	var s runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&s)
	return s.HeapAlloc
}

// cpu returns the processor time of the process.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
