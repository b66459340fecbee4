package oracle

import (
	"encoding/json"
	"testing"

	anthropicsdk "github.com/anthropics/anthropic-sdk-go"
	"github.com/google/go-cmp/cmp"
	openaisdk "github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/shared"

	"signalbox.dev/services/agent-runner/internal/llm"
	"signalbox.dev/services/agent-runner/internal/llm/anthropic"
	"signalbox.dev/services/agent-runner/internal/llm/openai"
)

// TestFormat compares how an answer in JSON is asked for with what the SDKs send.
func TestFormat(t *testing.T) {
	t.Parallel()
	const schema = `{"type":"object","properties":{"a":{"type":"string"}},"required":["a"],"additionalProperties":false}`
	req := &llm.Request{Model: "m", Messages: []llm.Message{{Role: llm.User, Content: json.RawMessage(`"hi"`)}}, Format: json.RawMessage(schema)}
	var decoded map[string]any
	if err := json.Unmarshal([]byte(schema), &decoded); err != nil {
		t.Fatal(err)
	}
	member := func(body []byte, err error, name string) (v any) {
		t.Helper()
		var all map[string]any
		if err == nil {
			err = json.Unmarshal(body, &all)
		}
		if err != nil {
			t.Fatal(err)
		}
		return all[name]
	}
	ours, err := anthropic.Build(req)
	got := member(ours, err, "output_config")
	theirs, err := json.Marshal(anthropicsdk.MessageNewParams{OutputConfig: anthropicsdk.OutputConfigParam{Format: anthropicsdk.JSONOutputFormatParam{Schema: decoded}}})
	if diff := cmp.Diff(member(theirs, err, "output_config"), got); diff != "" {
		t.Errorf("Anthropic's output_config (-SDK +ours):\n%s", diff)
	}
	ours, err = openai.Build(req, openai.OpenAI)
	got = member(ours, err, "response_format")
	theirs, err = json.Marshal(openaisdk.ChatCompletionNewParams{ResponseFormat: openaisdk.ChatCompletionNewParamsResponseFormatUnion{
		OfJSONSchema: &shared.ResponseFormatJSONSchemaParam{JSONSchema: shared.ResponseFormatJSONSchemaJSONSchemaParam{
			Name: "answer", Strict: openaisdk.Bool(true), Schema: decoded,
		}},
	}})
	if diff := cmp.Diff(member(theirs, err, "response_format"), got); diff != "" {
		t.Errorf("OpenAI's response_format (-SDK +ours):\n%s", diff)
	}
}
