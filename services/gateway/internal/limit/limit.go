// Package limit bounds how many requests a workspace and a member make. Who they
// are is verified before they are counted: a header that anybody can set counts
// for nothing.
package limit

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Rate is how often something may happen.
type Rate struct {
	PerMinute int
	Burst     int
}

// Limiter gives each key a bucket of its own. It remembers a bounded number of
// them; when that is reached, buckets that are full again go first, since
// forgetting them changes nothing. It is safe for concurrent use.
type Limiter[K comparable] struct {
	rate Rate
	max  int

	mu      sync.Mutex // guards buckets
	buckets map[K]*rate.Limiter
}

// New returns a limiter that remembers at most maxKeys keys.
func New[K comparable](r Rate, maxKeys int) *Limiter[K] {
	return &Limiter[K]{rate: r, max: maxKeys, buckets: map[K]*rate.Limiter{}}
}

// Take counts one use by k. When k has had too many, ok is false, nothing is
// counted, and wait says when the next one would be allowed.
func (l *Limiter[K]) Take(k K, now time.Time) (wait time.Duration, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.buckets[k]
	if b == nil {
		if len(l.buckets) >= l.max {
			l.makeRoom(now)
		}
		b = rate.NewLimiter(rate.Limit(float64(l.rate.PerMinute)/60), l.rate.Burst)
		l.buckets[k] = b
	}
	r := b.ReserveN(now, 1)
	if !r.OK() {
		return time.Minute, false
	}
	if wait = r.DelayFrom(now); wait > 0 {
		r.CancelAt(now)
		return wait, false
	}
	return 0, true
}

// makeRoom forgets full buckets or, when all are in use, some of the others: a
// gateway with that many busy callers has other worries.
func (l *Limiter[K]) makeRoom(now time.Time) {
	for k, b := range l.buckets {
		if b.TokensAt(now) >= float64(l.rate.Burst) {
			delete(l.buckets, k)
		}
	}
	for k := range l.buckets {
		if len(l.buckets) < l.max*9/10 {
			return
		}
		delete(l.buckets, k)
	}
}
