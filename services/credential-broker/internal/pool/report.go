package pool

import (
	"math"
	"time"

	"signalbox.dev/pkg/id"
)

// Began tells that an account has begun to answer a request well: a probe need not
// end for others to follow. The ticket is still to be reported.
func (p *Pool) Began(now time.Time, k *Ticket) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i, ok := p.index[k.Account]
	if !ok || k.began {
		return
	}
	k.began = true
	p.succeeded(p.since(now), i, k)
}

// Report settles a ticket, and says whether that parked the account: opened a window. Of
// an account that is no member any more nothing is remembered.
func (p *Pool) Report(now time.Time, k Ticket, o Outcome) (parked bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i, ok := p.index[k.Account]
	if !ok {
		return false
	}
	t := p.since(now)
	c := &p.cold[i].counters
	if o.Unsent && k.token {
		h := &p.hot[i]
		p.addTokens(h, t, 1)
		c.Returned++
		p.changed(i, ToPeers)
	}
	if o.Ends > 0 {
		p.lapses(t, i, o.Ends)
	}
	switch {
	case o.Later > 0:
		p.later(t, i, &k, &o)
	case o.Denied:
	case o.Reason == OK:
		if !k.began {
			p.succeeded(t, i, &k)
		}
	case o.Reason == RateLimited, o.Reason == AuthFailed, o.Reason == QuotaExhausted:
		var known bool
		if parked, known = p.park(t, i, &k, o); parked && !known {
			p.ail(t, i, o.Reason)
		}
	case o.Reason == Overloaded:
		if o.RetryAfter > 0 {
			parked, _ = p.park(t, i, &k, o)
		}
		if o.RetryAfter <= 0 || parked {
			p.ail(t, i, o.Reason)
		}
	}
	if !k.began || Switches(o.Reason) {
		p.release(i, &k)
	}
	return parked
}

// succeeded ends what the account was away for, unless that began after the request
// went out.
func (p *Pool) succeeded(t time.Duration, i int, k *Ticket) {
	h := &p.hot[i]
	if p.health(h, t) < maxHealth {
		p.setHealth(h, t, p.health(h, t)+p.settings.Success)
		p.cold[i].counters.Succeeded++
		p.changed(i, ToPeers, ToStore)
	}
	f := p.family(k.family)
	for n, l := range p.pair(f, i) {
		if l != nil && l.set() && l.window == k.windows[n] { // the request is its probe
			p.clear(t, [...]int{whole, f}[n], i)
		}
	}
	if !id.IsZero(k.session) && k.orders == p.orders { // else somebody has switched since
		p.sessions.Put(k.session, k.Account, maxSessions/2)
	}
	p.forgive(t, i, k)
	if k.model == "" {
		return // there is nothing to remember it by
	}
	for _, a := range k.denied {
		if j, ok := p.index[a]; ok && j != i {
			p.exclude(t, k.model, j, denied, exclusion{reason: PermissionDenied, status: 403})
		}
	}
}

// clear ends a limit. The empty limit is dated, so that others learn of it.
func (p *Pool) clear(t time.Duration, f, i int) {
	p.windows++
	l := &p.limits[f].of[i]
	*l = limit{at: p.after(t, l), window: p.windows, back: p.back}
	p.note(f, i)
	p.changed(i, ToPeers, ToStore)
}

// after dates what replaces a limit, whatever the clock says, or said: what was stored of
// it shall not come back.
func (p *Pool) after(t time.Duration, l *limit) time.Duration {
	t = max(t, l.at+time.Microsecond)
	if date := p.dated(l, l.at); l.window != 0 && date >= t && date < t+maxSkew {
		t = date + time.Microsecond
	}
	return t
}

// ail takes health away.
func (p *Pool) ail(t time.Duration, i int, r Reason) {
	d, c := p.settings.Failure, &p.cold[i].counters
	if r == RateLimited || r == Overloaded {
		d = p.settings.RateLimit
		c.Limited++
	} else {
		c.Failed++
	}
	h := &p.hot[i]
	p.setHealth(h, t, p.health(h, t)+d)
	p.changed(i, ToPeers, ToStore)
}

// park sets the limit that a failure is about. It reports whether that opened a window:
// the failure of a request in flight belongs to the one that is open. And it reports
// whether the failure was known: a probe's that found the limit it was to look for.
func (p *Pool) park(t time.Duration, i int, k *Ticket, o Outcome) (opened, known bool) {
	n, f := 0, whole
	if o.Reason == RateLimited && k.family != "" {
		if f = p.intern(t, k.family); f != whole {
			n = 1
		}
	}
	l := &p.limits[f].of[i]
	wait := time.Duration(0)
	if o.RetryAfter > 0 {
		wait = Clamp(o.Reason, o.RetryAfter)
	}
	if l.set() && t < l.end() {
		if until := t + wait; wait > 0 && until > l.until {
			l.until, l.soon, l.reason, l.status, l.raw = until, until, o.Reason, o.Status, o.Raw
			p.note(f, i)
			p.changed(i, ToPeers, ToStore)
		}
		return false, false
	}
	known = k.probes[n] && l.window == k.windows[n] && l.reason == o.Reason && o.Reason != AuthFailed
	step := l.step
	if o.Reason == QuotaExhausted {
		if step == 0 || l.window == k.windows[n] {
			step++
		}
		step = min(step, len(ladder))
	}
	d := wait
	soon := wait
	if d == 0 {
		d = parking(o.Reason, step)
		soon = min(d, p.settings.floor())
	}
	p.windows++
	*l = limit{
		at: p.after(t, l), until: t + d, soon: t + soon, window: p.windows, back: p.back, step: step, reason: o.Reason, status: o.Status, raw: o.Raw,
	}
	p.note(f, i)
	p.changed(i, ToPeers, ToStore)
	return true, known
}

// release lets the next request probe where this one was to find out and did not.
func (p *Pool) release(i int, k *Ticket) {
	if !k.Probe {
		return
	}
	f := p.family(k.family)
	for n, l := range p.pair(f, i) {
		if l != nil && k.probes[n] && l.window == k.windows[n] && l.probe == k.lease {
			l.probe = 0
		}
	}
	p.note(f, i)
}

// intern returns the index of a family's limits. When there are too many, the one whose
// limits have been over for longest makes room, else the family counts as the whole account.
func (p *Pool) intern(t time.Duration, name string) int {
	if f, ok := p.families[name]; ok {
		return f
	}
	if len(p.limits) <= families {
		f := len(p.limits)
		p.limits = append(p.limits, noLimits(len(p.ids)))
		p.families[name] = f
		return f
	}
	oldest, over := "", t+1
	for old, f := range p.families {
		if end := lastEnd(p.limits[f].of); end < over {
			oldest, over = old, end
		}
	}
	if over > t {
		return whole
	}
	f := p.families[oldest]
	delete(p.families, oldest)
	p.limits[f] = noLimits(len(p.ids))
	p.families[name] = f
	p.nobody = nobody{}
	return f
}

// lastEnd is when the last limit of a family is over, or was.
func lastEnd(all []limit) time.Duration {
	end := time.Duration(math.MinInt64)
	for i := range all {
		if all[i].set() {
			end = max(end, all[i].end())
		}
	}
	return end
}
