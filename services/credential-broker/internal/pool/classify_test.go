package pool_test

import (
	"net/http"
	"testing"
	"time"

	"signalbox.dev/services/credential-broker/internal/dialect"
	"signalbox.dev/services/credential-broker/internal/pool"
)

func TestClassify(t *testing.T) {
	t.Parallel()
	tests := []struct {
		status int
		f      dialect.Failure
		want   pool.Reason
	}{
		{200, dialect.Failure{}, pool.OK},
		{401, dialect.Failure{}, pool.AuthFailed},
		{402, dialect.Failure{Code: "402"}, pool.QuotaExhausted},
		{429, dialect.Failure{Type: "rate_limit_error"}, pool.RateLimited},
		{429, dialect.Failure{}, pool.RateLimited},
		{429, dialect.Failure{Type: "insufficient_quota", Code: "insufficient_quota"}, pool.QuotaExhausted},
		{400, dialect.Failure{Type: "invalid_request_error", Message: "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing."}, pool.QuotaExhausted},
		{400, dialect.Failure{Type: "invalid_request_error", Message: "the user wrote: Your credit balance is too low"}, pool.Caller},
		{400, dialect.Failure{Type: "invalid_request_error", Message: "quota billing rate limit permission"}, pool.Caller},
		{403, dialect.Failure{Type: "permission_error"}, pool.QuotaExhausted},
		{403, dialect.Failure{Code: "403", Message: "flagged by moderation"}, pool.Caller},
		{403, dialect.Failure{Code: "rate_limit_exceeded"}, pool.RateLimited},
		{403, dialect.Failure{Code: "insufficient_permissions"}, pool.QuotaExhausted},
		{400, dialect.Failure{Code: "invalid_api_key"}, pool.QuotaExhausted},
		{400, dialect.Failure{Type: "invalid_request_error", Message: "You have reached your specified API usage limits. You will regain access on 2026-12-01."}, pool.QuotaExhausted},
		{400, dialect.Failure{Type: "invalid_request_error", Message: "This organization has been disabled."}, pool.QuotaExhausted},
		{403, dialect.Failure{Code: "403", Message: "Key limit exceeded (monthly limit)."}, pool.QuotaExhausted},
		{403, dialect.Failure{Message: "You have exceeded a secondary rate limit. Please wait."}, pool.RateLimited},
		{403, dialect.Failure{Message: "API rate limit exceeded for user ID 1."}, pool.RateLimited},
		{404, dialect.Failure{Type: "rate_limit_error"}, pool.Caller},
		{413, dialect.Failure{}, pool.Caller},
		{500, dialect.Failure{Type: "rate_limit_error"}, pool.Service},
		{503, dialect.Failure{}, pool.Service},
		{529, dialect.Failure{Type: "overloaded_error"}, pool.Service},
	}
	for _, tt := range tests {
		if got := pool.Classify(tt.status, tt.f); got != tt.want {
			t.Errorf("Classify(%d, %+v) = %s, want %s", tt.status, tt.f, got, tt.want)
		}
	}
	for _, tt := range []struct {
		f    dialect.Failure
		want pool.Reason
	}{
		{dialect.Failure{Type: "overloaded_error"}, pool.Overloaded},
		{dialect.Failure{Type: "rate_limit_error"}, pool.RateLimited},
		{dialect.Failure{Code: "insufficient_quota"}, pool.QuotaExhausted},
		{dialect.Failure{Type: "authentication_error"}, pool.AuthFailed},
		{dialect.Failure{Type: "api_error"}, pool.Service},
		{dialect.Failure{Type: "invalid_request_error"}, pool.Caller},
		{dialect.Failure{}, pool.Service},
	} {
		if got := pool.ClassifyEvent(tt.f); got != tt.want {
			t.Errorf("ClassifyEvent(%+v) = %s, want %s", tt.f, got, tt.want)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	tests := []struct {
		header, value string
		want          time.Duration
	}{
		{"Retry-After", "17", 17 * time.Second},
		{"Retry-After", "0.5", 500 * time.Millisecond},
		{"Retry-After", "Sat, 21 Nov 2026 12:01:00 GMT", time.Minute},
		{"Retry-After", "Sat, 21 Nov 2026 11:00:00 GMT", 0},
		{"Retry-After", "-3", 0},
		{"Retry-After", "NaN", 0},
		{"Retry-After", "1e300", 7 * 24 * time.Hour},
		{"Retry-After", "soon", 0},
		{"Retry-After", "", 0},
		{"Retry-After-Ms", "1500", 1500 * time.Millisecond},
	}
	for _, tt := range tests {
		h := http.Header{}
		h.Set(tt.header, tt.value)
		if got := pool.RetryAfter(h, now); got != tt.want {
			t.Errorf("RetryAfter(%s: %s) = %v, want %v", tt.header, tt.value, got, tt.want)
		}
	}

	both := http.Header{"Retry-After": {"30"}}
	for ms, want := range map[string]time.Duration{"0": 30 * time.Second, "-5": 30 * time.Second, "NaN": 30 * time.Second, "250": 250 * time.Millisecond} {
		both.Set("Retry-After-Ms", ms)
		if got := pool.RetryAfter(both, now); got != want {
			t.Errorf("RetryAfter(30 s, %s ms) = %v, want %v", ms, got, want)
		}
	}
}
