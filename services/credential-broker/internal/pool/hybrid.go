package pool

// Hybrid takes the account with the highest score.
const Hybrid Strategy = "hybrid"

var hybrid = Rule{
	Name: Hybrid, About: "the best by health, tokens and rest",
	Current: true, Health: true, pick: (*Pool).pickHybrid,
}

// pickHybrid is the strategy hybrid.
func (p *Pool) pickHybrid(q *query) int {
	current := p.served(q.Session)
	stays := current >= 0 && p.open(q.t, q.f, current) // its prompt cache is worth more than a quota's end
	if !stays {
		current = p.at
	}
	if !p.takes(q, current) {
		current = -1
	}
	p.readyFor(q)
	p.regardAll(q.t)
	found, scores := p.highest(p.hot, p.turns, p.ready, q.t)
	for k, i := range found {
		if i < 0 {
			continue
		}
		if current >= 0 {
			score, tier := p.score(current, q.t)
			lead := scores[k] - score
			if stays {
				lead -= before * int64(p.turns[i]-p.turns[current])
			}
			if tier == k && lead < p.rates.lead {
				i = current
			}
		}
		p.setCurrent(i)
		return i
	}
	return -1
}
