package dialect

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	runv1 "signalbox.dev/proto/signalbox/run/v1"
)

// AGUI is the event stream of the AG-UI protocol 1.0. Thread and Run are the ids that the client
// chose; otherwise the events are a function of the log.
//
// A response ends when the run waits. If it waits for a person, the outcome is an interrupt, whose
// id says which call it is about; otherwise it is a success with the pending calls of client tools.
// What a retry voids cannot be taken back: an event step-retry names the messages.
type AGUI struct{ Thread, Run string }

// End implements Fold.
func (AGUI) End() []byte { return nil }

// aguiState is the State of an AGUI.
type aguiState struct {
	begun    bool
	pauses   int
	provider string
	model    string
	used     tokens
	told     tokens

	step     int32
	stepOpen bool
	part     string // type of the open message: text, reasoning or empty
	block    int32  // of the open message
	messages int    // that were begun; they number the messages
	parent   string // message of the step's calls; empty if there is none yet
	shown    []string
	calls    map[string]aguiCall // of the step
	asks     []string            // interrupts, as JSON
	pending  []string            // calls of client tools that wait
}

// aguiCall is what the client knows of a tool call.
type aguiCall struct {
	open, complete, client bool
	args                   bool // some were sent
}

// Pauses implements State.
func (s *aguiState) Pauses() int { return s.pauses }

// Next implements Fold.
func (a AGUI) Next(before State, e *runv1.Event) (data []byte, count int, next State) {
	w := aguiWriter{AGUI: a, event: e}
	if s, ok := before.(*aguiState); ok {
		w.aguiState = *s
	}
	w.write()
	return w.out, w.count, &w.aguiState
}

// aguiWriter writes the chunks of one event and updates the state.
type aguiWriter struct {
	AGUI
	aguiState

	event *runv1.Event
	out   []byte
	count int
}

func (w *aguiWriter) chunk(kind string) jsonObject { return object(append(w.out, "data: "...), kind) }

func (w *aguiWriter) emit(o jsonObject) {
	w.out = append(o.end(), "\n\n"...)
	w.count++
}

// custom writes an event that the protocol does not know.
func (w *aguiWriter) custom(name string, value jsonObject) {
	w.emit(w.chunk("CUSTOM").text("name", name).json("value", string(value.end()), "{}"))
}

func (w *aguiWriter) write() {
	if !w.begun {
		w.begun = true
		w.emit(w.chunk("RUN_STARTED").text("threadId", w.Thread).text("runId", w.Run).text("protocolVersion", "1.0"))
	}
	switch body := w.event.GetBody().(type) {
	case *runv1.Event_UserMessage:
		if w.event.GetNumber() > 0 {
			w.closeStep()
			w.custom("user-message", jsonObject(appendString([]byte(`{"messageId":`), body.UserMessage.GetMessageId())).json("content", body.UserMessage.GetContentJson(), `""`))
		}
	case *runv1.Event_RunStart:
		if w.model == "" { // another runner may go on with another one
			w.provider, w.model = body.RunStart.GetProvider(), body.RunStart.GetModel()
		}
	case *runv1.Event_TextDelta:
		w.say("text", body.TextDelta.GetBlock(), body.TextDelta.GetDelta())
	case *runv1.Event_ReasoningDelta:
		w.say("reasoning", body.ReasoningDelta.GetBlock(), body.ReasoningDelta.GetDelta())
	case *runv1.Event_ToolCallStart:
		w.beginCall(body.ToolCallStart.GetToolCallId(), body.ToolCallStart.GetToolName())
	case *runv1.Event_ToolCallDelta:
		m := body.ToolCallDelta
		w.beginCall(m.GetToolCallId(), m.GetToolName())
		w.args(m.GetToolCallId(), m.GetDelta())
	case *runv1.Event_ToolCallComplete:
		m := body.ToolCallComplete
		w.completeCall(m.GetToolCallId(), m.GetToolName(), m.GetArgsJson())
	case *runv1.Event_ToolResult:
		w.result(body.ToolResult)
	case *runv1.Event_ToolApprovalRequest:
		w.ask(body.ToolApprovalRequest)
	case *runv1.Event_ToolClientRequest:
		w.clientRequest(body.ToolClientRequest)
	case *runv1.Event_Source:
		w.custom("source", jsonObject(appendString([]byte(`{"url":`), body.Source.GetUrl())).text("title", body.Source.GetTitle()))
	case *runv1.Event_ToolProgress:
		w.custom("tool-progress", progressData(body.ToolProgress))
	case *runv1.Event_SessionTitle:
		w.custom("session-title", jsonObject(appendString([]byte(`{"title":`), body.SessionTitle.GetTitle())))
	case *runv1.Event_StepRetry:
		w.retry(body.StepRetry)
	case *runv1.Event_StepComplete:
		w.closeStep()
		w.used.in += body.StepComplete.GetTokensIn()
		w.used.out += body.StepComplete.GetTokensOut()
	case *runv1.Event_Waiting:
		w.waiting(body.Waiting)
	case *runv1.Event_Done:
		w.done(body.Done)
	case *runv1.Event_Error:
		w.closeStep()
		w.emit(w.chunk("RUN_ERROR").text("message", body.Error.GetMessage()).text("code", errorCode(body.Error.GetCode())))
	}
}

func (w *aguiWriter) openStep() {
	if w.stepOpen && w.step == w.event.GetStepIndex() {
		return
	}
	w.closeStep()
	w.stepOpen, w.step = true, w.event.GetStepIndex()
	w.emit(w.chunk("STEP_STARTED").text("stepName", w.stepName()))
}

func (w *aguiWriter) stepName() string { return "step-" + strconv.Itoa(int(w.step)+1) }

// closeStep closes everything that is open.
func (w *aguiWriter) closeStep() {
	w.closePart()
	for _, id := range slices.Sorted(maps.Keys(w.calls)) {
		if w.calls[id].open {
			w.emit(w.chunk("TOOL_CALL_END").text("toolCallId", id))
		}
	}
	if w.stepOpen {
		w.emit(w.chunk("STEP_FINISHED").text("stepName", w.stepName()))
	}
	w.stepOpen, w.parent, w.shown, w.calls = false, "", nil, nil
}

// newMessage returns the id of a message that begins: its run, step and number. Ids are not used
// again.
func (w *aguiWriter) newMessage() string {
	w.messages++
	id := w.messageID()
	w.shown = append(slices.Clip(w.shown), id)
	return id
}

func (w *aguiWriter) messageID() string {
	return w.event.GetRunId() + "-" + strconv.Itoa(int(w.step)) + "-" + strconv.Itoa(w.messages)
}

// AGUIStep returns the run and the step of a message's id. ok is false for ids that others or
// earlier versions have chosen.
func AGUIStep(messageID string) (run string, step int32, ok bool) {
	if len(messageID) <= runIDLength || messageID[runIDLength] != '-' {
		return "", 0, false
	}
	number, _, ok := strings.Cut(messageID[runIDLength+1:], "-")
	n, err := strconv.ParseInt(number, 10, 32)
	return messageID[:runIDLength], int32(n), ok && err == nil && n >= 0
}

// runIDLength is the length of a UUID.
const runIDLength = 36

func (w *aguiWriter) say(part string, block int32, text string) {
	if w.part != part || w.block != block || !w.stepOpen || w.step != w.event.GetStepIndex() {
		w.openStep()
		w.closePart()
		w.part, w.block = part, block
		id := w.newMessage()
		if part == "text" {
			w.parent = id
			w.emit(w.chunk("TEXT_MESSAGE_START").text("messageId", id).text("role", "assistant"))
		} else {
			w.emit(w.chunk("REASONING_START").text("messageId", id))
			w.emit(w.chunk("REASONING_MESSAGE_START").text("messageId", id).text("role", "reasoning"))
		}
	}
	kind := "TEXT_MESSAGE_CONTENT"
	if part == "reasoning" {
		kind = "REASONING_MESSAGE_CONTENT"
	}
	w.emit(w.chunk(kind).text("messageId", w.messageID()).text("delta", text))
}

func (w *aguiWriter) closePart() {
	switch w.part {
	case "text":
		w.emit(w.chunk("TEXT_MESSAGE_END").text("messageId", w.messageID()))
	case "reasoning":
		w.emit(w.chunk("REASONING_MESSAGE_END").text("messageId", w.messageID()))
		w.emit(w.chunk("REASONING_END").text("messageId", w.messageID()))
	}
	w.part = ""
}

func (w *aguiWriter) setCall(id string, c aguiCall) {
	w.calls = maps.Clone(w.calls) // states share it
	if w.calls == nil {
		w.calls = map[string]aguiCall{}
	}
	w.calls[id] = c
}

func (w *aguiWriter) beginCall(id, name string) {
	if c := w.calls[id]; c.open || c.complete {
		return
	}
	w.openStep()
	w.closePart()
	if w.parent == "" {
		w.parent = w.newMessage()
	}
	w.emit(w.chunk("TOOL_CALL_START").text("toolCallId", id).text("toolCallName", name).text("parentMessageId", w.parent))
	w.setCall(id, aguiCall{open: true})
}

func (w *aguiWriter) args(id, text string) {
	c := w.calls[id]
	if !c.open || text == "" {
		return
	}
	w.emit(w.chunk("TOOL_CALL_ARGS").text("toolCallId", id).text("delta", text))
	c.args = true
	w.setCall(id, c)
}

func (w *aguiWriter) completeCall(id, name, args string) {
	if w.calls[id].complete {
		return
	}
	w.beginCall(id, name)
	if !w.calls[id].args {
		w.args(id, args)
	}
	w.emit(w.chunk("TOOL_CALL_END").text("toolCallId", id))
	w.setCall(id, aguiCall{complete: true})
}

func (w *aguiWriter) result(m *runv1.ToolResult) {
	if w.calls[m.GetToolCallId()].client {
		return // the client has it
	}
	w.closePart()
	if w.pauses == 0 { // otherwise an earlier response may have shown the call
		w.completeCall(m.GetToolCallId(), m.GetToolName(), "{}")
	}
	o := w.chunk("TOOL_CALL_RESULT").text("messageId", w.newMessage()).text("toolCallId", m.GetToolCallId())
	w.emit(o.text("content", m.GetResultJson()).text("role", "tool"))
}

func (w *aguiWriter) ask(m *runv1.ToolApprovalRequest) {
	w.completeCall(m.GetToolCallId(), m.GetToolName(), m.GetArgsJson())
	o := jsonObject(appendString([]byte(`{"id":`), approvalID(m.GetToolCallId(), m.GetExpiresAt(), m.GetOutcomeUnknown())))
	schema := `{"type":"object","properties":{"approved":{"type":"boolean"},"reason":{"type":"string"}},"required":["approved"]}`
	if m.GetOutcomeUnknown() {
		o = o.text("reason", "input_required")
		schema = `{"type":"object","properties":{"outcome":{"enum":["happened","repeat"]},"reason":{"type":"string"}},"required":["outcome"]}`
	} else {
		o = o.text("reason", "confirmation")
	}
	o = o.text("toolCallId", m.GetToolCallId())
	if m.GetReason() != "" {
		o = o.text("message", m.GetReason())
	}
	o = o.json("responseSchema", schema, "{}")
	if at := m.GetExpiresAt(); at != nil {
		o = o.text("expiresAt", at.AsTime().Format(time.RFC3339Nano))
	}
	w.asks = append(slices.Clip(w.asks), string(o.end()))
}

func (w *aguiWriter) clientRequest(m *runv1.ToolClientRequest) {
	id := m.GetToolCallId()
	w.completeCall(id, m.GetToolName(), m.GetArgsJson())
	c := w.calls[id]
	c.client = true
	w.setCall(id, c)
	w.pending = append(slices.Clip(w.pending), quoted(id))
	if m.GetReason() != "" {
		w.custom("tool-client-request", jsonObject(appendString([]byte(`{"toolCallId":`), id)).text("reason", m.GetReason()))
	}
}

// retry names the messages that the step has shown in vain.
func (w *aguiWriter) retry(m *runv1.StepRetry) {
	if !w.stepOpen || w.step != w.event.GetStepIndex() {
		return // it has shown nothing
	}
	ids, err := json.Marshal(w.shown)
	if err != nil {
		ids = nil // the default is used
	}
	w.closeStep()
	w.custom("step-retry", jsonObject(appendString([]byte(`{"reason":`), m.GetReason())).json("messageIds", string(ids), "[]"))
}

func (w *aguiWriter) waiting(m *runv1.Waiting) {
	if len(w.asks)+len(w.pending) == 0 || !m.GetForClient() && !m.GetForPerson() { // otherwise it still waits for the rest
		o := jsonObject(appendString([]byte(`{"reason":`), m.GetReason()))
		if until := m.GetUntil(); until != nil {
			o = o.text("until", until.AsTime().Format(time.RFC3339Nano))
		}
		if m.GetForRunner() {
			o = o.truth("forRunner", true)
		}
		w.custom("waiting", o)
		return
	}
	calls := w.calls
	outcome := `{"type":"success","pendingToolCallIds":[` + strings.Join(w.pending, ",") + `]}`
	if len(w.asks) > 0 {
		outcome = `{"type":"interrupt","interrupts":[` + strings.Join(w.asks, ",") + `]}`
	}
	w.finish(outcome, "")
	w.pauses++
	w.begun, w.asks, w.pending, w.calls = false, nil, nil, calls
}

func (w *aguiWriter) done(m *runv1.Done) {
	w.used = tokens{m.GetTotalTokensIn(), m.GetTotalTokensOut()}
	outcome := `{"type":"success"}`
	if m.GetFinishReason() == "cancelled" {
		outcome = `{"type":"cancelled"}`
	}
	w.finish(outcome, m.GetFinishReason())
}

// finish ends a response.
func (w *aguiWriter) finish(outcome, reason string) {
	w.closeStep()
	used := w.used.minus(w.told)
	w.told = w.used
	o := w.chunk("RUN_FINISHED").text("threadId", w.Thread).text("runId", w.Run).json("outcome", outcome, "null")
	if reason != "" {
		o = o.json("result", string(jsonObject(appendString([]byte(`{"finishReason":`), reason)).text("runId", w.event.GetRunId()).end()), "{}")
	}
	usage := jsonObject(appendString([]byte(`[{"provider":`), w.provider)).text("model", w.model).number("inputTokens", used.in).number("outputTokens", used.out).number("totalTokens", used.in+used.out)
	w.emit(append(o.key("usage"), append(usage, "}]"...)...))
}
