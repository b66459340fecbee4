// Package tally counts things by key, within bounds of number and time.
package tally

import (
	"container/list"
	"sync"
	"time"
)

// Tally counts by key, such as how often a fault has happened or a request was seen. It has a
// bounded number of keys, and drops a key that is not touched for its lifetime. It is safe
// for concurrent use.
type Tally struct {
	most  int
	life  time.Duration
	now   func() time.Time
	mu    sync.Mutex // guards what follows
	items map[[32]byte]*list.Element
	order *list.List // of *tallied, the most recently touched first
}

type tallied struct {
	key     [32]byte
	n       int
	touched time.Time
}

// New returns an empty tally of at most most keys.
func New(most int, life time.Duration, now func() time.Time) *Tally {
	return &Tally{most: most, life: life, now: now, items: map[[32]byte]*list.Element{}, order: list.New()}
}

// Add increments the count of key, unless it has reached most, where 0 means no limit. It
// returns the previous count and whether it was incremented.
func (t *Tally) Add(key [32]byte, most int) (before int, counted bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	t.sweep(now)
	e, ok := t.items[key]
	if !ok {
		e = t.order.PushFront(&tallied{key: key})
		t.items[key] = e
	}
	t.order.MoveToFront(e)
	v, ok := e.Value.(*tallied)
	if !ok {
		return 0, false
	}
	before = v.n
	v.touched = now
	if most > 0 && v.n >= most {
		return before, false
	}
	v.n++
	return before, true
}

// Forget resets a key to zero.
func (t *Tally) Forget(key [32]byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e, ok := t.items[key]; ok {
		t.order.Remove(e)
		delete(t.items, key)
	}
}

// Reset removes all keys.
func (t *Tally) Reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.items)
	t.order.Init()
}

// sweep drops the oldest keys. The caller holds mu.
func (t *Tally) sweep(now time.Time) {
	for e := t.order.Back(); e != nil; e = t.order.Back() {
		v, ok := e.Value.(*tallied)
		if ok && len(t.items) < t.most && now.Sub(v.touched) < t.life {
			return
		}
		t.order.Remove(e)
		if ok {
			delete(t.items, v.key)
		}
	}
}
