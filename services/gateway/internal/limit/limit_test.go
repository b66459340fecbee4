package limit_test

import (
	"testing"
	"time"

	"signalbox.dev/services/gateway/internal/limit"
)

func TestTake(t *testing.T) {
	t.Parallel()
	l := limit.New[string](limit.Rate{PerMinute: 60, Burst: 2}, 10)
	now := time.Unix(1000, 0)
	for i, want := range []bool{true, true, false, false} {
		if _, ok := l.Take("a", now); ok != want {
			t.Errorf("Take %d = %v, want %v", i, ok, want)
		}
	}
	if wait, ok := l.Take("a", now); ok || wait != time.Second {
		t.Errorf("Take of an empty bucket = %v, %v, want 1s, false", wait, ok)
	}
	if _, ok := l.Take("b", now); !ok {
		t.Error("Take by another key = false, want true")
	}
	if _, ok := l.Take("a", now.Add(time.Second)); !ok {
		t.Error("Take after a second = false, want true")
	}
}

func TestTakeRemembersBoundedlyMany(t *testing.T) {
	t.Parallel()
	l := limit.New[int](limit.Rate{PerMinute: 60, Burst: 1}, 100)
	now := time.Unix(1000, 0)
	for i := range 10_000 {
		l.Take(i, now)
	}
	// The newest is remembered, whatever else had to go.
	if _, ok := l.Take(9_999, now); ok {
		t.Error("Take of the newest key = true, want it to be remembered as empty")
	}
}
