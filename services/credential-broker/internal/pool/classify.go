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

// Classify says whose fault an answer is: by its status first, then by the type
// and code that the provider gives, then by exact phrases that its messages begin
// with; never by a word somewhere in a message, which can echo the user's text.
func Classify(status int, f dialect.Failure) Reason {
	switch {
	case status < 400:
		return OK
	case status == http.StatusUnauthorized:
		return AuthFailed
	case status == http.StatusPaymentRequired:
		return QuotaExhausted
	case status == http.StatusTooManyRequests:
		if isQuota(f) {
			return QuotaExhausted
		}
		return RateLimited
	case status == http.StatusBadRequest || status == http.StatusForbidden:
		switch {
		case isQuota(f), isAuth(f):
			return QuotaExhausted
		case isRateLimit(f):
			return RateLimited
		}
		return Caller
	case status >= 500:
		return Service
	}
	return Caller
}

// ClassifyEvent does the same for an error event inside a stream, which has no
// status of its own. An overload reported there is the one service-wide failure
// after which another account is tried: the provider had accepted the request, so
// it is this account's place in the queue that was lost.
func ClassifyEvent(f dialect.Failure) Reason {
	switch {
	case isQuota(f):
		return QuotaExhausted
	case isRateLimit(f):
		return RateLimited
	case isAuth(f):
		return AuthFailed
	case matches(f, "overloaded_error", "overloaded", "server_is_overloaded", "slow_down", "529", "503"):
		return Overloaded
	case matches(f, "invalid_request_error", "invalid_prompt", "request_too_large", "not_found_error", "400", "404", "413"):
		return Caller
	}
	return Service
}

// Denied reports whether a failure that is QuotaExhausted is about permission: the
// account may not use that model, or nobody may do what the request asks for. It says
// nothing of what else the account may do, so it parks nothing.
func Denied(f dialect.Failure) bool {
	return matches(f, "permission_error", "insufficient_permissions")
}

func isQuota(f dialect.Failure) bool {
	return Denied(f) || matches(f, "insufficient_quota", "billing_error", "billing_hard_limit_reached", "billing_not_active",
		"quota_exceeded", "account_deactivated", "access_terminated", "organization_deactivated", "402") ||
		begins(f, "Your credit balance is too low", "You exceeded your current quota", "This request requires more credits",
			"You have reached your specified API usage limits", "This organization has been disabled", "Key limit exceeded")
}

func isRateLimit(f dialect.Failure) bool {
	return matches(f, "rate_limit_error", "rate_limit_exceeded", "rate_limited", "tokens_exceeded", "429") ||
		begins(f, "This request would exceed your account's rate limit", "Rate limit reached for",
			"You have exceeded a secondary rate limit", "API rate limit exceeded for")
}

func isAuth(f dialect.Failure) bool {
	return matches(f, "authentication_error", "invalid_api_key", "invalid_authentication", "401")
}

func matches(f dialect.Failure, names ...string) bool {
	return slices.Contains(names, f.Type) || slices.Contains(names, f.Code)
}

func begins(f dialect.Failure, phrases ...string) bool {
	return slices.ContainsFunc(phrases, func(p string) bool { return strings.HasPrefix(f.Message, p) })
}

// RetryAfter returns how long an answer asks to wait, 0 when it does not say or
// says nonsense: retry-after-ms, then Retry-After in seconds or as a date.
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
		lower := strings.ToLower(name)
		line := lower + ": " + scrub(strings.Join(values, ", "))
		switch {
		case lower == "retry-after", lower == "retry-after-ms":
			first = append(first, line)
		case strings.Contains(lower, "ratelimit") && strings.Contains(lower, "reset"):
			others = append(others, line)
		}
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

// maxRetryAfter bounds what is believed at all.
const maxRetryAfter = 7 * 24 * time.Hour

func bounded(seconds float64) time.Duration {
	if !(seconds > 0) { // also NaN
		return 0
	}
	return time.Duration(min(seconds, maxRetryAfter.Seconds()) * float64(time.Second))
}
