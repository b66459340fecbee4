package modelmsg_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/pkg/fault"

	"signalbox.dev/services/agent-runner/internal/llm/llmtest"
	"signalbox.dev/services/agent-runner/internal/modelmsg"
)

func TestInput(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, in, want string }{
		{"string", `"hi"`, `"hi"`},
		{"string is written in one way", `"\u0068i\/\n\u00e9"`, `"hi/\né"`},
		{"lone surrogate and NUL", `"a\ud83d\u0000b"`, "\"a\ufffd\ufffdb\""},
		{"text", ` [ { "text" : "hi", "type" : "text" , "extra" : {} } ] `, `[{"type":"text","text":"hi"}]`},
		{"empty texts go", `[{"type":"text","text":""},{"type":"text","text":"x"}]`, `[{"type":"text","text":"x"}]`},
		{
			"data URL is split", `[{"type":"file","mediaType":"image/png","data":"data:image/png;base64,iVBORw0KGgo=","filename":"y.png"}]`,
			`[{"type":"file","mediaType":"image/png","data":"iVBORw0KGgo=","filename":"y.png"}]`,
		},
		{
			"data URL names the type", `[{"type":"file","data":"DATA:Image/PNG;charset=x;base64,iVBORw0KGgo"}]`,
			`[{"type":"file","mediaType":"image/png","data":"iVBORw0KGgo="}]`,
		},
		{"plain data URL", `[{"type":"file","data":"data:,a%20b"}]`, `[{"type":"file","mediaType":"text/plain","data":"YSBi"}]`},
		{"escaped base64", `[{"type":"file","mediaType":"a/b","data":"data:;base64,YSBi%3D"}]`, ""},
		{"https URL", `[{"type":"file","mediaType":"image/png","data":"HTTPS://x.test/y?z=1"}]`, `[{"type":"file","mediaType":"image/png","data":"https://x.test/y?z=1"}]`},
		{"base64", `[{"type":"file","mediaType":"Application/PDF; v=1","data":"JVBERi0=","filename":null}]`, `[{"type":"file","mediaType":"application/pdf","data":"JVBERi0="}]`},
		{"file name is cleaned", `[{"type":"file","mediaType":"a/b","data":"YWJj","filename":"..\\x/a\u0007 b\u202etxt\u200b.exe"}]`, `[{"type":"file","mediaType":"a/b","data":"YWJj","filename":"a btxt.exe"}]`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := modelmsg.Input(json.RawMessage(tt.in), modelmsg.Limits{})
			if tt.want == "" {
				if err == nil {
					t.Errorf("Input(%s) = %s, want an error", tt.in, got)
				}
				return
			}
			if err != nil || string(got) != tt.want {
				t.Errorf("Input(%s) = %s, %v, want %s", tt.in, got, err, tt.want)
			}
			if err := llmtest.ValidContent("user", got); err != nil {
				t.Errorf("ValidContent(%s) = %v", got, err)
			}
		})
	}
}

func TestInputErrors(t *testing.T) {
	t.Parallel()
	limits := modelmsg.Limits{Bytes: 2000, Parts: 3, TextBytes: 100, FileBytes: 100}
	long := strings.Repeat("x", 101)
	tests := []struct {
		name, in string
		kind     fault.Kind
		want     string
	}{
		{"nothing", ``, fault.Invalid, "string or an array"},
		{"null", `null`, fault.Invalid, "string or an array"},
		{"object", `{}`, fault.Invalid, "string or an array"},
		{"number", `1`, fault.Invalid, "string or an array"},
		{"broken string", `"a`, fault.Invalid, "not valid JSON"},
		{"broken array", `[{"type":"text","text":"a"}`, fault.Invalid, "not valid JSON"},
		{"broken part", `[{]`, fault.Invalid, "not valid JSON"},
		{"blank", `" \n"`, fault.Invalid, "empty"},
		{"no parts", `[]`, fault.Invalid, "empty"},
		{"blank parts", `[{"type":"text","text":" "}]`, fault.Invalid, "empty"},
		{"part is not an object", `["a"]`, fault.Invalid, "content[0] has to be an object"},
		{"no type", `[{"text":"a"}]`, fault.Invalid, `content[0].type`},
		{"unknown type", `[{"type":"text","text":"a"},{"type":"video"}]`, fault.Invalid, `content[1]: unknown part type "video"; use "text" or "file"`},
		{"image part", `[{"type":"image","image":"x"}]`, fault.Invalid, `image parts are not accepted; send images as {"type":"file"`},
		{"tool call", `[{"type":"tool-call"}]`, fault.Invalid, "unknown part type"},
		{"text is not a string", `[{"type":"text","text":1}]`, fault.Invalid, "content[0].text"},
		{"no data", `[{"type":"file","mediaType":"a/b"}]`, fault.Invalid, "content[0].data"},
		{"data is not a string", `[{"type":"file","mediaType":"a/b","data":{"type":"data"}}]`, fault.Invalid, "content[0].data"},
		{"no media type", `[{"type":"file","data":"YWJj"}]`, fault.Invalid, "content[0].mediaType"},
		{"media type of any image", `[{"type":"file","mediaType":"image/*","data":"YWJj"}]`, fault.Invalid, "content[0].mediaType"},
		{"media type is not a string", `[{"type":"file","mediaType":5,"data":"YWJj"}]`, fault.Invalid, "content[0].mediaType"},
		{"http", `[{"type":"file","mediaType":"a/b","data":"http://x.test"}]`, fault.Invalid, "use https"},
		{"other scheme", `[{"type":"file","mediaType":"a/b","data":"file:///etc/passwd"}]`, fault.Invalid, `scheme "file"`},
		{"credentials in the URL", `[{"type":"file","mediaType":"a/b","data":"https://u:p@x.test"}]`, fault.Invalid, "not a usable https URL"},
		{"no host", `[{"type":"file","mediaType":"a/b","data":"https:///x"}]`, fault.Invalid, "not a usable https URL"},
		{"base64 with a line break", `[{"type":"file","mediaType":"a/b","data":"YW\nJj"}]`, fault.Invalid, "base64"},
		{"base64url", `[{"type":"file","mediaType":"a/b","data":"_-8="}]`, fault.Invalid, "base64"},
		{"base64 of a wrong length", `[{"type":"file","mediaType":"a/b","data":"YWJjZ"}]`, fault.Invalid, "base64"},
		{"base64 with wrong padding", `[{"type":"file","mediaType":"a/b","data":"YWJj=="}]`, fault.Invalid, "base64"},
		{"data URL without comma", `[{"type":"file","mediaType":"a/b","data":"data:image/png;base64"}]`, fault.Invalid, "comma"},
		{"data URL with a bad escape", `[{"type":"file","mediaType":"a/b","data":"data:,%zz"}]`, fault.Invalid, "escape"},
		{"empty data URL", `[{"type":"file","mediaType":"a/b","data":"data:image/png;base64,"}]`, fault.Invalid, "base64"},
		{"file name too long", `[{"type":"file","mediaType":"a/b","data":"YWJj","filename":"` + strings.Repeat("x", 300) + `"}]`, fault.Invalid, "content[0].filename"},
		{"too many bytes", `"` + strings.Repeat("x", 2000) + `"`, fault.TooLarge, "2002 bytes"},
		{"too much text", `"` + long + `"`, fault.TooLarge, "101 bytes"},
		{"too much text in parts", `[{"type":"text","text":"` + long + `"}]`, fault.TooLarge, "content[0]"},
		{"too many parts", `[{"type":"text","text":"a"},{"type":"text","text":"a"},{"type":"text","text":"a"},{"type":"text","text":"a"}]`, fault.TooLarge, "more than 3 parts"},
		{"file too large", `[{"type":"file","mediaType":"a/b","data":"` + strings.Repeat("YWJj", 26) + `"}]`, fault.TooLarge, "content[0]: the file"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := modelmsg.Input(json.RawMessage(tt.in), limits)
			if f := fault.From(err); err == nil || f.Kind != tt.kind || !strings.Contains(f.Message, tt.want) || f.Code == "" {
				t.Errorf("Input(%s) = %s, %v, want %v with %q", tt.in, got, err, tt.kind, tt.want)
			}
		})
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	in := `[{"type":"reasoning","text":"think","providerOptions":{"anthropic":{"signature":"SIG"}}},
		{"type":"text","text":"a\n"},{"type":"tool-call","toolCallId":"c1","toolName":"t","input":{"n": 9007199254740993},"providerExecuted":true},
		{"type":"tool-result","toolCallId":"c1","toolName":"t","output":{"type":"json","value":[{"url":"https://a"}]}},
		{"type":"file","mediaType":"image/png","data":{"type":"url","url":"https://x"}},{"type":"later","x":1}]`
	parts, err := modelmsg.Parse(json.RawMessage(in))
	if err != nil {
		t.Fatal(err)
	}
	for i := range parts {
		parts[i].Raw = nil
	}
	want := []modelmsg.Part{
		{Type: "reasoning", Text: "think", ProviderOptions: json.RawMessage(`{"anthropic":{"signature":"SIG"}}`)},
		{Type: "text", Text: "a\n"},
		{Type: "tool-call", ToolCallID: "c1", ToolName: "t", Input: json.RawMessage(`{"n": 9007199254740993}`), ProviderExecuted: true},
		{Type: "tool-result", ToolCallID: "c1", ToolName: "t", Output: modelmsg.Output{Type: "json", Value: json.RawMessage(`[{"url":"https://a"}]`)}},
		{Type: "file", MediaType: "image/png", Data: "https://x"},
		{Type: "later"},
	}
	if diff := cmp.Diff(want, parts); diff != "" {
		t.Errorf("Parse (-want +got):\n%s", diff)
	}
	if err := llmtest.ValidContent("user", json.RawMessage(in)); err == nil || !strings.Contains(err.Error(), `content[0]: a user message has no "reasoning" part`) {
		t.Errorf("ValidContent(user) = %v", err)
	}
}

func TestParseErrors(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		``: "neither", `1`: "neither", `[1]`: "content[0]: a part is an object", `[{}]`: "needs a type", `[{"type":"text"}`: "not valid JSON",
		`"a"x`: "not valid JSON", `[{"type":"tool-call","toolCallId":"","toolName":"x","input":{}}]`: "needs toolCallId",
		`[{"type":"tool-call","toolCallId":"a","toolName":"x"}]`: "needs input", `[{"type":"tool-result","toolCallId":"a","toolName":"x"}]`: "needs output",
		`[{"type":"file","mediaType":"a/b"}]`: "needs data",
	} {
		if _, err := modelmsg.Parse(json.RawMessage(in)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Parse(%s) = %v, want %q", in, err, want)
		}
	}
	if err := llmtest.ValidContent("tool", json.RawMessage(`"a"`)); err == nil {
		t.Error("ValidContent of a tool message that is a string = nil, want an error")
	}
}

func TestToolResults(t *testing.T) {
	t.Parallel()
	got := modelmsg.ToolResults([]modelmsg.Result{
		{CallID: "c1", ToolName: "doc_create", Envelope: json.RawMessage(` {"id": "d1", "n": 12345678901234567890}`)},
		{CallID: "c2", ToolName: "a", Envelope: json.RawMessage(`"plain\n"`)},
		{CallID: "c3", ToolName: "b", Envelope: json.RawMessage(`{"error":"no"}`), IsError: true},
		{CallID: "c4", ToolName: "c", Envelope: json.RawMessage(`"no"`), IsError: true},
		{CallID: "c5", ToolName: "d", Envelope: json.RawMessage(`{"broken`)},
		{CallID: "c6", ToolName: "e"},
		{CallID: "c7", ToolName: "f", Envelope: json.RawMessage(`{"result":"\ud83d\u0000"}`)},
	})
	const broken = `{"type":"error-json","value":{"error":"the tool gave an answer that is not valid JSON"}}`
	want := `[{"type":"tool-result","toolCallId":"c1","toolName":"doc_create","output":{"type":"json","value":{"id":"d1","n":12345678901234567890}}},` +
		`{"type":"tool-result","toolCallId":"c2","toolName":"a","output":{"type":"text","value":"plain\n"}},` +
		`{"type":"tool-result","toolCallId":"c3","toolName":"b","output":{"type":"error-json","value":{"error":"no"}}},` +
		`{"type":"tool-result","toolCallId":"c4","toolName":"c","output":{"type":"error-text","value":"no"}},` +
		`{"type":"tool-result","toolCallId":"c5","toolName":"d","output":` + broken + `},` +
		`{"type":"tool-result","toolCallId":"c6","toolName":"e","output":` + broken + `},` +
		`{"type":"tool-result","toolCallId":"c7","toolName":"f","output":{"type":"json","value":{"result":"\ufffd\ufffd"}}}]`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("ToolResults (-want +got):\n%s", diff)
	}
	if err := llmtest.ValidContent("tool", got); err != nil {
		t.Errorf("ValidContent(tool) = %v", err)
	}
	if got := string(modelmsg.ToolResults(nil)); got != "[]" {
		t.Errorf("ToolResults(nil) = %s, want []", got)
	}
}

func TestToolResultsWithAnImage(t *testing.T) {
	t.Parallel()
	envelope := func(image string) json.RawMessage {
		return json.RawMessage(`{"result":"a page","image":` + image + `}`)
	}
	const good = `{"type":"file","mediaType":"image/jpeg","data":"/9j/AA=="}`
	for _, tt := range []struct {
		name string
		in   modelmsg.Result
		want string
	}{
		{"an image", modelmsg.Result{HasImage: true, Envelope: envelope(good)}, `{"type":"content","value":[{"type":"text","text":"{\"result\":\"a page\"}"},{"type":"file-data","data":"/9j/AA==","mediaType":"image/jpeg"}]}`},
		{"of a tool without images", modelmsg.Result{Envelope: envelope(good)}, `{"type":"json","value":{"result":"a page","image":` + good + `}}`},
		{"an error", modelmsg.Result{HasImage: true, IsError: true, Envelope: envelope(good)}, `{"type":"error-json","value":{"result":"a page","image":` + good + `}}`},
		{"no image", modelmsg.Result{HasImage: true, Envelope: json.RawMessage(`{"result":"x"}`)}, `{"type":"json","value":{"result":"x"}}`},
		{"no file", modelmsg.Result{HasImage: true, Envelope: envelope(`"x"`)}, `{"type":"json","value":{"result":"a page","image":"x"}}`},
		{"another type", modelmsg.Result{HasImage: true, Envelope: envelope(`{"type":"file","mediaType":"image/svg+xml","data":"AAAA"}`)}, `{"type":"json","value":{"result":"a page","image":{"type":"file","mediaType":"image/svg+xml","data":"AAAA"}}}`},
		{"an address", modelmsg.Result{HasImage: true, Envelope: envelope(`{"type":"file","mediaType":"image/png","data":"https://x.test/y"}`)}, `{"type":"json","value":{"result":"a page","image":{"type":"file","mediaType":"image/png","data":"https://x.test/y"}}}`},
	} {
		tt.in.CallID, tt.in.ToolName = "c", "shoot"
		got := modelmsg.ToolResults([]modelmsg.Result{tt.in})
		if diff := cmp.Diff(`[{"type":"tool-result","toolCallId":"c","toolName":"shoot","output":`+tt.want+`}]`, string(got)); diff != "" {
			t.Errorf("%s: ToolResults (-want +got):\n%s", tt.name, diff)
		}
		if err := llmtest.ValidContent("tool", got); err != nil {
			t.Errorf("%s: ValidContent(tool) = %v", tt.name, err)
		}
	}
	big := modelmsg.ToolResults([]modelmsg.Result{{CallID: "c", ToolName: "t", HasImage: true, Envelope: envelope(`{"type":"file","mediaType":"image/png","data":"` + strings.Repeat("AAAA", 60_000) + `"}`)}})
	if n := modelmsg.TextBytes(big); n > 10_000 {
		t.Errorf("TextBytes of a picture with %d bytes = %d", len(big), n)
	}
}

func TestTitle(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("word ", 30)
	tests := []struct{ name, in, want string }{
		{"simple", `"Plan my week"`, "Plan my week"},
		{"first line with text", `"\n  \n##  Plan\tmy   week \nmore"`, "Plan my week"},
		{"cut between words", `"` + long + `"`, strings.TrimRight(long[:79], " ") + "…"},
		{"no space to cut at", `"` + strings.Repeat("x", 100) + `"`, strings.Repeat("x", 79) + "…"},
		{"runes, not bytes", `"` + strings.Repeat("é", 80) + `"`, strings.Repeat("é", 80)},
		{"cut at the 80th rune", `"` + strings.Repeat("x", 78) + ` yyyyy"`, strings.Repeat("x", 78) + "…"},
		{"spaces and invisible characters", `"a\u2028b\u202e\u200d\u200c c"`, "a b\u200d c"},
		{"control characters", `"a\u0007b\u200bc\ud83d"`, "abc"},
		{"part", `[{"type":"file","mediaType":"a/b","data":"YWJj","filename":"f.txt"},{"type":"text","text":"Look"}]`, "Look"},
		{"file name", `[{"type":"file","mediaType":"a/b","data":"YWJj","filename":"f.txt"}]`, "f.txt"},
		{"file without a name", `[{"type":"file","mediaType":"a/b","data":"YWJj"}]`, "Untitled"},
		{"blank", `" \n "`, "Untitled"},
		{"only marks", `"###"`, "Untitled"},
		{"broken", `{`, "Untitled"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := modelmsg.Title(json.RawMessage(tt.in)); got != tt.want {
				t.Errorf("Title(%s) = %q, want %q", tt.in, got, tt.want)
			}
		})
	}
}

func TestPlainText(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`"a"`: "a", `[]`: "", `{`: "",
		`[{"type":"reasoning","text":"no"},{"type":"text","text":"a"},{"type":"tool-call","toolCallId":"c","toolName":"t","input":{}},{"type":"text","text":"b"}]`: "ab",
	} {
		if got := modelmsg.PlainText(json.RawMessage(in)); got != want {
			t.Errorf("PlainText(%s) = %q, want %q", in, got, want)
		}
	}
}

func TestMarkCancelled(t *testing.T) {
	t.Parallel()
	const mark = `"providerOptions":{"signalbox":{"cancelled":true}`
	tests := []struct{ name, in, want string }{
		{"last text", `[{"type":"text","text":"a"},{"type":"text","text":"b"},{"type":"reasoning","text":"c"}]`, `[{"type":"text","text":"a"},{"type":"text","text":"b",` + mark + `}},{"type":"reasoning","text":"c"}]`},
		{"no parts", `[]`, `[{"type":"text","text":"",` + mark + `}}]`},
		{"only reasoning", `[{"type":"reasoning","text":"c"}]`, `[{"type":"reasoning","text":"c"},{"type":"text","text":"",` + mark + `}}]`},
		{"other options stay", `[{"type":"text","text":"b","providerOptions":{"anthropic":{"x":[1]},"signalbox":{"y":1}}}]`, `[{"type":"text","text":"b",` + mark + `,"anthropic":{"x":[1]}}}]`},
		{"broken", `[`, `[`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := modelmsg.MarkCancelled(json.RawMessage(tt.in))
			if string(got) != tt.want {
				t.Errorf("MarkCancelled(%s) = %s, want %s", tt.in, got, tt.want)
			}
			if again := modelmsg.MarkCancelled(got); string(again) != string(got) {
				t.Errorf("MarkCancelled twice = %s, want %s", again, got)
			}
			if was, is := modelmsg.Cancelled(json.RawMessage(tt.in)), modelmsg.Cancelled(got); was || is != (tt.name != "broken") {
				t.Errorf("Cancelled = %v before and %v after", was, is)
			}
		})
	}
}

// Content that Input accepts is valid stored content, and Input accepts it again with the same
// result. No content makes the readers panic.
func FuzzContent(f *testing.F) {
	for _, s := range []string{
		`"hi"`, `[{"type":"text","text":"a"}]`, `[{"type":"file","mediaType":"image/png","data":"data:image/png;base64,iVBORw0KGgo=","filename":"y.png"}]`,
		`[{"type":"file","data":"data:,a%20b"}]`, `[{"type":"file","mediaType":"a/b","data":"https://x.test/y"}]`,
		`[{"type":"reasoning","text":"t","providerOptions":{"anthropic":{"signature":"S"}}},{"type":"tool-call","toolCallId":"c","toolName":"t","input":{}}]`,
		`[{"type":"tool-result","toolCallId":"c","toolName":"t","output":{"type":"error-text","value":"x"}}]`, `"\ud83d\u0000"`, "\"\xff\"",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		if title := modelmsg.Title(in); title == "" || utf8.RuneCountInString(title) > 80 || strings.ContainsAny(title, "\r\n") {
			t.Fatalf("Title(%q) = %q", in, title)
		}
		if marked := modelmsg.MarkCancelled(in); llmtest.ValidContent("assistant", in) == nil && in[0] != '"' {
			if err := llmtest.ValidContent("assistant", marked); err != nil && utf8.Valid(in) {
				t.Fatalf("MarkCancelled(%q) = %q: %v", in, marked, err)
			}
		}
		stored, err := modelmsg.Input(in, modelmsg.Limits{})
		if err != nil {
			return
		}
		if !json.Valid(stored) || !utf8.Valid(stored) || llmtest.ValidContent("user", stored) != nil {
			t.Fatalf("Input(%q) = %q, which cannot be stored", in, stored)
		}
		again, err := modelmsg.Input(stored, modelmsg.Limits{})
		if err != nil || string(again) != string(stored) {
			t.Fatalf("Input(%q) = %q, and of that %q, %v", in, stored, again, err)
		}
	})
}

func TestModelTitle(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ text, want string }{
		{"A trip to Japan", "A trip to Japan"},
		{"\n \"A trip to Japan.\"\nMore.", "A trip to Japan"},
		{"**A trip\tto\x00 Japan**", "A trip to Japan"},
		{"# Tokyo\u202e in spring", "Tokyo in spring"},
		{"«Поездка в Японию»", "Поездка в Японию"},
		{strings.Repeat("word ", 30), strings.Repeat("word ", 11) + "word…"},
		{strings.Repeat("旅", 100), strings.Repeat("旅", 59) + "…"},
		{"", ""},
		{" \n\t\n\"\"", ""},
	} {
		got := modelmsg.ModelTitle(tt.text)
		if got != tt.want {
			t.Errorf("ModelTitle(%q) = %q, want %q", tt.text, got, tt.want)
		}
		if n := utf8.RuneCountInString(got); n > 60 {
			t.Errorf("ModelTitle(%q) has %d runes", tt.text, n)
		}
	}
}
