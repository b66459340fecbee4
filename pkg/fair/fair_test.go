package fair_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"signalbox.dev/pkg/fair"
)

func TestTurns(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		limits fair.Limits
		wants  string // the keys that ask, in order
		gives  string // the keys that then release, in order
		order  string // the keys that got a slot, in order
	}{
		{"what is idle is anybody's", fair.Limits{Slots: 3}, "aaa", "", "aaa"},
		{"one key alone is served first come", fair.Limits{Slots: 1}, "aaaa", "aaa", "aaaa"},
		{"a flood waits behind another's only caller", fair.Limits{Slots: 2}, "aaaaaab", "aa", "aaba"},
		{"one slot goes round", fair.Limits{Slots: 1}, "aaabbc", "abcab", "abcaba"},
		{"who holds least comes first", fair.Limits{Slots: 3}, "abbbba", "b", "abba"},
		{"a key at its limit holds up nobody", fair.Limits{Slots: 3, PerKey: 1}, "aaab", "", "ab"},
		{"a key at its limit goes on with its own", fair.Limits{Slots: 3, PerKey: 1}, "aab", "a", "aba"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				var waiting sync.WaitGroup
				defer waiting.Wait()
				defer cancel()
				s := fair.New[rune](tt.limits)
				var mu sync.Mutex
				order := ""
				for _, key := range tt.wants {
					waiting.Go(func() {
						if s.Acquire(ctx, key) == nil {
							mu.Lock()
							defer mu.Unlock()
							order += string(key)
						}
					})
					synctest.Wait()
				}
				for _, key := range tt.gives {
					s.Release(key)
					synctest.Wait()
				}
				mu.Lock()
				defer mu.Unlock()
				if order != tt.order {
					t.Errorf("slots went to %q, want %q", order, tt.order)
				}
			})
		})
	}
}

func TestBounds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := fair.New[string](fair.Limits{Slots: 1, Waiting: 1})
		if !s.TryAcquire("a") || s.TryAcquire("b") {
			t.Fatal("TryAcquire does not take the one slot once")
		}
		why := errors.New("no time")
		ctx, cancel := context.WithCancelCause(t.Context())
		got := make(chan error, 1)
		go func() { got <- s.Acquire(ctx, "a") }()
		synctest.Wait()
		if err := s.Acquire(t.Context(), "a"); !errors.Is(err, fair.ErrTooMany) {
			t.Errorf("Acquire of a second one who would wait = %v, want ErrTooMany", err)
		}
		cancel(why)
		if err := <-got; !errors.Is(err, why) {
			t.Errorf("Acquire = %v, want the cause %v", err, why)
		}
		s.Release("a")
		if !s.TryAcquire("b") {
			t.Error("a released slot is not free: the caller that gave up waiting holds it")
		}
	})
}

// Whatever callers do, no more than the limit hold a slot, and none is lost.
func TestNoSlotIsLost(t *testing.T) {
	t.Parallel()
	const slots, perKey = 3, 2
	s := fair.New[int](fair.Limits{Slots: slots, PerKey: perKey})
	var held atomic.Int64
	var of [4]atomic.Int64
	var work sync.WaitGroup
	for i := range 32 {
		work.Go(func() {
			key := i % len(of)
			for range 500 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.N(50))*time.Microsecond)
				if s.Acquire(ctx, key) == nil {
					if held.Add(1) > slots || of[key].Add(1) > perKey {
						t.Error("more callers hold a slot than the limit")
					}
					of[key].Add(-1)
					held.Add(-1)
					s.Release(key)
				}
				cancel()
			}
		})
	}
	work.Wait()
	for key := range slots {
		if !s.TryAcquire(key) {
			t.Errorf("only %d of %d slots are left", key, slots)
		}
	}
}

func BenchmarkAcquire(b *testing.B) {
	s := fair.New[int](fair.Limits{Slots: 8})
	for b.Loop() {
		_ = s.Acquire(b.Context(), 1)
		s.Release(1)
	}
}
