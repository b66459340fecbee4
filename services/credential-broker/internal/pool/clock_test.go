package pool_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/pool"
)

// jump has the machine sleep for d, or sets its clock back. Later times are the new clock's.
func (b *picker) jump(d time.Duration) {
	b.after(time.Second)
	b.pool.Jump(d)
	b.after(d)
}

// Limits end while the machine sleeps; afterwards instances understand each other's dates.
func TestClockJumpsAhead(t *testing.T) {
	t.Parallel()
	b := newPicker(t, 2, nil)
	b.pool.Report(b.now, b.pick(none), pool.Outcome{Reason: limited, RetryAfter: time.Hour})
	b.want("parked", b.use(pool.Query{Tried: b.ids[1:]}, ok), "-")
	b.jump(2 * time.Hour)
	b.want("back after the sleep", b.use(pool.Query{Tried: b.ids[1:]}, ok), "a")

	at := b.now.Add(-time.Minute)
	theirs := pool.Limit{At: at, Until: at.Add(time.Hour), Soon: at.Add(time.Hour), Reason: limited}
	b.pool.Merge(b.now, uuid.UUID{1}, pool.State{Account: b.ids[1], Limits: []pool.Limit{theirs}})
	b.want("another instance's word counts", b.use(pool.Query{Tried: b.ids[:1]}, ok), "-")
	b.pool.RestoreLimits(b.now, b.ids[1], pool.Limit{At: b.now})
	b.want("so does a reset", b.use(pool.Query{Tried: b.ids[:1]}, ok), "b")

	b.after(time.Second)
	b.pool.Report(b.now, b.pick(pool.Query{Tried: b.ids[:1]}), pool.Outcome{Reason: quota})
	for _, l := range b.pool.States(b.now)[1].Limits {
		if !l.At.Equal(b.now) || !l.Until.Equal(b.now.Add(time.Minute)) {
			t.Errorf("it tells of a minute from %v to %v, want from %v on", l.At, l.Until, b.now)
		}
	}
}

// A clock that is set back makes no window longer, and other instances' limits still count.
func TestClockJumpsBack(t *testing.T) {
	t.Parallel()
	b := newPicker(t, 2, nil)
	b.pool.Report(b.now, b.pick(none), pool.Outcome{Reason: limited, RetryAfter: time.Minute})
	told := b.state().Limits
	b.jump(-3 * time.Hour)
	if got := b.parked(); got != 59*time.Second {
		t.Errorf("parked for %v after the jump, want 59 s", got)
	}
	b.pool.RestoreLimits(b.now, b.ids[0], told...) // as it is stored
	b.after(time.Minute)
	b.want("back in time", b.use(pool.Query{Tried: b.ids[1:]}, ok), "a")
	if h := b.state().Health; h < 90 {
		t.Errorf("health %v, want what it was", h)
	}
	_, err := b.pool.Pick(b.now, pool.Query{Tried: b.ids})
	if e := new(pool.Exhausted); !asExhausted(err, &e) || !e.Back.Equal(b.now) {
		t.Errorf("Pick = %v, want to come back now", err)
	}
	b.pool.Merge(b.now, uuid.UUID{1}, pool.State{Account: b.ids[1], Limits: []pool.Limit{{At: b.now, Until: b.now.Add(time.Hour), Soon: b.now.Add(time.Hour), Reason: limited}}})
	b.want("another instance's word counts", b.use(pool.Query{Tried: b.ids[:1]}, ok), "-")
}

// After the clock was set back a little, a stored limit, dated by the clock as it was, is
// recognized as the one that is known here or was cleared here.
func TestClockJumpsBackALittle(t *testing.T) {
	t.Parallel()
	for _, back := range []time.Duration{2 * time.Second, time.Minute, 5 * time.Minute, 9 * time.Minute} {
		b := newPicker(t, 2, nil)
		only := pool.Query{Tried: b.ids[1:]}
		b.pool.Report(b.now, b.pick(only), pool.Outcome{Reason: limited, RetryAfter: time.Minute})
		b.pool.RestoreLimits(b.now, b.ids[1], pool.Limit{At: b.now, Until: b.now.Add(time.Minute), Soon: b.now.Add(time.Minute), Reason: limited})
		stored := b.pool.States(b.now)
		again := func() {
			for _, s := range stored {
				b.pool.RestoreLimits(b.now, s.Account, s.Limits...)
			}
		}
		b.jump(-back)
		again()
		b.want("parked as long as it was", b.use(only, ok), "-")
		b.after(59 * time.Second)
		again()
		b.want("its own is back", b.use(only, ok), "a")
		again()
		b.want("and stays", b.use(only, ok), "a")
		b.want("what was read is back too", b.use(pool.Query{Tried: b.ids[:1]}, ok), "b")
		again()
		b.want("and stays", b.use(pool.Query{Tried: b.ids[:1]}, ok), "b")

		// What is learned now counts here and for other instances.
		b.pool.Report(b.now, b.pick(only), pool.Outcome{Reason: limited, RetryAfter: time.Hour})
		b.want("parked again", b.use(only, ok), "-")
		other := pool.NewPool(b.now, pool.Defaults())
		other.SetMembers(b.now, b.now, pool.Bare(b.ids))
		other.RestoreLimits(b.now, b.ids[0], stored[0].Limits...)
		other.Merge(b.now, uuid.UUID{1}, b.state())
		if got := other.States(b.now)[0].Limits; len(got) != 1 || got[0].Until.Sub(b.now) != time.Hour {
			t.Errorf("set back by %v: another instance knows %+v, want an hour", back, got)
		}
	}
}

// Families whose limits are over make room for new ones.
func TestFamiliesMakeRoom(t *testing.T) {
	t.Parallel()
	b := newPicker(t, 2, nil)
	stale := make([]pool.Limit, 40)
	for i := range 40 {
		family := string(rune('A' + i))
		stale[i] = pool.Limit{Family: family, At: b.now, Until: b.now.Add(time.Minute), Soon: b.now.Add(time.Minute), Reason: limited}
		r := pool.Query{Family: family, Tried: b.ids[1:]}
		b.want("a model of its time", b.use(r, limited), "a")
		b.want("is parked", b.use(r, ok), "-")
		b.want("others are not", b.use(pool.Query{Family: "else", Tried: b.ids[1:]}, ok), "a")
		b.after(time.Hour)
	}
	// Also after a restart, when all of them are restored.
	b = newPicker(t, 2, nil)
	b.after(24 * time.Hour)
	b.pool.RestoreLimits(b.now, b.ids[0], stale...)
	b.want("a model", b.use(pool.Query{Family: "now", Tried: b.ids[1:]}, limited), "a")
	b.want("is parked alone", b.use(pool.Query{Family: "else", Tried: b.ids[1:]}, ok), "a")
}

// A request in flight during a switch does not bring its session back.
func TestSwitchInFlight(t *testing.T) {
	t.Parallel()
	for _, s := range []pool.Strategy{pool.Sticky, pool.Hybrid} {
		b := newPicker(t, 2, with(s))
		mine := pool.Query{Session: id.New[id.Session]()}
		flight := b.pick(mine)
		b.want("to the first", b.name(flight.Account), "a")
		b.pool.Switch(b.now, b.ids[1])
		b.pool.Began(b.now, &flight)
		b.pool.Report(b.now, flight, pool.Outcome{Reason: ok})
		b.want("the session follows", b.use(mine, ok, ok), "bb")
	}
}

// An instance that restarted its counters counts from its first token on.
func TestCountersBeginAnew(t *testing.T) {
	t.Parallel()
	b := newPicker(t, 1, nil)
	tell := func(since time.Time, taken uint64) {
		b.pool.Merge(b.now, uuid.UUID{1}, pool.State{Account: b.ids[0], Since: since, Counters: pool.Counters{Taken: taken}})
	}
	tell(b.now, 20)
	tell(b.now.Add(time.Minute), 5)
	if got := b.state().Tokens; got != 25 {
		t.Errorf("%v tokens after 20 and, anew, 5 were taken: want 25", got)
	}
}
