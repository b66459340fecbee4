package pool_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/price"
	"signalbox.dev/services/credential-broker/internal/pool"
	"signalbox.dev/services/credential-broker/internal/profile"
	"signalbox.dev/services/credential-broker/internal/store"
)

// ledger is a ram that keeps the uses it is given, or refuses them.
type ledger struct {
	*ram

	mu    sync.Mutex // guards what follows
	away  bool
	uses  map[string]store.Use // by account and session
	stats []store.Stat
}

func (l *ledger) set(away bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.away = away
}

func (l *ledger) refuse() error {
	if l.away {
		return fault.New(fault.Unavailable, "away")
	}
	return nil
}

func (l *ledger) Used(_ context.Context, all []store.Use) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, u := range all {
		if !l.away {
			l.uses[u.Account.String()+u.Session.String()] = u
		}
	}
	return l.refuse()
}

func (l *ledger) Learn(_ context.Context, x store.Learned) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.away {
		l.stats = append(l.stats, x.Stats...)
	}
	return l.refuse()
}

// recorded returns how many uses are recorded.
func (l *ledger) recorded() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.uses)
}

// bench is a Set over a ledger, with an account from the environment.
type bench struct {
	*pool.Set
	*ledger
	t     *testing.T
	reg   *prometheus.Registry
	actor identity.Actor
	stop  func()
}

func newBench(t *testing.T) *bench {
	t.Helper()
	profiles, err := profile.Load("1", profile.Shipped())
	if err != nil {
		t.Fatal(err)
	}
	prices, err := price.Load("")
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{ledger: &ledger{ram: newRAM(), uses: map[string]store.Use{}}, t: t, reg: prometheus.NewRegistry(), actor: identity.Actor{
		Workspace: id.New[id.Workspace](), Member: id.New[id.Member](), Role: identity.Editor, Service: "agent-runner",
	}}
	counts, err := pool.NewMeter(b.reg)
	if err != nil {
		t.Fatal(err)
	}
	b.Set, err = pool.New(pool.Config{
		Store: b.ledger, Profiles: profiles, Prices: prices, Meter: counts, WriteEvery: time.Millisecond, Log: slog.New(slog.DiscardHandler),
		Environment: []pool.EnvironmentAccount{{Provider: "openai"}, {Provider: "anthropic"}}, Simulator: mustURL("http://127.0.0.1:7070"),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	b.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v", err)
		}
		b.Wait()
	})
	t.Cleanup(b.stop)
	return b
}

// use selects an account in a session.
func (b *bench) use(session id.Session) (pool.Account, error) {
	actor := b.actor
	actor.Session = session
	return b.Select(b.t.Context(), pool.Request{Actor: actor, Provider: "openai", Model: "gpt-5", Address: "10.0.0.1:5"})
}

// A first use does not wait for the database, and is recorded when the database is back, at the
// latest when the process ends.
func TestUseWithoutDatabase(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	if _, err := b.use(id.New[id.Session]()); err != nil { // so that the pool is known
		t.Fatal(err)
	}
	await(t, "the first use is recorded", func() bool { return b.recorded() == 1 })
	b.set(true)
	session := id.New[id.Session]()
	for range 3 {
		if _, err := b.use(session); err != nil {
			t.Fatalf("Select while the database is away = %v", err)
		}
	}
	if n := b.recorded(); n != 1 {
		t.Errorf("%d uses are recorded while the database is away", n)
	}
	b.set(false)
	await(t, "the second use is recorded", func() bool { return b.recorded() == 2 })
	b.set(true)
	if _, err := b.use(id.New[id.Session]()); err != nil {
		t.Fatal(err)
	}
	// The database comes back while the process ends.
	time.AfterFunc(10*time.Millisecond, func() { b.set(false) })
	b.stop()
	if n := b.recorded(); n != 3 {
		t.Errorf("%d uses are recorded after the end, want 3", n)
	}
}

// While as many uses wait as may, further first uses are refused.
func TestUsesAreBounded(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	old := id.New[id.Session]()
	if _, err := b.use(old); err != nil {
		t.Fatal(err)
	}
	b.set(true)
	var err error
	n := 0
	for err == nil && n <= 20_000 {
		n++
		_, err = b.use(id.New[id.Session]())
	}
	if f := fault.From(err); f.Kind != fault.Unavailable || !strings.Contains(f.Message, "audit") || n < 10_000 || n > 10_002 {
		t.Fatalf("the %dth use = %v, want the 10,000 first to be taken", n, err)
	}
	if _, err := b.use(old); err != nil {
		t.Errorf("a session that has used it before: %v", err)
	}
	b.set(false)
	await(t, "all are recorded", func() bool { return b.recorded() == n })
	if _, err := b.use(id.New[id.Session]()); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// Requests are counted with their tokens and cost.
func TestCosts(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	told := func(provider, model string, tokens price.Tokens, change func(*pool.Account)) {
		t.Helper()
		a, err := b.Select(t.Context(), pool.Request{Actor: b.actor, Provider: provider, Model: model})
		if err != nil && !errors.Is(err, pool.ErrExhausted) {
			t.Fatal(err)
		}
		if change != nil {
			change(&a)
		}
		b.Report(t.Context(), a, pool.Outcome{Reason: pool.OK, Status: 200, Model: model, Tokens: tokens})
	}
	tokens := price.Tokens{Input: 1000, CacheRead: 400, CacheWrite: 200, Output: 100}
	told("openai", "gpt-5", tokens, nil)
	told("openai", "gpt-5", tokens, func(a *pool.Account) { a.FlatRate = true })
	told("openai", "nobody-knows", tokens, nil)
	told("anthropic", "claude-sonnet-4-5", tokens, nil)
	told("anthropic", "claude-sonnet-4-5", price.Tokens{}, nil)
	told("simulator", "simulated", tokens, nil) // for which there is no profile
	b.stop()

	got := map[string]float64{}
	families, err := b.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := strings.TrimPrefix(f.GetName(), "signalbox_broker_account_")
			for _, l := range m.GetLabel() {
				if l.GetName() != "account" {
					name += " " + l.GetValue()
				}
			}
			got[name] += m.GetCounter().GetValue()
		}
	}
	want := map[string]float64{
		"requests_total openai OK": 3, "requests_total anthropic OK": 2, "requests_total other OK": 1,
		"cost_dollars_total openai":    (600*1.25 + 400*0.125 + 100*10) / 1e6,
		"cost_dollars_total anthropic": (400*3 + 400*0.3 + 200*3.75 + 100*15) / 1e6,
		"unpriced_total openai":        1,
		"tokens_total input openai":    3000, "tokens_total output openai": 300, "tokens_total cache_read openai": 1200, "tokens_total cache_write openai": 600,
		"tokens_total input anthropic": 1000, "tokens_total output anthropic": 100, "tokens_total cache_read anthropic": 400, "tokens_total cache_write anthropic": 200,
		"tokens_total input other": 1000, "tokens_total output other": 100, "tokens_total cache_read other": 400, "tokens_total cache_write other": 200,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
	micros := map[string]int64{}
	for _, s := range b.stats {
		micros[s.Provider] += s.CostMicros
	}
	if diff := cmp.Diff(map[string]int64{"openai": 1800, "anthropic": 3570}, micros); diff != "" {
		t.Errorf("statistics (-want +got):\n%s", diff)
	}
}

// A cooldown counts once, however many requests fail in it.
func TestCooldownsAreCounted(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var out []pool.Account
	for range 3 {
		a, err := b.use(id.Session{})
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, a)
	}
	for _, a := range out {
		b.Report(t.Context(), a, pool.Outcome{Reason: pool.RateLimited, Status: 429})
	}
	families, err := b.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "signalbox_broker_account_cooldowns_total" {
			if n := f.GetMetric()[0].GetCounter().GetValue(); n != 1 {
				t.Errorf("%g cooldowns, want 1", n)
			}
			return
		}
	}
	t.Error("no cooldown was counted")
}

// An account's series stay while it is disabled, and end when it is removed, also if it was the last
// one of a pool.
func TestCountsGoWithTheAccount(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		counts, err := pool.NewMeter(reg)
		if err != nil {
			t.Fatal(err)
		}
		w := newRoomWith(t, nil, counts)
		ws := id.New[id.Workspace]()
		want := func(when string, want int) {
			t.Helper()
			pass(time.Second)
			if _, _, err := w.timed(request(ws)); err != nil && !errors.Is(err, pool.ErrNone) { // so that the pool is looked after
				t.Fatal(err)
			}
			families, err := reg.Gather()
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range families {
				if n := len(f.GetMetric()); n != want {
					t.Errorf("%s: %s has %d series, want %d", when, f.GetName(), n, want)
				}
			}
			if len(families) == 0 && want > 0 {
				t.Errorf("%s: there are no series, want %d", when, want)
			}
		}
		first, second := w.key(ws, "first"), w.key(ws, "second")
		w.memory.put(ws, first, second)
		r := request(ws)
		for range 2 {
			a, _, err := w.timed(r)
			if err != nil {
				t.Fatal(err)
			}
			w.pool.Report(t.Context(), a, pool.Outcome{Reason: pool.OK})
			r.Tried = append(r.Tried, a.ID)
		}
		want("both are used", 2)
		w.memory.disable(ws)
		want("one is disabled", 2)
		w.memory.put(ws, second)
		want("it is removed", 1)
		w.memory.put(ws)
		want("so is the last one", 0)
	})
}
