package feed_test

import (
	"bytes"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	runv1 "signalbox.dev/proto/signalbox/run/v1"

	"signalbox.dev/services/gateway/internal/feed"
)

// mark is a letter that occurs once in every event of a benchmark and nowhere else.
const mark = 'Z'

// crowd is a set of clients that read and count events: plain sockets and one goroutine on its own
// thread, whose processor time is measured.
type crowd struct {
	epoll int
	stop  atomic.Bool
	used  atomic.Int64 // processor time of the thread, in nanoseconds
	done  chan struct{}

	mu   sync.Mutex // guards the rest
	cond sync.Cond
	seen int64
}

// wait returns when n events were read.
func (c *crowd) wait(n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.seen < n {
		c.cond.Wait()
	}
}

func newCrowd(t testing.TB) *crowd {
	t.Helper()
	fd, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	c := &crowd{epoll: fd, done: make(chan struct{})}
	c.cond.L = &c.mu
	go c.read()
	t.Cleanup(func() {
		c.stop.Store(true)
		<-c.done
		syscall.Close(fd)
	})
	return c
}

func (c *crowd) add(t testing.TB, fd int) {
	t.Helper()
	if err := syscall.SetNonblock(fd, true); err != nil {
		t.Fatal(err)
	}
	if err := syscall.EpollCtl(c.epoll, syscall.EPOLL_CTL_ADD, fd, &syscall.EpollEvent{Events: syscall.EPOLLIN, Fd: int32(fd)}); err != nil {
		t.Fatal(err)
	}
}

func (c *crowd) read() {
	defer close(c.done)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var events [256]syscall.EpollEvent
	buf := make([]byte, 64<<10)
	for !c.stop.Load() {
		n, _ := syscall.EpollWait(c.epoll, events[:], 20) // after a signal it is called again
		count := 0
		for _, e := range events[:max(n, 0)] {
			m, err := syscall.Read(int(e.Fd), buf)
			if m <= 0 || err != nil {
				_ = syscall.EpollCtl(c.epoll, syscall.EPOLL_CTL_DEL, int(e.Fd), nil)
				continue
			}
			count += bytes.Count(buf[:m], []byte{mark})
		}
		c.used.Store(int64(rusage(rusageThread)))
		c.mu.Lock()
		c.seen += int64(count)
		c.cond.Broadcast()
		c.mu.Unlock()
	}
}

// live returns the live messages of a log's events, without a server.
func (w *world) live(seq int64) *nats.Msg {
	e := &runv1.Event{RunId: w.run.String(), RunOrdinal: 1, Epoch: 1, Number: seq - 1, Body: &runv1.Event_TextDelta{TextDelta: &runv1.TextDelta{Delta: "Z few words of an answer"}}}
	data, err := proto.Marshal(e)
	if err != nil {
		w.t.Fatal(err)
	}
	live := "live" + w.subject[2:]
	return &nats.Msg{Subject: live, Data: data, Header: nats.Header{
		"Nats-Subject": {w.subject}, "Nats-Sequence": {strconv.FormatInt(seq, 10)}, "Nats-Last-Sequence": {strconv.FormatInt(seq-1, 10)},
		"Nats-Time-Stamp": {"2026-11-21T20:00:00.123456789Z"}, "Nats-Stream": {"EV_00"}, "Nats-Msg-Id": {fmt.Sprint("x", seq)},
		"Signalbox-Schema": {"signalbox.run.v1.Event"},
	}}
}

// BenchmarkDeliver delivers events from the subscription to the sockets of their viewers: one by one
// and in bursts, with attached viewers and with viewers served by net/http. cpu-ns is the gateway's
// processor time per event and viewer.
func BenchmarkDeliver(b *testing.B) {
	for _, burst := range []int{1, 200} {
		for _, viewers := range []int{1, 1000} {
			for _, path := range []string{"?all=1", "?all=1&serve=1"} {
				name := fmt.Sprintf("viewers=%d/burst=%d/attached=%t", viewers, burst, !strings.HasSuffix(path, "serve=1"))
				b.Run(name, func(b *testing.B) { deliver(b, viewers, burst, path) })
			}
		}
	}
}

func deliver(b *testing.B, viewers, burst int, path string) {
	registry := prometheus.NewRegistry()
	w := newWorld(b, nil, func(c *feed.Config) {
		c.Silence, c.Idle, c.MaxBehind, c.Metrics, c.Rest = time.Hour, time.Hour, time.Hour, registry, time.Nanosecond
	})
	addr := w.open(b, 10*time.Second, nil).addr
	c := newCrowd(b)
	for range viewers {
		c.add(b, dialBare(b, addr, path))
	}
	in, seq := w.bus.channel(), int64(0)
	msgs := make([]*nats.Msg, burst)
	b.ReportAllocs()
	var used time.Duration
	for b.Loop() {
		b.StopTimer()
		for i := range msgs {
			seq++
			msgs[i] = w.live(seq)
		}
		before := rusage(syscall.RUSAGE_SELF) - time.Duration(c.used.Load())
		b.StartTimer()
		for _, m := range msgs {
			in <- m
		}
		c.wait(seq * int64(viewers))
		used += rusage(syscall.RUSAGE_SELF) - time.Duration(c.used.Load()) - before
	}
	delivered := float64(seq) * float64(viewers)
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/delivered, "ns/delivered")
	b.ReportMetric(float64(used.Nanoseconds())/delivered, "cpu-ns/delivered")
	b.ReportMetric(metric(b, registry, "gateway_feed_writes_total")/delivered, "writes/delivered")
}

// rusageThread is RUSAGE_THREAD, which package syscall does not have.
const rusageThread = 1

// rusage returns the processor time of the process or of this thread.
func rusage(who int) time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(who, &u) // who is valid
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
