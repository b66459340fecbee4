package pool

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/store"
)

// Listener is one of those who are told what changed: each hears of it once.
type Listener int

// The listeners: who tells other instances, and who writes down.
const (
	ToPeers Listener = iota
	ToStore
	listeners = 2
)

// Counters are what one instance has counted of an account since it began to. They
// only grow.
type Counters struct {
	Taken, Returned            uint64 // tokens
	Succeeded, Limited, Failed uint64 // events that changed its health
}

// peer is what another instance had counted when it was last heard.
type peer struct {
	instance uuid.UUID
	since    time.Time // when its counting began
	heard    time.Duration
	counters Counters
}

// maxPeers bounds the instances that an account remembers; the one that was silent
// for longest goes.
const maxPeers = 32

// Limit is a parking as others may know it: its Family begins with PassedOver where the
// account is not parked. Only who stores it fills in whose it is.
type Limit = store.Limit

// State is what one instance tells of an account.
type State struct {
	Account id.Account
	// Since is when Counters began.
	Since          time.Time
	Counters       Counters
	Told           Counters // as they were in the Changes before
	Health, Tokens float64
	LastUsed       time.Time
	Limits         []Limit
}

func (p *Pool) changed(i int, who ...Listener) {
	for _, w := range who {
		if !p.cold[i].dirty[w] {
			p.cold[i].dirty[w] = true
			p.dirty[w] = append(p.dirty[w], p.ids[i])
		}
	}
}

// Changes returns the accounts that changed since the listener asked before, limit at
// most; more says that there are others.
func (p *Pool) Changes(now time.Time, who Listener, limit int) (states []State, more bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.since(now)
	for n, a := range p.dirty[who] {
		if len(states) == limit {
			p.dirty[who] = append(p.dirty[who][:0], p.dirty[who][n:]...)
			return states, true
		}
		if i, ok := p.index[a]; ok {
			c := &p.cold[i]
			c.dirty[who] = false
			states = append(states, p.state(t, i))
			if who == ToPeers {
				c.told = c.counters
			}
		}
	}
	p.dirty[who] = p.dirty[who][:0]
	return states, false
}

// Mark has the listener told of these accounts again.
func (p *Pool) Mark(who Listener, accounts ...id.Account) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range accounts {
		if i, ok := p.index[a]; ok {
			p.changed(i, who)
		}
	}
}

// MarkAll has the listener told of every account of which there is something to tell.
func (p *Pool) MarkAll(who Listener) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.ids {
		if p.cold[i].counters != (Counters{}) || p.isLimited(i) {
			p.changed(i, who)
		}
	}
}

func (p *Pool) isLimited(i int) bool {
	return slices.ContainsFunc(p.limits, func(ls limits) bool { return ls.of[i].set() })
}

// Changed reports whether the listener has something to ask for.
func (p *Pool) Changed(who Listener) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.dirty[who]) > 0
}

// States returns all members, in order.
func (p *Pool) States(now time.Time) []State {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.since(now)
	all := make([]State, len(p.ids))
	for i := range all {
		all[i] = p.state(t, i)
	}
	return all
}

func (p *Pool) state(t time.Duration, i int) State {
	h, c := &p.hot[i], &p.cold[i]
	s := State{
		Account: p.ids[i], Since: p.wall.Add(c.since), Counters: c.counters, Told: c.told,
		Health: p.health(h, t), Tokens: p.tokens(h, t),
		LastUsed: p.wall.Add(time.Duration(h.used) * (time.Second / restRate)),
	}
	if p.limits[whole].of[i].window != 0 {
		s.Limits = append(s.Limits, p.tell("", &p.limits[whole].of[i]))
	}
	for name, f := range p.families {
		if p.limits[f].of[i].window != 0 {
			s.Limits = append(s.Limits, p.tell(name, &p.limits[f].of[i]))
		}
	}
	s.Limits = p.exclusions(s.Limits, i)
	return s
}

func (p *Pool) tell(family string, l *limit) Limit {
	out := Limit{Family: family, At: p.wall.Add(l.at)}
	if l.set() {
		out.Until, out.Soon = p.wall.Add(l.until), p.wall.Add(l.soon)
		out.Step, out.Reason, out.Status, out.Raw = l.step, l.reason, l.status, l.raw
	}
	return out
}

// Merge takes in what another instance tells of an account. Of one that is no member
// nothing is remembered.
func (p *Pool) Merge(now time.Time, instance uuid.UUID, s State) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i, ok := p.index[s.Account]
	if !ok {
		return
	}
	t := p.since(now)
	for _, l := range s.Limits {
		if p.adopt(t, i, l) {
			// Written down here too: whoever learned it may be gone.
			p.changed(i, ToStore)
		}
	}
	p.grow(t, i, instance, s)
}

// Restore takes in what is stored of an account: its limits, and its health as it was
// at a time if the account is new here; a health below zero is none.
func (p *Pool) Restore(now time.Time, account id.Account, limits []Limit, health float64, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i, ok := p.index[account]
	if !ok {
		return
	}
	t := p.since(now)
	for _, l := range limits {
		if l.Family != "" && !strings.HasPrefix(l.Family, PassedOver) && p.families[l.Family] == whole && !l.Until.After(p.wall.Add(t)) {
			continue // it is over, of a family that nothing else is known of
		}
		p.adopt(t, i, l)
	}
	if health >= 0 {
		rest := max(0, now.Sub(at).Hours()) * p.settings.RecoveryPerHour
		p.setHealth(&p.hot[i], t, health+rest)
	}
}

// maxSkew is how far another clock may be ahead for its word to count: one that is
// wrong by days shall not park an account for days.
const maxSkew = 10 * time.Minute

// adopt replaces a limit by one that is newer and reports whether it did.
func (p *Pool) adopt(t time.Duration, i int, l Limit) bool {
	passed := strings.HasPrefix(l.Family, PassedOver)
	f := whole
	if l.Family != "" && !passed {
		if l.Until.IsZero() && p.families[l.Family] == whole {
			return false // the end of what is not known
		}
		if f = p.intern(t, l.Family); f == whole {
			return false // too many: it is found out here, for the whole account
		}
	}
	if l.At.Sub(p.wall) > t+maxSkew {
		return false
	}
	if healed := p.cold[i].healed; !l.Until.IsZero() && !healed.IsZero() && !l.At.After(healed) {
		return false // somebody has ended it since
	}
	if passed {
		return p.adoptExclusion(t, i, l)
	}
	theirs := limit{at: l.At.Sub(p.wall), back: p.back, step: max(0, min(l.Step, len(ladder))), reason: l.Reason, status: l.Status, raw: l.Raw}
	if !l.Until.IsZero() {
		theirs.until = min(l.Until.Sub(p.wall), theirs.at+Clamp(l.Reason, math.MaxInt64))
		theirs.soon = min(l.Soon.Sub(p.wall), theirs.until)
		if theirs.until == 0 {
			theirs.until = -1
		}
	}
	mine := &p.limits[f].of[i]
	if mine.window != 0 && (theirs.at < mine.at || p.isKnown(mine, &theirs)) {
		return false
	}
	p.windows++
	theirs.window = p.windows
	*mine = theirs
	p.note(f, i)
	return true
}

// isKnown reports whether a limit that was told is the one that is known, or a shorter
// one of its date: as that is now, or as it was before the clock was set back.
func (p *Pool) isKnown(mine, theirs *limit) bool {
	return theirs.at == mine.at && theirs.until <= mine.until ||
		theirs.at == p.dated(mine, mine.at) && theirs.until <= p.dated(mine, mine.until)
}

// grow applies what an instance has counted since it was last heard.
func (p *Pool) grow(t time.Duration, i int, instance uuid.UUID, s State) {
	c := &p.cold[i]
	k := -1
	for n := range c.peers {
		if c.peers[n].instance == instance {
			k = n
		}
	}
	if k < 0 {
		if k = len(c.peers); k >= maxPeers {
			k = 0
			for n := range c.peers {
				if c.peers[n].heard < c.peers[k].heard {
					k = n
				}
			}
		} else {
			c.peers = append(c.peers, peer{})
		}
		c.peers[k] = peer{instance: instance, since: s.Since}
		if s.Since.Sub(p.wall) < c.since {
			// It had counted before this one was here; what is new is since it told last.
			c.peers[k].counters = s.Told
		}
	}
	old := &c.peers[k]
	old.heard = t
	if s.Since.After(old.since) { // it began anew
		old.since, old.counters = s.Since, Counters{}
	}
	h := &p.hot[i]
	p.addTokens(h, t, gain(&old.counters.Returned, s.Counters.Returned)-gain(&old.counters.Taken, s.Counters.Taken))
	health := float64(gain(&old.counters.Succeeded, s.Counters.Succeeded))*p.settings.Success +
		float64(gain(&old.counters.Limited, s.Counters.Limited))*p.settings.RateLimit +
		float64(gain(&old.counters.Failed, s.Counters.Failed))*p.settings.Failure
	if health != 0 {
		p.setHealth(h, t, p.health(h, t)+health)
	}
}

// gain raises a counter to a newer value and returns by how much.
func gain(have *uint64, now uint64) int64 {
	if now <= *have {
		return 0
	}
	d := now - *have
	*have = now
	return int64(min(d, math.MaxInt32))
}
