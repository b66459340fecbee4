package run_test

import (
	"encoding/json"
	"testing"

	"signalbox.dev/services/agent-runner/internal/run"
)

// An approval is for the arguments that the person saw, and for nothing else.
func TestMayRun(t *testing.T) {
	t.Parallel()
	args := json.RawMessage(`{"to":"a","n":1}`)
	seen := run.HashArgs(json.RawMessage(`{"to": "a", "n": 1}`))
	for _, tt := range []struct {
		name string
		ask  *run.Ask
		want bool
	}{
		{"nobody is asked", nil, true},
		{"undecided", &run.Ask{Question: run.AskApproval, ArgsHash: seen}, false},
		{"approved", &run.Ask{Decision: run.Approved, ArgsHash: seen}, true},
		{"by a rule", &run.Ask{Decision: run.ByRule, ArgsHash: seen}, true},
		{"again", &run.Ask{Decision: run.Repeat, ArgsHash: seen}, true},
		{"refused", &run.Ask{Decision: run.Refused, ArgsHash: seen}, false},
		{"expired", &run.Ask{Decision: run.Expired, ArgsHash: seen}, false},
		{"happened", &run.Ask{Decision: run.Happened, ArgsHash: seen}, false},
		{"other arguments", &run.Ask{Decision: run.Approved, ArgsHash: run.HashArgs(json.RawMessage(`{"to":"b","n":1}`))}, false},
		{"no arguments", &run.Ask{Decision: run.Approved}, false},
	} {
		c := run.Call{Args: args, Ask: tt.ask}
		if got := c.MayRun(); got != tt.want {
			t.Errorf("%s: MayRun = %v, want %v", tt.name, got, tt.want)
		}
	}
}
