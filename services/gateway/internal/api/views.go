package api

import (
	"cmp"
	"encoding/json"
	"reflect"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	documentv1 "signalbox.dev/proto/signalbox/document/v1"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"

	"signalbox.dev/services/gateway/internal/dialect"
	"signalbox.dev/services/gateway/internal/feed"
)

// Message is a stored message. Together with role, content is an AI SDK ModelMessage.
type Message struct {
	ID        string          `json:"id" format:"uuid"`
	SessionID string          `json:"session_id" format:"uuid"`
	Role      string          `json:"role" enum:"user,assistant,tool,system"`
	Content   json.RawMessage `json:"content" doc:"AI SDK ModelMessage content: a string or an array of parts."`
	CreatedAt string          `json:"created_at" format:"date-time"`
	RunID     *string         `json:"run_id" format:"uuid"`
	StepIndex *int32          `json:"step_index"`
	TokensIn  *int64          `json:"tokens_in"`
	TokensOut *int64          `json:"tokens_out"`
	Model     *string         `json:"model"`
	Simulated bool            `json:"simulated,omitempty" doc:"The simulator wrote the message, not a model."`
	ParentID  *string         `json:"parent_id" format:"uuid" doc:"The message that this one follows; null for the first one, and while it is queued."`
	Siblings  []string        `json:"siblings,omitempty" nullable:"false" doc:"Ids of all messages that follow the same message, this one among them, oldest first: versions of an edited message, or answers. Absent if it is the only one."`

	CreatedBy   *string `json:"created_by" format:"uuid" doc:"The member who sent a user message; null for other messages."`
	Interrupted bool    `json:"interrupted,omitempty" doc:"The run was stopped before the answer was complete."`
}

func viewMessage(m *agentv1.Message) Message {
	return Message{
		ID: m.GetId(), SessionID: m.GetSessionId(), Role: m.GetRole(), Content: json.RawMessage(m.GetContentJson()),
		CreatedAt: stamp(m.GetCreatedAt()), RunID: orNull(m.GetRunId()), StepIndex: m.StepIndex,
		TokensIn: m.TokensIn, TokensOut: m.TokensOut, Model: orNull(m.GetModel()), Simulated: m.GetSimulated(),
		ParentID: orNull(m.GetParentId()), Siblings: m.GetSiblings(), CreatedBy: orNull(m.GetCreatedBy()), Interrupted: m.GetInterrupted(),
	}
}

// history is a session's messages in one of two forms: ui if it is not nil.
type history struct {
	plain []Message
	ui    []dialect.UIMessage
}

// MarshalJSON implements json.Marshaler.
func (h history) MarshalJSON() ([]byte, error) {
	if h.ui != nil {
		return marshal(h.ui)
	}
	return marshal(h.plain)
}

// Schema implements huma.SchemaProvider.
func (history) Schema(r huma.Registry) *huma.Schema {
	return &huma.Schema{
		Description: "In the order of the conversation. With format=ui, UIMessages for useChat.",
		AnyOf: []*huma.Schema{ // not OneOf: an empty list has both forms
			{Type: huma.TypeArray, Items: r.Schema(reflect.TypeFor[Message](), true, "Message")},
			{Type: huma.TypeArray, Items: r.Schema(reflect.TypeFor[dialect.UIMessage](), true, "UIMessage")},
		},
	}
}

func viewHistory(in []*agentv1.Message, stopped []*agentv1.Run, ui int) (history, error) {
	if ui == 0 {
		return history{plain: each(in, viewMessage)}, nil
	}
	out, err := dialect.UIMessages(each(in, func(m *agentv1.Message) dialect.Stored {
		return dialect.Stored{
			ID: m.GetId(), Role: m.GetRole(), RunID: m.GetRunId(), Model: m.GetModel(), Simulated: m.GetSimulated(), CreatedBy: m.GetCreatedBy(),
			Content: json.RawMessage(m.GetContentJson()), CreatedAt: m.GetCreatedAt().AsTime(), Siblings: m.GetSiblings(),
		}
	}), ui)
	ends := make(map[string]*agentv1.Run, len(stopped))
	for _, r := range stopped {
		ends[r.GetId()] = r
	}
	for i := range out {
		if r := ends[out[i].ID]; r != nil {
			meta := out[i].Metadata
			meta.FinishReason, meta.FinishDetail, meta.Error = cmp.Or(r.GetFinishReason(), "error"), r.GetFinishDetail(), r.GetErrorMessage()
		}
	}
	return history{ui: out}, err
}

// Usage counts tokens as the provider does.
type Usage struct {
	InputTokens      int64 `json:"input_tokens" doc:"All input tokens, cached or not."`
	CacheReadTokens  int64 `json:"cache_read_tokens"`
	CacheWriteTokens int64 `json:"cache_write_tokens"`
	OutputTokens     int64 `json:"output_tokens" doc:"All output tokens, including reasoning."`
	ReasoningTokens  int64 `json:"reasoning_tokens"`
	Estimated        bool  `json:"estimated" doc:"Some counts are estimates, because the provider did not report its final count, for example when the answer was cut short."`
}

func viewUsage(u *agentv1.Usage) Usage {
	return Usage{u.GetInputTokens(), u.GetCacheReadTokens(), u.GetCacheWriteTokens(), u.GetOutputTokens(), u.GetReasoningTokens(), u.GetEstimated()}
}

// Run is the work on one user message.
type Run struct {
	ID            string    `json:"id" format:"uuid"`
	SessionID     string    `json:"session_id" format:"uuid"`
	Ordinal       int64     `json:"ordinal" doc:"The number of the run in its session, from 1."`
	State         string    `json:"state" enum:"queued,running,waiting,done,failed,cancelled"`
	UserMessageID string    `json:"user_message_id" format:"uuid"`
	CreatedBy     string    `json:"created_by" format:"uuid"`
	Provider      string    `json:"provider"`
	Model         string    `json:"model"`
	Simulated     bool      `json:"simulated" doc:"The simulator answers from a script; no model is called."`
	Steps         int32     `json:"steps" doc:"Number of committed steps."`
	Usage         Usage     `json:"usage"`
	Text          string    `json:"text" doc:"The text of the last step."`
	FinishReason  *string   `json:"finish_reason" doc:"Null until the run has ended."`
	FinishDetail  string    `json:"finish_detail,omitempty" doc:"For people: why the run ended, such as which budget is spent and when it begins anew."`
	Error         *RunError `json:"error,omitempty" doc:"Why the run failed; absent if it has not."`
	CostMicros    *int64    `json:"cost_micros" doc:"The list price of the model calls so far, those that broke off included, in millionths of a dollar. Null if a price is unknown, and where runs are not read by themselves."`
	LastEventID   *string   `json:"last_event_id" doc:"The newest committed event."`
	CreatedAt     string    `json:"created_at" format:"date-time"`
	StartedAt     *string   `json:"started_at" format:"date-time"`
	EndedAt       *string   `json:"ended_at" format:"date-time"`
}

// RunError says why a run failed.
type RunError struct {
	Message string  `json:"message"`
	Code    string  `json:"code,omitempty"`
	RetryAt *string `json:"retry_at,omitempty" format:"date-time" doc:"When the same may succeed, if the provider or the credential broker said so."`
}

func viewRun(r *agentv1.Run) Run {
	v := Run{
		ID: r.GetId(), SessionID: r.GetSessionId(), Ordinal: r.GetOrdinal(), State: cmp.Or(enumName(r.GetState()), "running"),
		UserMessageID: r.GetUserMessageId(), CreatedBy: r.GetCreatedBy(), Provider: r.GetProvider(), Model: r.GetModel(), Simulated: r.GetSimulated(),
		Steps: r.GetSteps(), Usage: viewUsage(r.GetUsage()), Text: r.GetText(), FinishReason: orNull(r.GetFinishReason()), FinishDetail: r.GetFinishDetail(),
		CreatedAt: stamp(r.GetCreatedAt()), StartedAt: stampOrNull(r.GetStartedAt()), EndedAt: stampOrNull(r.GetEndedAt()), CostMicros: r.CostMicros,
	}
	if r.GetErrorMessage() != "" || r.GetErrorCode() != "" {
		v.Error = &RunError{r.GetErrorMessage(), r.GetErrorCode(), stampOrNull(r.GetErrorRetryAt())}
	}
	if r.LastEvent != nil {
		v.LastEventID = new(feed.Position{Run: r.GetOrdinal(), Number: r.GetLastEvent()}.String())
	}
	return v
}

// Step is one model call and the tool calls that it requested.
type Step struct {
	Index        int32   `json:"index"`
	FinishReason string  `json:"finish_reason"`
	Usage        Usage   `json:"usage"`
	Wasted       Usage   `json:"wasted" doc:"Tokens of model calls that were interrupted. They are not included in the run's usage."`
	CommittedAt  *string `json:"committed_at" format:"date-time" doc:"Null until a model call has succeeded."`
	CostMicros   *int64  `json:"cost_micros" doc:"The list price in millionths of a dollar; null if unknown."`
	WastedMicros *int64  `json:"wasted_cost_micros" doc:"The list price of the interrupted calls; null if unknown or there are none."`
}

func viewStep(s *agentv1.Step) Step {
	return Step{s.GetIndex(), s.GetFinishReason(), viewUsage(s.GetUsage()), viewUsage(s.GetWasted()), stampOrNull(s.GetCommittedAt()), s.CostMicros, s.WastedCostMicros}
}

// ToolCall is one tool call of a run.
type ToolCall struct {
	StepIndex  int32           `json:"step_index"`
	ToolCallID string          `json:"tool_call_id"`
	ToolName   string          `json:"tool_name"`
	Args       json.RawMessage `json:"args"`
	Phase      string          `json:"phase" enum:"planned,dispatched,done"`
	State      *string         `json:"state" enum:"ok,error,unknown,cancelled" doc:"How the call ended; null before it has."`
	Result     *string         `json:"result" doc:"The result envelope, as JSON text."`
	DurationMS *int64          `json:"duration_ms"`
	ErrorType  *string         `json:"error_type"`
	PlannedAt  *string         `json:"planned_at" format:"date-time" doc:"When the answer that asked for the call was committed."`
	DoneAt     *string         `json:"done_at" format:"date-time"`
	Approval   *Approval       `json:"approval,omitempty" doc:"Present if a person is or was asked about the call."`

	ResultExpiresAt *string `json:"result_expires_at,omitempty" format:"date-time" doc:"Present while the call waits for the result of a client: when no result becomes an error."`
}

func viewToolCall(c *agentv1.ToolCall) ToolCall {
	v := ToolCall{
		StepIndex: c.GetStepIndex(), ToolCallID: c.GetToolCallId(), ToolName: c.GetToolName(),
		Args: objectOrEmpty(c.GetArgsJson()), Phase: c.GetPhase(), PlannedAt: stampOrNull(c.GetPlannedAt()), DoneAt: stampOrNull(c.GetDoneAt()),
	}
	if p := c.GetApproval(); p != nil {
		v.Approval = new(viewApproval(p))
	}
	v.ResultExpiresAt = stampOrNull(c.GetClientUntil())
	if o := c.GetOutcome(); o != nil {
		v.State, v.Result, v.ErrorType = new(cmp.Or(enumName(o.GetState()), "unknown")), new(o.GetResultJson()), orNull(o.GetErrorType())
		v.DurationMS = new(o.GetDurationMs())
	}
	return v
}

// Tool is a tool that a session can enable.
type Tool struct {
	Name              string          `json:"name"`
	Description       string          `json:"description"`
	InputSchema       json.RawMessage `json:"input_schema" doc:"A JSON Schema of type object."`
	Available         bool            `json:"available"`
	UnavailableReason *string         `json:"unavailable_reason"`
	ConnectURL        *string         `json:"connect_url" doc:"The page to connect the service that the tool needs; null if nothing is missing."`
	Source            string          `json:"source" doc:"built-in, provider, or the name of an MCP server."`
	NeedsApproval     bool            `json:"needs_approval"`
	ActsOutside       bool            `json:"acts_outside" doc:"It changes or sends something outside of Signalbox."`
	Effect            string          `json:"effect" enum:"pure,same_tx,keyed,verify,unsafe" doc:"What becomes of a call whose executor dies. pure: it changes nothing, and runs again. same_tx: it changes documents of the workspace together with the record of the call, and runs again without a second effect. keyed: it runs again with the same idempotency key. verify: its outcome is looked up before it runs again. unsafe: it is not repeated, and its outcome is unknown."`
	Always            bool            `json:"always" doc:"The tool is enabled in every session."`
}

func viewTool(t *toolv1.Tool) Tool {
	return Tool{
		Name: t.GetName(), Description: t.GetDescription(), InputSchema: objectOrEmpty(t.GetInputSchemaJson()),
		Available: t.GetAvailable(), UnavailableReason: orNull(t.GetUnavailableReason()), ConnectURL: orNull(t.GetConnectUrl()),
		Source: t.GetSource(), NeedsApproval: t.GetNeedsApproval(), Always: t.GetAlways(),
		ActsOutside: t.GetActsOutside(), Effect: cmp.Or(enumName(t.GetEffect()), "unsafe"),
	}
}

// Document is a document. Lists leave out its content.
type Document struct {
	ID          string  `json:"id" format:"uuid"`
	WorkspaceID string  `json:"workspace_id" format:"uuid"`
	Name        string  `json:"name"`
	Content     *string `json:"content,omitempty" doc:"Markdown."`
	CreatedBy   string  `json:"created_by" format:"uuid"`
	CreatedAt   string  `json:"created_at" format:"date-time"`
	UpdatedAt   string  `json:"updated_at" format:"date-time"`
	Sequence    int64   `json:"sequence" doc:"Increases with each change of the content."`
}

func viewDocument(d *documentv1.Document, content *string) Document {
	return Document{
		ID: d.GetId(), WorkspaceID: d.GetWorkspaceId(), Name: d.GetName(), Content: content, CreatedBy: d.GetCreatedBy(),
		CreatedAt: stamp(d.GetCreatedAt()), UpdatedAt: stamp(d.GetUpdatedAt()), Sequence: d.GetSequence(),
	}
}

// DocumentVersion is one entry of a document's history.
type DocumentVersion struct {
	Version   int64   `json:"version"`
	Label     *string `json:"label" doc:"What people call this version; null if it has no label. A version with one is kept as long as the document."`
	Operation string  `json:"operation" doc:"create, edit, append, replace, restore, undo or rename; write for live typing."`
	Name      string  `json:"name"`
	MemberID  *string `json:"member_id" format:"uuid"`
	RunID     *string `json:"run_id" format:"uuid" doc:"The agent's run that made the change, if one did."`
	CreatedAt string  `json:"created_at" format:"date-time"`
	Undoes    *int64  `json:"undoes" doc:"The version that this version undoes."`
	UndoneBy  *int64  `json:"undone_by" doc:"The version that undoes this version."`
	Undoable  bool    `json:"undoable" doc:"The version can be undone."`

	WordsAdded   *int32 `json:"words_added" doc:"With words: how many words the version before it did not have. Null if one of the two is too large."`
	WordsRemoved *int32 `json:"words_removed"`
}

func viewVersion(v *documentv1.Version) DocumentVersion {
	return DocumentVersion{
		v.GetVersion(), orNull(v.GetLabel()), v.GetOperation(), v.GetName(), orNull(v.GetAuthor().GetMemberId()), orNull(v.GetAuthor().GetRunId()), stamp(v.GetCreatedAt()),
		orNull(v.GetUndoes()), orNull(v.GetUndoneBy()), v.GetUndoable(), v.WordsAdded, v.WordsRemoved,
	}
}

// Success is the answer of an operation that returns nothing else.
type Success struct {
	Success bool `json:"success"`
}

func succeeded() *Success { return &Success{true} }

// enumName returns the public name of an enum's value: CONNECTION_STATE_CONNECTED is
// "connected". It is empty for UNSPECIFIED and for values that this version does not know.
func enumName(v protoreflect.Enum) string {
	values := v.Descriptor().Values()
	value, zero := values.ByNumber(v.Number()), values.ByNumber(0)
	if value == nil || value == zero {
		return ""
	}
	prefix := strings.TrimSuffix(string(zero.Name()), "UNSPECIFIED")
	return strings.ToLower(strings.TrimPrefix(string(value.Name()), prefix))
}

// micros is RFC 3339 with PostgreSQL's precision, microseconds.
const micros = "2006-01-02T15:04:05.000000Z07:00"

func stamp(t *timestamppb.Timestamp) string { return t.AsTime().Format(micros) }

func stampOrNull(t *timestamppb.Timestamp) *string {
	if t == nil {
		return nil
	}
	return new(stamp(t))
}

func timeStamp(t time.Time) string { return t.UTC().Format(micros) }

func orNull[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

func objectOrEmpty(s string) json.RawMessage {
	if !json.Valid([]byte(s)) {
		return json.RawMessage("{}")
	}
	return json.RawMessage(s)
}
