package pool

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/price"
)

// OtherAccounts stands for what has no name of its own: accounts beyond those that are counted
// each, and providers that are not the product's or the operator's.
const OtherAccounts = "other"

const (
	maxAccounts = 1000
	evictAfter  = 10 * time.Minute // after which an account makes room for another
)

// reasons are all that are told apart; what is none of them counts as the last.
var reasons = [...]Reason{
	OK, RateLimited, AuthFailed, QuotaExhausted, Overloaded, Service,
	Caller, Cancelled, Unreachable, "OTHER",
}

// kinds are the kinds of tokens, as metrics name them. Cached ones are part of the input.
var kinds = [...]string{"input", "cache_read", "cache_write", "output"}

// byReason counts what has a reason.
type byReason [len(reasons)]atomic.Uint64

func (b *byReason) inc(r Reason) {
	i := 0
	for i < len(reasons)-1 && reasons[i] != r {
		i++
	}
	b[i].Add(1)
}

// series are one account's counters.
type series struct {
	provider, account string
	used              atomic.Int64 // seconds since 1970

	requests, retries, switches, cooldowns byReason
	tokens                                 [len(kinds)]atomic.Uint64
	micros                                 atomic.Uint64
	unpriced                               atomic.Uint64
	added                                  atomic.Int64 // nanoseconds
}

// Meter counts. It is a prometheus.Collector.
type Meter struct {
	now   func() time.Time
	descs descs

	mu       sync.RWMutex // guards what follows; counters are added to under the read lock
	accounts map[id.Account]*series
	others   map[string]*series // by provider
	full     time.Time          // until then nobody is looked for who could make room
}

// NewMeter returns a Meter that is registered.
func NewMeter(reg prometheus.Registerer) (*Meter, error) {
	m := &Meter{now: time.Now, descs: newDescs(), accounts: map[id.Account]*series{}, others: map[string]*series{}}
	if err := reg.Register(m); err != nil {
		return nil, err
	}
	return m, nil
}

// Metered is how a request went with an account.
type Metered struct {
	Reason     Reason
	Tokens     price.Tokens
	CostMicros int64
	// Unpriced says that there are tokens and nobody knows what they cost.
	Unpriced bool
}

// Ended counts a request that an account was chosen for.
func (m *Meter) Ended(provider string, account id.Account, r Metered) {
	m.count(provider, account, func(s *series) {
		s.requests.inc(r.Reason)
		for i, n := range [...]int64{r.Tokens.Input, r.Tokens.CacheRead, r.Tokens.CacheWrite, r.Tokens.Output} {
			s.tokens[i].Add(uint64(max(n, 0)))
		}
		s.micros.Add(uint64(max(r.CostMicros, 0)))
		if r.Unpriced {
			s.unpriced.Add(1)
		}
	})
}

// Added counts the time that the broker itself took before it sent a request.
func (m *Meter) Added(provider string, account id.Account, d time.Duration) {
	m.count(provider, account, func(s *series) { s.added.Add(int64(max(d, 0))) })
}

// Retried counts that a request was sent again with the same account, for a reason.
func (m *Meter) Retried(provider string, account id.Account, reason Reason) {
	m.count(provider, account, func(s *series) { s.retries.inc(reason) })
}

// Switched counts that a request went on from an account to another.
func (m *Meter) Switched(provider string, account id.Account, reason Reason) {
	m.count(provider, account, func(s *series) { s.switches.inc(reason) })
}

// Cooled counts that an account was parked.
func (m *Meter) Cooled(provider string, account id.Account, reason Reason) {
	m.count(provider, account, func(s *series) { s.cooldowns.inc(reason) })
}

// Forget ends the series of an account that is there no more.
func (m *Meter) Forget(account id.Account) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.accounts, account)
}

// count adds to an account's counters, or to those of the others. add does not outlive
// the call, and so costs no allocation.
func (m *Meter) count(provider string, account id.Account, add func(*series)) {
	if m == nil {
		return
	}
	now := m.now()
	m.mu.RLock()
	s := m.accounts[account]
	if s != nil {
		s.used.Store(now.Unix())
		add(s)
	}
	m.mu.RUnlock()
	if s != nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s = m.seriesOf(provider, account, now)
	s.used.Store(now.Unix())
	add(s)
}

// seriesOf returns an account's series, made where there is room, else the others'.
func (m *Meter) seriesOf(provider string, account id.Account, now time.Time) *series {
	if s := m.accounts[account]; s != nil {
		return s
	}
	if len(m.accounts) < maxAccounts || m.makeRoom(now) {
		s := &series{provider: provider, account: account.String()}
		m.accounts[account] = s
		return s
	}
	s := m.others[provider]
	if s == nil {
		s = &series{provider: provider, account: OtherAccounts}
		m.others[provider] = s
	}
	return s
}

// makeRoom ends the series of the account that was evictAfter for longest, if that is long
// enough. Where it is not, nobody looks again for a second.
func (m *Meter) makeRoom(now time.Time) bool {
	if now.Before(m.full) {
		return false
	}
	var longest id.Account
	since := now.Add(-evictAfter).Unix()
	found := false
	for account, s := range m.accounts {
		if used := s.used.Load(); used <= since {
			longest, since, found = account, used, true
		}
	}
	if !found {
		m.full = now.Add(time.Second)
		return false
	}
	delete(m.accounts, longest)
	return true
}
