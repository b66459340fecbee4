package proxy

import (
	"bytes"
	"encoding/json"
	"testing"

	"signalbox.dev/services/credential-broker/internal/profile"
)

func TestJudge(t *testing.T) {
	t.Parallel()
	set, err := profile.Load("1", profile.Shipped())
	if err != nil {
		t.Fatal(err)
	}
	rules := func(name, path string) *profile.Stream {
		p, _ := set.Get(name)
		return p.Route(path).Stream
	}
	messages, chat, responses := rules("anthropic-api-key", "/v1/messages"), rules("openai", "/chat/completions"), rules("openai", "/responses")
	tests := []struct {
		name        string
		rules       *profile.Stream
		event, data string
		early, late verdict
	}{
		{"start", messages, "message_start", `{"type":"message_start"}`, 0, 0},
		{"ping", messages, "ping", `{"type":"ping"}`, 0, 0},
		{"start without a name", messages, "", `{"a":{"type":"message_stop"},"type":"message_start"}`, 0, 0},
		{"block", messages, "content_block_start", `{}`, meaningful, meaningful},
		{"unknown", messages, "something_new", `{}`, meaningful, meaningful},
		{"error", messages, "error", `{}`, meaningful | failure, meaningful | failure},
		{"stop", messages, "message_stop", `{}`, cleanEnd, cleanEnd},
		{"stop without a name", messages, "", `{ "type" : "message_stop" }`, cleanEnd, cleanEnd},
		{"not JSON", messages, "", `message_stop`, meaningful, meaningful},

		{"created", responses, "response.created", `{}`, 0, 0},
		{"delta", responses, "response.output_text.delta", `{}`, meaningful, meaningful},
		{"completed", responses, "response.completed", `{}`, cleanEnd, cleanEnd},
		{"failed", responses, "response.failed", `{}`, cleanEnd | failure, cleanEnd | failure},

		{"role", chat, "", `{"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}`, 0, meaningful},
		{"role with nulls", chat, "", `{"choices":[{"delta":{"role":"assistant","content":null,"refusal":null,"tool_calls":[]}}]}`, 0, meaningful},
		{"no choices", chat, "", `{"choices":[],"prompt_filter_results":[]}`, 0, meaningful},
		{"content", chat, "", `{"choices":[{"delta":{"content":"a"}}]}`, meaningful, meaningful},
		{"second choice", chat, "", `{"choices":[{"delta":{}},{"delta":{"content":"a"}}]}`, meaningful, meaningful},
		{"tool call", chat, "", `{"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}`, meaningful, meaningful},
		{"old completion", chat, "", `{"choices":[{"text":"a","finish_reason":null}]}`, meaningful, meaningful},
		{"role, and an empty finish", chat, "", `{"choices":[{"delta":{"role":"assistant"},"finish_reason":""}]}`, 0, meaningful},
		{"content, and an empty finish", chat, "", `{"choices":[{"delta":{"content":"a"},"finish_reason": "" }]}`, meaningful, meaningful},
		{"finish", chat, "", `{"choices":[{"delta":{},"finish_reason":"stop"}]}`, meaningful | finished, meaningful | finished},
		{"finish, spaced", chat, "", `{"choices": [{"delta": {}, "finish_reason" : "length"}]}`, meaningful | finished, meaningful | finished},
		{"done", chat, "", `[DONE]`, cleanEnd, cleanEnd},
		{"done, spaced", chat, "", ` [DONE] `, cleanEnd, cleanEnd},
		{"said in text", chat, "", `{"choices":[{"delta":{"content":"\"finish_reason\":\"stop\" [DONE]"},"finish_reason":null}]}`, meaningful, meaningful},
		{"said as a value", chat, "", `{"choices":[{"delta":{"content":"finish_reason"},"finish_reason":null}]}`, meaningful, meaningful},
		{"deeper", chat, "", `{"choices":[{"delta":{"content":"a","x":{"finish_reason":"stop","error":1}}}]}`, meaningful, meaningful},
		{"error", chat, "", `{"error":{"message":"m"}}`, meaningful | failure, meaningful | failure},
		{"error, null", chat, "", `{"error":null,"choices":[{"delta":{"content":"a"}}]}`, meaningful, meaningful},
		{"error with finish", chat, "", `{"error":{"code":502},"choices":[{"delta":{"content":""},"finish_reason":"error"}]}`, meaningful | failure | finished, meaningful | failure | finished},
		{"broken", chat, "", `{"choices":[{"delta":{},"finish_reason":"sto`, meaningful, meaningful},

		{"no rules", nil, "x", `y`, meaningful | finished, meaningful | finished},
	}
	for _, tt := range tests {
		ev := event{name: []byte(tt.event), data: []byte(tt.data), hasData: true}
		if got := judge(tt.rules, ev, true); got != tt.early {
			t.Errorf("%s: judge(%s) early = %04b, want %04b", tt.name, tt.data, got, tt.early)
		}
		if got := judge(tt.rules, ev, false); got != tt.late {
			t.Errorf("%s: judge(%s) late = %04b, want %04b", tt.name, tt.data, got, tt.late)
		}
	}
	if got := judge(messages, event{name: []byte("message_stop")}, false); got != 0 {
		t.Errorf("judge of an event without data = %04b, want 0", got)
	}
}

// skimChunk finds the same ends and errors as judgeChunk.
func FuzzSkimChunk(f *testing.F) {
	f.Add([]byte(`{"choices":[{"delta":{},"finish_reason":"stop"}]}`))
	f.Add([]byte(`{"error":{"message":"m"}}`))
	f.Add([]byte(` [DONE]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		const ends = failure | finished | terminal
		if early, late := judgeChunk(data), skimChunk(data); early&ends != late&ends {
			if bytes.Contains(data, []byte(`\u`)) || !json.Valid(data) {
				return // no provider escapes a member's name
			}
			var c map[string]json.RawMessage
			if json.Unmarshal(data, &c) != nil || caseVariant(data) {
				return
			}
			t.Fatalf("judgeChunk(%q) = %04b, skimChunk = %04b", data, early, late)
		}
	})
}

// caseVariant reports members that encoding/json accepts although their case differs.
func caseVariant(data []byte) bool {
	lower := bytes.ToLower(data)
	for _, name := range []string{`"error"`, `"finish_reason"`, `"choices"`, `"delta"`, `"text"`} {
		if bytes.Count(lower, []byte(name)) != bytes.Count(data, []byte(name)) {
			return true
		}
	}
	return false
}
