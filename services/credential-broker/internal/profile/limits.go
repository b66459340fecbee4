package profile

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Limit is one of a provider's rate limits, as it stands in the headers of an answer.
type Limit struct {
	// Remaining is the header with what is left of it; empty where there is none.
	Remaining string
	// Status is the header that says Used when it is used up; empty where there is none.
	Status, Used string
	// Reset is the header that says when it is whole again: a time (RFC 3339), a time
	// span (6m0s), seconds, or the seconds or milliseconds since 1970.
	Reset string
}

// maxReset bounds what is believed of a reset.
const maxReset = 7 * 24 * time.Hour

// Exhausted reports whether an answer says that one of the limits is used up.
func (p *Profile) Exhausted(h http.Header) bool {
	for i := range p.Limits {
		if l := &p.Limits[i]; l.says() && l.used(h) {
			return true
		}
	}
	return false
}

// Reset returns how long it is until all limits that are used up are whole again, 0
// where the answer does not say. A limit of which no header says whether it is used up
// counts as that: ask for answers only that a rate limit has refused.
func (p *Profile) Reset(h http.Header, now time.Time) time.Duration {
	var wait time.Duration
	for i := range p.Limits {
		if l := &p.Limits[i]; l.used(h) {
			wait = max(wait, until(h.Get(l.Reset), now))
		}
	}
	return min(wait, maxReset)
}

// Lapses returns how long it is until the quota lapses that an answer was counted against,
// 0 where the answer does not say. A limit whose header says what is left fills up all the
// time, and nothing of it is lost; another one is the quota of a span of time.
func (p *Profile) Lapses(h http.Header, now time.Time) time.Duration {
	for i := range p.Limits {
		if l := &p.Limits[i]; l.Remaining == "" {
			return min(max(0, until(h.Get(l.Reset), now)), maxReset)
		}
	}
	return 0
}

// says reports whether a header says that the limit is used up.
func (l *Limit) says() bool { return l.Remaining != "" || l.Status != "" }

func (l *Limit) used(h http.Header) bool {
	switch {
	case l.Status != "":
		return strings.EqualFold(h.Get(l.Status), l.Used)
	case l.Remaining != "":
		return none(h.Get(l.Remaining))
	}
	return true
}

func none(remaining string) bool {
	n, err := strconv.ParseFloat(remaining, 64)
	return err == nil && n <= 0
}

// until reads a reset header; what it does not understand is 0.
func until(text string, now time.Time) time.Duration {
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return at.Sub(now)
	}
	if n, err := strconv.ParseFloat(text, 64); err == nil {
		switch {
		case !(n > 0): // also NaN
			return 0
		case n < 1e9:
			return time.Duration(min(n, maxReset.Seconds()) * float64(time.Second))
		case n < 1e12:
			return time.Unix(int64(n), 0).Sub(now)
		case n < 1e15:
			return time.UnixMilli(int64(n)).Sub(now)
		}
		return 0
	}
	if d, err := time.ParseDuration(text); err == nil {
		return d
	}
	return 0
}
