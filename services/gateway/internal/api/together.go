package api

import (
	"context"
	"sync"
	"time"
)

// together asks a question once for all who want to know at the same time. Each gets
// an answer to a question that was asked after they came.
type together[K comparable, V any] struct {
	limit time.Duration // of one asking

	mu   sync.Mutex // guards open
	open map[K]*asking[V]
}

type asking[V any] struct {
	begun  time.Time
	done   chan struct{} // closed when the rest is set
	answer V
	err    error
}

func newTogether[K comparable, V any](limit time.Duration) *together[K, V] {
	return &together[K, V]{limit: limit, open: map[K]*asking[V]{}}
}

// get answers key with what ask returns. Whoever asks does so for all who wait, under
// an identity of one of them, and to the end, also when its own context ends.
func (t *together[K, V]) get(ctx context.Context, key K, ask func(context.Context) (V, error)) (V, error) {
	came := time.Now()
	for {
		t.mu.Lock()
		a := t.open[key]
		if a == nil {
			a = &asking[V]{begun: time.Now(), done: make(chan struct{})}
			t.open[key] = a
			t.mu.Unlock()
			t.run(ctx, key, a, ask)
			return a.answer, a.err
		}
		t.mu.Unlock()
		select {
		case <-a.done:
		case <-ctx.Done():
			var none V
			return none, context.Cause(ctx)
		}
		if !a.begun.Before(came) {
			return a.answer, a.err
		}
	}
}

func (t *together[K, V]) run(ctx context.Context, key K, a *asking[V], ask func(context.Context) (V, error)) {
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.limit)
	defer cancel()
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.open, key)
		close(a.done)
	}()
	a.answer, a.err = ask(limited)
}
