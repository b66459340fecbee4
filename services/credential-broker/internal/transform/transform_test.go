package transform_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/services/credential-broker/internal/scan"
	"signalbox.dev/services/credential-broker/internal/transform"
)

var (
	prefixed = transform.Rules{ToolPrefix: "mcp_"}
	told     = transform.Rules{System: []string{`You are "Signalbox".`, "Second\n<b>"}}
)

// apply returns the edited body as it is sent.
func apply(t testing.TB, r transform.Rules, body string) string {
	t.Helper()
	edits, _, err := transform.NewMessages(r).Request([]byte(body))
	if err != nil {
		t.Fatalf("Request(%.200s) = %v", body, err)
	}
	return read(t, edits, body)
}

func read(t testing.TB, edits transform.Edits, body string) string {
	t.Helper()
	out, err := io.ReadAll(edits.Reader([]byte(body)))
	if err != nil || len(out) != edits.Size(len(body)) {
		t.Fatalf("Body has %d bytes, %v, Size says %d", len(out), err, edits.Size(len(body)))
	}
	return string(out)
}

func TestPrefix(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, in, want string }{
		{
			"tools", `{"tools":[{"name":"a","input_schema":{"name":"x","type":"object"}},{"type":"custom","name":"b"}]}`,
			`{"tools":[{"name":"mcp_a","input_schema":{"name":"x","type":"object"}},{"type":"custom","name":"mcp_b"}]}`,
		},
		{"name that begins with the prefix", `{"tools":[{"name":"mcp_a"}]}`, `{"tools":[{"name":"mcp_mcp_a"}]}`},
		{
			"server tools", `{"tools":[{"type":"web_search_20250305","name":"web_search"},{"type":"bash_20250124","name":"bash"},{"type":"mcp_toolset","mcp_server_name":"s"}]}`,
			`{"tools":[{"type":"web_search_20250305","name":"web_search"},{"type":"bash_20250124","name":"bash"},{"type":"mcp_toolset","mcp_server_name":"s"}]}`,
		},
		{
			"type behind the name", `{"tools":[{"name":"web_search","type":"web_search_20250305"},{"name":"a","type":"custom"}]}`,
			`{"tools":[{"name":"web_search","type":"web_search_20250305"},{"name":"mcp_a","type":"custom"}]}`,
		},
		{"null type", `{"tools":[{"type":null,"name":"a"}]}`, `{"tools":[{"type":null,"name":"mcp_a"}]}`},
		{"choice", `{"tool_choice":{"type":"tool","name":"a"}}`, `{"tool_choice":{"type":"tool","name":"mcp_a"}}`},
		{"choice of any", `{"tool_choice":{"type":"any","name":"a"}}`, `{"tool_choice":{"type":"any","name":"a"}}`},
		{
			"choice of a server tool", `{"tool_choice":{"type":"tool","name":"bash"},"tools":[{"type":"bash_20250124","name":"bash"}]}`,
			`{"tool_choice":{"type":"tool","name":"bash"},"tools":[{"type":"bash_20250124","name":"bash"}]}`,
		},
		{
			"history", `{"messages":[{"role":"user","content":"name"},{"role":"assistant","content":[{"type":"text","text":"tool_use","name":"n"},{"type":"tool_use","id":"1","name":"a","input":{"name":"a","type":"tool_use"}},{"type":"server_tool_use","name":"web_search"},{"type":"mcp_tool_use","name":"m"}]},{"role":"user","content":[{"type":"tool_result","content":[{"type":"tool_use","name":"deep"}]}]}]}`,
			`{"messages":[{"role":"user","content":"name"},{"role":"assistant","content":[{"type":"text","text":"tool_use","name":"n"},{"type":"tool_use","id":"1","name":"mcp_a","input":{"name":"a","type":"tool_use"}},{"type":"server_tool_use","name":"web_search"},{"type":"mcp_tool_use","name":"m"}]},{"role":"user","content":[{"type":"tool_result","content":[{"type":"tool_use","name":"deep"}]}]}]}`,
		},
		{
			"history of the provider's own tool", `{"messages":[{"content":[{"type":"tool_use","name":"bash"},{"type":"tool_use","name":"b\u0061sh"},{"type":"tool_use","name":"a"}]}],"tools":[{"type":"bash_20250124","name":"bash"}]}`,
			`{"messages":[{"content":[{"type":"tool_use","name":"bash"},{"type":"tool_use","name":"b\u0061sh"},{"type":"tool_use","name":"mcp_a"}]}],"tools":[{"type":"bash_20250124","name":"bash"}]}`,
		},
		{
			"everything else stays", "{\n \"max_tokens\" : 9007199254740993 , \"x\":1e400,\"tools\":[ { \"name\" : \"a\" } ],\"x\":2,\"metadata\":{\"tools\":[{\"name\":\"b\"}]}}  \n",
			"{\n \"max_tokens\" : 9007199254740993 , \"x\":1e400,\"tools\":[ { \"name\" : \"mcp_a\" } ],\"x\":2,\"metadata\":{\"tools\":[{\"name\":\"b\"}]}}  \n",
		},
		{"escapes", `{"t\u006fols":[{"n\u0061me":"\u0061\"","typ\u0065":"cust\u006fm"}]}`, `{"t\u006fols":[{"n\u0061me":"mcp_\u0061\"","typ\u0065":"cust\u006fm"}]}`},
		{"twice", `{"tools":[{"name":"a","name":"b"}],"tools":[{"name":"c"}]}`, `{"tools":[{"name":"mcp_a","name":"mcp_b"}],"tools":[{"name":"mcp_c"}]}`},
		{
			"other types", `{"tools":{"name":"a"},"messages":[1,null,"x",{"content":null},{"content":[1,[],{"type":5,"name":"x"},{"type":"tool_use","name":7}]}],"tool_choice":"auto"}`,
			`{"tools":{"name":"a"},"messages":[1,null,"x",{"content":null},{"content":[1,[],{"type":5,"name":"x"},{"type":"tool_use","name":7}]}],"tool_choice":"auto"}`,
		},
		{"empty", `{}`, `{}`},
		{"no object", `[{"tools":[{"name":"a"}]}]`, `[{"tools":[{"name":"a"}]}]`},
		{"nothing", ``, ``},
		{"no JSON", `{"tools":[{"name":"a"}]`, `{"tools":[{"name":"a"}]`},
		{"more behind it", `{"tools":[{"name":"a"}]} {}`, `{"tools":[{"name":"a"}]} {}`},
	}
	for _, tt := range tests {
		if diff := cmp.Diff(tt.want, apply(t, prefixed, tt.in)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

func TestSystem(t *testing.T) {
	t.Parallel()
	const second = `{"type":"text","text":"Second\n<b>"}`
	const blocks = `{"type":"text","text":"You are \"Signalbox\"."},` + second
	tests := []struct{ name, in, want string }{
		{"none", `{"model":"m"}`, `{"system":[` + blocks + `],"model":"m"}`},
		{"empty request", `{ }`, `{"system":[` + blocks + `] }`},
		{"text", `{"system":"Be \"brief\"\u0021","a":1}`, `{"system":[` + blocks + `,{"type":"text","text":"Be \"brief\"\u0021"}],"a":1}`},
		{"empty text", `{"system":""}`, `{"system":[` + blocks + `]}`},
		{"null", `{"system":null,"a":1}`, `{"system":[` + blocks + `],"a":1}`},
		{"blocks", `{"system": [ {"type":"text","text":"x","cache_control":{"type":"ephemeral"}} ]}`, `{"system": [` + blocks + `, {"type":"text","text":"x","cache_control":{"type":"ephemeral"}} ]}`},
		{"no blocks", `{"system":[]}`, `{"system":[` + blocks + `]}`},
		{"something else", `{"system":7}`, `{"system":7}`},
		{"the first text", `{"system":"You are \u0022Signalbox\"."}`, `{"system":[` + blocks + `]}`},
		{"the first block", `{"system":[ {"text":"You are \"Signalbox\".","type":"text","cache_control":{"type":"ephemeral"}} , {"type":"text","text":"x"}]}`, `{"system":[ {"text":"You are \"Signalbox\".","type":"text","cache_control":{"type":"ephemeral"}},` + second + ` , {"type":"text","text":"x"}]}`},
		{"the first block alone", `{"system":[{"type":"text","text":"You are \"Signalbox\"."}]}`, `{"system":[{"type":"text","text":"You are \"Signalbox\"."},` + second + `]}`},
		{"all blocks", `{"system":[` + blocks + `,{"type":"text","text":"x"}]}`, `{"system":[` + blocks + `,{"type":"text","text":"x"}]}`},
		{"the second block first", `{"system":[` + second + `]}`, `{"system":[` + blocks + `,` + second + `]}`},
		{"the first block twice", `{"system":[` + blocks + `,` + blocks + `]}`, `{"system":[` + blocks + `,` + blocks + `]}`},
		{"somewhere else", `{"metadata":{"system":"x"}}`, `{"system":[` + blocks + `],"metadata":{"system":"x"}}`},
	}
	for _, tt := range tests {
		if diff := cmp.Diff(tt.want, apply(t, told, tt.in)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

func TestWords(t *testing.T) {
	t.Parallel()
	r := transform.Rules{Words: []transform.Word{
		{From: "Open Example", To: `The "Box"`, Case: transform.Exact},
		{From: "example", To: "Signalbox", Case: transform.Keep},
		{From: "Foo", To: "Bar", Case: transform.Any},
		{From: "Élan", To: "vim", Case: transform.Exact},
	}}
	tests := []struct{ in, want string }{
		{"You are Open Example.", `You are The "Box".`},
		{"example, Example and EXAMPLE!", "signalbox, Signalbox and SIGNALBOX!"},
		{"foo FOO Foo fOO", "Bar Bar Bar Bar"},
		{"examples myexample example_1 _example Example1", "examples myexample example_1 _example Example1"},
		{"example-based, non-example; (example) \"example\" `example` **example**", "signalbox-based, non-signalbox; (signalbox) \"signalbox\" `signalbox` **signalbox**"},
		{"see /path/to/example-foo and example/docs", "see /path/to/example-foo and example/docs"},
		{`C:\example\x, https://example.dev, me@example, example.json, .example, docs.example`, `C:\example\x, https://example.dev, me@example, example.json, .example, docs.example`},
		{"An example. The end of example.\nexample", "An signalbox. The end of signalbox.\nsignalbox"},
		{"Élan élan Élans", "vim élan Élans"},
		{"naïveexample éexample 例example", "naïveexample éexample 例example"},
		{"tab\texample\nFoo", "tab\tsignalbox\nBar"},
		{"😀example😀 foo", "😀signalbox😀 Bar"},
		{"", ""},
	}
	for _, tt := range tests {
		for name, in := range map[string]string{"plain": quoted(tt.in), "escaped": escaped(tt.in)} {
			for _, form := range []struct{ body, text string }{
				{`{"system":` + in + `}`, ""}, {`{"system":[{"text":` + in + `,"type":"text"}]}`, ""},
			} {
				var got struct{ System any }
				if err := json.Unmarshal([]byte(apply(t, r, form.body)), &got); err != nil {
					t.Fatal(err)
				}
				text, ok := got.System.(string)
				if !ok {
					text = got.System.([]any)[0].(map[string]any)["text"].(string)
				}
				if text != tt.want {
					t.Errorf("%s %s: got %q, want %q", name, form.body, text, tt.want)
				}
			}
		}
	}
	const untouched = `{"messages":[{"role":"user","content":"example"}],"tools":[{"name":"example","description":"example"}],"system":[{"type":"text","example":"example"}]}`
	if got := apply(t, r, untouched); got != untouched {
		t.Errorf("words outside of the system prompt are replaced: %s", got)
	}
	const odd = `{"system":"\ud800 \/ \u00e9 ` + "\xff" + ` %s \/ \ud83d\ude00"}`
	if got, want := apply(t, r, fmt.Sprintf(odd, `\u0066o\u006f`)), fmt.Sprintf(odd, "Bar"); got != want {
		t.Errorf("more than the word is changed: got %q, want %q", got, want)
	}
	both := transform.Rules{System: []string{"example"}, Words: r.Words}
	if got, want := apply(t, both, `{"system":"an example"}`), `{"system":[{"type":"text","text":"example"},{"type":"text","text":"an signalbox"}]}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func quoted(s string) string {
	b, _ := json.Marshal(s)
	return string(b)
}

// escaped returns a JSON string with every character escaped.
func escaped(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		if r > 0xffff {
			b.WriteString(strings.Trim(quoted(string(r)), `"`))
			continue
		}
		b.WriteString(`\u`)
		for shift := 12; shift >= 0; shift -= 4 {
			b.WriteByte("0123456789abcdef"[r>>shift&15])
		}
	}
	return b.String() + `"`
}

func TestEvent(t *testing.T) {
	t.Parallel()
	const request = `{"tools":[{"name":"a"},{"type":"bash_20250124","name":"bash"},{"type":"x_1","name":"mcp_own"}]}`
	_, answers, err := transform.NewMessages(prefixed).Request([]byte(request))
	if err != nil {
		t.Fatal(err)
	}
	start := func(block string) string {
		return `{"type":"content_block_start","index":1,"content_block":` + block + `}`
	}
	tests := []struct{ name, in, want string }{
		{"tool", start(`{"type":"tool_use","id":"t","name":"mcp_a","input":{}}`), start(`{"type":"tool_use","id":"t","name":"a","input":{}}`)},
		{"once", start(`{"type":"tool_use","name":"mcp_mcp_a"}`), start(`{"type":"tool_use","name":"mcp_a"}`)},
		{"name first", start(`{"name":"mcp_a","type":"tool_use"}`), start(`{"name":"a","type":"tool_use"}`)},
		{"block first", `{"content_block":{"name":"mcp_a","type":"tool_use"},"type":"content_block_start"}`, `{"content_block":{"name":"a","type":"tool_use"},"type":"content_block_start"}`},
		{"escaped", start(`{"type":"tool_use","name":"\u006dcp\u005fa"}`), start(`{"type":"tool_use","name":"a"}`)},
		{"space and padding", `{ "type" : "content_block_start", "content_block" : { "type" : "tool_use", "name" : "mcp_a" } }   `, `{ "type" : "content_block_start", "content_block" : { "type" : "tool_use", "name" : "a" } }   `},
		{"without", start(`{"type":"tool_use","name":"a"}`), ""},
		{"half", start(`{"type":"tool_use","name":"mcp"}`), ""},
		{"the provider's own", start(`{"type":"tool_use","name":"mcp_own"}`), ""},
		{"server tool", start(`{"type":"server_tool_use","name":"mcp_a"}`), ""},
		{"remote tool", start(`{"type":"mcp_tool_use","name":"mcp_a"}`), ""},
		{"text", start(`{"type":"text","text":"","name":"mcp_a"}`), ""},
		{"input", start(`{"type":"tool_use","name":"a","input":{"type":"tool_use","name":"mcp_a"}}`), ""},
		{"another event", `{"type":"content_block_delta","content_block":{"type":"tool_use","name":"mcp_a"}}`, ""},
		{"no type", `{"content_block":{"type":"tool_use","name":"mcp_a"}}`, ""},
		{"no block", `{"type":"content_block_start","content_block":[{"type":"tool_use","name":"mcp_a"}]}`, ""},
		{"cut short", strings.TrimSuffix(start(`{"type":"tool_use","name":"mcp_a","input":{"x":"...`), "}"), strings.TrimSuffix(start(`{"type":"tool_use","name":"a","input":{"x":"...`), "}")},
		{"cut in the name", `{"type":"content_block_start","content_block":{"type":"tool_use","name":"mcp_`, ""},
		{"no JSON", `nonsense`, ""},
		{"nothing", ``, ""},
	}
	for _, tt := range tests {
		want := tt.want
		if want == "" {
			want = tt.in
		}
		var edits transform.Edits
		for _, c := range answers.Event([]byte(tt.in), nil) {
			edits = append(edits, transform.Edit{At: c.From, Remove: c.To - c.From})
		}
		if got := read(t, edits, tt.in); got != want {
			t.Errorf("%s: got %s, want %s", tt.name, got, want)
		}
	}
}

//nolint:paralleltest // testing.AllocsPerRun counts the allocations of all goroutines
func TestEventDoesNotAllocate(t *testing.T) {
	_, answers, err := transform.NewMessages(prefixed).Request([]byte(`{"tools":[{"name":"bash","type":"bash_1"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	cuts := make([]scan.Span, 0, 4)
	for _, in := range []string{
		`{"type":"content_block_start","index":1,"content_block":{"type":"tool_use","name":"mcp_a"}}`,
		`{"type":"content_block_start","index":1,"content_block":{"type":"text","text":"x"}}`,
		`{"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"x"}}`,
	} {
		data := []byte(in)
		if n := testing.AllocsPerRun(100, func() { cuts = answers.Event(data, cuts[:0]) }); n != 0 {
			t.Errorf("%s: %v allocations, want none", in, n)
		}
	}
}

func TestWhole(t *testing.T) {
	t.Parallel()
	_, answers, err := transform.NewMessages(prefixed).Request([]byte(`{}`))
	if err != nil {
		t.Fatal(err)
	}
	const in = `{"id":"m","content":[{"type":"text","text":"mcp_a","name":"mcp_a"},{"type":"tool_use","name":"mcp_a","input":{"n":9007199254740993,"name":"mcp_x"}},{"name":"mcp_mcp_b","type":"tool_use"},{"type":"server_tool_use","name":"mcp_c"}],"usage":{"input_tokens":1}}`
	want := strings.NewReplacer(`use","name":"mcp_a"`, `use","name":"a"`, "mcp_mcp_b", "mcp_b").Replace(in)
	if got := read(t, answers.Whole([]byte(in)), in); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for _, other := range []string{`{"content":"mcp_a"}`, `{"type":"error","error":{"type":"x","message":"mcp_"}}`, `[]`, ``, in[:len(in)-2]} {
		if edits := answers.Whole([]byte(other)); len(edits) != 0 {
			t.Errorf("Whole(%s) = %v, want no edits", other, edits)
		}
	}
}

func TestNothingToDo(t *testing.T) {
	t.Parallel()
	if m := transform.NewMessages(transform.Rules{}); m != nil {
		t.Errorf("NewMessages of no rules = %v, want nil", m)
	}
	if _, answers, err := transform.NewMessages(told).Request([]byte(`{}`)); answers != nil || err != nil {
		t.Errorf("without a prefix there are answers to be changed: %v, %v", answers, err)
	}
}

func TestTooMany(t *testing.T) {
	t.Parallel()
	all := transform.Rules{ToolPrefix: "p", Words: []transform.Word{{From: "x", To: "y", Case: transform.Exact}}}
	for name, body := range map[string]string{
		"tools":   `{"tools":[` + strings.Repeat(`{"name":""},`, 70_000) + `{}]}`,
		"history": `{"messages":[` + strings.Repeat(`{"content":[{"type":"tool_use","name":""}]},`, 70_000) + `{}]}`,
		"words":   `{"system":"` + strings.Repeat("x ", 70_000) + `"}`,
		"blocks":  `{"system":[` + strings.Repeat(`{"text":"x"},`, 70_000) + `{}]}`,
		"names":   `{"tools":[{` + strings.Repeat(`"name":"",`, 70_000) + `"x":1}]}`,
	} {
		if _, _, err := transform.NewMessages(all).Request([]byte(body)); !errors.Is(err, transform.ErrTooMany) {
			t.Errorf("%s: %v, want ErrTooMany", name, err)
		}
	}
	deep := `{"tools":` + strings.Repeat(`[{"name":`, 500_000) + "1" + strings.Repeat("}]", 500_000) + "}"
	if got := apply(t, all, deep); got != deep {
		t.Error("a deeply nested body is changed")
	}
}

func TestBody(t *testing.T) {
	t.Parallel()
	edits := transform.Edits{{At: 0, Insert: []byte("<")}, {At: 2, Remove: 3, Insert: []byte("-")}, {At: 7, Remove: 1}, {At: 9, Insert: []byte(">")}}
	if err := iotest.TestReader(edits.Reader([]byte("abCDEfgHi")), []byte("<ab-fgi>")); err != nil {
		t.Error(err)
	}
	if edits.Size(9) != 8 {
		t.Errorf("Size = %d, want 8", edits.Size(9))
	}
}

// reference does on decoded JSON what Request does on bytes.
func reference(body []byte, prefix string) any {
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	var v any
	if dec.Decode(&v) != nil {
		return nil
	}
	top, ok := v.(map[string]any)
	if !ok {
		return v
	}
	var own []string
	objects := func(v any) (all []map[string]any) {
		list, _ := v.([]any)
		for _, e := range list {
			if o, ok := e.(map[string]any); ok {
				all = append(all, o)
			}
		}
		return all
	}
	for _, tool := range objects(top["tools"]) {
		name, named := tool["name"].(string)
		if typ, ok := tool["type"].(string); named && ok && typ != "custom" {
			own = append(own, name)
		} else if named {
			tool["name"] = prefix + name
		}
	}
	put := func(o map[string]any, typ string) {
		if name, ok := o["name"].(string); ok && o["type"] == typ && !slices.Contains(own, name) {
			o["name"] = prefix + name
		}
	}
	for _, m := range objects(top["messages"]) {
		for _, b := range objects(m["content"]) {
			put(b, "tool_use")
		}
	}
	if c, ok := top["tool_choice"].(map[string]any); ok {
		put(c, "tool")
	}
	if len(told.System) == 0 {
		return v
	}
	var blocks []any
	for _, text := range told.System {
		blocks = append(blocks, map[string]any{"type": "text", "text": text})
	}
	switch s := top["system"].(type) {
	case nil:
	case string:
		if s != "" && s != told.System[0] {
			blocks = append(blocks, map[string]any{"type": "text", "text": s})
		}
	case []any:
		same := 0
		for same < min(len(s), len(told.System)) {
			if b, ok := s[same].(map[string]any); !ok || b["text"] != told.System[same] {
				break
			}
			same++
		}
		blocks = append(append(slices.Clone(s[:same]), blocks[same:]...), s[same:]...)
	default:
		return v
	}
	top["system"] = blocks
	return v
}

// twice reports whether any object in JSON has a duplicate name, which parsers treat
// differently.
func twice(dec *json.Decoder) bool {
	tok, err := dec.Token()
	if err != nil {
		return false
	}
	switch tok {
	case json.Delim('{'):
		seen := map[string]bool{}
		for dec.More() {
			name, err := dec.Token()
			if err != nil {
				return false
			}
			if seen[name.(string)] || twice(dec) {
				return true
			}
			seen[name.(string)] = true
		}
		_, _ = dec.Token()
	case json.Delim('['):
		for dec.More() {
			if twice(dec) {
				return true
			}
		}
		_, _ = dec.Token()
	}
	return false
}

// Valid JSON comes out as if it had been decoded, changed and encoded; invalid JSON does not
// become valid; and apart from the insertions every byte stays.
func FuzzRequest(f *testing.F) {
	for _, s := range []string{
		`{"tools":[{"name":"a"},{"type":"web_search_1","name":"w"}],"messages":[{"content":[{"type":"tool_use","name":"a"},{"name":"w","type":"tool_use"}]}],"tool_choice":{"type":"tool","name":"w"}}`,
		`{"system":"x"}`, `{"system":["a",{}],"x":1}`, `{"system":null}`, `{ }`, `{"system":""}`, `{"tools":[{"type":null,"name":"\u0061"}]}`, `[`, `{"a":1`, `{"system":[}`, ``, `7`,
	} {
		f.Add([]byte(s))
	}
	rules := transform.NewMessages(transform.Rules{ToolPrefix: "mcp_", System: told.System})
	f.Fuzz(func(t *testing.T, in []byte) {
		edits, _, err := rules.Request(in)
		if err != nil {
			t.Fatalf("Request(%q) = %v", in, err)
		}
		out := []byte(read(t, edits, string(in)))
		if !json.Valid(in) {
			if json.Valid(out) {
				t.Fatalf("%q becomes valid: %q", in, out)
			}
			return
		}
		if !json.Valid(out) {
			t.Fatalf("%q becomes invalid: %q", in, out)
		}
		if twice(json.NewDecoder(bytes.NewReader(in))) {
			return
		}
		dec := json.NewDecoder(bytes.NewReader(out))
		dec.UseNumber()
		var got any
		if err := dec.Decode(&got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(reference(in, "mcp_"), got); diff != "" {
			t.Fatalf("%q (-want +got):\n%s", in, diff)
		}
	})
}

func BenchmarkRequest(b *testing.B) {
	turn := `{"role":"assistant","content":[{"type":"text","text":"` + strings.Repeat("Some words. ", 50) + `"},{"type":"tool_use","id":"t1","name":"doc_create","input":{"title":"x"}}]},`
	body := []byte(`{"model":"m","system":"` + strings.Repeat("Be brief. ", 200) + `","tools":[` + strings.Repeat(`{"name":"a","description":"d","input_schema":{"type":"object","properties":{"a":{"type":"string"}}}},`, 20) + `{"name":"z"}],"messages":[` + strings.Repeat(turn, 100) + `{"role":"user","content":"x"}]}`)
	m := transform.NewMessages(transform.Rules{ToolPrefix: "mcp_", System: told.System})
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		edits, _, err := m.Request(body)
		if err != nil || len(edits) == 0 {
			b.Fatal(err)
		}
	}
}

func BenchmarkEvent(b *testing.B) {
	_, answers, err := transform.NewMessages(prefixed).Request([]byte(`{}`))
	if err != nil {
		b.Fatal(err)
	}
	data := []byte(`{"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"toolu_01","name":"mcp_a","input":{}}}`)
	var cuts []scan.Span
	b.ReportAllocs()
	for b.Loop() {
		cuts = answers.Event(data, cuts[:0])
	}
}
