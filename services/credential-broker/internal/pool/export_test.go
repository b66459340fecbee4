package pool

import (
	"time"

	"signalbox.dev/pkg/id"
)

// Jump sets the wall clock ahead by d, or back, and leaves the monotonic one as it is, for
// all times that this pool is told from then on.
func (p *Pool) Jump(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clock.zero = p.clock.zero.Add(d)
}

// Exclusions returns for how many models an account is passed over.
func (p *Pool) Exclusions(a id.Account) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.index[a].limits {
		if isExclusion(l.family) {
			n++
		}
	}
	return n
}

// Peers returns how many instances are remembered of an account.
func (p *Pool) Peers(a id.Account) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.index[a].peers)
}

// Sessions returns how many sessions' accounts are remembered.
func (p *Pool) Sessions() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sessions.Len()
}

// Bare returns accounts of which nothing but the ids matters.
func Bare(ids []id.Account) []Account {
	all := make([]Account, len(ids))
	for i, a := range ids {
		all[i].ID = a
	}
	return all
}
