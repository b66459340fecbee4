package anthropic_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"signalbox.dev/services/simulator/internal/anthropic"
	"signalbox.dev/services/simulator/internal/chat"
)

// with is a request whose messages are given.
func with(messages string) string {
	return `{"model":"m","max_tokens":10,"messages":[` + messages + `]}`
}

// TestRefused checks what the API refuses, and in which words.
func TestRefused(t *testing.T) {
	t.Parallel()
	const (
		hi     = `{"role":"user","content":"hi"}`
		called = `{"role":"assistant","content":[{"type":"tool_use","id":"t1","name":"f","input":{}}]}`
		answer = `{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"ok"}]}`
	)
	cached := func(n int) string {
		var b []string
		for range n {
			b = append(b, `{"type":"text","text":"a","cache_control":{"type":"ephemeral"}}`)
		}
		return strings.Join(b, ",")
	}
	tools := func(list string) string {
		return `{"model":"m","max_tokens":10,"messages":[` + hi + `],"tools":[` + list + `]}`
	}
	extra := func(field string) string {
		return `{"model":"m","max_tokens":10,"messages":[` + hi + `],` + field + `}`
	}
	cases := []struct{ name, in, want string }{
		{"not json", `{`, "the request body is not valid JSON"},
		{"not an object", `[]`, "expected an object"},
		{"null", `null`, "expected an object"},
		{"unknown parameter", extra(`"maxtokens":1`), "maxtokens: unknown parameter"},
		{"no model", `{"max_tokens":1,"messages":[` + hi + `]}`, "model: required parameter is missing"},
		{"empty model", `{"model":"","max_tokens":1,"messages":[` + hi + `]}`, "model: must not be empty"},
		{"no max_tokens", `{"model":"m","messages":[` + hi + `]}`, "max_tokens: required parameter is missing"},
		{"max_tokens of 0", `{"model":"m","max_tokens":0,"messages":[` + hi + `]}`, "max_tokens: must be at least 1"},
		{"max_tokens text", `{"model":"m","max_tokens":"1","messages":[` + hi + `]}`, "max_tokens: expected a whole number"},
		{"max_tokens half", `{"model":"m","max_tokens":1.5,"messages":[` + hi + `]}`, "max_tokens: expected a whole number"},
		{"no messages", `{"model":"m","max_tokens":1}`, "messages: required parameter is missing"},
		{"messages of another type", `{"model":"m","max_tokens":1,"messages":"hi"}`, "messages: expected an array"},
		{"empty messages", with(``), "messages: at least one message is required"},
		{"assistant first", with(`{"role":"assistant","content":"hi"}`), `the first message must have the role "user"`},
		{"system message", with(`{"role":"system","content":"hi"}`), `messages.0.role: "system" is not one of user, assistant`},
		{"no content", with(`{"role":"user"}`), "messages.0.content: required parameter is missing"},
		{"content of another type", with(`{"role":"user","content":5}`), "messages.0.content: expected a string or an array"},
		{"empty content", with(`{"role":"user","content":[]}`), "messages.0: the content must not be empty"},
		{"empty string", with(`{"role":"user","content":""}`), "messages.0: the content must not be empty"},
		{"empty text", with(`{"role":"user","content":[{"type":"text","text":""}]}`), "messages.0.content.0: text blocks must not be empty"},
		{"field of a message", with(`{"role":"user","content":"a","name":"b"}`), "messages.0.name: unknown parameter"},
		{"block without type", with(`{"role":"user","content":[{"text":"a"}]}`), "messages.0.content.0.type: required"},
		{"unknown block", with(`{"role":"user","content":[{"type":"hologram"}]}`), `"hologram" is not a known type`},
		{"trailing space", with(hi + `,{"role":"assistant","content":"a "}`), "must not end with white space"},
		{"call without result", with(hi + `,` + called + `,` + hi), "messages.2: tool_use without a tool_result in the next message: t1"},
		{"call at the end", with(hi + `,` + called), "messages.1: tool_use without a tool_result in the next message: t1"},
		{"result without call", with(answer), "messages.0.content.0: this tool_result answers t1, but"},
		{"result too late", with(hi + `,` + called + `,` + answer + `,` + answer), "messages.3.content.0: this tool_result answers t1, but"},
		{"result after text", with(hi + `,` + called + `,{"role":"user","content":[{"type":"text","text":"a"},{"type":"tool_result","tool_use_id":"t1"}]}`), "come first"},
		{"id twice", with(hi + `,` + called + `,` + answer + `,` + called + `,` + answer), "the id t1 of this tool_use was used before"},
		{"call by the user", with(`{"role":"user","content":[{"type":"tool_use","id":"t1","name":"f","input":{}}]}`), "belong to the assistant"},
		{"call without input", with(hi + `,{"role":"assistant","content":[{"type":"tool_use","id":"t1","name":"f"}]}`), "messages.1.content.0.input: expected an object"},
		{"call with bad id", with(hi + `,{"role":"assistant","content":[{"type":"tool_use","id":"t 1","name":"f","input":{}}]}`), "messages.1.content.0.id"},
		{"result by the assistant", with(hi + `,{"role":"assistant","content":[{"type":"tool_result","tool_use_id":"t1"}]}`), "belong to the user"},
		{"thinking unsigned", with(hi + `,{"role":"assistant","content":[{"type":"thinking","thinking":"a"}]}`), "messages.1.content.0.signature: required"},
		{"thinking changed", with(hi + `,{"role":"assistant","content":[{"type":"thinking","thinking":"a","signature":"` + anthropic.Sign("b") + `"}]}`), "the signature does not fit"},
		{"image type", with(`{"role":"user","content":[{"type":"image","source":{"type":"base64","media_type":"image/tiff","data":"aa=="}}]}`), "image/tiff"},
		{"image data", with(`{"role":"user","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"%"}}]}`), "not valid base64"},
		{"image without source", with(`{"role":"user","content":[{"type":"image"}]}`), "messages.0.content.0.source: expected an object"},
		{"tool twice", tools(`{"name":"a","input_schema":{"type":"object"}},{"name":"a","input_schema":{"type":"object"}}`), `"a" is there twice`},
		{"tool name", tools(`{"name":"a b","input_schema":{"type":"object"}}`), `tools.0.name: "a b"`},
		{"tool without schema", tools(`{"name":"a"}`), "tools.0.input_schema: required"},
		{"tool schema type", tools(`{"name":"a","input_schema":{"type":"string"}}`), `tools.0.input_schema.type: must be "object"`},
		{"choice without tools", extra(`"tool_choice":{"type":"auto"}`), "together with tools"},
		{"temperature", extra(`"temperature":1.5`), "temperature: must be between 0 and 1"},
		{"thinking budget", extra(`"thinking":{"type":"enabled","budget_tokens":100}`), "must be at least 1024"},
		{"thinking above limit", extra(`"thinking":{"type":"enabled","budget_tokens":2000}`), "max_tokens must be greater"},
		{"thinking type", extra(`"thinking":{"type":"hard"}`), `thinking.type: "hard" is not one of`},
		{"cache marks", with(`{"role":"user","content":[` + cached(5) + `]}`), "at most 4 blocks may have cache_control, this request has 5"},
		{"cache ttl", with(`{"role":"user","content":[{"type":"text","text":"a","cache_control":{"type":"ephemeral","ttl":"2h"}}]}`), `"2h" is not one of 5m, 1h`},
		{"system block", extra(`"system":[{"type":"image"}]`), "consists of text blocks"},
		{"stop sequence", extra(`"stop_sequences":[" "]`), "stop_sequences.0"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, f := anthropic.Decode([]byte(c.in), false)
			if f == nil || f.Kind != chat.Invalid || !strings.Contains(f.Message, c.want) {
				t.Errorf("Decode(%s) = %v, want it refused with %q", c.in, f, c.want)
			}
		})
	}
}

// TestDecode checks what comes out of a request that uses everything.
func TestDecode(t *testing.T) {
	t.Parallel()
	in := `{"model":"m","max_tokens":3000,"stream":true,"system":[{"type":"text","text":"be kind","cache_control":{"type":"ephemeral","ttl":"1h"}}],
	 "thinking":{"type":"enabled","budget_tokens":1024},"stop_sequences":["END"],
	 "tools":[{"name":"f","input_schema":{"type":"object"}},{"type":"web_search_20250305","name":"web_search"}],
	 "tool_choice":{"type":"auto","disable_parallel_tool_use":true},
	 "messages":[
	  {"role":"user","content":[{"type":"text","text":"look"},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"iVBORw0KGgo="}}]},
	  {"role":"assistant","content":[{"type":"thinking","thinking":"a","signature":"` + anthropic.Sign("a") + `"},{"type":"hologram","x":1},{"type":"tool_use","id":"t1","name":"f","input":{"a":1}}]},
	  {"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","is_error":true,"content":[{"type":"text","text":"no"}],"cache_control":{"type":"ephemeral"}}]}]}`
	r, f := anthropic.Decode([]byte(in), false)
	if f != nil {
		t.Fatal(f)
	}
	ex := r.Exchange()
	got := fmt.Sprint(r.Model, r.MaxTokens, r.Stream, r.Thinking, r.SingleCall, r.Stops, r.System, r.Tools, ex.User, ex.Turn, len(ex.Files), ex.Files[0].Bytes)
	if want := "m3000true true true [END]be kind[{f false} {web_search true}]look 2 1 8"; strings.ReplaceAll(got, " ", "") != strings.ReplaceAll(want, " ", "") {
		t.Errorf("decoded %s, want %s", got, want)
	}
	if len(ex.Latest) != 1 || ex.Latest[0].Tool != "f" || !ex.Latest[0].Failed() || string(ex.Latest[0].Args) != `{"a":1}` {
		t.Errorf("latest results = %+v, want the failed one of f", ex.Latest)
	}
	marks := ""
	for _, s := range r.Prompt {
		marks += "[" + s.Mark + "]"
		if strings.Contains(string(s.Canonical), "cache_control") {
			t.Errorf("the canonical form %s has the mark in it", s.Canonical)
		}
	}
	if want := "[][][1h][][][][][][5m]"; marks != want {
		t.Errorf("marks = %s, want %s", marks, want)
	}
	if _, f := anthropic.Decode([]byte(`{"model":"m","messages":[{"role":"user","content":"hi"}]}`), true); f != nil {
		t.Errorf("count_tokens without max_tokens = %v, want it accepted", f)
	}
}

// TestCredential checks who is let in.
func TestCredential(t *testing.T) {
	t.Parallel()
	cases := []struct {
		header http.Header
		want   string
		ok     bool
	}{
		{http.Header{}, "", false},
		{http.Header{"X-Api-Key": {"k"}}, "k", true},
		{http.Header{"Authorization": {"Bearer tok"}}, "tok", true},
		{http.Header{"Authorization": {"Basic tok"}}, "", false},
		{http.Header{"X-Api-Key": {"bad-k"}}, "", false},
		{http.Header{"Authorization": {"Bearer bad-tok"}}, "", false},
	}
	for _, c := range cases {
		got, f := anthropic.Credential(c.header)
		if got != c.want || (f == nil) != c.ok || f != nil && f.Kind != chat.Unauthorized {
			t.Errorf("Credential(%v) = %q, %v, want %q, let in: %t", c.header, got, f, c.want, c.ok)
		}
	}
	if f := anthropic.Version(http.Header{}); f == nil || f.Kind != chat.Invalid {
		t.Errorf("Version without the header = %v, want it refused", f)
	}
}

// FuzzDecode checks that no body makes Decode or what follows fail in any way but
// a fault.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(with(`{"role":"user","content":"hi"}`)))
	f.Add([]byte(with(`{"role":"user","content":[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}},{"type":"image","source":{"type":"url","url":"https://x"}}]}`)))
	f.Add([]byte(`{"model":"m","max_tokens":9,"tools":[{"name":"f","input_schema":{"type":"object"}}],"tool_choice":{"type":"none"},"messages":[{"role":"user","content":"a"},{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f","input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"text","text":"x"}]}]}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		r, fault := anthropic.Decode(body, false)
		if (r == nil) == (fault == nil) {
			t.Fatalf("Decode(%q) = %v, %v", body, r, fault)
		}
		if r != nil {
			if ex := r.Exchange(); ex.Turn < 1 || ex.Turn > len(r.Messages)+1 {
				t.Errorf("Exchange of %q has turn %d", body, ex.Turn)
			}
		}
	})
}
