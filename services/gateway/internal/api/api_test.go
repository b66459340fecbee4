package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	runv1 "signalbox.dev/proto/signalbox/run/v1"
	"signalbox.dev/services/gateway/internal/dialect"
)

func TestDeliveryOf(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		accept, prefer string
		want           delivery
	}{
		{"", "", streamed},
		{"*/*", "", streamed},
		{"text/event-stream", "", streamed},
		{"application/json", "", waited},
		{"Application/JSON; charset=utf-8", "", waited},
		{"application/json, text/plain, */*", "", waited},
		{"application/json, text/event-stream", "", streamed},
		{"application/json, text/event-stream;q=0.5", "", waited},
		{"application/json;q=0.1, text/event-stream;q=0.5", "", streamed},
		{"application/json;q=nonsense", "", waited},
		{"application/json", "respond-async", async},
		{"", "wait=10, Respond-Async; foo=1", async},
		{"", "return=minimal", streamed},
	} {
		if got := deliveryOf(tt.accept, tt.prefer); got != tt.want {
			t.Errorf("deliveryOf(%q, %q) = %v, want %v", tt.accept, tt.prefer, got, tt.want)
		}
	}
}

func TestRunFailure(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]int{
		"": 500, "INTERNAL": 500, "MODEL_OVERLOADED": 503, "MODEL_NETWORK": 503, "MODEL_RATE_LIMIT": 429, "MODEL_QUOTA": 429,
		"MODEL_INVALID_REQUEST": 400, "MODEL_TOO_LARGE": 400, "MODEL_NOT_FOUND": 400, "MODEL_CONTEXT_LENGTH": 400, "UNKNOWN_MODEL": 400, "UNKNOWN_PROVIDER": 400,
	} {
		if e, ok := errors.AsType[*Error](runFailure(&runv1.Error{Code: code, Message: "m"})); ok {
			if e.status != want {
				t.Errorf("runFailure(%q) = %d, want %d", code, e.status, want)
			}
			continue
		}
		if got := publicError(runFailure(&runv1.Error{Code: code, Message: "m"})).status; got != want {
			t.Errorf("runFailure(%q) = %d, want %d", code, got, want)
		}
	}
}

// TestEventsAreDescribed checks that the types of the OpenAPI document and the dialect's events
// have the same fields.
func TestEventsAreDescribed(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		in   *runv1.Event
		into any
	}{
		{&runv1.Event{Body: &runv1.Event_TextDelta{TextDelta: &runv1.TextDelta{}}}, &TextDeltaEvent{}},
		{&runv1.Event{Body: &runv1.Event_ReasoningDelta{ReasoningDelta: &runv1.ReasoningDelta{}}}, &ReasoningDeltaEvent{}},
		{&runv1.Event{Body: &runv1.Event_ToolCallStart{ToolCallStart: &runv1.ToolCallStart{}}}, &ToolCallStartEvent{}},
		{&runv1.Event{Body: &runv1.Event_ToolCallDelta{ToolCallDelta: &runv1.ToolCallDelta{}}}, &ToolCallDeltaEvent{}},
		{&runv1.Event{Time: &timestamppb.Timestamp{Nanos: 1}, Body: &runv1.Event_ToolCallComplete{ToolCallComplete: &runv1.ToolCallComplete{
			ArgsJson: `{"a":1}`,
		}}}, &ToolCallCompleteEvent{}},
		{&runv1.Event{Body: &runv1.Event_ToolApprovalRequest{ToolApprovalRequest: &runv1.ToolApprovalRequest{
			ArgsJson: `{"a":1}`, Reason: "r", OutcomeUnknown: true, ExpiresAt: &timestamppb.Timestamp{Nanos: 1},
		}}}, &ToolApprovalRequestEvent{}},
		{&runv1.Event{Body: &runv1.Event_ToolApprovalResponse{ToolApprovalResponse: &runv1.ToolApprovalResponse{
			Decision: "refused", Reason: "r", DecidedBy: "m",
		}}}, &ToolApprovalResponseEvent{}},
		{&runv1.Event{Body: &runv1.Event_ToolResult{ToolResult: &runv1.ToolResult{ResultJson: `{}`, DurationMs: 1}}}, &ToolResultEvent{}},
		{&runv1.Event{Body: &runv1.Event_Source{Source: &runv1.Source{}}}, &SourceEvent{}},
		{&runv1.Event{Body: &runv1.Event_Citation{Citation: &runv1.Citation{End: 1}}}, &CitationEvent{}},
		{&runv1.Event{Body: &runv1.Event_StepComplete{StepComplete: &runv1.StepComplete{MessageId: "m"}}}, &StepCompleteEvent{}},
		{&runv1.Event{Body: &runv1.Event_StepRetry{StepRetry: &runv1.StepRetry{}}}, &StepRetryEvent{}},
		{&runv1.Event{Body: &runv1.Event_Compaction{Compaction: &runv1.Compaction{}}}, &CompactionEvent{}},
		{&runv1.Event{Body: &runv1.Event_SessionTitle{SessionTitle: &runv1.SessionTitle{}}}, &SessionTitleEvent{}},
		{&runv1.Event{Body: &runv1.Event_Waiting{Waiting: &runv1.Waiting{Until: &timestamppb.Timestamp{Nanos: 1}, ForPerson: true, ForRunner: true}}}, &WaitingEvent{}},
		{&runv1.Event{Body: &runv1.Event_UserMessage{UserMessage: &runv1.UserMessage{ContentJson: `"hi"`}}}, &UserMessageEvent{}},
		{&runv1.Event{Body: &runv1.Event_RunStart{RunStart: &runv1.RunStart{}}}, &RunStartEvent{}},
		{&runv1.Event{Body: &runv1.Event_Done{Done: &runv1.Done{MessageId: "m"}}}, &DoneEvent{}},
		{&runv1.Event{Body: &runv1.Event_Error{Error: &runv1.Error{Code: "X", RetryAt: &timestamppb.Timestamp{Nanos: 1}}}}, &ErrorEvent{}},
	} {
		_, data, ok := bytes.Cut(dialect.Plain{}.Append(nil, tt.in), []byte("data: "))
		data, _, ok2 := bytes.Cut(data, []byte("\n"))
		if !ok || !ok2 {
			t.Fatalf("%T: no data", tt.into)
		}
		dec := json.NewDecoder(bytes.NewReader(data))
		dec.DisallowUnknownFields()
		if err := dec.Decode(tt.into); err != nil {
			t.Errorf("%T: %s: %v", tt.into, data, err)
			continue
		}
		again, err := json.Marshal(tt.into)
		if err != nil {
			t.Fatal(err)
		}
		var want, got map[string]any
		if err := json.Unmarshal(data, &want); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(again, &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%T differs from what is sent (-sent +described):\n%s", tt.into, diff)
		}
	}
}

func FuzzContent(f *testing.F) {
	for _, s := range []string{`"hi"`, `[{"type":"text","text":"x"}]`, `[{"type":"file","mediaType":"a/b","data":"x"}]`, `[null]`, `{}`, `[[]]`, ``} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if !json.Valid([]byte(s)) {
			return // decodeJSON refuses it
		}
		if err := (Content{json.RawMessage(s)}).check(); err == nil && s[0] != '"' && s[0] != '[' && strings.TrimLeft(s, " \t\r\n") == s {
			t.Errorf("check(%s) = nil, want an error: neither a string nor an array", s)
		}
	})
}
