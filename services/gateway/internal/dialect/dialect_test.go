package dialect_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	runv1 "signalbox.dev/proto/signalbox/run/v1"
	"signalbox.dev/services/gateway/internal/dialect"
)

func TestPlain(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		in   *runv1.Event
		want string
	}{
		{"text", &runv1.Event{Body: &runv1.Event_TextDelta{TextDelta: &runv1.TextDelta{Delta: "Hi \"you\"\n\t\r\x00\x7f ü 🙂"}}}, `event: text-delta
data: {"type":"text-delta","delta":"Hi \"you\"\n\t\r\u0000\u007f ü 🙂"}
id: 3-7

`},
		{"reasoning", &runv1.Event{Body: &runv1.Event_ReasoningDelta{ReasoningDelta: &runv1.ReasoningDelta{Delta: "hm"}}}, `event: reasoning-delta
data: {"type":"reasoning-delta","delta":"hm"}
id: 3-7

`},
		{"call start", &runv1.Event{Body: &runv1.Event_ToolCallStart{ToolCallStart: &runv1.ToolCallStart{ToolCallId: "c1", ToolName: "doc_create"}}}, `event: tool-call-start
data: {"type":"tool-call-start","toolCallId":"c1","toolName":"doc_create"}
id: 3-7

`},
		{"call delta", &runv1.Event{Body: &runv1.Event_ToolCallDelta{ToolCallDelta: &runv1.ToolCallDelta{ToolCallId: "c1", ToolName: "doc_create", Delta: `{"na`}}}, `event: tool-call-delta
data: {"type":"tool-call-delta","toolCallId":"c1","toolName":"doc_create","delta":"{\"na"}
id: 3-7

`},
		{"args are an object on one line", &runv1.Event{Body: &runv1.Event_ToolCallComplete{ToolCallComplete: &runv1.ToolCallComplete{ToolCallId: "c1", ToolName: "doc_create", ArgsJson: "{\n  \"name\": \"A\"\r\n}"}}}, `event: tool-call-complete
data: {"type":"tool-call-complete","toolCallId":"c1","toolName":"doc_create","args":{"name":"A"}}
id: 3-7

`},
		{"args that are no JSON", &runv1.Event{Body: &runv1.Event_ToolCallComplete{ToolCallComplete: &runv1.ToolCallComplete{ToolCallId: "c1", ToolName: "x", ArgsJson: `{"a":`}}}, `event: tool-call-complete
data: {"type":"tool-call-complete","toolCallId":"c1","toolName":"x","args":{}}
id: 3-7

`},
		{"result is a string of JSON", &runv1.Event{Body: &runv1.Event_ToolResult{ToolResult: &runv1.ToolResult{ToolCallId: "c1", ToolName: "x", ResultJson: `{"error":"no"}`, IsError: true}}}, `event: tool-result
data: {"type":"tool-result","toolCallId":"c1","toolName":"x","result":"{\"error\":\"no\"}","isError":true}
id: 3-7

`},
		{"the time of a call", &runv1.Event{Time: timestamppb.New(time.Unix(1, 5000000)), Body: &runv1.Event_ToolCallComplete{ToolCallComplete: &runv1.ToolCallComplete{ToolCallId: "c1", ToolName: "x"}}}, `event: tool-call-complete
data: {"type":"tool-call-complete","toolCallId":"c1","toolName":"x","args":{},"at":"1970-01-01T00:00:01.005Z"}
id: 3-7

`},
		{"how long a tool ran", &runv1.Event{Body: &runv1.Event_ToolResult{ToolResult: &runv1.ToolResult{ToolCallId: "c1", ToolName: "x", ResultJson: "1", DurationMs: 230}}}, `event: tool-result
data: {"type":"tool-result","toolCallId":"c1","toolName":"x","result":"1","isError":false,"durationMs":230}
id: 3-7

`},
		{"client tool", &runv1.Event{Body: &runv1.Event_ToolClientRequest{ToolClientRequest: &runv1.ToolClientRequest{ToolCallId: "c1", ToolName: "x", ArgsJson: "{}", Reason: "r", ExpiresAt: timestamppb.New(time.Unix(0, 0))}}}, `event: tool-client-request
data: {"type":"tool-client-request","toolCallId":"c1","toolName":"x","args":{},"reason":"r","expiresAt":"1970-01-01T00:00:00Z","runId":"","stepIndex":0}
id: 3-7

`},
		{"waiting for a client", &runv1.Event{Body: &runv1.Event_Waiting{Waiting: &runv1.Waiting{Reason: "r", ForClient: true}}}, `event: waiting
data: {"type":"waiting","reason":"r","forClient":true}
id: 3-7

`},
		{"waiting for a runner", &runv1.Event{Body: &runv1.Event_Waiting{Waiting: &runv1.Waiting{Reason: "r", ForRunner: true}}}, `event: waiting
data: {"type":"waiting","reason":"r","forRunner":true}
id: 3-7

`},
		{"approval", &runv1.Event{Body: &runv1.Event_ToolApprovalRequest{ToolApprovalRequest: &runv1.ToolApprovalRequest{ToolCallId: "c1", ToolName: "x", ArgsJson: "{}"}}}, `event: tool-approval-request
data: {"type":"tool-approval-request","toolCallId":"c1","toolName":"x","args":{},"runId":""}
id: 3-7

`},
		{"source", &runv1.Event{Body: &runv1.Event_Source{Source: &runv1.Source{Url: "https://a", Title: "A"}}}, `event: source
data: {"type":"source","url":"https://a","title":"A"}
id: 3-7

`},
		{"citation", &runv1.Event{Body: &runv1.Event_Citation{Citation: &runv1.Citation{Url: "https://a", Text: "It is \"so\"."}}}, `event: citation
data: {"type":"citation","url":"https://a","text":"It is \"so\"."}
id: 3-7

`},
		{"citation of a range", &runv1.Event{Body: &runv1.Event_Citation{Citation: &runv1.Citation{Url: "https://a", End: 9}}}, `event: citation
data: {"type":"citation","url":"https://a","text":"","end":9}
id: 3-7

`},
		{"step complete", &runv1.Event{StepIndex: 2, Body: &runv1.Event_StepComplete{StepComplete: &runv1.StepComplete{TokensIn: 5, TokensOut: 6, FinishReason: "tool-calls", MessageId: "m"}}}, `event: step-complete
data: {"type":"step-complete","stepIndex":2,"tokensIn":5,"tokensOut":6,"finishReason":"tool-calls","messageId":"m"}
id: 3-7

`},
		{"tool progress", &runv1.Event{Body: &runv1.Event_ToolProgress{ToolProgress: &runv1.ToolProgress{ToolCallId: "c", ToolName: "t", Message: "a \"b\"", Percent: new(int32(0))}}}, `event: tool-progress
data: {"type":"tool-progress","toolCallId":"c","toolName":"t","message":"a \"b\"","percent":0}
id: 3-7

`},
		{"step retry", &runv1.Event{StepIndex: 2, Body: &runv1.Event_StepRetry{StepRetry: &runv1.StepRetry{Reason: "gone"}}}, `event: step-retry
data: {"type":"step-retry","stepIndex":2,"reason":"gone"}
id: 3-7

`},
		{"compaction", &runv1.Event{StepIndex: 2, Body: &runv1.Event_Compaction{Compaction: &runv1.Compaction{Messages: 12, Summary: "They met."}}}, `event: compaction
data: {"type":"compaction","stepIndex":2,"messages":12,"summary":"They met."}
id: 3-7

`},
		{"session title", &runv1.Event{Body: &runv1.Event_SessionTitle{SessionTitle: &runv1.SessionTitle{Title: "Tea"}}}, `event: session-title
data: {"type":"session-title","title":"Tea"}
id: 3-7

`},
		{"waiting", &runv1.Event{Body: &runv1.Event_Waiting{Waiting: &runv1.Waiting{Reason: "limited", Until: &timestamppb.Timestamp{Seconds: 1763913600, Nanos: 250e6}}}}, `event: waiting
data: {"type":"waiting","reason":"limited","until":"2025-11-23T16:00:00.25Z"}
id: 3-7

`},
		{"waiting for who knows how long", &runv1.Event{Body: &runv1.Event_Waiting{Waiting: &runv1.Waiting{Reason: "limited"}}}, `event: waiting
data: {"type":"waiting","reason":"limited"}
id: 3-7

`},
		{"user message", &runv1.Event{RunId: "r", Body: &runv1.Event_UserMessage{UserMessage: &runv1.UserMessage{MessageId: "m", CreatedBy: "u", ContentJson: `"hi"`}}}, `event: user-message
data: {"type":"user-message","messageId":"m","content":"hi","createdBy":"u","runId":"r"}
id: 3-7

`},
		{"run start", &runv1.Event{RunId: "r", Body: &runv1.Event_RunStart{RunStart: &runv1.RunStart{Provider: "p", Model: "m", Simulated: true}}}, `event: run-start
data: {"type":"run-start","runId":"r","model":"m","provider":"p","simulated":true}
id: 3-7

`},
		{"done", &runv1.Event{RunId: "r", Body: &runv1.Event_Done{Done: &runv1.Done{Text: "s\n\nt", FinalText: "t", Simulated: true, TotalTokensIn: 1, TotalTokensOut: 2, Steps: 3, FinishReason: "stop"}}}, `event: done
data: {"type":"done","text":"s\n\nt","final_text":"t","totalTokensIn":1,"totalTokensOut":2,"steps":3,"finishReason":"stop","runId":"r","simulated":true}
id: 3-7

`},
		{"done after a step without text", &runv1.Event{RunId: "r", Body: &runv1.Event_Done{Done: &runv1.Done{Text: "s", Steps: 2, FinishReason: "cancelled"}}}, `event: done
data: {"type":"done","text":"s","final_text":"","totalTokensIn":0,"totalTokensOut":0,"steps":2,"finishReason":"cancelled","runId":"r","simulated":false}
id: 3-7

`},
		{"error", &runv1.Event{RunId: "r", Body: &runv1.Event_Error{Error: &runv1.Error{Message: "no", Code: "X"}}}, `event: error
data: {"type":"error","error":"no","code":"X","runId":"r"}
id: 3-7

`},
		{"error without code", &runv1.Event{RunId: "r", Body: &runv1.Event_Error{Error: &runv1.Error{Message: "no"}}}, `event: error
data: {"type":"error","error":"no","runId":"r"}
id: 3-7

`},
		{"a body of the future", &runv1.Event{}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.in.RunOrdinal, tt.in.Number = 3, 7
			got := string(dialect.Plain{}.Append(nil, tt.in))
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("Append(%v) differs (-want +got):\n%s", tt.in, diff)
			}
		})
	}
}

func FuzzPlainText(f *testing.F) {
	f.Add("a\nb", "{}")
	f.Add("\xff\x00\u2028", "{\"a\":\n1}")
	f.Fuzz(func(t *testing.T, text, args string) {
		for _, e := range []*runv1.Event{
			{Body: &runv1.Event_TextDelta{TextDelta: &runv1.TextDelta{Delta: text}}},
			{Body: &runv1.Event_ToolCallComplete{ToolCallComplete: &runv1.ToolCallComplete{ToolName: text, ArgsJson: args}}},
			{Body: &runv1.Event_ToolResult{ToolResult: &runv1.ToolResult{ResultJson: text}}},
			{Body: &runv1.Event_UserMessage{UserMessage: &runv1.UserMessage{ContentJson: args}}},
		} {
			lines := strings.Split(string(dialect.Plain{}.Append(nil, e)), "\n")
			if len(lines) != 5 || lines[3] != "" || lines[4] != "" {
				t.Fatalf("Append(%v) = %q, want three lines and a blank one", e, lines)
			}
			var got map[string]any
			data := strings.TrimPrefix(lines[1], "data: ")
			if err := json.Unmarshal([]byte(data), &got); err != nil {
				t.Fatalf("data %q: %v", data, err)
			}
			if want := strings.ToValidUTF8(text, "\ufffd"); e.GetTextDelta() != nil && len(want) == len(text) && got["delta"] != want {
				t.Fatalf("delta = %q, want %q", got["delta"], want)
			}
		}
	})
}

func TestUIMessages(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 21, 8, 0, 0, 0, time.UTC)
	in := []dialect.Stored{
		{ID: "s", Role: "system", Content: json.RawMessage(`"be kind"`), CreatedAt: at},
		{ID: "u", Role: "user", Content: json.RawMessage(`[{"type":"text","text":"see"},{"type":"file","mediaType":"image/png","data":"aGk=","filename":"a.png"},{"type":"file","mediaType":"image/png","data":"https://x/y.png"}]`), CreatedAt: at},
		{ID: "a1", Role: "assistant", RunID: "r", Model: "m", CreatedAt: at, Content: json.RawMessage(`[
			{"type":"reasoning","text":"think","providerOptions":{"anthropic":{"signature":"SIG"}}},
			{"type":"text","text":"Creating."},
			{"type":"tool-call","toolCallId":"c1","toolName":"doc_create","input":{"title":"A"}},
			{"type":"tool-call","toolCallId":"c2","toolName":"doc_read","input":{}},
			{"type":"tool-call","toolCallId":"w","toolName":"web_search","input":{"query":"x"},"providerExecuted":true},
			{"type":"tool-call","toolCallId":"p","toolName":"browser_screenshot","input":{}},
			{"type":"tool-result","toolCallId":"w","toolName":"web_search","output":{"type":"json","value":[1,{"url":"https://a","title":"A"},{"url":"https://b","title":"B"}]}}]`)},
		{ID: "t1", Role: "tool", RunID: "r", CreatedAt: at, Content: json.RawMessage(`[
			{"type":"tool-result","toolCallId":"c1","toolName":"doc_create","output":{"type":"json","value":[{"url":"https://no.source","id":"d1"}]}},
			{"type":"tool-result","toolCallId":"c2","toolName":"doc_read","output":{"type":"error-text","value":"not found"}},
			{"type":"tool-result","toolCallId":"p","toolName":"browser_screenshot","output":{"type":"content","value":[{"type":"text","text":"{\"result\":\"seen\"}"},{"type":"file-data","data":"aGk=","mediaType":"image/jpeg"}]}},
			{"type":"tool-result","toolCallId":"nobody","toolName":"doc_read","output":{"type":"text","value":"x"}}]`)},
		{ID: "a2", Role: "assistant", RunID: "r", Model: "m", CreatedAt: at, Content: json.RawMessage(`[
			{"type":"text","text":"Done","providerOptions":{"anthropic":{"citations":[{"cited_text":"x"},{"url":"https://c","title":"C"},{"url":"https://c","title":"C"}]}}},
			{"type":"text","text":".","providerOptions":{"openai":{"annotations":[7]}}},
			{"type":"text","text":"","providerOptions":{"openai":{"annotations":[{"type":"url_citation","url_citation":{"url":"https://d"}},{}]}}}]`)},
		{ID: "u2", Role: "user", RunID: "r2", Content: json.RawMessage(`"more"`), CreatedAt: at},
		{ID: "a3", Role: "assistant", RunID: "r2", Simulated: true, Content: json.RawMessage(`"ok"`), CreatedAt: at},
		{ID: "u3", Role: "user", RunID: "r2", Content: json.RawMessage(`"shorter"`), CreatedAt: at},
		{ID: "a4", Role: "assistant", RunID: "r2", Simulated: true, Content: json.RawMessage(`"o"`), CreatedAt: at},
	}
	messages, err := dialect.UIMessages(in, 5)
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.MarshalIndent(messages, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	var g, w any
	const want = `[
{"id":"s","role":"system","metadata":{"createdAt":"2026-11-21T08:00:00Z"},"parts":[{"type":"text","text":"be kind","state":"done"}]},
{"id":"u","role":"user","metadata":{"createdAt":"2026-11-21T08:00:00Z"},"parts":[
 {"type":"text","text":"see","state":"done"},
 {"type":"file","mediaType":"image/png","filename":"a.png","url":"data:image/png;base64,aGk="},
 {"type":"file","mediaType":"image/png","url":"https://x/y.png"}]},
{"id":"r","role":"assistant","metadata":{"createdAt":"2026-11-21T08:00:00Z","runId":"r","model":"m","messageId":"a1"},"parts":[
 {"type":"step-start"},
 {"type":"reasoning","text":"think","state":"done","providerMetadata":{"anthropic":{"signature":"SIG"}}},
 {"type":"text","text":"Creating.","state":"done"},
 {"type":"tool-doc_create","toolCallId":"c1","state":"output-available","input":{"title":"A"},"output":[{"url":"https://no.source","id":"d1"}]},
 {"type":"tool-doc_read","toolCallId":"c2","state":"output-error","input":{},"errorText":"not found"},
 {"type":"tool-web_search","toolCallId":"w","state":"output-available","input":{"query":"x"},"output":[1,{"url":"https://a","title":"A"},{"url":"https://b","title":"B"}],"providerExecuted":true},
 {"type":"tool-browser_screenshot","toolCallId":"p","state":"output-available","input":{},"output":{"result":"seen","image":{"type":"file","mediaType":"image/jpeg","data":"aGk="}}},
 {"type":"source-url","sourceId":"source-0","url":"https://a","title":"A"},
 {"type":"source-url","sourceId":"source-1","url":"https://b","title":"B"},
 {"type":"step-start"},
 {"type":"text","text":"Done","state":"done","providerMetadata":{"anthropic":{"citations":[{"cited_text":"x"},{"url":"https://c","title":"C"},{"url":"https://c","title":"C"}]}}},
 {"type":"source-url","sourceId":"source-2","url":"https://c","title":"C"},
 {"type":"text","text":".","state":"done","providerMetadata":{"openai":{"annotations":[7]}}},
 {"type":"text","text":"","state":"done","providerMetadata":{"openai":{"annotations":[{"type":"url_citation","url_citation":{"url":"https://d"}},{}]}}},
 {"type":"source-url","sourceId":"source-3","url":"https://d"}]},
{"id":"u2","role":"user","metadata":{"createdAt":"2026-11-21T08:00:00Z"},"parts":[{"type":"text","text":"more","state":"done"}]},
{"id":"r2","role":"assistant","metadata":{"createdAt":"2026-11-21T08:00:00Z","runId":"r2","simulated":true,"messageId":"a3"},"parts":[{"type":"step-start"},{"type":"text","text":"ok","state":"done"},
 {"type":"data-steering-message","id":"u3","data":{"messageId":"u3","content":"shorter"}},{"type":"step-start"},{"type":"text","text":"o","state":"done"}]}
]`
	if err := json.Unmarshal(got, &g); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(want), &w); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(w, g); diff != "" {
		t.Errorf("UIMessages differ (-want +got):\n%s", diff)
	}
}

func TestUIMessagesRefusesWhatIsNoContent(t *testing.T) {
	t.Parallel()
	if _, err := dialect.UIMessages([]dialect.Stored{{ID: "x", Role: "user", Content: json.RawMessage(`{"a":1}`)}}, 5); err == nil {
		t.Error("UIMessages of an object = nil error, want one")
	}
}

func BenchmarkPlain(b *testing.B) {
	e := &runv1.Event{RunOrdinal: 3, Number: 117, Body: &runv1.Event_TextDelta{TextDelta: &runv1.TextDelta{Delta: "a few words of an answer, as a model sends them"}}}
	b.ReportAllocs()
	for b.Loop() {
		dialect.Plain{}.Append(nil, e)
	}
}
