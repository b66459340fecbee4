package llm_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/services/agent-runner/internal/llm"
	"signalbox.dev/services/agent-runner/internal/llm/anthropic"
	"signalbox.dev/services/agent-runner/internal/llm/openai"
)

// Where the provider's final count is missing, what has come is estimated.
func TestEstimate(t *testing.T) {
	t.Parallel()
	const (
		thinking = "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":1,\"content_block\":{\"type\":\"thinking\",\"thinking\":\"\"}}\n\n" +
			"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":1,\"delta\":{\"type\":\"thinking_delta\",\"thinking\":\"0123456789\"}}\n\n"
		calling = "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":2,\"content_block\":{\"type\":\"tool_use\",\"id\":\"t\",\"name\":\"n\",\"input\":{}}}\n\n" +
			"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":2,\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":\"01234567\"}}\n\n"
		overloaded = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n"
		uncounted  = "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"}}\n\n"
		usage      = "data: {\"id\":\"c1\",\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":8}}\n\n"
		soFar      = "data: {\"id\":\"c1\",\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":0}}\n\n"
		done       = "data: [DONE]\n\n"
	)
	req := &llm.Request{
		System: []llm.SystemBlock{{Text: strings.Repeat("s", 100)}},
		Tools:  []llm.ToolDef{{Name: "tool", Description: strings.Repeat("d", 56), Schema: []byte(`{}`)}},
		Messages: []llm.Message{
			{Role: llm.User, Content: []byte(`[{"type":"text","text":"hi"},{"type":"file","mediaType":"image/png","data":"` + strings.Repeat("A", 4000) + `"}]`)},
		},
	}
	for name, tc := range map[string]struct {
		openai    bool
		body      string
		want      llm.Usage
		estimated bool
	}{
		"anthropic, whole":            {false, claudeHead + claudeTail, llm.Usage{InputTokens: 3, OutputTokens: 2}, false},
		"anthropic, whole, no count":  {false, claudeHead + thinking + uncounted, llm.Usage{InputTokens: 3, OutputTokens: 3}, true},
		"anthropic, cut":              {false, claudeHead + thinking + calling, llm.Usage{InputTokens: 3, OutputTokens: 5}, true},
		"anthropic, cut early":        {false, claudeHead, llm.Usage{InputTokens: 3, OutputTokens: 1}, true},
		"anthropic, fails half way":   {false, claudeHead + thinking + overloaded, llm.Usage{InputTokens: 3, OutputTokens: 3}, true},
		"anthropic, fails at once":    {false, overloaded, llm.Usage{}, false},
		"openai, whole":               {true, chatHead + chatTail + usage + done, llm.Usage{InputTokens: 7, OutputTokens: 8}, false},
		"openai, whole, not counted":  {true, chatHead + chatTail + done, llm.Usage{InputTokens: 61, OutputTokens: 1}, true},
		"openai, cut":                 {true, chatHead, llm.Usage{InputTokens: 61, OutputTokens: 1}, true},
		"openai, cut while it counts": {true, chatHead + soFar, llm.Usage{InputTokens: 7, OutputTokens: 1}, true},
		"openai, nothing":             {true, "", llm.Usage{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var dec llm.Decoder = anthropic.NewDecoder("", llm.Limits{})
			if tc.openai {
				dec = openai.NewDecoder(openai.Compatible, "", llm.Limits{})
			}
			s := llm.NewStream(strings.NewReader(tc.body), dec, llm.Limits{})
			res := s.Partial
			if readAll(s) == nil {
				res = s.Response
			}
			got := res()
			s.Estimate(req, got)
			if diff := cmp.Diff(tc.want, got.Usage); diff != "" || got.Estimated != tc.estimated {
				t.Errorf("estimated = %t, want %t; usage (-want +got):\n%s", got.Estimated, tc.estimated, diff)
			}
		})
	}
}
