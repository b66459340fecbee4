package tool_test

import (
	"strings"
	"testing"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/services/tool-executor/internal/tool"
)

const schema = `{
	"type": "object",
	"properties": {
		"id": {"type": "string", "minLength": 1, "maxLength": 5},
		"limit": {"type": "integer", "minimum": 1, "maximum": 100},
		"mode": {"enum": ["a", "b"]},
		"items": {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}}
	},
	"required": ["id"],
	"additionalProperties": false
}`

func TestCheck(t *testing.T) {
	t.Parallel()
	s, err := tool.CompileSchema("t", []byte(schema))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, args, want, says string }{
		{name: "least", args: `{"id":"x"}`, want: `{"id":"x"}`},
		{name: "spaces", args: ` {"id" : "x"} `, want: `{"id":"x"}`},
		{name: "a whole number with a point", args: `{"id":"x","limit":5.0}`, want: `{"id":"x","limit":5}`},
		{name: "a whole number with an exponent", args: `{"id":"x","limit":1e1}`, want: `{"id":"x","limit":10}`},
		{name: "a key twice", args: `{"id":7,"id":"x"}`, want: `{"id":"x"}`},
		{name: "half a surrogate", args: `{"id":"\ud800"}`, want: "{\"id\":\"\uFFFD\"}"},
		{name: "nothing", args: "", says: "arguments.id: is missing"},
		{name: "no JSON", args: `{"id":`, says: "not valid JSON (it ends too early)"},
		{name: "more than JSON", args: `{"id":"x"} {}`, says: "something follows"},
		{name: "an array", args: `["x"]`, says: "must be a JSON object, not an array"},
		{name: "null", args: `null`, says: "must be a JSON object, not null"},
		{name: "wrong type", args: `{"id":7}`, says: "arguments.id: must be string, not number"},
		{name: "null for nothing", args: `{"id":"x","limit":null}`, says: "arguments.limit: must be integer, not null; leave it out instead"},
		{name: "unknown field", args: `{"id":"x","name":"y"}`, says: "arguments.name: is not known; the fields are id, items, limit, mode"},
		{name: "empty", args: `{"id":""}`, says: "arguments.id: must not be empty"},
		{name: "long", args: `{"id":"123456"}`, says: "arguments.id: has 6 characters, at most 5 are allowed"},
		{name: "too much", args: `{"id":"x","limit":101}`, says: "arguments.limit: must be at most 100"},
		{name: "too little", args: `{"id":"x","limit":0}`, says: "arguments.limit: must be at least 1"},
		{name: "fraction", args: `{"id":"x","limit":1.5}`, says: "arguments.limit: must be integer, not number"},
		{name: "enum", args: `{"id":"x","mode":"c"}`, says: "arguments.mode: value must be one of 'a', 'b'"},
		{name: "nested", args: `{"id":"x","items":[{"name":"a"},{}]}`, says: "arguments.items[1].name: is missing"},
		{name: "two mistakes", args: `{"limit":"x"}`, says: "arguments.id: is missing; arguments.limit: must be integer, not string"},
		{name: "a number without end", args: `{"id":"x","limit":1e100000000}`, says: "out of range"},
		{name: "a long number", args: `{"id":"x","limit":` + strings.Repeat("1", 100_000) + `}`, says: "out of range"},
		{name: "depth", args: strings.Repeat(`{"id":`, 20_000), says: "not valid JSON"},
		{name: "size", args: `{"id":"` + strings.Repeat("x", tool.MaxArgs) + `"}`, says: "at most 1048576 are allowed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := s.Check(tt.args)
			if tt.says == "" && (err != nil || string(got) != tt.want) {
				t.Errorf("Check(%s) = %s, %v, want %s", tt.args, got, err, tt.want)
			}
			if tt.says != "" {
				if f := fault.From(err); err == nil || f.Kind == fault.Internal || !strings.Contains(f.Message, tt.says) {
					t.Errorf("Check(%.100s) = %s, %v, want a fault with %q", tt.args, got, err, tt.says)
				}
			}
		})
	}
}

func TestCompileSchemaRefuses(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"no JSON":          `{`,
		"no object":        `{"type":"string"}`,
		"a boolean":        `true`,
		"a remote schema":  `{"type":"object","properties":{"a":{"$ref":"https://example.com/schema.json"}}}`,
		"a file":           `{"type":"object","properties":{"a":{"$ref":"file:///etc/passwd"}}}`,
		"a broken keyword": `{"type":"object","properties":{"a":{"minLength":"x"}}}`,
	} {
		if _, err := tool.CompileSchema("t", []byte(text)); err == nil {
			t.Errorf("CompileSchema of %s worked", name)
		}
	}
	// A schema may refer to itself.
	s, err := tool.CompileSchema("t", []byte(`{"type":"object","properties":{"a":{"$ref":"#"}},"additionalProperties":false}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Check(`{"a":{"a":{"b":1}}}`); err == nil || !strings.Contains(err.Error(), "arguments.a.a.b: is not known") {
		t.Errorf("Check of a nested unknown field = %v", err)
	}
}

func FuzzCheck(f *testing.F) {
	f.Add(`{"id":"x","limit":1e5,"items":[{"name":1}]}`)
	f.Add(`{"id":"\ud800\u0000"}`)
	s, err := tool.CompileSchema("t", []byte(schema))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, args string) {
		got, err := s.Check(args)
		if err != nil {
			if fault.KindOf(err) == fault.Internal {
				t.Errorf("Check(%q) = %v, which tells the model nothing", args, err)
			}
			return
		}
		if again, err := s.Check(string(got)); err != nil || string(again) != string(got) {
			t.Errorf("Check(%q) = %s, and checked again %s, %v", args, got, again, err)
		}
	})
}

func TestCheckWithoutNulls(t *testing.T) {
	t.Parallel()
	s, err := tool.CompileSchema("t", []byte(strings.Replace(schema, `"limit":`, `"note": {"type": ["string", "null"]}, "limit":`, 1)))
	if err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		`{"id":"x","limit":null,"mode":null}`:            `{"id":"x"}`,
		`{"id":"x","note":null}`:                         `{"id":"x","note":null}`,
		`{"id":"x","limit":null,"note":null,"items":[]}`: `{"id":"x","items":[],"note":null}`,
		`{"id":null,"limit":null}`:                       "arguments.id: must be string, not null; leave it out instead; arguments.limit: must be integer, not null; leave it out instead",
		`{"id":"x","limit":null,"mode":"c"}`:             "arguments.limit: must be integer, not null; leave it out instead; arguments.mode: value must be one of 'a', 'b'",
		`{"id":"x","items":[null]}`:                      "arguments.items[0]: must be object, not null; leave it out instead",
		`{"id":"x","unknown":null}`:                      "arguments.unknown: is not known; the fields are id, items, limit, mode, note",
		`{"id":"x","items":[{"name":null}]}`:             "arguments.items[0].name: must be string, not null; leave it out instead",
	} {
		got, err := s.CheckWithoutNulls(args)
		if err != nil {
			got = []byte(fault.From(err).Message)
		}
		if string(got) != want {
			t.Errorf("CheckWithoutNulls(%s) = %s, want %s", args, got, want)
		}
	}
}
