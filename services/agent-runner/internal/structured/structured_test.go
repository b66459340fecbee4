package structured_test

import (
	"fmt"
	"strings"
	"testing"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/services/agent-runner/internal/structured"
)

const person = `{"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["name"], "additionalProperties": false}`

func TestCheck(t *testing.T) {
	t.Parallel()
	s, err := structured.Compile(structured.ResponseFormat, []byte(person))
	if err != nil {
		t.Fatal(err)
	}
	for answer, want := range map[string]string{
		`{"name":"Ada"}`:                            `{"name":"Ada"}`,
		" \n{\"name\":\"Ada\",\"age\":36}\n":        `{"name":"Ada","age":36}`,
		"```json\n{\"name\":\"Ada\"}\n```":          `{"name":"Ada"}`,
		"```\n{\"name\":\"A```B\"}\n```":            "{\"name\":\"A```B\"}",
		`{"name":"Ada","age":12345678901234567890}`: `{"name":"Ada","age":12345678901234567890}`,
	} {
		if got, err := s.Check(answer); err != nil || string(got) != want {
			t.Errorf("Check(%q) = %s, %v, want %s", answer, got, err, want)
		}
	}
	for answer, want := range map[string]string{
		"":                                          "not one JSON value",
		"Here it is: {\"name\":\"Ada\"}":            "not one JSON value",
		`{"name":"Ada"} {"name":"Bob"}`:             "not one JSON value",
		"```json\n{\"name\":\"Ada\"}":               "not one JSON value",
		`{"age":36}`:                                "name",
		`{"name":"Ada","age":"36"}`:                 "age",
		`{"name":"Ada","colour":"green"}`:           "colour",
		`[` + strings.Repeat(`"x",`, 9999) + `"x"]`: "object",
	} {
		got, err := s.Check(answer)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "response:schema") || len(err.Error()) > 2100 {
			t.Errorf("Check(%.50q) = %s, %v, want an error about %s", answer, got, err, want)
		}
	}
}

func TestCompileRefuses(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ schema, says string }{
		"no JSON":  {`{`, "not JSON"},
		"no type":  {`{"type":"colour"}`, "not a JSON Schema"},
		"number":   {`7`, "not a JSON Schema"},
		"remote":   {`{"$ref":"https://example.com/schema.json"}`, "references outside"},
		"file":     {`{"$ref":"file:///etc/passwd"}`, "references outside"},
		"too deep": {strings.Repeat(`{"not":`, 40) + `{}` + strings.Repeat(`}`, 40), "nested"},
		"large":    {`{"description":"` + strings.Repeat("x", 70_000) + `"}`, "at most"},
		"loop":     {`{"$ref":"#"}`, ""},
	} {
		s, err := structured.Compile(structured.ResponseFormat, []byte(tt.schema))
		if name == "loop" && err == nil { // it compiles; an answer must still end in an error or a value
			_, _ = s.Check(`{}`)
			continue
		}
		if fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: Compile() = %v, want it refused with %q", name, err, tt.says)
		}
	}
}

// chain is a schema whose evaluations double with each of its levels.
func chain(levels int, schema string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `{"$schema":"%s","$ref":"#/definitions/a0","definitions":{`, schema)
	for i := range levels {
		fmt.Fprintf(&b, `"a%d":{"allOf":[{"$ref":"#/definitions/a%d"},{"$ref":"#/definitions/a%d"}]},`, i, i+1, i+1)
	}
	fmt.Fprintf(&b, `"a%d":{"minimum":3}}}`, levels)
	return b.String()
}

// No schema makes a check, or its compilation, take long: an unbounded one would not end.
func TestEffort(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ schema, answer, says string }{
		"doubling references": {chain(200, "https://json-schema.org/draft/2020-12/schema"), "1", "too complex"},
		"of an older draft":   {chain(200, "http://json-schema.org/draft-07/schema#"), "5", "too complex"},
		"doubling items": {
			`{"$ref":"#/$defs/a","$defs":{"a":{"allOf":[{"items":{"$ref":"#/$defs/a"}},{"items":{"$ref":"#/$defs/a"}}]}}}`,
			strings.Repeat("[", 200) + strings.Repeat("]", 200), "too complex",
		},
		"many alternatives of many items": {
			`{"items":{"anyOf":[` + strings.Repeat("false,", 5000) + `false]}}`, "[" + strings.Repeat("1,", 50_000) + "1]", "too complex",
		},
		"a large pattern": {
			`{"pattern":"^(a{0,50}){0,10}b$"}`, `"` + strings.Repeat("a", 1_000_000) + `"`, "too complex",
		},
		"huge numbers": {`{"items":{"multipleOf":3}}`, "[" + strings.Repeat("1e999999,", 50_000) + "1]", "exponent"},
		"many objects": {
			`{"items":{"type":"object","properties":{"a":{"type":"string","pattern":"^[a-z]+$"},"b":{"type":"integer"}},"required":["a"],"additionalProperties":false}}`,
			"[" + strings.Repeat(`{"a":"x","b":1},`, 50_000) + `{"a":"x"}]`, "",
		},
	} {
		s, err := structured.Compile(structured.ResponseFormat, []byte(tt.schema))
		if err != nil {
			t.Errorf("%s: Compile() = %v", name, err)
			continue
		}
		if _, err = s.Check(tt.answer); (tt.says == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: Check() = %.200v, want %q", name, err, tt.says)
		}
		if _, err = s.Check("[]"); err != nil && tt.says == "" {
			t.Errorf("%s: the next Check() = %.200v, want a limit of its own", name, err)
		}
	}
	for _, pattern := range []string{strings.Repeat("a{1000}", 140), strings.Repeat("a", 1001)} {
		if _, err := structured.Compile(structured.ResponseFormat, []byte(`{"pattern":"`+pattern+`"}`)); fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), "pattern") {
			t.Errorf("Compile() of a pattern of %d bytes = %v, want it refused", len(pattern), err)
		}
	}
}
