package dialect

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"

	runv1 "signalbox.dev/proto/signalbox/run/v1"
)

// Responses is the stream of OpenAI's Responses API. An event's sequence number is that of the chunk
// in its response, from 0. What the agent's own tools did is shown as mcp_call items once their
// results are there; calls of client tools are function_call items, and end the response. An item
// that a retry voids ends incomplete and is not in the final output.
type Responses struct {
	// Whole is for requests without a stream: all chunks are left out but the response at its end,
	// without the form of an event.
	Whole bool
}

// End implements Fold.
func (Responses) End() []byte { return nil }

// responseState is the State of a Responses.
type responseState struct {
	begun    bool
	created  int64
	model    string
	pauses   int
	sequence int
	used     tokens // by the steps so far
	told     tokens // in earlier responses

	items    []responseItem // in their order
	position int            // index of the next item
	open     string         // type of the open item: message, reasoning or empty
	block    int32          // of the open item
	text     *rope          // of the open item
	asked    bool           // a client tool was called
	calls    map[string]responseCall
	ended    string // finish reason of the last step, if nothing came after it
}

// responseItem is an item of the output.
type responseItem struct {
	kind, json string
	step       int32
}

// responseCall is a call whose item is still to come.
type responseCall struct {
	args   string
	client bool
}

// Pauses implements State.
func (s *responseState) Pauses() int { return s.pauses }

// Next implements Fold.
func (r Responses) Next(before State, e *runv1.Event) (data []byte, count int, next State) {
	w := responseWriter{Responses: r, event: e}
	if s, ok := before.(*responseState); ok {
		w.responseState = *s
	}
	w.write()
	return w.out, w.count, &w.responseState
}

// ResponseSoFar returns the response of a run in the given state, which may be nil: the run has not
// begun. It is for a state of a Responses.
func ResponseSoFar(s State, run string, part int, created int64) []byte {
	w := responseWriter{event: &runv1.Event{RunId: run}}
	if state, ok := s.(*responseState); ok && state.begun {
		w.responseState = *state
		return w.response("in_progress", jsonObject{}).end()
	}
	w.created, w.pauses = created, part-1
	return w.response("queued", jsonObject{}).end()
}

// responseWriter writes the chunks of one event and updates the state.
type responseWriter struct {
	Responses
	responseState

	event *runv1.Event
	out   []byte
	count int
}

// chunk begins a chunk, which emit ends.
func (w *responseWriter) chunk(kind string) jsonObject {
	o := append(append(append(w.out, "event: "...), kind...), "\ndata: "...)
	return object(o, kind).number("sequence_number", int64(w.sequence))
}

func (w *responseWriter) emit(o jsonObject) {
	if w.Whole {
		return
	}
	w.out = append(o.end(), "\n\n"...)
	w.count++
	w.sequence++
}

func (w *responseWriter) write() {
	switch body := w.event.GetBody().(type) {
	case *runv1.Event_UserMessage:
		w.ended = "" // the next step answers it
	case *runv1.Event_RunStart:
		if w.model == "" { // another runner may go on with another one
			w.model = body.RunStart.GetModel()
		}
		w.begin()
	case *runv1.Event_TextDelta:
		w.say("message", body.TextDelta.GetBlock(), body.TextDelta.GetDelta())
	case *runv1.Event_ReasoningDelta:
		w.say("reasoning", body.ReasoningDelta.GetBlock(), body.ReasoningDelta.GetDelta())
	case *runv1.Event_ToolCallComplete:
		w.begin()
		w.close()
		w.setCall(body.ToolCallComplete.GetToolCallId(), responseCall{args: body.ToolCallComplete.GetArgsJson()})
	case *runv1.Event_ToolClientRequest:
		w.functionCall(body.ToolClientRequest)
	case *runv1.Event_ToolResult:
		w.toolCall(body.ToolResult)
	case *runv1.Event_StepRetry:
		w.retry()
	case *runv1.Event_StepComplete:
		w.close()
		w.used.in += body.StepComplete.GetTokensIn()
		w.used.out += body.StepComplete.GetTokensOut()
		w.calls, w.ended = nil, body.StepComplete.GetFinishReason()
	case *runv1.Event_Waiting:
		if body.Waiting.GetForClient() && w.asked { // otherwise it still waits for the rest
			w.finish("completed", jsonObject{})
			w.pauses++
			w.begun, w.sequence, w.items, w.position, w.asked = false, 0, nil, 0, false
		}
	case *runv1.Event_Done:
		w.used = tokens{body.Done.GetTotalTokensIn(), body.Done.GetTotalTokensOut()}
		w.done(body.Done.GetFinishReason())
	case *runv1.Event_Error:
		o := jsonObject(appendString([]byte(`{"code":`), errorCode(body.Error.GetCode()))).text("message", body.Error.GetMessage())
		w.finish("failed", jsonObject(nil).json("error", string(o.end()), "null"))
	}
}

func errorCode(code string) string {
	if code == "" {
		return "server_error"
	}
	return code
}

func (w *responseWriter) done(reason string) {
	switch reason {
	case "stop", "tool-calls":
		w.finish("completed", jsonObject{})
		return
	case "cancelled":
		w.finish("cancelled", jsonObject{})
		return
	case "length":
		reason = "max_output_tokens"
	case "content-filter":
		reason = "content_filter"
	}
	w.finish("incomplete", jsonObject(nil).json("incomplete_details", string(jsonObject(appendString([]byte(`{"reason":`), reason)).end()), "null"))
}

// begin begins a response.
func (w *responseWriter) begin() {
	if w.begun {
		return
	}
	w.begun, w.created = true, seconds(w.event)
	for _, kind := range [...]string{"response.created", "response.in_progress"} {
		o := append(w.chunk(kind).key("response"), w.response("in_progress", jsonObject{}).end()...)
		w.emit(o)
	}
}

// response begins an object of the response as it is now, with further fields. Fields that are not
// ours to know, such as a temperature, have their defaults.
func (w *responseWriter) response(status string, more jsonObject) jsonObject {
	part := w.pauses + 1
	o := jsonObject(appendString([]byte(`{"id":`), ResponseID(w.event.GetRunId(), part))).text("object", "response").number("created_at", w.created).
		text("status", status).text("model", w.model)
	o = append(o.key("output"), '[')
	for i, item := range w.items {
		if i > 0 {
			o = append(o, ',')
		}
		o = append(o, item.json...)
	}
	o = append(o, ']')
	if part > 1 {
		o = o.text("previous_response_id", ResponseID(w.event.GetRunId(), part-1))
	}
	for _, field := range [...]string{"error", "incomplete_details"} {
		if !hasKey(more, field) {
			o = append(o.key(field), "null"...)
		}
	}
	o = append(o, more...)
	return append(o, `,"instructions":null,"metadata":{},"parallel_tool_calls":true,"temperature":null,"tool_choice":"auto","tools":[],"top_p":null`...)
}

// hasKey reports whether the object's first field is key.
func hasKey(o jsonObject, key string) bool {
	return len(o) > len(key)+2 && string(o[2:2+len(key)]) == key
}

// finish ends a response.
func (w *responseWriter) finish(status string, more jsonObject) {
	w.begin()
	w.close()
	used := w.used.minus(w.told)
	w.told = w.used
	final := used.appendTo(w.response(status, more), "usage", "input_tokens", "output_tokens").end()
	if w.Whole {
		w.out, w.count = final, 1
		return
	}
	kind := "response." + status
	if status == "cancelled" { // there is no event for it
		kind = "response.incomplete"
	}
	w.emit(append(w.chunk(kind).key("response"), final...))
}

// itemID identifies the item that begins.
func (w *responseWriter) itemID(prefix string) string {
	return prefix + "_" + partID(w.event.GetRunId(), w.pauses+1) + "_" + strconv.Itoa(w.position)
}

// at begins a chunk about the item that is open or begins.
func (w *responseWriter) at(kind, itemID string) jsonObject {
	return w.chunk(kind).text("item_id", itemID).number("output_index", int64(w.position))
}

// textItem is how a kind of item with a text is written.
type textItem struct {
	prefix, content                                     string
	partAdded, delta, textDone, partDone, index, extras string
	part                                                func(text string) string
}

func quoted(s string) string { return string(appendString(nil, s)) }

var textItems = map[string]textItem{
	"message": {
		"msg", "content", "response.content_part.added", "response.output_text.delta", "response.output_text.done", "response.content_part.done", "content_index", `,"logprobs":[]`,
		func(text string) string {
			return `{"type":"output_text","text":` + quoted(text) + `,"annotations":[],"logprobs":[]}`
		},
	},
	"reasoning": {
		"rs", "summary", "response.reasoning_summary_part.added", "response.reasoning_summary_text.delta", "response.reasoning_summary_text.done", "response.reasoning_summary_part.done", "summary_index", ``,
		func(text string) string { return `{"type":"summary_text","text":` + quoted(text) + `}` },
	},
}

// item writes the open item.
func (w *responseWriter) item(status, parts string) string {
	how := textItems[w.open]
	o := object(nil, w.open).text("id", w.itemID(how.prefix)).text("status", status)
	if w.open == "message" {
		o = o.text("role", "assistant")
	}
	return string(append(o.key(how.content), `[`+parts+`]}`...))
}

func (w *responseWriter) say(kind string, block int32, text string) {
	w.begin()
	if w.open != kind || w.block != block {
		w.close()
		w.answersAgain()
		w.open, w.block, w.text = kind, block, nil
		how := textItems[kind]
		w.emit(w.chunk("response.output_item.added").number("output_index", int64(w.position)).json("item", w.item("in_progress", ""), "{}"))
		w.emit(w.at(how.partAdded, w.itemID(how.prefix)).number(how.index, 0).json("part", how.part(""), "{}"))
	}
	how := textItems[kind]
	w.text = w.text.add(text)
	w.emit(append(w.at(how.delta, w.itemID(how.prefix)).number(how.index, 0).text("delta", text), how.extras...))
}

// answersAgain drops the messages of a step that has ended the run, had its answer been in the
// format that was asked for: this one stands in for it.
func (w *responseWriter) answersAgain() {
	if w.ended != "stop" {
		return
	}
	last := w.event.GetStepIndex() - 1
	w.items = slices.DeleteFunc(slices.Clone(w.items), func(i responseItem) bool { return i.step == last && i.kind == "message" })
	w.ended = ""
}

// close ends the open item.
func (w *responseWriter) close() {
	if w.open == "" {
		return
	}
	how, text := textItems[w.open], w.text.String()
	itemID := w.itemID(how.prefix)
	w.emit(append(w.at(how.textDone, itemID).number(how.index, 0).text("text", text), how.extras...))
	w.emit(w.at(how.partDone, itemID).number(how.index, 0).json("part", how.part(text), "{}"))
	w.add(w.open, w.item("completed", how.part(text)))
	w.open, w.text = "", nil
}

// add adds an item that is complete.
func (w *responseWriter) add(kind, item string) {
	w.emit(w.chunk("response.output_item.done").number("output_index", int64(w.position)).json("item", item, "{}"))
	w.items = append(slices.Clip(w.items), responseItem{kind, item, w.event.GetStepIndex()})
	w.position++
}

// retry drops what the step has said.
func (w *responseWriter) retry() {
	if w.open != "" {
		how := textItems[w.open]
		item := w.item("incomplete", how.part(w.text.String()))
		w.emit(w.chunk("response.output_item.done").number("output_index", int64(w.position)).json("item", item, "{}"))
		w.position++
		w.open, w.text = "", nil
	}
	w.items = slices.DeleteFunc(slices.Clone(w.items), func(i responseItem) bool { return i.step == w.event.GetStepIndex() })
	w.calls = nil
}

func (w *responseWriter) setCall(call string, c responseCall) {
	w.calls = maps.Clone(w.calls) // states share it
	if w.calls == nil {
		w.calls = map[string]responseCall{}
	}
	w.calls[call] = c
}

func (w *responseWriter) functionCall(m *runv1.ToolClientRequest) {
	w.begin()
	w.close()
	w.asked = true
	w.setCall(m.GetToolCallId(), responseCall{client: true})
	itemID := w.itemID("fc")
	item := func(status, args string) string {
		return string(object(nil, "function_call").text("id", itemID).text("status", status).text("call_id", CallRef{w.event.GetRunId(), w.pauses + 2, w.event.GetStepIndex(), m.GetToolCallId()}.String()).
			text("name", m.GetToolName()).text("arguments", args).end())
	}
	w.emit(w.chunk("response.output_item.added").number("output_index", int64(w.position)).json("item", item("in_progress", ""), "{}"))
	w.emit(w.at("response.function_call_arguments.delta", itemID).text("delta", m.GetArgsJson()))
	w.emit(w.at("response.function_call_arguments.done", itemID).text("name", m.GetToolName()).text("arguments", m.GetArgsJson()))
	w.add("function_call", item("completed", m.GetArgsJson()))
}

// toolCall writes a call of one of the agent's own tools, after its end.
func (w *responseWriter) toolCall(m *runv1.ToolResult) {
	call := w.calls[m.GetToolCallId()]
	if call.client {
		return // the client knows
	}
	w.begin()
	w.close()
	itemID := w.itemID("mcp")
	item := func(status, args, result string) string {
		o := object(nil, "mcp_call").text("id", itemID).text("status", status).text("server_label", "signalbox").text("name", m.GetToolName()).text("arguments", args)
		for _, field := range [...]string{"output", "error"} {
			if o = o.key(field); result != "" && (field == "error") == m.GetIsError() {
				o = appendString(o, result)
			} else {
				o = append(o, "null"...)
			}
		}
		return string(o.end())
	}
	args, end := call.args, "response.mcp_call.completed"
	if args == "" {
		args = "{}"
	}
	status, result := "completed", m.GetResultJson()
	if m.GetIsError() {
		end, status, result = "response.mcp_call.failed", "failed", errorText(json.RawMessage(result))
	}
	w.emit(w.chunk("response.output_item.added").number("output_index", int64(w.position)).json("item", item("in_progress", "", ""), "{}"))
	w.emit(w.at("response.mcp_call.in_progress", itemID))
	w.emit(w.at("response.mcp_call_arguments.done", itemID).text("arguments", args))
	w.emit(w.at(end, itemID))
	w.add("mcp_call", item(status, args, result))
}
