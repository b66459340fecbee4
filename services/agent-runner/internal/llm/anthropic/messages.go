package anthropic

import (
	"bytes"
	"strings"

	"signalbox.dev/services/agent-runner/internal/llm"
	"signalbox.dev/services/agent-runner/internal/llm/jscan"
	"signalbox.dev/services/agent-runner/internal/modelmsg"
)

const maxToolName = 128

// messages writes the conversation. Messages alternate between user and assistant, so adjacent
// messages of the same role become one.
func (b *builder) messages() error {
	w := writer{out: append(b.out, `,"messages":[`...)}
	s := b.serverTools()
	for i := range b.turns {
		t := &b.turns[i]
		switch t.Role {
		case llm.User:
			if err := b.user(&w, t); err != nil {
				return err
			}
		case llm.Assistant:
			w.answer(t, s, i == len(b.turns)-1)
			for j := range t.Calls {
				w.toolResult(&t.Calls[j])
			}
		}
	}
	b.end(&w)
	w.finish()
	if !b.req.NoCache {
		w.breakpoints(maxBreakpoints - b.breaks)
	}
	b.out = append(w.out, ']')
	return nil
}

// end makes the conversation end as the API requires: with a user turn, or with an answer that
// the provider paused, which must not end in white space.
func (b *builder) end(w *writer) {
	switch {
	case w.role == "":
		w.text("user", textBeforeFirst)
	case w.role == "assistant" && !b.paused():
		w.text("user", textToGoOn)
	case w.role == "assistant":
		w.trimEnd()
	}
}

func (b *builder) paused() bool {
	last := len(b.turns) - 1
	if b.req.Continue {
		return true
	}
	if last < 0 || b.turns[last].Raw == nil {
		return false
	}
	r := jscan.NewReader(b.turns[last].Raw)
	r.Array()
	var block []byte
	for r.Elem() {
		block = r.Skip()
	}
	return kindOf(jscan.MemberString(block, "type")) == kindServerUse
}

// serverTools are the ids of the provider's own calls in raw answers.
type serverTools struct {
	used, answered map[string]bool
}

func (b *builder) serverTools() serverTools {
	s := serverTools{used: make(map[string]bool), answered: make(map[string]bool)}
	for i := range b.turns {
		r := jscan.NewReader(b.turns[i].Raw)
		if b.turns[i].Raw == nil || !r.Array() {
			continue
		}
		for r.Elem() {
			block := r.Skip()
			switch kindOf(jscan.MemberString(block, "type")) {
			case kindServerUse:
				s.used[jscan.MemberString(block, "id")] = true
			case kindServerResult:
				s.answered[jscan.MemberString(block, "tool_use_id")] = true
			}
		}
	}
	return s
}

// writer writes messages block by block.
type writer struct {
	out     []byte
	role    string // of the open message
	written int
	ends    []int // of each user message: the position of its last block's bracket
	lastEnd int
	tail    int // the end of the last text block's raw or encoded text, or 0
}

// block opens a block in a message of the role. The caller appends the block's bytes and then
// calls end.
func (w *writer) block(role string) {
	if w.role == "" && role == "assistant" {
		w.text("user", textBeforeFirst)
	}
	if w.role == role {
		w.out = append(w.out, ',')
		return
	}
	w.finish()
	if w.written++; w.written > 1 {
		w.out = append(w.out, ',')
	}
	w.role = role
	w.out = append(w.out, `{"role":"`...)
	w.out = append(w.out, role...)
	w.out = append(w.out, `","content":[`...)
}

// end ends a block.
func (w *writer) end() {
	w.lastEnd = bytes.LastIndexByte(w.out, '}')
	w.tail = 0
}

// finish closes the open message.
func (w *writer) finish() {
	if w.role == "" {
		return
	}
	if w.role == "user" {
		w.ends = append(w.ends, w.lastEnd)
	}
	w.out = append(w.out, "]}"...)
	w.role = ""
}

// breakpoints puts at most two, and at most room, cache breakpoints at the ends of the last user
// messages.
func (w *writer) breakpoints(room int) {
	for n := 0; n < min(room, 2, len(w.ends)); n++ {
		at := w.ends[len(w.ends)-1-n]
		w.out = append(w.out, ","+cacheControl...)
		copy(w.out[at+1+len(cacheControl):], w.out[at:])
		copy(w.out[at:], ","+cacheControl)
	}
}

// text writes a text block unless it is blank, which the API refuses.
func (w *writer) text(role, text string) {
	if strings.TrimSpace(text) == "" {
		return
	}
	w.block(role)
	w.out = append(w.out, `{"type":"text","text":`...)
	w.out = jscan.AppendString(w.out, text)
	w.out = append(w.out, '}')
	w.end()
	w.tail = len(w.out) - len(`"}`)
}

// trimEnd trims white space at the end of the last text.
func (w *writer) trimEnd() {
	if w.tail == 0 {
		return
	}
	rest := string(w.out[w.tail:])
	text := w.out[:w.tail]
	for {
		short := bytes.TrimRight(text, " ")
		for _, esc := range []string{`\n`, `\t`, `\r`} {
			if cut, ok := bytes.CutSuffix(short, []byte(esc)); ok && (len(cut)-len(bytes.TrimRight(cut, `\`)))%2 == 0 {
				short = cut
			}
		}
		if len(short) == len(text) {
			break
		}
		text = short
	}
	w.out = append(text, rest...)
	w.lastEnd = bytes.LastIndexByte(w.out, '}')
}

// answer writes an assistant's turn: raw blocks unchanged, or converted parts.
func (w *writer) answer(t *llm.Turn, s serverTools, last bool) {
	if t.Raw == nil {
		for i := range t.Parts {
			w.part(&t.Parts[i])
		}
		for i := range t.Calls {
			w.toolUse(&t.Calls[i])
		}
		return
	}
	blocks := rawBlocks(t.Raw)
	for !last && len(blocks) > 0 && isThinking(blocks[len(blocks)-1]) {
		// The API refuses an answer that ends with thinking, as one that was cut short may.
		blocks = blocks[:len(blocks)-1]
	}
	for _, block := range blocks {
		typ := jscan.MemberString(block, "type")
		tail := false
		switch kindOf(typ) {
		case kindText:
			text := jscan.MemberString(block, "text")
			if strings.TrimSpace(text) == "" {
				continue
			}
			tail = bytes.HasSuffix(block, []byte(`"}`)) && jscan.Member(block, "citations") == nil
		case kindServerUse:
			if !s.answered[jscan.MemberString(block, "id")] && !last {
				continue // the provider has not run it
			}
		case kindServerResult:
			if !s.used[jscan.MemberString(block, "tool_use_id")] {
				continue
			}
		}
		w.block("assistant")
		w.out = append(w.out, block...)
		w.end()
		if tail && lastMember(block) == "text" {
			w.tail = len(w.out) - len(`"}`)
		}
	}
}

// rawBlocks returns the elements of a raw answer.
func rawBlocks(raw []byte) [][]byte {
	var blocks [][]byte
	r := jscan.NewReader(raw)
	r.Array()
	for r.Elem() {
		blocks = append(blocks, r.Skip())
	}
	return blocks
}

func isThinking(block []byte) bool {
	switch jscan.MemberString(block, "type") {
	case "thinking", "redacted_thinking":
		return true
	}
	return false
}

func lastMember(object []byte) string {
	r := jscan.NewReader(object)
	name := ""
	r.Object()
	for key, ok := r.Key(); ok; key, ok = r.Key() {
		name = string(key)
		r.Skip()
	}
	return name
}

// part converts a part of an answer. It leaves out calls and results of another provider's
// server tools, because the text that follows reports what they found.
func (w *writer) part(p *modelmsg.Part) {
	switch p.Type {
	case modelmsg.Text:
		w.text("assistant", p.Text)
	case modelmsg.Reasoning:
		if block := thinkingBlock(p); block != nil {
			w.block("assistant")
			w.out = append(w.out, block...)
			w.end()
		}
	}
}

// thinkingBlock returns a reasoning part as a block, or nil unless this provider signed it.
func thinkingBlock(p *modelmsg.Part) []byte {
	if p.Type != modelmsg.Reasoning {
		return nil
	}
	own := jscan.Member(p.ProviderOptions, "anthropic")
	if data := jscan.MemberString(own, "redactedData"); data != "" {
		return append(jscan.AppendString([]byte(`{"type":"redacted_thinking","data":`), data), '}')
	}
	signature := jscan.MemberString(own, "signature")
	if signature == "" {
		return nil
	}
	block := jscan.AppendString([]byte(`{"type":"thinking","thinking":`), p.Text)
	block = append(block, `,"signature":`...)
	block = jscan.AppendString(block, signature)
	return append(block, '}')
}

func (w *writer) toolUse(c *llm.Call) {
	w.block("assistant")
	w.out = append(w.out, `{"type":"tool_use","id":`...)
	w.out = jscan.AppendString(w.out, c.ID)
	w.out = append(w.out, `,"name":`...)
	w.out = jscan.AppendString(w.out, llm.ToolName(c.Name, maxToolName))
	w.out = append(w.out, `,"input":`...)
	args, _ := llm.Arguments(c.Input)
	w.out = append(w.out, args...)
	w.out = append(w.out, '}')
	w.end()
}

func (w *writer) toolResult(c *llm.Call) {
	w.block("user")
	w.out = append(w.out, `{"type":"tool_result","tool_use_id":`...)
	w.out = jscan.AppendString(w.out, c.ID)
	w.out = append(w.out, `,"content":`...)
	if c.Output.Type == modelmsg.OutputContent {
		w.out = appendRich(w.out, c.Output.Value)
	} else {
		text := c.Output.String()
		if text == "" && c.Output.IsError() {
			text = "The tool failed."
		}
		w.out = jscan.AppendString(w.out, text)
	}
	if c.Output.IsError() {
		w.out = append(w.out, `,"is_error":true`...)
	}
	w.out = append(w.out, '}')
	w.end()
}
