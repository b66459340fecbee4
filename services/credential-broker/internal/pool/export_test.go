package pool

import (
	"time"

	"signalbox.dev/pkg/id"
)

// Jump sets the clock on the wall ahead by d, or back, and leaves the monotonic one as it
// is, for all that this pool is told from then on.
func (p *Pool) Jump(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.zero = p.zero.Add(d)
}

// Avoided returns for how many models members are passed over.
func (p *Pool) Avoided() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.avoided.by)
}

// Peers returns how many instances are remembered of an account.
func (p *Pool) Peers(a id.Account) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.cold[p.index[a]].peers)
}

// Sessions returns how many sessions' accounts are remembered.
func (p *Pool) Sessions() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sessions.Len()
}
