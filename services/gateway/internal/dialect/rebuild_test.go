package dialect_test

import (
	"encoding/json"
	"strings"
	"testing"

	runv1 "signalbox.dev/proto/signalbox/run/v1"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/gateway/internal/dialect"
)

// A run that waits for the second time in a step: its stream is rebuilt with the results so far,
// which no message has, and ends at each of the pauses.
func TestRebuildSecondWait(t *testing.T) {
	t.Parallel()
	stored := []dialect.Stored{
		{ID: "u", Role: "user", Content: json.RawMessage(`"go"`)},
		{ID: "m", Role: "assistant", Content: json.RawMessage(`[
			{"type":"tool-call","toolCallId":"a","toolName":"read","input":{}},
			{"type":"tool-call","toolCallId":"b","toolName":"locate","input":{}},
			{"type":"tool-call","toolCallId":"c","toolName":"send","input":{}}]`)},
	}
	outcome := func(result string) *toolv1.Outcome {
		return &toolv1.Outcome{State: toolv1.OutcomeState_OUTCOME_STATE_OK, ResultJson: result}
	}
	calls := []dialect.Asked{
		{Call: "a", Tool: "read", Args: "{}", Result: outcome(`{"result":"text"}`)},
		{Call: "b", Tool: "locate", Args: "{}", Question: dialect.OfClient, Decision: "answered", Result: outcome(`{"output":"Paris"}`)},
		{Call: "c", Tool: "send", Args: "{}", Question: dialect.OfPerson},
	}
	const paused = 9
	of := func(r dialect.Reader, stored []dialect.Stored, calls []dialect.Asked, waits int64) (string, bool) {
		t.Helper()
		events, err := dialect.Rebuild("run", 1, stored, 4, calls, waits)
		if err != nil {
			t.Fatal(err)
		}
		r.Fold, r.Resumed = dialect.Private(dialect.UIStream{Version: 7}), paused-1
		got, over := read(&r, events, make([][]dialect.Encoding, len(events)))
		return string(got), over
	}
	a, b, c := `"tool-output-available","toolCallId":"a"`, `"tool-output-available","toolCallId":"b","output":"Paris"`, `"tool-approval-request"`
	all, over := of(dialect.Reader{}, stored, calls, paused)
	for _, want := range []string{a, b, c, `{"signalbox":{"stepIndex":4}}`} {
		if !strings.Contains(all, want) {
			t.Errorf("the whole stream lacks %s:\n%s", want, all)
		}
	}
	rest, restOver := of(dialect.Reader{AfterCall: "b"}, stored, calls, paused)
	if strings.Contains(rest, a) || !strings.Contains(rest, b) || strings.Contains(rest, c) {
		t.Errorf("after b's result, the stream is\n%s\nwant b's result only", rest)
	}
	if !over || !restOver {
		t.Errorf("the streams end = %v, %v, want both to end, because the run waits", over, restOver)
	}

	// All are answered, and the run goes on: messages have the results.
	calls[2].Decision, calls[2].Result = "approved", outcome(`{"result":"sent"}`)
	later := append(stored, dialect.Stored{ID: "t", Role: "tool", Content: json.RawMessage(`[
		{"type":"tool-result","toolCallId":"a","toolName":"read","output":{"type":"json","value":{"result":"text"}}},
		{"type":"tool-result","toolCallId":"b","toolName":"locate","output":{"type":"json","value":{"output":"Paris"}}},
		{"type":"tool-result","toolCallId":"c","toolName":"send","output":{"type":"json","value":{"result":"sent"}}}]`)},
		dialect.Stored{ID: "n", Role: "assistant", Content: json.RawMessage(`"Done."`)})
	all, over = of(dialect.Reader{}, later, calls, -1)
	if over || strings.Count(all, `"tool-output-available"`) != 3 || strings.Count(all, `"tool-input-available"`) != 3 || !strings.Contains(all, "Done.") {
		t.Errorf("with the next step, the stream is\n%s\nended: %v; want each call and result once, and no end", all, over)
	}
	var last *runv1.Event
	if events, err := dialect.Rebuild("run", 1, later, 4, calls, -1); err == nil {
		last = events[len(events)-1]
	}
	if last.GetStepIndex() != 5 {
		t.Errorf("the step after step 4 has the index %d", last.GetStepIndex())
	}
}
