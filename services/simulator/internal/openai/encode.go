package openai

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"
	"time"
	"unicode/utf8"

	"signalbox.dev/services/simulator/internal/chat"
	"signalbox.dev/services/simulator/internal/wire"
)

// Comment is the line that OpenRouter sends while it waits for a provider.
const Comment = ": OPENROUTER PROCESSING\n\n"

// Encoder encodes one answer as chat completion chunks. It uses no reflection, and a delta
// costs no allocation.
type Encoder struct {
	answer *chat.Answer
	req    *chat.Request
	seed   chat.Seed
	now    time.Time
	before []byte      // a chunk up to its delta
	calls  map[int]int // block → index of its tool call
	runes  int         // characters of content so far
	starts map[int]int // block → characters before it
	lone   bool        // the first chunk of the only tool call has the role
	pad    uint32
}

// NewEncoder returns an encoder for an answer to req.
func NewEncoder(a *chat.Answer, req *chat.Request, seed chat.Seed, now time.Time) *Encoder {
	e := &Encoder{answer: a, req: req, seed: seed, now: now, calls: map[int]int{}, starts: map[int]int{}}
	e.before = append(e.head(append(e.before, "data: "...), "chat.completion.chunk"), `,"choices":[{"index":0,"delta":`...)
	if a.Shape.Padding {
		e.pad = 1 + uint32(seed[0])
	}
	return e
}

func (e *Encoder) router() bool { return e.req.Dialect == chat.OpenRouter }

// RequestID returns the value of the x-request-id header.
func RequestID(seed chat.Seed) string { return seed.ID("req_", 0) }

// head writes the first fields of a chunk or a completion and leaves the object open.
func (e *Encoder) head(b []byte, object string) []byte {
	if e.router() {
		b = wire.AppendString(append(b, `{"id":`...), e.seed.ID("gen-"+strconv.FormatInt(e.now.Unix(), 10)+"-", 0))
		b = wire.AppendString(append(b, `,"provider":"Simulated","model":`...), e.req.Model)
		b = append(append(append(b, `,"object":"`...), object...), `","created":`...)
		return strconv.AppendInt(b, e.now.Unix(), 10)
	}
	b = wire.AppendString(append(b, `{"id":`...), e.seed.ID("chatcmpl-", 0))
	b = append(append(append(b, `,"object":"`...), object...), `","created":`...)
	b = strconv.AppendInt(b, e.now.Unix(), 10)
	b = wire.AppendString(append(b, `,"model":`...), e.req.Model)
	if object == "chat.completion.chunk" {
		b = append(b, `,"service_tier":"default","system_fingerprint":"fp_simulated"`...)
	}
	return b
}

// Header sets the header of a stream.
func (e *Encoder) Header(h http.Header) {
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("Cache-Control", "no-cache")
}

// Begin writes the chunk with the role, and OpenRouter's comments before it.
func (e *Encoder) Begin(b []byte) []byte {
	if e.router() {
		b = append(b, Comment+Comment...)
	}
	calls, others := 0, 0
	for _, blk := range e.answer.Blocks() {
		switch blk.Kind {
		case chat.Call:
			calls++
		case chat.Text, chat.Thinking:
			others++
		default:
		}
	}
	if e.router() {
		return b
	}
	e.lone = calls == 1 && others == 0
	switch {
	case e.lone:
		return b
	case calls > 0 && others == 0:
		return e.chunk(b, `{"role":"assistant","content":null}`)
	default:
		return e.chunk(b, `{"role":"assistant","content":"","refusal":null}`)
	}
}

func (e *Encoder) chunk(b []byte, delta string) []byte {
	return e.close(append(append(b, e.before...), delta...), "")
}

// close ends a chunk after its delta. finish is "" before the last one.
func (e *Encoder) close(b []byte, finish string) []byte {
	if e.router() {
		b = reason(b, `,"finish_reason":`, finish)
		b = reason(b, `,"native_finish_reason":`, finish)
		return append(b, ",\"logprobs\":null}]}\n\n"...)
	}
	b = reason(b, `,"logprobs":null,"finish_reason":`, finish)
	b = append(b, `}]`...)
	if e.req.IncludeUsage {
		b = append(b, `,"usage":null`...)
	}
	return append(e.obfuscate(b), "}\n\n"...)
}

func reason(b []byte, name, finish string) []byte {
	b = append(b, name...)
	if finish == "" {
		return append(b, "null"...)
	}
	return wire.AppendString(b, finish)
}

// obfuscate adds the field that hides the length of a delta.
func (e *Encoder) obfuscate(b []byte) []byte {
	if e.pad == 0 {
		return b
	}
	e.pad = e.pad*1664525 + 1013904223
	const filler = "kQ3vX9bL0sT7wRzA"
	b = append(append(b, `,"obfuscation":"`...), filler[:e.pad>>16%16]...)
	if e.pad == 0 {
		e.pad = 1
	}
	return append(b, '"')
}

// Start writes the chunk with a tool call's name. Other blocks need none.
func (e *Encoder) Start(b []byte, i int, blk *chat.Block) []byte {
	e.starts[i] = e.runes
	if blk.Kind != chat.Call {
		return b
	}
	index := len(e.calls)
	e.calls[i] = index
	b = append(b, e.before...)
	switch {
	case e.router():
		b = append(b, `{"role":"assistant","content":null,"tool_calls":[{"index":`...)
	case e.lone:
		b = append(b, `{"role":"assistant","content":null,"tool_calls":[{"index":`...)
	default:
		b = append(b, `{"tool_calls":[{"index":`...)
	}
	b = strconv.AppendInt(b, int64(index), 10)
	b = wire.AppendString(append(b, `,"id":`...), e.id(blk))
	b = wire.AppendString(append(b, `,"type":"function","function":{"name":`...), blk.Name)
	b = append(b, `,"arguments":""}}]`...)
	if e.lone {
		b = append(b, `,"refusal":null`...)
	}
	return e.close(append(b, '}'), "")
}

func (e *Encoder) id(blk *chat.Block) string {
	if blk.ID != "" {
		return blk.ID
	}
	return e.seed.ID("call_", blk.Number)
}

// Piece writes one delta, or nothing if the dialect has no place for it.
func (e *Encoder) Piece(b []byte, i int, blk *chat.Block, n int) []byte {
	switch blk.Kind {
	case chat.Text:
		e.runes += utf8.RuneCountInString(blk.Pieces[n])
		b = append(b, e.before...)
		if e.router() {
			b = append(b, `{"role":"assistant","content":`...)
		} else {
			b = append(b, `{"content":`...)
		}
		return e.close(append(wire.AppendString(b, blk.Pieces[n]), '}'), "")
	case chat.Thinking:
		return e.thought(b, blk.Pieces[n])
	case chat.Call:
		b = append(append(b, e.before...), `{"tool_calls":[{"index":`...)
		b = strconv.AppendInt(b, int64(e.calls[i]), 10)
		b = wire.AppendString(append(b, `,"function":{"arguments":`...), blk.Pieces[n])
		return e.close(append(b, `}}]}`...), "")
	default:
		return b
	}
}

func (e *Encoder) thought(b []byte, text string) []byte {
	switch {
	case e.answer.Reasoning == "":
		return b
	case e.router():
		b = append(append(b, e.before...), `{"role":"assistant","content":"","reasoning":`...)
		b = append(wire.AppendString(b, text), `,"reasoning_details":[{"type":"reasoning.text","text":`...)
		b = append(wire.AppendString(b, text), `,"format":"unknown","index":0}]}`...)
	default:
		b = append(append(append(append(b, e.before...), `{"`...), e.answer.Reasoning...), `":`...)
		b = append(wire.AppendString(b, text), '}')
	}
	return e.close(b, "")
}

// Stop writes the annotations of a text that cites.
func (e *Encoder) Stop(b []byte, i int, blk *chat.Block) []byte {
	if blk.Kind != chat.Text || len(blk.Cites) == 0 {
		return b
	}
	b = append(append(b, e.before...), `{"annotations":[`...)
	b = annotations(b, blk.Cites, e.starts[i], e.runes)
	return e.close(append(b, `]}`...), "")
}

func annotations(b []byte, cites []chat.Source, from, to int) []byte {
	for n, c := range cites {
		if n > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(append(b, `{"type":"url_citation","url_citation":{"end_index":`...), int64(to), 10)
		b = strconv.AppendInt(append(b, `,"start_index":`...), int64(from), 10)
		b = wire.AppendString(append(b, `,"title":`...), c.Title)
		b = wire.AppendString(append(b, `,"url":`...), c.URL)
		b = append(b, `}}`...)
	}
	return b
}

// Finish writes the finish chunk, and the usage if it was requested.
func (e *Encoder) Finish(b []byte) []byte {
	b = append(b, e.before...)
	if e.router() {
		b = e.close(append(b, `{"role":"assistant","content":""}`...), e.finish())
	} else {
		b = e.close(append(b, `{}`...), e.finish())
	}
	if e.req.IncludeUsage {
		b = e.head(append(b, "data: "...), "chat.completion.chunk")
		if e.router() {
			b = append(b, `,"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null,"native_finish_reason":null,"logprobs":null}]`...)
		} else {
			b = append(b, `,"choices":[]`...)
		}
		b = e.usage(append(b, `,"usage":`...))
		b = append(e.obfuscate(b), "}\n\n"...)
	}
	return b
}

// Last writes [DONE].
func (e *Encoder) Last(b []byte) []byte { return append(b, "data: [DONE]\n\n"...) }

func (e *Encoder) finish() string {
	switch e.answer.Stop {
	case chat.MaxTokens:
		return "length"
	case chat.ToolUse:
		return "tool_calls"
	case chat.Refusal:
		return "content_filter"
	default:
		return "stop"
	}
}

func (e *Encoder) usage(b []byte) []byte {
	u := e.answer.Usage
	prompt := u.Input + u.CacheRead + u.CacheWrite5m + u.CacheWrite1h
	number := func(name string, n int) { b = strconv.AppendInt(append(b, name...), int64(n), 10) }
	number(`{"prompt_tokens":`, prompt)
	number(`,"completion_tokens":`, u.Output)
	number(`,"total_tokens":`, prompt+u.Output)
	if e.router() {
		b = append(b, `,"cost":0,"is_byok":false`...)
	}
	number(`,"prompt_tokens_details":{"cached_tokens":`, u.CacheRead)
	number(`,"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":`, u.Thinking)
	return append(b, `,"audio_tokens":0,"accepted_prediction_tokens":0,"rejected_prediction_tokens":0}}`...)
}

// Event writes an event of the script verbatim.
func (e *Encoder) Event(b []byte, ev *chat.Event) []byte {
	if ev.Name != "" {
		b = append(append(append(b, "event: "...), ev.Name...), '\n')
	}
	return append(append(append(b, "data: "...), ev.Data...), "\n\n"...)
}

// Failure writes an error in the middle of a stream: OpenAI sends a bare error
// object, OpenRouter a chunk that finishes with "error".
func (e *Encoder) Failure(b []byte, f *chat.Fault) []byte {
	b = append(b, "data: "...)
	if !e.router() {
		return append(appendError(b, f), "\n\n"...)
	}
	b = append(e.head(b, "chat.completion.chunk"), `,"error":`...)
	b = appendRouterError(b, f)
	return append(b, ",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":\"error\",\"native_finish_reason\":null,\"logprobs\":null}]}\n\n"...)
}

// Refuse writes an error response.
func (e *Encoder) Refuse(w http.ResponseWriter, f *chat.Fault) (status int, n int64) {
	return Refuse(w, f, e.req.Dialect, RequestID(e.seed))
}

// Whole returns the completion for a request that does not stream. It is indented like
// OpenAI's.
func (e *Encoder) Whole() []byte {
	var content, reasoning, calls, notes []byte
	said := false
	runes := 0
	for _, blk := range e.answer.Blocks() {
		switch blk.Kind {
		case chat.Text:
			said = true
			text := joined(blk.Pieces)
			if len(blk.Cites) > 0 && len(notes) > 0 {
				notes = append(notes, ',')
			}
			notes = annotations(notes, blk.Cites, runes, runes+utf8.RuneCount(text))
			runes += utf8.RuneCount(text)
			content = append(content, text...)
		case chat.Thinking:
			reasoning = append(reasoning, joined(blk.Pieces)...)
		case chat.Call:
			if len(calls) > 0 {
				calls = append(calls, ',')
			}
			calls = wire.AppendString(append(calls, `{"id":`...), e.id(blk))
			calls = wire.AppendString(append(calls, `,"type":"function","function":{"name":`...), blk.Name)
			calls = wire.AppendString(append(calls, `,"arguments":`...), string(joined(blk.Pieces)))
			calls = append(calls, `}}`...)
		default:
		}
	}
	b := append(e.head(nil, "chat.completion"), `,"choices":[{"index":0,"message":{"role":"assistant","content":`...)
	if said || len(calls) == 0 {
		b = wire.AppendString(b, string(content))
	} else {
		b = append(b, "null"...)
	}
	if e.answer.Reasoning != "" && len(reasoning) > 0 {
		b = wire.AppendString(append(append(append(b, `,"`...), e.answer.Reasoning...), `":`...), string(reasoning))
	}
	if len(calls) > 0 {
		b = append(append(append(b, `,"tool_calls":[`...), calls...), ']')
	}
	b = append(append(append(b, `,"refusal":null,"annotations":[`...), notes...), `]},"logprobs":null,"finish_reason":`...)
	b = wire.AppendString(b, e.finish())
	if e.router() {
		b = wire.AppendString(append(b, `,"native_finish_reason":`...), e.finish())
	}
	b = e.usage(append(b, `}],"usage":`...))
	if e.router() {
		return append(b, '}')
	}
	b = append(b, `,"service_tier":"default","system_fingerprint":"fp_simulated"}`...)
	var out bytes.Buffer
	if err := json.Indent(&out, b, "", "  "); err != nil {
		return b
	}
	return append(out.Bytes(), '\n')
}

func joined(pieces []string) []byte {
	var b []byte
	for _, p := range pieces {
		b = append(b, p...)
	}
	return b
}
