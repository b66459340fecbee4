package run_test

import (
	"encoding/json"
	"testing"

	"signalbox.dev/services/agent-runner/internal/run"
)

// A rule is about the same arguments however a model writes them, and about no others.
func TestRuleMatches(t *testing.T) {
	t.Parallel()
	rule := run.Rule{ToolName: "send", Args: new(json.RawMessage(`{"to":"é","n":1,"of":{"a":[10,0.5],"b":9007199254740993}}`)), Effect: run.Deny}
	for _, tt := range []struct {
		tool, args string
		want       bool
	}{
		{"send", `{"to":"é","n":1,"of":{"a":[10,0.5],"b":9007199254740993}}`, true},
		{"send", ` {"of": {"b": 9007199254740993, "a": [1e1, 0.5]}, "n": 1.0, "to": "\u00e9"}`, true},
		{"send", `{"n":2,"to":"é","n":1,"of":{"a":[10,0.5],"b":9007199254740993}}`, true},
		{"send", `{"to":"é","n":"1","of":{"a":[10,0.5],"b":9007199254740993}}`, false},
		{"send", `{"to":"é","n":1,"of":{"a":[0.5,10],"b":9007199254740993}}`, false},
		{"send", `{"to":"é","n":1,"of":{"a":[10,0.5],"b":9007199254740992}}`, false},
		{"send", `{"to":"é","n":1,"of":{"a":[10,0.5],"b":9007199254740993},"x":null}`, false},
		{"send", `{"to":"é"`, false},
		{"post", `{"to":"é","n":1,"of":{"a":[10,0.5],"b":9007199254740993}}`, false},
	} {
		if ok, exact := rule.Matches(tt.tool, json.RawMessage(tt.args)); ok != tt.want || exact != tt.want {
			t.Errorf("%s %s: Matches = %v, %v, want %v", tt.tool, tt.args, ok, exact, tt.want)
		}
	}
}
