package room

import (
	"math/rand/v2"
	"testing"
)

func TestSequence(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 1))
	for range 500 {
		var s sequence
		have := map[int64]bool{}
		for range r.IntN(40) {
			if n := int64(r.IntN(30) + 1); r.IntN(8) == 0 {
				s.reach(n)
				for i := int64(1); i <= n; i++ {
					have[i] = true
				}
			} else {
				s.note(n)
				have[n] = true
			}
			prefix := int64(0)
			for have[prefix+1] {
				prefix++
			}
			beyond := 0
			for n := int64(1); n <= 31; n++ {
				if s.has(n) != have[n] {
					t.Fatalf("has(%d) = %v, want %v", n, s.has(n), have[n])
				}
				if n > prefix && have[n] {
					beyond++
				}
			}
			if s.at != prefix || s.gap() != (beyond > 0) {
				t.Fatalf("at = %d, gap = %v, want %d, %v", s.at, s.gap(), prefix, beyond > 0)
			}
		}
	}
}
