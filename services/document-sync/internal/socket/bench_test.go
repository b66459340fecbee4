package socket_test

import (
	"context"
	"net"
	"net/http"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/yjs"
	"signalbox.dev/services/document-sync/internal/room"
	"signalbox.dev/services/document-sync/internal/socket"
	"signalbox.dev/services/document-sync/internal/store"
	"signalbox.dev/services/document-sync/internal/yproto"
)

// counted is a listener whose connections count writes.
type counted struct {
	net.Listener
	writes, target atomic.Int64
	there          chan struct{} // when writes reached target
}

type countedConn struct {
	net.Conn
	l *counted
}

func (l *counted) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &countedConn{c, l}, nil
}

func (c *countedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if c.l.writes.Add(1) == c.l.target.Load() {
		c.l.there <- struct{}{}
	}
	return n, err
}

// BenchmarkDeliver sends one update to 200 connections. The clients are in another
// process; what is reported is a delivery to one of them.
func BenchmarkDeliver(b *testing.B) {
	const n = 200
	w := prepare(b, socket.Limits{})
	under, err := new(net.ListenConfig).Listen(b.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	l := &counted{Listener: under, there: make(chan struct{}, 1)}
	server := &http.Server{Handler: w.gateway}
	go func() { _ = server.Serve(l) }()
	b.Cleanup(func() { server.Close() })
	w.url = "ws://" + under.Addr().String()
	w.run()
	ref := w.rooms.open(w.workspace)
	crowd(b, w, "/ws/documents/"+ref.Document.String(), n)
	eventually(b, "all sit and have read", func() bool { return w.rooms.seats(ref) == n && l.writes.Load() == 2*n })
	update := make([]byte, 40)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	cpu := cpuTime(b)
	rounds := 0
	for b.Loop() {
		l.target.Store(l.writes.Load() + n)
		w.rooms.broadcast(ref, &room.Message{Kind: room.KindUpdate, Payload: update})
		<-l.there
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

// sink is a document for one, which takes updates and says when all have come.
type sink struct {
	doc  *yjs.Doc // nil: they are not applied
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

// BenchmarkReceive is the way of an update, one typed character, from the network to a
// seat, and to a document. The client writes many frames at once: what it costs is
// little.
func BenchmarkReceive(b *testing.B) {
	const count = 10_000
	var stream []byte
	d := yjs.New(yjs.Options{})
	d.OnUpdate(func(u *yjs.Update) {
		msg := yproto.AppendUpdate(nil, u.V1())
		stream = append(stream, 0x82, 0x80|byte(len(msg)), 0, 0, 0, 0) // a mask of zeros
		stream = append(stream, msg...)
	})
	for i := range count {
		d.Text("t").Insert(i, "x")
	}
	for _, apply := range []bool{false, true} {
		b.Run(map[bool]string{false: "seat", true: "document"}[apply], func(b *testing.B) {
			s := &sink{done: make(chan struct{}, 1)}
			w := prepareRooms(b, socket.Limits{Messages: 1 << 40, Bytes: 1 << 40}, s)
			w.listen()
			c := w.dial(b, nil, path("6f1e0000-0000-7000-8000-000000000000", ""))
			b.ReportAllocs()
			cpu := cpuTime(b)
			rounds := 0
			for b.Loop() {
				s.left = count
				if apply {
					s.doc = yjs.New(yjs.Options{})
				}
				if _, err := c.ws.NetConn().Write(stream); err != nil {
					b.Fatal(err)
				}
				<-s.done
				rounds++
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(rounds*count), "ns/update")
			b.ReportMetric(float64((cpuTime(b)-cpu).Nanoseconds())/float64(rounds*count), "cpu-ns/update")
		})
	}
}
