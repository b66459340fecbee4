package pool

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/google/uuid"

	"signalbox.dev/pkg/id"
)

// maxPeers bounds the instances that are remembered of an account; the one that was silent
// for longest makes room.
const maxPeers = 32

// told returns a limit as others are told of it.
func (p *Pool) told(l *limit) Limit {
	out := Limit{Family: l.family, At: p.clock.date(l.at)}
	if l.set() {
		out.Until, out.Soon = p.clock.date(l.until), p.clock.date(l.soon)
		out.Step, out.Reason, out.Status, out.Raw = l.step, l.reason, l.status, l.raw
	}
	return out
}

// Merge takes in what another instance tells of an account. Nothing is remembered of an
// account that is not a member.
func (p *Pool) Merge(now time.Time, instance uuid.UUID, s State) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.index[s.Account]
	if m == nil {
		return
	}
	t := p.clock.since(now)
	for _, l := range s.Limits {
		if p.adopt(t, m, l) {
			// Written here too: the instance that learned it may be gone.
			p.changed(m, ToStore)
		}
	}
	p.count(t, m, instance, s)
}

// RestoreLimits takes in the stored limits of an account.
func (p *Pool) RestoreLimits(now time.Time, account id.Account, limits ...Limit) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.index[account]
	if m == nil {
		return
	}
	t := p.clock.since(now)
	for _, l := range limits {
		if over := p.clock.at(l.Until) <= t; !over || m.find(l.Family) != nil {
			p.adopt(t, m, l)
		}
	}
}

// RestoreHealth takes in the stored health of an account, as it was at a time.
func (p *Pool) RestoreHealth(now time.Time, account id.Account, health float64, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if m := p.index[account]; m != nil {
		rest := max(0, now.Sub(at).Hours()) * p.settings.RecoveryPerHour
		p.rates.setHealth(m, p.clock.since(now), health+rest)
	}
}

// adopt replaces a limit by a newer one and reports whether it did.
func (p *Pool) adopt(t time.Duration, m *member, l Limit) bool {
	at := p.clock.at(l.At)
	if at > t+maxSkew {
		return false
	}
	theirs := limit{
		family: l.Family, at: at, back: p.clock.back, step: max(0, min(l.Step, len(backoffs[QuotaExhausted].steps))),
		reason: l.Reason, status: l.Status, raw: l.Raw,
	}
	longest := Clamp(l.Reason, math.MaxInt64)
	if isExclusion(l.Family) {
		longest = deniedFor
	}
	if !l.Until.IsZero() {
		if !m.reset.IsZero() && !l.At.After(m.reset) {
			return false // it was reset since
		}
		theirs.until = min(p.clock.at(l.Until), at+longest)
		theirs.soon = min(p.clock.at(l.Soon), theirs.until)
		if theirs.until == 0 {
			theirs.until = -1 // 0 is that of a cleared one
		}
	}
	ours := m.find(l.Family)
	switch {
	case ours == nil:
		if !theirs.set() || isExclusion(l.Family) && theirs.until <= t {
			return false
		}
		if ours = p.slot(t, m, l.Family); ours == nil {
			return false // too many: this instance finds out, for the whole account
		}
	case ours.window != 0 && (theirs.at < ours.at || p.isKnown(ours, &theirs)):
		return false
	}
	p.windows++
	theirs.window = p.windows
	*ours = theirs
	p.noteLimit(m, ours)
	if isExclusion(l.Family) {
		p.passing = max(p.passing, theirs.until)
	}
	return true
}

// isKnown reports whether a limit of the same date is already known and not longer: by the
// wall clock as it is, or as it was before it was set back.
func (p *Pool) isKnown(ours, theirs *limit) bool {
	return theirs.at == ours.at && theirs.until <= ours.until ||
		theirs.at == p.dated(ours, ours.at) && theirs.until <= p.dated(ours, ours.until)
}

// count applies what an instance has counted since it was last heard.
func (p *Pool) count(t time.Duration, m *member, instance uuid.UUID, s State) {
	i := slices.IndexFunc(m.peers, func(x peer) bool { return x.instance == instance })
	if i < 0 {
		if len(m.peers) == maxPeers {
			slices.SortFunc(m.peers, func(a, b peer) int { return cmp.Compare(b.heard, a.heard) })
			m.peers = m.peers[:maxPeers-1]
		}
		x := peer{instance: instance, since: s.Since}
		if p.clock.at(s.Since) < m.since {
			x.counters = s.Told // it counted before this instance: only what it adds is new
		}
		m.peers = append(m.peers, x)
		i = len(m.peers) - 1
	}
	old := &m.peers[i]
	old.heard = t
	if s.Since.After(old.since) { // it began anew
		old.since, old.counters = s.Since, Counters{}
	}
	p.rates.addTokens(m, t, gain(&old.counters.Returned, s.Counters.Returned)-gain(&old.counters.Taken, s.Counters.Taken))
	health := float64(gain(&old.counters.Succeeded, s.Counters.Succeeded))*p.settings.Success +
		float64(gain(&old.counters.Limited, s.Counters.Limited))*p.settings.RateLimit +
		float64(gain(&old.counters.Failed, s.Counters.Failed))*p.settings.Failure
	if health != 0 {
		p.rates.setHealth(m, t, p.rates.healthOf(m, t)+health)
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
