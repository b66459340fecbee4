package pool_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/natsd/natstest"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/price"
	"signalbox.dev/pkg/subject"
	"signalbox.dev/services/credential-broker/internal/pool"
	"signalbox.dev/services/credential-broker/internal/store"
	"signalbox.dev/services/credential-broker/migrations"
)

// instance is another instance on a world's database.
type instance struct {
	*pool.Set
	w    *world
	db   *pg.DB
	stop func() // and write what is to be written; again it does nothing
}

func (w *world) instance(b *bus.Bus) *instance {
	w.t.Helper()
	m := pg.Migrations{Schema: "credentials", Role: "signalbox_credentials", FS: migrations.FS, AppendOnly: migrations.AppendOnly()}
	db := w.database.Open(w.t, m)
	cfg := w.config
	cfg.Store, cfg.Bus = store.New(db), b
	i := w.runs(cfg)
	i.db = db
	return i
}

// runs starts an instance.
func (w *world) runs(cfg pool.Config) *instance {
	w.t.Helper()
	set, err := pool.New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context()))
	done := make(chan error, 1)
	go func() { done <- set.Run(ctx) }()
	i := &instance{Set: set, w: w}
	i.stop = func() {
		if ctx.Err() != nil {
			return
		}
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("Run = %v", err)
		}
		set.Wait()
	}
	w.t.Cleanup(i.stop)
	return i
}

func (i *instance) take(tried ...id.Account) pool.Account {
	i.w.t.Helper()
	a, err := i.Select(i.w.t.Context(), pool.Request{Actor: i.w.actor, Provider: "openai", Tried: tried})
	if err != nil {
		i.w.t.Fatalf("Select: %v", err)
	}
	return a
}

func (i *instance) state(a id.Account) pool.State {
	i.w.t.Helper()
	all, err := i.States(i.w.t.Context(), i.w.actor.Workspace, "openai")
	if err != nil {
		i.w.t.Fatal(err)
	}
	n := slices.IndexFunc(all, func(s pool.State) bool { return s.Account == a })
	if n < 0 {
		i.w.t.Fatalf("account %s is in no pool", a)
	}
	return all[n]
}

// await waits until a condition holds.
func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	within(t, 30*time.Second, what, is)
}

// within is await with a limit.
func within(t *testing.T, d time.Duration, what string, is func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	for !is() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("it does not come to this in %v: %s", d, what)
		}
	}
}

func parked(s pool.State) bool {
	return slices.ContainsFunc(s.Limits, func(l pool.Limit) bool { return l.Until.After(time.Now()) })
}

// An instance that loses Postgres keeps choosing accounts, and what it learns reaches the others
// before it ends.
func TestInstancesTellEachOther(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	for _, secret := range []string{"one", "two"} {
		w.add(w.actor.Workspace, "openai", "openai", "", secret, w.actor.Workspace)
	}
	srv := natstest.New(t)
	first := w.instance(natstest.Bus(t, srv, subject.CredentialBroker))
	second := w.instance(natstest.Bus(t, srv, subject.CredentialBroker))
	second.take() // so that it knows the pool
	a := first.take()
	other := first.take(a.ID) // so that its use is recorded
	first.Report(t.Context(), other, pool.Outcome{Reason: pool.OK})
	first.db.Close()

	first.Report(t.Context(), a, pool.Outcome{Reason: pool.RateLimited, Status: 429, RetryAfter: time.Hour, Raw: "retry-after: 3600"})
	within(t, soon, "the second knows the cooldown", func() bool { return parked(second.state(a.ID)) })
	within(t, soon, "the second knows of a token and of the health", func() bool {
		s := second.state(a.ID)
		return s.Health < 91 && s.Tokens < 49 // one that it took itself, one of the first's
	})
	if got := second.take(); got.ID != other.ID {
		t.Error("the second still uses the account")
	}
	// It uses what it read last.
	for range 3 {
		b := first.take()
		if b.ID != other.ID {
			t.Error("the first uses the account that it has parked")
		}
		first.Report(t.Context(), b, pool.Outcome{Reason: pool.OK})
	}
	first.stop()
	second.stop()
	third := w.instance(nil)
	if s := third.state(a.ID); !parked(s) || s.Limits[0].Raw != "retry-after: 3600" {
		t.Errorf("one that is started later knows %+v, want the cooldown", s)
	}
}

func TestWhatIsWrittenComesBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.add(w.actor.Workspace, "openai", "openai", "", "one", w.actor.Workspace)
	w.add(w.actor.Workspace, "openai", "openai", "", "two", w.actor.Workspace)
	first := w.instance(nil)
	second := w.instance(nil)
	second.take()
	a := first.take()
	for range 3 {
		first.Report(t.Context(), first.take(), pool.Outcome{Reason: pool.OK, Model: "gpt-5", Tokens: price.Tokens{Input: 1000, CacheRead: 400, Output: 40}})
	}
	first.Report(t.Context(), a, pool.Outcome{Reason: pool.QuotaExhausted, Status: 403})
	// Without a bus they exchange limits through the database.
	within(t, soon, "the second has read of the limit", func() bool { return parked(second.state(a.ID)) })
	first.stop()
	third := w.instance(nil)
	if s := third.state(a.ID); s.Health > 81 || s.Limits[0].Step != 1 {
		t.Errorf("one that is started later knows %+v, want health 80 and the first step of the ladder", s)
	}
	stats, err := w.store.Stats(t.Context(), w.actor.Workspace)
	if err != nil {
		t.Fatal(err)
	}
	want := []store.Stat{
		{Workspace: w.actor.Workspace, Provider: "openai", Account: a.ID, Reason: pool.OK, Requests: 3, TokensIn: 3000, TokensOut: 120, CostMicros: 3 * (750 + 50 + 400)},
		{Workspace: w.actor.Workspace, Provider: "openai", Account: a.ID, Reason: pool.QuotaExhausted, Requests: 1},
	}
	if diff := cmp.Diff(want, stats); diff != "" {
		t.Errorf("statistics (-want +got):\n%s", diff)
	}
}

func TestSettingsReachOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	for range 2 {
		w.add(w.actor.Workspace, "openai", "openai", "", "x", w.actor.Workspace)
	}
	srv := natstest.New(t)
	first := w.instance(natstest.Bus(t, srv, subject.CredentialBroker))
	second := w.instance(natstest.Bus(t, srv, subject.CredentialBroker))
	turns := func() bool {
		a, b := second.take(), second.take()
		return a.ID != b.ID
	}
	set := func(settings string) {
		t.Helper()
		err := w.store.ChangeSettings(t.Context(), w.actor.Workspace, "openai", store.Event{Origin: "workspace", Service: "test"},
			func([]byte) ([]byte, string, error) { return []byte(settings), "settings", nil })
		if err != nil {
			t.Fatal(err)
		}
	}
	if turns() {
		t.Error("sticky takes turns")
	}
	set(`{"strategy": "round-robin", "max_tokens": 5, "initial_tokens": 5}`)
	first.Forget(w.actor.Workspace)
	within(t, soon, "the second takes turns", turns)
	set(`{"strategy": "worst"}`)
	first.Forget(w.actor.Workspace)
	await(t, "the second is sticky, as by default", func() bool { return !turns() })
}

func TestEveryAccountParked(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	for range 2 {
		w.add(w.actor.Workspace, "openai", "openai", "", "x", w.actor.Workspace)
	}
	i := w.instance(nil)
	for range 2 {
		i.Report(t.Context(), i.take(), pool.Outcome{Reason: pool.RateLimited, RetryAfter: time.Hour})
	}
	_, err := i.Select(t.Context(), pool.Request{Actor: w.actor, Provider: "openai"})
	e, ok := errors.AsType[*pool.Exhausted](err)
	if !ok || !errors.Is(err, pool.ErrExhausted) || e.Members != 2 || e.Reason != pool.RateLimited || time.Until(e.Back) < 59*time.Minute {
		t.Errorf("Select = %v (%+v), want an Exhausted for an hour", err, e)
	}
}

// An account that begins well and then fails is parked, like one that fails at once, every time.
func TestFailsAfterItBegan(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	for range 2 {
		w.add(w.actor.Workspace, "openai", "openai", "", "x", w.actor.Workspace)
	}
	i := w.instance(nil)
	for _, reason := range []pool.Reason{pool.QuotaExhausted, pool.RateLimited} {
		a := i.take()
		i.Began(a)
		i.Report(t.Context(), a, pool.Outcome{Reason: reason, Status: 200})
		if s := i.state(a.ID); !parked(s) || s.Limits[0].Reason != reason || s.Health > 95 {
			t.Errorf("after %s: %+v, want it parked, at the cost of health", reason, s)
		}
	}
}

// Model families are limited separately if the provider does so.
func TestModelFamilies(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.add(w.actor.Workspace, "anthropic", "anthropic-api-key", "", "x", w.actor.Workspace)
	i := w.instance(nil)
	take := func(model string) (pool.Account, error) {
		return i.Select(t.Context(), pool.Request{Actor: w.actor, Provider: "anthropic", Model: model})
	}
	a, err := take("claude-opus-4-1-20250805")
	if err != nil {
		t.Fatal(err)
	}
	i.Report(t.Context(), a, pool.Outcome{Reason: pool.RateLimited, RetryAfter: time.Hour})
	if _, err := take("claude-opus-4-20250514"); !errors.Is(err, pool.ErrExhausted) {
		t.Errorf("another opus: %v, want none", err)
	}
	if _, err := take("claude-haiku-4-5"); err != nil {
		t.Errorf("haiku: %v, want the account", err)
	}
}
