package pool_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/pool"
)

var start = time.Date(2026, 11, 22, 9, 0, 0, 0, time.UTC)

// picker is a pool with a clock and names for its accounts: a, b, c…
type picker struct {
	t    *testing.T
	now  time.Time
	pool *pool.Pool
	ids  []id.Account
}

func account(n int) id.Account {
	return id.Account{UUID: uuid.NewSHA1(uuid.NameSpaceURL, []byte{byte(n >> 8), byte(n)})}
}

func accounts(n int) []id.Account {
	all := make([]id.Account, n)
	for i := range all {
		all[i] = account(i)
	}
	return all
}

func newPicker(t *testing.T, n int, change func(*pool.Settings)) *picker {
	t.Helper()
	s := pool.Defaults()
	if change != nil {
		change(&s)
	}
	if err := s.Validate(); err != nil {
		t.Fatal(err)
	}
	b := &picker{t: t, now: start, pool: pool.NewPool(start, s), ids: accounts(n)}
	b.pool.SetMembers(b.now, b.now, pool.Bare(b.ids))
	return b
}

func with(s pool.Strategy) func(*pool.Settings) {
	return func(c *pool.Settings) { c.Strategy = s }
}

func (b *picker) name(a id.Account) string {
	for i, x := range b.ids {
		if x == a {
			return string(rune('a' + i))
		}
	}
	return "?"
}

func (b *picker) after(d time.Duration) { b.now = b.now.Add(d) }

func (b *picker) pick(r pool.Query) pool.Ticket {
	b.t.Helper()
	k, err := b.pool.Pick(b.now, r)
	if err != nil {
		b.t.Fatalf("Pick(%+v) = %v", r, err)
	}
	return k
}

// use picks once for each reason, reports it, and returns the accounts that were picked; -
// stands for none.
func (b *picker) use(r pool.Query, reasons ...pool.Reason) string {
	b.t.Helper()
	got := ""
	for _, reason := range reasons {
		k, err := b.pool.Pick(b.now, r)
		if errors.Is(err, pool.ErrExhausted) {
			got += "-"
			continue
		}
		got += b.name(k.Account)
		b.pool.Report(b.now, k, pool.Outcome{Reason: reason})
	}
	return got
}

func (b *picker) want(what, got, want string) {
	b.t.Helper()
	if got != want {
		b.t.Errorf("%s: %q, want %q", what, got, want)
	}
}

// state is the first account's.
func (b *picker) state() pool.State { return b.pool.States(b.now)[0] }

// parked is how long the first account is still parked.
func (b *picker) parked() time.Duration {
	for _, l := range b.state().Limits {
		if l.Family == "" && !l.Until.IsZero() {
			return l.Until.Sub(b.now)
		}
	}
	return 0
}

const (
	ok      = pool.OK
	limited = pool.RateLimited
	quota   = pool.QuotaExhausted
)

var none pool.Query

func TestSticky(t *testing.T) {
	t.Parallel()
	b := newPicker(t, 3, nil)
	b.want("stays", b.use(none, ok, ok, ok), "aaa")
	b.want("goes on", b.use(none, limited, ok, ok), "abb")
	b.after(31 * time.Second)
	b.want("does not go back", b.use(none, ok, ok), "bb")
	b.want("next by cursor", b.use(none, limited, ok, limited, ok), "bcca")
}

func TestRoundRobin(t *testing.T) {
	t.Parallel()
	b := newPicker(t, 3, with(pool.RoundRobin))
	b.want("in turn", b.use(none, ok, ok, ok, ok), "abca")
	b.want("without the parked", b.use(none, limited, ok, ok, ok), "bcac")
	b.want("within a session too", b.use(pool.Query{Session: id.New[id.Session]()}, ok, ok, ok), "aca")
}

func TestHybrid(t *testing.T) {
	t.Parallel()
	b := newPicker(t, 2, with(pool.Hybrid))
	got := ""
	for range 60 {
		got += b.use(none, ok)
	}
	// The current account has a bonus of 150. Each token it spends costs 10 points, and its
	// first use costs 360. Another account takes over once it is better by 100.
	if want := "ab"; got[:1] != want[:1] || !contains(got, 'b') {
		t.Errorf("hybrid chose %s, want both", got)
	}
	b = newPicker(t, 2, with(pool.Hybrid))
	b.want("health", b.use(none, quota, ok), "ab")
	b.after(90 * time.Second)
	b.want("stays after the probe is due", b.use(none, ok, ok), "bb")

	// Three failures make an account unhealthy: it is chosen last.
	b = newPicker(t, 2, with(pool.Hybrid))
	for range 3 {
		k := b.pick(pool.Query{Tried: []id.Account{b.ids[1]}})
		b.pool.Report(b.now, k, pool.Outcome{Reason: pool.AuthFailed})
		b.after(10 * time.Second)
	}
	if h := b.state().Health; h > 41 || h < 40 {
		t.Errorf("health is %v, want 40 and what a minute mends", h)
	}
	for range 100 {
		if got := b.use(none, ok); got != "b" {
			t.Fatalf("chose %s, want b while it is healthy", got)
		}
	}
	b.want("an unhealthy one before none", b.use(none, limited, ok), "ba")
}

func contains(s string, c rune) bool { return strings.ContainsRune(s, c) }

func TestTried(t *testing.T) {
	t.Parallel()
	for _, s := range []pool.Strategy{pool.Sticky, pool.RoundRobin, pool.Hybrid} {
		b := newPicker(t, 5, with(s))
		var tried []id.Account
		seen := ""
		for range 5 {
			k := b.pick(pool.Query{Tried: tried})
			tried = append(tried, k.Account)
			seen += b.name(k.Account)
			b.pool.Report(b.now, k, pool.Outcome{Reason: pool.Overloaded})
		}
		for _, c := range "abcde" {
			if !contains(seen, c) {
				t.Errorf("%s tried %s, want each once", s, seen)
			}
		}
		_, err := b.pool.Pick(b.now, pool.Query{Tried: tried})
		e, isIt := errors.AsType[*pool.Exhausted](err)
		if !isIt || !e.Back.Equal(b.now) || e.Reason != ok || e.Members != 5 {
			t.Errorf("%s: Pick when all were tried = %v, want an Exhausted of now", s, err)
		}
	}
}

func TestAffinity(t *testing.T) {
	t.Parallel()
	mine, other := pool.Query{Session: id.New[id.Session]()}, pool.Query{Session: id.New[id.Session]()}
	b := newPicker(t, 3, nil)
	b.want("first", b.use(mine, ok), "a")
	k := b.pick(other)
	b.pool.Report(b.now, k, pool.Outcome{Reason: limited})
	b.want("the next one", b.use(other, ok), "b")
	b.want("parked for all", b.use(mine, ok), "b")
	b.after(31 * time.Second)
	b.want("the account that served last", b.use(mine, ok), "b")

	b = newPicker(t, 3, with(pool.Hybrid))
	b.want("first", b.use(mine, ok), "a")
	for range 20 {
		b.use(none, ok)
	}
	b.want("its own while it is good enough", b.use(mine, ok), "a")
}

func TestLadder(t *testing.T) {
	t.Parallel()
	b := newPicker(t, 2, nil)
	for _, want := range []time.Duration{time.Minute, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 2 * time.Hour} {
		b.pool.SetSettings(b.now, b.now, pool.Defaults())
		k := b.pick(pool.Query{Tried: b.ids[1:]})
		b.pool.Report(b.now, k, pool.Outcome{Reason: quota})
		if got := b.parked(); got != want {
			t.Errorf("parked for %v, want %v", got, want)
		}
		b.after(want)
	}
	// A success resets the ladder.
	b.pool.Report(b.now, b.pick(pool.Query{Tried: b.ids[1:]}), pool.Outcome{Reason: ok})
	b.pool.Report(b.now, b.pick(pool.Query{Tried: b.ids[1:]}), pool.Outcome{Reason: quota})
	if got := b.parked(); got != time.Minute {
		t.Errorf("parked for %v after a success, want a minute", got)
	}
}

// Requests in flight that fail together count as one failure, even those that fail after its
// window is over.
func TestOneClimbForAWindow(t *testing.T) {
	t.Parallel()
	b := newPicker(t, 2, nil)
	var flight []pool.Ticket
	for range 100 {
		flight = append(flight, b.pick(none))
	}
	for _, k := range flight[:50] {
		b.pool.Report(b.now, k, pool.Outcome{Reason: quota})
	}
	if s := b.state(); b.parked() != time.Minute || s.Health != 80 {
		t.Errorf("parked for %v with health %v, want a minute and 80", b.parked(), s.Health)
	}
	b.after(2 * time.Minute)
	for _, k := range flight[50:75] {
		b.pool.Report(b.now, k, pool.Outcome{Reason: quota})
	}
	if got := b.parked(); got != time.Minute {
		t.Errorf("late failures parked it for %v, want a minute again", got)
	}
	// A longer wait that the provider asks for extends the window.
	b.pool.Report(b.now, flight[75], pool.Outcome{Reason: quota, RetryAfter: time.Hour})
	if got := b.parked(); got != time.Hour {
		t.Errorf("parked for %v, want an hour", got)
	}
}

func TestWaitsAreClamped(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		reason     pool.Reason
		wait, want time.Duration
	}{
		{limited, 0, 30 * time.Second},
		{limited, 12 * time.Second, 12 * time.Second},
		{limited, time.Millisecond, time.Second},
		{limited, 5 * time.Hour, 5 * time.Hour},
		{limited, 30 * 24 * time.Hour, 6 * time.Hour},
		{quota, 7 * 24 * time.Hour, 6 * time.Hour},
		{pool.AuthFailed, 0, 5 * time.Second},
		{pool.AuthFailed, time.Hour, 5 * time.Minute},
		{pool.Overloaded, 0, 0},
		{pool.Overloaded, time.Hour, 5 * time.Minute},
		{pool.Service, time.Hour, 0},
		{pool.Caller, time.Hour, 0},
		{pool.Unreachable, time.Hour, 0},
		{pool.Cancelled, time.Hour, 0},
	} {
		b := newPicker(t, 2, nil)
		b.pool.Report(b.now, b.pick(none), pool.Outcome{Reason: tt.reason, RetryAfter: tt.wait, Raw: "retry-after: x"})
		if got := b.parked(); got != tt.want {
			t.Errorf("%s with %v parks for %v, want %v", tt.reason, tt.wait, got, tt.want)
		}
		if l := b.state().Limits; tt.want > 0 && l[0].Raw != "retry-after: x" {
			t.Errorf("%s: the raw value is lost: %+v", tt.reason, l)
		}
	}
}

func TestOneProbe(t *testing.T) {
	t.Parallel()
	for _, s := range []pool.Strategy{pool.Sticky, pool.RoundRobin, pool.Hybrid} {
		b := newPicker(t, 2, with(s))
		b.pool.SetMembers(b.now, b.now, pool.Bare(b.ids[:1]))
		b.pool.SetMembers(b.now, b.now, pool.Bare(b.ids))
		onlyA := pool.Query{Tried: b.ids[1:]}
		b.pool.Report(b.now, b.pick(onlyA), pool.Outcome{Reason: limited})
		b.want("while it is parked", b.use(onlyA, ok), "-")
		b.after(30 * time.Second)
		probe := b.pick(onlyA)
		if !probe.Probe {
			t.Errorf("%s: the first request after a window is no probe", s)
		}
		b.want("beside the probe", b.use(onlyA, ok, ok), "--")
		b.pool.Report(b.now, probe, pool.Outcome{Reason: pool.Cancelled})
		probe = b.pick(onlyA)
		b.want("beside the second probe", b.use(onlyA, ok), "-")
		b.pool.Began(b.now, &probe)
		b.want("behind a probe that is being answered", b.use(onlyA, ok, ok), "aa")
		b.pool.Report(b.now, probe, pool.Outcome{Reason: ok})
		if s := b.state(); s.Health > 100 || len(s.Limits) != 1 || !s.Limits[0].Until.IsZero() {
			t.Errorf("after the probe: %+v", s)
		}
		// One that never answers does not keep the account for ever.
		b.pool.Report(b.now, b.pick(onlyA), pool.Outcome{Reason: limited})
		b.after(30 * time.Second)
		b.pick(onlyA)
		b.after(pool.ProbeTime)
		b.want("after a lost probe", b.use(onlyA, ok), "a")
	}
}

func TestLastUsable(t *testing.T) {
	t.Parallel()
	b := newPicker(t, 1, nil)
	for range 4 { // the ladder says up to two hours
		b.want("fails", b.use(none, quota), "a")
		b.want("parked", b.use(none, ok), "-")
		_, err := b.pool.Pick(b.now, none)
		if e, isIt := errors.AsType[*pool.Exhausted](err); !isIt || e.Back.Sub(b.now) != 5*time.Second || e.Reason != quota {
			t.Errorf("Pick = %v, want to come back in 5 s", err)
		}
		b.after(5 * time.Second)
	}
	b.want("what the provider asked for counts", b.use(none, ok), "a")
	b.pool.Report(b.now, b.pick(none), pool.Outcome{Reason: limited, RetryAfter: time.Minute})
	b.after(59 * time.Second)
	b.want("still parked", b.use(none, ok), "-")
	b.after(time.Second)
	b.want("back", b.use(none, ok), "a")

	// Of two accounts, the one that was parked last is tried; the other waits its time.
	b = newPicker(t, 2, nil)
	b.want("both", b.use(none, quota, quota), "ab")
	b.after(5 * time.Second)
	b.want("the last", b.use(none, quota, ok), "b-")
	b.after(5 * time.Second)
	b.want("the last again", b.use(none, ok, ok), "bb")
	// An account that remains when the others are removed is the last usable one.
	b = newPicker(t, 2, nil)
	b.want("one", b.use(none, quota), "a")
	b.after(10 * time.Second)
	b.pool.SetMembers(b.now, b.now, pool.Bare(b.ids[:1]))
	b.want("it remains", b.use(none, ok), "a")
}

func TestFamilies(t *testing.T) {
	t.Parallel()
	b := newPicker(t, 2, nil)
	opus, haiku := pool.Query{Family: "opus"}, pool.Query{Family: "haiku"}
	b.want("one family", b.use(opus, limited), "a")
	b.want("is parked", b.use(opus, ok), "b")
	b.want("the others are not", b.use(pool.Query{Family: "haiku", Tried: b.ids[1:]}, ok), "a")
	b.want("quota is the account's", b.use(pool.Query{Family: "haiku", Tried: b.ids[1:]}, quota), "a")
	b.want("so it is parked for all", b.use(pool.Query{Tried: b.ids[1:]}, ok), "-")
	b.want("opus goes on", b.use(opus, ok), "b")
	b.want("and haiku", b.use(haiku, ok), "b")

	// More families than there is room for count for the whole account.
	b = newPicker(t, 1, nil)
	for i := range 100 {
		k, err := b.pool.Pick(b.now, pool.Query{Family: string(rune('A' + i))})
		if err != nil {
			if i < 16 {
				t.Fatalf("family %d: %v", i, err)
			}
			break
		}
		b.pool.Report(b.now, k, pool.Outcome{Reason: limited})
		if i > 20 {
			t.Fatal("families are kept without bound")
		}
	}
	if n := len(b.state().Limits); n > 17 {
		t.Errorf("%d limits are kept", n)
	}
}

func TestTokens(t *testing.T) {
	t.Parallel()
	b := newPicker(t, 1, func(s *pool.Settings) { s.MaxTokens, s.InitialTokens = 3, 2 })
	tokens := func(want float64) {
		t.Helper()
		if got := b.state().Tokens; got < want-1e-6 || got > want+1e-6 {
			t.Errorf("%v tokens, want %v", got, want)
		}
	}
	tokens(2)
	k := b.pick(none)
	tokens(1)
	b.pool.Report(b.now, k, pool.Outcome{Reason: pool.Unreachable, Unsent: true})
	tokens(2)
	b.want("a lack of tokens refuses no request", b.use(none, ok, ok, ok, ok), "aaaa")
	tokens(0)
	b.after(time.Second)
	k = b.pick(none) // takes none: there is but a tenth of one
	b.pool.Report(b.now, k, pool.Outcome{Reason: pool.Unreachable, Unsent: true})
	tokens(0.1)
	b.after(24 * time.Hour)
	tokens(3)
	small := pool.Defaults()
	small.MaxTokens, small.InitialTokens = 2, 2
	b.pool.SetSettings(b.now, b.now, small)
	tokens(2)
	b.pool.SetSettings(b.now, b.now.Add(-time.Second), pool.Defaults()) // read before
	b.after(24 * time.Hour)
	tokens(2)
}

// An account whose key fails is not the last usable one if there is another, whose ladder would
// otherwise keep all requests away for hours.
func TestDeadKeyBesideTheLast(t *testing.T) {
	t.Parallel()
	for _, dead := range []bool{false, true} {
		b := newPicker(t, 2, nil)
		if !dead {
			b.pool.SetMembers(b.now, b.now, pool.Bare(b.ids[1:]))
		}
		good := time.Duration(0)
		for good == 0 && b.now.Before(start.Add(6*time.Hour)) {
			b.after(6 * time.Second)
			var tried []id.Account
			for {
				k, err := b.pool.Pick(b.now, pool.Query{Tried: tried})
				if err != nil {
					break
				}
				tried = append(tried, k.Account)
				out := pool.Outcome{Reason: quota}
				if b.name(k.Account) == "a" {
					out.Reason = pool.AuthFailed
				} else if b.now.Sub(start) > 12*time.Minute { // somebody has paid
					out.Reason, good = ok, b.now.Sub(start)
				}
				b.pool.Report(b.now, k, out)
			}
		}
		if good == 0 || good > 12*time.Minute+15*time.Second {
			t.Errorf("with a dead key beside it (%v) it answers after %v, want 12 min and a few seconds", dead, good)
		}
	}
	// If all keys fail, the account that was parked last is tried.
	b := newPicker(t, 2, nil)
	b.want("all fail", b.use(none, pool.AuthFailed, pool.AuthFailed), "ab")
	b.after(5 * time.Second)
	b.want("and are asked again", b.use(none, pool.AuthFailed), "b")
}

// If no account is ready, callers learn when the first one is back. A change counts at once,
// although the answer is cached.
func TestNobodyReady(t *testing.T) {
	t.Parallel()
	b := newPicker(t, 3, nil)
	for _, wait := range []time.Duration{time.Hour, time.Minute, 2 * time.Hour} {
		b.pool.Report(b.now, b.pick(none), pool.Outcome{Reason: limited, RetryAfter: wait})
	}
	back := func(when string, r pool.Query, want time.Duration, why pool.Reason) {
		t.Helper()
		_, err := b.pool.Pick(b.now, r)
		if e, isIt := errors.AsType[*pool.Exhausted](err); !isIt || e.Back.Sub(b.now) != want || e.Reason != why || e.Members != 3 {
			t.Errorf("%s: Pick = %#v, want to come back in %v", when, err, want)
		}
	}
	for range 3 {
		back("all are parked", none, time.Minute, limited)
	}
	b.after(50 * time.Millisecond)
	b.pool.Reset(b.now, pool.Order{Account: b.ids[2], Asked: b.now})
	b.want("one is back", b.use(none, ok), "c")

	// An account that one request has tried is ready for others.
	back("tried", pool.Query{Tried: b.ids[2:]}, 0, ok)
	b.want("for others", b.use(none, ok), "c")

	// The cached answer is for one family only.
	b = newPicker(t, 1, nil)
	opus, haiku := pool.Query{Family: "opus"}, pool.Query{Family: "haiku"}
	b.want("two families", b.use(opus, limited)+b.use(haiku, limited), "aa")
	b.want("both parked", b.use(opus, ok)+b.use(haiku, ok)+b.use(opus, ok), "---")
	b.want("no other family", b.use(none, ok), "a")
	// The cached answer does not outlast the window, to the microsecond.
	b.after(5*time.Second - time.Microsecond)
	b.want("parked", b.use(opus, ok), "-")
	b.after(time.Microsecond)
	b.want("the last one", b.use(opus, ok), "a")
	// Nor a change of the members.
	b = newPicker(t, 1, nil)
	b.want("parked", b.use(none, quota, ok), "a-")
	b.ids = accounts(2)
	b.pool.SetMembers(b.now, b.now, pool.Bare(b.ids))
	b.want("the new one", b.use(none, ok), "b")
}

// Outcomes have the effects that the package comment lists.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		reason pool.Reason
		health float64
		step   int
	}{
		{limited, 70, 0},
		{pool.AuthFailed, 60, 0},
		{quota, 60, 1},
		{pool.Overloaded, 70, 0},
		{pool.Service, 80, 0},
		{pool.Unreachable, 80, 0},
		{pool.Caller, 80, 0},
		{pool.Cancelled, 80, 0},
		{ok, 81, 0},
	} {
		b := newPicker(t, 2, func(s *pool.Settings) { s.RecoveryPerHour = 0 })
		first, second := b.pick(none), b.pick(none)
		b.pool.Report(b.now, first, pool.Outcome{Reason: pool.AuthFailed})
		b.after(time.Minute)
		b.pool.Report(b.now, second, pool.Outcome{Reason: tt.reason})
		s := b.state()
		if s.Health != tt.health {
			t.Errorf("%s: health %v, want %v", tt.reason, s.Health, tt.health)
		}
		if step := s.Limits[0].Step; step != tt.step {
			t.Errorf("%s: step %d of the ladder, want %d", tt.reason, step, tt.step)
		}
	}
}

// A good answer to a request sent before a window does not end the window.
func TestStaleProbe(t *testing.T) {
	t.Parallel()
	b := newPicker(t, 2, nil)
	onlyA := pool.Query{Tried: b.ids[1:]}
	b.pool.Report(b.now, b.pick(onlyA), pool.Outcome{Reason: limited})
	b.after(30 * time.Second)
	stale := b.pick(onlyA)
	b.after(pool.ProbeTime) // it keeps no request away any more
	b.pool.Report(b.now, b.pick(onlyA), pool.Outcome{Reason: limited})
	b.pool.Report(b.now, stale, pool.Outcome{Reason: ok})
	if got := b.parked(); got != 30*time.Second {
		t.Errorf("after a good answer to the probe of the window before it is parked for %v, want 30 s", got)
	}
}

// What another instance announces is clamped, stored here too, and counted from its last
// announcement on.
func TestWhatOthersTell(t *testing.T) {
	t.Parallel()
	b := newPicker(t, 1, func(s *pool.Settings) { s.RecoveryPerHour, s.RegenerationPerMinute = 0, 0 })
	tell := func(from byte, s pool.State) {
		s.Account = b.ids[0]
		b.pool.Merge(b.now, uuid.UUID{from}, s)
	}
	tell(1, pool.State{Since: b.now, Limits: []pool.Limit{{At: b.now, Until: b.now.Add(1000 * time.Hour), Soon: b.now.Add(1000 * time.Hour), Reason: limited}}})
	if got := b.parked(); got != 6*time.Hour {
		t.Errorf("parked for %v by what another one tells, want the six hours that are the most", got)
	}
	if states := b.pool.Changes(b.now, pool.ToStore); len(states) != 1 {
		t.Errorf("%d accounts to write down, want 1", len(states))
	}
	if states := b.pool.Changes(b.now, pool.ToPeers); len(states) != 0 {
		t.Errorf("%d accounts to tell others of, want none", len(states))
	}
	// Of an instance that counted before this one started, only the increase counts.
	tell(2, pool.State{Since: b.now.Add(-time.Hour), Told: pool.Counters{Taken: 100, Limited: 5}, Counters: pool.Counters{Taken: 103, Limited: 6}})
	if s := b.state(); s.Tokens != 47 || s.Health != 90 {
		t.Errorf("%v tokens and health %v, want 47 and 90", s.Tokens, s.Health)
	}
	// The last 32 instances are remembered. What is announced twice counts once.
	for n := range 40 {
		b.after(time.Millisecond)
		tell(byte(10+n), pool.State{Since: b.now, Counters: pool.Counters{Returned: 1}})
	}
	for n := range 40 {
		tell(byte(10+n), pool.State{Since: b.now, Counters: pool.Counters{Returned: 1}})
	}
	if n := b.pool.Peers(b.ids[0]); n != 32 {
		t.Errorf("%d instances are remembered, want 32", n)
	}
}

// A bounded number of sessions is remembered, the latest ones.
func TestAffinityIsBounded(t *testing.T) {
	t.Parallel()
	b := newPicker(t, 2, nil)
	b.want("moves on", b.use(none, limited), "a")
	session := func(n int) pool.Query {
		return pool.Query{Session: id.Session{UUID: uuid.NewSHA1(uuid.NameSpaceURL, []byte{byte(n >> 16), byte(n >> 8), byte(n)})}}
	}
	for n := range 40_000 {
		b.use(session(n), ok)
	}
	if n := b.pool.Sessions(); n > 16_384 {
		t.Errorf("%d sessions are remembered", n)
	}
	b.pool.Reset(b.now, pool.Order{Account: b.ids[0], Asked: b.now})
	b.want("moves back", b.use(none, limited, ok), "ba")
	b.after(time.Minute)
	b.want("the latest", b.use(session(39_999), ok), "b")
	b.want("an early one", b.use(session(1), ok), "a")
}

// A probe that finds its limit costs no health: otherwise an account whose provider does not
// say when the limit ends would be chosen last once it is back.
func TestProbesCostNoHealth(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name          string
		first, second pool.Reason
		want          float64
	}{
		{"the limit that it was to look for", limited, limited, 90},
		{"the quota that it was to look for", quota, quota, 80},
		{"something else", limited, quota, 70},
		{"a key that does not open", pool.AuthFailed, pool.AuthFailed, 60},
	} {
		b := newPicker(t, 2, func(s *pool.Settings) { s.RecoveryPerHour = 0 })
		only := pool.Query{Tried: b.ids[1:]}
		b.pool.Report(b.now, b.pick(only), pool.Outcome{Reason: c.first})
		b.after(2 * time.Minute)
		k := b.pick(only)
		if b.pool.Report(b.now, k, pool.Outcome{Reason: c.second}); !k.Probe || b.parked() == 0 {
			t.Errorf("a probe (%v) that finds %s leaves the account parked for %v", k.Probe, c.name, b.parked())
		}
		if got := b.state().Health; got != c.want {
			t.Errorf("a probe that finds %s: health %v, want %v", c.name, got, c.want)
		}
	}
	// A limit that ended and came back is a new one, which costs health.
	b := newPicker(t, 1, func(s *pool.Settings) { s.RecoveryPerHour, s.Success = 0, 0 })
	b.pool.Report(b.now, b.pick(none), pool.Outcome{Reason: limited})
	b.after(time.Minute)
	b.pool.Report(b.now, b.pick(none), pool.Outcome{Reason: ok})
	b.pool.Report(b.now, b.pick(none), pool.Outcome{Reason: limited})
	if got := b.state().Health; got != 80 {
		t.Errorf("health after a limit that was over and came again is %v, want 80", got)
	}
}

func TestHealthRecovers(t *testing.T) {
	t.Parallel()
	b := newPicker(t, 1, nil)
	b.use(none, quota)
	b.after(time.Hour)
	if h := b.state().Health; h < 81.99 || h > 82.01 {
		t.Errorf("health after an hour is %v, want 82", h)
	}
	b.use(none, ok)
	if h := b.state().Health; h < 82.99 || h > 83.01 {
		t.Errorf("health after a success is %v, want 83", h)
	}
	b.after(24 * time.Hour)
	b.use(none, ok)
	if h := b.state().Health; h != 100 {
		t.Errorf("health is %v, want 100", h)
	}
}

func TestMembers(t *testing.T) {
	t.Parallel()
	b := newPicker(t, 3, nil)
	b.want("a is parked, b current", b.use(none, limited, ok), "ab")
	added := b.pool.SetMembers(b.now, b.now.Add(time.Second), pool.Bare([]id.Account{b.ids[2], b.ids[1], b.ids[0], b.ids[1], account(9)}))
	if diff := cmp.Diff([]id.Account{account(9)}, added); diff != "" {
		t.Errorf("new members (-want +got):\n%s", diff)
	}
	b.want("b stays current", b.use(none, ok), "b")
	b.want("a stays parked", b.use(pool.Query{Tried: []id.Account{b.ids[1], b.ids[2], account(9)}}, ok), "-")
	b.pool.SetMembers(b.now, b.now, nil) // read before the other list
	b.want("an old list is ignored", b.use(none, ok), "b")
	k := b.pick(none)
	if n := len(b.pool.States(b.now)); n != 4 {
		t.Errorf("%d members, want 4", n)
	}
	b.pool.SetMembers(b.now, b.now.Add(2*time.Second), nil)
	if n := len(b.pool.States(b.now)); n != 0 {
		t.Errorf("%d members, want none", n)
	}
	b.pool.Report(b.now, k, pool.Outcome{Reason: limited}) // of a removed account
	b.want("no account is left", b.use(none, ok), "-")
}

func TestValidate(t *testing.T) {
	t.Parallel()
	for _, change := range []func(*pool.Settings){
		func(s *pool.Settings) { s.Strategy = "best" },
		func(s *pool.Settings) { s.MaxTokens = 0 },
		func(s *pool.Settings) { s.InitialTokens = 51 },
		func(s *pool.Settings) { s.RegenerationPerMinute = -1 },
		func(s *pool.Settings) { s.MinUsable = 101 },
		func(s *pool.Settings) { s.RateLimit = 1 },
		func(s *pool.Settings) { s.FloorSeconds = 0 },
	} {
		s := pool.Defaults()
		change(&s)
		if s.Validate() == nil {
			t.Errorf("Validate(%+v) = nil, want an error", s)
		}
	}
}

// TestConcurrent gives the race detector something to find.
func TestConcurrent(t *testing.T) {
	t.Parallel()
	b := newPicker(t, 20, with(pool.Hybrid))
	var wg sync.WaitGroup
	for n := range 4 {
		wg.Go(func() {
			for i := range 200 {
				now := b.now.Add(time.Duration(i) * time.Second)
				k, err := b.pool.Pick(now, pool.Query{Family: "opus", Session: id.Session{UUID: uuid.UUID{byte(i % 7)}}})
				if err == nil {
					b.pool.Began(now, &k)
					b.pool.Report(now, k, pool.Outcome{Reason: []pool.Reason{ok, limited, quota}[(i+n)%3]})
				}
				states := b.pool.Changes(now, pool.ToPeers)
				for _, s := range states {
					b.pool.Merge(now, uuid.UUID{byte(n)}, s)
				}
				b.pool.SetMembers(now, now, pool.Bare(b.ids[i%3:]))
			}
		})
	}
	wg.Wait()
}
