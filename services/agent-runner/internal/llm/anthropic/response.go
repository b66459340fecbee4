package anthropic

import (
	"cmp"
	"slices"

	"signalbox.dev/services/agent-runner/internal/llm"
	"signalbox.dev/services/agent-runner/internal/modelmsg"
)

// Response implements llm.Decoder. A partial answer leaves out tool calls and server calls
// without a result. Reasoning without a signature stays in the content but not in the raw
// blocks, where the provider would refuse it.
func (d *Decoder) Response(partial bool) *llm.Response {
	resp := &llm.Response{
		ID: d.id, Model: d.model, RawFinish: d.stopReason, Finish: finish(d.stopReason),
		Paused: d.stopReason == "pause_turn", Usage: d.usage, Estimated: !d.counted,
	}
	if d.rawUsage != nil {
		resp.RawUsage = slices.Clone(d.rawUsage)
	}
	var content modelmsg.Assistant
	raw := []byte{'['}
	for _, b := range d.sorted() {
		if partial && !d.keep(b) {
			continue
		}
		b.appendContent(&content, d.names)
		if partial && b.kind == kindThinking && (!b.closed || len(b.signature) == 0) {
			continue
		}
		if len(raw) > 1 {
			raw = append(raw, ',')
		}
		raw = b.appendRaw(raw)
		if b.kind == kindToolUse {
			call := llm.ToolCall{ID: b.id, Name: b.name, Args: b.args, Invalid: b.invalid}
			if b.invalid {
				call.RawArgs = string(b.input())
			}
			resp.ToolCalls = append(resp.ToolCalls, call)
		}
	}
	resp.Raw = llm.Raw{Dialect: Dialect, Blocks: append(raw, ']')}
	resp.Content = content.JSON()
	return resp
}

// sorted returns the blocks in the order of the message.
func (d *Decoder) sorted() []*block {
	return slices.SortedStableFunc(slices.Values(d.blocks), func(a, b *block) int { return cmp.Compare(a.index, b.index) })
}

// keep reports whether a block can stay in a partial answer.
func (d *Decoder) keep(b *block) bool {
	switch b.kind {
	case kindText:
		return len(b.text) > 0
	case kindThinking:
		return len(b.thinking) > 0 || len(b.signature) > 0
	case kindToolUse:
		return false
	case kindServerUse:
		return b.closed && slices.ContainsFunc(d.blocks, func(r *block) bool {
			return r.kind == kindServerResult && r.closed && r.id == b.id
		})
	}
	return b.closed
}

func finish(reason string) llm.FinishReason {
	switch reason {
	case "end_turn", "stop_sequence":
		return llm.FinishStop
	case "max_tokens", "model_context_window_exceeded":
		return llm.FinishLength
	case "tool_use":
		return llm.FinishToolCalls
	case "refusal":
		return llm.FinishContentFilter
	}
	return llm.FinishOther
}
