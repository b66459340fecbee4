package archive

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
)

// A second claim takes over in the middle of the second step's answer, and an outdated claim
// still writes an event.
func TestTrace(t *testing.T) {
	t.Parallel()
	delta := &runv1.Event_TextDelta{TextDelta: &runv1.TextDelta{Delta: "x"}}
	tr := &trace{out: &agentv1.GetTraceResponse{}, number: -1}
	for _, e := range []*runv1.Event{
		{Epoch: 1, Number: 0, Body: &runv1.Event_UserMessage{UserMessage: &runv1.UserMessage{}}},
		{Epoch: 1, Number: 1, Body: &runv1.Event_RunStart{RunStart: &runv1.RunStart{Model: "m"}}},
		{Epoch: 1, Number: 2, Body: &runv1.Event_ToolCallStart{ToolCallStart: &runv1.ToolCallStart{ToolCallId: "c", ToolName: "doc_read"}}},
		{Epoch: 1, Number: 3, Body: &runv1.Event_ToolCallComplete{ToolCallComplete: &runv1.ToolCallComplete{ToolCallId: "c", ToolName: "doc_read"}}},
		{Epoch: 1, Number: 4, Body: &runv1.Event_Waiting{Waiting: &runv1.Waiting{Reason: "a person", ForPerson: true}}},
		{Epoch: 1, Number: 5, Body: &runv1.Event_ToolResult{ToolResult: &runv1.ToolResult{ToolCallId: "c", ToolName: "doc_read"}}},
		{Epoch: 1, Number: 6, Body: &runv1.Event_StepComplete{StepComplete: &runv1.StepComplete{FinishReason: "tool-calls"}}},
		{Epoch: 1, Number: 7, StepIndex: 1, Body: delta},
		{Epoch: 1, Number: 8, StepIndex: 1, Body: delta},
		{Epoch: 2, Number: 9, StepIndex: 1, Body: &runv1.Event_StepRetry{StepRetry: &runv1.StepRetry{Reason: "taken over"}}},
		{Epoch: 1, Number: 10, StepIndex: 1, Body: delta}, // outdated
		{Epoch: 2, Number: 9, StepIndex: 1, Body: delta},  // a duplicate
		{Epoch: 2, Number: 10, StepIndex: 1, Body: delta},
		{Epoch: 2, Number: 11, StepIndex: 1, Body: &runv1.Event_StepComplete{StepComplete: &runv1.StepComplete{FinishReason: "stop"}}},
		{Epoch: 2, Number: 12, Body: &runv1.Event_Done{Done: &runv1.Done{FinishReason: "stop"}}},
	} {
		e.Time = timestamppb.New(time.Unix(e.GetNumber(), 0))
		tr.add(e)
	}
	var got []string
	for _, a := range tr.out.GetAttempts() {
		got = append(got, fmt.Sprintf("step %d claim %d: %d %d %d %s", a.GetStepIndex(), a.GetEpoch(),
			a.GetStartedAt().GetSeconds(), a.GetFirstOutputAt().GetSeconds(), a.GetEndedAt().GetSeconds(), a.GetVoidReason()))
	}
	for _, m := range tr.out.GetMoments() {
		got = append(got, strings.TrimSpace(fmt.Sprintf("%d×%d %s %s", m.GetNumber(), m.GetCount(), m.GetKind(), m.GetDetail())))
	}
	want := []string{
		"step 0 claim 1: 1 2 3 ", "step 1 claim 1: 6 7 8 taken over", "step 1 claim 2: 9 10 11 ",
		"0×1 user_message", "1×1 run_start m", "2×1 tool_call_start doc_read", "3×1 tool_call_complete doc_read", "4×1 parked a person", "5×1 tool_result doc_read",
		"6×1 step_complete tool-calls", "7×2 text_delta", "9×1 step_retry taken over", "10×1 text_delta", "11×1 step_complete stop", "12×1 done stop",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("trace (-want +got):\n%s", diff)
	}
}
