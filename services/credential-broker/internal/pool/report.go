package pool

import (
	"time"

	"signalbox.dev/pkg/id"
)

// Began tells that an account has begun to answer a request well, so that others may follow
// a probe before it ends. The ticket is still to be reported.
func (p *Pool) Began(now time.Time, k *Ticket) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.index[k.Account]
	if m == nil || k.began {
		return
	}
	k.began = true
	p.succeeded(p.clock.since(now), m, k)
}

// Report settles a ticket, and says whether that parked the account. Nothing is remembered
// of an account that is not a member any more.
func (p *Pool) Report(now time.Time, k Ticket, o Outcome) (parked bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.index[k.Account]
	if m == nil {
		return false
	}
	t := p.clock.since(now)
	if o.Unsent && k.token {
		p.rates.addTokens(m, t, 1)
		m.counters.Returned++
		p.changed(m, ToPeers)
	}
	if o.Ends > 0 {
		m.setQuotaEnd(t, o.Ends)
	}
	switch {
	case o.Later > 0:
		p.excludeLater(t, m, &o)
	case o.Denied:
	case o.Reason == OK:
		if !k.began {
			p.succeeded(t, m, &k)
		}
	case o.Reason == RateLimited, o.Reason == AuthFailed, o.Reason == QuotaExhausted:
		var known bool
		if parked, known = p.park(t, m, &k, o); parked && !known {
			p.failed(t, m, o.Reason)
		}
	case o.Reason == Overloaded:
		if o.RetryAfter > 0 {
			parked, _ = p.park(t, m, &k, o)
		}
		if o.RetryAfter <= 0 || parked {
			p.failed(t, m, o.Reason)
		}
	}
	if !k.began || Switches(o.Reason) {
		p.release(m, &k)
	}
	return parked
}

// succeeded ends the limits that the request was sent under and, if the request was denied
// elsewhere, passes over the accounts that denied it.
func (p *Pool) succeeded(t time.Duration, m *member, k *Ticket) {
	if health := p.rates.healthOf(m, t); health < maxHealth {
		p.rates.setHealth(m, t, health+p.settings.Success)
		m.counters.Succeeded++
		p.changed(m, ToPeers, ToStore)
	}
	for n, l := range m.pair(k.query.Family) {
		if l != nil && l.set() && l.window == k.windows[n] {
			p.clear(t, m, l)
		}
	}
	if !id.IsZero(k.query.Session) && k.switches == p.switches { // else somebody has switched since
		p.sessions.Put(k.query.Session, k.Account, maxSessions/2)
	}
	p.readmit(t, m, k.query.Model)
	if k.query.Model == "" {
		return // there is nothing to remember it by
	}
	for _, a := range k.query.Denied {
		if other := p.index[a]; other != nil && other != m {
			p.exclude(t, other, k.query.Model, deniedFor, PermissionDenied, 403)
		}
	}
}

// failed takes health from a member.
func (p *Pool) failed(t time.Duration, m *member, r Reason) {
	loss := p.settings.Failure
	if r == RateLimited || r == Overloaded {
		loss = p.settings.RateLimit
		m.counters.Limited++
	} else {
		m.counters.Failed++
	}
	p.rates.setHealth(m, t, p.rates.healthOf(m, t)+loss)
	p.changed(m, ToPeers, ToStore)
}
