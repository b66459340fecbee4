package structured_test

import (
	"strings"
	"testing"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/services/agent-runner/internal/structured"
)

const person = `{"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["name"], "additionalProperties": false}`

func TestCheck(t *testing.T) {
	t.Parallel()
	s, err := structured.Compile([]byte(person))
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
		s, err := structured.Compile([]byte(tt.schema))
		if name == "loop" && err == nil { // it compiles; an answer must still end in an error or a value
			_, _ = s.Check(`{}`)
			continue
		}
		if fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: Compile() = %v, want it refused with %q", name, err, tt.says)
		}
	}
}
