package pool

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"sync"
	"time"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/recent"
	"signalbox.dev/services/credential-broker/internal/store"
)

// Reason says how a request went, in the words that operators see.
type Reason = store.Reason

// The reasons. The first four are the account's own condition: another account may
// do better.
const (
	RateLimited    Reason = "RATE_LIMIT_EXCEEDED"
	AuthFailed     Reason = "AUTH_FAILED"
	QuotaExhausted Reason = "QUOTA_EXHAUSTED"
	// Overloaded is an overload reported inside a stream that had begun well.
	Overloaded Reason = "OVERLOADED"
	// Service is a failure of the whole provider.
	Service Reason = "SERVICE"
	// Caller is an error of the request itself.
	Caller Reason = "CALLER"
	// Unreachable is a provider that could not be asked, or did not answer in time.
	Unreachable Reason = "UNREACHABLE"
	// Cancelled is a request that the caller gave up.
	Cancelled Reason = "CANCELLED"
	// PermissionDenied is that the provider does not let the account do what a request asked for, and
	// lets another one.
	PermissionDenied Reason = "PERMISSION_DENIED"
	// NoToken is an account without an access token that could be sent.
	NoToken Reason = "NO_TOKEN"
	OK      Reason = "OK"
)

// Switches reports whether another account may do better.
func Switches(r Reason) bool {
	return r == RateLimited || r == AuthFailed || r == QuotaExhausted || r == Overloaded
}

// ErrExhausted is what an Exhausted is.
var ErrExhausted = errors.New("no account is ready")

// Exhausted is returned by Pick when no account is left for a request: all were
// tried, or are parked.
type Exhausted struct {
	// Back is the earliest time at which an account comes back.
	Back time.Time
	// Reason is why that one is away; OK if it is ready and was tried.
	Reason Reason
	// Members is how many accounts there are.
	Members int
}

// Error implements error.
func (e *Exhausted) Error() string {
	return fmt.Sprintf("%v: the first of %d comes back at %s", ErrExhausted, e.Members, e.Back.Format(time.RFC3339))
}

// Unwrap returns ErrExhausted.
func (e *Exhausted) Unwrap() error { return ErrExhausted }

// Query is what an account is wanted for.
type Query struct {
	// Family is the model family, where the provider limits by it; else empty.
	Family string
	// Model is what the request asks for; empty where it does not say.
	Model string
	// Session prefers the account that served it last; zero for none.
	Session id.Session
	// Tried are the accounts that this request failed with.
	Tried []id.Account
	// Denied are those of them that the provider does not let do what the request asks for.
	Denied []id.Account
}

// Ticket is one account handed out for one request. It is to be settled once, by
// Report.
type Ticket struct {
	Account id.Account
	// Probe says that the request finds out whether the account is back.
	Probe bool
	// Server are the members whose requests go to the same server as its own, if others'
	// go elsewhere. Who has the ticket fills it in.
	Server []id.Account

	denied  []id.Account
	family  string
	model   string
	session id.Session
	orders  uint32    // how often somebody had switched when it was handed out
	windows [2]uint32 // of the account and of the family
	probes  [2]bool
	lease   time.Duration // until when it keeps others away, as a probe
	token   bool          // one was taken
	began   bool          // Began was reported
}

const (
	whole = 0 // limits of the account as a whole; families follow
	// maxSessions is how many sessions a pool remembers the account of, at most.
	maxSessions = 16_384
	families    = 16 // that are limited at a time; more count for the whole account
	forever     = time.Duration(math.MaxInt64)
)

// Pool is the accounts of one pool and what is known of them.
type Pool struct {
	mu       sync.Mutex    // guards everything
	zero     time.Time     // the pool's own time is since then
	wall     time.Time     // the same for the clock on the wall, in whole microseconds
	latest   time.Duration // time that was heard of
	back     time.Duration // how far wall was set back, in all
	settings Settings
	settled  time.Time // when they were read
	rates    rates

	ids      []id.Account
	index    map[id.Account]int
	version  time.Time // of the members
	hot      []hot
	turns    []int8 // by member: when it is its turn, for its quota's end
	ready    mask   // scratch
	cold     []cold
	limits   []limits // by family; the first is the whole account's
	families map[string]int
	windows  uint32 // counts parkings and clearings
	avoided  avoided
	passed   mask          // scratch: those that others go before
	regards  time.Duration // when the next quota ends, or an hour of one
	nobody   nobody        // that was found ready

	current  id.Account // the account that was chosen last
	at       int        // its index; −1 for none
	cursor   int
	sessions recent.Map[id.Session, id.Account] // which account served them
	asked    time.Time                          // of the newest Use
	orders   uint32                             // counts Use
	dirty    [listeners][]id.Account
}

// hot is what a hybrid choice looks at of each member: what tokens, health and rest
// count for its score, in millionths of a point. Tokens and health are kept as they
// would have been at time zero without bounds, so that a look is an addition.
type hot struct{ tokens, health, used int64 }

// cold is the rest.
type cold struct {
	counters Counters
	told     Counters      // as the other instances were told last
	since    time.Duration // when counting began
	peers    []peer
	healed   time.Time     // of the newest Heal
	ends     time.Duration // when its quota lapses, as it said last; 0 where it never said
	dirty    [listeners]bool
}

// limits are those of all members, whole or for a family. A choice looks at a bit of each
// member, and not at the limit.
type limits struct {
	of    []limit         // by member
	at    []time.Duration // when a request may go to each, as far as this limit goes
	shut  mask            // those that none may go to, as of the last look; see closed
	opens time.Duration   // when it is time for the next
}

func noLimits(n int) limits {
	return limits{
		of: make([]limit, n), at: slices.Repeat([]time.Duration{math.MinInt64}, n),
		shut: newMask(n), opens: forever,
	}
}

// note is called whenever a member's limit has changed.
func (ls *limits) note(i int) {
	l := &ls.of[i]
	if !l.set() {
		ls.shut.clear(i)
		ls.at[i] = math.MinInt64
		return
	}
	ls.shut.set(i)
	ls.at[i] = max(l.end(), l.probe)
	ls.opens = min(ls.opens, ls.at[i])
}

// closed returns the members that no request may go to. It looks only at those that were
// closed before, and only when it is time for one of them; the pool's time never goes back.
func (ls *limits) closed(t time.Duration) mask {
	if t < ls.opens {
		return ls.shut
	}
	ls.opens = forever
	for w, word := range ls.shut {
		for ; word != 0; word &= word - 1 {
			if i := w*64 + bits.TrailingZeros64(word); t >= ls.at[i] {
				ls.shut.clear(i)
			} else {
				ls.opens = min(ls.opens, ls.at[i])
			}
		}
	}
	return ls.shut
}

// nobody is the answer that no account is ready, and until when it is: the herd of
// those who come again shall not have a thousand accounts looked at for each of them.
type nobody struct {
	until  time.Duration
	family int
	answer *Exhausted
}

// limit is a parking of an account, whole or for a family.
type limit struct {
	at, until time.Duration // the window; until is 0 once it is cleared
	soon      time.Duration // its end for the last usable account
	cut       bool          // it was: until is over although it is not
	probe     time.Duration // a probe is out until then
	window    uint32
	back      time.Duration // the pool's, when at and until were dated
	step      int           // of the ladder
	reason    Reason
	status    int
	raw       string
}

// NewPool returns a pool without members. Settings are valid.
func NewPool(now time.Time, s Settings) *Pool {
	return &Pool{
		zero: now, wall: now.Round(0).Truncate(time.Microsecond), settings: s, rates: s.rates(),
		index: map[id.Account]int{}, families: map[string]int{}, limits: make([]limits, 1), at: -1,
	}
}

// SetMembers makes the pool consist of these accounts, in this order. What is known
// of one that stays is kept; of one that goes, forgotten. A list that was read before
// the present one is ignored. It reports which members came and which went.
func (p *Pool) SetMembers(now, read time.Time, members []id.Account) (came, went []id.Account) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if read.Before(p.version) {
		return nil, nil
	}
	p.version = read
	if slices.Equal(p.ids, members) {
		return nil, nil
	}
	t := p.since(now)
	index := make(map[id.Account]int, len(members))
	hots, colds := make([]hot, 0, len(members)), make([]cold, 0, len(members))
	stay := make([]int, 0, len(members)) // where each was, −1 for one that comes
	ids := make([]id.Account, 0, len(members))
	for _, m := range members {
		if _, twice := index[m]; twice {
			continue
		}
		i, ok := p.index[m]
		index[m] = len(ids)
		ids = append(ids, m)
		if !ok {
			came = append(came, m)
			h := hot{used: restPoints(t) - maxRest}
			p.setTokens(&h, t, p.settings.InitialTokens)
			p.setHealth(&h, t, maxHealth)
			hots, colds, stay = append(hots, h), append(colds, cold{since: t}), append(stay, -1)
			continue
		}
		hots, colds, stay = append(hots, p.hot[i]), append(colds, p.cold[i]), append(stay, i)
	}
	for _, m := range p.ids {
		if _, stays := index[m]; !stays {
			went = append(went, m)
		}
	}
	p.avoided.regroup(ids, p.index)
	for f, old := range p.limits {
		p.limits[f] = noLimits(len(ids))
		for i, was := range stay {
			if was >= 0 {
				p.limits[f].of[i] = old.of[was]
			}
			p.limits[f].note(i)
		}
	}
	p.ids, p.index, p.hot, p.cold = ids, index, hots, colds
	p.ready, p.passed = newMask(len(ids)), newMask(len(ids))
	p.turns, p.regards, p.nobody = make([]int8, len(ids)), 0, nobody{}
	p.place()
	return came, went
}

// place finds the current account's index again.
func (p *Pool) place() {
	p.at = -1
	if i, ok := p.index[p.current]; ok {
		p.at = i
	}
	if len(p.ids) > 0 {
		p.cursor %= len(p.ids)
	}
}

// SetSettings changes the rules. Tokens and health stay what they are, within the new
// bounds. Settings are valid; those that were read before the present ones are ignored.
func (p *Pool) SetSettings(now, read time.Time, s Settings) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if read.Before(p.settled) {
		return
	}
	p.settled = read
	if s == p.settings {
		return
	}
	t := p.since(now)
	old := make([][2]float64, len(p.hot))
	for i := range p.hot {
		old[i] = [2]float64{p.tokens(&p.hot[i], t), p.health(&p.hot[i], t)}
	}
	p.settings, p.rates = s, s.rates()
	for i := range p.hot {
		p.setTokens(&p.hot[i], t, old[i][0])
		p.setHealth(&p.hot[i], t, old[i][1])
	}
}

// family returns the index of a family's limits; whole where nothing limits it.
func (p *Pool) family(name string) int {
	if name == "" || len(p.families) == 0 {
		return whole
	}
	return p.families[name]
}

// Pick hands out an account. Its error is an *Exhausted. It takes a token of the
// account and, where the account has to show that it is back, makes the request its
// probe.
func (p *Pool) Pick(now time.Time, r Query) (Ticket, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	q := query{Query: r, t: p.since(now), f: p.family(r.Family)}
	if n := &p.nobody; q.t < n.until && q.f == n.family {
		return Ticket{}, n.answer
	}
	i := -1
	if p.avoided.any(q.t) && p.passOver(q.t, r.Model) {
		q.passed = p.passed
		i = p.choose(&q)
		q.passed = nil
	}
	if i < 0 {
		i = p.choose(&q)
	}
	if i < 0 {
		if i = p.spare(q.t, q.f, r.Tried); i < 0 {
			return Ticket{}, p.exhausted(q.t, q.f)
		}
	}
	return p.hand(q.t, q.f, i, r), nil
}

// query is one look for an account.
type query struct {
	Query
	t      time.Duration
	f      int  // the family's index
	passed mask // members that others go before; nil for none
}

// choose returns a member by the pool's strategy, −1 for none.
func (p *Pool) choose(q *query) int {
	return p.settings.Strategy.Rule().pick(p, q)
}

// takes reports whether a member, −1 for none, is open to a request that has not tried
// it, and nobody goes before it.
func (p *Pool) takes(q *query, i int) bool {
	return i >= 0 && p.open(q.t, q.f, i) && (q.passed == nil || !q.passed.has(i)) && !isTried(q.Tried, p.ids[i])
}

// open reports whether a request may go to a member: no limit stands against it,
// or one whose time is over and that nobody probes.
func (p *Pool) open(t time.Duration, f, i int) bool {
	return t >= p.limits[whole].at[i] && t >= p.limits[f].at[i]
}

func (l *limit) set() bool { return l.until != 0 }

// end is when the window is over.
func (l *limit) end() time.Duration {
	if l.cut {
		return min(l.until, l.soon)
	}
	return l.until
}

func isTried(tried []id.Account, a id.Account) bool {
	return len(tried) > 0 && slices.Contains(tried, a)
}

func (p *Pool) setCurrent(i int) { p.current, p.at = p.ids[i], i }

// readyFor fills the scratch mask with the members that are open to a request, and
// counts them.
func (p *Pool) readyFor(q *query) int {
	p.ready.fill(len(p.ids))
	account, family := p.limits[whole].closed(q.t), p.limits[q.f].closed(q.t)
	n := 0
	for w := range p.ready {
		p.ready[w] &^= account[w] | family[w]
		if q.passed != nil {
			p.ready[w] &^= q.passed[w]
		}
		n += bits.OnesCount64(p.ready[w])
	}
	for _, a := range q.Tried {
		if i, ok := p.index[a]; ok && p.ready.has(i) {
			p.ready.clear(i)
			n--
		}
	}
	return n
}

// served returns the member that served a session last, −1 for none.
func (p *Pool) served(s id.Session) int {
	if id.IsZero(s) {
		return -1
	}
	if a, ok := p.sessions.Get(s); ok {
		if i, ok := p.index[a]; ok {
			return i
		}
	}
	return -1
}

// spare returns the last usable account, if nobody is ready or on the way back and
// what the provider asked for is over.
func (p *Pool) spare(t time.Duration, f int, tried []id.Account) int {
	i := p.last(t, f)
	if i < 0 || isTried(tried, p.ids[i]) || t < p.soonest(f, i) {
		return -1
	}
	for _, l := range p.pair(f, i) {
		if l != nil && l.set() {
			l.cut = true
		}
	}
	return i // and is handed out, which is noted
}

// last returns the member that was parked last, −1 when one is ready, or being probed.
// One whose key does not open is not usable, and not the last one, while there are others.
func (p *Pool) last(t time.Duration, f int) int {
	for _, failed := range [...]bool{false, true} {
		if i, some := p.lastOf(t, f, failed); some {
			return i
		}
	}
	return -1
}

// lastOf is last among those whose authentication failed, or did not. It reports whether
// there are any.
func (p *Pool) lastOf(t time.Duration, f int, failed bool) (found int, some bool) {
	found = -1
	var latest *limit
	for i := range p.ids {
		if a := &p.limits[whole].of[i]; (a.set() && a.reason == AuthFailed) != failed {
			continue
		}
		if p.open(t, f, i) {
			return -1, true
		}
		for _, l := range p.pair(f, i) {
			if l == nil || !l.set() {
				continue
			}
			if l.probe > t {
				return -1, true
			}
			if latest == nil || l.later(latest) {
				found, latest = i, l
			}
		}
	}
	return found, latest != nil
}

// later reports whether a limit was set after another.
func (l *limit) later(other *limit) bool {
	return l.at > other.at || l.at == other.at && l.window > other.window
}

// soonest is when a member may be tried if it is the last.
func (p *Pool) soonest(f, i int) time.Duration {
	soon := time.Duration(0)
	for _, l := range p.pair(f, i) {
		if l != nil && l.set() {
			soon = max(soon, min(l.end(), l.soon))
		}
	}
	return soon
}

// pair returns the limits that bear on a request: the account's and the family's, or
// nil for none.
func (p *Pool) pair(f, i int) [2]*limit {
	if f == whole {
		return [2]*limit{&p.limits[whole].of[i], nil}
	}
	return [2]*limit{&p.limits[whole].of[i], &p.limits[f].of[i]}
}

// note is called whenever the pair has changed.
func (p *Pool) note(f, i int) {
	p.limits[whole].note(i)
	p.limits[f].note(i)
	p.nobody = nobody{}
}

// exhausted says when somebody comes back. Where nobody is ready for anybody, that is
// kept for a moment.
func (p *Pool) exhausted(t time.Duration, f int) error {
	back, reason, open := forever, OK, forever
	for i := range p.ids {
		end, why := t, OK
		for _, l := range p.pair(f, i) {
			if l == nil || !l.set() {
				continue
			}
			if e := max(l.end(), min(l.probe, t+probeWait)); e > end {
				end, why = e, l.reason
			}
		}
		if end < back {
			back, reason = end, why
		}
		open = min(open, max(p.limits[whole].at[i], p.limits[f].at[i]))
	}
	if i := p.last(t, f); i >= 0 {
		soon := p.soonest(f, i)
		if soon < back {
			back, reason = soon, p.why(f, i)
		}
		open = min(open, soon)
	}
	if back == forever {
		back = t
	}
	answer := &Exhausted{Back: p.wall.Add(max(back, t)), Reason: reason, Members: len(p.ids)}
	p.nobody = nobody{until: min(open, t+moment), family: f, answer: answer}
	return answer
}

// why is the reason of the limit that was set last.
func (p *Pool) why(f, i int) Reason {
	var latest *limit
	for _, l := range p.pair(f, i) {
		if l != nil && l.set() && (latest == nil || l.later(latest)) {
			latest = l
		}
	}
	if latest == nil {
		return OK
	}
	return latest.reason
}

// hand makes out the ticket.
func (p *Pool) hand(t time.Duration, f, i int, r Query) Ticket {
	k := Ticket{Account: p.ids[i], denied: r.Denied, family: r.Family, model: r.Model, session: r.Session, orders: p.orders}
	for n, l := range p.pair(f, i) {
		if l == nil {
			continue
		}
		k.windows[n] = l.window
		if l.set() {
			l.probe = t + ProbeTime
			k.probes[n], k.Probe, k.lease = true, true, l.probe
		}
	}
	if k.Probe {
		p.note(f, i)
	}
	h := &p.hot[i]
	h.used = restPoints(t)
	if h.tokens+p.rates.grown(t) >= p.rates.token {
		p.addTokens(h, t, -1)
		k.token = true
		p.cold[i].counters.Taken++
		p.changed(i, ToPeers)
	}
	return k
}
