package modelmsg

import (
	"encoding/json"

	"signalbox.dev/services/agent-runner/internal/llm/jscan"
)

// Assistant writes the content of an assistant message part by part. The zero
// value is ready to use.
type Assistant struct {
	buf []byte
	n   int
}

func (a *Assistant) open(head string) {
	if a.n++; a.n == 1 {
		a.buf = append(a.buf, '[')
	} else {
		a.buf = append(a.buf, ',')
	}
	a.buf = append(a.buf, head...)
}

func (a *Assistant) close(options []byte) {
	if len(options) > 0 {
		a.buf = append(a.buf, `,"providerOptions":`...)
		a.buf = jscan.AppendCompact(a.buf, options)
	}
	a.buf = append(a.buf, '}')
}

// Text adds a text part. raw is the text as a raw JSON string (package jscan);
// options is the value of providerOptions, empty for none.
func (a *Assistant) Text(raw, options []byte) {
	a.prose(`{"type":"text","text":"`, raw, options)
}

// Reasoning adds a reasoning part, with the arguments of Text.
func (a *Assistant) Reasoning(raw, options []byte) {
	a.prose(`{"type":"reasoning","text":"`, raw, options)
}

func (a *Assistant) prose(head string, raw, options []byte) {
	a.open(head)
	a.buf = jscan.AppendClean(a.buf, raw)
	a.buf = append(a.buf, '"')
	a.close(options)
}

// ToolCall adds a call. input is its arguments as valid JSON.
func (a *Assistant) ToolCall(id, name string, input json.RawMessage, providerExecuted bool) {
	a.open(`{"type":"tool-call"`)
	a.buf = appendCallRef(a.buf, id, name)
	a.buf = append(a.buf, `,"input":`...)
	a.buf = jscan.AppendCompact(a.buf, input)
	if providerExecuted {
		a.buf = append(a.buf, `,"providerExecuted":true`...)
	}
	a.close(nil)
}

// ToolResult adds the result of a tool that the provider ran. value is valid JSON.
func (a *Assistant) ToolResult(id, name string, value json.RawMessage, isError bool) {
	a.open(`{"type":"tool-result"`)
	a.buf = appendCallRef(a.buf, id, name)
	a.buf = appendOutput(a.buf, value, isError)
	a.close(nil)
}

// JSON returns the content, [] when nothing was added.
func (a *Assistant) JSON() json.RawMessage {
	if a.n == 0 {
		return json.RawMessage("[]")
	}
	return append(a.buf, ']')
}

// Len returns the number of parts added.
func (a *Assistant) Len() int { return a.n }

// Result is the outcome of one tool call.
type Result struct {
	CallID   string
	ToolName string
	Envelope json.RawMessage // the tool's answer, valid JSON
	IsError  bool
}

// ToolResults returns the content of the tool message that answers a step's calls. The caller
// passes the results in call order. An envelope that is a JSON string becomes a text or
// error-text output, other JSON a json or error-json output, and invalid JSON an error.
func ToolResults(results []Result) json.RawMessage {
	out := []byte{'['}
	for i, res := range results {
		if i > 0 {
			out = append(out, ',')
		}
		value, isError := res.Envelope, res.IsError
		if !jscan.Valid(value) {
			value, isError = json.RawMessage(`{"error":"the tool gave an answer that is not valid JSON"}`), true
		}
		out = append(out, `{"type":"tool-result"`...)
		out = appendCallRef(out, res.CallID, res.ToolName)
		out = appendOutput(out, jscan.ValidUTF8(value), isError)
		out = append(out, '}')
	}
	return append(out, ']')
}

func appendCallRef(dst []byte, id, name string) []byte {
	dst = append(dst, `,"toolCallId":`...)
	dst = jscan.AppendString(dst, id)
	dst = append(dst, `,"toolName":`...)
	return jscan.AppendString(dst, name)
}

func appendOutput(dst []byte, value json.RawMessage, isError bool) []byte {
	kind := OutputJSON
	switch isText := jscan.KindOf(value) == jscan.String; {
	case isText && isError:
		kind = OutputErrorText
	case isText:
		kind = OutputText
	case isError:
		kind = OutputErrorJSON
	}
	dst = append(dst, `,"output":{"type":"`...)
	dst = append(dst, kind...)
	dst = append(dst, `","value":`...)
	dst = jscan.AppendCompact(dst, value)
	return append(dst, '}')
}
