package pool

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"signalbox.dev/pkg/id"
)

const (
	// ProbeTime is how long a probe keeps other requests away at most.
	ProbeTime = 30 * time.Second
	// probeWait is when to come again while a probe is out: most answer soon.
	probeWait = time.Second
	// noneReadyFor is how long "none ready" is cached at most.
	noneReadyFor = 100 * time.Millisecond
)

// ErrExhausted is returned by Select and Pick when no account is left for a request: all
// were tried, or are parked. Mostly it is an *Exhausted, which says until when.
var ErrExhausted = errors.New("no account is ready")

// Exhausted says when an account comes back.
type Exhausted struct {
	// Back is the earliest time at which an account comes back.
	Back time.Time
	// Reason is why that account is away; OK if it is ready and was tried.
	Reason Reason
	// Members is how many accounts there are.
	Members int
}

// Error implements error.
func (e *Exhausted) Error() string {
	return fmt.Sprintf("%v: the first of %d is available again at %s", ErrExhausted, e.Members, e.Back.Format(time.RFC3339))
}

// Unwrap returns ErrExhausted.
func (e *Exhausted) Unwrap() error { return ErrExhausted }

// Query is what Pick looks for.
type Query struct {
	// Family is the model family, where the provider limits by it; else empty.
	Family string
	// Model is what the request asks for; empty where it does not say.
	Model string
	// Session prefers the account that served it last; zero for none.
	Session id.Session
	// Tried are the accounts that this request failed with.
	Tried []id.Account
	// Denied are those of Tried that the provider does not let do what the request asks for.
	Denied []id.Account
}

// Ticket is an account handed out for one request. It is settled once, by Report.
type Ticket struct {
	Account id.Account
	// Probe says that the request finds out whether the account is back.
	Probe bool

	account   *Account
	elsewhere bool // the pool has accounts at other servers
	query     Query
	switches  uint32        // the pool's, when the ticket was handed out
	windows   [2]uint32     // of the account's limit and the family's
	probes    [2]bool       // which of these limits it probes
	lease     time.Duration // until when it keeps others away, as a probe
	token     bool          // one was taken
	began     bool          // Began was reported
}

// search is one look for an account.
type search struct {
	Query
	t     time.Duration
	all   bool // exclusions are ignored
	ready mask // the members that the request may go to; see findReady
}

// noneReady is the cached answer that no account is ready, so that clients which reconnect
// at once do not each have all accounts looked at.
type noneReady struct {
	until  time.Duration
	family string
	answer *Exhausted
}

// Pick hands out an account. Its error is an *Exhausted. It takes a token of the account
// and, if the account has to show that it is back, makes the request its probe.
func (p *Pool) Pick(now time.Time, r Query) (Ticket, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	q := &p.search
	q.Query, q.t = r, p.clock.since(now)
	if q.t < p.none.until && r.Family == p.none.family {
		return Ticket{}, p.none.answer
	}
	var m *member
	pick := p.settings.Strategy.Rule().pick
	if q.all = q.t >= p.passing; !q.all {
		p.findReady()
		m = pick(p)
		q.all = true
	}
	if m == nil {
		p.findReady()
		m = pick(p)
	}
	if m == nil {
		last, latest := p.last()
		if last == nil || slices.Contains(r.Tried, last.account.ID) || q.t < last.soonest(r.Family) {
			return Ticket{}, p.exhausted(last, latest)
		}
		for _, l := range last.pair(r.Family) {
			if l != nil && l.set() {
				l.cut = true
			}
		}
		m = last
	}
	return p.handOut(m), nil
}

// takes reports whether the request may go to a member.
func (q *search) takes(m *member) bool { return m != nil && q.ready.has(m.at) }

// open reports whether no limit of a member stands against the request.
func (q *search) open(m *member) bool {
	for _, l := range m.pair(q.Family) {
		if l != nil && !l.open(q.t) {
			return false
		}
	}
	return true
}

// last returns the last usable account, the one that was parked last, and its limit; nil if
// one is ready or being probed. An account whose authentication failed is not usable while
// there are others.
func (p *Pool) last() (found *member, latest *limit) {
	q := &p.search
	for _, failed := range [...]bool{false, true} {
		for _, m := range p.members {
			if (m.whole().set() && m.whole().reason == AuthFailed) != failed {
				continue
			}
			if q.open(m) {
				return nil, nil
			}
			for _, l := range m.pair(q.Family) {
				if l == nil || !l.set() {
					continue
				}
				if l.probe > q.t {
					return nil, nil
				}
				if latest == nil || l.later(latest) {
					found, latest = m, l
				}
			}
		}
		if found != nil {
			break
		}
	}
	return found, latest
}

// soonest returns when a member may be tried if it is the last usable one.
func (m *member) soonest(family string) time.Duration {
	soon := time.Duration(0)
	for _, l := range m.pair(family) {
		if l != nil && l.set() {
			soon = max(soon, min(l.end(), l.soon))
		}
	}
	return soon
}

// exhausted returns when the first account comes back, given the last usable one and its
// limit. If none is ready for anybody, the answer is cached for a moment.
func (p *Pool) exhausted(last *member, latest *limit) *Exhausted {
	q := &p.search
	back, reason, open := forever, OK, forever
	for _, m := range p.members {
		end, why, opens := q.t, OK, time.Duration(0)
		for _, l := range m.pair(q.Family) {
			if l == nil || !l.set() {
				continue
			}
			if e := max(l.end(), min(l.probe, q.t+probeWait)); e > end {
				end, why = e, l.reason
			}
			opens = max(opens, l.end(), l.probe)
		}
		if end < back {
			back, reason = end, why
		}
		open = min(open, opens)
	}
	if last != nil {
		soon := last.soonest(q.Family)
		if soon < back {
			back, reason = soon, latest.reason
		}
		open = min(open, soon)
	}
	if back == forever {
		back = q.t
	}
	answer := &Exhausted{Back: p.clock.date(max(back, q.t)), Reason: reason, Members: len(p.members)}
	p.none = noneReady{until: min(open, q.t+noneReadyFor), family: q.Family, answer: answer}
	return answer
}

// handOut makes out a member's ticket.
func (p *Pool) handOut(m *member) Ticket {
	q := &p.search
	k := Ticket{Account: m.account.ID, account: m.account, elsewhere: p.elsewhere, query: q.Query, switches: p.switches}
	for n, l := range m.pair(q.Family) {
		if l == nil {
			continue
		}
		k.windows[n] = l.window
		if l.set() {
			l.probe = q.t + ProbeTime
			p.noteLimit(m, l)
			k.probes[n], k.Probe, k.lease = true, true, l.probe
		}
	}
	m.used = restPoints(q.t)
	if m.tokens+p.rates.grown(q.t) >= p.rates.token {
		p.rates.addTokens(m, q.t, -1)
		k.token = true
		m.counters.Taken++
		p.changed(m, ToPeers)
	}
	return k
}
