package modelmsg

import (
	"encoding/json"
	"slices"
	"strings"

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
	// HasImage means that the envelope's member image, if there is one, is a file part with a
	// picture.
	HasImage bool
}

// ToolResults returns the content of the tool message that answers a step's calls. The caller
// passes the results in call order. An envelope that is a JSON string becomes a text or
// error-text output, other JSON a json or error-json output, and invalid JSON an error. An
// envelope with an image becomes a content output: the rest of it as text, and the image.
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
		if image := imageOf(&res, value); image != nil {
			out = appendContent(out, value, image)
		} else {
			out = appendOutput(out, jscan.ValidUTF8(value), isError)
		}
		out = append(out, '}')
	}
	return append(out, ']')
}

// imageMember is the member of an envelope that has an image.
const imageMember = "image"

// imageOf returns the image of an envelope as a file part; nil if it has none that a model could
// see.
func imageOf(res *Result, envelope json.RawMessage) *Part {
	image := jscan.Member(envelope, imageMember)
	if !res.HasImage || res.IsError || image == nil {
		return nil
	}
	p, err := parsePart(image)
	if err != nil || p.Type != File || p.MediaType != "image/jpeg" && p.MediaType != "image/png" || strings.IndexFunc(strings.TrimRight(p.Data, "="), notBase64) >= 0 {
		return nil
	}
	return &p
}

// appendContent writes an envelope with an image as a content output.
func appendContent(dst []byte, envelope json.RawMessage, image *Part) []byte {
	members := map[string]json.RawMessage{}
	_ = json.Unmarshal(envelope, &members) // it is an object, because it has a member
	delete(members, imageMember)
	text, _ := json.Marshal(members) // it was JSON before
	dst = append(dst, `,"output":{"type":"`+OutputContent+`","value":[{"type":"text","text":`...)
	dst = jscan.AppendString(dst, string(text))
	dst = append(dst, `},{"type":"file-data","data":`...)
	dst = jscan.AppendString(dst, image.Data)
	dst = append(dst, `,"mediaType":`...)
	dst = jscan.AppendString(dst, image.MediaType)
	return append(dst, `}]}`...)
}

// unseen is what a model that sees no pictures reads in place of one in a tool's result.
const unseen = `{"type":"text","text":"(a picture, which you cannot see)"}`

// WithoutPictures returns the content of a tool message for a model that sees no pictures.
// Content that cannot be read is returned unchanged.
func WithoutPictures(content json.RawMessage) json.RawMessage {
	parts, err := Parse(content)
	if err != nil || !slices.ContainsFunc(parts, func(p Part) bool { return p.Output.Type == OutputContent }) {
		return content
	}
	out := []byte{'['}
	for i := range parts {
		p := &parts[i]
		if i > 0 {
			out = append(out, ',')
		}
		if p.Output.Type != OutputContent || jscan.KindOf(p.Output.Value) != jscan.Array {
			out = append(out, p.Raw...)
			continue
		}
		out = append(out, `{"type":"tool-result"`...)
		out = appendCallRef(out, p.ToolCallID, p.ToolName)
		out = append(out, `,"output":{"type":"`+OutputContent+`","value":[`...)
		r := jscan.NewReader(p.Output.Value)
		r.Array()
		for n := 0; r.Elem(); n++ {
			if n > 0 {
				out = append(out, ',')
			}
			item := r.Skip()
			if strings.HasPrefix(jscan.MemberString(item, "mediaType"), "image/") {
				item = []byte(unseen)
			}
			out = append(out, item...)
		}
		out = append(out, `]}}`...)
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
