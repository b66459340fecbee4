package anthropic

import (
	"encoding/json"
	"net/http"
	"strconv"

	"signalbox.dev/services/simulator/internal/chat"
	"signalbox.dev/services/simulator/internal/wire"
)

// Ping is the event that keeps a stream alive.
const Ping = "event: ping\ndata: {\"type\": \"ping\"}\n\n"

// Encoder encodes one answer as the Messages API does. It uses no reflection, and a delta
// costs no allocation.
type Encoder struct {
	answer *chat.Answer
	model  string
	seed   chat.Seed
	pinged bool
	pad    uint32 // state of the padding's length; 0: no padding
}

// NewEncoder returns an encoder for an answer to a request for model.
func NewEncoder(a *chat.Answer, model string, seed chat.Seed) *Encoder {
	e := &Encoder{answer: a, model: model, seed: seed}
	if a.Shape.Padding {
		e.pad = 1 + uint32(seed[0])
	}
	return e
}

// RequestID returns the value of the request-id header.
func RequestID(seed chat.Seed) string { return seed.ID("req_01", 0) }

// Header sets the header of a stream.
func (e *Encoder) Header(h http.Header) {
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("Cache-Control", "no-cache")
}

// Begin writes message_start.
func (e *Encoder) Begin(b []byte) []byte {
	b = append(b, "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"model\":"...)
	b = wire.AppendString(b, e.model)
	b = append(b, `,"id":`...)
	b = wire.AppendString(b, e.seed.ID("msg_01", 0))
	b = append(b, `,"type":"message","role":"assistant","content":[],"stop_reason":null,"stop_sequence":null,"usage":`...)
	b = e.usage(b, 1)
	return e.close(append(b, '}'))
}

// usage writes the usage of message_start and of whole messages.
func (e *Encoder) usage(b []byte, output int) []byte {
	u := e.answer.Usage
	b = inputs(append(b, '{'), u)
	b = number(b, `,"cache_creation":{"ephemeral_5m_input_tokens":`, u.CacheWrite5m)
	b = number(b, `,"ephemeral_1h_input_tokens":`, u.CacheWrite1h)
	b = number(b, `},"output_tokens":`, output)
	return append(b, `,"service_tier":"standard"}`...)
}

func inputs(b []byte, u chat.Usage) []byte {
	b = number(b, `"input_tokens":`, u.Input)
	b = number(b, `,"cache_creation_input_tokens":`, u.CacheWrite5m+u.CacheWrite1h)
	return number(b, `,"cache_read_input_tokens":`, u.CacheRead)
}

func number(b []byte, name string, n int) []byte {
	return strconv.AppendInt(append(b, name...), int64(n), 10)
}

// close ends an event's JSON object, with the padding that the API adds.
func (e *Encoder) close(b []byte) []byte {
	if e.pad != 0 {
		e.pad = e.pad*1664525 + 1013904223
		const spaces = "                "
		b = append(b, spaces[:e.pad>>16%16]...)
		if e.pad == 0 {
			e.pad = 1
		}
	}
	return append(b, "}\n\n"...)
}

// Start writes content_block_start. A ping follows the first one, and the API's empty delta
// precedes the arguments of a tool.
func (e *Encoder) Start(b []byte, i int, blk *chat.Block) []byte {
	b = number(append(b, "event: content_block_start\n"...), `data: {"type":"content_block_start","index":`, i)
	b = append(b, `,"content_block":`...)
	b = e.close(e.block(b, blk, false))
	if !e.pinged {
		e.pinged = true
		b = append(b, Ping...)
	}
	switch blk.Kind {
	case chat.Call, chat.Search:
		b = e.close(append(delta(b, i), `{"type":"input_json_delta","partial_json":""}`...))
	case chat.Text:
		for _, c := range blk.Cites {
			b = append(delta(b, i), `{"type":"citations_delta","citation":`...)
			b = e.close(append(citation(b, c), '}'))
		}
	default:
	}
	return b
}

func delta(b []byte, i int) []byte {
	b = number(append(b, "event: content_block_delta\n"...), `data: {"type":"content_block_delta","index":`, i)
	return append(b, `,"delta":`...)
}

// Piece writes one content_block_delta.
func (e *Encoder) Piece(b []byte, i int, blk *chat.Block, n int) []byte {
	b = delta(b, i)
	switch blk.Kind {
	case chat.RawBlock:
		return e.close(append(b, blk.Raw.Deltas[n]...))
	case chat.Thinking:
		b = append(b, `{"type":"thinking_delta","thinking":`...)
	case chat.Call, chat.Search:
		b = append(b, `{"type":"input_json_delta","partial_json":`...)
	default:
		b = append(b, `{"type":"text_delta","text":`...)
	}
	return e.close(append(wire.AppendString(b, blk.Pieces[n]), '}'))
}

// Stop writes content_block_stop, and before it the signature of a thinking block.
func (e *Encoder) Stop(b []byte, i int, blk *chat.Block) []byte {
	if blk.Kind == chat.Thinking {
		b = append(delta(b, i), `{"type":"signature_delta","signature":`...)
		b = e.close(append(wire.AppendString(b, signature(blk)), '}'))
	}
	b = number(append(b, "event: content_block_stop\n"...), `data: {"type":"content_block_stop","index":`, i)
	return e.close(b)
}

// Finish writes message_delta.
func (e *Encoder) Finish(b []byte) []byte {
	a := e.answer
	b = append(b, "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{"...)
	b = append(e.stop(b), `},"usage":{`...)
	b = number(inputs(b, a.Usage), `,"output_tokens":`, a.Usage.Output)
	return e.close(append(e.details(b), '}'))
}

// Last writes message_stop.
func (e *Encoder) Last(b []byte) []byte {
	return e.close(append(b, "event: message_stop\ndata: {\"type\":\"message_stop\""...))
}

func (e *Encoder) stop(b []byte) []byte {
	a := e.answer
	b = wire.AppendString(append(b, `"stop_reason":`...), string(a.Stop))
	b = append(b, `,"stop_sequence":`...)
	if a.Stop == chat.StopSequence {
		b = wire.AppendString(b, a.StopSequence)
	} else {
		b = append(b, "null"...)
	}
	if a.Stop == chat.Refusal {
		b = append(b, `,"stop_details":{"type":"refusal","category":null,"explanation":null}`...)
	}
	return b
}

func (e *Encoder) details(b []byte) []byte {
	u := e.answer.Usage
	if u.Thinking > 0 {
		b = append(number(b, `,"output_tokens_details":{"thinking_tokens":`, u.Thinking), '}')
	}
	if u.Searches > 0 {
		b = append(number(b, `,"server_tool_use":{"web_search_requests":`, u.Searches), '}')
	}
	return b
}

// Event writes an event of the script verbatim.
func (e *Encoder) Event(b []byte, ev *chat.Event) []byte {
	if ev.Name != "" {
		b = append(append(append(b, "event: "...), ev.Name...), '\n')
	}
	return append(append(append(b, "data: "...), ev.Data...), "\n\n"...)
}

// Failure writes an error event.
func (e *Encoder) Failure(b []byte, f *chat.Fault) []byte {
	b = append(b, "event: error\ndata: "...)
	b = appendError(b, f, RequestID(e.seed))
	return append(b, "\n\n"...)
}

// Refuse writes an error response.
func (e *Encoder) Refuse(w http.ResponseWriter, f *chat.Fault) (status int, n int64) {
	return Refuse(w, f, RequestID(e.seed))
}

// Whole writes the message of a request that does not stream.
func (e *Encoder) Whole() []byte {
	b := append([]byte(nil), `{"model":`...)
	b = wire.AppendString(b, e.model)
	b = append(b, `,"id":`...)
	b = wire.AppendString(b, e.seed.ID("msg_01", 0))
	b = append(b, `,"type":"message","role":"assistant","content":[`...)
	for i, blk := range e.answer.Blocks() {
		if i > 0 {
			b = append(b, ',')
		}
		b = e.block(b, blk, true)
	}
	b = append(e.stop(append(b, `],`...)), `,"usage":`...)
	b = e.usage(b, e.answer.Usage.Output)
	b = append(e.details(b[:len(b)-1]), '}')
	return append(b, '}')
}

// block writes a content block: whole, or as content_block_start has it.
func (e *Encoder) block(b []byte, blk *chat.Block, whole bool) []byte {
	switch blk.Kind {
	case chat.Thinking:
		text, sig := "", ""
		if whole {
			text, sig = joined(blk), signature(blk)
		}
		b = wire.AppendString(append(b, `{"type":"thinking","thinking":`...), text)
		b = wire.AppendString(append(b, `,"signature":`...), sig)
	case chat.Redacted:
		b = wire.AppendString(append(b, `{"type":"redacted_thinking","data":`...), blk.Data)
	case chat.Call, chat.Search:
		return e.call(b, blk, whole)
	case chat.SearchResult:
		return e.found(b, blk)
	case chat.RawBlock:
		if whole && len(blk.Raw.Final) > 0 {
			return append(b, blk.Raw.Final...)
		}
		return append(b, blk.Raw.Start...)
	default:
		return e.text(b, blk, whole)
	}
	return append(b, '}')
}

func (e *Encoder) text(b []byte, blk *chat.Block, whole bool) []byte {
	b = append(b, '{')
	if len(blk.Cites) > 0 {
		b = append(b, `"citations":[`...)
		for i, c := range blk.Cites {
			if !whole {
				break
			}
			if i > 0 {
				b = append(b, ',')
			}
			b = citation(b, c)
		}
		b = append(b, `],`...)
	}
	text := ""
	if whole {
		text = joined(blk)
	}
	b = wire.AppendString(append(b, `"type":"text","text":`...), text)
	return append(b, '}')
}

func (e *Encoder) call(b []byte, blk *chat.Block, whole bool) []byte {
	kind, id := `{"type":"tool_use","id":`, blk.ID
	if blk.Kind == chat.Search {
		kind = `{"type":"server_tool_use","id":`
	}
	if id == "" {
		id = e.id(blk)
	}
	b = wire.AppendString(append(b, kind...), id)
	b = wire.AppendString(append(b, `,"name":`...), blk.Name)
	input := "{}"
	if args := joined(blk); whole && json.Valid([]byte(args)) {
		input = args
	}
	return append(append(append(b, `,"input":`...), input...), '}')
}

func (e *Encoder) id(blk *chat.Block) string {
	if blk.Kind == chat.Call {
		return e.seed.ID("toolu_01", blk.Number)
	}
	return e.seed.ID("srvtoolu_01", blk.Number)
}

func (e *Encoder) found(b []byte, blk *chat.Block) []byte {
	b = wire.AppendString(append(b, `{"type":"web_search_tool_result","tool_use_id":`...), e.id(blk))
	b = append(b, `,"content":`...)
	if blk.SearchError != "" {
		b = wire.AppendString(append(b, `{"type":"web_search_tool_result_error","error_code":`...), blk.SearchError)
		return append(b, `}}`...)
	}
	b = append(b, '[')
	for i, s := range blk.Sources {
		if i > 0 {
			b = append(b, ',')
		}
		b = wire.AppendString(append(b, `{"type":"web_search_result","title":`...), s.Title)
		b = wire.AppendString(append(b, `,"url":`...), s.URL)
		b = wire.AppendString(append(b, `,"encrypted_content":`...), Sign(s.Text))
		b = append(b, `,"page_age":`...)
		if s.PageAge == "" {
			b = append(b, `null}`...)
			continue
		}
		b = append(wire.AppendString(b, s.PageAge), '}')
	}
	return append(b, `]}`...)
}

func citation(b []byte, s chat.Source) []byte {
	b = wire.AppendString(append(b, `{"type":"web_search_result_location","cited_text":`...), s.Text)
	b = wire.AppendString(append(b, `,"url":`...), s.URL)
	b = wire.AppendString(append(b, `,"title":`...), s.Title)
	b = wire.AppendString(append(b, `,"encrypted_index":`...), Sign(s.URL))
	return append(b, '}')
}

func signature(blk *chat.Block) string {
	if blk.Signature != "" {
		return blk.Signature
	}
	return Sign(joined(blk))
}

func joined(blk *chat.Block) string {
	n := 0
	for _, p := range blk.Pieces {
		n += len(p)
	}
	b := make([]byte, 0, n)
	for _, p := range blk.Pieces {
		b = append(b, p...)
	}
	return string(b)
}
