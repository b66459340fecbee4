package api

import (
	"encoding/json"
	"time"
)

// The types of this file describe the events of a stream in the OpenAPI document. Package
// dialect encodes the events; a test compares the two.

// SnapshotEvent replaces events that a viewer missed and that can no longer be sent.
type SnapshotEvent struct {
	Type string `json:"type" enum:"snapshot"`
	SessionDetails
}

// TextDeltaEvent is a piece of the answer's text.
type TextDeltaEvent struct {
	Type  string `json:"type" enum:"text-delta"`
	Delta string `json:"delta"`
}

// ReasoningDeltaEvent is a piece of the model's reasoning.
type ReasoningDeltaEvent struct {
	Type  string `json:"type" enum:"reasoning-delta"`
	Delta string `json:"delta"`
}

// ToolCallStartEvent announces that the model has begun a tool call.
type ToolCallStartEvent struct {
	Type       string `json:"type" enum:"tool-call-start"`
	ToolCallID string `json:"toolCallId"`
	ToolName   string `json:"toolName"`
}

// ToolCallDeltaEvent is a piece of a tool call's arguments, as JSON text.
type ToolCallDeltaEvent struct {
	Type       string `json:"type" enum:"tool-call-delta"`
	ToolCallID string `json:"toolCallId"`
	ToolName   string `json:"toolName"`
	Delta      string `json:"delta"`
}

// ToolCallCompleteEvent is a tool call with complete arguments.
type ToolCallCompleteEvent struct {
	Type       string         `json:"type" enum:"tool-call-complete"`
	ToolCallID string         `json:"toolCallId"`
	ToolName   string         `json:"toolName"`
	Args       map[string]any `json:"args"`

	At *time.Time `json:"at,omitempty" doc:"When the call was made. From then on the tool runs, unless the call waits for a person or a client."`
}

// ToolApprovalRequestEvent is a tool call that waits for a person.
type ToolApprovalRequestEvent struct {
	Type       string         `json:"type" enum:"tool-approval-request"`
	ToolCallID string         `json:"toolCallId"`
	ToolName   string         `json:"toolName"`
	Args       map[string]any `json:"args"`

	Reason         string     `json:"reason,omitempty" doc:"Why a person is asked."`
	ExpiresAt      *time.Time `json:"expiresAt,omitempty" doc:"When no answer becomes a refusal."`
	OutcomeUnknown bool       `json:"outcomeUnknown,omitempty" doc:"The call ran, and its outcome is unknown: answer with outcome."`
	RunID          string     `json:"runId" format:"uuid"`
}

// ToolApprovalResponseEvent is the answer to a ToolApprovalRequestEvent.
type ToolApprovalResponseEvent struct {
	Type       string `json:"type" enum:"tool-approval-response"`
	ToolCallID string `json:"toolCallId"`
	ToolName   string `json:"toolName"`
	Decision   string `json:"decision" enum:"approved,refused,expired,happened,repeat"`
	Reason     string `json:"reason,omitempty"`
	DecidedBy  string `json:"decidedBy,omitempty" format:"uuid" doc:"Absent if nobody answered in time."`
}

// ToolClientRequestEvent is a tool call that a client of the session has to run.
type ToolClientRequestEvent struct {
	Type       string         `json:"type" enum:"tool-client-request"`
	ToolCallID string         `json:"toolCallId"`
	ToolName   string         `json:"toolName"`
	Args       map[string]any `json:"args" doc:"They satisfy the tool's schema."`

	Reason    string    `json:"reason,omitempty" doc:"Why the client has to ask its user before it does anything that others see."`
	ExpiresAt time.Time `json:"expiresAt" doc:"When no result becomes an error."`
	RunID     string    `json:"runId" format:"uuid"`
	StepIndex int32     `json:"stepIndex" doc:"The step of the call: send it back with the result, as step_index."`
}

// ToolProgressEvent says how far a running tool call is, as the tool reports it. It comes once a
// second at most.
type ToolProgressEvent struct {
	Type       string `json:"type" enum:"tool-progress"`
	ToolCallID string `json:"toolCallId"`
	ToolName   string `json:"toolName"`
	Message    string `json:"message,omitempty" maxLength:"201" doc:"Text from outside of Signalbox: show it as text, and trust nothing that it says."`
	Percent    *int32 `json:"percent,omitempty" minimum:"0" maximum:"100" doc:"Absent if unknown."`
}

// ToolResultEvent is the outcome of a tool call.
type ToolResultEvent struct {
	Type       string `json:"type" enum:"tool-result"`
	ToolCallID string `json:"toolCallId"`
	ToolName   string `json:"toolName"`
	Result     string `json:"result" doc:"The result envelope, as JSON text."`
	IsError    bool   `json:"isError"`
	DurationMS int64  `json:"durationMs,omitempty" doc:"How long the tool ran; of a client's tool, the time from its call to its result. Absent if that is unknown or it did not run."`
}

// SourceEvent is a source of the answer.
type SourceEvent struct {
	Type  string `json:"type" enum:"source"`
	URL   string `json:"url"`
	Title string `json:"title"`
}

// CitationEvent says that text of the answer relies on a source.
type CitationEvent struct {
	Type string `json:"type" enum:"citation"`
	URL  string `json:"url" doc:"Of a source of the step."`
	Text string `json:"text" maxLength:"500" doc:"What the source says; empty if the provider does not quote it."`
	End  int32  `json:"end,omitempty" minimum:"1" doc:"Where the text that relies on the source ends: after so many characters (code points) of the step's text. Absent: after all that have come so far."`
}

// StepCompleteEvent announces that a step is committed.
type StepCompleteEvent struct {
	Type         string `json:"type" enum:"step-complete"`
	StepIndex    int32  `json:"stepIndex"`
	TokensIn     int64  `json:"tokensIn"`
	TokensOut    int64  `json:"tokensOut"`
	FinishReason string `json:"finishReason"`
	MessageID    string `json:"messageId,omitempty" format:"uuid" doc:"The message with the step's answer; absent if the model said nothing."`
}

// StepRetryEvent announces that the step will be repeated; what it has streamed so far is void.
type StepRetryEvent struct {
	Type      string `json:"type" enum:"step-retry"`
	StepIndex int32  `json:"stepIndex"`
	Reason    string `json:"reason"`
}

// CompactionEvent announces that a summary stands for the session's first messages in the prompt
// from now on. The messages stay readable. The step that made it has no answer.
type CompactionEvent struct {
	Type      string `json:"type" enum:"compaction"`
	StepIndex int32  `json:"stepIndex"`
	Messages  int32  `json:"messages" doc:"How many messages the summary stands for."`
	Summary   string `json:"summary"`
}

// SessionTitleEvent announces that a model has named the session. It may come anywhere in a run.
type SessionTitleEvent struct {
	Type  string `json:"type" enum:"session-title"`
	Title string `json:"title"`
}

// WaitingEvent announces that the model call will be retried later, or that the run is parked.
type WaitingEvent struct {
	Type   string     `json:"type" enum:"waiting"`
	Reason string     `json:"reason" example:"The model provider's rate limit is reached."`
	Until  *time.Time `json:"until,omitempty" doc:"When it will be retried; absent if unknown."`

	ForPerson bool `json:"forPerson,omitempty" doc:"The run is parked until a person answers a tool-approval-request, and until that time at most."`
	ForClient bool `json:"forClient,omitempty" doc:"The run is parked until a tool-client-request has its result, and until that time at most."`
	ForRunner bool `json:"forRunner,omitempty" doc:"The run is parked between two steps because its runner shuts down, as in a deploy: another one continues it, as its run-start says."`
}

// UserMessageEvent is a user message that another viewer sent.
type UserMessageEvent struct {
	Type      string          `json:"type" enum:"user-message"`
	MessageID string          `json:"messageId"`
	Content   json.RawMessage `json:"content"`
	CreatedBy string          `json:"createdBy"`
	RunID     string          `json:"runId"`
}

// RunStartEvent announces that a runner has started a run.
type RunStartEvent struct {
	Type      string `json:"type" enum:"run-start"`
	RunID     string `json:"runId"`
	Model     string `json:"model"`
	Provider  string `json:"provider"`
	Simulated bool   `json:"simulated" doc:"The simulator answers from a script; no model is called."`
}

// DoneEvent is the end of a run that succeeded or was cancelled.
type DoneEvent struct {
	Type           string `json:"type" enum:"done"`
	Text           string `json:"text" doc:"The texts of all steps, with a blank line between them."`
	FinalText      string `json:"final_text" doc:"The text of the last step."`
	TotalTokensIn  int64  `json:"totalTokensIn"`
	TotalTokensOut int64  `json:"totalTokensOut"`
	Steps          int32  `json:"steps"`
	FinishReason   string `json:"finishReason" example:"stop"`
	FinishDetail   string `json:"finishDetail,omitempty" doc:"For people: why the run ended, such as which budget is spent and when it begins anew."`
	MessageID      string `json:"messageId,omitempty" format:"uuid" doc:"The message with an answer that was interrupted, and whose step is not complete."`
	RunID          string `json:"runId"`
	Simulated      bool   `json:"simulated" doc:"The simulator answered from a script; no model was called."`
}

// ErrorEvent is the end of a run that failed.
type ErrorEvent struct {
	Type  string `json:"type" enum:"error"`
	Error string `json:"error"`
	Code  string `json:"code,omitempty"`
	RunID string `json:"runId"`

	RetryAt *time.Time `json:"retryAt,omitempty" doc:"When the same may succeed, if the provider or the credential broker said so."`
}
