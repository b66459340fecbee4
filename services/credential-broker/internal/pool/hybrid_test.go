package pool_test

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/pool"
)

// TestHybridByTheBook compares each choice of hybrid with its formula, over random histories
// and settings.
func TestHybridByTheBook(t *testing.T) {
	t.Parallel()
	compared := 0
	for seed := range 300 {
		r := rand.New(rand.NewPCG(uint64(seed), 77))
		s := pool.Defaults()
		s.Strategy = pool.Hybrid
		if seed%3 > 0 { // else as shipped
			s.MaxTokens = float64(2 + r.IntN(100))
			s.InitialTokens = s.MaxTokens
			s.RegenerationPerMinute = float64(r.IntN(10))
			s.MinUsable = float64(r.IntN(100))
			s.Stickiness, s.SwitchThreshold = float64(r.IntN(300)), float64(r.IntN(300))
		}
		p := pool.NewPool(start, s)
		now := start
		p.SetMembers(now, now, pool.Bare(accounts(2+r.IntN(5))))
		var current id.Account
		for step := range 400 {
			now = now.Add(time.Duration(r.IntN(20_000)) * time.Millisecond)
			states := p.States(now)
			want, certain := byTheBook(states, s, current, now)
			k, err := p.Pick(now, pool.Query{})
			if err != nil {
				continue
			}
			if certain {
				compared++
				if k.Account != want {
					t.Fatalf("seed %d, step %d: chose %v after %v, want %v of %+v", seed, step, k.Account, current, want, states)
				}
			}
			if !slices.ContainsFunc(states, func(a pool.State) bool { return a.Account == k.Account && isParked(a, now) }) {
				current = k.Account // else it was the last usable one, which hybrid did not choose
			}
			out := pool.Outcome{Reason: pool.OK}
			switch r.IntN(20) {
			case 0:
				out.Reason = pool.RateLimited
			case 1:
				out.Reason = pool.AuthFailed
			}
			p.Report(now, k, out)
		}
	}
	if compared < 50_000 {
		t.Errorf("%d choices were compared, want 50,000 and more", compared)
	}
}

func isParked(a pool.State, now time.Time) bool {
	return slices.ContainsFunc(a.Limits, func(l pool.Limit) bool { return l.Until.After(now) })
}

// byTheBook returns the account that hybrid should choose among those that have tokens and
// health. It is uncertain if none has, or if less than a hundredth of a point decides: pools
// count in whole millionths.
func byTheBook(states []pool.State, s pool.Settings, current id.Account, now time.Time) (_ id.Account, certain bool) {
	type candidate struct {
		account id.Account
		score   float64
	}
	var all []candidate
	for _, a := range states {
		if math.Abs(a.Health-s.MinUsable) < 1e-4 || math.Abs(a.Tokens-1) < 1e-4 {
			return id.Account{}, false
		}
		if isParked(a, now) || a.Health < s.MinUsable || a.Tokens < 1 {
			continue
		}
		rest := min(now.Sub(a.LastUsed).Seconds(), 3600)
		all = append(all, candidate{a.Account, a.Health*2 + a.Tokens/s.MaxTokens*500 + rest*0.1})
	}
	if len(all) == 0 {
		return id.Account{}, false
	}
	slices.SortFunc(all, func(a, b candidate) int { return cmp.Compare(b.score, a.score) })
	best := all[0]
	if len(all) > 1 && best.score-all[1].score < 0.01 {
		return id.Account{}, false
	}
	for _, c := range all {
		if lead := best.score - (c.score + s.Stickiness); c.account == current && math.Abs(lead-s.SwitchThreshold) < 0.01 {
			return id.Account{}, false
		} else if c.account == current && lead < s.SwitchThreshold {
			return current, true
		}
	}
	return best.account, true
}

// Accounts without tokens come after those with tokens, whatever the score.
func TestHybridSpentComeLater(t *testing.T) {
	t.Parallel()
	b := newPicker(t, 2, func(s *pool.Settings) {
		s.Strategy, s.MaxTokens, s.InitialTokens, s.RegenerationPerMinute = pool.Hybrid, 2, 1, 0
	})
	b.want("the first, until it is spent", b.use(none, ok), "a")
	b.want("then the other", b.use(none, ok), "b")
	b.want("the current one, when all are spent", b.use(none, ok, ok), "bb")
}
