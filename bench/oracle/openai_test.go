package oracle

import (
	"cmp"
	"io"
	"maps"

	sdk "github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/packages/respjson"
	"github.com/openai/openai-go/v3/packages/ssestream"

	"signalbox.dev/services/agent-runner/internal/llm"
	"signalbox.dev/services/agent-runner/internal/llm/openai"
)

func gptOurs(body io.Reader) (*answer, error) {
	return ours(body, openai.NewDecoder(openai.Compatible, "run-step", llm.Limits{}))
}

// gptSDK reads a stream of the Chat Completions API with OpenAI's SDK. What its
// accumulator leaves out, because OpenAI's own API does not send it, is added up here
// from the chunks as the SDK decodes them.
func gptSDK(body io.Reader) (*answer, error) {
	resp := httpResponse(body)
	stream := ssestream.NewStream[sdk.ChatCompletionChunk](ssestream.NewDecoder(&resp), nil)
	var acc sdk.ChatCompletionAccumulator
	x := extras{members: make(map[string]any), calls: make(map[int64]map[string]any)}
	var cacheWrite int64
	for stream.Next() {
		chunk := stream.Current()
		if !acc.AddChunk(chunk) {
			return nil, errRefused
		}
		if err := x.add(&chunk); err != nil {
			return nil, err
		}
		cacheWrite += chunk.Usage.PromptTokensDetails.CacheWriteTokens
	}
	if err := stream.Err(); err != nil {
		return nil, err
	}
	u := &acc.Usage
	a := &answer{ID: acc.ID, Model: acc.Model, Usage: llm.Usage{
		InputTokens: u.PromptTokens, CacheRead: u.PromptTokensDetails.CachedTokens, CacheWrite: cacheWrite,
		OutputTokens: u.CompletionTokens, Reasoning: u.CompletionTokensDetails.ReasoningTokens,
	}}
	if len(acc.Choices) == 0 {
		return a, nil
	}
	a.Finish = acc.Choices[0].FinishReason
	a.addMessage(&acc.Choices[0].Message, &x)
	return a, nil
}

// addMessage adds the message that goes back to the provider, and its parts.
func (a *answer) addMessage(m *sdk.ChatCompletionMessage, x *extras) {
	raw := x.members
	raw["role"], raw["content"] = "assistant", m.Content
	if m.Content == "" && (!x.content || len(m.ToolCalls) > 0) {
		raw["content"] = nil
	}
	if m.Refusal != "" {
		raw["refusal"] = m.Refusal
	}
	if text := x.thought(); text != "" {
		a.Parts = append(a.Parts, part{Kind: "reasoning", Text: text})
	}
	for _, text := range []string{m.Content, m.Refusal} {
		if text != "" {
			a.Parts = append(a.Parts, part{Kind: "text", Text: text})
		}
	}
	var calls []any
	for i, c := range m.ToolCalls {
		input, err := decode([]byte(cmp.Or(c.Function.Arguments, "{}")))
		if err != nil {
			input = c.Function.Arguments // the SDK does not look at them
		}
		a.Parts = append(a.Parts, part{Kind: "call", ID: c.ID, Name: c.Function.Name, Input: input})
		call := map[string]any{"id": c.ID, "type": "function", "function": map[string]any{
			"name": c.Function.Name, "arguments": cmp.Or(c.Function.Arguments, "{}"),
		}}
		maps.Copy(call, x.calls[int64(i)])
		calls = append(calls, call)
	}
	if calls != nil {
		raw["tool_calls"] = calls
	}
	a.Raw = []any{raw}
	a.Spoken = spoken(a.Parts)
}

// extras are the members of deltas that the SDK has no fields for.
type extras struct {
	content bool // content came, be it empty
	members map[string]any
	calls   map[int64]map[string]any
}

func (x *extras) add(chunk *sdk.ChatCompletionChunk) error {
	for i := range chunk.Choices {
		c := &chunk.Choices[i]
		if c.Index != 0 {
			continue
		}
		x.content = x.content || c.Delta.JSON.Content.Valid()
		if err := x.fold(x.members, c.Delta.JSON.ExtraFields); err != nil {
			return err
		}
		for _, call := range c.Delta.ToolCalls {
			if x.calls[call.Index] == nil {
				x.calls[call.Index] = make(map[string]any)
			}
			if err := x.fold(x.calls[call.Index], call.JSON.ExtraFields); err != nil {
				return err
			}
		}
	}
	return nil
}

func (x *extras) fold(into map[string]any, fields map[string]respjson.Field) error {
	for name, field := range fields {
		v, err := decode([]byte(field.Raw()))
		if err != nil {
			return err
		}
		if name == "reasoning_details" {
			for _, item := range v.([]any) {
				into[name] = addDetail(into[name], item.(map[string]any))
			}
			continue
		}
		if v != nil {
			into[name] = join(into[name], v)
		}
	}
	return nil
}

// addDetail adds one of OpenRouter's reasoning details. The fragments of a detail
// follow each other and have its type and index.
func addDetail(list any, item map[string]any) any {
	details, _ := list.([]any)
	if len(details) > 0 {
		last := details[len(details)-1].(map[string]any)
		if last["type"] == item["type"] && equal(last["index"], item["index"]) && item["type"] != "reasoning.encrypted" {
			for name, value := range item {
				switch {
				case name == "text" || name == "summary":
					last[name] = join(last[name], value)
				case last[name] == nil:
					last[name] = value
				}
			}
			return details
		}
	}
	return append(details, item)
}

// thought is the reasoning that people read: servers that send it under two names
// say the same in both.
func (x *extras) thought() string {
	for _, name := range []string{"reasoning", "reasoning_content"} {
		if text, _ := x.members[name].(string); text != "" {
			return text
		}
	}
	details, _ := x.members["reasoning_details"].([]any)
	text := ""
	for _, d := range details {
		for _, name := range []string{"text", "summary"} {
			s, _ := d.(map[string]any)[name].(string)
			text += s
		}
	}
	return text
}
