package proxy

import (
	"sync"

	"golang.org/x/sync/semaphore"

	"signalbox.dev/pkg/id"
)

// shares limits each workspace to half of the proxy, so that others always find room.
type shares struct {
	requests, bytes int64 // limits of one workspace

	mu sync.Mutex // guards of and the shares' open
	of map[id.Workspace]*share
}

// share is what one workspace uses: open requests, and bytes of their bodies. It exists while
// a request is open; a request returns its bytes before it leaves.
type share struct {
	open   int64
	bodies *semaphore.Weighted
}

func newShares(l Limits) *shares {
	// A workspace's only request is let in, however large its body.
	return &shares{requests: max(l.Requests/2, 1), bytes: max(l.Bodies/2, l.Body), of: map[id.Workspace]*share{}}
}

// enter counts a request of a workspace; it returns nil if the workspace has too many.
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

// leave ends a request that entered.
func (s *shares) leave(w id.Workspace) {
	s.mu.Lock()
	defer s.mu.Unlock()
	has := s.of[w]
	has.open--
	if has.open == 0 {
		delete(s.of, w)
	}
}
