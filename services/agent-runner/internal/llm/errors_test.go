package llm_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"signalbox.dev/services/agent-runner/internal/llm"
)

func TestStatusError(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		status int
		body   string
		want   llm.Kind
		retry  bool
	}{
		{"anthropic 400", 400, `{"type":"error","error":{"type":"invalid_request_error","message":"messages.1: bad"}}`, llm.KindInvalid, false},
		{"anthropic too long", 400, `{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 210000 tokens > 200000 maximum"}}`, llm.KindContextLength, false},
		{"anthropic max_tokens too long", 400, `{"error":{"type":"invalid_request_error","message":"input length and ` + "`max_tokens`" + ` exceed context limit: 1 + 2 > 3"}}`, llm.KindContextLength, false},
		{"anthropic no credit", 400, `{"error":{"type":"invalid_request_error","message":"Your credit balance is too low to access the Anthropic API."}}`, llm.KindQuota, false},
		{"anthropic 401", 401, `{"error":{"type":"authentication_error","message":"invalid x-api-key"}}`, llm.KindAuth, false},
		{"anthropic 403", 403, `{"error":{"type":"permission_error","message":"no"}}`, llm.KindAuth, false},
		{"anthropic 404", 404, `{"error":{"type":"not_found_error","message":"model: claude-x"}}`, llm.KindNotFound, false},
		{"anthropic 413", 413, `{"error":{"type":"request_too_large","message":"Request exceeds the maximum size"}}`, llm.KindTooLarge, false},
		{"anthropic 429", 429, `{"error":{"type":"rate_limit_error","message":"slow"}}`, llm.KindRateLimited, true},
		{"anthropic 500", 500, `{"error":{"type":"api_error","message":"Internal server error"}}`, llm.KindServer, true},
		{"anthropic 529", 529, `{"error":{"type":"overloaded_error","message":"Overloaded"}}`, llm.KindOverloaded, true},
		{"anthropic timeout", 504, `{"error":{"type":"timeout_error","message":"x"}}`, llm.KindTimeout, true},
		{"openai 401", 401, `{"error":{"message":"Incorrect API key provided: sk-abc***wxyz.","type":"invalid_request_error","param":null,"code":"invalid_api_key"}}`, llm.KindAuth, false},
		{"openai quota", 429, `{"error":{"message":"You exceeded your current quota","type":"insufficient_quota","code":"insufficient_quota"}}`, llm.KindQuota, false},
		{"openai tokens per minute", 429, `{"error":{"message":"Rate limit reached","type":"tokens","code":"rate_limit_exceeded"}}`, llm.KindRateLimited, true},
		{"openai context", 400, `{"error":{"message":"This model's maximum context length is 8192 tokens.","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}`, llm.KindContextLength, false},
		{"vllm context", 400, `{"object":"error","message":"This model's maximum context length is 4096 tokens.","type":"BadRequestError","code":400}`, llm.KindContextLength, false},
		{"openai model", 404, `{"error":{"message":"The model x does not exist","type":"invalid_request_error","code":"model_not_found"}}`, llm.KindNotFound, false},
		{"openai filter", 400, `{"error":{"message":"flagged","code":"content_policy_violation"}}`, llm.KindContentFilter, false},
		{"openai 500", 500, `{"error":{"message":"oops","type":"server_error","code":null}}`, llm.KindServer, true},
		{"openai 503", 503, `{"error":{"message":"The engine is currently overloaded","type":"server_error","param":null,"code":null}}`, llm.KindOverloaded, true},
		{"openrouter 402", 402, `{"error":{"code":402,"message":"Insufficient credits"}}`, llm.KindQuota, false},
		{"openrouter upstream", 429, `{"error":{"code":429,"message":"Provider returned error","metadata":{"raw":"{\"error\":{\"message\":\"busy\"}}"}}}`, llm.KindRateLimited, true},
		{"ollama", 404, `{"error":"model \"x\" not found"}`, llm.KindNotFound, false},
		{"fastapi", 422, `{"detail":"bad field"}`, llm.KindInvalid, false},
		{"echo of the user's words", 400, `{"error":{"type":"invalid_request_error","message":"text says overloaded_error rate_limit_error"}}`, llm.KindInvalid, false},
		{"our egress, timeout", 504, `{"type":"error","error":{"type":"timeout_error","message":"x","code":"provider_timeout"}}`, llm.KindTimeout, true},
		{"our egress, unreachable", 502, `{"type":"error","error":{"type":"api_error","message":"x","code":"provider_unreachable"}}`, llm.KindNetwork, true},
		{"our egress, broken off", 502, `{"error":{"message":"x","type":"server_error","param":null,"code":"provider_broke_off"}}`, llm.KindTruncated, true},
		{"html", 502, `<html><h1>Bad Gateway</h1></html>`, llm.KindServer, true},
		{"nothing", 503, ``, llm.KindOverloaded, true},
		{"not UTF-8", 500, "{\"error\":{\"message\":\"\xff\xfe\"}}", llm.KindServer, true},
		{"broken JSON", 429, `{"error":`, llm.KindRateLimited, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := llm.StatusError(tt.status, http.Header{}, []byte(tt.body))
			if e.Kind != tt.want || e.Retryable != tt.retry || e.Status != tt.status || e.Message == "" {
				t.Errorf("StatusError(%d, %s) = %+v, want kind %s, retryable %v", tt.status, tt.body, e, tt.want, tt.retry)
			}
		})
	}
}

func TestStatusErrorDetails(t *testing.T) {
	t.Parallel()
	h := http.Header{"Request-Id": {"req_1"}, "X-Should-Retry": {"false"}, "Retry-After": {"7"}}
	e := llm.StatusError(429, h, []byte(`{"error":{"type":"rate_limit_error","message":"slow\ndown"}}`))
	if e.RequestID != "req_1" || e.Retryable || e.RetryAfter != 7*time.Second || e.Detail != "slow down" || !strings.HasSuffix(e.Message, "reached. It asks to wait 7s.") {
		t.Errorf("StatusError = %+v, want request id, no retry, 7s", e)
	}
	e = llm.StatusError(502, http.Header{}, []byte(`{"error":{"type":"api_error","message":"could not connect to the provider ollama at localhost:1: nothing listens there","code":"provider_unreachable"}}`))
	if want := "Could not connect to the provider ollama at localhost:1: nothing listens there."; e.Message != want || e.Kind != llm.KindNetwork {
		t.Errorf("StatusError = %+v, want the egress' own words %q", e, want)
	}
	e = llm.StatusError(429, http.Header{"Retry-After": {"7"}}, []byte(`{"error":{"type":"rate_limit_error","message":"all 2 accounts for the provider anthropic are at their rate limit: the first will be tried again in 7s","code":"accounts_exhausted"}}`))
	if want := "All 2 accounts for the provider anthropic are at their rate limit: the first will be tried again in 7s."; e.Message != want || e.RetryAfter != 7*time.Second {
		t.Errorf("StatusError = %+v, want the egress' own words %q", e, want)
	}
	e = llm.StatusError(400, http.Header{"X-Should-Retry": {"true"}}, []byte(`{"request_id":"req_2","error":{"message":"x"}}`))
	if e.RequestID != "req_2" || !e.Retryable {
		t.Errorf("StatusError = %+v, want request id req_2 and a retry", e)
	}
}

// No error text shows a credential, whoever quoted it.
func TestErrorsHoldNoSecrets(t *testing.T) {
	t.Parallel()
	const secret = "sk-ant-api03-abcdefghijklmnop"
	for _, body := range []string{
		`{"error":{"type":"invalid_request_error","message":"bad key ` + secret + ` given"}}`,
		`{"error":{"type":"invalid_request_error","message":"header Bearer tok_0123456789abcdef"}}`,
		`{"error":{"type":"` + secret + `","code":"` + secret + `","message":"x"},"request_id":"` + secret + `"}`,
		secret,
	} {
		e := llm.StatusError(400, http.Header{"Request-Id": {secret}}, []byte(body))
		for _, s := range []string{e.Error(), e.Message, e.Detail, e.RequestID} {
			if strings.Contains(s, secret) || strings.Contains(s, "tok_0123456789abcdef") {
				t.Errorf("an error of %s shows the secret: %s", body, s)
			}
		}
	}
	if long := llm.StatusError(400, nil, []byte(strings.Repeat("word ", 10_000))); len(long.Message) > 1000 {
		t.Errorf("a message is %d bytes long", len(long.Message))
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Now().UTC()
	tests := []struct {
		name   string
		header http.Header
		want   time.Duration
	}{
		{"none", http.Header{}, 0},
		{"seconds", http.Header{"Retry-After": {"12"}}, 12 * time.Second},
		{"fraction", http.Header{"Retry-After": {"0.5"}}, 500 * time.Millisecond},
		{"milliseconds win", http.Header{"Retry-After": {"12"}, "Retry-After-Ms": {"250"}}, 250 * time.Millisecond},
		{"date against Date", http.Header{"Retry-After": {now.Add(90 * time.Second).Format(http.TimeFormat)}, "Date": {now.Format(http.TimeFormat)}}, 90 * time.Second},
		{"date in the past", http.Header{"Retry-After": {now.Add(-time.Hour).Format(http.TimeFormat)}}, 0},
		{"negative", http.Header{"Retry-After": {"-5"}}, 0},
		{"not a number", http.Header{"Retry-After": {"NaN"}}, 0},
		{"nonsense", http.Header{"Retry-After": {"soon"}}, 0},
		{"for ever", http.Header{"Retry-After": {"1e300"}}, 24 * time.Hour},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := llm.StatusError(429, tt.header, nil).RetryAfter; got != tt.want {
				t.Errorf("RetryAfter of %v = %v, want %v", tt.header, got, tt.want)
			}
		})
	}
}

func TestReasoning(t *testing.T) {
	t.Parallel()
	tests := []struct {
		in     llm.Reasoning
		tokens int
		level  string
	}{
		{llm.Reasoning{}, 0, ""},
		{llm.Reasoning{Effort: "none"}, 0, "none"},
		{llm.Reasoning{Effort: "minimal"}, 1024, "minimal"},
		{llm.Reasoning{Effort: "low"}, 4096, "low"},
		{llm.Reasoning{Effort: "medium"}, 10240, "medium"},
		{llm.Reasoning{Effort: "high"}, 24576, "high"},
		{llm.Reasoning{Budget: 2000}, 2000, "low"},
		{llm.Reasoning{Budget: 12000}, 12000, "medium"},
		{llm.Reasoning{Budget: 30000}, 30000, "high"},
	}
	for _, tt := range tests {
		if tokens, level := tt.in.Tokens(), tt.in.Level(); tokens != tt.tokens || level != tt.level {
			t.Errorf("%+v = %d tokens, level %q, want %d, %q", tt.in, tokens, level, tt.tokens, tt.level)
		}
	}
}

func TestToolName(t *testing.T) {
	t.Parallel()
	tests := []struct{ in, want string }{
		{"doc_create", "doc_create"}, {"a.b c", "a_b_c"}, {"", "unnamed"}, {"é", "__"}, {strings.Repeat("x", 30), "xxx_"},
	}
	for _, tt := range tests {
		got := llm.ToolName(tt.in, 20)
		if !strings.HasPrefix(got, tt.want) || len(got) > 20 {
			t.Errorf("ToolName(%q) = %q, want %q", tt.in, got, tt.want)
		}
	}
}
