package pool_test

import (
	"testing"
	"time"

	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/pool"
)

// ends has an account answer well, its provider saying when the quota ends.
func (b *picker) ends(n int, in time.Duration) {
	b.t.Helper()
	var others []id.Account
	for i, a := range b.ids {
		if i != n {
			others = append(others, a)
		}
	}
	k := b.pick(pool.Query{Tried: others})
	b.pool.Report(b.now, k, pool.Outcome{Reason: ok, Ends: in})
}

// Quotas that end soon are used first, later ones are saved, and unknown ones are in between.
func TestQuotaEnds(t *testing.T) {
	t.Parallel()
	b := newPicker(t, 4, with(pool.Hybrid))
	b.ends(1, 5*time.Hour)
	b.ends(2, 4*time.Hour)
	b.ends(3, 2*time.Hour)
	b.after(50 * time.Minute)
	b.ends(0, 0)
	b.want("an unknown end, although just used", b.use(none, ok), "a")
	b.after(11 * time.Minute)
	b.want("what ends within the hour", b.use(none, ok, ok, ok), "ddd")
	b.want("or whichever is left", b.use(none, limited, ok), "da")
	b.after(time.Hour)
	b.want("an end that has passed is unknown", b.use(pool.Query{Tried: b.ids[:1]}, ok), "d")
	b.after(time.Hour)
	b.want("the next one", b.use(pool.Query{Tried: b.ids[3:]}, ok), "c")
	b.want("a saved one, if there is no other", b.use(pool.Query{Tried: []id.Account{b.ids[0], b.ids[2], b.ids[3]}}, ok), "b")

	// A session stays with its account, for the provider's cache, if quotas end at about the
	// same time.
	b = newPicker(t, 3, with(pool.Hybrid))
	mine := pool.Query{Session: id.New[id.Session]()}
	b.ends(1, 40*time.Minute)
	b.want("what ends within the hour", b.use(mine, ok), "b")
	b.ends(2, 30*time.Minute)
	b.want("stays", b.use(mine, ok), "b")

	// Nor does it leave for a quota that ends sooner; only new sessions begin there.
	b = newPicker(t, 2, with(pool.Hybrid))
	b.want("the session begins", b.use(pool.Query{Session: mine.Session, Tried: b.ids[:1]}, ok), "b")
	b.ends(0, 30*time.Minute)
	b.want("stays", b.use(mine, ok, ok), "bb")
	b.want("a new session", b.use(pool.Query{Session: id.New[id.Session]()}, ok), "a")

	// A quota of minutes is always about to end, and is ignored.
	b = newPicker(t, 2, with(pool.Hybrid))
	b.ends(1, 40*time.Second)
	b.after(time.Second)
	b.want("the one that was not used", b.use(none, ok), "a")
}

// The ends of quotas matter only to hybrid, and only if a provider tells them.
func TestQuotaEndsElsewhere(t *testing.T) {
	t.Parallel()
	for _, s := range []pool.Strategy{pool.Sticky, pool.RoundRobin} {
		with, without := newPicker(t, 3, with(s)), newPicker(t, 3, with(s))
		for n := range 3 {
			with.ends(n, time.Duration(3-n)*time.Hour)
			without.ends(n, 0)
		}
		with.after(150 * time.Minute)
		without.after(150 * time.Minute)
		with.want(string(s), with.use(none, ok, ok, limited, ok, ok), without.use(none, ok, ok, limited, ok, ok))
	}
}
