package pool_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/panics"
	"signalbox.dev/services/credential-broker/internal/pool"
	"signalbox.dev/services/credential-broker/internal/store"
)

// buggy is a store that panics while broken.
type buggy struct {
	pool.Store
	broken *atomic.Bool
}

func (s buggy) Pool(ctx context.Context, ws id.Workspace, provider string) (store.Pool, error) {
	if s.broken.Load() {
		panic("a row that cannot be read")
	}
	return s.Store.Pool(ctx, ws, provider)
}

// A panic while a pool is read is an error for the requests that wait for it, and for no later one.
func TestPanicCostsOneReading(t *testing.T) {
	t.Parallel()
	var broken atomic.Bool
	w := newWorld(t, func(c *pool.Config) { c.Store = buggy{c.Store, &broken} })
	w.add(w.actor.Workspace, "openai", "openai", "", "key", w.actor.Workspace)
	broken.Store(true)
	_, err := w.pool.Select(t.Context(), pool.Request{Actor: w.actor, Provider: "openai"})
	if _, ok := errors.AsType[*panics.Error](err); !ok {
		t.Errorf("Select = %v, want the panic as an error", err)
	}
	broken.Store(false)
	if a, err := w.pool.Select(t.Context(), pool.Request{Actor: w.actor, Provider: "openai"}); err != nil || a.Secret.Reveal() != "key" {
		t.Errorf("Select after the repair = %v, want the account", err)
	}
}
