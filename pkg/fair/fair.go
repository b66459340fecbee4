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

// ErrTooMany means that the maximum number of the key's callers are waiting.
var ErrTooMany = errors.New("too many callers are waiting already")

// Semaphore grants slots fairly by key. It is safe for concurrent use.
type Semaphore[K comparable] struct {
	limits Limits

	mu     sync.Mutex // guards what follows
	held   int
	served int64 // slots granted so far
	of     map[K]*share[K]
	turns  list.List // of *share: keys with waiters, below their limit
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
	served  int64     // Semaphore.served when it got its last slot
	waiting list.List // of chan struct{}, closed when the slot is granted
	turn    *list.Element
}

// New returns a semaphore with at least one slot.
func New[K comparable](l Limits) *Semaphore[K] {
	l.Slots = max(l.Slots, 1)
	if l.PerKey <= 0 || l.PerKey > l.Slots {
		l.PerKey = l.Slots
	}
	return &Semaphore[K]{limits: l, of: map[K]*share[K]{}}
}

// TryAcquire takes a slot for key if one is free, and reports whether it did. The caller
// returns it with Release.
func (s *Semaphore[K]) TryAcquire(key K) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.share(key)
	defer s.update(of)
	return s.try(of)
}

// Acquire waits for a slot for key, which the caller returns with Release. It returns
// ErrTooMany, or the cause of ctx if ctx is done first.
func (s *Semaphore[K]) Acquire(ctx context.Context, key K) error {
	s.mu.Lock()
	of := s.share(key)
	if s.try(of) {
		s.update(of)
		s.mu.Unlock()
		return nil
	}
	if s.limits.Waiting > 0 && of.waiting.Len() >= s.limits.Waiting {
		s.mu.Unlock() // without update: a share with waiters stays
		return ErrTooMany
	}
	given := make(chan struct{})
	place := of.waiting.PushBack(given)
	s.update(of)
	s.mu.Unlock()
	select {
	case <-given:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-given:
		s.release(of)
	default:
		of.waiting.Remove(place)
		s.update(of)
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
	for _, of := range s.of {
		n += of.waiting.Len()
	}
	return n
}

// share returns the share of a key, with mu held. update forgets it when it is empty.
func (s *Semaphore[K]) share(key K) *share[K] {
	of := s.of[key]
	if of == nil {
		of = &share[K]{key: key}
		s.of[key] = of
	}
	return of
}

// try takes a free slot; the caller calls update. It passes nobody over: while a slot is
// free, all waiting keys are at their limit.
func (s *Semaphore[K]) try(of *share[K]) bool {
	ok := s.held < s.limits.Slots && of.held < s.limits.PerKey
	if ok {
		s.serve(of)
	}
	return ok
}

func (s *Semaphore[K]) serve(of *share[K]) {
	s.held++
	of.held++
	s.served++
	of.served = s.served
}

func (s *Semaphore[K]) release(of *share[K]) {
	s.held--
	of.held--
	s.update(of)
	var next *share[K]
	for e := s.turns.Front(); e != nil; e = e.Next() {
		if c, ok := e.Value.(*share[K]); ok && (next == nil || c.held < next.held || c.held == next.held && c.served < next.served) {
			next = c
		}
	}
	if next == nil {
		return
	}
	given, _ := next.waiting.Remove(next.waiting.Front()).(chan struct{})
	s.serve(next)
	s.update(next)
	close(given)
}

// update adds a share to turns or removes it, and forgets an empty share.
func (s *Semaphore[K]) update(of *share[K]) {
	switch wants := of.waiting.Len() > 0 && of.held < s.limits.PerKey; {
	case wants && of.turn == nil:
		of.turn = s.turns.PushBack(of)
	case !wants && of.turn != nil:
		s.turns.Remove(of.turn)
		of.turn = nil
	}
	if of.held == 0 && of.waiting.Len() == 0 && s.of[of.key] == of {
		delete(s.of, of.key)
	}
}
