package pool

import "time"

// Some providers say with each answer when the quota ends that it was counted against,
// and what is left of a quota then is lost. Hybrid uses first what is lost within the
// hour, and saves the rest: what ends later is used later, and after the accounts that do
// not say. That refuses nobody and changes no score; it only says among whom the highest
// is looked for. A session stays where it is all the same, until another account leads by
// as much as ever. What was said is each instance's own, and over with the quota.
const (
	before = 1 << 40 // more than any score
	hours  = 4       // that are told apart
	// A quota that is about to end when it is heard of first may be one of minutes, that is
	// always about to end.
	lapseLeast = 10 * time.Minute
	lapseMost  = 7 * 24 * time.Hour
	// The end of one quota may be told as times that are so far apart.
	lapseSlack = time.Minute
)

// lapses notes when a member's quota ends.
func (p *Pool) lapses(t time.Duration, i int, in time.Duration) {
	c, end := &p.cold[i], t+min(in, lapseMost)
	if max(end-c.ends, c.ends-end) <= lapseSlack || in < lapseLeast {
		return
	}
	c.ends = end
	p.regard(t, i)
}

// regardAll does so for all of them, when it is time for one.
func (p *Pool) regardAll(t time.Duration) {
	if t < p.regards {
		return
	}
	p.regards = forever
	for i := range p.hot {
		p.regard(t, i)
	}
}

// regard says when it is a member's turn.
func (p *Pool) regard(t time.Duration, i int) {
	turn, next := 0, forever
	if left := p.cold[i].ends - t; left > 0 {
		turn, next = 1, p.cold[i].ends
		if later := min(int((left-1)/time.Hour), hours); later > 0 {
			turn = -later
			next -= time.Duration(later) * time.Hour
		}
	}
	p.turns[i] = int8(turn)
	p.regards = min(p.regards, next)
}
