package simulator_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"signalbox.dev/services/simulator"
)

// TestGolden keeps every kind of block and ending as bytes, in each dialect,
// streamed and whole.
func TestGolden(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("testdata/golden/script.yaml")
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, simulator.Config{}, "golden", string(source))
	cases := []struct{ name, extra string }{
		{"text", ""},
		{"chunks", ""},
		{"thinking", ""},
		{"signed", ""},
		{"call", ""},
		{"calls", ""},
		{"arguments", ""},
		{"search", ""},
		{"search error", ""},
		{"paused", ""},
		{"unknown block", ""},
		{"unknown event", ""},
		{"refusal", ""},
		{"length", "max"},
		{"stop sequence", "stop"},
		{"usage", ""},
		{"interleaved", ""},
		{"padded", ""},
		{"error midway", ""},
		{"error first", ""},
		{"cut", ""},
	}
	for _, p := range providers() {
		for _, c := range cases {
			for _, stream := range []bool{true, false} {
				name := strings.ReplaceAll(c.name, " ", "_") + "." + p.name
				if stream {
					name += ".sse"
				} else {
					name += ".json"
				}
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					body := limited(p, request(p, "sim/golden", c.name, stream), c.extra)
					status, h, answer := s.ask(t, p, body)
					golden(t, name, fmt.Appendf(nil, "%d %s\n\n%s", status, h.Get("Content-Type"), answer))
				})
			}
		}
	}
}

// limited adds the parameter that a case is about.
func limited(p provider, body, extra string) string {
	switch {
	case extra == "max" && p.name == "anthropic":
		return strings.Replace(body, `"max_tokens":4000`, `"max_tokens":3`, 1)
	case extra == "max":
		return strings.Replace(body, `"messages"`, `"max_completion_tokens":3,"messages"`, 1)
	case extra == "stop" && p.name == "anthropic":
		return strings.Replace(body, `"messages"`, `"stop_sequences":["END","never"],"messages"`, 1)
	case extra == "stop":
		return strings.Replace(body, `"messages"`, `"stop":"END","messages"`, 1)
	default:
		return body
	}
}

// TestGoldenErrors keeps status, headers and body of every kind of error.
func TestGoldenErrors(t *testing.T) {
	t.Parallel()
	kinds := []string{
		"overloaded", "rate_limit", "server_error", "unauthorized", "forbidden", "not_found", "too_large", "invalid", "no_credit", "timeout",
	}
	s := start(t, simulator.Config{})
	for _, k := range kinds {
		if err := s.PutScript(k, "rules: [{then: [{fail: {kind: "+k+", retry_after: '7'}}]}]"); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range providers() {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			var b strings.Builder
			for _, k := range kinds {
				status, h, body := s.ask(t, p, request(p, "sim/"+k, "hi", true))
				fmt.Fprintf(&b, "# %s\n%d\ncontent-type: %s\nretry-after: %s\n\n%s\n\n", k, status, h.Get("Content-Type"), h.Get("Retry-After"), body)
				if !json.Valid([]byte(body)) {
					t.Errorf("%s: the error body is not JSON: %s", k, body)
				}
			}
			golden(t, "errors."+p.name+".txt", []byte(b.String()))
		})
	}
}

// TestHeaders checks the headers that clients read.
func TestHeaders(t *testing.T) {
	t.Parallel()
	s := start(t, simulator.Config{})
	want := map[string][]string{
		"anthropic":  {"Request-Id", "Anthropic-Ratelimit-Requests-Remaining", "Anthropic-Ratelimit-Input-Tokens-Reset", "Anthropic-Organization-Id"},
		"openai":     {"X-Request-Id", "X-Ratelimit-Remaining-Tokens", "X-Ratelimit-Reset-Requests", "Openai-Version"},
		"openrouter": {},
	}
	for _, p := range providers() {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			status, h, _ := s.ask(t, p, request(p, "m", "hello", true))
			if status != http.StatusOK {
				t.Fatalf("status = %d, want 200", status)
			}
			if got := h.Get("Content-Type"); got != "text/event-stream; charset=utf-8" {
				t.Errorf("Content-Type = %q, want an event stream", got)
			}
			for _, name := range want[p.name] {
				if h.Get(name) == "" {
					t.Errorf("the header %s is missing", name)
				}
			}
		})
	}
}
