// Package fair shares a limited resource fairly between tenants.
//
// A Semaphore has a number of slots. While some are free, any key may take them, up to its
// limit. Otherwise callers wait in one queue per key. A slot that becomes free goes to the
// waiting key that holds the fewest slots; among equals, to the one served least recently. A
// key that floods therefore waits behind its own callers, and another key's only caller waits
// for one release.
package fair

import (
	"container/list"
	"context"
	"errors"
	"sync"
)

// ErrTooMany means that the maximum number of the key's callers are already waiting.
var ErrTooMany = errors.New("too many callers are already waiting")

// Semaphore grants slots fairly by key. It is safe for concurrent use.
type Semaphore[K comparable] struct {
	limits Limits

	mu       sync.Mutex // guards what follows
	held     int
	served   int64 // slots granted so far
	shares   map[K]*share[K]
	eligible list.List // of *share: keys with waiters, below their limit
}

// Limits are the limits of a Semaphore.
type Limits struct {
	Slots   int // in all
	PerKey  int // that one key may hold; 0 means Slots
	Waiting int // callers of one key that may wait; 0 means any number
}

// share is the state of one key.
type share[K comparable] struct {
	key     K
	held    int
	served  int64         // Semaphore.served when it got its last slot
	waiting list.List     // of chan struct{}, closed when the slot is granted
	element *list.Element // in Semaphore.eligible; nil if not in it
}

// New returns a semaphore with at least one slot.
func New[K comparable](l Limits) *Semaphore[K] {
	l.Slots = max(l.Slots, 1)
	if l.PerKey <= 0 || l.PerKey > l.Slots {
		l.PerKey = l.Slots
	}
	return &Semaphore[K]{limits: l, shares: map[K]*share[K]{}}
}

// TryAcquire takes a slot for key if one is free, and reports whether it did. The caller
// returns it with Release.
func (s *Semaphore[K]) TryAcquire(key K) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	sh := s.share(key)
	defer s.update(sh)
	return s.try(sh)
}

// Acquire waits for a slot for key, which the caller returns with Release. It returns
// ErrTooMany, or the cause of ctx if ctx is done first.
func (s *Semaphore[K]) Acquire(ctx context.Context, key K) error {
	s.mu.Lock()
	sh := s.share(key)
	if s.try(sh) {
		s.update(sh)
		s.mu.Unlock()
		return nil
	}
	if s.limits.Waiting > 0 && sh.waiting.Len() >= s.limits.Waiting {
		s.mu.Unlock() // without update: a share with waiters stays
		return ErrTooMany
	}
	granted := make(chan struct{})
	waiter := sh.waiting.PushBack(granted)
	s.update(sh)
	s.mu.Unlock()
	select {
	case <-granted:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-granted:
		s.release(sh)
	default:
		sh.waiting.Remove(waiter)
		s.update(sh)
	}
	return context.Cause(ctx)
}

// Release returns a slot of key.
func (s *Semaphore[K]) Release(key K) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.release(s.share(key))
}

// Waiting returns how many callers wait.
func (s *Semaphore[K]) Waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, sh := range s.shares {
		n += sh.waiting.Len()
	}
	return n
}

// share returns the share of a key, with mu held. update forgets it when it is empty.
func (s *Semaphore[K]) share(key K) *share[K] {
	sh := s.shares[key]
	if sh == nil {
		sh = &share[K]{key: key}
		s.shares[key] = sh
	}
	return sh
}

// try takes a free slot; the caller calls update. It is fair to waiters:
// while a slot is free, all waiting keys are at their limit.
func (s *Semaphore[K]) try(sh *share[K]) bool {
	ok := s.held < s.limits.Slots && sh.held < s.limits.PerKey
	if ok {
		s.serve(sh)
	}
	return ok
}

func (s *Semaphore[K]) serve(sh *share[K]) {
	s.held++
	sh.held++
	s.served++
	sh.served = s.served
}

func (s *Semaphore[K]) release(sh *share[K]) {
	s.held--
	sh.held--
	s.update(sh)
	var next *share[K]
	for e := s.eligible.Front(); e != nil; e = e.Next() {
		if c, ok := e.Value.(*share[K]); ok && (next == nil || c.held < next.held || c.held == next.held && c.served < next.served) {
			next = c
		}
	}
	if next == nil {
		return
	}
	granted, _ := next.waiting.Remove(next.waiting.Front()).(chan struct{})
	s.serve(next)
	s.update(next)
	close(granted)
}

// update adds a share to eligible or removes it, and forgets an empty share.
func (s *Semaphore[K]) update(sh *share[K]) {
	switch eligible := sh.waiting.Len() > 0 && sh.held < s.limits.PerKey; {
	case eligible && sh.element == nil:
		sh.element = s.eligible.PushBack(sh)
	case !eligible && sh.element != nil:
		s.eligible.Remove(sh.element)
		sh.element = nil
	}
	if sh.held == 0 && sh.waiting.Len() == 0 && s.shares[sh.key] == sh {
		delete(s.shares, sh.key)
	}
}
