package loop

import (
	"encoding/json"
	"testing"

	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/agent-runner/internal/modelmsg"
	"signalbox.dev/services/agent-runner/internal/run"
)

// A rule that denies wins, a tainted conversation asks about calls that act outside whatever a
// rule about any arguments says, and a rule that names the arguments answers for a person.
func TestJudge(t *testing.T) {
	t.Parallel()
	call := &run.Call{Name: "post", Args: json.RawMessage(`{"n": 1}`)}
	exactly := run.HashArgs(json.RawMessage(`{"n":1}`))
	other := run.HashArgs(json.RawMessage(`{"n":2}`))
	plain, needs, acts := &toolv1.Tool{}, &toolv1.Tool{NeedsApproval: true}, &toolv1.Tool{ActsOutside: true}
	allow := []run.Rule{{ToolName: "post", Effect: run.Allow}}
	for _, tt := range []struct {
		name    string
		tool    *toolv1.Tool
		rules   []run.Rule
		tainted bool
		want    string // run, ask, rule or deny
	}{
		{"nothing to ask", plain, nil, true, "run"},
		{"the tool needs it", needs, nil, false, "ask"},
		{"the tool needs it, and is allowed", needs, allow, false, "rule"},
		{"another tool is allowed", needs, []run.Rule{{ToolName: "get", Effect: run.Allow}}, false, "ask"},
		{"these arguments are allowed", needs, []run.Rule{{ToolName: "post", ArgsHash: exactly, Effect: run.Allow}}, false, "rule"},
		{"other arguments are allowed", needs, []run.Rule{{ToolName: "post", ArgsHash: other, Effect: run.Allow}}, false, "ask"},
		{"a rule asks", plain, []run.Rule{{ToolName: "post", Effect: run.AskBy}}, false, "ask"},
		{"a rule denies", plain, []run.Rule{{ToolName: "post", Effect: run.Deny}}, false, "deny"},
		{"denied and allowed", needs, append(allow, run.Rule{ToolName: "post", ArgsHash: exactly, Effect: run.Deny}), false, "deny"},
		{"outside, not tainted", acts, nil, false, "run"},
		{"outside, tainted", acts, nil, true, "ask"},
		{"outside, tainted, any arguments allowed", acts, allow, true, "ask"},
		{"outside, tainted, these arguments allowed", acts, []run.Rule{{ToolName: "post", ArgsHash: exactly, Effect: run.Allow}}, true, "rule"},
	} {
		v := judge(call, tt.tool, tt.rules, tt.tainted)
		got := "run"
		switch {
		case v.denied:
			got = "deny"
		case v.why != "" && v.allowed:
			got = "rule"
		case v.why != "":
			got = "ask"
		}
		if got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

// What results tell the model is known from the catalogue. A tool that it does not have any more
// may have read anything; that there was no such tool tells nothing.
func TestTaint(t *testing.T) {
	t.Parallel()
	catalogue := []*toolv1.Tool{{Name: "web", ReadsUntrusted: true}, {Name: "docs", ReadsPrivate: true}, {Name: "time"}}
	result := func(tool, output string) run.Message {
		return run.Message{Role: "tool", Content: json.RawMessage(`[{"type":"tool-result","toolCallId":"a","toolName":"` + tool + `","output":{"type":"` + output + `","value":"x"}}]`)}
	}
	text, fails := modelmsg.OutputText, modelmsg.OutputErrorText
	search := run.Message{Role: "assistant", Content: json.RawMessage(`[{"type":"tool-result","toolCallId":"s","toolName":"web_search","output":{"type":"text","value":"x"}}]`)}
	for _, tt := range []struct {
		name               string
		messages           []run.Message
		untrusted, private bool
	}{
		{"nothing", nil, false, false},
		{"a harmless tool", []run.Message{result("time", text)}, false, false},
		{"a stranger's text", []run.Message{result("web", text)}, true, false},
		{"a stranger's error", []run.Message{result("web", fails)}, true, false},
		{"private data", []run.Message{result("docs", text)}, false, true},
		{"both", []run.Message{result("docs", text), result("time", text), result("web", text)}, true, true},
		{"a tool that is gone", []run.Message{result("gone", text)}, true, true},
		{"no such tool", []run.Message{result("nope", fails)}, false, false},
		{"the provider's search", []run.Message{search}, true, false},
		{"what nobody can read", []run.Message{{Role: "tool", Content: json.RawMessage(`{`)}}, true, true},
		{"a person's message", []run.Message{{Role: "user", Content: json.RawMessage(`"hi"`)}}, false, false},
	} {
		var got taint
		for i := range tt.messages {
			got.add(tt.messages[:i+1], catalogue)
		}
		if got.untrusted != tt.untrusted || got.private != tt.private {
			t.Errorf("%s: untrusted %v, private %v, want %v, %v", tt.name, got.untrusted, got.private, tt.untrusted, tt.private)
		}
	}
}
