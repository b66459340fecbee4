package pool

// Sticky stays with one account until it cannot be used.
const Sticky Strategy = "sticky"

var sticky = Rule{
	Name: Sticky, About: "one account until it cannot be used",
	Current: true, pick: (*Pool).pickSticky,
}

// pickSticky is the strategy sticky.
func (p *Pool) pickSticky(q *query) int {
	if i := p.served(q.Session); p.takes(q, i) {
		return i
	}
	current := p.at
	if p.takes(q, current) {
		return current
	}
	ready := current >= 0 && p.open(q.t, q.f, current)
	p.readyFor(q)
	i := p.ready.next(p.cursor)
	if i < 0 {
		i = p.ready.next(0)
	}
	if i >= 0 && !ready { // else it stays the current one for others
		p.cursor = (i + 1) % len(p.ids)
		p.setCurrent(i)
	}
	return i
}
