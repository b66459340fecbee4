package run

import (
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
)

// Enums are stored by their lower-case names without prefix, such as same_tx and ok.

func effectName(e toolv1.Effect) string {
	return strings.ToLower(strings.TrimPrefix(e.String(), "EFFECT_"))
}

func effectOf(name string) toolv1.Effect {
	return toolv1.Effect(toolv1.Effect_value["EFFECT_"+strings.ToUpper(name)])
}

func outcomeName(s toolv1.OutcomeState) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "OUTCOME_STATE_"))
}

func outcomeOf(name string) toolv1.OutcomeState {
	return toolv1.OutcomeState(toolv1.OutcomeState_value["OUTCOME_STATE_"+strings.ToUpper(name)])
}

func work(r *Run, step int, call Call) *toolv1.Call {
	return &toolv1.Call{
		Key: call.Key.String(), WorkspaceId: r.Workspace.String(), SessionId: r.Session.String(), RunId: r.ID.String(),
		MemberId: r.CreatedBy.String(), Role: r.Role, StepIndex: int32(step), ToolCallId: call.ID, ToolName: call.Name,
		ArgsJson: string(call.Args), Deadline: timestamppb.New(call.Deadline), Timezone: r.Timezone,
	}
}
