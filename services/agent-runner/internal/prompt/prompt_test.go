package prompt_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/agent-runner/internal/llm/catalogue"
	"signalbox.dev/services/agent-runner/internal/preset"
	"signalbox.dev/services/agent-runner/internal/prompt"
	"signalbox.dev/services/agent-runner/internal/run"
)

func tool(name string, change ...func(*toolv1.Tool)) *toolv1.Tool {
	t := &toolv1.Tool{Name: name, Source: "built-in", InputSchemaJson: `{"type":"object"}`, Guidance: "Use " + name + " well."}
	for _, c := range change {
		c(t)
	}
	return t
}

func TestTools(t *testing.T) {
	t.Parallel()
	all := []*toolv1.Tool{tool("doc_read"), tool("web_search"), tool("clock", func(t *toolv1.Tool) { t.Always = true })}
	p := &preset.Preset{Tools: []string{"doc_*"}}
	for _, tc := range []struct {
		name     string
		selected []string
		want     []string
	}{
		{"the preset's", nil, []string{"doc_read", "clock"}},
		{"none", []string{}, []string{"clock"}},
		{"chosen by a prefix", []string{"web_*"}, []string{"web_search", "clock"}},
		{"all but some", []string{"*", "-web_*"}, []string{"doc_read", "clock"}},
		{"all but one", []string{"-doc_read", "doc_*", "web_search"}, []string{"web_search", "clock"}},
		{"the preset's but some", []string{"-doc_read"}, []string{"clock"}},
		{"the preset's but none of them", []string{"-web_*"}, []string{"doc_read", "clock"}},
		{"chosen", []string{"web_search", "nope"}, []string{"web_search", "clock"}},
	} {
		var got []string
		for _, t := range prompt.Tools(all, nil, tc.selected, p) {
			got = append(got, t.GetName())
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s:\n%s", tc.name, diff)
		}
	}
	for _, tc := range []struct{ ofRun, ofSession, want []string }{
		{nil, []string{"web_search"}, []string{"web_search", "clock"}},
		{[]string{"doc_read"}, []string{"web_search"}, []string{"doc_read", "clock"}},
		{[]string{"-web_*"}, []string{"web_search", "doc_read"}, []string{"doc_read", "clock"}},
		{[]string{"-web_*"}, []string{"-doc_*"}, []string{"clock"}},
		{[]string{"-web_*"}, []string{}, []string{"clock"}}, // not the preset's
	} {
		var got []string
		for _, t := range prompt.Tools(all, tc.ofRun, tc.ofSession, p) {
			got = append(got, t.GetName())
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("Tools(%q of the run, %q of the session) (-want +got):\n%s", tc.ofRun, tc.ofSession, diff)
		}
	}
}

func TestBuild(t *testing.T) {
	t.Parallel()
	models, err := catalogue.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	dialect := "anthropic"
	in := prompt.Input{
		Run: &run.Run{Provider: "anthropic", Model: "claude-sonnet-4-5-20250929", Timezone: "Asia/Tokyo"}, Dialect: dialect,
		ServerTools: models.ServerTool,
		Preset:      &preset.Preset{Prompt: []string{"Be good."}},
		Session:     run.Settings{SystemPrompt: "  Speak Latin.  "},
		Tools:       []*toolv1.Tool{tool("doc_read"), tool("web_search", func(t *toolv1.Tool) { t.Source = "provider"; t.Guidance = "" })},
		Messages: []run.Message{
			{Role: "user", Content: json.RawMessage(`"hi"`)},
			{Role: "assistant", Content: json.RawMessage(`[]`), RawDialect: &dialect, Raw: []byte(`[{"type":"text"}]`)},
		},
		Now: time.Date(2026, 1, 1, 20, 0, 0, 0, time.UTC),
	}
	in.Model, _ = models.Lookup("anthropic", in.Run.Model)
	req := prompt.Build(in)
	if want := "Be good.\n\nHow to use your tools:\nUse doc_read well.\n\nSpeak Latin."; req.System[0].Text != want || !req.System[0].Cache {
		t.Errorf("system = %+v, want %q, cached", req.System[0], want)
	}
	if want := "Today is Friday, 2 January 2026."; req.System[1].Text != want {
		t.Errorf("system = %q, want %q in the person's own timezone", req.System[1].Text, want)
	}
	notion := tool("notion_search", func(t *toolv1.Tool) { t.UnavailableReason = "Notion is not connected" })
	without := in
	without.Run = &run.Run{Provider: "openai", Model: "gpt-5", Timezone: "UTC"}
	without.Model, _ = models.Lookup("openai", "gpt-5")
	without.Tools = append(without.Tools, notion)
	want := "Today is Thursday, 1 January 2026.\n\nThese tools cannot be used now. If you would need one, say so and why:\n" +
		"- web_search: the provider of the model gpt-5 has none\n- notion_search: Notion is not connected"
	if got := prompt.Build(without); got.System[1].Text != want || len(got.Tools) != 2 || got.Tools[1].Name != "notion_search" {
		t.Errorf("with tools that cannot be used: system = %q, tools = %+v", got.System[1].Text, got.Tools)
	}
	if len(req.Tools) != 2 || !strings.Contains(string(req.Tools[1].Definition), "web_search") {
		t.Errorf("tools = %+v", req.Tools)
	}
	if req.MaxOutputTokens != in.Model.DefaultOutput || req.Messages[1].Raw.Dialect != "anthropic" {
		t.Errorf("request = %+v", req)
	}
	in.Run.Provider, in.Run.Model, in.Dialect = "openai", "gpt-5", "openai"
	in.Model, _ = models.Lookup("openai", "gpt-5")
	if got := prompt.Build(in).Tools; len(got) != 1 {
		t.Errorf("tools for another provider = %+v, want no web search", got)
	}
	in.Messages = append(in.Messages, run.Message{Role: "tool", Content: json.RawMessage(`[{"type":"tool-result","toolCallId":"a","toolName":"t","output":{"type":"json","value":{}}},` +
		`{"type":"tool-result","toolCallId":"b","toolName":"t","output":{"type":"content","value":[{"type":"text","text":"see"},{"type":"file-data","data":"AAAA","mediaType":"image/png"}]}}]`)})
	if got := prompt.Build(in).Messages[2].Content; string(got) != string(in.Messages[2].Content) {
		t.Errorf("a picture for a model that sees it: %s", got)
	}
	in.Model.Images = false
	blind := `[{"type":"tool-result","toolCallId":"a","toolName":"t","output":{"type":"json","value":{}}},` +
		`{"type":"tool-result","toolCallId":"b","toolName":"t","output":{"type":"content","value":[{"type":"text","text":"see"},{"type":"text","text":"(a picture, which you cannot see)"}]}}]`
	if diff := cmp.Diff(blind, string(prompt.Build(in).Messages[2].Content)); diff != "" {
		t.Errorf("a picture for a model that sees none (-want +got):\n%s", diff)
	}
}
