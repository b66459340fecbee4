package profile

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Limit is one of a provider's rate limits, as the headers of an answer report it.
type Limit struct {
	// Remaining is the header with what is left; empty if there is none.
	Remaining string `yaml:"remaining"`
	// Status is the header whose value is Used once the limit is used up; empty if there is
	// none.
	Status string `yaml:"status"`
	Used   string `yaml:"used"`
	// Reset is the header that says when the limit is full again: a time (RFC 3339), a
	// duration (6m0s), seconds, or seconds or milliseconds since 1970.
	Reset string `yaml:"reset"`
}

// maxReset bounds a plausible reset.
const maxReset = 7 * 24 * time.Hour

// Exhausted reports whether an answer says that one of the limits is used up.
func (p *Profile) Exhausted(h http.Header) bool {
	for i := range p.Limits {
		if l := &p.Limits[i]; (l.Remaining != "" || l.Status != "") && l.used(h) {
			return true
		}
	}
	return false
}

// Reset returns how long it is until all used-up limits are full again, 0 if the answer does
// not say. A limit with neither Remaining nor Status counts as used up: call this only for
// answers that a rate limit refused.
func (p *Profile) Reset(h http.Header, now time.Time) time.Duration {
	var wait time.Duration
	for i := range p.Limits {
		if l := &p.Limits[i]; l.used(h) {
			wait = max(wait, until(h.Get(l.Reset), now))
		}
	}
	return min(wait, maxReset)
}

// Lapses returns how long it is until the quota lapses that the answer was counted against, 0
// if the answer does not say. A limit with Remaining refills continuously and nothing of it
// lapses; any other is the quota of a time window.
func (p *Profile) Lapses(h http.Header, now time.Time) time.Duration {
	for i := range p.Limits {
		if l := &p.Limits[i]; l.Remaining == "" {
			return min(max(0, until(h.Get(l.Reset), now)), maxReset)
		}
	}
	return 0
}

func (l *Limit) used(h http.Header) bool {
	switch {
	case l.Status != "":
		return strings.EqualFold(h.Get(l.Status), l.Used)
	case l.Remaining != "":
		n, err := strconv.ParseFloat(h.Get(l.Remaining), 64)
		return err == nil && n <= 0
	}
	return true
}

// until reads a reset header; an unknown form is 0.
func until(text string, now time.Time) time.Duration {
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return at.Sub(now)
	}
	if d, err := time.ParseDuration(text); err == nil {
		return d
	}
	n, err := strconv.ParseFloat(text, 64)
	switch {
	case err != nil || !(n > 0) || n >= 1e15: // also NaN
		return 0
	case n < 1e9:
		return time.Duration(min(n, maxReset.Seconds()) * float64(time.Second))
	case n < 1e12:
		return time.Unix(int64(n), 0).Sub(now)
	}
	return time.UnixMilli(int64(n)).Sub(now)
}
