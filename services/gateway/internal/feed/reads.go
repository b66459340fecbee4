package feed

import (
	"context"
	"sync"

	"signalbox.dev/pkg/id"
)

// How much of the log, and of its record, is read at once on one gateway. What live
// streams need to go on (looks) does not wait for those who come back (tails), nor
// one workspace for another one's.
const (
	looksAtOnce       = 8
	tailsAtOnce       = 32
	tailsPerWorkspace = 4
)

// tokens bound what is done at once.
type tokens chan struct{}

// acquire takes one; false when ctx ended first.
func (t tokens) acquire(ctx context.Context) bool {
	select {
	case t <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (t tokens) release() { <-t }

// turns are tokens of which a workspace has a few at most. It is for any goroutine.
type turns struct {
	all tokens

	mu sync.Mutex // guards what follows
	of map[id.Workspace]*quota
}

// quota is what one workspace may have, while somebody of it has or wants some.
type quota struct {
	tokens tokens
	users  int
}

func newTurns() *turns { return &turns{all: make(tokens, tailsAtOnce), of: map[id.Workspace]*quota{}} }

// acquire takes a turn for a workspace, which done gives back; false when ctx ended first.
func (t *turns) acquire(ctx context.Context, ws id.Workspace) (done func(), ok bool) {
	t.mu.Lock()
	s := t.of[ws]
	if s == nil {
		s = &quota{tokens: make(tokens, tailsPerWorkspace)}
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
