package loop

import (
	"errors"
	"strings"
	"testing"

	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/agent-runner/internal/run"
)

// The result of a call that the run stopped waiting for states no more than is known:
// only a call of a pure tool certainly had no effect.
func TestUnfinished(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		effect toolv1.Effect
		cause  error
		state  toolv1.OutcomeState
	}{
		{toolv1.Effect_EFFECT_PURE, errStopped, toolv1.OutcomeState_OUTCOME_STATE_CANCELLED},
		{toolv1.Effect_EFFECT_SAME_TX, errStopped, toolv1.OutcomeState_OUTCOME_STATE_UNKNOWN},
		{toolv1.Effect_EFFECT_UNSAFE, errStopped, toolv1.OutcomeState_OUTCOME_STATE_UNKNOWN},
		{toolv1.Effect_EFFECT_PURE, errToolTime, toolv1.OutcomeState_OUTCOME_STATE_ERROR},
		{toolv1.Effect_EFFECT_KEYED, errToolTime, toolv1.OutcomeState_OUTCOME_STATE_UNKNOWN},
		{toolv1.Effect_EFFECT_UNSPECIFIED, errors.New("another"), toolv1.OutcomeState_OUTCOME_STATE_UNKNOWN},
	} {
		o := abandonedOutcome(&run.Call{Effect: tt.effect}, tt.cause)
		unknown := o.State == toolv1.OutcomeState_OUTCOME_STATE_UNKNOWN
		if o.State != tt.state || unknown != strings.Contains(string(o.Result), "effect is unknown") {
			t.Errorf("unfinished(%v, %v) = %v %s, want %v", tt.effect, tt.cause, o.State, o.Result, tt.state)
		}
	}
}
