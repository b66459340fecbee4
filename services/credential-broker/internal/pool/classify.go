package pool

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"signalbox.dev/services/credential-broker/internal/dialect"
)

// signals are what providers say of a failure: in its type or code, or in exact phrases that
// its message begins with. A word somewhere in a message is none: it can echo the user's text.
type signals struct{ names, phrases []string }

var (
	permission = signals{names: []string{"permission_error", "insufficient_permissions"}}
	quota      = signals{
		names: []string{
			"insufficient_quota", "billing_error", "billing_hard_limit_reached", "billing_not_active", "quota_exceeded",
			"account_deactivated", "access_terminated", "organization_deactivated", "402",
		},
		phrases: []string{
			"Your credit balance is too low", "You exceeded your current quota", "This request requires more credits",
			"You have reached your specified API usage limits", "This organization has been disabled", "Key limit exceeded",
		},
	}
	rateLimit = signals{
		names: []string{"rate_limit_error", "rate_limit_exceeded", "rate_limited", "tokens_exceeded", "429"},
		phrases: []string{
			"This request would exceed your account's rate limit", "Rate limit reached for",
			"You have exceeded a secondary rate limit", "API rate limit exceeded for",
		},
	}
	auth     = signals{names: []string{"authentication_error", "invalid_api_key", "invalid_authentication", "401"}}
	overload = signals{names: []string{"overloaded_error", "overloaded", "server_is_overloaded", "slow_down", "529", "503"}}
	invalid  = signals{names: []string{"invalid_request_error", "invalid_prompt", "request_too_large", "not_found_error", "400", "404", "413"}}
)

func (s signals) in(f dialect.Failure) bool {
	return slices.Contains(s.names, f.Type) || slices.Contains(s.names, f.Code) ||
		slices.ContainsFunc(s.phrases, func(p string) bool { return strings.HasPrefix(f.Message, p) })
}

// Denied reports whether a failure that is QuotaExhausted is about permission: the account may
// not use that model, or nobody may do what the request asks for. It says nothing about what
// else the account may do, so it parks nothing.
func Denied(f dialect.Failure) bool { return permission.in(f) }

func isQuota(f dialect.Failure) bool { return permission.in(f) || quota.in(f) }

// Classify says whose fault an answer is, by its status first and then by its signals.
func Classify(status int, f dialect.Failure) Reason {
	switch {
	case status < 400:
		return OK
	case status == http.StatusUnauthorized:
		return AuthFailed
	case status == http.StatusPaymentRequired, status == http.StatusTooManyRequests && isQuota(f):
		return QuotaExhausted
	case status == http.StatusTooManyRequests:
		return RateLimited
	case status >= 500:
		return Service
	case status != http.StatusBadRequest && status != http.StatusForbidden:
		return Caller
	case isQuota(f), auth.in(f):
		return QuotaExhausted
	case rateLimit.in(f):
		return RateLimited
	}
	return Caller
}

// ClassifyEvent does the same for an error event inside a stream, which has no status. An
// overload reported there is the one service-wide failure after which another account is
// tried: the provider had accepted the request, so this account lost its place in the queue.
func ClassifyEvent(f dialect.Failure) Reason {
	switch {
	case isQuota(f):
		return QuotaExhausted
	case rateLimit.in(f):
		return RateLimited
	case auth.in(f):
		return AuthFailed
	case overload.in(f):
		return Overloaded
	case invalid.in(f):
		return Caller
	}
	return Service
}

// RetryAfter returns how long an answer asks to wait, 0 if it does not say or is invalid:
// Retry-After-Ms, then Retry-After in seconds or as a date.
func RetryAfter(h http.Header, now time.Time) time.Duration {
	if ms, err := strconv.ParseFloat(h.Get("Retry-After-Ms"), 64); err == nil && ms > 0 {
		return bounded(ms / 1000)
	}
	text := h.Get("Retry-After")
	if s, err := strconv.ParseFloat(text, 64); err == nil {
		return bounded(s)
	}
	if at, err := http.ParseTime(text); err == nil {
		return bounded(at.Sub(now).Seconds())
	}
	return 0
}

// RawWait returns the headers of an answer that say how long to wait, for people, the
// Retry-After ones first. Values are scrubbed before the text is cut: a part of a secret
// would be left.
func RawWait(h http.Header, scrub func(string) string) string {
	var first, others []string
	for name, values := range h {
		lower, lines := strings.ToLower(name), &others
		switch {
		case lower == "retry-after", lower == "retry-after-ms":
			lines = &first
		case !strings.Contains(lower, "ratelimit") || !strings.Contains(lower, "reset"):
			continue
		}
		*lines = append(*lines, lower+": "+scrub(strings.Join(values, ", ")))
	}
	slices.Sort(first)
	slices.Sort(others)
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, strings.ToValidUTF8(clip(strings.Join(append(first, others...), "; "), maxRawBytes), ""))
}

// maxRetryAfter is the longest wait that is believed.
const maxRetryAfter = 7 * 24 * time.Hour

func bounded(seconds float64) time.Duration {
	if !(seconds > 0) { // also NaN
		return 0
	}
	return time.Duration(min(seconds, maxRetryAfter.Seconds()) * float64(time.Second))
}
