package proxy

import (
	"sync"

	"signalbox.dev/pkg/id"
)

// shares counts what each workspace has of the proxy, half of it at most, so that one
// leaves room for the others.
type shares struct {
	most share

	mu sync.Mutex // guards of
	of map[id.Workspace]share
}

// share is what a workspace has: open requests, and bytes of their bodies.
type share struct{ requests, bytes int64 }

func newShares(l Limits) *shares {
	// One request, however large, is always allowed.
	return &shares{most: share{max(l.Requests/2, 1), max(l.Bodies/2, l.Body)}, of: map[id.Workspace]share{}}
}

// take adds to what a workspace has; it is false where that would be too much.
func (s *shares) take(w id.Workspace, more share) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	has := s.of[w]
	has.requests += more.requests
	has.bytes += more.bytes
	if has.requests > s.most.requests || has.bytes > s.most.bytes {
		return false
	}
	s.of[w] = has
	return true
}

// give takes back what take added.
func (s *shares) give(w id.Workspace, less share) {
	s.mu.Lock()
	defer s.mu.Unlock()
	has := s.of[w]
	has.requests -= less.requests
	has.bytes -= less.bytes
	if has == (share{}) {
		delete(s.of, w)
		return
	}
	s.of[w] = has
}
