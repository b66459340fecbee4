package modelmsg

import (
	"encoding/json"
	"fmt"

	"signalbox.dev/services/agent-runner/internal/llm/jscan"
)

// Types of parts.
const (
	Text       = "text"
	Reasoning  = "reasoning"
	File       = "file"
	ToolCall   = "tool-call"
	ToolResult = "tool-result"
)

// Types of tool outputs.
const (
	OutputText      = "text"
	OutputJSON      = "json"
	OutputErrorText = "error-text"
	OutputErrorJSON = "error-json"
	OutputDenied    = "execution-denied"
	OutputContent   = "content"
)

// Part is one part of stored content. Which fields are set depends on Type; a part of an
// unknown type has only Type and Raw.
type Part struct {
	Type string
	Raw  json.RawMessage // the part as stored

	Text string // text, reasoning

	MediaType string // file
	Data      string // file: base64, or an https URL
	Filename  string // file; may be empty

	ToolCallID       string          // tool-call, tool-result
	ToolName         string          // tool-call, tool-result
	Input            json.RawMessage // tool-call
	ProviderExecuted bool            // tool-call
	Output           Output          // tool-result

	ProviderOptions json.RawMessage // nil when absent
}

// Output is the output of a tool result.
type Output struct {
	Type   string
	Value  json.RawMessage
	Reason string // execution-denied
}

// IsError reports whether the tool failed or was not allowed to run.
func (o Output) IsError() bool {
	return o.Type == OutputErrorText || o.Type == OutputErrorJSON || o.Type == OutputDenied
}

// String returns the output as text for a model: text as it is, anything else as JSON.
func (o Output) String() string {
	switch o.Type {
	case OutputDenied:
		if o.Reason != "" {
			return "The person refused this call: " + o.Reason
		}
		return "The person refused this call."
	case OutputText, OutputErrorText:
		var s string
		if err := json.Unmarshal(o.Value, &s); err == nil {
			return s
		}
	}
	return string(o.Value)
}

// imageBytes is as much text as a picture has tokens, about.
const imageBytes = 6000

// TextBytes returns the size of content without the data of files, whose tokens do not follow
// from their size. A picture in a tool's result counts like a text of as many tokens.
func TextBytes(content json.RawMessage) int {
	n := len(content)
	parts, _ := Parse(content) // what cannot be read counts in full
	for i := range parts {
		n -= len(parts[i].Data)
		if parts[i].Output.Type != OutputContent {
			continue
		}
		r := jscan.NewReader(parts[i].Output.Value)
		if !r.Array() {
			continue
		}
		for r.Elem() {
			if data := jscan.MemberString(r.Skip(), "data"); data != "" {
				n += imageBytes - len(data)
			}
		}
	}
	return n
}

// IsURL reports whether the data of a file part is an address, not base64.
func (p *Part) IsURL() bool {
	return len(p.Data) > len("https://") && p.Data[:8] == "https://"
}

// Parse reads stored content. A JSON string is one text part. Errors name the part.
func Parse(content json.RawMessage) ([]Part, error) {
	r := jscan.NewReader(content)
	var parts []Part
	switch r.Kind() {
	case jscan.String:
		s, _ := r.Str()
		parts = []Part{{Type: Text, Text: s.String(), Raw: content}}
	case jscan.Array:
		r.Array()
		for r.Elem() {
			raw := r.Skip()
			if raw == nil {
				break
			}
			p, err := parsePart(raw)
			if err != nil {
				return nil, fmt.Errorf("content[%d]: %w", len(parts), err)
			}
			parts = append(parts, p)
		}
	default:
		return nil, fmt.Errorf("content is neither a string nor an array of parts")
	}
	if !r.Done() {
		return nil, fmt.Errorf("read message content: %w", jscan.ErrSyntax)
	}
	return parts, nil
}

func parsePart(raw []byte) (Part, error) {
	r := jscan.NewReader(raw)
	if !r.Object() {
		return Part{}, fmt.Errorf("a part is an object, not %.20q", raw)
	}
	p := Part{Raw: raw}
	for key, ok := r.Key(); ok; key, ok = r.Key() {
		switch string(key) {
		case "type":
			p.Type = readString(&r)
		case "text":
			p.Text = readString(&r)
		case "mediaType":
			p.MediaType = readString(&r)
		case "data", "image":
			p.Data = readData(&r)
		case "filename":
			p.Filename = readString(&r)
		case "toolCallId":
			p.ToolCallID = readString(&r)
		case "toolName":
			p.ToolName = readString(&r)
		case "input":
			p.Input = r.Skip()
		case "providerExecuted":
			p.ProviderExecuted, _ = r.Bool()
		case "output":
			p.Output = readOutput(r.Skip())
		case "providerOptions":
			if raw := r.Skip(); jscan.KindOf(raw) == jscan.Object {
				p.ProviderOptions = raw
			}
		default:
			r.Skip()
		}
	}
	return p, p.check()
}

func (p *Part) check() error {
	switch {
	case p.Type == "":
		return fmt.Errorf("a part needs a type")
	case (p.Type == ToolCall || p.Type == ToolResult) && (p.ToolCallID == "" || p.ToolName == ""):
		return fmt.Errorf("a %s part needs toolCallId and toolName", p.Type)
	case p.Type == ToolCall && p.Input == nil:
		return fmt.Errorf("a tool-call part needs input")
	case p.Type == ToolResult && p.Output.Type == "":
		return fmt.Errorf("a tool-result part needs output")
	case p.Type == File && (p.Data == "" || p.MediaType == ""):
		return fmt.Errorf("a file part needs data and mediaType")
	case p.Type == "image":
		p.Type = File
		if p.MediaType == "" {
			p.MediaType = "image/*"
		}
	}
	return nil
}

// readData reads the stored plain string, or one of the two tagged forms that imported
// histories may have.
func readData(r *jscan.Reader) string {
	if r.Kind() == jscan.Object {
		raw := r.Skip()
		if s := jscan.MemberString(raw, "data"); s != "" {
			return s
		}
		return jscan.MemberString(raw, "url")
	}
	return readString(r)
}

func readString(r *jscan.Reader) string {
	s, _ := r.Str()
	return s.String()
}

func readOutput(raw []byte) Output {
	r := jscan.NewReader(raw)
	var o Output
	if !r.Object() {
		return o
	}
	for key, ok := r.Key(); ok; key, ok = r.Key() {
		switch string(key) {
		case "type":
			o.Type = readString(&r)
		case "value":
			o.Value = r.Skip()
		case "reason":
			o.Reason = readString(&r)
		default:
			r.Skip()
		}
	}
	return o
}
