package credentialbroker

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/services/credential-broker/admin"
	"signalbox.dev/services/credential-broker/internal/pool"
)

// Every setting has a message field of its own name, and survives the round trip.
func TestSettingsMessage(t *testing.T) {
	t.Parallel()
	want := admin.Settings{
		Strategy: pool.Hybrid, MaxTokens: 2, RegenerationPerMinute: 3, InitialTokens: 1, MinUsable: 4, Success: 5,
		RateLimit: -6, Failure: -7, RecoveryPerHour: 8, Stickiness: 9, SwitchThreshold: 10, FloorSeconds: 11,
	}
	values := settingValues(settingsMessage(want))
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var names map[string]any
	if err := json.Unmarshal(text, &names); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(names, values); diff != "" {
		t.Errorf("the message's fields (-settings +message):\n%s", diff)
	}
	got := pool.Defaults()
	if err := got.Assign(values); err != nil || got != want {
		t.Errorf("through the message: %+v, %v, want %+v", got, err, want)
	}
}
