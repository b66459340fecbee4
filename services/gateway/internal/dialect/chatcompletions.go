package dialect

import (
	"slices"

	runv1 "signalbox.dev/proto/signalbox/run/v1"
)

// ChatCompletions is the stream of OpenAI's chat completions. A run is one answer: the texts of its
// steps with a blank line between them, and reasoning as reasoning_content, which clients of other
// servers know. What the agent's own tools do is not shown; the calls of client tools end the
// response. Text that a retry voids cannot be taken back: the step begins anew after a blank line.
type ChatCompletions struct {
	// Usage adds a chunk with the tokens.
	Usage bool
	// Whole is for requests without a stream: all chunks are left out but one chat.completion. A
	// run that fails has none.
	Whole bool
	// Final leaves out the texts of all steps but the last, for answers in a format.
	Final bool
}

// End implements Fold.
func (c ChatCompletions) End() []byte {
	if c.Whole {
		return nil
	}
	return []byte("data: [DONE]\n\n")
}

// chatState is the State of a ChatCompletions.
type chatState struct {
	begun   bool
	created int64
	model   string
	pauses  int
	used    tokens // by the steps so far
	told    tokens // in earlier responses

	said      bool // the response has text
	stepSaid  bool // the step has text
	broken    bool // a blank line precedes the next text
	text      *rope
	stepStart *rope // text before the step
	thoughts  *rope
	calls     []string // of client tools
}

// Pauses implements State.
func (s *chatState) Pauses() int { return s.pauses }

// Next implements Fold.
func (c ChatCompletions) Next(before State, e *runv1.Event) (data []byte, count int, next State) {
	w := chatWriter{ChatCompletions: c, event: e}
	if s, ok := before.(*chatState); ok {
		w.chatState = *s
	}
	w.write()
	return w.out, w.count, &w.chatState
}

// chatWriter writes the chunks of one event and updates the state.
type chatWriter struct {
	ChatCompletions
	chatState

	event *runv1.Event
	out   []byte
	count int
}

func (w *chatWriter) write() {
	switch body := w.event.GetBody().(type) {
	case *runv1.Event_RunStart:
		if w.model == "" { // another runner may go on with another one
			w.model = body.RunStart.GetModel()
		}
		w.begin()
	case *runv1.Event_TextDelta:
		w.say(body.TextDelta.GetDelta())
	case *runv1.Event_ReasoningDelta:
		w.begin()
		if w.Whole {
			w.thoughts = w.thoughts.add(body.ReasoningDelta.GetDelta())
			return
		}
		w.delta(jsonObject(appendString([]byte(`{"reasoning_content":`), body.ReasoningDelta.GetDelta())), "")
	case *runv1.Event_ToolClientRequest:
		w.call(body.ToolClientRequest)
	case *runv1.Event_StepRetry:
		if w.text = w.stepStart; w.Whole {
			w.said = w.text != nil
		}
		w.broken, w.stepSaid = w.said, false
	case *runv1.Event_StepComplete:
		w.used.in += body.StepComplete.GetTokensIn()
		w.used.out += body.StepComplete.GetTokensOut()
		w.stepStart, w.broken, w.stepSaid = w.text, w.said, false
	case *runv1.Event_Waiting:
		if body.Waiting.GetForClient() && len(w.calls) > 0 { // otherwise it still waits for the rest
			w.finish("tool_calls")
			w.pauses++
			w.begun, w.said, w.broken, w.stepSaid, w.calls, w.text, w.stepStart, w.thoughts = false, false, false, false, nil, nil, nil, nil
		}
	case *runv1.Event_Done:
		w.used = tokens{body.Done.GetTotalTokensIn(), body.Done.GetTotalTokensOut()}
		w.finish(chatReason(body.Done.GetFinishReason()))
	case *runv1.Event_Error:
		if !w.Whole {
			o := jsonObject(appendString([]byte(`{"message":`), body.Error.GetMessage())).text("type", "server_error").json("param", "null", "null").text("code", body.Error.GetCode())
			w.out = append(append(append(w.out, `data: {"error":`...), o.end()...), "}\n\n"...)
			w.count++
		}
	}
}

// chatReason converts the reason of a run's end. All that cut an answer short are length.
func chatReason(reason string) string {
	switch reason {
	case "stop", "tool-calls":
		return "stop" // the calls were the agent's own
	case "content-filter":
		return "content_filter"
	}
	return "length"
}

func (w *chatWriter) begin() {
	if w.begun {
		return
	}
	w.begun, w.created = true, seconds(w.event)
	if !w.Whole {
		w.delta(jsonObject(`{"role":"assistant","content":""`), "")
	}
}

func (w *chatWriter) say(text string) {
	w.begin()
	if !w.stepSaid {
		w.stepSaid = true
		if w.Final {
			w.text, w.stepStart = nil, nil
		} else if w.broken {
			text = "\n\n" + text
		}
	}
	w.said, w.broken = true, false
	if w.Whole || w.Final {
		w.text = w.text.add(text)
		return
	}
	w.delta(jsonObject(appendString([]byte(`{"content":`), text)), "")
}

func (w *chatWriter) call(m *runv1.ToolClientRequest) {
	w.begin()
	ref := CallRef{w.event.GetRunId(), w.pauses + 2, w.event.GetStepIndex(), m.GetToolCallId()}
	o := jsonObject(appendString([]byte(`{"id":`), ref.String())).text("type", "function")
	o = appendString(append(o.key("function"), `{"name":`...), m.GetToolName())
	call := string(append(o.text("arguments", m.GetArgsJson()), "}}"...))
	w.calls = append(slices.Clip(w.calls), call)
	if !w.Whole {
		indexed := jsonObject(`{"tool_calls":[{"index":`)
		indexed = append(appendInt(indexed, len(w.calls)-1), ',')
		w.delta(append(append(indexed, call[1:]...), ']'), "")
	}
}

// head begins an object of the answer.
func (w *chatWriter) head(kind string) jsonObject {
	return jsonObject(appendString([]byte(`{"id":`), "chatcmpl-"+partID(w.event.GetRunId(), w.pauses+1))).
		text("object", kind).number("created", w.created).text("model", w.model)
}

func (w *chatWriter) delta(delta jsonObject, reason string) {
	o := append(w.head("chat.completion.chunk").key("choices"), `[{"index":0,"delta":`...)
	o = finishChoice(append(o, delta.end()...), reason)
	if w.Usage {
		o = append(o.key("usage"), "null"...)
	}
	w.emit(o)
}

func finishChoice(o jsonObject, reason string) jsonObject {
	o = append(o.key("logprobs"), "null"...).key("finish_reason")
	if reason == "" {
		o = append(o, "null"...)
	} else {
		o = appendString(o, reason)
	}
	return append(o, "}]"...)
}

func (w *chatWriter) emit(o jsonObject) {
	w.out = append(append(append(w.out, "data: "...), o.end()...), "\n\n"...)
	w.count++
}

// finish ends a response.
func (w *chatWriter) finish(reason string) {
	w.begin()
	used := w.used.minus(w.told)
	w.told = w.used
	if w.Whole {
		w.completion(reason, used)
		return
	}
	if w.Final && w.text != nil {
		w.delta(jsonObject(appendString([]byte(`{"content":`), w.text.String())), "")
	}
	w.delta(jsonObject(`{`), reason)
	if w.Usage {
		w.emit(used.appendTo(append(w.head("chat.completion.chunk").key("choices"), "[]"...), "usage", "prompt_tokens", "completion_tokens"))
	}
}

// completion writes the whole answer.
func (w *chatWriter) completion(reason string, used tokens) {
	o := append(w.head("chat.completion").key("choices"), `[{"index":0,"message":{"role":"assistant"`...).key("content")
	if w.text == nil {
		o = append(o, "null"...)
	} else {
		o = appendString(o, w.text.String())
	}
	o = append(o.key("refusal"), "null"...)
	if w.thoughts != nil {
		o = o.text("reasoning_content", w.thoughts.String())
	}
	if len(w.calls) > 0 {
		o = append(o.key("tool_calls"), '[')
		for i, call := range w.calls {
			if i > 0 {
				o = append(o, ',')
			}
			o = append(o, call...)
		}
		o = append(o, ']')
	}
	o = finishChoice(append(o, '}'), reason)
	w.out = used.appendTo(o, "usage", "prompt_tokens", "completion_tokens").end()
	w.count = 1
}
