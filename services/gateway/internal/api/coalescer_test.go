package api

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A caller that comes while a question is being asked shares the next one with all others who
// came meanwhile, and none gets an answer that is older than its coming.
func TestTogether(t *testing.T) {
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
		<-time.After(1500 * time.Millisecond) // the second is being asked
		come(3)
		group.Wait()
		if got := asked.Load(); got != 3 {
			t.Errorf("asked %d times, want 3", got)
		}
	})
}

// Others get the answer although the one who asked for them has left.
func TestTogetherWithoutTheFirst(t *testing.T) {
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
