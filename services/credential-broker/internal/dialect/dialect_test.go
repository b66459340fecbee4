package dialect_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/services/credential-broker/internal/dialect"
	"signalbox.dev/services/credential-broker/internal/profile"
)

func TestBody(t *testing.T) {
	t.Parallel()
	e := dialect.Error{Status: 401, Code: "no_credential", Message: `add <one> & "try"`}
	tests := []struct {
		name string
		got  []byte
		want string
	}{
		{"anthropic", dialect.Body(profile.Anthropic, e), `{"type":"error","error":{"type":"authentication_error","message":"add <one> & \"try\"","code":"no_credential","details":{"error_code":"no_credential"}}}`},
		{"openai", dialect.Body(profile.OpenAI, e), `{"error":{"message":"add <one> & \"try\"","type":"invalid_request_error","param":null,"code":"no_credential"}}`},
		{"google", dialect.Body(profile.Google, e), `{"error":{"code":401,"message":"add <one> & \"try\"","status":"UNAUTHENTICATED","errors":[{"message":"add <one> & \"try\"","domain":"global","reason":"no_credential"}]}}`},
		{"notion", dialect.Body(profile.Notion, e), `{"object":"error","status":401,"code":"unauthorized","message":"add <one> & \"try\"","additional_data":{"code":"no_credential"}}`},
		{"github", dialect.Body(profile.GitHub, e), `{"message":"add <one> & \"try\"","code":"no_credential","status":"401"}`},
		{"anthropic event", dialect.Event(profile.Anthropic, true, dialect.Error{Status: 504, Code: "c", Message: "m"}), "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"timeout_error\",\"message\":\"m\",\"code\":\"c\",\"details\":{\"error_code\":\"c\"}}}\n\n"},
		{"chat event", dialect.Event(profile.OpenAI, false, dialect.Error{Status: 502, Code: "c", Message: "m"}), "data: {\"error\":{\"message\":\"m\",\"type\":\"server_error\",\"param\":null,\"code\":\"c\"}}\n\n"},
		{"responses event", dialect.Event(profile.OpenAI, true, dialect.Error{Status: 502, Code: "c", Message: "m"}), "event: error\ndata: {\"type\":\"error\",\"code\":\"c\",\"message\":\"m\",\"param\":null,\"sequence_number\":0,\"error\":{\"message\":\"m\",\"type\":\"server_error\",\"param\":null,\"code\":\"c\"}}\n\n"},
	}
	for _, tt := range tests {
		if diff := cmp.Diff(tt.want, string(tt.got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

// An SDK recognises an error by the provider's own name for its status.
func TestStatuses(t *testing.T) {
	t.Parallel()
	type names struct{ Anthropic, OpenAI, Google, Notion string }
	for status, want := range map[int]names{
		400: {"invalid_request_error", "invalid_request_error", "INVALID_ARGUMENT", "validation_error"},
		401: {"authentication_error", "invalid_request_error", "UNAUTHENTICATED", "unauthorized"},
		403: {"permission_error", "invalid_request_error", "PERMISSION_DENIED", "restricted_resource"},
		404: {"not_found_error", "invalid_request_error", "NOT_FOUND", "object_not_found"},
		405: {"invalid_request_error", "invalid_request_error", "INVALID_ARGUMENT", "validation_error"},
		408: {"timeout_error", "invalid_request_error", "DEADLINE_EXCEEDED", "validation_error"},
		409: {"conflict_error", "invalid_request_error", "ABORTED", "conflict_error"},
		413: {"request_too_large", "invalid_request_error", "INVALID_ARGUMENT", "validation_error"},
		429: {"rate_limit_error", "rate_limit_error", "RESOURCE_EXHAUSTED", "rate_limited"},
		500: {"api_error", "server_error", "INTERNAL", "internal_server_error"},
		501: {"api_error", "server_error", "UNIMPLEMENTED", "internal_server_error"},
		502: {"api_error", "server_error", "UNAVAILABLE", "internal_server_error"},
		503: {"api_error", "server_error", "UNAVAILABLE", "service_unavailable"},
		504: {"timeout_error", "server_error", "DEADLINE_EXCEEDED", "gateway_timeout"},
	} {
		var got names
		for d, read := range map[profile.Dialect]func(body map[string]any){
			profile.Anthropic: func(b map[string]any) { got.Anthropic, _ = b["error"].(map[string]any)["type"].(string) },
			profile.OpenAI:    func(b map[string]any) { got.OpenAI, _ = b["error"].(map[string]any)["type"].(string) },
			profile.Google:    func(b map[string]any) { got.Google, _ = b["error"].(map[string]any)["status"].(string) },
			profile.Notion:    func(b map[string]any) { got.Notion, _ = b["code"].(string) },
		} {
			var body map[string]any
			if err := json.Unmarshal(dialect.Body(d, dialect.Error{Status: status, Code: "c", Message: "m"}), &body); err != nil {
				t.Fatal(err)
			}
			read(body)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%d (-want +got):\n%s", status, diff)
		}
	}
}

func TestRead(t *testing.T) {
	t.Parallel()
	tests := []struct {
		in   string
		want dialect.Failure
		ok   bool
	}{
		{`{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"},"request_id":"r"}`, dialect.Failure{Type: "overloaded_error", Message: "Overloaded"}, true},
		{`{"error":{"message":"m","type":"insufficient_quota","param":null,"code":"insufficient_quota"}}`, dialect.Failure{Type: "insufficient_quota", Code: "insufficient_quota", Message: "m"}, true},
		{`{"error":{"code":402,"message":"Insufficient credits","metadata":{}}}`, dialect.Failure{Code: "402", Message: "Insufficient credits"}, true},
		{`{"error":"model not found"}`, dialect.Failure{Message: "model not found"}, true},
		{`{"type":"error","code":"rate_limit_exceeded","message":"slow","sequence_number":3}`, dialect.Failure{Code: "rate_limit_exceeded", Message: "slow"}, true},
		{`{"type":"response.failed","response":{"status":"failed","error":{"code":"server_error","message":"m"}}}`, dialect.Failure{Code: "server_error", Message: "m"}, true},
		{`{"error":{"type":["a"],"code":{"x":1},"message":null}}`, dialect.Failure{}, true},
		{`{"error":{"errors":[{"domain":"usageLimits","reason":"userRateLimitExceeded","message":"m"}],"code":403,"message":"m"}}`, dialect.Failure{Code: "rate_limit_exceeded", Message: "m"}, true},
		{`{"error":{"errors":[{"reason":"forbidden"}],"code":403,"message":"m"}}`, dialect.Failure{Code: "403", Message: "m"}, true},
		{`{"error":{"errors":{"a":1},"code":403,"message":"m"}}`, dialect.Failure{Code: "403", Message: "m"}, true},
		{`{"object":"error","status":429,"code":"rate_limited","message":"m"}`, dialect.Failure{Code: "rate_limited", Message: "m"}, true},
		{`{"error":null}`, dialect.Failure{}, false},
		{`{"type":"message"}`, dialect.Failure{}, false},
		{`[1]`, dialect.Failure{}, false},
		{`<html>`, dialect.Failure{}, false},
		{``, dialect.Failure{}, false},
	}
	for _, tt := range tests {
		got, ok := dialect.Read([]byte(tt.in))
		if diff := cmp.Diff(tt.want, got); diff != "" || ok != tt.ok {
			t.Errorf("Read(%s) = %+v, %v, want %+v, %v", tt.in, got, ok, tt.want, tt.ok)
		}
	}
}

// Whatever a message holds, an event stays one frame with one data line, and Read understands
// what Body writes.
func FuzzEvent(f *testing.F) {
	f.Add("m", 500, true)
	f.Add("a\r\nb\n\n", 401, false)
	f.Fuzz(func(t *testing.T, message string, status int, typed bool) {
		for _, d := range []profile.Dialect{profile.Anthropic, profile.OpenAI, profile.Google, profile.Notion, profile.GitHub} {
			e := dialect.Error{Status: status, Code: "c", Message: message}
			ev := string(dialect.Event(d, typed, e))
			if strings.Count(ev, "\n\n") != 1 || !strings.HasSuffix(ev, "\n\n") || strings.Contains(ev, "\r") {
				t.Fatalf("Event(%q) = %q, want one frame", message, ev)
			}
			body := dialect.Body(d, e)
			if !json.Valid(body) {
				t.Fatalf("Body(%q) = %q", message, body)
			}
			if got, ok := dialect.Read(body); !ok || got.Message != strings.ToValidUTF8(message, "\ufffd") {
				t.Fatalf("Read(Body(%q)) = %+v, %v", message, got, ok)
			}
		}
	})
}
