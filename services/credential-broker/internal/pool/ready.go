package pool

import (
	"math"
	"math/bits"
	"time"
)

// mask is a set of members, a bit for the index of each.
type mask []uint64

func newMask(n int) mask { return make(mask, (n+63)/64) }

func (s mask) has(i int) bool { return s[i/64]>>(i%64)&1 != 0 }
func (s mask) add(i int)      { s[i/64] |= 1 << (i % 64) }
func (s mask) remove(i int)   { s[i/64] &^= 1 << (i % 64) }

func (s mask) count() (n int) {
	for _, word := range s {
		n += bits.OnesCount64(word)
	}
	return n
}

// nth returns the k-th member of the set, counted from 0. The set must have more than k.
func (s mask) nth(k int) int {
	i := 0
	for bits.OnesCount64(s[i]) <= k {
		k -= bits.OnesCount64(s[i])
		i++
	}
	word := s[i]
	for range k {
		word &= word - 1
	}
	return i*64 + bits.TrailingZeros64(word)
}

// closed is the set of members whose limit for one family lets no request through. Choices
// read these sets instead of each member's limits. A set may still contain members that are
// open by now: until says when to look again.
type closed struct {
	members mask
	until   time.Duration // the earliest time at which one of them may be open
}

// noteLimit updates the closed sets after a limit has changed.
func (p *Pool) noteLimit(m *member, l *limit) {
	p.none = noneReady{}
	c := p.closed[l.family]
	switch {
	case l.set():
		if c == nil {
			c = &closed{members: newMask(len(p.members)), until: forever}
			p.closed[l.family] = c
		}
		c.members.add(m.at)
		c.until = min(c.until, l.opens())
	case c != nil:
		c.members.remove(m.at)
	}
}

// forgetLimit updates the closed sets before a limit makes room for one of another family.
func (p *Pool) forgetLimit(m *member, family string) {
	c := p.closed[family]
	if c == nil {
		return
	}
	c.members.remove(m.at)
	if c.members.count() == 0 {
		delete(p.closed, family)
	}
}

// findReady sets ready to the members that are open to the request, were not tried by it and
// are not passed over.
func (p *Pool) findReady() {
	q := &p.search
	for i := range q.ready {
		q.ready[i] = math.MaxUint64
	}
	if spare := len(p.members) % 64; spare > 0 {
		q.ready[len(q.ready)-1] = 1<<spare - 1
	}
	p.withoutClosed("")
	if q.Family != "" {
		p.withoutClosed(q.Family)
	}
	if !q.all {
		p.withoutClosed(PassedOver)
		p.withoutClosed(PassedOver + q.Model)
	}
	for _, a := range q.Tried {
		if m := p.index[a]; m != nil {
			q.ready.remove(m.at)
		}
	}
}

// withoutClosed removes from ready the members that are closed for a family.
func (p *Pool) withoutClosed(family string) {
	c, q := p.closed[family], &p.search
	if c == nil {
		return
	}
	if q.t >= c.until {
		p.reopen(c, family)
	}
	for i, word := range c.members {
		q.ready[i] &^= word
	}
}

// reopen removes from a set the members that are open by now.
func (p *Pool) reopen(c *closed, family string) {
	c.until = forever
	for w, word := range c.members {
		for ; word != 0; word &= word - 1 {
			i := w*64 + bits.TrailingZeros64(word)
			if l := p.members[i].find(family); l.open(p.search.t) {
				c.members.remove(i)
			} else {
				c.until = min(c.until, l.opens())
			}
		}
	}
}
