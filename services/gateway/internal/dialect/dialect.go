// Package dialect encodes the run log for clients. A dialect is a pure function of the log: an
// event has the same bytes on every gateway and after every restart, so that viewers can change
// gateways in the middle of a stream. Deltas are batched where the log is written, not here.
//
// Plain is the public API's own dialect. UIStream is that of the AI SDK's useChat: a Fold, because
// its chunks depend on the events before. Readers of a Fold begin with a run's first event and share
// the encodings. UIMessages converts stored messages to the same form.
package dialect

import (
	"strconv"

	"signalbox.dev/pkg/sse"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
)

// Dialect encodes events of the run log for one kind of client.
type Dialect interface {
	// Append appends the complete event with its id, and returns dst. It appends nothing if the
	// dialect does not know the event's body: a newer runner may publish events that an older
	// gateway does not know.
	Append(dst []byte, e *runv1.Event) []byte
	// AppendSnapshot appends an event with the current state of the session. data is a JSON
	// object on one line, whose type is snapshot.
	AppendSnapshot(dst, data []byte, id string) []byte
}

// ID returns an event's id on the wire.
func ID(runOrdinal, number int64) string {
	b := make([]byte, 0, 24)
	b = strconv.AppendInt(b, runOrdinal, 10)
	b = append(b, '-')
	return string(strconv.AppendInt(b, number, 10))
}

// Plain is the dialect of POST /api/sessions/:id/messages and the events routes.
type Plain struct{}

// Append implements Dialect.
func (Plain) Append(dst []byte, e *runv1.Event) []byte {
	var room [1 << 10]byte // most events fit, so that nothing is allocated
	name, data := appendPlain(room[:0], e)
	if name == "" {
		return dst
	}
	if dst == nil {
		dst = make([]byte, 0, len(data)+2*len(name)+48)
	}
	return sse.AppendEvent(dst, name, data, ID(e.GetRunOrdinal(), e.GetNumber()))
}

// AppendSnapshot implements Dialect.
func (Plain) AppendSnapshot(dst, data []byte, id string) []byte {
	return sse.AppendEvent(dst, "snapshot", data, id)
}

// appendPlain appends the data of an event and returns its type, or an empty type for a body that
// this dialect does not know.
func appendPlain(b []byte, e *runv1.Event) (string, []byte) {
	switch body := e.GetBody().(type) {
	case *runv1.Event_TextDelta:
		return "text-delta", object(b, "text-delta").text("delta", body.TextDelta.GetDelta()).end()
	case *runv1.Event_ReasoningDelta:
		return "reasoning-delta", object(b, "reasoning-delta").text("delta", body.ReasoningDelta.GetDelta()).end()
	case *runv1.Event_ToolCallStart:
		m := body.ToolCallStart
		return "tool-call-start", object(b, "tool-call-start").call(m.GetToolCallId(), m.GetToolName()).end()
	case *runv1.Event_ToolCallDelta:
		m := body.ToolCallDelta
		return "tool-call-delta", object(b, "tool-call-delta").call(m.GetToolCallId(), m.GetToolName()).text("delta", m.GetDelta()).end()
	case *runv1.Event_ToolCallComplete:
		m := body.ToolCallComplete
		return "tool-call-complete", object(b, "tool-call-complete").call(m.GetToolCallId(), m.GetToolName()).args(m.GetArgsJson()).time("at", e.GetTime()).end()
	case *runv1.Event_ToolApprovalRequest:
		m := body.ToolApprovalRequest
		o := object(b, "tool-approval-request").call(m.GetToolCallId(), m.GetToolName()).args(m.GetArgsJson())
		if m.GetReason() != "" {
			o = o.text("reason", m.GetReason())
		}
		o = o.time("expiresAt", m.GetExpiresAt())
		if m.GetOutcomeUnknown() {
			o = o.truth("outcomeUnknown", true)
		}
		return "tool-approval-request", o.text("runId", e.GetRunId()).end()
	case *runv1.Event_ToolApprovalResponse:
		m := body.ToolApprovalResponse
		o := object(b, "tool-approval-response").call(m.GetToolCallId(), m.GetToolName()).text("decision", m.GetDecision())
		if m.GetReason() != "" {
			o = o.text("reason", m.GetReason())
		}
		if m.GetDecidedBy() != "" {
			o = o.text("decidedBy", m.GetDecidedBy())
		}
		return "tool-approval-response", o.end()
	case *runv1.Event_ToolClientRequest:
		m := body.ToolClientRequest
		o := object(b, "tool-client-request").call(m.GetToolCallId(), m.GetToolName()).args(m.GetArgsJson())
		if m.GetReason() != "" {
			o = o.text("reason", m.GetReason())
		}
		return "tool-client-request", o.time("expiresAt", m.GetExpiresAt()).text("runId", e.GetRunId()).number("stepIndex", int64(e.GetStepIndex())).end()
	case *runv1.Event_ToolProgress:
		m := body.ToolProgress
		return "tool-progress", object(b, "tool-progress").call(m.GetToolCallId(), m.GetToolName()).progress(m).end()
	case *runv1.Event_ToolResult:
		m := body.ToolResult
		o := object(b, "tool-result").call(m.GetToolCallId(), m.GetToolName()).text("result", m.GetResultJson()).truth("isError", m.GetIsError())
		if m.GetDurationMs() > 0 {
			o = o.number("durationMs", m.GetDurationMs())
		}
		return "tool-result", o.end()
	case *runv1.Event_Source:
		return "source", object(b, "source").text("url", body.Source.GetUrl()).text("title", body.Source.GetTitle()).end()
	case *runv1.Event_Citation:
		m := body.Citation
		o := object(b, "citation").text("url", m.GetUrl()).text("text", m.GetText())
		if m.GetEnd() > 0 {
			o = o.number("end", int64(m.GetEnd()))
		}
		return "citation", o.end()
	case *runv1.Event_StepComplete:
		m := body.StepComplete
		o := object(b, "step-complete").number("stepIndex", int64(e.GetStepIndex())).number("tokensIn", m.GetTokensIn()).
			number("tokensOut", m.GetTokensOut()).text("finishReason", m.GetFinishReason())
		if m.GetMessageId() != "" {
			o = o.text("messageId", m.GetMessageId())
		}
		return "step-complete", o.end()
	case *runv1.Event_StepRetry:
		return "step-retry", object(b, "step-retry").number("stepIndex", int64(e.GetStepIndex())).text("reason", body.StepRetry.GetReason()).end()
	case *runv1.Event_Compaction:
		m := body.Compaction
		return "compaction", object(b, "compaction").number("stepIndex", int64(e.GetStepIndex())).number("messages", int64(m.GetMessages())).text("summary", m.GetSummary()).end()
	case *runv1.Event_SessionTitle:
		return "session-title", object(b, "session-title").text("title", body.SessionTitle.GetTitle()).end()
	case *runv1.Event_Waiting:
		o := object(b, "waiting").text("reason", body.Waiting.GetReason()).time("until", body.Waiting.GetUntil())
		if body.Waiting.GetForPerson() {
			o = o.truth("forPerson", true)
		}
		if body.Waiting.GetForClient() {
			o = o.truth("forClient", true)
		}
		if body.Waiting.GetForRunner() {
			o = o.truth("forRunner", true)
		}
		return "waiting", o.end()
	}
	return appendPlainBorder(b, e)
}

// appendPlainBorder is appendPlain for the first and last events of a run.
func appendPlainBorder(b []byte, e *runv1.Event) (string, []byte) {
	switch body := e.GetBody().(type) {
	case *runv1.Event_UserMessage:
		m := body.UserMessage
		return "user-message", object(b, "user-message").text("messageId", m.GetMessageId()).json("content", m.GetContentJson(), `""`).
			text("createdBy", m.GetCreatedBy()).text("runId", e.GetRunId()).end()
	case *runv1.Event_RunStart:
		m := body.RunStart
		return "run-start", object(b, "run-start").text("runId", e.GetRunId()).text("model", m.GetModel()).text("provider", m.GetProvider()).truth("simulated", m.GetSimulated()).end()
	case *runv1.Event_Done:
		m := body.Done
		o := object(b, "done").text("text", m.GetText()).text("final_text", m.GetFinalText()).number("totalTokensIn", m.GetTotalTokensIn()).
			number("totalTokensOut", m.GetTotalTokensOut()).number("steps", int64(m.GetSteps())).
			text("finishReason", m.GetFinishReason())
		if m.GetFinishDetail() != "" {
			o = o.text("finishDetail", m.GetFinishDetail())
		}
		if m.GetMessageId() != "" {
			o = o.text("messageId", m.GetMessageId())
		}
		return "done", o.text("runId", e.GetRunId()).truth("simulated", m.GetSimulated()).end()
	case *runv1.Event_Error:
		m := body.Error
		o := object(b, "error").text("error", m.GetMessage())
		if m.GetCode() != "" {
			o = o.text("code", m.GetCode())
		}
		return "error", o.text("runId", e.GetRunId()).time("retryAt", m.GetRetryAt()).end()
	}
	return "", nil
}
