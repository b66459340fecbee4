package pool

// RoundRobin takes the accounts in turn.
const RoundRobin Strategy = "round-robin"

var roundRobin = Rule{Name: RoundRobin, About: "in turn", pick: (*Pool).pickRoundRobin}

// pickRoundRobin is the strategy round-robin.
func (p *Pool) pickRoundRobin(q *query) int {
	n := p.readyFor(q)
	if n == 0 {
		return -1
	}
	k := p.cursor % n
	p.cursor++
	return p.ready.nth(k)
}
