package pool

import (
	"math"
	"time"
)

// An account's score is
//
//	health × 2 + tokens/MaxTokens × 500 + min(seconds since it was used, 3600) × 0.1
//
// Scores are whole numbers, in millionths of a point: bounding one is then a conditional
// move instead of a branch that is often mispredicted.
const (
	point     = 1_000_000
	maxTokens = 500 * point    // for a full bucket
	maxPoints = 200 * point    // for a health of 100
	maxRest   = 360 * point    // for an hour without use, or more
	restRate  = point / 10     // a second
	maxGrowth = 10 * maxTokens // a second: beyond that a bucket is full at once
	maxHealth = 100
)

// Tiers of hybrid, those that are chosen from first to last.
const (
	good      = iota // healthy, with tokens
	spent            // healthy
	unhealthy        // the rest
	tiers
)

// rates are settings in the unit of scores.
type rates struct {
	max             float64 // tokens
	regen, recovery float64 // a second
	token           int64   // what a token counts
	usable          int64   // what the least usable health counts
	lead            int64   // by which another account must be better than the current one
}

func (s *Settings) rates() rates {
	return rates{
		max:      s.MaxTokens,
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

// highest returns the member with the highest score in each tier, among those that are ready,
// and its score, plus its turn by the end of its quota and without what the current account
// has on top. The index is −1 if a tier has no member.
func (r *rates) highest(t time.Duration, members []points, ready mask) (best [tiers]int, high [tiers]int64) {
	best, high = [tiers]int{-1, -1, -1}, [tiers]int64{math.MinInt64, math.MinInt64, math.MinInt64}
	grown, mended, rest, token, usable := r.grown(t), r.mended(t), restPoints(t), r.token, r.usable
	for i := range members {
		m := &members[i]
		tokens, health := min(m.tokens+grown, maxTokens), min(m.health+mended, maxPoints)
		score := tokens + health + min(rest-m.used, maxRest)
		if m.quotaEnds > t {
			score += turnPoints * m.turn(t)
		}
		tier := good
		if tokens < token {
			tier = spent
		}
		if health < usable {
			tier = unhealthy
		}
		if score > high[tier] && ready.has(i) {
			best[tier], high[tier] = i, score
		}
	}
	return best, high
}

func (r *rates) tokensOf(m *member, t time.Duration) float64 {
	return float64(max(0, min(m.tokens+r.grown(t), maxTokens))) * r.max / maxTokens
}

func (r *rates) setTokens(m *member, t time.Duration, n float64) {
	points := math.Round(n / r.max * maxTokens)
	m.tokens = int64(max(0, min(points, maxTokens))) - r.grown(t)
}

// addTokens gives or takes n tokens.
func (r *rates) addTokens(m *member, t time.Duration, n int64) {
	points := max(0, min(m.tokens+r.grown(t), maxTokens)) + n*r.token
	m.tokens = max(0, min(points, maxTokens)) - r.grown(t)
}

func (r *rates) healthOf(m *member, t time.Duration) float64 {
	return float64(max(0, min(m.health+r.mended(t), maxPoints))) * maxHealth / maxPoints
}

func (r *rates) setHealth(m *member, t time.Duration, n float64) {
	points := math.Round(n / maxHealth * maxPoints)
	m.health = int64(max(0, min(points, maxPoints))) - r.mended(t)
}
