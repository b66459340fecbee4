// Package limit limits the rate of requests by key, such as a workspace or a member. Keys must
// be authenticated: a header that anybody can set must not use up somebody's limit.
package limit

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Rate is a token bucket's rate and size.
type Rate struct {
	PerMinute int
	Burst     int
}

// Limiter has a token bucket for each key. It keeps a bounded number of buckets and evicts
// full ones first, which has no effect. It is safe for concurrent use.
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

// Take counts one use by k. If k has used up its bucket, ok is false, nothing is counted, and
// wait is the time until the next use is allowed.
func (l *Limiter[K]) Take(k K, now time.Time) (wait time.Duration, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.buckets[k]
	if b == nil {
		if len(l.buckets) >= l.max {
			l.evict(now)
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

// evict removes full buckets and, if that is not enough, some of the others.
func (l *Limiter[K]) evict(now time.Time) {
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
