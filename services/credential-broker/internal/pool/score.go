package pool

import (
	"math"
	"time"
)

// Scores are whole numbers, in millionths of a point: to bound one is then a
// conditional move and not a branch that is often guessed wrong.
const (
	point     = 1_000_000
	maxTokens = 500 * point    // for a full bucket
	maxPoints = 200 * point    // for a health of 100
	maxRest   = 360 * point    // for an hour without use, or more
	restRate  = point / 10     // a second
	maxGrowth = 10 * maxTokens // a second: beyond that a bucket is full at once
	maxHealth = 100
)

// Tiers of hybrid, those that are chosen from before the others.
const (
	good      = iota // healthy, with tokens
	spent            // healthy
	unhealthy        // the rest
	tiers
)

// rates are settings as scores need them.
type rates struct {
	regen, recovery float64 // a second
	token           int64   // what a token counts
	usable          int64   // what the least usable health counts
	lead            int64   // by which another account must be better than the current one
}

func (s *Settings) rates() rates {
	return rates{
		regen:    min(s.RegenerationPerMinute/60/s.MaxTokens*maxTokens, maxGrowth),
		recovery: min(s.RecoveryPerHour/3600/maxHealth*maxPoints, maxGrowth),
		token:    int64(maxTokens / s.MaxTokens),
		usable:   int64(s.MinUsable / maxHealth * maxPoints),
		lead:     int64((s.SwitchThreshold + s.Stickiness) * point),
	}
}

// grown and mended are what a bucket and a health gain from time zero on.
func (r *rates) grown(t time.Duration) int64  { return int64(r.regen * t.Seconds()) }
func (r *rates) mended(t time.Duration) int64 { return int64(r.recovery * t.Seconds()) }

// restPoints is what time counts, without bound.
func restPoints(t time.Duration) int64 { return int64(t / (time.Second / restRate)) }

// score returns a member's score, without what the current one has on top but with whose turn
// it is, and its tier.
func (p *Pool) score(i int, t time.Duration) (int64, int) {
	found, scores := p.highest(p.hot[i:i+1], p.turns[i:i+1], mask{1}, t)
	for k := range found {
		if found[k] >= 0 {
			return scores[k], k
		}
	}
	return 0, unhealthy // cannot happen: one of them it is
}

// highest returns the member with the highest score in each tier, among those that are
// ready; −1 for none. A thousand members pass through the loop for each request.
func (p *Pool) highest(members []hot, turns []int8, ready mask, t time.Duration) (found [tiers]int, scores [tiers]int64) {
	found, scores = [tiers]int{-1, -1, -1}, [tiers]int64{math.MinInt64, math.MinInt64, math.MinInt64}
	grown, mended, now := p.rates.grown(t), p.rates.mended(t), restPoints(t)
	usable, token := p.rates.usable, p.rates.token
	turns = turns[:len(members)]
	for i := range members {
		h := &members[i]
		tokens, health := min(h.tokens+grown, maxTokens), min(h.health+mended, maxPoints)
		score := tokens + health + min(now-h.used, maxRest) + int64(turns[i])*before
		k := good
		if tokens < token {
			k = spent
		}
		if health < usable {
			k = unhealthy
		}
		if score > scores[k] && ready.has(i) {
			found[k], scores[k] = i, score
		}
	}
	return found, scores
}

func (p *Pool) tokens(h *hot, t time.Duration) float64 {
	return float64(max(0, min(h.tokens+p.rates.grown(t), maxTokens))) * p.settings.MaxTokens / maxTokens
}

func (p *Pool) setTokens(h *hot, t time.Duration, n float64) {
	points := math.Round(n / p.settings.MaxTokens * maxTokens)
	h.tokens = int64(max(0, min(points, maxTokens))) - p.rates.grown(t)
}

func (p *Pool) health(h *hot, t time.Duration) float64 {
	return float64(max(0, min(h.health+p.rates.mended(t), maxPoints))) * maxHealth / maxPoints
}

func (p *Pool) setHealth(h *hot, t time.Duration, n float64) {
	points := math.Round(n / maxHealth * maxPoints)
	h.health = int64(max(0, min(points, maxPoints))) - p.rates.mended(t)
}

// addTokens gives or takes n tokens.
func (p *Pool) addTokens(h *hot, t time.Duration, n int64) {
	points := max(0, min(h.tokens+p.rates.grown(t), maxTokens)) + n*p.rates.token
	h.tokens = max(0, min(points, maxTokens)) - p.rates.grown(t)
}
