package pool

import (
	"math"
	"strings"
	"time"

	"signalbox.dev/services/credential-broker/internal/store"
)

const (
	// PassedOver begins the family of a Limit that parks nothing: other accounts go first
	// for the model whose name follows, or for all models.
	PassedOver = "~"

	maxFamilies   = 16               // limits of an account by model family; others count for the whole account
	maxExclusions = 64               // models that an account is passed over for
	deniedFor     = 10 * time.Minute // how long an account is passed over that may not use a model
	maxLater      = 5 * time.Minute  // how long an account is passed over that cannot be sent to
	forever       = time.Duration(math.MaxInt64)
)

// Limit is a limit as others know it. Its Family begins with PassedOver if it parks
// nothing. The account it belongs to is filled in by whoever stores it.
type Limit = store.Limit

// limit is a window in which an account gets no requests, as a whole or for a model family
// (see the states in the package comment), or in which other accounts go first.
type limit struct {
	family    string
	at, until time.Duration // the window; until is 0 once it was cleared
	soon      time.Duration // its end for the last usable account
	cut       bool          // the account was the last usable one: the window ends at soon
	probe     time.Duration // until when a probe keeps other requests away
	window    uint32        // identifies the window; 0 if nothing is known
	back      time.Duration // the clock's, when at and until were dated
	step      int           // of the backoff
	reason    Reason
	status    int
	raw       string
}

func (l *limit) set() bool { return l.until != 0 }

func (l *limit) end() time.Duration {
	if l.cut {
		return min(l.until, l.soon)
	}
	return l.until
}

// over returns when the limit ended, or will end.
func (l *limit) over() time.Duration { return max(l.at, l.end()) }

// opens returns when the limit lets a request through: its window is over and no probe is
// out.
func (l *limit) opens() time.Duration { return max(l.end(), l.probe) }

func (l *limit) open(t time.Duration) bool { return !l.set() || t >= l.opens() }

// later reports whether a limit was set after another.
func (l *limit) later(other *limit) bool {
	return l.at > other.at || l.at == other.at && l.window > other.window
}

func (m *member) whole() *limit { return &m.limits[0] }

// find returns the limit of a family, nil if nothing is known of it.
func (m *member) find(family string) *limit {
	for i := range m.limits {
		if m.limits[i].family == family {
			return &m.limits[i]
		}
	}
	return nil
}

// pair returns the limits that apply to requests of a family: the whole account's, and the
// family's or nil.
func (m *member) pair(family string) [2]*limit {
	if family == "" {
		return [2]*limit{m.whole(), nil}
	}
	return [2]*limit{m.whole(), m.find(family)}
}

// slot returns the limit of a family, made if need be. An exclusion takes the place of one
// that has been over for so long that nobody knows it any more. When an account has as many
// as it may, the one that ends first makes room: an exclusion always, a limit once it is over.
// Otherwise there is none, and slot returns nil.
func (p *Pool) slot(t time.Duration, m *member, family string) *limit {
	if l := m.find(family); l != nil {
		return l
	}
	exclusion, n := isExclusion(family), 0
	var first *limit
	for i := range m.limits {
		l := &m.limits[i]
		if isExclusion(l.family) != exclusion || l.family == PassedOver || l.family == "" {
			continue
		}
		if n++; first == nil || l.over() < first.over() {
			first = l
		}
	}
	unknown := exclusion && first != nil && first.over()+deniedFor < t
	switch {
	case !unknown && (n < maxFamilies || exclusion && n < maxExclusions):
		m.limits = append(m.limits, limit{})
		first = &m.limits[len(m.limits)-1]
	case !exclusion && first.end() > t:
		return nil
	default:
		p.forgetLimit(m, first.family)
	}
	*first = limit{family: family}
	return first
}

func isExclusion(family string) bool { return strings.HasPrefix(family, PassedOver) }

// replace replaces a limit, beginning a new window.
func (p *Pool) replace(t time.Duration, m *member, l *limit, by limit) {
	p.windows++
	by.family, by.at, by.window, by.back = l.family, p.after(t, l), p.windows, p.clock.back
	*l = by
	p.noteLimit(m, l)
}

// clear ends a limit. The cleared limit is dated, so that others learn of it.
func (p *Pool) clear(t time.Duration, m *member, l *limit) {
	p.replace(t, m, l, limit{})
	p.changed(m, ToPeers, ToStore)
}

// after dates what replaces a limit: later than the limit, whatever the clock says or said,
// so that what was stored of the limit does not come back.
func (p *Pool) after(t time.Duration, l *limit) time.Duration {
	if l.window == 0 {
		return t
	}
	t = max(t, l.at+time.Microsecond)
	if date := p.dated(l, l.at); date >= t && date < t+maxSkew {
		t = date + time.Microsecond
	}
	return t
}

// dated returns a time of a limit by the wall clock as it was when the limit was announced,
// which may have been ahead of the present one.
func (p *Pool) dated(l *limit, t time.Duration) time.Duration { return t + p.clock.back - l.back }

// park sets the limit that a failure is about. opened reports whether that began a window:
// the failure of a request that was in flight belongs to the window that is open. known
// reports whether a probe found the limit that it was to look for.
func (p *Pool) park(t time.Duration, m *member, k *Ticket, o Outcome) (opened, known bool) {
	l, n := m.whole(), 0
	if o.Reason == RateLimited && k.query.Family != "" {
		if f := p.slot(t, m, k.query.Family); f != nil {
			l, n = f, 1
		}
	}
	wait := time.Duration(0)
	if o.RetryAfter > 0 {
		wait = Clamp(o.Reason, o.RetryAfter)
	}
	if l.set() && t < l.end() {
		if until := t + wait; wait > 0 && until > l.until {
			l.until, l.soon, l.reason, l.status, l.raw = until, until, o.Reason, o.Status, o.Raw
			p.changed(m, ToPeers, ToStore)
		}
		return false, false
	}
	known = k.probes[n] && l.window == k.windows[n] && l.reason == o.Reason && o.Reason != AuthFailed
	steps, step := backoffs[o.Reason].steps, l.step
	if o.Reason == QuotaExhausted {
		if step == 0 || l.window == k.windows[n] {
			step++
		}
		step = min(step, len(steps))
	}
	soon := wait
	if wait == 0 {
		wait = steps[max(0, min(step, len(steps))-1)]
		soon = min(wait, p.settings.floor())
	}
	p.replace(t, m, l, limit{until: t + wait, soon: t + soon, step: step, reason: o.Reason, status: o.Status, raw: o.Raw})
	p.changed(m, ToPeers, ToStore)
	return true, known
}

// release lets the next request probe where this one was to find out whether the account is
// back and did not.
func (p *Pool) release(m *member, k *Ticket) {
	if !k.Probe {
		return
	}
	for n, l := range m.pair(k.query.Family) {
		if l != nil && k.probes[n] && l.window == k.windows[n] && l.probe == k.lease {
			l.probe = 0
			p.noteLimit(m, l)
		}
	}
}

// exclude has other accounts go before a member for a model, or for all if model is empty.
// An exclusion that gets only a little longer stays as it is, and a short one is not
// announced.
func (p *Pool) exclude(t time.Duration, m *member, model string, d time.Duration, why Reason, status int) {
	l := p.slot(t, m, PassedOver+model)
	if l.until > t+d/2 {
		return
	}
	p.replace(t, m, l, limit{until: t + d, soon: t + d, reason: why, status: status})
	p.passing = max(p.passing, l.until)
	if d > time.Second {
		p.changed(m, ToPeers, ToStore)
	}
}

// excludeLater passes over the account of an outcome for as long as that says, and every
// other one at its server if that cannot be reached.
func (p *Pool) excludeLater(t time.Duration, m *member, o *Outcome) {
	for _, other := range p.members {
		if other == m || o.Reason == Unreachable && p.atSameServer(other, m) {
			p.exclude(t, other, "", min(o.Later, maxLater), o.Reason, o.Status)
		}
	}
}

// atSameServer reports whether two members are at one server, and others elsewhere.
func (p *Pool) atSameServer(m, other *member) bool { return p.elsewhere && m.server == other.server }

// readmit ends the exclusions of a member that has served a request: for the model, for all
// models, and those of the accounts at its server that could not be reached.
func (p *Pool) readmit(t time.Duration, m *member, model string) {
	if t >= p.passing {
		return
	}
	end := func(m *member, l *limit) {
		if l != nil && t < l.until {
			p.clear(t, m, l)
		}
	}
	end(m, m.find(PassedOver))
	end(m, m.find(PassedOver+model))
	for _, other := range p.members {
		if l := other.find(PassedOver); l != nil && l.reason == Unreachable && p.atSameServer(other, m) {
			end(other, l)
		}
	}
}
