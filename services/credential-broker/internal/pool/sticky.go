package pool

// Sticky stays with one account until it cannot be used.
const Sticky Strategy = "sticky"

var sticky = Rule{
	Name: Sticky, About: "one account until it cannot be used",
	Current: true, pick: (*Pool).pickSticky,
}

// pickSticky is the strategy sticky.
func (p *Pool) pickSticky() *member {
	q := &p.search
	if m := p.served(q.Session); q.takes(m) {
		return m
	}
	current := p.index[p.current]
	if q.takes(current) {
		return current
	}
	for i := range p.members {
		m := p.members[(p.cursor+i)%len(p.members)]
		if !q.takes(m) {
			continue
		}
		if current == nil || !q.open(current) { // else the current account stays it for others
			p.cursor, p.current = m.at+1, m.account.ID
		}
		return m
	}
	return nil
}
