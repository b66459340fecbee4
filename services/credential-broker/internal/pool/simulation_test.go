package pool_test

import (
	"cmp"
	"container/heap"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/pool"
)

var (
	simulatedDays  = flag.Int("days", 0, "days to simulate pools for; 0 for a few")
	simulatedSeeds = flag.Int("seeds", 0, "demands to simulate of each kind; 0 for a few")
	simulatedMute  = flag.Bool("mute", false, "no account says when a quota ends: shows what that is worth, and fails")
)

// TestSimulation has pools serve several days of demand with realistic accounts: limits by the
// minute, five-hour and weekly quotas, unexpected 429s, an expired key, a flaky account. It
// prints how much of what a scheduler that knows the future could complete (clairvoyant) hybrid
// completes, over many demands, and requires a share of that, on average and at worst. Six of
// ten accounts say when their quota ends (-mute: none does). The rest is lost to quotas whose
// end is unknown, and to sessions that stay with their accounts.
func TestSimulation(t *testing.T) {
	t.Parallel()
	loads := [...]float64{0.5, 0.8, 1.0, 1.2}
	for _, size := range []struct {
		accounts, days, quota, seeds int
		mean, least                  [len(loads)]float64
	}{
		{3, 7, 200, 10, [...]float64{0.99, 0.98, 0.96, 0.98}, [...]float64{0.98, 0.97, 0.93, 0.98}},
		{10, 3, 100, 10, [...]float64{0.99, 0.96, 0.96, 0.95}, [...]float64{0.98, 0.92, 0.93, 0.92}},
		{100, 2, 20, 3, [...]float64{0.99, 0.98, 0.95, 0.95}, [...]float64{0.98, 0.96, 0.94, 0.95}},
		{1000, 1, 10, 1, [...]float64{0.99, 0.95, 0.95, 0.95}, [...]float64{0.98, 0.94, 0.95, 0.96}},
	} {
		if !thorough && size.accounts > 100 {
			continue
		}
		for n, load := range loads {
			t.Run(fmt.Sprintf("%d accounts at %.2f", size.accounts, load), func(t *testing.T) {
				t.Parallel()
				days, seeds := cmp.Or(*simulatedDays, size.days), cmp.Or(*simulatedSeeds, size.seeds)
				if !thorough {
					seeds = max(1, seeds/10)
				}
				sum, least, line := 0.0, 1.0, ""
				for seed := range seeds {
					w := newWeather(uint64(seed), size.accounts, days, size.quota, load)
					most := w.clairvoyant()
					done, _ := w.run(pool.Hybrid)
					if done > most {
						t.Errorf("completed more than is possible: %d of %d", done, most)
					}
					share := float64(done) / float64(most)
					sum, least = sum+share, min(least, share)
					if seed > 0 || size.accounts > 100 {
						continue
					}
					for _, s := range []pool.Strategy{pool.Sticky, pool.RoundRobin} {
						done, _ := w.run(s)
						line += fmt.Sprintf(", %s %.1f", s, 100*float64(done)/float64(most))
					}
				}
				mean := sum / float64(seeds)
				t.Logf("%4d accounts at %.2f: hybrid %.1f %% of the clairvoyant, least %.1f, of %d demands (the first one%s)", size.accounts, load, 100*mean, 100*least, seeds, line)
				if thorough && mean < size.mean[n] || least < size.least[n] {
					t.Errorf("want %.0f %%, and no less than %.0f", 100*size.mean[n], 100*size.least[n])
				}
			})
		}
	}
}

const (
	fiveHours = 5 * time.Hour
	week      = 7 * 24 * time.Hour
	slot      = 2 * time.Minute // of the clairvoyant; longer than anybody waits
	phases    = 5
)

// limits of one account. Windows of five hours begin at its phase.
type limits struct {
	minute, fiveHour, week int
	phase                  time.Duration
	expired, flaky         bool
	tells                  tells
}

// tells is what an account says when a quota is used up: most say how long to wait, some only
// that a rate limit was hit, a few that the quota is exhausted, like a billing limit.
type tells int

const (
	howLong tells = iota
	tooMuch
	over
)

// weather is a demand and the accounts that serve it.
type weather struct {
	seed     uint64
	accounts []limits
	length   time.Duration
	arrivals []arrival
}

type arrival struct {
	at      time.Duration
	until   time.Duration // when it is given up
	session id.Session
}

func newWeather(seed uint64, n, days, quota int, load float64) *weather {
	r := rand.New(rand.NewPCG(seed, 3))
	w := &weather{seed: seed, length: time.Duration(days) * 24 * time.Hour}
	capacity := 0.0
	for i := range n {
		l := limits{
			minute: 5 + r.IntN(10), fiveHour: quota/2 + r.IntN(quota), phase: time.Duration(r.IntN(phases)) * time.Hour,
			tells: []tells{howLong, howLong, howLong, howLong, howLong, howLong, tooMuch, tooMuch, tooMuch, over}[(i+5)%10],
		}
		l.week = l.fiveHour * 20
		l.expired, l.flaky = n > 2 && i == 1, n > 2 && i == 2
		w.accounts = append(w.accounts, l)
		if !l.expired {
			capacity += min(float64(l.fiveHour)/5, float64(l.week)/min(24*7, w.length.Hours())) // an hour
		}
	}
	// A share of what the accounts can serve, by the hour of the day and in bursts.
	burst := 0
	for at := time.Duration(0); at < w.length; at += time.Minute {
		if burst--; burst < 0 && r.IntN(600) == 0 {
			burst = 10
		}
		rate := capacity / 60 * load * (1 + 0.8*math.Sin(2*math.Pi*at.Hours()/24))
		if burst > 0 {
			rate *= 3
		}
		for range poisson(r, rate) {
			s := id.Session{UUID: uuid.UUID{byte(r.IntN(8)), byte(at / time.Hour), 1}}
			w.arrivals = append(w.arrivals, arrival{at: at + time.Duration(r.Int64N(int64(time.Minute))), session: s})
		}
	}
	w.arrivals = sorted(w.arrivals)
	return w
}

func poisson(r *rand.Rand, mean float64) int {
	if mean > 30 {
		return max(0, int(math.Round(mean+math.Sqrt(mean)*r.NormFloat64())))
	}
	n, p := 0, r.Float64()
	for p > math.Exp(-mean) {
		n++
		p *= r.Float64()
	}
	return n
}

// meter is what an account has left of its limits.
type meter struct {
	limits
	minuteOf, fiveHourOf, weekOf       int
	minuteUsed, fiveHourUsed, weekUsed int
}

// ask is the provider's answer at a time.
func (m *meter) ask(r *rand.Rand, at time.Duration) pool.Outcome {
	if m.expired {
		return pool.Outcome{Reason: pool.AuthFailed, Status: 401}
	}
	if r.IntN(500) == 0 || m.flaky && r.IntN(10) == 0 {
		return pool.Outcome{Reason: pool.RateLimited, Status: 429, RetryAfter: time.Duration(r.IntN(2)*15) * time.Second}
	}
	if n := int(at / time.Minute); n != m.minuteOf {
		m.minuteOf, m.minuteUsed = n, 0
	}
	if n := int((at - m.phase + fiveHours) / fiveHours); n != m.fiveHourOf {
		m.fiveHourOf, m.fiveHourUsed = n, 0
	}
	if n := int(at / week); n != m.weekOf {
		m.weekOf, m.weekUsed = n, 0
	}
	end := time.Duration(0)
	if m.minuteUsed >= m.minute {
		end = time.Duration(m.minuteOf+1) * time.Minute
	}
	if m.fiveHourUsed >= m.fiveHour {
		end = time.Duration(m.fiveHourOf)*fiveHours + m.phase
	}
	if m.weekUsed >= m.week {
		end = time.Duration(m.weekOf+1) * week
	}
	switch {
	case end == 0:
		m.minuteUsed++
		m.fiveHourUsed++
		m.weekUsed++
		out := pool.Outcome{Reason: pool.OK, Status: 200}
		if m.tells == howLong && !*simulatedMute {
			out.Ends = time.Duration(m.fiveHourOf)*fiveHours + m.phase - at
		}
		return out
	case m.tells == howLong:
		return pool.Outcome{Reason: pool.RateLimited, Status: 429, RetryAfter: end - at}
	case m.tells == over && end-at > time.Minute:
		return pool.Outcome{Reason: pool.QuotaExhausted, Status: 403}
	}
	return pool.Outcome{Reason: pool.RateLimited, Status: 429}
}

// run serves the demand with one strategy, and returns how many requests were completed with how
// many calls. A request that finds no account within a minute is lost.
func (w *weather) run(s pool.Strategy) (done, calls int) {
	return newFleet(w, s, 1).run()
}

// fleet is one or more instances with the same accounts. If there are several, requests take
// time, and instances announce what they learn.
type fleet struct {
	w       *weather
	r       *rand.Rand
	pools   []*pool.Pool
	telling []bool // it is going to
	meters  map[id.Account]*meter
	events  events
	apart   bool

	done, calls, open, widest int
}

func newFleet(w *weather, s pool.Strategy, instances int) *fleet {
	f := &fleet{w: w, r: rand.New(rand.NewPCG(w.seed, 4)), meters: map[id.Account]*meter{}, apart: instances > 1, telling: make([]bool, instances)}
	settings := pool.Defaults()
	settings.Strategy = s
	ids := accounts(len(w.accounts))
	for range instances {
		p := pool.NewPool(start, settings)
		p.SetMembers(start, start, pool.Bare(ids))
		f.pools = append(f.pools, p)
	}
	for i, l := range w.accounts {
		f.meters[ids[i]] = &meter{limits: l}
	}
	return f
}

func (f *fleet) run() (done, calls int) {
	queue := f.w.arrivals
	for len(queue) > 0 || len(f.events) > 0 {
		if len(f.events) == 0 || len(queue) > 0 && queue[0].at <= f.events[0].at {
			a := queue[0]
			queue = queue[1:]
			a.until = a.at + patience
			f.try(a, f.r.IntN(len(f.pools)), nil)
			continue
		}
		heap.Pop(&f.events).(event).do()
	}
	return f.done, f.calls
}

func (f *fleet) after(at, d time.Duration, do func()) {
	heap.Push(&f.events, event{at + d, do})
}

// try sends a request to an account that it has not tried, or schedules a retry.
func (f *fleet) try(a arrival, instance int, tried []id.Account) {
	p := f.pools[instance]
	now := start.Add(a.at)
	k, err := p.Pick(now, pool.Query{Session: a.session, Tried: tried})
	if e, ok := errors.AsType[*pool.Exhausted](err); ok {
		wait := max(patience/3, e.Back.Sub(now))
		if a.at+wait <= a.until {
			f.after(a.at, wait, func() {
				a.at += wait
				f.try(a, f.r.IntN(len(f.pools)), nil)
			})
		}
		return
	}
	f.calls++
	out := f.meters[k.Account].ask(f.r, a.at)
	if !f.apart {
		f.answered(a, instance, &k, out, tried)
		return
	}
	f.open++
	f.widest = max(f.widest, f.open)
	// A refusal comes soon; a good answer begins soon and takes long.
	soon := time.Duration(200+f.r.IntN(1800)) * time.Millisecond
	if out.Reason == pool.OK {
		f.after(a.at, soon, func() { p.Began(start.Add(a.at+soon), &k) })
		soon += time.Duration(f.r.ExpFloat64() * 20 * float64(time.Second))
	}
	f.after(a.at, soon, func() {
		f.open--
		a.at += soon
		f.answered(a, instance, &k, out, tried)
	})
}

// answered reports an answer, and tries the next account after a refusal.
func (f *fleet) answered(a arrival, instance int, k *pool.Ticket, out pool.Outcome, tried []id.Account) {
	f.pools[instance].Report(start.Add(a.at), *k, out)
	if f.apart && !f.telling[instance] {
		f.telling[instance] = true
		at := a.at + 200*time.Millisecond
		f.after(at, 0, func() { f.tell(instance, at) })
	}
	if out.Reason == pool.OK {
		f.done++
		return
	}
	f.try(a, instance, append(slices.Clip(tried), k.Account))
}

// tell has the other instances merge what an instance has learned.
func (f *fleet) tell(instance int, at time.Duration) {
	f.telling[instance] = false
	now := start.Add(at)
	states := f.pools[instance].Changes(now, pool.ToPeers)
	for _, s := range states {
		for i, p := range f.pools {
			if i != instance {
				p.Merge(now, uuid.UUID{byte(instance + 1)}, s)
			}
		}
	}
}

// TestSimulationInFlight is the simulation with many concurrent requests that take time, and
// several instances that learn of each other with a delay.
func TestSimulationInFlight(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		accounts, days, quota, instances int
		load, want                       float64
	}{
		{3, 7, 200, 2, 0.65, 0.95},
		{30, 2, 60, 3, 0.65, 0.95},
		{300, 1, 10, 3, 0.65, 0.95},
		{30, 2, 60, 3, 1.1, 0.88},
	} {
		t.Run(fmt.Sprintf("%d accounts in %d instances at %.2f", c.accounts, c.instances, c.load), func(t *testing.T) {
			t.Parallel()
			if *simulatedDays > 0 {
				c.days = *simulatedDays
			}
			w := newWeather(uint64(c.accounts), c.accounts, c.days, c.quota, c.load)
			most := w.clairvoyant()
			line := fmt.Sprintf("%4d accounts in %d instances, %2d days at %.2f, %6d requests, clairvoyant %6d:", c.accounts, c.instances, c.days, c.load, len(w.arrivals), most)
			for _, s := range []pool.Strategy{pool.Hybrid, pool.Sticky, pool.RoundRobin} {
				f := newFleet(w, s, c.instances)
				done, calls := f.run()
				share := float64(done) / float64(most)
				line += fmt.Sprintf("  %s %.1f %% (%.2f calls each, up to %d in flight)", s, 100*share, float64(calls)/float64(max(1, done)), f.widest)
				if s == pool.Hybrid && share < c.want {
					t.Errorf("hybrid completed %.1f %% of what was possible, want %.0f %%", 100*share, 100*c.want)
				}
				if share > 1 || f.open != 0 {
					t.Errorf("%s completed %d of %d, with %d still open", s, done, most, f.open)
				}
			}
			t.Log(line)
		})
	}
}

// patience is for how long a refused caller retries.
const patience = time.Minute

// event happens at a time; events is a heap of them.
type event struct {
	at time.Duration
	do func()
}

type events []event

func (q events) Len() int           { return len(q) }
func (q events) Less(i, j int) bool { return q[i].at < q[j].at }
func (q events) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *events) Push(x any)        { *q = append(*q, x.(event)) }
func (q *events) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}

// clairvoyant returns how many requests could be completed at most by a scheduler that knows the
// future: a maximal flow from quotas to demand. Each path is one request, from a weekly quota
// through a five-hour quota and a slot in that window to the demand of that slot, or of the one
// before for requests that waited. It is an upper bound because it only drops limits: accounts
// of one phase are joined, with the sum of their quotas; a five-hour window across the end of a
// week may be used up in both; minutes have no limit; and no account is flaky.
func (w *weather) clairvoyant() int {
	// Requests that wait at the end may be served a slot later.
	slots, weeks := int(w.length/slot)+1, int((w.length+slot+week-1)/week)
	var fiveHour, weekly [phases]int
	for _, l := range w.accounts {
		if !l.expired {
			fiveHour[int(l.phase/time.Hour)] += l.fiveHour
			weekly[int(l.phase/time.Hour)] += l.week
		}
	}
	demand := make([]int, slots)
	for _, a := range w.arrivals {
		demand[int(a.at/slot)]++
	}
	g := &graph{}
	source, sink := g.node(), g.node()
	demands := make([]int, slots)
	for i := range demands {
		demands[i] = g.node()
		g.edge(demands[i], sink, demand[i])
	}
	for phase := range phases {
		for k := range weeks {
			quota := g.node()
			g.edge(source, quota, weekly[phase])
			windows := map[int]int{}
			for i := range slots {
				at := time.Duration(i) * slot
				if int(at/week) != k {
					continue
				}
				number := int((at - time.Duration(phase)*time.Hour + fiveHours) / fiveHours)
				if _, ok := windows[number]; !ok {
					windows[number] = g.node()
					g.edge(quota, windows[number], fiveHour[phase])
				}
				g.edge(windows[number], demands[i], math.MaxInt32)
				if i > 0 {
					g.edge(windows[number], demands[i-1], math.MaxInt32)
				}
			}
		}
	}
	return g.flow(source, sink)
}
