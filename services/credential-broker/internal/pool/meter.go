package pool

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/price"
)

// OtherAccounts is the name under which a Meter counts accounts beyond those that have
// series of their own.
const OtherAccounts = "other"

const (
	maxMetered = 1000
	evictAfter = 10 * time.Minute // without use an account makes room for another
)

// metered are the reasons that metrics tell apart; any other one counts as the last.
var metered = []Reason{
	OK, RateLimited, AuthFailed, QuotaExhausted, Overloaded, Service, Caller, Cancelled, Unreachable, "OTHER",
}

// Meter counts by provider and account: requests by how they went, tokens, cost, retries,
// switches and cooldowns. An account is named by its id, never by its label or an email
// address. At most 1,000 accounts have series. One more takes the place of the account that
// was unused for longest, if that is at least ten minutes; otherwise it counts as
// OtherAccounts. A Meter is safe for concurrent use; a nil one counts nothing.
type Meter struct {
	now func() time.Time

	requests, retries, switches, cooldowns, tokens, cost, unpriced, added *prometheus.CounterVec

	mu       sync.RWMutex // guards what follows; counters are added to under the read lock
	accounts map[id.Account]*meteredAccount
	full     time.Time // until then no account is evicted: none was unused for long enough
}

type meteredAccount struct {
	name string
	used atomic.Int64 // seconds since 1970
}

// NewMeter returns a Meter whose metrics are registered.
func NewMeter(reg prometheus.Registerer) (*Meter, error) {
	vec := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "signalbox_broker_account_" + name, Help: help}, append([]string{"provider", "account"}, labels...))
	}
	m := &Meter{
		now: time.Now, accounts: map[id.Account]*meteredAccount{},
		requests:  vec("requests_total", "Requests by the account that was chosen for them, and their outcome.", "reason"),
		retries:   vec("retries_total", "Requests that were sent again with the same account, by the reason.", "reason"),
		switches:  vec("switches_total", "Requests that moved on to another account, by the account that they left and the reason.", "reason"),
		cooldowns: vec("cooldowns_total", "How often accounts were parked, by the reason.", "reason"),
		tokens:    vec("tokens_total", "Tokens as providers counted them; cached ones are part of the input.", "kind"),
		cost:      vec("cost_dollars_total", "What the tokens cost in US dollars; nothing for accounts with a flat rate."),
		unpriced:  vec("unpriced_total", "Requests with tokens of a model whose price is unknown."),
		added:     vec("added_seconds_total", "Time that the broker itself added before requests were sent, by the account that they were sent with first."),
	}
	for _, v := range m.all() {
		if err := reg.Register(v); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *Meter) all() []*prometheus.CounterVec {
	return []*prometheus.CounterVec{m.requests, m.retries, m.switches, m.cooldowns, m.tokens, m.cost, m.unpriced, m.added}
}

// Metered is how a request went with an account.
type Metered struct {
	Reason     Reason
	Tokens     price.Tokens
	CostMicros int64
	// Unpriced says that there are tokens of unknown cost.
	Unpriced bool
}

// Ended counts a request that an account was chosen for.
func (m *Meter) Ended(provider string, account id.Account, r Metered) {
	m.count(account, func(name string) {
		m.requests.WithLabelValues(provider, name, label(r.Reason)).Inc()
		for _, kind := range [...]struct {
			name string
			n    int64
		}{{"input", r.Tokens.Input}, {"cache_read", r.Tokens.CacheRead}, {"cache_write", r.Tokens.CacheWrite}, {"output", r.Tokens.Output}} {
			if kind.n > 0 {
				m.tokens.WithLabelValues(provider, name, kind.name).Add(float64(kind.n))
			}
		}
		if r.CostMicros > 0 {
			m.cost.WithLabelValues(provider, name).Add(float64(r.CostMicros) / 1e6)
		}
		if r.Unpriced {
			m.unpriced.WithLabelValues(provider, name).Inc()
		}
	})
}

// Added counts the time that the broker itself took before it sent a request.
func (m *Meter) Added(provider string, account id.Account, d time.Duration) {
	if d > 0 {
		m.count(account, func(name string) { m.added.WithLabelValues(provider, name).Add(d.Seconds()) })
	}
}

// Retried counts that a request was sent again with the same account, for a reason.
func (m *Meter) Retried(provider string, account id.Account, reason Reason) {
	m.count(account, func(name string) { m.retries.WithLabelValues(provider, name, label(reason)).Inc() })
}

// Switched counts that a request went on from an account to another.
func (m *Meter) Switched(provider string, account id.Account, reason Reason) {
	m.count(account, func(name string) { m.switches.WithLabelValues(provider, name, label(reason)).Inc() })
}

// Cooled counts that an account was parked.
func (m *Meter) Cooled(provider string, account id.Account, reason Reason) {
	m.count(account, func(name string) { m.cooldowns.WithLabelValues(provider, name, label(reason)).Inc() })
}

func label(r Reason) string {
	if !slices.Contains(metered, r) {
		r = metered[len(metered)-1]
	}
	return string(r)
}

// Forget ends the series of an account that was removed.
func (m *Meter) Forget(account id.Account) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forget(account)
}

func (m *Meter) forget(account id.Account) {
	a := m.accounts[account]
	if a == nil {
		return
	}
	delete(m.accounts, account)
	for _, v := range m.all() {
		v.DeletePartialMatch(prometheus.Labels{"account": a.name})
	}
}

// count calls add with the name that an account counts under. add must not outlive the call,
// which therefore allocates nothing for an account that has series.
func (m *Meter) count(account id.Account, add func(name string)) {
	if m == nil {
		return
	}
	now := m.now()
	m.mu.RLock()
	a := m.accounts[account]
	if a != nil {
		a.used.Store(now.Unix())
		add(a.name)
	}
	m.mu.RUnlock()
	if a != nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if a = m.accounts[account]; a == nil {
		if len(m.accounts) >= maxMetered && !m.evict(now) {
			add(OtherAccounts)
			return
		}
		a = &meteredAccount{name: account.String()}
		m.accounts[account] = a
	}
	a.used.Store(now.Unix())
	add(a.name)
}

// evict ends the series of the account that was unused for longest, if that is long enough.
// If it is not, no account is looked for again for a second.
func (m *Meter) evict(now time.Time) bool {
	if now.Before(m.full) {
		return false
	}
	var oldest id.Account
	limit := now.Add(-evictAfter).Unix()
	for account, a := range m.accounts {
		if used := a.used.Load(); used <= limit {
			oldest, limit = account, used
		}
	}
	if id.IsZero(oldest) {
		m.full = now.Add(time.Second)
		return false
	}
	m.forget(oldest)
	return true
}
