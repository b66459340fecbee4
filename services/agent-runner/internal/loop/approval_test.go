package loop

import (
	"encoding/json"
	"strings"
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
	exactly := new(json.RawMessage(`{"n":1}`))
	other := new(json.RawMessage(`{"n":2}`))
	plain, needs, acts := &toolv1.Tool{}, &toolv1.Tool{NeedsApproval: true}, &toolv1.Tool{ActsOutside: true}
	allow := []run.Rule{{ToolName: "post", Effect: run.Allow}}
	for _, tt := range []struct {
		name    string
		tool    *toolv1.Tool
		rules   []run.Rule
		tainted bool
		want    string // run, ask, rule or deny
	}{
		{"nothing to ask", plain, nil, false, "run"},
		{"the tool needs it", needs, nil, false, "ask"},
		{"the tool needs it, and is allowed", needs, allow, false, "rule"},
		{"another tool is allowed", needs, []run.Rule{{ToolName: "get", Effect: run.Allow}}, false, "ask"},
		{"these arguments are allowed", needs, []run.Rule{{ToolName: "post", Args: exactly, Effect: run.Allow}}, false, "rule"},
		{"other arguments are allowed", needs, []run.Rule{{ToolName: "post", Args: other, Effect: run.Allow}}, false, "ask"},
		{"a rule asks", plain, []run.Rule{{ToolName: "post", Effect: run.AskBy}}, false, "ask"},
		{"a rule denies", plain, []run.Rule{{ToolName: "post", Effect: run.Deny}}, false, "deny"},
		{"denied and allowed", needs, append(allow, run.Rule{ToolName: "post", Args: exactly, Effect: run.Deny}), false, "deny"},
		{"outside, not tainted", acts, nil, false, "run"},
		{"outside, tainted", acts, nil, true, "ask"},
		{"outside, tainted, any arguments allowed", acts, allow, true, "ask"},
		{"outside, tainted, these arguments allowed", acts, []run.Rule{{ToolName: "post", Args: exactly, Effect: run.Allow}}, true, "rule"},
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
	tools := map[string]*toolv1.Tool{}
	var catalogue []*toolv1.Tool
	for _, tool := range []*toolv1.Tool{
		{Name: "web", ReadsUntrusted: true},
		{Name: "docs", ReadsPrivate: true},
		{Name: "time"},
		{Name: "post", ActsOutside: true},
		{Name: "mcp__a__get", Source: "a", ReadsUntrusted: true, ReadsPrivate: true, ActsOutside: true, Effect: toolv1.Effect_EFFECT_PURE},
		{Name: "mcp__a__put", Source: "a", ReadsUntrusted: true, ReadsPrivate: true, ActsOutside: true, Effect: toolv1.Effect_EFFECT_UNSAFE},
		{Name: "mcp__b__get", Source: "b", ReadsUntrusted: true, ActsOutside: true, Effect: toolv1.Effect_EFFECT_PURE},
	} {
		catalogue, tools[tool.GetName()] = append(catalogue, tool), tool
	}
	result := func(tool, output string) run.Message {
		return run.Message{Role: "tool", Content: json.RawMessage(`[{"type":"tool-result","toolCallId":"a","toolName":"` + tool + `","output":{"type":"` + output + `","value":"x"}}]`)}
	}
	says := func(role, content string) run.Message {
		return run.Message{Role: role, Content: json.RawMessage(content)}
	}
	text, fails := modelmsg.OutputText, modelmsg.OutputErrorText
	search := says("assistant", `[{"type":"tool-result","toolCallId":"s","toolName":"web_search","output":{"type":"text","value":"x"}}]`)
	file := `[{"type":"text","text":"what is this?"},{"type":"file","mediaType":"image/png","data":"AAAA"}]`
	for _, tt := range []struct {
		name     string
		messages []run.Message
		offered  string
		want     string // the tools that ask
	}{
		{"nothing", nil, "", ""},
		{"a harmless tool", []run.Message{result("time", text)}, "", ""},
		{"a stranger's text", []run.Message{result("web", text)}, "", ""},
		{"private data", []run.Message{result("docs", text)}, "", ""},
		{"both", []run.Message{result("docs", text), result("time", text), result("web", text)}, "", "post mcp__a__get mcp__a__put mcp__b__get"},
		{"a stranger's error", []run.Message{result("docs", text), result("web", fails)}, "", "post mcp__a__get mcp__a__put mcp__b__get"},
		{"a tool that is gone", []run.Message{result("gone", text)}, "", "post mcp__a__get mcp__a__put mcp__b__get"},
		{"the error of a server that is gone", []run.Message{result("mcp__c__get", fails)}, "", "post mcp__a__get mcp__a__put mcp__b__get"},
		{"no such tool", []run.Message{result("docs", text), result("nope", fails)}, "", ""},
		{"the provider's search", []run.Message{result("docs", text), search}, "", "post mcp__a__get mcp__a__put mcp__b__get"},
		{"the search of a provider that is gone", []run.Message{says("assistant", `[{"type":"tool-result","toolCallId":"s","toolName":"find","output":{"type":"text","value":"x"}}]`)}, "", ""},
		{"the answer of a model that searches by itself", []run.Message{result("docs", text), says("assistant",
			`[{"type":"text","text":"x","providerOptions":{"openai":{"annotations":[{"type":"url_citation"}]}}}]`)}, "", "post mcp__a__get mcp__a__put mcp__b__get"},
		{"a cited page", []run.Message{result("docs", text), says("assistant",
			`[{"type":"text","text":"x","providerOptions":{"anthropic":{"citations":[{}]}}}]`)}, "", "post mcp__a__get mcp__a__put mcp__b__get"},
		{"an answer that was stopped", []run.Message{result("docs", text), says("assistant",
			`[{"type":"text","text":"x","providerOptions":{"signalbox":{"cancelled":true}}}]`), says("assistant", `[{"type":"text","text":"x"}]`)}, "", ""},
		{"what nobody can read", []run.Message{says("tool", `{`)}, "", "post mcp__a__get mcp__a__put mcp__b__get"},
		{"a person's message", []run.Message{result("docs", text), says("user", `"hi"`)}, "", ""},
		{"a person's file", []run.Message{says("user", file)}, "", "post mcp__a__get mcp__a__put mcp__b__get"},
		{"a definition that a stranger has written", []run.Message{result("docs", text)}, "mcp__b__get", "post mcp__a__get mcp__a__put mcp__b__get"},
		{"a server's own data", []run.Message{result("mcp__a__get", text)}, "mcp__a__get", "post mcp__a__put mcp__b__get"},
	} {
		var got taint
		if tt.offered != "" {
			got.addTools([]*toolv1.Tool{tools[tt.offered]})
		}
		for i := range tt.messages {
			got.add(tt.messages[:i+1], catalogue)
		}
		var asks []string
		for _, tool := range catalogue {
			if got.ask(tool) {
				asks = append(asks, tool.GetName())
			}
		}
		if strings.Join(asks, " ") != tt.want {
			t.Errorf("%s: %v ask, want %s", tt.name, asks, tt.want)
		}
	}
}
