package pool

// RoundRobin takes the accounts in turn.
const RoundRobin Strategy = "round-robin"

var roundRobin = Rule{Name: RoundRobin, About: "in turn", pick: (*Pool).pickRoundRobin}

// pickRoundRobin is the strategy round-robin.
func (p *Pool) pickRoundRobin() *member {
	ready := p.search.ready
	n := ready.count()
	if n == 0 {
		return nil
	}
	m := p.members[ready.nth(p.cursor%n)]
	p.cursor++
	return m
}
