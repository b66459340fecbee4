package feed_test

import (
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"signalbox.dev/pkg/id"

	"signalbox.dev/services/gateway/internal/feed"
)

// BenchmarkIdleStream measures the memory of an open stream. The clients are plain sockets, which use
// none; the bus server is in the process, with its memory for a subscription.
func BenchmarkIdleStream(b *testing.B) {
	for name, path := range map[string]func() string{
		"of one session":       func() string { return "?all=1" },
		"of distinct sessions": func() string { return id.New[id.Session]().String() },
	} {
		b.Run(name, func(b *testing.B) {
			const n = 2000
			for b.Loop() {
				b.StopTimer()
				w := newWorld(b, nil, func(c *feed.Config) { c.Silence, c.Idle = time.Hour, time.Hour })
				d := w.open(b, 10*time.Second, nil)
				dialBare(b, d.addr, path())
				b.StartTimer()
				before, live, goroutines := rss(b), heap(), runtime.NumGoroutine()
				for range n {
					dialBare(b, d.addr, path())
				}
				b.ReportMetric(float64(rss(b)-before)/n, "rss-B/stream")
				b.ReportMetric(float64(heap()-live)/n, "heap-B/stream")
				b.ReportMetric(float64(runtime.NumGoroutine()-goroutines)/n, "goroutines/stream")
				w.stop()
			}
		})
	}
}

// rss returns the process' resident memory.
func rss(t testing.TB) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Skip("there is no /proc here")
	}
	pages, err := strconv.Atoi(strings.Fields(string(b))[1])
	if err != nil {
		t.Fatal(err)
	}
	return pages * os.Getpagesize()
}

// heap returns the memory in use.
func heap() int {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc) //nolint:gosec // memory fits
}

// dialBare opens a stream over a socket that Go does not manage, and returns when it has begun.
func dialBare(t testing.TB, addr, path string) int {
	t.Helper()
	to, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(fd) })
	if err := syscall.Connect(fd, &syscall.SockaddrInet4{Port: to.Port, Addr: [4]byte(to.IP.To4())}); err != nil {
		t.Fatal(err)
	}
	if _, err := syscall.Write(fd, []byte("GET /"+path+" HTTP/1.1\r\nHost: x\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	var buf [1024]byte
	got := ""
	for !strings.HasSuffix(got, ":\n\r\n") {
		n, err := syscall.Read(fd, buf[:])
		if err != nil || n <= 0 {
			t.Fatalf("read = %d, %v after %q", n, err, got)
		}
		got += string(buf[:n])
	}
	return fd
}
