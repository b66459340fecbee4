package run_test

import (
	"encoding/json"
	"testing"

	"signalbox.dev/services/agent-runner/internal/run"
)

// A rule is about the same arguments however a model writes them, and about no others.
func TestRuleMatches(t *testing.T) {
	t.Parallel()
	args := new(json.RawMessage(`{"to":"é","n":1,"of":{"a":[10,0.5],"b":9007199254740993}}`))
	for _, tt := range []struct {
		tool, args       string
		allow, restricts bool // whether rules match that allow, and those that deny or ask
	}{
		{"send", `{"to":"é","n":1,"of":{"a":[10,0.5],"b":9007199254740993}}`, true, true},
		{"send", ` {"of": {"b": 9007199254740993, "a": [1e1, 0.5]}, "n": 1.0, "to": "\u00e9"}`, true, true},
		{"send", `{"n":2,"to":"é","n":1,"of":{"a":[10,0.5],"b":9007199254740993}}`, true, true},
		{"send", `{"to":"é","n":"1","of":{"a":[10,0.5],"b":9007199254740993}}`, false, false},
		{"send", `{"to":"é","n":1,"of":{"a":[0.5,10],"b":9007199254740993}}`, false, false},
		{"send", `{"to":"é","n":1,"of":{"a":[10,0.5],"b":9007199254740992}}`, false, true},
		{"send", `{"to":"é","n":1,"of":{"a":[10,0.5],"b":9007199254740993},"x":null}`, false, true},
		{"send", `{"to":"é","n":1,"of":{"a":[10,0.50],"b":9007199254740993,"x":null}}`, false, true},
		{"send", `{"to":"é","n":1,"of":{"a":[10,5e-1],"b":9007199254740993}}`, false, true},
		{"send", `{"to":"é","n":1,"of":{"a":[10,0.5,null],"b":9007199254740993}}`, false, false},
		{"send", `{"to":null,"n":1,"of":{"a":[10,0.5],"b":9007199254740993}}`, false, false},
		{"send", `{"to":"é"`, false, false},
		{"post", `{"to":"é","n":1,"of":{"a":[10,0.5],"b":9007199254740993}}`, false, false},
	} {
		for effect, want := range map[run.RuleEffect]bool{run.Allow: tt.allow, run.Deny: tt.restricts, run.AskBy: tt.restricts} {
			rule := run.Rule{ToolName: "send", Args: args, Effect: effect}
			if ok, exact := rule.Matches(tt.tool, json.RawMessage(tt.args)); ok != want || exact != want {
				t.Errorf("%s %s %s: Matches = %v, %v, want %v", effect, tt.tool, tt.args, ok, exact, want)
			}
		}
	}
	zero := run.Rule{ToolName: "send", Args: new(json.RawMessage(`{"n":0}`)), Effect: run.Deny}
	if ok, _ := zero.Matches("send", json.RawMessage(`{"n":-0}`)); !ok {
		t.Error("a rule about 0 does not match -0")
	}
}
