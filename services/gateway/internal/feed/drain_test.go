package feed

import (
	"errors"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestDrainIsSpread checks that streams end over the whole window and not at once, and those that
// cannot be resumed at its end.
func TestDrainIsSpread(t *testing.T) {
	t.Parallel()
	const n, window = 300, 6 * time.Second
	check := func(t *testing.T, thirds [3]int) {
		t.Helper()
		for i, got := range thirds {
			if got < n/5 {
				t.Errorf("%d of %d streams ended in third %d of the window: %v", got, n, i+1, thirds)
			}
		}
		if all := thirds[0] + thirds[1] + thirds[2]; all != n {
			t.Errorf("%d of %d streams ended in the window", all, n)
		}
	}
	t.Run("handed over", func(t *testing.T) {
		t.Parallel()
		f := New(Config{DrainWindow: window})
		top := &topic{shard: f.shards[0]}
		ended := 0
		for range n {
			near, far := net.Pipe()
			defer far.Close()
			v := &Viewer{feed: f, topic: top, conn: &Conn{nc: near, chunked: true}, ended: func(err error) {
				if ended++; !errors.Is(err, ErrDraining) {
					t.Errorf("ended(%v), want ErrDraining", err)
				}
			}}
			top.addToGroup(v)
		}
		lastEnded := false
		near, far := net.Pipe()
		defer far.Close()
		last := &Viewer{feed: f, topic: top, conn: &Conn{nc: near, chunked: true}, ended: func(error) { lastEnded = true }}
		last.LeaveLast()
		top.addToGroup(last)
		begin, before := time.Now(), 0
		top.drain(begin)
		var thirds [3]int
		for i := range thirds {
			at := window * time.Duration(i+1) / 3
			if top.drain(begin.Add(at - 1)); lastEnded {
				t.Errorf("a stream that cannot be resumed ended %v before the end of the window", window-at+1)
			}
			top.drain(begin.Add(at))
			thirds[i], before = ended-before, ended
		}
		check(t, thirds)
		if !lastEnded {
			t.Error("the stream that cannot be resumed goes on after the window")
		}
	})
	t.Run("over net/http", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			f := New(Config{DrainWindow: window, Heartbeat: time.Hour})
			var all sync.WaitGroup
			var mu sync.Mutex
			var thirds [3]int
			begin := time.Now()
			for range n {
				all.Go(func() {
					w := waiting{viewer: &Viewer{feed: f}, beat: time.NewTimer(time.Hour), leave: f.draining}
					defer w.stop()
					if err := w.next(t.Context(), false); !errors.Is(err, ErrDraining) {
						t.Errorf("next() = %v, want ErrDraining", err)
					}
					mu.Lock()
					defer mu.Unlock()
					thirds[min(2, int(3*time.Since(begin)/window))]++
				})
			}
			all.Go(func() {
				v := &Viewer{feed: f}
				v.LeaveLast()
				w := waiting{viewer: v, beat: time.NewTimer(time.Hour), leave: f.draining}
				defer w.stop()
				if err := w.next(t.Context(), false); !errors.Is(err, ErrDraining) || time.Since(begin) != window {
					t.Errorf("a stream that cannot be resumed: next() = %v after %v, want ErrDraining after %v", err, time.Since(begin), window)
				}
			})
			f.Drain()
			all.Wait()
			check(t, thirds)
		})
	})
}
