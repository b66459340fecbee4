package llm

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// ErrTruncated is wrapped by the error of a stream that ended before the provider said that
// the answer is complete.
var ErrTruncated = errors.New("the stream ended before its end")

// Kind classifies the failure of a model call.
type Kind uint8

// The kinds. The zero value KindServer is also for failures without an explanation.
const (
	KindServer        Kind = iota // the provider failed
	KindOverloaded                // the provider has no capacity now
	KindRateLimited               // too many requests or tokens of this account
	KindQuota                     // the account's credit or quota is used up
	KindAuth                      // the credential was refused
	KindNotFound                  // no such model
	KindInvalid                   // the request is wrong
	KindContextLength             // the conversation does not fit the model
	KindTooLarge                  // the request or the answer is over a size limit
	KindContentFilter             // refused because of its content
	KindNetwork                   // the connection failed
	KindTimeout                   // nothing arrived for too long
	KindTruncated                 // the answer broke off
)

var kinds = [...]struct {
	name      string
	retryable bool
	message   string // for people
	detail    bool   // the provider's own message is shown too
}{
	KindServer:        {"server", true, "The model provider had an internal error.", false},
	KindOverloaded:    {"overloaded", true, "The model provider is overloaded.", false},
	KindRateLimited:   {"rate-limit", true, "The model provider's rate limit is reached.", false},
	KindQuota:         {"quota", false, "The provider account has no credit or quota left.", false},
	KindAuth:          {"auth", false, "The model provider refused the credential. Check the account that is connected for this provider.", false},
	KindNotFound:      {"not-found", false, "The model provider does not know this model", true},
	KindInvalid:       {"invalid-request", false, "The model provider refused the request", true},
	KindContextLength: {"context-length", false, "The conversation is too long for this model.", false},
	KindTooLarge:      {"too-large", false, "The request is too large for the model provider", true},
	KindContentFilter: {"content-filter", false, "The model provider's content filter refused the request.", false},
	KindNetwork:       {"network", true, "The connection to the model provider failed.", false},
	KindTimeout:       {"timeout", true, "The model provider did not answer in time.", false},
	KindTruncated:     {"truncated", true, "The model's answer broke off before its end.", false},
}

// String returns the kind in kebab case, for logs, metrics and error codes.
func (k Kind) String() string { return kinds[k].name }

// Error is a failed model call.
type Error struct {
	Kind   Kind
	Status int    // of the HTTP response; 0 without a response or if it was 200
	Type   string // the provider's error type
	Code   string // the provider's error code

	Message string // for people; contains no secret
	Detail  string // the provider's message, cleaned, for logs

	RetryAfter time.Duration // as requested by the provider; 0 if not
	Retryable  bool          // the same request may succeed later
	// Broken is true if the connection to the broker broke without an error response. The
	// broker reports failures of the provider, so the broker itself has failed.
	Broken    bool
	RequestID string // the provider's

	Err error // the cause; may be nil
}

// Error describes the failure for logs.
func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "model call: %s", e.Kind)
	if e.Status != 0 {
		fmt.Fprintf(&b, ", status %d", e.Status)
	}
	for _, s := range []struct{ name, value string }{
		{"type", e.Type}, {"code", e.Code}, {"request", e.RequestID},
	} {
		if s.value != "" {
			fmt.Fprintf(&b, ", %s %s", s.name, s.value)
		}
	}
	if e.Detail != "" {
		fmt.Fprintf(&b, ": %s", e.Detail)
	} else {
		fmt.Fprintf(&b, ": %s", e.Message)
	}
	if e.Err != nil {
		fmt.Fprintf(&b, ": %v", e.Err)
	}
	return b.String()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// NewError returns an error of a kind with the kind's message and retry rule. The formatted
// detail is shown to people if the kind says so.
func NewError(k Kind, cause error, format string, args ...any) *Error {
	e := &Error{Kind: k, Err: cause, Retryable: kinds[k].retryable}
	if format != "" {
		e.Detail = cleanDetail(fmt.Sprintf(format, args...))
	}
	e.Message = message(k, e.Detail)
	return e
}

func message(k Kind, detail string) string {
	m := kinds[k].message
	switch {
	case !kinds[k].detail:
		return m
	case detail == "":
		return m + "."
	}
	return m + ": " + detail
}

// Refuse returns the error for a request that is not sent. The formatted message is shown to
// people and says what to do.
func Refuse(k Kind, format string, args ...any) *Error {
	text := fmt.Sprintf(format, args...)
	return &Error{Kind: k, Type: "not_sent", Message: text, Detail: text}
}

// Malformed returns the error for a stream that violates its protocol.
func Malformed(format string, args ...any) *Error {
	e := NewError(KindServer, nil, format, args...)
	e.Type = "malformed_stream"
	e.Message = "The model provider sent an answer that cannot be read."
	return e
}

// OverLimit returns the error for an answer that exceeds one of the Limits.
func OverLimit(format string, args ...any) *Error {
	e := &Error{Kind: KindTooLarge, Type: "response_limit", Detail: fmt.Sprintf(format, args...)}
	e.Message = "The model's answer is over a limit: " + e.Detail + "."
	return e
}

const maxDetail = 500

// cleanDetail shortens a provider's message to one line without control characters and
// without words that look like credentials.
func cleanDetail(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == unicode.ReplacementChar {
			return ' '
		}
		return r
	}, s)
	words := strings.Fields(s)
	for i, w := range words {
		if secretish(w) || (i > 0 && strings.EqualFold(words[i-1], "bearer")) {
			words[i] = "[redacted]"
		}
	}
	s = strings.Join(words, " ")
	if r := []rune(s); len(r) > maxDetail {
		s = string(r[:maxDetail]) + "…"
	}
	return s
}

func secretish(w string) bool {
	for _, p := range []string{"sk-", "sk_", "sb_", "ghp_", "ya29.", "eyJ"} {
		if i := strings.Index(w, p); i >= 0 && len(w)-i >= 12 {
			return true
		}
	}
	return false
}

const maxRetryAfter = 24 * time.Hour

// retryAfter returns the wait that the provider requests: retry-after-ms, or Retry-After in
// seconds or as a date relative to the response's Date.
func retryAfter(h http.Header, now time.Time) time.Duration {
	if ms, err := strconv.ParseFloat(h.Get("Retry-After-Ms"), 64); err == nil {
		return clampWait(ms / 1000)
	}
	v := strings.TrimSpace(h.Get("Retry-After"))
	if v == "" {
		return 0
	}
	if s, err := strconv.ParseFloat(v, 64); err == nil {
		return clampWait(s)
	}
	at, err := http.ParseTime(v)
	if err != nil {
		return 0
	}
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		now = date
	}
	return clampWait(at.Sub(now).Seconds())
}

func clampWait(seconds float64) time.Duration {
	if !(seconds > 0) { // also NaN
		return 0
	}
	return time.Duration(min(seconds, maxRetryAfter.Seconds()) * float64(time.Second))
}
