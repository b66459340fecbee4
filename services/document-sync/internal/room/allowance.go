package room

import (
	"sync"
	"sync/atomic"
)

// waitShare is the part of Config.MemoryBytes, and of what a workspace may have of it, that
// what waits to be committed may take besides.
const waitShare = 8

// allowance bounds in bytes what waits to be committed. One thing is always taken,
// whatever its size.
type allowance struct {
	most int64
	used atomic.Int64

	awaited atomic.Bool // somebody waits: set within mu, so that who gives back need not lock
	mu      sync.Mutex  // guards freed
	freed   chan struct{}
}

// take takes n bytes, or returns what is closed when there may be place.
func (a *allowance) take(n int) (later <-chan struct{}) {
	if a.try(int64(n)) {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.awaited.Store(true)
	if a.freed == nil {
		a.freed = make(chan struct{})
	}
	if a.try(int64(n)) { // given back before anybody could see that we wait
		return nil
	}
	return a.freed
}

func (a *allowance) try(n int64) bool {
	for {
		used := a.used.Load()
		if used > 0 && used+n > a.most {
			return false
		}
		if a.used.CompareAndSwap(used, used+n) {
			return true
		}
	}
}

// give gives n bytes back.
func (a *allowance) give(n int) {
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

// place takes what an update of so many bytes needs to wait in the inbox. When there is
// none it returns what is closed when there may be, nil where that is the room's own
// matter. mu is held.
func (r *room) place(size int) (later <-chan struct{}, ok bool) {
	n := size + itemSize
	if r.inbox != nil && r.inbox.size()+n > r.hub.cfg.QueueBytes {
		return nil, false
	}
	if later = r.usage.waiting.take(n); later != nil {
		return later, false
	}
	if later = r.hub.waiting.take(n); later != nil {
		r.usage.waiting.give(n)
		return later, false
	}
	return nil, true
}

// settled gives back the place of updates that are committed, or refused.
func (r *room) settled(b *inbox) {
	n := b.size()
	r.usage.waiting.give(n)
	r.hub.waiting.give(n)
}
