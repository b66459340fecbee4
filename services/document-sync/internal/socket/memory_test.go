package socket_test

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"signalbox.dev/services/document-sync/internal/socket"
)

// What a connection costs that nobody uses, all included.
func TestIdleMemory(t *testing.T) { //nolint:paralleltest // it measures the process
	w := newWorld(t, socket.Limits{})
	idleMemory(t, w, "/ws/documents/"+w.rooms.open(w.workspace).Document.String(), 5000)
}

func TestIdleMemoryHocuspocus(t *testing.T) { //nolint:paralleltest // it measures the process
	idleMemory(t, newWorld(t, socket.Limits{}), "/ws/hocuspocus", 1000)
}

func idleMemory(t *testing.T, w *world, path string, n int) {
	t.Helper()
	if raceEnabled {
		n = 500 // and what they take says nothing
	}
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err == nil {
		n = min(n, int(files.Cur)/2)
	}
	const most = 10 << 10
	crowd(t, w, path, 100) // pools and pages are warm
	before, resident := inUse(t)
	crowd(t, w, path, n)
	eventually(t, "all is written", func() bool { return w.idle() })
	after, nowResident := inUse(t)
	each := (after - before) / n
	t.Logf("%d connections to %s: %d bytes each in heap and stacks, %d resident", n, path, each, (nowResident-resident)/n)
	if each > most && !raceEnabled {
		t.Errorf("a connection takes %d bytes, want at most %d", each, most)
	}
}

// idle says whether only the goroutines are left that read.
func (w *world) idle() bool { return runtime.NumGoroutine() < w.handler.Count()+60 }

func inUse(t testing.TB) (live, resident int) {
	t.Helper()
	for range 3 { // stacks shrink in one collection, and are freed in the next
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	b, err := os.ReadFile("/proc/self/statm")
	if err == nil {
		if f := strings.Fields(string(b)); len(f) > 1 {
			resident, _ = strconv.Atoi(f[1])
		}
	}
	return int(m.HeapAlloc + m.StackInuse), resident * os.Getpagesize()
}
