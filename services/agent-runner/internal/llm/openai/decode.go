package openai

import (
	"bytes"
	"math"
	"unicode/utf8"

	"signalbox.dev/pkg/sse"

	"signalbox.dev/services/agent-runner/internal/llm"
	"signalbox.dev/services/agent-runner/internal/llm/jscan"
)

const (
	maxSources   = 512
	maxCitations = 512
)

// Decoder decodes one answer of the Chat Completions API. It implements llm.Decoder.
type Decoder struct {
	flavor Flavor
	seed   string
	limits llm.Limits

	id, model string
	finish    string // finish_reason; empty until it arrives
	ended     bool

	content, refusal, reasoning spoken
	reasoningContent            spoken
	detailsSaid                 spoken // what only the details say
	details                     []*detail
	calls                       []*call
	annotations                 []byte // elements joined with commas
	more                        jscan.Merged

	ids      map[string]bool
	sources  map[string]bool
	cited    int     // citations that were reported
	thinksIn *spoken // the member that reasoning is read from, because some servers send it twice
	usage    llm.Usage
	rawUsage []byte

	scratch    []byte
	head       []byte // of the last chunk, up to its choices
	choicesKey []byte
}

// spoken is a string member that arrives in fragments.
type spoken struct {
	raw []byte
	set bool // the member has arrived; it may be empty
	dec jscan.Decoder
}

// NewDecoder returns a decoder of one answer. seed is for generated call ids; see llm.Meta.
func NewDecoder(flavor Flavor, seed string, limits llm.Limits) *Decoder {
	return &Decoder{flavor: flavor, seed: seed, limits: limits.WithDefaults(), choicesKey: []byte("choices")}
}

// Decode implements llm.Decoder.
func (d *Decoder) Decode(ev sse.Event, out []llm.Event) ([]llm.Event, bool, error) {
	data := ev.Data
	if len(data) < 16 {
		switch string(bytes.TrimSpace(data)) {
		case "[DONE]":
			out, err := d.End(out)
			return out, true, err
		case "":
			return out, false, nil
		}
	}
	if !utf8.Valid(data) {
		data = jscan.ValidUTF8(data)
	}
	if ev.Type == "error" {
		return out, false, llm.EventError(data)
	}
	out, err := d.chunk(data, out)
	return out, false, err
}

// End implements llm.Decoder. Some servers leave out [DONE]; the answer is then complete if it
// has a finish reason.
func (d *Decoder) End(out []llm.Event) ([]llm.Event, error) {
	if d.finish == "" {
		return out, llm.ErrTruncated
	}
	if d.ended {
		return out, nil
	}
	d.ended = true
	out = d.flush(&d.content, llm.TextDelta, out)
	out = d.flush(&d.refusal, llm.TextDelta, out)
	if d.thinksIn != nil {
		out = d.flush(d.thinksIn, llm.ReasoningDelta, out)
	}
	for i, c := range d.calls {
		c.finish()
		if !c.started {
			out = append(out, llm.Event{Type: llm.ToolCallStart, Index: i, ID: c.id, Name: c.name})
		}
		ev := llm.Event{Type: llm.ToolCallComplete, Index: i, ID: c.id, Name: c.name, Args: c.parsed, Invalid: c.invalid}
		if c.invalid {
			ev.Text = c.written()
		}
		out = append(out, ev)
	}
	if d.rawUsage != nil {
		out = append(out, llm.Event{Type: llm.UsageUpdate, Usage: &d.usage})
	}
	return out, nil
}

func (d *Decoder) flush(s *spoken, typ llm.EventType, out []llm.Event) []llm.Event {
	if !s.dec.Held() {
		return out
	}
	return append(out, llm.Event{Type: typ, Text: s.dec.Finish(nil)})
}

// chunk decodes one chat.completion.chunk, or an error that a server sends instead.
func (d *Decoder) chunk(data []byte, out []llm.Event) ([]llm.Event, error) {
	r, key, ok := d.open(data)
	failed := false // the chunk has an error object, with or without choices
	plain := true   // the members before the choices need no action
	var usage []byte
	var err error
	for ; ok && err == nil; key, ok = r.Key() {
		switch string(key) {
		case "id":
			setOnce(&d.id, &r)
		case "model":
			setOnce(&d.model, &r)
		case "choices":
			if mark := r.Mark(); plain {
				d.head = append(d.head[:0], data[:mark]...)
			}
			out, err = d.choices(&r, out)
		case "usage":
			plain = false
			usage = r.Skip()
		case "error":
			plain = false
			failed = jscan.KindOf(r.Skip()) > jscan.Null || failed
		default:
			r.Skip()
		}
	}
	switch {
	case err != nil:
		return out, err
	case !r.Done():
		return out, llm.Malformed("a chunk is not a JSON object")
	case failed:
		return out, llm.EventError(data)
	}
	d.count(usage)
	return out, nil
}

// open enters a chunk and returns its first member. The chunks of a stream begin with the same
// id, model and time, which it reads only once.
func (d *Decoder) open(data []byte) (r jscan.Reader, key []byte, ok bool) {
	if len(d.head) > 0 && bytes.HasPrefix(data, d.head) {
		return jscan.Inside(data, len(d.head)), d.choicesKey, true
	}
	r = jscan.NewReader(data)
	if !r.Object() {
		return jscan.NewReader([]byte("!")), nil, false
	}
	key, ok = r.Key()
	return r, key, ok
}

func setOnce(dst *string, r *jscan.Reader) {
	s, _ := r.Str()
	if *dst == "" && len(s.Raw) > 0 {
		*dst = s.String()
	}
}

// choices decodes the first choice. Requests ask for only one.
func (d *Decoder) choices(r *jscan.Reader, out []llm.Event) ([]llm.Event, error) {
	if !r.Array() {
		return out, nil
	}
	var err error
	for r.Elem() && err == nil {
		if r.Object() {
			out, err = d.choice(r, out)
		}
	}
	return out, err
}

// choice decodes one choice. If its index does not come first, the delta waits for it.
func (d *Decoder) choice(r *jscan.Reader, out []llm.Event) ([]llm.Event, error) {
	index, known := int64(0), false
	var late []byte // a delta that came before the index
	var finish jscan.Str
	var err error
	for key, ok := r.Key(); ok && err == nil; key, ok = r.Key() {
		switch string(key) {
		case "index":
			index, _ = r.Int()
			known = true
		case "delta":
			if known && index == 0 {
				out, err = d.delta(r, out)
			} else {
				late = r.Skip()
			}
		case "finish_reason":
			finish, _ = r.Str()
		default:
			r.Skip()
		}
	}
	if index != 0 || err != nil {
		return out, err
	}
	if late != nil {
		l := jscan.NewReader(late)
		out, err = d.delta(&l, out)
	}
	if len(finish.Raw) > 0 {
		d.finish = finish.String()
	}
	return out, err
}

// delta is the hot path: it is called for every few characters of an answer.
func (d *Decoder) delta(r *jscan.Reader, out []llm.Event) ([]llm.Event, error) {
	if !r.Object() {
		return out, nil
	}
	var err error
	for key, ok := r.Key(); ok && err == nil; key, ok = r.Key() {
		switch string(key) {
		case "content":
			out = d.say(&d.content, r, out)
		case "refusal":
			out = d.speak(&d.refusal, llm.TextDelta, r, out)
		case "reasoning_content":
			out = d.think(&d.reasoningContent, r, out)
		case "reasoning":
			out = d.think(&d.reasoning, r, out)
		case "reasoning_details":
			out, err = d.addDetails(r.Skip(), out)
		case "tool_calls":
			out, err = d.addCalls(r, out)
		case "annotations":
			out = d.annotate(r.Skip(), out)
		case "role", "function_call":
			r.Skip() // the role is known, and tool calls have replaced function calls
		default:
			if !d.more.Add(string(key), r.Skip()) {
				err = llm.OverLimit("a delta has too many different members")
			}
		}
	}
	return out, err
}

// say decodes content: a string, or with some servers an array of text and thinking.
func (d *Decoder) say(s *spoken, r *jscan.Reader, out []llm.Event) []llm.Event {
	if r.Kind() != jscan.Array {
		return d.speak(s, llm.TextDelta, r, out)
	}
	r.Array()
	for r.Elem() {
		item := jscan.NewReader(r.Skip())
		if !item.Object() {
			continue
		}
		for key, ok := item.Key(); ok; key, ok = item.Key() {
			switch string(key) {
			case "text":
				out = d.speak(s, llm.TextDelta, &item, out)
			case "thinking":
				out = d.sayThinking(&item, out)
			default:
				item.Skip()
			}
		}
	}
	return out
}

func (d *Decoder) sayThinking(r *jscan.Reader, out []llm.Event) []llm.Event {
	if !r.Array() {
		return out
	}
	for r.Elem() {
		if text := jscan.Member(r.Skip(), "text"); text != nil {
			t := jscan.NewReader(text)
			out = d.think(&d.reasoningContent, &t, out)
		}
	}
	return out
}

func (d *Decoder) speak(s *spoken, typ llm.EventType, r *jscan.Reader, out []llm.Event) []llm.Event {
	str, ok := r.Str()
	if !ok {
		return out
	}
	s.set = true
	s.raw = append(s.raw, str.Raw...)
	return d.emit(&s.dec, typ, 0, str, out)
}

// think decodes reasoning. If a server sends it under two names, only one counts.
func (d *Decoder) think(s *spoken, r *jscan.Reader, out []llm.Event) []llm.Event {
	str, ok := r.Str()
	if !ok {
		return out
	}
	s.set = true
	s.raw = append(s.raw, str.Raw...)
	if d.thinksIn == nil && len(str.Raw) > 0 {
		d.thinksIn = s
	}
	if d.thinksIn != s {
		return out
	}
	return d.emit(&s.dec, llm.ReasoningDelta, 0, str, out)
}

func (d *Decoder) emit(dec *jscan.Decoder, typ llm.EventType, index int, s jscan.Str, out []llm.Event) []llm.Event {
	text := s.Raw
	if s.Escaped || dec.Held() {
		// One chunk can yield several events, so each has its own part of the buffer.
		if len(out) == 0 {
			d.scratch = d.scratch[:0]
		}
		start := len(d.scratch)
		d.scratch = dec.Append(d.scratch, s.Raw)
		text = d.scratch[start:]
	}
	if len(text) == 0 {
		return out
	}
	return append(out, llm.Event{Type: typ, Index: index, Text: text})
}

// annotate decodes the sources of an answer.
func (d *Decoder) annotate(list []byte, out []llm.Event) []llm.Event {
	if jscan.KindOf(list) != jscan.Array {
		return out
	}
	r := jscan.NewReader(list)
	r.Array()
	for r.Elem() {
		a := r.Skip()
		if len(d.annotations) > 0 {
			d.annotations = append(d.annotations, ',')
		}
		d.annotations = append(d.annotations, a...)
		cited := jscan.Member(a, "url_citation")
		url := jscan.MemberString(cited, "url")
		if url == "" {
			continue
		}
		if !d.sources[url] && len(d.sources) < maxSources {
			if d.sources == nil {
				d.sources = make(map[string]bool)
			}
			d.sources[url] = true
			out = append(out, llm.Event{Type: llm.Source, URL: url, Title: jscan.MemberString(cited, "title")})
		}
		// An end of 0 is that of servers that do not know the place.
		if end := jscan.NewReader(jscan.Member(cited, "end_index")); d.sources[url] && d.cited < maxCitations {
			if n, ok := end.Int(); ok && n > 0 && n <= math.MaxInt32 {
				d.cited++
				out = append(out, llm.Event{Type: llm.Citation, URL: url, End: int(n)})
			}
		}
	}
	return out
}

// count decodes a usage object. The last one counts, because some servers send one with every
// chunk.
func (d *Decoder) count(raw []byte) {
	r := jscan.NewReader(raw)
	if r.Kind() != jscan.Object {
		return
	}
	r.Object()
	var u llm.Usage
	number := func(object []byte, name string) int64 {
		v := jscan.NewReader(jscan.Member(object, name))
		n, _ := v.Int()
		return max(n, 0)
	}
	for key, ok := r.Key(); ok; key, ok = r.Key() {
		switch v := r.Skip(); string(key) {
		case "prompt_tokens":
			n := jscan.NewReader(v)
			u.InputTokens, _ = n.Int()
		case "completion_tokens":
			n := jscan.NewReader(v)
			u.OutputTokens, _ = n.Int()
		case "prompt_tokens_details":
			u.CacheRead = number(v, "cached_tokens")
			u.CacheWrite = number(v, "cache_write_tokens")
		case "completion_tokens_details":
			u.Reasoning = number(v, "reasoning_tokens")
		}
	}
	u.InputTokens, u.OutputTokens = max(u.InputTokens, 0), max(u.OutputTokens, 0)
	d.usage = u
	d.rawUsage = append(d.rawUsage[:0], raw...)
}
