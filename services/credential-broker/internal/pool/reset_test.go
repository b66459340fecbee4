package pool_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/pool"
)

func TestOrders(t *testing.T) {
	t.Parallel()
	now := time.Now()
	p := pool.NewPool(now, pool.Defaults())
	a, b := id.New[id.Account](), id.New[id.Account]()
	p.SetMembers(now, now, pool.Bare([]id.Account{a, b}))
	session := id.New[id.Session]()
	pick := func(when string, want id.Account) {
		t.Helper()
		k, err := p.Pick(now, pool.Query{Session: session})
		if err != nil || k.Account != want {
			t.Errorf("%s: Pick = %v, %v, want %v", when, k.Account, err, want)
		}
		p.Report(now, k, pool.Outcome{Reason: pool.OK})
	}
	pick("at first", a)
	asked := now.Add(time.Second)
	p.Switch(asked, b)
	pick("after a switch, also for a session that was served before", b)
	p.Switch(asked, a)
	pick("after the same order again", b)
	p.Switch(asked.Add(time.Second), id.New[id.Account]())
	pick("after a switch to an unknown account", b)

	for range 3 {
		p.Report(now, pool.Ticket{Account: b}, pool.Outcome{Reason: pool.Overloaded})
	}
	health := func(when string, want float64) {
		t.Helper()
		if got := p.States(now)[1].Health; got != want {
			t.Errorf("%s: health %v, want %v", when, got, want)
		}
	}
	health("after failures", 70)
	p.Reset(now, pool.Order{Account: b, Asked: asked, Known: asked.Add(time.Millisecond)})
	health("after a reset that is in what was read", 70)
	p.Reset(now, pool.Order{Account: b, Asked: asked.Add(time.Second)})
	health("after a reset", 100)
	p.Report(now, pool.Ticket{Account: b}, pool.Outcome{Reason: pool.Overloaded})
	p.Reset(now, pool.Order{Account: b, Asked: asked.Add(time.Second)})
	health("after the same reset again", 90)
}

// A reset ends limits that were learned before it, even those that are not stored yet, and none
// that were learned later.
func TestResetEndsLimits(t *testing.T) {
	t.Parallel()
	now := time.Now().Truncate(time.Microsecond)
	limits := func(p *pool.Pool) (set int) {
		for _, l := range p.States(now)[0].Limits {
			if !l.Until.IsZero() {
				set++
			}
		}
		return set
	}
	a := id.New[id.Account]()
	fresh := func() *pool.Pool {
		p := pool.NewPool(now.Add(-time.Hour), pool.Defaults())
		p.SetMembers(now, now, pool.Bare([]id.Account{a}))
		return p
	}
	limit := func(family string, at time.Time) pool.Limit {
		return pool.Limit{Family: family, At: at, Until: now.Add(time.Hour), Soon: now.Add(time.Hour), Reason: pool.RateLimited}
	}

	learned := fresh()
	for _, family := range []string{"opus", "haiku"} {
		k, err := learned.Pick(now, pool.Query{Family: family})
		if err != nil {
			t.Fatal(err)
		}
		learned.Report(now, k, pool.Outcome{Reason: pool.RateLimited, RetryAfter: time.Hour})
	}
	learned.Reset(now, pool.Order{Account: a, Asked: now.Add(-time.Second)}) // by a clock that is behind
	if n := limits(learned); n > 0 {
		t.Errorf("%d limits after a reset, want none", n)
	}
	if states := learned.Changes(now, pool.ToStore); len(states) != 1 || len(states[0].Limits) != 2 {
		t.Errorf("to be written is %+v, want that both limits have ended", states)
	}
	if _, err := learned.Pick(now, pool.Query{Family: "opus"}); err != nil {
		t.Errorf("Pick after a reset = %v", err)
	}
	learned.Merge(now, uuid.New(), pool.State{Account: a, Limits: []pool.Limit{limit("sonnet", now.Add(-time.Minute))}})
	if n := limits(learned); n > 0 {
		t.Error("another instance's limit of before the reset counts")
	}
	learned.Merge(now, uuid.New(), pool.State{Account: a, Limits: []pool.Limit{limit("sonnet", now)}})
	if n := limits(learned); n != 1 {
		t.Error("another instance's limit of after the reset does not count")
	}

	restored := fresh()
	restored.RestoreLimits(now, a, limit("opus", now.Add(-time.Minute)), limit("haiku", now.Add(-time.Second)))
	restored.RestoreHealth(now, a, 50, now)
	restored.Reset(now, pool.Order{Account: a, Asked: now.Add(-10 * time.Second), Known: now})
	if n, health := limits(restored), restored.States(now)[0].Health; n != 1 || health != 50 {
		t.Errorf("%d limits and health %v after an old reset, want the newer limit and 50", n, health)
	}
}
