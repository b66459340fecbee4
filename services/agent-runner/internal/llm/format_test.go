package llm_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"signalbox.dev/services/agent-runner/internal/llm"
)

func TestStrictOf(t *testing.T) {
	t.Parallel()
	object := func(property string) string {
		return `{"type":"object","properties":{"a":` + property + `},"required":["a"],"additionalProperties":false}`
	}
	for schema, want := range map[string]string{
		object(`{"type":"string"}`):                                                         "true false 0",
		object(`{"type":["string","null"],"description":"d"}`):                              "true false 1",
		object(`{"anyOf":[{"type":"array","items":{"enum":[1,"x",null]}},{"const":true}]}`): "true false 1",
		object(object(`{"type":"number"}`)):                                                 "true false 0",
		object(`{"$ref":"#"}`):                                                              "true true 0",
		strings.Replace(object(`{"$ref":"#/$defs/b"}`), "{", `{"$defs":{"b":`+object(`{"type":"string"}`)+`},`, 1): "true true 0",
		object(`{}`):                                     "false",
		object(`true`):                                   "false",
		object(`{"type":"object"}`):                      "false",
		object(`{"type":"array"}`):                       "false",
		object(`{"type":"string","minLength":1}`):        "false",
		object(`{"oneOf":[{"type":"string"}]}`):          "false",
		object(`{"enum":[{}]}`):                          "false",
		object(`{"properties":{"b":{"type":"string"}}}`): "false",
		`{"type":"array","items":{"type":"string"}}`:     "false",
		`{"type":"object","properties":{"a":{"type":"string"}},"additionalProperties":false}`:                                                                    "false",
		`{"type":"object","properties":{"a":{"type":"string"}},"required":["a"]}`:                                                                                "false",
		`{"type":"object","properties":{"a":{"type":"string"}},"required":["b"],"additionalProperties":false}`:                                                   "false",
		`{"type":"object","properties":{"a":{"type":"string"}},"required":["a"],"additionalProperties":{"type":"string"}}`:                                       "false",
		`{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"string"}},"required":["a","a"],"additionalProperties":false}`:                         "false",
		object(`{"enum":[` + strings.Repeat("1,", 500) + `1]}`):                                                                                                  "false",
		strings.Repeat(`{"type":"object","required":["a"],"additionalProperties":false,"properties":{"a":`, 10) + `{"type":"string"}` + strings.Repeat("}}", 10): "false",
		`nonsense`: "false",
	} {
		s := llm.StrictOf(json.RawMessage(schema))
		got := fmt.Sprint(s.OK)
		if s.OK {
			got = fmt.Sprint(s.OK, s.Refs, s.Unions)
		}
		if got != want {
			t.Errorf("StrictOf(%.200s) = %s, want %s", schema, got, want)
		}
	}
}
