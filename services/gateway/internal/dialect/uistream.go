package dialect

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	runv1 "signalbox.dev/proto/signalbox/run/v1"
)

// UIStream is the AI SDK's UI message stream v1, for one major version of the npm package ai: 5,
// 6 or 7. Older versions reject chunks of newer ones.
//
// A run is one assistant message, whose id is the run's. The response ends when the run waits for
// the result of a client's tool or, with version 6 and 7, for a person, as the SDK expects it: the
// client answers in a request whose response continues the message. Version 5 knows no approvals, so
// that its response goes on, and data-tool-approval parts show them.
type UIStream struct{ Version int }

// UIVersions are the versions of the AI SDK that UIStream knows; the first is the default.
var UIVersions = []int{5, 6, 7}

// End implements Fold.
func (UIStream) End() []byte { return []byte("data: [DONE]\n\n") }

// uiState is the State of a UIStream.
type uiState struct {
	begun    bool
	paused   bool // the response has ended; the next chunk has to begin another one
	pauses   int
	modelled bool // the model was named
	step     int32
	stepOpen bool
	part     string // type of the open part: text, reasoning or empty
	block    int32  // of the open part
	parts    int    // that were begun; they number the parts
	sources  int
	calls    map[string]uiCall // of the step
	called   bool              // the last step that was begun has calls, not of the provider
}

// uiCall is what the client knows of a tool call.
type uiCall struct {
	name                      string
	asked                     string // the id of the question about it
	begun, available, refused bool
}

// Pauses implements State.
func (s *uiState) Pauses() int { return s.pauses }

// Next implements Fold.
func (u UIStream) Next(before State, e *runv1.Event) (data []byte, count int, next State) {
	w := uiWriter{version: u.Version, event: e}
	s, _ := before.(*uiState)
	if s != nil {
		w.uiState = *s
	}
	if s != nil && w.isNextDelta() { // most events; the state remains
		w.writeDelta()
		return w.out, w.count, s
	}
	w.write()
	return w.out, w.count, &w.uiState
}

// uiWriter writes the chunks of one event and updates the state.
type uiWriter struct {
	uiState

	version int
	event   *runv1.Event
	out     []byte
	count   int
}

// chunk begins a chunk, which emit ends.
func (w *uiWriter) chunk(kind string) jsonObject { return object(append(w.out, "data: "...), kind) }

func (w *uiWriter) emit(o jsonObject) {
	w.out = append(o.end(), "\n\n"...)
	w.count++
}

// delta returns the type, block and text of a delta of text or reasoning.
func (w *uiWriter) delta() (part string, block int32, text string) {
	switch body := w.event.GetBody().(type) {
	case *runv1.Event_TextDelta:
		return "text", body.TextDelta.GetBlock(), body.TextDelta.GetDelta()
	case *runv1.Event_ReasoningDelta:
		return "reasoning", body.ReasoningDelta.GetBlock(), body.ReasoningDelta.GetDelta()
	}
	return "", 0, ""
}

// isNextDelta reports whether the event continues the open part.
func (w *uiWriter) isNextDelta() bool {
	part, block, _ := w.delta()
	return part != "" && part == w.part && block == w.block && w.event.GetStepIndex() == w.step
}

func (w *uiWriter) writeDelta() {
	part, _, text := w.delta()
	w.emit(w.chunk(part+"-delta").text("id", w.partID()).text("delta", text))
}

// partID identifies the open part. Ids are not used again, not even after a retry.
func (w *uiWriter) partID() string { return "part-" + strconv.Itoa(w.parts) }

func (w *uiWriter) write() {
	w.begin()
	switch body := w.event.GetBody().(type) {
	case *runv1.Event_UserMessage:
		w.userMessage(body.UserMessage)
	case *runv1.Event_RunStart:
		w.runStart(body.RunStart)
	case *runv1.Event_TextDelta, *runv1.Event_ReasoningDelta:
		w.openStep()
		w.closePart()
		w.parts++
		w.part, w.block, _ = w.delta()
		w.emit(w.chunk(w.part+"-start").text("id", w.partID()))
		w.writeDelta()
	case *runv1.Event_ToolCallStart:
		w.beginCall(body.ToolCallStart.GetToolCallId(), body.ToolCallStart.GetToolName(), body.ToolCallStart.GetProviderExecuted())
	case *runv1.Event_ToolCallDelta:
		m := body.ToolCallDelta
		w.beginCall(m.GetToolCallId(), m.GetToolName(), false)
		w.emit(w.chunk("tool-input-delta").text("toolCallId", m.GetToolCallId()).text("inputTextDelta", m.GetDelta()))
	case *runv1.Event_ToolCallComplete:
		m := body.ToolCallComplete
		w.completeCall(m.GetToolCallId(), m.GetToolName(), m.GetArgsJson(), m.GetProviderExecuted())
	case *runv1.Event_ToolResult:
		w.result(body.ToolResult)
	case *runv1.Event_Source:
		w.openStep()
		o := w.chunk("source-url").text("sourceId", sourceID(w.sources)).text("url", body.Source.GetUrl())
		if body.Source.GetTitle() != "" {
			o = o.text("title", body.Source.GetTitle())
		}
		w.sources++
		w.emit(o)
	case *runv1.Event_ToolApprovalRequest:
		w.approvalRequest(body.ToolApprovalRequest)
	case *runv1.Event_ToolApprovalResponse:
		w.approvalResponse(body.ToolApprovalResponse)
	case *runv1.Event_ToolClientRequest:
		w.clientRequest(body.ToolClientRequest)
	case *runv1.Event_ToolProgress:
		w.notice("data-tool-progress", progressData(body.ToolProgress))
	case *runv1.Event_SessionTitle:
		w.notice("data-session-title", jsonObject(appendString([]byte(`{"title":`), body.SessionTitle.GetTitle())))
	case *runv1.Event_Compaction:
		w.notice("data-compaction", jsonObject(strconv.AppendInt([]byte(`{"messages":`), int64(body.Compaction.GetMessages()), 10)))
	case *runv1.Event_StepRetry:
		w.retry(body.StepRetry)
	case *runv1.Event_StepComplete:
		w.closeStep()
		w.calls = nil
	case *runv1.Event_Waiting:
		w.waiting(body.Waiting)
	case *runv1.Event_Done:
		w.done(body.Done)
	case *runv1.Event_Error:
		w.closeStep()
		w.emit(w.chunk("error").text("errorText", body.Error.GetMessage()))
		w.emit(w.chunk("finish").text("finishReason", "error"))
	}
}

func sourceID(n int) string { return "source-" + strconv.Itoa(n) }

// begin begins the message, or continues it in another response.
func (w *uiWriter) begin() {
	if w.begun && !w.paused {
		return
	}
	o := w.chunk("start").text("messageId", w.event.GetRunId())
	if !w.begun {
		o = o.json("messageMetadata", string(append(appendString([]byte(`{"runId":`), w.event.GetRunId()), '}')), "{}")
	}
	w.emit(o)
	w.begun, w.paused = true, false
}

func (w *uiWriter) openStep() {
	if w.stepOpen && w.step == w.event.GetStepIndex() {
		return
	}
	w.closeStep()
	w.emit(w.chunk("start-step"))
	w.stepOpen, w.step, w.called = true, w.event.GetStepIndex(), false
}

func (w *uiWriter) closeStep() {
	w.closePart()
	if w.stepOpen {
		w.emit(w.chunk("finish-step"))
		w.stepOpen = false
	}
}

func (w *uiWriter) closePart() {
	if w.part != "" {
		w.emit(w.chunk(w.part+"-end").text("id", w.partID()))
		w.part = ""
	}
}

// notice writes data that is not part of the message: onData gets it.
func (w *uiWriter) notice(kind string, data jsonObject) {
	w.emit(w.chunk(kind).json("data", string(data.end()), "{}").truth("transient", true))
}

// userMessage tells who else asked. The message that the run answers is not part of the answer:
// onData gets it. One that steers the run is.
func (w *uiWriter) userMessage(m *runv1.UserMessage) {
	if w.event.GetNumber() == 0 {
		w.notice("data-user-message", jsonObject(appendString([]byte(`{"messageId":`), m.GetMessageId())).json("content", m.GetContentJson(), `""`).text("createdBy", m.GetCreatedBy()))
		return
	}
	w.closeStep()
	part := steeringPart(m.GetMessageId(), json.RawMessage(m.GetContentJson()), w.version)
	if part.Type == steeringMessage {
		w.emit(w.chunk(part.Type).text("id", part.ID).json("parts", marshalled(part.Parts), "[]"))
		return
	}
	w.emit(w.chunk(part.Type).text("id", part.ID).json("data", string(part.Data), "{}"))
}

func marshalled(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return "" // the caller's default is used
	}
	return string(b)
}

func (w *uiWriter) runStart(m *runv1.RunStart) {
	if w.modelled {
		return // another runner goes on
	}
	w.modelled = true
	meta := jsonObject(appendString([]byte(`{"model":`), m.GetModel())).text("provider", m.GetProvider())
	if m.GetSimulated() {
		meta = meta.truth("simulated", true)
	}
	w.emit(w.chunk("message-metadata").json("messageMetadata", string(meta.end()), "{}"))
}

func (w *uiWriter) setCall(id string, c uiCall) {
	w.calls = maps.Clone(w.calls) // states share it
	if w.calls == nil {
		w.calls = map[string]uiCall{}
	}
	w.calls[id] = c
}

func (w *uiWriter) beginCall(id, name string, providerExecuted bool) {
	if w.calls[id].begun {
		return
	}
	w.openStep()
	w.closePart()
	w.emit(executed(w.chunk("tool-input-start").call(id, name), providerExecuted))
	w.setCall(id, uiCall{name: name, begun: true})
	w.called = w.called || !providerExecuted
}

func (w *uiWriter) completeCall(id, name, args string, providerExecuted bool) {
	c := w.calls[id]
	if c.available {
		return
	}
	if !c.begun {
		w.openStep()
	}
	w.closePart()
	o := executed(w.chunk("tool-input-available").call(id, name).json("input", args, "{}"), providerExecuted)
	if !providerExecuted {
		o = o.json("providerMetadata", string(CallMetadata(w.event.GetStepIndex())), "{}")
	}
	w.emit(o)
	c.name, c.begun, c.available = name, true, true
	w.setCall(id, c)
	w.called = w.called || !providerExecuted
}

// CallMetadata is what a tool call's part says of its step: clients send it back with the result,
// as callProviderMetadata, and models repeat the ids of calls.
func CallMetadata(step int32) json.RawMessage {
	return append(strconv.AppendInt([]byte(`{"signalbox":{"stepIndex":`), int64(step), 10), "}}"...)
}

func executed(o jsonObject, byProvider bool) jsonObject {
	if byProvider {
		return o.truth("providerExecuted", true)
	}
	return o
}

func (w *uiWriter) result(m *runv1.ToolResult) {
	id := m.GetToolCallId()
	w.completeCall(id, m.GetToolName(), "{}", m.GetProviderExecuted()) // clients reject results of unknown calls
	switch {
	case w.calls[id].refused && w.version >= 6:
		w.emit(w.chunk("tool-output-denied").text("toolCallId", id))
	case m.GetIsError():
		w.emit(executed(w.chunk("tool-output-error").text("toolCallId", id).text("errorText", errorText(json.RawMessage(m.GetResultJson()))), m.GetProviderExecuted()))
	default:
		w.emit(executed(w.chunk("tool-output-available").text("toolCallId", id).json("output", string(uiOutput(json.RawMessage(m.GetResultJson()))), "null"), m.GetProviderExecuted()))
	}
}

// outcomeSuffix makes the approval's id of a question about an unknown outcome.
const outcomeSuffix = "~outcome"

// approvalID returns the id of a question about a call. Models repeat the ids of calls, and the same
// call may be asked about again, so the id also has the time until which the question waits.
func approvalID(call string, until *timestamppb.Timestamp, outcomeUnknown bool) string {
	if until != nil {
		call += "~" + strconv.FormatInt(until.AsTime().UnixMilli(), 10)
	}
	if outcomeUnknown {
		return call + outcomeSuffix
	}
	return call
}

// IsQuestion reports whether an approval's id is that of a question.
func IsQuestion(approval, call string, until *timestamppb.Timestamp, outcomeUnknown bool) bool {
	return approval == approvalID(call, until, outcomeUnknown)
}

// AsksOutcome reports whether a question is about a call's unknown outcome. A plain approval or
// refusal does not answer it.
func AsksOutcome(approvalID string) bool { return strings.HasSuffix(approvalID, outcomeSuffix) }

// outcomeDescriptor is the descriptor of an approval that asks about an unknown outcome.
const outcomeDescriptor = `{"question":"outcome","choices":["happened","repeat"]}`

func (w *uiWriter) approvalRequest(m *runv1.ToolApprovalRequest) {
	w.completeCall(m.GetToolCallId(), m.GetToolName(), m.GetArgsJson(), false)
	c := w.calls[m.GetToolCallId()]
	c.asked = approvalID(m.GetToolCallId(), m.GetExpiresAt(), m.GetOutcomeUnknown())
	w.setCall(m.GetToolCallId(), c)
	if w.version < 6 {
		o := jsonObject(appendString([]byte(`{"state":"requested","toolCallId":`), m.GetToolCallId())).text("toolName", m.GetToolName()).text("reason", m.GetReason())
		if at := m.GetExpiresAt(); at != nil {
			o = o.text("expiresAt", at.AsTime().Format(time.RFC3339Nano))
		}
		w.dataApproval(c.asked, o, m.GetOutcomeUnknown())
		return
	}
	o := w.chunk("tool-approval-request").text("approvalId", c.asked).text("toolCallId", m.GetToolCallId())
	if m.GetOutcomeUnknown() {
		o = o.json("approvalDescriptor", outcomeDescriptor, "{}")
	}
	if w.version >= 7 && m.GetReason() != "" {
		o = o.text("reason", m.GetReason())
	}
	w.emit(o)
}

func (w *uiWriter) dataApproval(id string, o jsonObject, outcomeUnknown bool) {
	if outcomeUnknown {
		o = o.truth("outcomeUnknown", true)
	}
	w.emit(w.chunk("data-tool-approval").text("id", id).json("data", string(o.end()), "{}"))
}

func (w *uiWriter) approvalResponse(m *runv1.ToolApprovalResponse) {
	c := w.calls[m.GetToolCallId()]
	c.refused = !m.GetOutcomeUnknown() && slices.Contains([]string{"refused", "expired"}, m.GetDecision())
	w.setCall(m.GetToolCallId(), c)
	id := cmp.Or(c.asked, approvalID(m.GetToolCallId(), nil, m.GetOutcomeUnknown()))
	switch {
	case w.version < 6:
		o := jsonObject(appendString([]byte(`{"state":`), m.GetDecision())).text("toolCallId", m.GetToolCallId()).text("toolName", m.GetToolName()).text("reason", m.GetReason())
		w.dataApproval(id, o, m.GetOutcomeUnknown())
	case w.version >= 7:
		o := w.chunk("tool-approval-response").text("approvalId", id).
			truth("approved", slices.Contains([]string{"approved", "repeat"}, m.GetDecision()))
		if m.GetReason() != "" {
			o = o.text("reason", m.GetReason())
		}
		w.emit(o)
	}
}

// clientRequest tells onData why the client has to ask its user before it runs the call.
func (w *uiWriter) clientRequest(m *runv1.ToolClientRequest) {
	w.completeCall(m.GetToolCallId(), m.GetToolName(), m.GetArgsJson(), false)
	if m.GetReason() != "" {
		w.notice("data-tool-client-request", jsonObject(appendString([]byte(`{"toolCallId":`), m.GetToolCallId())).text("toolName", m.GetToolName()).text("reason", m.GetReason()))
	}
}

// retry takes back what the open step has shown. Versions before 7 cannot: what is void stays in
// the message, marked by a data part, and the step begins anew.
func (w *uiWriter) retry(m *runv1.StepRetry) {
	if !w.stepOpen || w.step != w.event.GetStepIndex() {
		return // it has shown nothing
	}
	w.closePart()
	if w.version >= 7 {
		w.emit(w.chunk("reset-step"))
		w.calls, w.called = nil, false
		return
	}
	for _, id := range slices.Sorted(maps.Keys(w.calls)) {
		if c := w.calls[id]; !c.available {
			w.emit(w.chunk("tool-input-error").call(id, c.name).json("input", "{}", "{}").text("errorText", m.GetReason()))
		}
	}
	w.emit(w.chunk("data-step-retry").json("data", string(jsonObject(strconv.AppendInt([]byte(`{"stepIndex":`), int64(w.step), 10)).text("reason", m.GetReason()).end()), "{}"))
	w.closeStep()
	w.calls = nil
}

func (w *uiWriter) waiting(m *runv1.Waiting) {
	if m.GetForClient() || m.GetForPerson() && w.version >= 6 {
		w.closeStep()
		w.emit(w.chunk("finish").text("finishReason", "tool-calls"))
		w.paused = true
		w.pauses++
		return
	}
	o := jsonObject(appendString([]byte(`{"reason":`), m.GetReason()))
	if until := m.GetUntil(); until != nil {
		o = o.text("until", until.AsTime().Format(time.RFC3339Nano))
	}
	if m.GetForPerson() {
		o = o.truth("forPerson", true)
	}
	if m.GetForRunner() {
		o = o.truth("forRunner", true)
	}
	w.notice("data-waiting", o)
}

func (w *uiWriter) done(m *runv1.Done) {
	w.closeStep()
	if w.called {
		// A client whose last step has only calls with results would send them, to an ended run.
		w.openStep()
		w.closeStep()
	}
	reason := m.GetFinishReason()
	if reason == "cancelled" {
		w.emit(w.chunk("abort"))
	}
	in, out := m.GetTotalTokensIn(), m.GetTotalTokensOut()
	usage := jsonObject(strconv.AppendInt([]byte(`{"inputTokens":`), in, 10)).number("outputTokens", out).number("totalTokens", in+out).end()
	meta := jsonObject(append([]byte(`{"usage":`), usage...)).number("steps", int64(m.GetSteps())).text("finishReason", reason)
	if m.GetFinishDetail() != "" {
		meta = meta.text("finishDetail", m.GetFinishDetail())
	}
	w.emit(w.chunk("finish").text("finishReason", w.finishReason(reason)).json("messageMetadata", string(meta.end()), "{}"))
}

// finishReason converts ours to one that the SDK knows. "interrupted" keeps a client of version 7
// from going on by itself.
func (w *uiWriter) finishReason(reason string) string {
	switch reason {
	case "stop", "length", "content-filter", "tool-calls", "error":
		return reason
	case "cancelled":
		if w.version >= 7 {
			return "interrupted"
		}
	}
	return "other"
}
