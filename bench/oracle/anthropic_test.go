package oracle

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	sdk "github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/packages/ssestream"

	"signalbox.dev/services/agent-runner/internal/llm"
	"signalbox.dev/services/agent-runner/internal/llm/anthropic"
)

func claudeOurs(body io.Reader) (*answer, error) {
	return ours(body, anthropic.NewDecoder("run-step", llm.Limits{}))
}

// claudeSDK reads a stream of the Messages API with Anthropic's SDK.
func claudeSDK(body io.Reader) (*answer, error) {
	resp := httpResponse(body)
	stream := ssestream.NewStream[sdk.MessageStreamEventUnion](ssestream.NewDecoder(&resp), nil)
	var msg sdk.Message
	more := make(folds)
	for stream.Next() {
		ev := stream.Current()
		if err := msg.Accumulate(ev); err != nil {
			return nil, err
		}
		if ev.Type == "content_block_delta" && !knownDeltas[ev.Delta.Type] {
			if err := more.add(int(ev.Index), ev.AsContentBlockDelta().Delta.RawJSON()); err != nil {
				return nil, err
			}
		}
	}
	if err := stream.Err(); err != nil {
		return nil, err
	}
	u := &msg.Usage
	a := &answer{ID: msg.ID, Model: msg.Model, Finish: string(msg.StopReason), Usage: usage(
		u.InputTokens, u.CacheReadInputTokens, u.CacheCreationInputTokens, u.OutputTokens, u.OutputTokensDetails.ThinkingTokens,
	)}
	raws := make([]string, len(msg.Content))
	for i, b := range msg.Content {
		raws[i] = b.RawJSON()
		if err := a.addPart(block{b.Type, b.Text, b.Thinking, b.Signature, b.Data, b.ID, b.ToolUseID, b.Name, b.Input}, a.Parts); err != nil {
			return nil, err
		}
	}
	return a, a.finish(raws, more)
}

// claudeBeta does the same with the SDK's other half, which knows more types.
func claudeBeta(body io.Reader) (*answer, error) {
	resp := httpResponse(body)
	stream := ssestream.NewStream[sdk.BetaRawMessageStreamEventUnion](ssestream.NewDecoder(&resp), nil)
	var msg sdk.BetaMessage
	more := make(folds)
	for stream.Next() {
		ev := stream.Current()
		if err := msg.Accumulate(ev); err != nil {
			return nil, err
		}
		if ev.Type == "content_block_delta" && !knownDeltas[ev.Delta.Type] && ev.Delta.Type != "compaction_delta" {
			if err := more.add(int(ev.Index), ev.AsContentBlockDelta().Delta.RawJSON()); err != nil {
				return nil, err
			}
		}
	}
	if err := stream.Err(); err != nil {
		return nil, err
	}
	u := &msg.Usage
	a := &answer{ID: msg.ID, Model: msg.Model, Finish: string(msg.StopReason), Usage: usage(
		u.InputTokens, u.CacheReadInputTokens, u.CacheCreationInputTokens, u.OutputTokens, u.OutputTokensDetails.ThinkingTokens,
	)}
	raws := make([]string, len(msg.Content))
	for i, b := range msg.Content {
		raws[i] = b.RawJSON()
		if err := a.addPart(block{b.Type, b.Text, b.Thinking, b.Signature, b.Data, b.ID, b.ToolUseID, b.Name, b.Input}, a.Parts); err != nil {
			return nil, err
		}
	}
	return a, a.finish(raws, more)
}

// knownDeltas are the types of deltas that the SDK adds up.
var knownDeltas = map[string]bool{
	"text_delta": true, "input_json_delta": true, "thinking_delta": true, "signature_delta": true, "citations_delta": true,
}

func usage(input, read, write, output, reasoning int64) llm.Usage {
	return llm.Usage{InputTokens: input + read + write, CacheRead: read, CacheWrite: write, OutputTokens: output, Reasoning: reasoning}
}

// block is a content block's typed fields.
type block struct {
	typ, text, thinking, signature, data, id, of, name string
	input                                              json.RawMessage
}

// addPart adds what people read of a block.
func (a *answer) addPart(b block, before []part) error {
	p := part{}
	switch {
	case b.typ == "text":
		if b.text == "" {
			return nil
		}
		p = part{Kind: "text", Text: b.text}
	case b.typ == "thinking":
		if b.thinking == "" && b.signature == "" {
			return nil
		}
		p = part{Kind: "reasoning", Text: b.thinking, Proof: b.signature}
	case b.typ == "redacted_thinking":
		p = part{Kind: "redacted", Text: b.data}
	case strings.HasSuffix(b.typ, "tool_use"):
		p = part{Kind: "call", ID: b.id, Name: b.name}
		if b.typ != "tool_use" {
			p.Kind = "server-call"
		}
		var err error
		if p.Input, err = decode(b.input); err != nil {
			return err
		}
	case strings.HasSuffix(b.typ, "_tool_result"):
		p = part{Kind: "result", ID: b.of, Name: cmp.Or(strings.TrimSuffix(b.typ, "_tool_result"), "unnamed")}
		for _, call := range before {
			if call.Kind == "server-call" && call.ID == b.of {
				p.Name = call.Name
			}
		}
	default:
		return nil
	}
	a.Parts = append(a.Parts, p)
	return nil
}

// folds are the deltas that the SDK does not know, added up by block.
type folds map[int][]map[string]any

func (f folds) add(index int, delta string) error {
	v, err := decode([]byte(delta))
	if err != nil {
		return err
	}
	object, ok := v.(map[string]any)
	if !ok {
		return fmt.Errorf("the delta %s is no object", delta)
	}
	f[index] = append(f[index], object)
	return nil
}

func (a *answer) finish(raws []string, more folds) error {
	a.Spoken = spoken(a.Parts)
	for i, raw := range raws {
		v, err := decode([]byte(raw))
		if err != nil {
			return err
		}
		for _, delta := range more[i] {
			fold(v.(map[string]any), delta)
		}
		a.Raw = append(a.Raw, v)
	}
	return nil
}

func fold(block, delta map[string]any) {
	for name, value := range delta {
		switch name {
		case "type", "id", "tool_use_id", "name":
		default:
			if joined := join(block[name], value); joined != nil {
				block[name] = joined
			}
		}
	}
}
