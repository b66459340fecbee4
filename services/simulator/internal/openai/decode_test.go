package openai_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"signalbox.dev/services/simulator/internal/chat"
	"signalbox.dev/services/simulator/internal/openai"
)

// with is a request whose messages are given.
func with(messages string) string { return `{"model":"m","messages":[` + messages + `]}` }

// TestRefused checks what the API refuses: message, param and code.
func TestRefused(t *testing.T) {
	t.Parallel()
	const (
		hi     = `{"role":"user","content":"hi"}`
		called = `{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}}]}`
		answer = `{"role":"tool","tool_call_id":"c1","content":"ok"}`
	)
	extra := func(field string) string { return `{"model":"m","messages":[` + hi + `],` + field + `}` }
	cases := []struct{ name, in, message, param, code string }{
		{"not json", `{`, "not valid JSON", "", ""},
		{"null", `null`, "expected an object", "", ""},
		{"unknown parameter", extra(`"foo":1`), "'foo' is not known", "foo", "unknown_parameter"},
		{"no model", `{"messages":[]}`, "'model' is missing", "model", "missing_required_parameter"},
		{"no messages", `{"model":"m"}`, "'messages' is missing", "messages", "missing_required_parameter"},
		{"empty messages", with(``), "at least one element", "messages", "empty_array"},
		{"messages of another type", `{"model":"m","messages":"hi"}`, "expected an array", "messages", "invalid_type"},
		{"no role", with(`{"content":"a"}`), "is missing", "messages.0.role", "missing_required_parameter"},
		{"unknown role", with(`{"role":"boss","content":"a"}`), "'boss' is not one of", "messages.0.role", "invalid_value"},
		{"no content", with(`{"role":"user"}`), "not null", "messages.0.content", "invalid_type"},
		{"unknown part", with(`{"role":"user","content":[{"type":"hologram"}]}`), "'hologram' is not one of", "messages.0.content.0.type", "invalid_value"},
		{"image without url", with(`{"role":"user","content":[{"type":"image_url","image_url":{}}]}`), "is missing", "messages.0.content.0.image_url.url", "missing_required_parameter"},
		{"image data", with(`{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,%"}}]}`), "not a data URL", "messages.0.content.0.image_url.url", "invalid_value"},
		{"tool without call", with(hi + `,` + answer), "must answer a call", "messages.1.role", ""},
		{"call without answer", with(hi + `,` + called + `,` + hi), "No answer for: c1", "messages.1", ""},
		{"call at the end", with(hi + `,` + called), "No answer for: c1", "messages.1", ""},
		{"answer twice", with(hi + `,` + called + `,` + answer + `,` + answer), "must answer a call", "messages.3.role", ""},
		{"answer without id", with(hi + `,` + called + `,{"role":"tool","content":"a"}`), "is missing", "messages.2.tool_call_id", "missing_required_parameter"},
		{"empty calls", with(hi + `,{"role":"assistant","tool_calls":[]}`), "must not be an empty array", "messages.1.tool_calls", "empty_array"},
		{"call without function", with(hi + `,{"role":"assistant","tool_calls":[{"id":"a","type":"function"}]}`), "needs 'id'", "messages.1.tool_calls.0", ""},
		{"id twice", with(hi + `,` + strings.Replace(called, `[{`, `[{"id":"c1","type":"function","function":{"name":"f","arguments":""}},{`, 1)), "used twice", "messages.1.tool_calls", ""},
		{"empty tools", extra(`"tools":[]`), "must not be an empty array", "tools", "empty_array"},
		{"tool type", extra(`"tools":[{"type":"magic"}]`), "'magic' is not a kind", "tools.0.type", "invalid_value"},
		{"tool name", extra(`"tools":[{"type":"function","function":{"name":"a b"}}]`), "'a b' must consist", "tools.0.function.name", "invalid_value"},
		{"tool twice", extra(`"tools":[{"type":"function","function":{"name":"a"}},{"type":"function","function":{"name":"a"}}]`), "used by two tools", "tools.1", ""},
		{"choice without tools", extra(`"tool_choice":"auto"`), "only together with 'tools'", "tool_choice", ""},
		{"stream options", extra(`"stream_options":{"include_usage":true}`), "only together with 'stream'", "stream_options", ""},
		{"choices", extra(`"n":2`), "'n' must be 1", "n", "unsupported_value"},
		{"limit", extra(`"max_tokens":0`), "at least 1", "max_tokens", "integer_below_min_value"},
		{"stops", extra(`"stop":["a","b","c","d","e"]`), "At most 4", "stop", "array_above_max_length"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, f := openai.Decode([]byte(c.in), chat.OpenAI)
			if f == nil || f.Kind != chat.Invalid || !strings.Contains(f.Message, c.message) || f.Param != c.param || f.Code != c.code {
				t.Errorf("Decode(%s) = %+v, want it refused with %q, param %q, code %q", c.in, f, c.message, c.param, c.code)
			}
		})
	}
}

// TestDecode checks what comes out of a request that uses everything.
func TestDecode(t *testing.T) {
	t.Parallel()
	in := `{"model":"m","max_completion_tokens":30,"stream":true,"stream_options":{"include_usage":true},"reasoning_effort":"low","stop":"END",
	 "parallel_tool_calls":false,"web_search_options":{},"tools":[{"type":"function","function":{"name":"f","parameters":{}}}],
	 "messages":[{"role":"developer","content":"be kind"},
	  {"role":"user","content":[{"type":"text","text":"look"},{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0KGgo="}},{"type":"file","file":{"file_id":"f1"}}]},
	  {"role":"assistant","tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]},
	  {"role":"tool","tool_call_id":"c1","content":"{\"error\":\"no\"}"}]}`
	r, f := openai.Decode([]byte(in), chat.OpenAI)
	if f != nil {
		t.Fatal(f)
	}
	ex := r.Exchange()
	got := fmt.Sprint(r.Model, r.MaxTokens, r.Stream, r.IncludeUsage, r.Thinking, r.SingleCall, r.Stops, r.System, r.Tools, ex.User, ex.Turn, len(ex.Files), ex.Files[0].Media, ex.Files[0].Bytes)
	if want := "m 30 true true true true [END] be kind [{web_search true} {f false}] look 2 2 image/png 8"; strings.ReplaceAll(got, " ", "") != strings.ReplaceAll(want, " ", "") {
		t.Errorf("decoded %s, want %s", got, want)
	}
	if len(ex.Latest) != 1 || ex.Latest[0].Tool != "f" || !ex.Latest[0].Failed() {
		t.Errorf("latest results = %+v, want the failed one of f", ex.Latest)
	}
	r, f = openai.Decode([]byte(`{"model":"m:online","route":"x","usage":{"include":true},"messages":[{"role":"user","content":"hi"}]}`), chat.OpenRouter)
	if f != nil || !r.IncludeUsage || !r.Offers("web_search") {
		t.Errorf("an OpenRouter request = %+v, %v, want usage and web search", r, f)
	}
}

// TestCredential checks who is let in.
func TestCredential(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]string{"": "", "Bearer k": "k", "Bearer ": "", "Basic k": "", "Bearer bad-1": ""} {
		got, f := openai.Credential(http.Header{"Authorization": {header}})
		if got != want || (f == nil) != (want != "") {
			t.Errorf("Credential(%q) = %q, %v, want %q", header, got, f, want)
		}
	}
}

// FuzzDecode checks that no body makes Decode fail in any way but a fault.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(with(`{"role":"user","content":"hi"}`)), true)
	f.Add([]byte(`{"model":"m","stream":true,"stream_options":{"include_usage":true},"tools":[{"type":"function","function":{"name":"f"}}],"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://x"}}]},{"role":"assistant","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c","content":"x"}]}`), false)
	f.Fuzz(func(t *testing.T, body []byte, router bool) {
		dialect := chat.OpenAI
		if router {
			dialect = chat.OpenRouter
		}
		r, fault := openai.Decode(body, dialect)
		if (r == nil) == (fault == nil) {
			t.Fatalf("Decode(%q) = %v, %v", body, r, fault)
		}
		if r != nil {
			r.Exchange()
		}
	})
}
