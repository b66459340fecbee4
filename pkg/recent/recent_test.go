package recent_test

import (
	"testing"

	"signalbox.dev/pkg/recent"
)

// The map stays bounded.
func TestBounded(t *testing.T) {
	t.Parallel()
	const least = 100
	var m recent.Map[int, int]
	for i := range 10 * least {
		m.Put(i, -i, least)
		oldest := max(0, i-least+1)
		if v, ok := m.Get(oldest); !ok || v != -oldest {
			t.Fatalf("of the newest %d one is forgotten after %d", least, i)
		}
		if n := m.Len(); n > 2*least {
			t.Fatalf("%d are held", n)
		}
	}
	if _, ok := m.Get(0); ok {
		t.Error("the oldest is still there")
	}
}

// A key that is put again and again stays.
func TestPutAgain(t *testing.T) {
	t.Parallel()
	var m recent.Map[int, int]
	for i := range 1000 {
		m.Put(-1, i, 10)
		m.Put(i, 0, 10)
		if v, ok := m.Get(-1); !ok || v != i {
			t.Fatalf("after %d it is %d, %t", i, v, ok)
		}
	}
}
