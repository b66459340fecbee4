package api

import (
	"context"
	"sync"
	"time"
)

// coalescer merges concurrent calls for the same key into one. A caller gets the result
// of a call that began after the caller arrived, never an older one.
type coalescer[K comparable, V any] struct {
	limit time.Duration // timeout of one call

	mu   sync.Mutex // guards open
	open map[K]*inFlight[V]
}

type inFlight[V any] struct {
	begun time.Time
	done  chan struct{} // closed when value and err are set
	value V
	err   error
}

func newCoalescer[K comparable, V any](limit time.Duration) *coalescer[K, V] {
	return &coalescer[K, V]{limit: limit, open: map[K]*inFlight[V]{}}
}

// get returns the result of call. One of the waiting callers makes the call for all of
// them, under its own identity, and finishes it even if its context is cancelled.
func (c *coalescer[K, V]) get(ctx context.Context, key K, call func(context.Context) (V, error)) (V, error) {
	arrived := time.Now()
	for {
		c.mu.Lock()
		f := c.open[key]
		if f == nil {
			f = &inFlight[V]{begun: time.Now(), done: make(chan struct{})}
			c.open[key] = f
			c.mu.Unlock()
			c.run(ctx, key, f, call)
			return f.value, f.err
		}
		c.mu.Unlock()
		select {
		case <-f.done:
		case <-ctx.Done():
			var none V
			return none, context.Cause(ctx)
		}
		if !f.begun.Before(arrived) {
			return f.value, f.err
		}
	}
}

func (c *coalescer[K, V]) run(ctx context.Context, key K, f *inFlight[V], call func(context.Context) (V, error)) {
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.limit)
	defer cancel()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.open, key)
		close(f.done)
	}()
	f.value, f.err = call(limited)
}
