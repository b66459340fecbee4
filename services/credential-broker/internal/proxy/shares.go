package proxy

import (
	"sync"

	"golang.org/x/sync/semaphore"

	"signalbox.dev/pkg/id"
)

// shares keeps what each workspace has of the proxy, half of it at most, so that one
// leaves room for the others.
type shares struct {
	requests, bytes int64 // a workspace's at most

	mu sync.Mutex // guards of and what its shares count
	of map[id.Workspace]*share
}

// share is what a workspace has: open requests, and bytes of their bodies. It is kept while
// a request is open; each gives its bytes back before it leaves.
type share struct {
	open   int64
	bodies *semaphore.Weighted
}

func newShares(l Limits) *shares {
	// A workspace's only request is let in, and so is its body, however large it may be.
	return &shares{requests: max(l.Requests/2, 1), bytes: max(l.Bodies/2, l.Body), of: map[id.Workspace]*share{}}
}

// enter counts a request of a workspace; it returns nil where that would be too many.
func (s *shares) enter(w id.Workspace) *share {
	s.mu.Lock()
	defer s.mu.Unlock()
	has := s.of[w]
	if has == nil {
		has = &share{bodies: semaphore.NewWeighted(s.bytes)}
		s.of[w] = has
	}
	if has.open >= s.requests {
		return nil
	}
	has.open++
	return has
}

// leave is for a request that entered.
func (s *shares) leave(w id.Workspace) {
	s.mu.Lock()
	defer s.mu.Unlock()
	has := s.of[w]
	has.open--
	if has.open == 0 {
		delete(s.of, w)
	}
}
