package anthropic

import (
	"cmp"
	"encoding/json"
	"strings"

	"signalbox.dev/services/agent-runner/internal/llm"
	"signalbox.dev/services/agent-runner/internal/llm/jscan"
	"signalbox.dev/services/agent-runner/internal/modelmsg"
)

// kind classifies blocks.
type kind uint8

const (
	kindOther kind = iota
	kindText
	kindThinking
	kindRedacted
	kindToolUse      // a call of one of our tools
	kindServerUse    // a call that the provider runs: server_tool_use, mcp_tool_use, …
	kindServerResult // the result of such a call: web_search_tool_result, mcp_tool_result, …
)

func kindOf(typ string) kind {
	switch {
	case typ == "text":
		return kindText
	case typ == "thinking":
		return kindThinking
	case typ == "redacted_thinking":
		return kindRedacted
	case typ == "tool_use":
		return kindToolUse
	case strings.HasSuffix(typ, "_tool_use"):
		return kindServerUse
	case strings.HasSuffix(typ, "_tool_result"):
		return kindServerResult
	}
	return kindOther
}

// block is a content block that is being received.
type block struct {
	kind  kind
	index int64
	start []byte // content_block as it came
	id    string // id, or of a result tool_use_id
	name  string

	// The members to which deltas are appended, as raw JSON strings that begin with the value
	// in start.
	text, thinking, signature []byte
	partial                   []byte // of input; replaces the start's
	citations                 []byte // elements joined with commas
	touched                   uint8  // bits of the members that have deltas
	more                      jscan.Merged

	dec    jscan.Decoder
	closed bool

	args    json.RawMessage // of a call; set when the block is closed
	invalid bool
	newID   bool // id was generated here
}

const (
	touchedText = 1 << iota
	touchedThinking
	touchedSignature
	touchedInput
	touchedCitations
)

// open decodes content_block.
func (b *block) open(raw []byte) {
	b.start = append([]byte(nil), raw...)
	r := jscan.NewReader(b.start)
	r.Object()
	var result string
	for key, ok := r.Key(); ok; key, ok = r.Key() {
		switch string(key) {
		case "type":
			s, _ := r.Str()
			b.kind = kindOf(s.String())
		case "id":
			s, _ := r.Str()
			b.id = s.String()
		case "tool_use_id":
			s, _ := r.Str()
			result = s.String()
		case "name":
			s, _ := r.Str()
			b.name = s.String()
		case "text":
			s, _ := r.Str()
			b.text = append(b.text, s.Raw...)
		case "thinking":
			s, _ := r.Str()
			b.thinking = append(b.thinking, s.Raw...)
		case "signature":
			s, _ := r.Str()
			b.signature = append(b.signature, s.Raw...)
		case "citations":
			if list := r.Skip(); jscan.KindOf(list) == jscan.Array {
				b.citations = appendElements(b.citations, list)
			}
		default:
			r.Skip()
		}
	}
	if b.kind == kindServerResult {
		b.id = result
	}
}

// appendElements appends the elements of the array list to elements.
func appendElements(elements, list []byte) []byte {
	r := jscan.NewReader(list)
	r.Array()
	for r.Elem() {
		elements = appendElement(elements, r.Skip())
	}
	return elements
}

func appendElement(elements, value []byte) []byte {
	if len(elements) > 0 {
		elements = append(elements, ',')
	}
	return append(elements, value...)
}

// input returns the arguments of a call as the model wrote them.
func (b *block) input() []byte {
	if b.touched&touchedInput != 0 {
		return jscan.AppendUnescaped(nil, b.partial)
	}
	return jscan.Member(b.start, "input")
}

// finishCall sets the final arguments of a call; see llm.Arguments.
func (b *block) finishCall() (written []byte) {
	written = b.input()
	b.args, b.invalid = llm.Arguments(written)
	return written
}

// appendRaw appends the block in the provider's form.
func (b *block) appendRaw(dst []byte) []byte {
	var edits []jscan.Edit
	add := func(flag uint8, name string, value []byte) {
		if b.touched&flag != 0 {
			edits = append(edits, jscan.Edit{Name: name, Value: value})
		}
	}
	add(touchedText, "text", jscan.Quoted(b.text))
	add(touchedThinking, "thinking", jscan.Quoted(b.thinking))
	add(touchedSignature, "signature", jscan.Quoted(b.signature))
	add(touchedCitations, "citations", jscan.Bracketed(b.citations))
	if b.touched&touchedInput != 0 {
		edits = append(edits, jscan.Edit{Name: "input", Value: b.rawInput()})
	}
	if b.newID {
		edits = append(edits, jscan.Edit{Name: "id", Value: jscan.AppendString(nil, b.id)})
	}
	edits = append(edits, b.more.Edits()...)
	return jscan.AppendSpliced(dst, b.start, edits...)
}

// rawInput returns the input exactly as the model wrote it if it is JSON.
func (b *block) rawInput() []byte {
	if !b.invalid {
		if in := b.input(); jscan.KindOf(in) == jscan.Object && jscan.Valid(in) {
			return in
		}
	}
	if b.args == nil {
		return []byte("{}")
	}
	return b.args
}

// appendContent adds the block's part to the ModelMessage content. names finds the
// name of a server tool by call id.
func (b *block) appendContent(a *modelmsg.Assistant, names map[string]string) {
	if b.id == "" && (b.kind == kindServerUse || b.kind == kindServerResult) {
		return // a ModelMessage has no place for it
	}
	switch b.kind {
	case kindText:
		if len(b.text) > 0 {
			a.Text(b.text, b.citationOptions())
		}
	case kindThinking:
		if len(b.thinking) == 0 && len(b.signature) == 0 {
			return
		}
		var options []byte
		if len(b.signature) > 0 {
			options = append(options, `{"anthropic":{"signature":"`...)
			options = append(options, b.signature...)
			options = append(options, `"}}`...)
		}
		a.Reasoning(b.thinking, options)
	case kindRedacted:
		options := append([]byte(`{"anthropic":{"redactedData":`), jscan.AppendString(nil, jscan.MemberString(b.start, "data"))...)
		a.Reasoning(nil, append(options, "}}"...))
	case kindToolUse:
		a.ToolCall(b.id, b.name, b.args, false)
	case kindServerUse:
		a.ToolCall(b.id, b.name, b.args, true)
	case kindServerResult:
		value, isError := b.result()
		a.ToolResult(b.id, b.resultName(names), value, isError)
	}
}

// citationOptions returns the citations without the members that only the provider can read.
func (b *block) citationOptions() []byte {
	if len(b.citations) == 0 {
		return nil
	}
	out := []byte(`{"anthropic":{"citations":[`)
	r := jscan.NewReader(jscan.Bracketed(b.citations))
	r.Array()
	for n := 0; r.Elem(); n++ {
		if n > 0 {
			out = append(out, ',')
		}
		out = appendWithout(out, r.Skip(), "encrypted_index", nil)
	}
	return append(out, "]}}"...)
}

// result returns the result of a server tool. Search results have only the members that people
// read, under the AI SDK's names.
func (b *block) result() (value json.RawMessage, isError bool) {
	content := jscan.Member(b.start, "content")
	for _, e := range b.more.Edits() {
		if e.Name == "content" {
			content = e.Value
		}
	}
	if content == nil {
		content = []byte("null")
	}
	isError = string(jscan.Member(b.start, "is_error")) == "true"
	if jscan.KindOf(content) == jscan.Object && strings.HasSuffix(jscan.MemberString(content, "type"), "_error") {
		isError = true
	}
	if jscan.KindOf(content) != jscan.Array {
		return jscan.AppendCompact(nil, content), isError
	}
	out := []byte{'['}
	r := jscan.NewReader(content)
	r.Array()
	for n := 0; r.Elem(); n++ {
		if n > 0 {
			out = append(out, ',')
		}
		out = appendWithout(out, r.Skip(), "encrypted_content", map[string]string{"page_age": "pageAge"})
	}
	return append(out, ']'), isError
}

func (b *block) resultName(names map[string]string) string {
	if name := names[b.id]; name != "" {
		return name
	}
	return cmp.Or(strings.TrimSuffix(jscan.MemberString(b.start, "type"), "_tool_result"), "unnamed")
}

// appendWithout appends value on one line. If it is an object, it leaves out the member called
// drop and renames members.
func appendWithout(dst, value []byte, drop string, rename map[string]string) []byte {
	r := jscan.NewReader(value)
	if r.Kind() != jscan.Object {
		return jscan.AppendCompact(dst, value)
	}
	r.Object()
	dst = append(dst, '{')
	n := 0
	for key, ok := r.Key(); ok; key, ok = r.Key() {
		v := r.Skip()
		name := string(key)
		if name == drop {
			continue
		}
		if other := rename[name]; other != "" {
			name = other
		}
		if n++; n > 1 {
			dst = append(dst, ',')
		}
		dst = jscan.AppendString(dst, name)
		dst = append(dst, ':')
		dst = jscan.AppendCompact(dst, v)
	}
	return append(dst, '}')
}
