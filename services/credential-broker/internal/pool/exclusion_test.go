package pool_test

import (
	"errors"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/pool"
)

func asExhausted(err error, e **pool.Exhausted) bool { return errors.As(err, e) }

// Requests that every account denies have no effect on other requests.
func TestDenied(t *testing.T) {
	t.Parallel()
	for _, s := range []pool.Strategy{pool.Sticky, pool.RoundRobin, pool.Hybrid} {
		b := newPicker(t, 3, with(s))
		wrong := pool.Query{Family: "opus", Model: "opus-x"}
		for range 20 {
			k := b.pick(wrong)
			b.pool.Report(b.now, k, pool.Outcome{Reason: quota, Denied: true, Status: 403})
		}
		for i, st := range b.pool.States(b.now) {
			if st.Health != 100 || len(st.Limits) > 0 {
				t.Errorf("%s: account %d has health %v and limits %+v, want neither touched", s, i, st.Health, st.Limits)
			}
		}
		if got := b.use(pool.Query{Family: "opus", Model: "opus-y"}, ok, ok, ok); contains(got, '-') {
			t.Errorf("%s: others of the family go to %s, want accounts", s, got)
		}
		if got := b.use(wrong, ok, ok, ok); contains(got, '-') {
			t.Errorf("%s: the next request for the model goes to %s, want accounts", s, got)
		}
	}

	// If another account serves the same request, requests for the model go to accounts that
	// may serve it.
	b := newPicker(t, 3, nil)
	opus := pool.Query{Model: "opus-x"}
	b.deny(opus, 2)
	b.want("passed over", b.use(opus, ok, ok), "cc")
	for i, st := range b.pool.States(b.now)[:2] {
		l := pool.Limit{Family: pool.PassedOver + "opus-x", At: b.now, Until: b.now.Add(10 * time.Minute), Soon: b.now.Add(10 * time.Minute), Reason: pool.PermissionDenied, Status: 403}
		if diff := cmp.Diff([]pool.Limit{l}, st.Limits); diff != "" {
			t.Errorf("account %d does not say that it is passed over (-want +got):\n%s", i, diff)
		}
	}
	b.want("for that model only", b.use(pool.Query{Model: "haiku"}, ok), "a")
	b.pool.SetMembers(b.now, b.now.Add(time.Second), pool.Bare([]id.Account{b.ids[1], b.ids[2], b.ids[0]}))
	b.want("also in their new places", b.use(opus, ok), "c")
	b.want("when the other is parked they are asked", b.use(pool.Query{Model: "opus-x", Tried: b.ids[2:]}, ok), "a")
	b.want("and forgiven when they may after all", b.use(opus, ok), "a")

	// Without a model nothing is remembered.
	b = newPicker(t, 2, nil)
	b.deny(none, 1)
	b.want("no model", b.use(none, ok), "a")
}

// deny has n accounts deny one request, and the next one serve it.
func (b *picker) deny(r pool.Query, n int) {
	b.t.Helper()
	for range n {
		k := b.pick(r)
		b.pool.Report(b.now, k, pool.Outcome{Reason: quota, Denied: true})
		r.Tried, r.Denied = append(r.Tried, k.Account), append(r.Denied, k.Account)
	}
	b.use(r, ok)
}

// If all accounts that were asked deny a request, the next requests are spread as before.
func TestDeniedByAll(t *testing.T) {
	t.Parallel()
	for _, s := range []pool.Strategy{pool.RoundRobin, pool.Hybrid} {
		for _, n := range []int{3, 6} {
			b := newPicker(t, n, func(c *pool.Settings) { c.Strategy, c.Stickiness, c.SwitchThreshold = s, 0, 0 })
			wrong := pool.Query{Model: "opus-x"}
			for range min(n, 5) {
				k := b.pick(wrong)
				b.pool.Report(b.now, k, pool.Outcome{Reason: quota, Denied: true, Status: 403})
				wrong.Tried, wrong.Denied = append(wrong.Tried, k.Account), append(wrong.Denied, k.Account)
			}
			served := map[rune]bool{}
			for range 4 * n {
				for _, name := range b.use(pool.Query{Model: "opus-x"}, ok) {
					served[name] = true
				}
				b.after(time.Second)
			}
			if len(served) != n {
				t.Errorf("%s: %d of %d accounts are used", s, len(served), n)
			}
		}
	}
}

// An exclusion is announced like a limit, and ends when the account is reset; its end is announced, too.
func TestPassedOverIsTold(t *testing.T) {
	t.Parallel()
	b, other := newPicker(t, 2, nil), newPicker(t, 2, nil)
	opus := pool.Query{Model: "opus-x"}
	b.deny(opus, 1)
	states := b.pool.Changes(b.now, pool.ToStore)
	i := slices.IndexFunc(states, func(s pool.State) bool { return s.Account == b.ids[0] })
	if i < 0 || len(states[i].Limits) != 1 {
		t.Fatalf("what is to be written is %+v, want that a is passed over", states)
	}
	other.pool.RestoreLimits(other.now, b.ids[0], states[i].Limits...)
	other.want("another instance passes over", other.use(opus, ok), "b")
	b.after(time.Second)
	b.pool.Reset(b.now, pool.Order{Account: b.ids[0], Asked: b.now})
	b.pool.Switch(b.now, b.ids[0])
	b.want("as new", b.use(opus, ok), "a")
	if l := b.state().Limits; len(l) != 1 || !l[0].Until.IsZero() {
		t.Errorf("limits %+v, want the end of one", l)
	}
	other.after(time.Second)
	other.pool.Merge(other.now, uuid.New(), b.state())
	other.pool.Switch(other.now, b.ids[0])
	other.want("its end is heard", other.use(opus, ok), "a")
}

// All accounts at an unreachable server are passed over until one of them serves a request.
func TestServerAway(t *testing.T) {
	t.Parallel()
	b := newPicker(t, 4, with(pool.RoundRobin))
	all := pool.Bare(b.ids)
	for i := range all[:3] {
		all[i].Base = &url.URL{Scheme: "https", Host: "dead"}
	}
	b.pool.SetMembers(b.now, b.now, all)
	away := func(k pool.Ticket) {
		b.pool.Report(b.now, k, pool.Outcome{Reason: pool.Unreachable, Unsent: true, Later: time.Minute})
	}
	away(b.pick(none))
	b.want("after one failure", b.use(none, ok, ok, ok), "ddd")
	b.after(time.Minute)
	k := b.pick(none)
	if k.Account == b.ids[3] {
		t.Errorf("a minute later it is not tried again")
	}
	away(k)
	b.want("and left again", b.use(none, ok, ok), "dd")
	k = b.pick(pool.Query{Tried: b.ids[3:]})
	b.pool.Report(b.now, k, pool.Outcome{Reason: ok})
	got := b.use(none, ok, ok, ok, ok)
	for _, name := range "abcd" {
		if !contains(got, name) {
			t.Errorf("once it is back, requests go to %s", got)
		}
	}
}

// An account without a token is passed over for a time, and is not parked.
func TestNoToken(t *testing.T) {
	t.Parallel()
	for _, s := range []pool.Strategy{pool.Sticky, pool.RoundRobin, pool.Hybrid} {
		b := newPicker(t, 2, with(s))
		session := pool.Query{Session: id.New[id.Session]()}
		b.want("first", b.use(session, ok), "a")
		k := b.pick(pool.Query{Tried: b.ids[1:]})
		b.pool.Report(b.now, k, pool.Outcome{Reason: pool.Unreachable, Unsent: true, Later: 5 * time.Second})
		b.want("the other one", b.use(session, ok, ok), "bb")
		b.want("it alone", b.use(pool.Query{Tried: b.ids[1:]}, pool.Cancelled), "a")
		if st := b.state(); st.Health != 100 || b.parked() > 0 {
			t.Errorf("%s: health %v and limits %+v, want neither touched", s, st.Health, st.Limits)
		}
		b.after(5 * time.Second)
		if got := b.use(none, ok) + b.use(none, ok); s == pool.RoundRobin && !contains(got, 'a') {
			t.Errorf("round-robin chose %s after that time, want both", got)
		}
	}
}

// Models for which an account was passed over are forgotten, whether that ran out or was ended.
func TestDeniedModelsAreForgotten(t *testing.T) {
	t.Parallel()
	b := newPicker(t, 2, nil)
	for i := range 20 {
		r := pool.Query{Model: string(rune('A' + i))}
		b.deny(r, 1)
		if i%2 == 0 {
			b.pool.Reset(b.now, pool.Order{Account: b.ids[0], Asked: b.now})
			b.pool.Reset(b.now, pool.Order{Account: b.ids[1], Asked: b.now})
		}
		b.after(21 * time.Minute)
	}
	if n := b.pool.Exclusions(b.ids[0]) + b.pool.Exclusions(b.ids[1]); n == 0 || n > 4 {
		t.Errorf("%d models are remembered", n)
	}
}

// A bounded number of models is remembered.
func TestDeniedModelsAreBounded(t *testing.T) {
	t.Parallel()
	b := newPicker(t, 2, nil)
	for i := range 1000 {
		r := pool.Query{Model: string(rune('A' + i))}
		b.deny(r, 1)
		b.want("the latest is known", b.use(r, ok), "b")
	}
	if n := b.pool.Exclusions(b.ids[0]); n > 65 {
		t.Errorf("%d models are remembered", n)
	}
}
