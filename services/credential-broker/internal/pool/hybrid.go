package pool

import (
	"math"
	"time"
)

// Hybrid takes the account with the highest score.
const Hybrid Strategy = "hybrid"

var hybrid = Rule{
	Name: Hybrid, About: "the best by health, tokens and rest",
	Current: true, Health: true, pick: (*Pool).pickHybrid,
}

// Some providers say with each answer when the quota ends that it was counted against, and
// what is left of a quota then is lost. Hybrid first uses quotas that end within the hour,
// then accounts whose quota's end is unknown, and saves what ends later for later. A session
// does not leave its account for that. Each instance knows only what providers told it.
const (
	turnPoints = 1 << 40 // more than any score
	maxTurns   = 4       // hours that are told apart
	// A quota that is about to end when it is first heard of may be one of minutes, which is
	// always about to end.
	minQuota = 10 * time.Minute
	maxQuota = 7 * 24 * time.Hour
	// quotaSlack is how far apart the times may be by which a provider tells of one end.
	quotaSlack = time.Minute
)

// pickHybrid is the strategy hybrid.
func (p *Pool) pickHybrid() *member {
	q := &p.search
	current := p.served(q.Session)
	stays := current != nil && q.open(current) // its prompt cache is worth more than a quota's end
	if !stays {
		current = p.index[p.current]
	}
	best, high := p.rates.highest(q.t, p.points, q.ready)
	for tier, i := range best {
		if i < 0 {
			continue
		}
		m := p.members[i]
		if q.takes(current) {
			_, score := p.rates.highest(q.t, p.points[current.at:current.at+1], mask{1})
			lead := high[tier] - score[tier] // negative if the current one is of another tier
			if stays {
				lead -= turnPoints * (m.turn(q.t) - current.turn(q.t))
			}
			if score[tier] > math.MinInt64 && lead < p.rates.lead {
				m = current
			}
		}
		p.current = m.account.ID
		return m
	}
	return nil
}

// turn ranks a member by the end of its quota: 1 within the hour, 0 if unknown, −1 and less
// for each hour more.
//
//go:noinline // inlined, its division would slow the loop in highest by a tenth
func (m *points) turn(t time.Duration) int64 {
	left := m.quotaEnds - t
	switch {
	case left <= 0:
		return 0
	case left <= time.Hour:
		return 1
	}
	return -min(int64((left-1)/time.Hour), maxTurns)
}

// setQuotaEnd notes in what time a member's quota ends.
func (m *points) setQuotaEnd(t, in time.Duration) {
	if end := t + min(in, maxQuota); (end-m.quotaEnds).Abs() > quotaSlack && in >= minQuota {
		m.quotaEnds = end
	}
}
