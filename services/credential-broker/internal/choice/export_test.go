package choice

import "time"

// Jump sets the clock on the wall ahead by d, or back, and leaves the monotonic one as it
// is, for all that this pool is told from then on.
func (p *Pool) Jump(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.zero = p.zero.Add(d)
}

// Shunned returns for how many models members are passed over.
func (p *Pool) Shunned() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.shunned.by)
}
