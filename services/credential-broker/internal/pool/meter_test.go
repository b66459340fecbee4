package pool

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/price"
	"signalbox.dev/services/credential-broker/internal/store"
)

// rig is a Meter with a clock and a registry.
type rig struct {
	*Meter
	t   testing.TB
	reg *prometheus.Registry
	at  time.Time
}

func newRig(t testing.TB) *rig {
	r := &rig{t: t, reg: prometheus.NewPedanticRegistry(), at: time.Unix(1_800_000_000, 0)}
	m, err := NewMeter(r.reg)
	if err != nil {
		t.Fatal(err)
	}
	m.now = func() time.Time { return r.at }
	r.Meter = m
	return r
}

// shown returns the metrics by name, without the common prefix, and labels.
func (r *rig) shown() map[string]float64 {
	r.t.Helper()
	families, err := r.reg.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			labels := []string{strings.TrimSuffix(strings.TrimPrefix(f.GetName(), "signalbox_broker_account_"), "_total")}
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			out[strings.Join(labels, " ")] = m.GetCounter().GetValue()
		}
	}
	return out
}

func TestCounts(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a, b := id.New[id.Account](), id.New[id.Account]()
	r.Ended("openai", a, Metered{Reason: OK, Tokens: price.Tokens{Input: 100, CacheRead: 80, Output: 7}, CostMicros: 2_500_000})
	r.Ended("openai", a, Metered{Reason: OK, Tokens: price.Tokens{Input: 1, CacheWrite: 1}, Unpriced: true})
	r.Ended("openai", a, Metered{Reason: RateLimited})
	r.Cooled("openai", a, RateLimited)
	r.Switched("openai", a, RateLimited)
	r.Retried("anthropic", b, AuthFailed)
	r.Ended("anthropic", b, Metered{Reason: "something new", Tokens: price.Tokens{Input: -5}, CostMicros: -5})
	of := func(account id.Account) string { return account.String() }
	want := map[string]float64{
		"requests " + of(a) + " openai OK":                   2,
		"requests " + of(a) + " openai RATE_LIMIT_EXCEEDED":  1,
		"cooldowns " + of(a) + " openai RATE_LIMIT_EXCEEDED": 1,
		"switches " + of(a) + " openai RATE_LIMIT_EXCEEDED":  1,
		"retries " + of(b) + " anthropic AUTH_FAILED":        1,
		"requests " + of(b) + " anthropic OTHER":             1,
		"tokens " + of(a) + " input openai":                  101,
		"tokens " + of(a) + " cache_read openai":             80,
		"tokens " + of(a) + " cache_write openai":            1,
		"tokens " + of(a) + " output openai":                 7,
		"cost_dollars " + of(a) + " openai":                  2.5,
		"unpriced " + of(a) + " openai":                      1,
	}
	if diff := cmp.Diff(want, r.shown()); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
	r.Forget(a)
	if got := r.shown(); len(got) != 2 {
		t.Errorf("after Forget: %v, want the other account's alone", got)
	}
	var none *Meter
	none.Ended("openai", a, Metered{})
	none.Forget(a)
}

// The number of series is bounded, and accounts in use keep theirs.
func TestBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ended := func() id.Account {
		a := id.New[id.Account]()
		r.Ended("openai", a, Metered{Reason: OK})
		return a
	}
	first := ended()
	for range maxMetered - 1 {
		ended()
	}
	ended()
	other := "requests " + OtherAccounts + " openai OK"
	if got := r.shown(); len(got) != maxMetered+1 || got[other] != 1 {
		t.Errorf("%d series, %g requests of others, want %d and 1", len(got), got[other], maxMetered+1)
	}
	r.at = r.at.Add(evictAfter)
	r.Ended("openai", first, Metered{Reason: OK})
	late := ended()
	got := r.shown()
	if len(got) != maxMetered+1 || got[other] != 1 {
		t.Errorf("%d series, %g requests of others, want %d and 1", len(got), got[other], maxMetered+1)
	}
	if got["requests "+late.String()+" openai OK"] != 1 || got["requests "+first.String()+" openai OK"] != 2 {
		t.Error("an unused account did not make room, or a busy one did")
	}
}

// A reading that ends after a newer one does not end the series of accounts that it did not find.
func TestStoredOutOfOrder(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s, err := New(Config{Meter: r.Meter})
	if err != nil {
		t.Fatal(err)
	}
	a, b := id.New[id.Account](), id.New[id.Account]()
	stored := func(accounts ...id.Account) *store.Pool {
		p := &store.Pool{}
		for _, a := range accounts {
			p.Accounts = append(p.Accounts, store.Account{ID: a})
		}
		return p
	}
	r.Ended("openai", a, Metered{Reason: OK})
	r.Ended("openai", b, Metered{Reason: OK})
	s.meterStored(owner{}, r.at, stored(a, b))
	s.meterStored(owner{}, r.at.Add(-time.Second), stored(a))
	if got := r.shown(); len(got) != 2 {
		t.Errorf("after the older reading: %v, want both accounts", got)
	}
	s.meterStored(owner{}, r.at.Add(time.Second), stored(b))
	if got := r.shown(); len(got) != 1 {
		t.Errorf("after one was removed: %v, want the other", got)
	}
}

func TestConcurrentCounts(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := id.New[id.Account]()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 1000 {
				r.Ended("openai", a, Metered{Reason: OK})
				r.Ended("openai", id.New[id.Account](), Metered{Reason: OK})
			}
		})
	}
	wg.Go(func() {
		for range 20 {
			r.shown()
		}
	})
	wg.Wait()
	sum := 0.0
	for _, v := range r.shown() {
		sum += v
	}
	if sum != 16_000 {
		t.Errorf("%g requests, want 16000", sum)
	}
}

func TestNoAllocation(t *testing.T) { //nolint:paralleltest // it would count the allocations of other tests
	r := newRig(t)
	a := id.New[id.Account]()
	count := func() {
		r.Ended("openai", a, Metered{Reason: Cancelled, Tokens: price.Tokens{Input: 3, Output: 4}, CostMicros: 5})
		r.Switched("openai", a, QuotaExhausted)
	}
	count()
	if n := testing.AllocsPerRun(100, count); n > 0 {
		t.Errorf("counting allocates %g times, want 0", n)
	}
}

func BenchmarkEnded(b *testing.B) {
	r := newRig(b)
	r.now = time.Now
	a := id.New[id.Account]()
	b.ReportAllocs()
	for b.Loop() {
		r.Ended("openai", a, Metered{Reason: OK, Tokens: price.Tokens{Input: 3, Output: 4}, CostMicros: 5})
	}
}
