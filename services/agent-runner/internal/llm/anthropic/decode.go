package anthropic

import (
	"unicode/utf8"

	"signalbox.dev/pkg/sse"

	"signalbox.dev/services/agent-runner/internal/llm"
	"signalbox.dev/services/agent-runner/internal/llm/jscan"
)

const (
	maxSources   = 512
	maxCitations = 512
)

// Decoder decodes one answer of the Messages API. It implements llm.Decoder.
type Decoder struct {
	seed   string
	limits llm.Limits

	id, model  string
	started    bool
	stopReason string
	done       bool

	blocks  []*block
	byIndex []*block
	calls   int
	names   map[string]string // of server tools, by call id
	ids     map[string]bool   // of our calls
	sources map[string]bool   // URLs that were reported
	cited   int               // citations that were reported

	tokens   tokens
	counted  bool // the final count has arrived
	usage    llm.Usage
	rawUsage []byte

	scratch []byte
}

// tokens are this dialect's counters, in which input excludes cached tokens.
type tokens struct {
	input, cacheRead, cacheWrite, output, reasoning int64
}

// NewDecoder returns a decoder of one answer. seed is for generated call ids; see llm.Meta.
func NewDecoder(seed string, limits llm.Limits) *Decoder {
	return &Decoder{seed: seed, limits: limits.WithDefaults()}
}

// frame is a decoded event, including the members of its delta.
type frame struct {
	typ                   jscan.Str
	index                 int64
	hasIndex              bool
	block, message, usage []byte

	delta     []byte
	deltaType jscan.Str
	value     jscan.Str // the delta's text, thinking, partial_json or signature
	citation  []byte
}

// Decode implements llm.Decoder.
func (d *Decoder) Decode(ev sse.Event, out []llm.Event) ([]llm.Event, bool, error) {
	data := ev.Data
	if !utf8.Valid(data) {
		data = jscan.ValidUTF8(data)
	}
	f, ok := readFrame(data)
	if !ok {
		return out, false, llm.Malformed("the event %q is not a JSON object", ev.Type)
	}
	typ := f.typ.Bytes()
	if len(typ) == 0 {
		typ = []byte(ev.Type)
	}
	var err error
	switch string(typ) {
	case "content_block_delta":
		out, err = d.blockDelta(&f, out)
	case "content_block_start":
		out, err = d.blockStart(&f, out)
	case "content_block_stop":
		out, err = d.blockStop(&f, out)
	case "message_start":
		out, err = d.messageStart(&f, out)
	case "message_delta":
		out = d.messageDelta(&f, out)
	case "message_stop":
		out = d.messageStop(out)
	case "error":
		err = llm.EventError(data)
	}
	return out, d.done, err
}

func readFrame(data []byte) (frame, bool) {
	var f frame
	r := jscan.NewReader(data)
	if !r.Object() {
		return f, false
	}
	for key, ok := r.Key(); ok; key, ok = r.Key() {
		switch string(key) {
		case "type":
			f.typ, _ = r.Str()
		case "index":
			f.index, f.hasIndex = r.Int()
		case "delta":
			f.readDelta(&r)
		case "content_block":
			f.block = r.Skip()
		case "message":
			f.message = r.Skip()
		case "usage":
			f.usage = r.Skip()
		default:
			r.Skip()
		}
	}
	return f, r.Done()
}

func (f *frame) readDelta(r *jscan.Reader) {
	mark := r.Mark()
	if !r.Object() {
		return
	}
	for key, ok := r.Key(); ok; key, ok = r.Key() {
		switch string(key) {
		case "type":
			f.deltaType, _ = r.Str()
		case "text", "thinking", "partial_json", "signature":
			f.value, _ = r.Str()
		case "citation":
			f.citation = r.Skip()
		default:
			r.Skip()
		}
	}
	f.delta = r.Since(mark)
}

// End implements llm.Decoder. The stop reason comes after the content, so an answer with a stop
// reason lacks only message_stop.
func (d *Decoder) End(out []llm.Event) ([]llm.Event, error) {
	if d.stopReason == "" {
		return out, llm.ErrTruncated
	}
	return d.messageStop(out), nil
}

func (d *Decoder) messageStart(f *frame, out []llm.Event) ([]llm.Event, error) {
	if d.started {
		return out, llm.Malformed("a second message_start")
	}
	d.started = true
	r := jscan.NewReader(f.message)
	if !r.Object() {
		return out, llm.Malformed("message_start without a message")
	}
	for key, ok := r.Key(); ok; key, ok = r.Key() {
		switch string(key) {
		case "id":
			s, _ := r.Str()
			d.id = s.String()
		case "model":
			s, _ := r.Str()
			d.model = s.String()
		case "usage":
			out = d.count(r.Skip(), out)
		default:
			r.Skip()
		}
	}
	return out, nil
}

func (d *Decoder) messageDelta(f *frame, out []llm.Event) []llm.Event {
	if reason := jscan.MemberString(f.delta, "stop_reason"); reason != "" {
		d.stopReason = reason
		d.counted = jscan.Member(f.usage, "output_tokens") != nil
	}
	return d.count(f.usage, out)
}

// count decodes a usage object. Its counters are cumulative; an absent or null counter keeps its
// value.
func (d *Decoder) count(raw []byte, out []llm.Event) []llm.Event {
	r := jscan.NewReader(raw)
	if r.Kind() != jscan.Object {
		return out
	}
	r.Object()
	set := func(v *int64) {
		if n, ok := r.Int(); ok && n >= 0 {
			*v = n
		}
	}
	for key, ok := r.Key(); ok; key, ok = r.Key() {
		switch string(key) {
		case "input_tokens":
			set(&d.tokens.input)
		case "cache_read_input_tokens":
			set(&d.tokens.cacheRead)
		case "cache_creation_input_tokens":
			set(&d.tokens.cacheWrite)
		case "output_tokens":
			set(&d.tokens.output)
		case "output_tokens_details":
			if v := jscan.Member(r.Skip(), "thinking_tokens"); v != nil {
				n := jscan.NewReader(v)
				d.tokens.reasoning, _ = n.Int()
			}
		default:
			r.Skip()
		}
	}
	d.rawUsage = append(d.rawUsage[:0], raw...)
	t := &d.tokens
	d.usage = llm.Usage{
		InputTokens: t.input + t.cacheRead + t.cacheWrite, CacheRead: t.cacheRead, CacheWrite: t.cacheWrite,
		OutputTokens: t.output, Reasoning: t.reasoning,
	}
	return append(out, llm.Event{Type: llm.UsageUpdate, Usage: &d.usage})
}

// find returns the open block of an event.
func (d *Decoder) find(f *frame) (*block, error) {
	if f.hasIndex && f.index >= 0 && f.index < int64(len(d.byIndex)) {
		if b := d.byIndex[f.index]; b != nil && !b.closed {
			return b, nil
		}
	}
	return nil, llm.Malformed("a %s for the block %d, which is not open", f.typ, f.index)
}

func (d *Decoder) blockStart(f *frame, out []llm.Event) ([]llm.Event, error) {
	switch {
	case !f.hasIndex || f.index < 0 || jscan.KindOf(f.block) != jscan.Object:
		return out, llm.Malformed("content_block_start without index or block")
	case f.index >= int64(d.limits.Blocks):
		return out, llm.OverLimit("it has more than %d blocks", d.limits.Blocks)
	case f.index < int64(len(d.byIndex)) && d.byIndex[f.index] != nil:
		return out, llm.Malformed("a second content_block_start for the block %d", f.index)
	}
	b := &block{index: f.index}
	b.open(f.block)
	if b.name == "" && (b.kind == kindToolUse || b.kind == kindServerUse) {
		b.name = "unnamed" // the call is answered with an error
	}
	for int64(len(d.byIndex)) <= f.index {
		d.byIndex = append(d.byIndex, nil)
	}
	d.byIndex[f.index] = b
	d.blocks = append(d.blocks, b)
	switch b.kind {
	case kindToolUse:
		return d.startCall(b, out)
	case kindServerUse:
		if d.names == nil {
			d.names = make(map[string]string)
		}
		d.names[b.id] = b.name
	case kindText:
		out = d.emit(b, llm.TextDelta, b.text, out)
		out = d.citedSources(b.citations, out)
	case kindThinking:
		out = d.emit(b, llm.ReasoningDelta, b.thinking, out)
	}
	return out, nil
}

func (d *Decoder) startCall(b *block, out []llm.Event) ([]llm.Event, error) {
	if d.calls++; d.calls > d.limits.Calls {
		return out, llm.OverLimit("it has more than %d tool calls", d.limits.Calls)
	}
	if d.ids == nil {
		d.ids = make(map[string]bool)
	}
	if b.id == "" || d.ids[b.id] {
		b.id, b.newID = llm.CallID(d.seed, d.id, d.calls), true
	}
	d.ids[b.id] = true
	return append(out, llm.Event{Type: llm.ToolCallStart, Index: int(b.index), ID: b.id, Name: b.name}), nil
}

// blockDelta is the hot path: it is called for every few characters of an answer.
func (d *Decoder) blockDelta(f *frame, out []llm.Event) ([]llm.Event, error) {
	b, err := d.find(f)
	if err != nil {
		return out, err
	}
	if f.delta == nil {
		return out, llm.Malformed("content_block_delta without a delta")
	}
	value := f.value
	switch string(f.deltaType.Bytes()) {
	case "text_delta":
		return d.appendText(b, "text", value, out), nil
	case "thinking_delta":
		return d.appendText(b, "thinking", value, out), nil
	case "input_json_delta":
		return d.inputDelta(b, value, out), nil
	case "signature_delta":
		b.signature = append(b.signature, value.Raw...)
		b.touched |= touchedSignature
		return out, nil
	case "citations_delta":
		if f.citation != nil {
			b.citations = appendElement(b.citations, f.citation)
			b.touched |= touchedCitations
			out = d.citedSource(f.citation, out)
		}
		return out, nil
	}
	return d.fold(b, f.delta, out)
}

// fold folds a delta of an unknown type.
func (d *Decoder) fold(b *block, delta []byte, out []llm.Event) ([]llm.Event, error) {
	r := jscan.NewReader(delta)
	r.Object()
	for key, ok := r.Key(); ok; key, ok = r.Key() {
		name := string(key)
		value := r.Skip()
		switch name {
		case "type", "id", "tool_use_id", "name":
			continue // identifiers, which do not grow
		case "text", "thinking":
			if s := jscan.NewReader(value); s.Kind() == jscan.String {
				raw, _ := s.Str()
				out = d.appendText(b, name, raw, out)
				continue
			}
		}
		if !b.more.Has(name) {
			b.more.Add(name, jscan.Member(b.start, name)) // the value in start comes first
		}
		if !b.more.Add(name, value) {
			return out, llm.OverLimit("a block has too many different members")
		}
	}
	return out, nil
}

// appendText appends to a block's text or thinking.
func (d *Decoder) appendText(b *block, member string, s jscan.Str, out []llm.Event) []llm.Event {
	if member == "text" {
		b.text = append(b.text, s.Raw...)
		b.touched |= touchedText
		return d.emitStr(b, llm.TextDelta, s, out)
	}
	b.thinking = append(b.thinking, s.Raw...)
	b.touched |= touchedThinking
	return d.emitStr(b, llm.ReasoningDelta, s, out)
}

func (d *Decoder) inputDelta(b *block, value jscan.Str, out []llm.Event) []llm.Event {
	if len(value.Raw) == 0 {
		return out // the first delta is always empty, and {} stays {}
	}
	b.partial = append(b.partial, value.Raw...)
	b.touched |= touchedInput
	if b.kind != kindToolUse {
		return out
	}
	n := len(out)
	if out = d.emitStr(b, llm.ToolCallDelta, value, out); len(out) > n {
		out[n].ID, out[n].Name = b.id, b.name
	}
	return out
}

// emit adds an event with the text of a raw string, if it has any.
func (d *Decoder) emit(b *block, typ llm.EventType, raw []byte, out []llm.Event) []llm.Event {
	return d.emitStr(b, typ, jscan.Str{Raw: raw, Escaped: true}, out)
}

func (d *Decoder) emitStr(b *block, typ llm.EventType, s jscan.Str, out []llm.Event) []llm.Event {
	text := s.Raw
	if s.Escaped || b.dec.Held() {
		// One event can yield several, so each has its own part of the buffer.
		if len(out) == 0 {
			d.scratch = d.scratch[:0]
		}
		start := len(d.scratch)
		d.scratch = b.dec.Append(d.scratch, s.Raw)
		text = d.scratch[start:]
	}
	if len(text) == 0 {
		return out
	}
	return append(out, llm.Event{Type: typ, Index: int(b.index), Text: text})
}

func (d *Decoder) blockStop(f *frame, out []llm.Event) ([]llm.Event, error) {
	b, err := d.find(f)
	if err != nil {
		return out, err
	}
	return d.closeBlock(b, out), nil
}

func (d *Decoder) closeBlock(b *block, out []llm.Event) []llm.Event {
	b.closed = true
	if b.dec.Held() {
		d.scratch = b.dec.Finish(d.scratch[:0])
		switch b.kind {
		case kindText:
			out = append(out, llm.Event{Type: llm.TextDelta, Index: int(b.index), Text: d.scratch})
		case kindThinking:
			out = append(out, llm.Event{Type: llm.ReasoningDelta, Index: int(b.index), Text: d.scratch})
		}
	}
	switch b.kind {
	case kindText:
		return d.cite(b, out)
	case kindToolUse:
		written := b.finishCall()
		ev := llm.Event{Type: llm.ToolCallComplete, Index: int(b.index), ID: b.id, Name: b.name, Args: b.args, Invalid: b.invalid}
		if b.invalid {
			ev.Text = written
		}
		return append(out, ev)
	case kindServerUse:
		b.finishCall()
		return append(out, llm.Event{Type: llm.ServerToolCall, Index: int(b.index), ID: b.id, Name: b.name, Args: b.args})
	case kindServerResult:
		value, isError := b.result()
		out = append(out, llm.Event{
			Type: llm.ServerToolResult, Index: int(b.index), ID: b.id, Name: b.resultName(d.names), Args: value, IsError: isError,
		})
		return d.foundSources(value, out)
	}
	return out
}

// messageStop ends the answer. Open blocks count as complete, because the provider says that
// the message is.
func (d *Decoder) messageStop(out []llm.Event) []llm.Event {
	d.done = true
	for _, b := range d.blocks {
		if !b.closed {
			out = d.closeBlock(b, out)
		}
	}
	return out
}

// cite reports the citations of a block, which are about all of its text. Those of documents, which
// have no URL, are left out, and those of sources beyond maxSources.
func (d *Decoder) cite(b *block, out []llm.Event) []llm.Event {
	r := jscan.NewReader(jscan.Bracketed(b.citations))
	r.Array()
	for r.Elem() {
		c := r.Skip()
		url := jscan.MemberString(c, "url")
		if !d.sources[url] || d.cited >= maxCitations {
			continue
		}
		d.cited++
		out = append(out, llm.Event{Type: llm.Citation, Index: int(b.index), URL: url, Text: []byte(jscan.MemberString(c, "cited_text"))})
	}
	return out
}

func (d *Decoder) citedSources(citations []byte, out []llm.Event) []llm.Event {
	r := jscan.NewReader(jscan.Bracketed(citations))
	r.Array()
	for r.Elem() {
		out = d.citedSource(r.Skip(), out)
	}
	return out
}

func (d *Decoder) citedSource(citation []byte, out []llm.Event) []llm.Event {
	return d.source(jscan.MemberString(citation, "url"), jscan.MemberString(citation, "title"), out)
}

func (d *Decoder) foundSources(results []byte, out []llm.Event) []llm.Event {
	if jscan.KindOf(results) != jscan.Array {
		return out
	}
	r := jscan.NewReader(results)
	r.Array()
	for r.Elem() {
		if v := r.Skip(); jscan.KindOf(v) == jscan.Object {
			out = d.citedSource(v, out)
		}
	}
	return out
}

func (d *Decoder) source(url, title string, out []llm.Event) []llm.Event {
	if url == "" || d.sources[url] || len(d.sources) >= maxSources {
		return out
	}
	if d.sources == nil {
		d.sources = make(map[string]bool)
	}
	d.sources[url] = true
	return append(out, llm.Event{Type: llm.Source, URL: url, Title: title})
}
