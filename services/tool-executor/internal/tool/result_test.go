package tool_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"signalbox.dev/services/tool-executor/internal/tool"
)

// hostile is text that is difficult to encode as JSON.
func hostile() map[string]string {
	return map[string]string{
		"empty":           "",
		"quotes":          `"\"}`,
		"NUL":             "a\x00b",
		"controls":        "\x01\x02\x1b[31m\x7f\u0085",
		"line ends":       "a\r\nb\u2028c\u2029d",
		"invalid UTF-8":   "a\xff\xfe\xc3",
		"lone surrogate":  "a\xed\xa0\x80b",
		"surrogate text":  `\ud800`,
		"HTML":            "<script>&amp;</script>",
		"emoji":           "👩‍👩‍👧‍👦",
		"1 MiB":           strings.Repeat("x", 1<<20),
		"1 MiB of quotes": strings.Repeat(`"`, 1<<20),
		"1 MiB of bytes":  strings.Repeat("\xff", 1<<20),
	}
}

// assertEnvelope fails unless s is a JSON object on one line that jsonb accepts.
func assertEnvelope(t rapid.TB, s string) map[string]any {
	t.Helper()
	var fields map[string]any
	if err := json.Unmarshal([]byte(s), &fields); err != nil || fields == nil {
		t.Fatalf("envelope %.200q is not a JSON object: %v", s, err)
	}
	if !utf8.ValidString(s) || strings.ContainsAny(s, "\n\r\x00") {
		t.Fatalf("envelope %.200q is not one line of UTF-8", s)
	}
	assertNoNUL(t, fields)
	return fields
}

func assertNoNUL(t rapid.TB, v any) {
	switch v := v.(type) {
	case string:
		if strings.Contains(v, "\x00") {
			t.Fatalf("envelope holds NUL in %.100q", v)
		}
	case []any:
		for _, e := range v {
			assertNoNUL(t, e)
		}
	case map[string]any:
		for k, e := range v {
			assertNoNUL(t, k)
			assertNoNUL(t, e)
		}
	}
}

func TestEnvelopeOfHostileText(t *testing.T) {
	t.Parallel()
	for name, text := range hostile() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for form, r := range map[string]tool.Result{
				"Errorf": tool.Errorf("internal", "%s", text),
				"Object": tool.Object(map[string]any{text: []string{text}}), "Object of no object": tool.Object(text),
				"foreign JSON": tool.Object(struct {
					V json.RawMessage `json:"v"`
				}{json.RawMessage(`"` + strings.NewReplacer(`"`, `'`, "\n", " ", "\r", " ").Replace(text) + `"`)}),
			} {
				assertEnvelope(t, r.JSON())
				if got := tool.OutputText(r.JSON()); !utf8.ValidString(got) || strings.ContainsAny(got, "\x00\x1b") {
					t.Errorf("OutputText of %s = %.100q", form, got)
				}
			}
		})
	}
}

func TestEnvelopeOfAnything(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		b := string(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes"))
		fields := assertEnvelope(t, tool.Object(b).JSON())
		if utf8.ValidString(b) && !strings.Contains(b, "\x00") && fields["result"] != b {
			t.Fatalf("Object(%q) = %q: clean text must come through unchanged", b, fields["result"])
		}
		assertEnvelope(t, tool.Object(json.RawMessage(b)).JSON())
	})
}

func TestWithCause(t *testing.T) {
	t.Parallel()
	failed := tool.Errorf("not_connected", "connect it")
	for _, tt := range []struct {
		cause *tool.Cause
		want  string
	}{
		{nil, `{"error":"connect it"}`},
		{&tool.Cause{Code: tool.NotConnected, Service: "notion"}, `{"error":"connect it","code":"NOT_CONNECTED","service":"notion"}`},
		{&tool.Cause{Code: tool.NeedsSignIn, Server: "a", Reason: "<\xff>"}, `{"error":"connect it","code":"NEEDS_SIGN_IN","server":"a","reason":"<\ufffd>"}`},
	} {
		r := failed.WithCause(tt.cause)
		if r.JSON() != tt.want || !r.IsError() || r.ErrorType() != "not_connected" {
			t.Errorf("WithCause(%v) = %s, want %s", tt.cause, r.JSON(), tt.want)
		}
	}
}

func TestObject(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		in   any
		want string
	}{
		{map[string]any{"id": "x", "n": 1}, `{"id":"x","n":1}`},
		{[]int{1}, `{"result":[1]}`},
		{nil, `{"result":null}`},
		{"<a>", `{"result":"<a>"}`},
		{json.RawMessage(`{"a":"\ud83d\ude00\ud800\u0000"}`), "{\"a\":\"😀\uFFFD\uFFFD\"}"},
		{func() {}, `{"error":"the tool's result could not be encoded as JSON; continue without it"}`},
		{json.RawMessage("{"), `{"error":"the tool's result could not be encoded as JSON; continue without it"}`},
	} {
		if got := tool.Object(tt.in).JSON(); got != tt.want {
			t.Errorf("Object(%v) = %s, want %s", tt.in, got, tt.want)
		}
	}
	var nothing tool.Result
	if !nothing.IsError() || nothing.ErrorType() == "" {
		t.Error("the zero Result is no error")
	}
	assertEnvelope(t, nothing.JSON())
}

func TestOutputText(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ in, want string }{
		{`{"result":"a\nb"}`, "a\nb"},
		{`{"output":"a"}`, "a"},
		{`{"id":"x","content":"# T"}`, "# T"},
		{`{"error":"no"}`, "no"},
		{`{"error":"no","result":"a"}`, "a"},
		{`{"result":{"a":1}}`, `{"result":{"a":1}}`},
		{"{ \"id\": 1,\n \"b\": [1, 2] }", `{"id":1,"b":[1,2]}`},
		{`["a"]`, `["a"]`},
		{"not json\x1b", "not json"},
		{"", ""},
		{`{"result":"\u001b[31mred"}`, "[31mred"},
	} {
		if got := tool.OutputText(tt.in); got != tt.want {
			t.Errorf("OutputText(%q) = %q, want %q", tt.in, got, tt.want)
		}
	}
}

func FuzzOutputText(f *testing.F) {
	f.Add(`{"result":"a"}`)
	f.Add(`{"content":`)
	f.Fuzz(func(t *testing.T, s string) {
		if got := tool.OutputText(s); !utf8.ValidString(got) {
			t.Errorf("OutputText(%q) = %q, which is not UTF-8", s, got)
		}
	})
}
