package pool_test

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/pool"
)

var histories = flag.Int("histories", 1000, "random histories to go through")

// TestHistories checks each step of random histories of a pool against what the package
// comment promises.
func TestHistories(t *testing.T) {
	t.Parallel()
	for seed := range *histories {
		h := newHistory(uint64(seed))
		for step := range 120 {
			if err := h.step(); err != nil {
				t.Fatalf("history %d, step %d, %s: %v", seed, step, h.settings.Strategy, err)
			}
		}
	}
}

type history struct {
	r        *rand.Rand
	now      time.Time
	settings pool.Settings
	pool     *pool.Pool
	members  []id.Account
	flight   []*flight
	probing  map[probe]probing
	cut      map[probe]bool // its window was ended for the last usable account
}

// flight is a request in flight.
type flight struct {
	ticket pool.Ticket
	family string
}

// probing is a probe in flight.
type probing struct {
	by    *flight
	until time.Time
}

// probe names the limit of an account for a family.
type probe struct {
	account id.Account
	family  string
}

func newHistory(seed uint64) *history {
	r := rand.New(rand.NewPCG(seed, 1))
	h := &history{r: r, now: start, settings: pool.Defaults(), probing: map[probe]probing{}, cut: map[probe]bool{}}
	h.settings.Strategy = []pool.Strategy{pool.Sticky, pool.RoundRobin, pool.Hybrid}[r.IntN(3)]
	h.settings.MaxTokens = float64(1 + r.IntN(50))
	h.settings.InitialTokens = float64(r.IntN(int(h.settings.MaxTokens) + 1))
	h.pool = pool.NewPool(h.now, h.settings)
	h.members = accounts(1 + r.IntN(6))
	h.pool.SetMembers(h.now, h.now, pool.Bare(h.members))
	return h
}

func pickOne[T any](r *rand.Rand, all ...T) T { return all[r.IntN(len(all))] }

func (h *history) step() error {
	before := h.limits()
	var err error
	switch n := h.r.IntN(100); {
	case n < 45:
		err = h.request(before)
	case n < 80 && len(h.flight) > 0:
		h.report()
	case n < 85 && len(h.flight) > 0:
		h.pool.Began(h.now, &pickOne(h.r, h.flight...).ticket)
	case n < 88:
		h.remote()
	case n < 90:
		h.settings.MaxTokens = float64(1 + h.r.IntN(50))
		h.settings.InitialTokens = 0
		h.pool.SetSettings(h.now, h.now, h.settings)
	default:
		h.now = h.now.Add(pickOne(h.r, time.Millisecond, time.Second, 5*time.Second, 31*time.Second, time.Minute, 10*time.Minute, 3*time.Hour))
	}
	return errors.Join(err, h.check(before))
}

func (h *history) limits() map[probe]pool.Limit {
	out := map[probe]pool.Limit{}
	for _, s := range h.pool.States(h.now) {
		for _, l := range s.Limits {
			if !l.Until.IsZero() {
				out[probe{s.Account, l.Family}] = l
			}
		}
	}
	return out
}

// parkedIn says whether limits stand against a request of a family, and until when if the
// account is the last.
func parkedIn(all map[probe]pool.Limit, a id.Account, family string, now time.Time) (soon time.Time, is bool) {
	for _, f := range slices.Compact([]string{"", family}) {
		if l, ok := all[probe{a, f}]; ok && l.Until.After(now) {
			is = true
			if l.Soon.After(soon) {
				soon = l.Soon
			}
		}
	}
	return soon, is
}

func (h *history) request(before map[probe]pool.Limit) error {
	r := pool.Query{Family: pickOne(h.r, "", "", "opus", "haiku"), Model: pickOne(h.r, "", "opus-1", "opus-2")}
	if h.r.IntN(3) == 0 {
		r.Session = id.Session{UUID: uuid.NewSHA1(uuid.NameSpaceURL, []byte{byte(h.r.IntN(4))})}
	}
	for _, a := range h.members {
		if h.r.IntN(5) == 0 {
			r.Tried = append(r.Tried, a)
		}
	}
	away := func(a id.Account) bool {
		if _, is := parkedIn(before, a, r.Family, h.now); is && !h.isCut(before, a, r.Family) {
			return true
		}
		return h.isProbed(before, a, r.Family)
	}
	k, err := h.pool.Pick(h.now, r)
	if err != nil {
		e, ok := errors.AsType[*pool.Exhausted](err)
		if !ok || e.Back.Before(h.now) {
			return fmt.Errorf("Pick = %w, want an Exhausted that is not over", err)
		}
		for _, a := range h.members {
			if !slices.Contains(r.Tried, a) && !away(a) {
				return fmt.Errorf("Pick = %w although %s was ready", err, a)
			}
		}
		return nil
	}
	if slices.Contains(r.Tried, k.Account) {
		return fmt.Errorf("%s was tried and is used again", k.Account)
	}
	if away(k.Account) {
		if h.isProbed(before, k.Account, r.Family) {
			return fmt.Errorf("%s is being probed and gets another request", k.Account)
		}
		if soon, _ := parkedIn(before, k.Account, r.Family, h.now); h.now.Before(soon) {
			return fmt.Errorf("%s is parked and gets a request", k.Account)
		}
		for _, a := range h.members {
			if l, is := before[probe{a, ""}]; is && l.Reason == pool.AuthFailed {
				continue // its key does not open
			}
			if !away(a) {
				return fmt.Errorf("%s is parked and used as the last although %s was ready", k.Account, a)
			}
		}
	}
	out := &flight{k, r.Family}
	for _, f := range slices.Compact([]string{"", r.Family}) {
		l, ok := before[probe{k.Account, f}]
		if !ok {
			continue
		}
		if !k.Probe {
			return fmt.Errorf("%s comes back without a probe", k.Account)
		}
		h.probing[probe{k.Account, f}] = probing{out, h.now.Add(pool.ProbeTime)}
		if l.Until.After(h.now) {
			h.cut[probe{k.Account, f}] = true
		}
	}
	h.flight = append(h.flight, out)
	return nil
}

func (h *history) isProbed(before map[probe]pool.Limit, a id.Account, family string) bool {
	for _, f := range slices.Compact([]string{"", family}) {
		if _, is := before[probe{a, f}]; is && h.probing[probe{a, f}].until.After(h.now) {
			return true
		}
	}
	return false
}

func (h *history) isCut(before map[probe]pool.Limit, a id.Account, family string) bool {
	for _, f := range slices.Compact([]string{"", family}) {
		if l, is := before[probe{a, f}]; is && l.Until.After(h.now) && !h.cut[probe{a, f}] {
			return false
		}
	}
	return true
}

func (h *history) report() {
	n := h.r.IntN(len(h.flight))
	out := h.flight[n]
	h.flight = slices.Delete(h.flight, n, n+1)
	o := pool.Outcome{Reason: pickOne(h.r, pool.OK, pool.OK, pool.OK, pool.RateLimited, pool.AuthFailed,
		pool.QuotaExhausted, pool.QuotaExhausted, pool.Overloaded, pool.Service, pool.Caller, pool.Unreachable, pool.Cancelled)}
	o.Unsent = o.Reason == pool.Unreachable && h.r.IntN(2) == 0
	o.Denied = o.Reason == pool.QuotaExhausted && h.r.IntN(3) == 0
	if o.Unsent && h.r.IntN(2) == 0 {
		o.Later = pickOne(h.r, time.Second, time.Minute, 1000*time.Hour)
	}
	if h.r.IntN(3) == 0 {
		o.Ends = pickOne(h.r, time.Second, 30*time.Minute, 3*time.Hour, 10_000*time.Hour)
	}
	if h.r.IntN(3) == 0 {
		o.RetryAfter = pickOne(h.r, time.Millisecond, 12*time.Second, 10*time.Minute, 1000*time.Hour)
	}
	h.pool.Report(h.now, out.ticket, o)
	for p, by := range h.probing {
		if by.by == out {
			delete(h.probing, p)
		}
	}
}

// remote merges what another instance might announce.
func (h *history) remote() {
	l := pool.Limit{Family: pickOne(h.r, "", "opus"), At: h.now.Add(time.Duration(h.r.IntN(1e6)) * time.Microsecond), Reason: pool.QuotaExhausted, Step: 1 + h.r.IntN(3)}
	if h.r.IntN(3) > 0 {
		l.Until, l.Soon = l.At.Add(time.Minute), l.At.Add(5*time.Second)
	}
	n := uint64(h.r.IntN(20))
	a := pickOne(h.r, h.members...)
	h.pool.Merge(h.now, uuid.UUID{1}, pool.State{Account: a, Since: h.now, Counters: pool.Counters{Taken: n, Failed: n / 4, Returned: n / 8}, Limits: []pool.Limit{l}})
}

// check compares what a step did with what a step may do.
func (h *history) check(before map[probe]pool.Limit) error {
	for _, s := range h.pool.States(h.now) {
		if s.Tokens < 0 || s.Tokens > h.settings.MaxTokens {
			return fmt.Errorf("%v tokens", s.Tokens)
		}
		if s.Health < 0 || s.Health > 100 {
			return fmt.Errorf("health %v", s.Health)
		}
	}
	now := h.limits()
	for p, l := range now {
		if l.Until.Sub(l.At) > 6*time.Hour+time.Second && l.Reason != pool.Overloaded {
			old := before[p]
			if !old.Until.Equal(l.Until) && l.Until.Sub(h.now) > 6*time.Hour+time.Second {
				return fmt.Errorf("%s is parked for %v", p.account, l.Until.Sub(h.now))
			}
		}
		old, ok := before[p]
		if ok && old.At.Equal(l.At) {
			if l.Step > old.Step {
				return fmt.Errorf("%s climbed within its window", p.account)
			}
			continue
		}
		// Another window: by what was learned here, only when the one before was over.
		if ok && old.Until.After(h.now) && !h.cut[p] && !l.At.After(h.now) && l.Step > old.Step {
			return fmt.Errorf("%s climbed from %d to %d while its window was open", p.account, old.Step, l.Step)
		}
		delete(h.cut, p)
		delete(h.probing, p)
	}
	for p := range before {
		if _, ok := now[p]; !ok {
			delete(h.cut, p)
			delete(h.probing, p)
		}
	}
	return nil
}

// TestMerge has three instances learn separately and merge each other's states in any order,
// some of them twice: in the end, all know the same.
func TestMerge(t *testing.T) {
	t.Parallel()
	for seed := range 500 {
		r := rand.New(rand.NewPCG(uint64(seed), 2))
		names := []uuid.UUID{{1}, {2}, {3}, {4}}
		var pools []*pool.Pool
		now := start
		for range names {
			p := pool.NewPool(now, pool.Defaults())
			p.SetMembers(now, now, pool.Bare(accounts(4)))
			pools = append(pools, p)
		}
		type message struct {
			from  int
			state pool.State
		}
		var sent []message
		for range 60 {
			now = now.Add(time.Duration(r.IntN(20_000)) * time.Millisecond)
			i := r.IntN(3)
			k, err := pools[i].Pick(now, pool.Query{Family: pickOne(r, "", "opus")})
			if err == nil {
				pools[i].Report(now, k, pool.Outcome{Reason: pickOne(r, pool.OK, pool.RateLimited, pool.QuotaExhausted, pool.Unreachable), Unsent: true})
			}
			states := pools[i].Changes(now, pool.ToPeers)
			for _, s := range states {
				sent = append(sent, message{i, s})
			}
		}
		deliver := func(to int) {
			// Each one's messages come in order; those of different ones do not.
			queues := map[int][]message{}
			for _, m := range sent {
				if m.from != to {
					queues[m.from] = append(queues[m.from], m)
				}
			}
			for len(queues) > 0 {
				from := r.IntN(3)
				q := queues[from]
				if len(q) == 0 {
					delete(queues, from)
					continue
				}
				for range 1 + r.IntN(2) {
					pools[to].Merge(now, names[from], q[0].state)
				}
				queues[from] = q[1:]
			}
		}
		for to := range pools {
			deliver(to)
		}
		want := shared(pools[0], now)
		for i, p := range pools[1:] {
			if diff := cmp.Diff(want, shared(p, now)); diff != "" {
				t.Fatalf("seed %d: instance %d knows other limits (-first +it):\n%s", seed, i+1, diff)
			}
		}
		// The fourth one did nothing itself: hearing all of it again changes nothing.
		again := pools[3].States(now)
		deliver(3)
		if diff := cmp.Diff(again, pools[3].States(now)); diff != "" {
			t.Fatalf("seed %d: told twice (-once +twice):\n%s", seed, diff)
		}
	}
}

func shared(p *pool.Pool, now time.Time) map[probe]pool.Limit {
	out := map[probe]pool.Limit{}
	for _, s := range p.States(now) {
		for _, l := range s.Limits {
			if !l.Until.IsZero() {
				out[probe{s.Account, l.Family}] = l
			}
		}
	}
	return out
}
