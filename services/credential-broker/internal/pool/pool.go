package pool

import (
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/recent"
)

// maxSessions bounds the sessions whose accounts a pool remembers.
const maxSessions = 16_384

// Pool is the accounts of one pool and what is known of them. It does no I/O and reads no
// clock: the time comes with each call. A Pool is safe for concurrent use; its mutex is
// held for microseconds.
type Pool struct {
	mu       sync.Mutex // guards everything
	clock    clock
	settings Settings
	settled  time.Time // when the settings were read
	rates    rates

	members   []*member
	points    []points           // of each member
	closed    map[string]*closed // by the family of the limits
	index     map[id.Account]*member
	version   time.Time // when the members were read
	elsewhere bool      // they are not all at one server

	current  id.Account // chosen last, by the strategies that have one
	cursor   int
	sessions recent.Map[id.Session, id.Account] // the account that served a session last
	switched time.Time                          // when the newest Switch was asked for
	switches uint32                             // counts Switch

	windows uint32        // counts the limits that were set and cleared
	passing time.Duration // until when a member may be passed over
	none    noneReady
	search  search // of the Pick under way
}

// points are what an account's score is made of (score.go). They are kept as they were at the
// pool's time zero, without bounds: reading one is an addition. The points of all members are
// adjacent in memory, because hybrid reads them all for each request.
type points struct {
	tokens, health, used int64
	quotaEnds            time.Duration // as a provider said last; 0 if it never did
}

// member is an account of a pool.
type member struct {
	*points
	account *Account
	server  string
	at      int // its index
	// limits has that of the whole account first, then those of model families and models
	// that it is passed over for.
	limits []limit

	counters  Counters
	announced Counters      // as they were in the last state that other instances were sent
	since     time.Duration // when counting began
	peers     []peer
	reset     time.Time // when the newest Reset was asked for
	dirty     [listeners]bool
}

// NewPool returns a pool without members. The settings must be valid.
func NewPool(now time.Time, s Settings) *Pool {
	return &Pool{clock: newClock(now), settings: s, rates: s.rates(), index: map[id.Account]*member{}}
}

// SetMembers makes the pool consist of these accounts, in this order, and returns the new ones.
// What is known of an account that stays is kept. A list that was read before the present one
// is ignored. The pool keeps the slice.
func (p *Pool) SetMembers(now, read time.Time, accounts []Account) (added []id.Account) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if read.Before(p.version) {
		return nil
	}
	p.version = read
	t := p.clock.since(now)
	members, index := make([]*member, 0, len(accounts)), make(map[id.Account]*member, len(accounts))
	all := make([]points, len(accounts))
	p.elsewhere = false
	for i := range accounts {
		a := &accounts[i]
		if index[a.ID] != nil {
			continue
		}
		m, pts := p.index[a.ID], &all[len(members)]
		if m != nil {
			*pts = *m.points
			m.points = pts
		} else {
			pts.used = restPoints(t) - maxRest
			m = &member{points: pts, limits: make([]limit, 1), since: t}
			p.rates.setTokens(m, t, p.settings.InitialTokens)
			p.rates.setHealth(m, t, maxHealth)
			added = append(added, a.ID)
		}
		m.account, m.server, m.at = a, a.Server(), len(members)
		members, index[a.ID] = append(members, m), m
		p.elsewhere = p.elsewhere || m.server != members[0].server
	}
	p.members, p.index, p.points = members, index, all[:len(members)]
	p.search.ready, p.closed, p.none = newMask(len(members)), map[string]*closed{}, noneReady{}
	for _, m := range members {
		for i := range m.limits {
			p.noteLimit(m, &m.limits[i])
		}
	}
	return added
}

// SetSettings changes the settings, which must be valid. Tokens and health stay what they
// are, within the new bounds. Settings that were read before the present ones are ignored.
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
	t, old := p.clock.since(now), p.rates
	p.settings, p.rates = s, s.rates()
	for _, m := range p.members {
		tokens, health := old.tokensOf(m, t), old.healthOf(m, t)
		p.rates.setTokens(m, t, tokens)
		p.rates.setHealth(m, t, health)
	}
}

// Switch makes an account the current one because somebody asked for it at that time:
// sessions that other accounts served follow, including those with requests in flight. An
// order that is not newer than the last one is ignored.
func (p *Pool) Switch(asked time.Time, account id.Account) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.index[account]
	if m == nil || !asked.After(p.switched) {
		return
	}
	p.switched = asked
	p.switches++
	p.current = account
	p.cursor = m.at + 1
	p.sessions = recent.Map[id.Session, id.Account]{}
}

// Order asks for the Reset of an account.
type Order struct {
	Account id.Account
	Asked   time.Time
	// Known is when what is known of the account was stored; zero if it was learned here.
	Known time.Time
}

// Reset ends an account's limits and exclusions and restores its health and tokens. An
// order that is not newer than the last one is ignored. All limits that were learned here
// end, whatever the clocks say: nobody here knew of the order yet. Stored ones end unless
// they are newer than the order.
func (p *Pool) Reset(now time.Time, o Order) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.index[o.Account]
	if m == nil || !o.Asked.After(m.reset) {
		return
	}
	m.reset = o.Asked
	t := p.clock.since(now)
	for i := range m.limits {
		if l := &m.limits[i]; l.set() && (o.Known.IsZero() || !p.clock.date(l.at).After(o.Asked)) {
			p.clear(t, m, l)
		}
	}
	if !o.Known.IsZero() && o.Asked.Before(o.Known) {
		return
	}
	p.rates.setHealth(m, t, maxHealth)
	p.rates.setTokens(m, t, p.settings.MaxTokens)
	p.changed(m, ToStore)
}

// served returns the member that served a session last, nil if there is none.
func (p *Pool) served(s id.Session) *member {
	if id.IsZero(s) {
		return nil
	}
	a, _ := p.sessions.Get(s)
	return p.index[a]
}

// Counters are what one instance has counted of an account. They only grow.
type Counters struct {
	Taken, Returned            uint64 // tokens
	Succeeded, Limited, Failed uint64 // events that changed its health
}

// peer is another instance and what it had counted when it was heard last.
type peer struct {
	instance uuid.UUID
	since    time.Time // when its counting began
	heard    time.Duration
	counters Counters
}

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

// States returns the state of all members, in order.
func (p *Pool) States(now time.Time) []State {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.clock.since(now)
	all := make([]State, len(p.members))
	for i, m := range p.members {
		all[i] = p.state(t, m)
	}
	return all
}

func (p *Pool) state(t time.Duration, m *member) State {
	s := State{
		Account: m.account.ID, Since: p.clock.date(m.since), Counters: m.counters, Told: m.announced,
		Health: p.rates.healthOf(m, t), Tokens: p.rates.tokensOf(m, t), LastUsed: p.clock.date(time.Duration(m.used) * (time.Second / restRate)),
	}
	for i := range m.limits {
		if l := &m.limits[i]; l.window != 0 {
			s.Limits = append(s.Limits, p.told(l))
		}
	}
	return s
}

// Listener is one of the two that are told of changes, each on its own.
type Listener int

// The listeners: other instances, and the store.
const (
	ToPeers Listener = iota
	ToStore
	listeners = 2
)

// changed has the listeners told of a member. Since an account may be ready now, "none ready"
// is not cached any longer.
func (p *Pool) changed(m *member, all ...Listener) {
	for _, who := range all {
		m.dirty[who] = true
	}
	p.none = noneReady{}
}

// Changes returns the accounts that changed since the listener last asked.
func (p *Pool) Changes(now time.Time, who Listener) (states []State) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.clock.since(now)
	for _, m := range p.members {
		if !m.dirty[who] {
			continue
		}
		m.dirty[who] = false
		states = append(states, p.state(t, m))
		if who == ToPeers {
			m.announced = m.counters
		}
	}
	return states
}

// Mark has the listener told of these accounts again.
func (p *Pool) Mark(who Listener, states []State) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range states {
		if m := p.index[s.Account]; m != nil {
			m.dirty[who] = true
		}
	}
}

// MarkAll has the listener told of every account of which something is known.
func (p *Pool) MarkAll(who Listener) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.members {
		if m.counters != (Counters{}) || slices.ContainsFunc(m.limits, func(l limit) bool { return l.set() }) {
			m.dirty[who] = true
		}
	}
}

// Changed reports whether there are changes for the listener.
func (p *Pool) Changed(who Listener) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.members, func(m *member) bool { return m.dirty[who] })
}
