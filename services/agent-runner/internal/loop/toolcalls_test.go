package loop

import (
	"errors"
	"strings"
	"testing"

	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/agent-runner/internal/run"
)

// What the model is told of a call that nobody waited for claims no more than is
// known: only what has no effect certainly had none.
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
