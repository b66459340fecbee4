package room

import (
	"sync"
	"sync/atomic"
)

// uncommittedShare is the fraction of Config.MemoryBytes, and of a workspace's part of it, that
// uncommitted updates may use in addition.
const uncommittedShare = 8

// byteBudget limits the bytes of uncommitted updates. A single update is always accepted,
// whatever its size.
type byteBudget struct {
	max  int64
	used atomic.Int64

	awaited atomic.Bool // somebody waits; set under mu, so that give need not lock otherwise
	mu      sync.Mutex  // guards freed
	freed   chan struct{}
}

// take takes n bytes, or returns a channel that is closed when there may be space.
func (a *byteBudget) take(n int) (later <-chan struct{}) {
	if a.try(int64(n)) {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.awaited.Store(true)
	if a.freed == nil {
		a.freed = make(chan struct{})
	}
	if a.try(int64(n)) { // space was freed before awaited was set
		return nil
	}
	return a.freed
}

func (a *byteBudget) try(n int64) bool {
	for {
		used := a.used.Load()
		if used > 0 && used+n > a.max {
			return false
		}
		if a.used.CompareAndSwap(used, used+n) {
			return true
		}
	}
}

// give returns n bytes.
func (a *byteBudget) give(n int) {
	a.used.Add(int64(-n))
	if !a.awaited.Load() {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.awaited.Store(false)
	if a.freed != nil {
		close(a.freed)
		a.freed = nil
	}
}

// reserve reserves space for an update of this size in the inbox. If there is none it returns a
// channel that is closed when there may be, or nil if the room's own inbox is full. mu is
// held.
func (r *room) reserve(size int) (later <-chan struct{}, ok bool) {
	n := size + itemSize
	if r.inbox != nil && r.inbox.size()+n > r.hub.cfg.QueueBytes {
		return nil, false
	}
	if later = r.usage.uncommitted.take(n); later != nil {
		return later, false
	}
	if later = r.hub.uncommitted.take(n); later != nil {
		r.usage.uncommitted.give(n)
		return later, false
	}
	return nil, true
}

// unreserve releases the space of updates that are committed or refused.
func (r *room) unreserve(b *inbox) {
	n := b.size()
	r.usage.uncommitted.give(n)
	r.hub.uncommitted.give(n)
}
