package api

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A caller that arrives during a call shares the next call with all others that arrived meanwhile,
// and no caller gets a result of a call that began before it arrived.
func TestCoalescer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		looked := newCoalescer[string, int64](time.Minute)
		var asked atomic.Int64
		ask := func(context.Context) (int64, error) {
			n := asked.Add(1)
			<-time.After(time.Second)
			return n, t.Context().Err()
		}
		var group sync.WaitGroup
		come := func(want int64) {
			group.Go(func() {
				if got, err := looked.get(t.Context(), "key", ask); got != want || err != nil {
					t.Errorf("get = %d, %v, want %d", got, err, want)
				}
			})
		}
		come(1)
		<-time.After(time.Millisecond)
		for range 10 {
			come(2)
		}
		<-time.After(1500 * time.Millisecond) // the second call is in progress
		come(3)
		group.Wait()
		if got := asked.Load(); got != 3 {
			t.Errorf("asked %d times, want 3", got)
		}
	})
}

// The other callers get the result even if the caller that made the call has left.
func TestCoalescerWithoutTheFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		looked := newCoalescer[string, string](time.Minute)
		ask := func(ctx context.Context) (string, error) {
			select {
			case <-time.After(time.Second):
				return "answer", nil
			case <-ctx.Done():
				return "", ctx.Err()
			}
		}
		ctx, leave := context.WithCancel(t.Context())
		var group sync.WaitGroup
		for _, ctx := range []context.Context{ctx, t.Context(), t.Context()} {
			group.Go(func() {
				if got, err := looked.get(ctx, "key", ask); err != nil {
					t.Errorf("get = %q, %v, want the answer", got, err)
				}
			})
			synctest.Wait()
		}
		leave()
		group.Wait()
	})
}
