package pool

// RoundRobin takes the accounts in turn.
const RoundRobin Strategy = "round-robin"

var roundRobin = Rule{Name: RoundRobin, About: "in turn", pick: (*Pool).pickRoundRobin}

// pickRoundRobin is the strategy round-robin.
func (p *Pool) pickRoundRobin() *member {
	q := &p.search
	q.ready = q.ready[:0]
	for _, m := range p.members {
		if q.takes(m) {
			q.ready = append(q.ready, m)
		}
	}
	if len(q.ready) == 0 {
		return nil
	}
	m := q.ready[p.cursor%len(q.ready)]
	p.cursor++
	return m
}
