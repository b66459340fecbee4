package openai

import (
	"slices"

	"signalbox.dev/services/agent-runner/internal/llm"
	"signalbox.dev/services/agent-runner/internal/llm/jscan"
	"signalbox.dev/services/agent-runner/internal/modelmsg"
)

// Response implements llm.Decoder. A partial answer leaves out the tool calls.
func (d *Decoder) Response(partial bool) *llm.Response {
	resp := &llm.Response{ID: d.id, Model: d.model, RawFinish: d.finish, Finish: d.finished(), Usage: d.usage}
	resp.Estimated = d.finish == "" || d.rawUsage == nil // some servers report usage before the end
	if d.rawUsage != nil {
		resp.RawUsage = slices.Clone(d.rawUsage)
	}
	var content modelmsg.Assistant
	if d.thinksIn != nil && len(d.thinksIn.raw) > 0 {
		content.Reasoning(d.thinksIn.raw, nil)
	}
	if len(d.content.raw) > 0 {
		content.Text(d.content.raw, d.citations())
	}
	if len(d.refusal.raw) > 0 {
		content.Text(d.refusal.raw, nil)
	}
	if !partial {
		for _, c := range d.calls {
			content.ToolCall(c.id, c.name, c.parsed, false)
			call := llm.ToolCall{ID: c.id, Name: c.name, Args: c.parsed, Invalid: c.invalid}
			if c.invalid {
				call.RawArgs = string(c.written())
			}
			resp.ToolCalls = append(resp.ToolCalls, call)
		}
	}
	resp.Content = content.JSON()
	if !partial { // a partial answer is converted, because cut reasoning has no signature
		resp.Raw = llm.Raw{Dialect: d.flavor.Dialect(), Blocks: d.rawMessage()}
	}
	return resp
}

func (d *Decoder) citations() []byte {
	if len(d.annotations) == 0 {
		return nil
	}
	out := append([]byte(`{"openai":{"annotations":[`), d.annotations...)
	return append(out, "]}}"...)
}

// rawMessage returns an array with the message to which the deltas add up.
func (d *Decoder) rawMessage() []byte {
	out := append([]byte(`[{"role":"assistant","content":`), "null"...)
	if d.content.set && (len(d.content.raw) > 0 || len(d.calls) == 0) {
		out = append(out[:len(out)-len("null")], jscan.Quoted(d.content.raw)...)
	}
	member := func(name string, s *spoken) {
		if len(s.raw) > 0 {
			out = append(out, `,"`+name+`":`...)
			out = append(out, jscan.Quoted(s.raw)...)
		}
	}
	member("refusal", &d.refusal)
	member("reasoning_content", &d.reasoningContent)
	member("reasoning", &d.reasoning)
	if len(d.details) > 0 {
		out = append(out, `,"reasoning_details":[`...)
		for i, t := range d.details {
			if i > 0 {
				out = append(out, ',')
			}
			out = t.appendRaw(out)
		}
		out = append(out, ']')
	}
	if len(d.calls) > 0 {
		out = append(out, `,"tool_calls":[`...)
		for i, c := range d.calls {
			if i > 0 {
				out = append(out, ',')
			}
			out = c.appendRaw(out)
		}
		out = append(out, ']')
	}
	if len(d.annotations) > 0 {
		out = append(out, `,"annotations":`...)
		out = append(out, jscan.Bracketed(d.annotations)...)
	}
	for _, e := range d.more.Edits() {
		out = append(out, ',')
		out = jscan.AppendString(out, e.Name)
		out = append(out, ':')
		out = append(out, e.Value...)
	}
	return append(out, "}]"...)
}

// finished maps the finish reason. Some servers send stop with tool calls, and a refusal is a
// separate member instead of a reason.
func (d *Decoder) finished() llm.FinishReason {
	switch d.finish {
	case "stop", "end_turn", "eos":
		switch {
		case len(d.calls) > 0:
			return llm.FinishToolCalls
		case len(d.refusal.raw) > 0 && len(d.content.raw) == 0:
			return llm.FinishContentFilter
		}
		return llm.FinishStop
	case "length", "max_tokens":
		return llm.FinishLength
	case "tool_calls", "function_call":
		return llm.FinishToolCalls
	case "content_filter":
		return llm.FinishContentFilter
	case "error":
		return llm.FinishError
	}
	return llm.FinishOther
}
