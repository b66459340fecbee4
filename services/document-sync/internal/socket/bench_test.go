package socket_test

import (
	"context"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/mux"
	"signalbox.dev/pkg/yjs"
	"signalbox.dev/services/document-sync/internal/room"
	"signalbox.dev/services/document-sync/internal/socket"
	"signalbox.dev/services/document-sync/internal/store"
	"signalbox.dev/services/document-sync/internal/yproto"
)

// counter is a sink that counts deliveries.
type counter struct {
	pieces, target atomic.Int64
	there          chan struct{} // closed when pieces reach target
}

func (c *counter) Deliver([]byte, bool, int) {
	if c.pieces.Add(1) == c.target.Load() {
		c.there <- struct{}{}
	}
}
func (*counter) Flush()             {}
func (*counter) Closed(int, string) {}
func (*counter) Broken(error)       {}

// crowd opens n streams and returns their shared sink.
func crowd(t testing.TB, w *world, path string, n int) *counter {
	t.Helper()
	had, c := w.handler.Count(), &counter{there: make(chan struct{}, 1)}
	for range n {
		if _, err := w.front.pool.Open(t.Context(), path, mux.OpenRequest{Path: path, Context: w.front.sign(identity.Editor)}, c); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "all are counted", func() bool { return w.handler.Count() == had+n })
	return c
}

// BenchmarkDeliver sends one update to 200 connections of one gateway. It measures both ends of
// the mux, without the writes to editors.
func BenchmarkDeliver(b *testing.B) {
	const n = 200
	w := newWorld(b, socket.Limits{})
	ref := w.rooms.open(w.workspace)
	c := crowd(b, w, "/ws/documents/"+ref.Document.String(), n)
	eventually(b, "all sit and have read", func() bool { return w.rooms.seats(ref) == n && c.pieces.Load() == n })
	update := make([]byte, 40)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	cpu := cpuTime(b)
	rounds := 0
	for b.Loop() {
		c.target.Store(c.pieces.Load() + n)
		w.rooms.broadcast(ref, &room.Message{Kind: room.KindUpdate, Payload: update})
		<-c.there
		rounds++
	}
	used := cpuTime(b) - cpu
	runtime.ReadMemStats(&after)
	per := func(v float64) float64 { return v / float64(rounds) / n }
	b.ReportMetric(per(float64(b.Elapsed().Nanoseconds())), "ns/delivery")
	b.ReportMetric(per(float64(used.Nanoseconds())), "cpu-ns/delivery")
	b.ReportMetric(per(float64(after.TotalAlloc-before.TotalAlloc)), "B/delivery")
	b.ReportMetric(per(float64(after.Mallocs-before.Mallocs)), "allocs/delivery")
}

func cpuTime(t testing.TB) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// sink is a document with one peer that signals when all updates have arrived.
type sink struct {
	doc  *yjs.Doc // nil: updates are not applied
	left int
	done chan struct{}
}

func (s *sink) Join(context.Context, store.Ref, identity.Actor, room.Peer) (socket.Seat, error) {
	return s, nil
}
func (s *sink) Sync([]byte) error      { return nil }
func (s *sink) Awareness([]byte) error { return nil }
func (s *sink) QueryAwareness()        {}
func (s *sink) Leave()                 {}

func (s *sink) Update(_ context.Context, update []byte) error {
	if s.doc != nil {
		if err := s.doc.ApplyUpdate(update, nil); err != nil {
			return err
		}
	}
	if s.left--; s.left == 0 {
		s.done <- struct{}{}
	}
	return nil
}

// BenchmarkReceive measures an update of one typed character from a mux to a seat, and to a
// document.
func BenchmarkReceive(b *testing.B) {
	const count = 10_000
	var all [][]byte
	d := yjs.New(yjs.Options{})
	d.OnUpdate(func(u *yjs.Update) { all = append(all, yproto.AppendUpdate(nil, u.V1())) })
	for i := range count {
		d.Text("t").Insert(i, "x")
	}
	for _, apply := range []bool{false, true} {
		b.Run(map[bool]string{false: "seat", true: "document"}[apply], func(b *testing.B) {
			s := &sink{done: make(chan struct{}, 1)}
			w := prepareRooms(b, socket.Limits{Messages: 1 << 40, Bytes: 1 << 40}, s)
			w.listen()
			o := mux.OpenRequest{Path: "/ws/documents/6f1e0000-0000-7000-8000-000000000000", Context: w.front.sign(identity.Editor)}
			up, err := w.front.pool.Open(b.Context(), "", o, &counter{})
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			cpu := cpuTime(b)
			rounds := 0
			for b.Loop() {
				s.left = count
				if apply {
					s.doc = yjs.New(yjs.Options{})
				}
				for _, msg := range all {
					if err := up.Send(msg, false, nil); err != nil {
						b.Fatal(err)
					}
				}
				<-s.done
				rounds++
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(rounds*count), "ns/update")
			b.ReportMetric(float64((cpuTime(b)-cpu).Nanoseconds())/float64(rounds*count), "cpu-ns/update")
		})
	}
}
