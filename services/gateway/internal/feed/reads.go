package feed

import (
	"context"
	"sync"

	"signalbox.dev/pkg/id"
)

// Limits of concurrent reads of the log and the record on one gateway. Comparisons for live streams
// do not wait for resuming viewers (tails), nor one workspace for another one.
const (
	maxComparisons       = 8
	maxTails             = 32
	maxTailsPerWorkspace = 4
)

// tokens is a semaphore.
type tokens chan struct{}

// acquire takes a token. It returns false if ctx ends first.
func (t tokens) acquire(ctx context.Context) bool {
	select {
	case t <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (t tokens) release() { <-t }

// turns is a semaphore with a limit per workspace. It is safe for concurrent use.
type turns struct {
	all tokens

	mu sync.Mutex // guards of
	of map[id.Workspace]*quota
}

// quota is the semaphore of a workspace. It exists while it has users.
type quota struct {
	tokens tokens
	users  int
}

func newTurns() *turns { return &turns{all: make(tokens, maxTails), of: map[id.Workspace]*quota{}} }

// acquire takes a slot for a workspace, which done releases. It returns false if ctx ends first.
func (t *turns) acquire(ctx context.Context, ws id.Workspace) (done func(), ok bool) {
	t.mu.Lock()
	s := t.of[ws]
	if s == nil {
		s = &quota{tokens: make(tokens, maxTailsPerWorkspace)}
		t.of[ws] = s
	}
	s.users++
	t.mu.Unlock()
	leave := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if s.users--; s.users == 0 {
			delete(t.of, ws)
		}
	}
	if !s.tokens.acquire(ctx) {
		leave()
		return nil, false
	}
	if !t.all.acquire(ctx) {
		s.tokens.release()
		leave()
		return nil, false
	}
	return func() {
		t.all.release()
		s.tokens.release()
		leave()
	}, true
}
