// Package fair hands out what is scarce to tenants in turn.
//
// A Semaphore has a number of slots. While some are free, any key may take them, up to
// its limit. When none is, callers wait in one queue per key, and a slot that becomes
// free goes to the waiting key that holds the fewest; among equals, to the one that was
// served least recently. So a key that floods waits behind its own callers, and
// another key's only caller waits for one release.
package fair

import (
	"container/list"
	"context"
	"errors"
	"sync"
)

// ErrTooMany means that as many callers of the key wait already as may.
var ErrTooMany = errors.New("too many callers wait already")

// Semaphore hands out slots by key in turn. Its methods may be called from any goroutine.
type Semaphore[K comparable] struct {
	limits Limits

	mu     sync.Mutex // guards what follows
	held   int
	served int64 // slots handed out so far
	of     map[K]*share[K]
	turns  list.List // of *share with waiters that may have a slot
}

// Limits are a Semaphore's bounds.
type Limits struct {
	Slots   int // in all
	PerKey  int // that one key may hold; Slots when 0
	Waiting int // callers of one key that may wait; no bound when 0
}

// share is what one key has and wants.
type share[K comparable] struct {
	key     K
	held    int
	served  int64     // Semaphore.served when it got its last slot
	waiting list.List // of chan struct{}, which is closed with the slot given
	turn    *list.Element
}

// New returns a semaphore; it has one slot at least.
func New[K comparable](l Limits) *Semaphore[K] {
	l.Slots = max(l.Slots, 1)
	if l.PerKey <= 0 || l.PerKey > l.Slots {
		l.PerKey = l.Slots
	}
	return &Semaphore[K]{limits: l, of: map[K]*share[K]{}}
}

// TryAcquire takes a slot for key if one is free, and reports whether it did. The caller
// gives it back with Release.
func (s *Semaphore[K]) TryAcquire(key K) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.share(key)
	defer s.line(of)
	return s.try(of)
}

// Acquire takes a slot for key, for which it waits until ctx is done. It returns nil, and
// then the caller gives the slot back with Release; ErrTooMany; or the cause of ctx's end.
func (s *Semaphore[K]) Acquire(ctx context.Context, key K) error {
	s.mu.Lock()
	of := s.share(key)
	if s.try(of) {
		s.line(of)
		s.mu.Unlock()
		return nil
	}
	if s.limits.Waiting > 0 && of.waiting.Len() >= s.limits.Waiting {
		s.mu.Unlock() // of has waiters, and is kept
		return ErrTooMany
	}
	given := make(chan struct{})
	place := of.waiting.PushBack(given)
	s.line(of)
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
		s.line(of)
	}
	return context.Cause(ctx)
}

// Release gives a slot of key back.
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

// share returns what a key has; mu is held. line forgets it when that is nothing.
func (s *Semaphore[K]) share(key K) *share[K] {
	of := s.of[key]
	if of == nil {
		of = &share[K]{key: key}
		s.of[key] = of
	}
	return of
}

// try takes a slot that is free; the caller calls line. Nobody is passed over: while a slot is free, those who
// wait are at their keys' limit.
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
	s.line(of)
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
	s.line(next)
	close(given)
}

// line puts a share among those whose turn comes, or takes it out, and forgets one that
// has and wants nothing.
func (s *Semaphore[K]) line(of *share[K]) {
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
