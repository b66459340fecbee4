package socket_test

import (
	"runtime"
	"testing"

	"signalbox.dev/services/document-sync/internal/socket"
)

// TestIdleMemory measures an idle connection: its stream at both ends of the mux, its session
// and its seat.
func TestIdleMemory(t *testing.T) { //nolint:paralleltest // it measures the process
	w := newWorld(t, socket.Limits{})
	idleMemory(t, w, "/ws/documents/"+w.rooms.open(w.workspace).Document.String(), 5000)
}

func TestIdleMemoryHocuspocus(t *testing.T) { //nolint:paralleltest // it measures the process
	idleMemory(t, newWorld(t, socket.Limits{}), "/ws/hocuspocus", 1000)
}

func idleMemory(t *testing.T, w *world, path string, n int) {
	t.Helper()
	const most = 3 << 10
	if raceEnabled {
		n = 500 // the race detector changes the result
	}
	crowd(t, w, path, 100) // fills pools and buffers
	before, goroutines := inUse(), runtime.NumGoroutine()
	crowd(t, w, path, n)
	each := (inUse() - before) / n
	t.Logf("%d connections to %s: %d bytes each in heap and stacks", n, path, each)
	if each > most && !raceEnabled {
		t.Errorf("a connection takes %d bytes, want at most %d", each, most)
	}
	eventually(t, "no goroutines are left", func() bool { return runtime.NumGoroutine() < goroutines+20 })
}

func inUse() int {
	for range 3 { // stacks shrink in one collection, and are freed in the next
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc + m.StackInuse)
}
