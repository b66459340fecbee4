package tally_test

import (
	"testing"
	"time"

	"signalbox.dev/services/simulator/internal/tally"
)

func TestTally(t *testing.T) {
	t.Parallel()
	now := time.Unix(0, 0)
	c := tally.New(2, time.Minute, func() time.Time { return now })
	a, b, d := [32]byte{1}, [32]byte{2}, [32]byte{3}
	add := func(key [32]byte, most, before int, counted bool) {
		t.Helper()
		if n, ok := c.Add(key, most); n != before || ok != counted {
			t.Errorf("Add(%d, %d) = %d, %t, want %d, %t", key[0], most, n, ok, before, counted)
		}
	}
	add(a, 2, 0, true)
	add(a, 2, 1, true)
	add(a, 2, 2, false)
	add(a, 0, 2, true)
	c.Forget(a)
	add(a, 2, 0, true)
	now = now.Add(59 * time.Second)
	add(a, 2, 1, true)
	now = now.Add(61 * time.Second)
	add(a, 2, 0, true)
	add(b, 1, 0, true)
	add(d, 1, 0, true) // a and b are two already: the oldest goes
	add(d, 1, 1, false)
	add(a, 2, 0, true)
	c.Reset()
	add(d, 1, 0, true)
}
