package pool

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"signalbox.dev/pkg/fault"
)

// Settings are the rules of one pool. The JSON is what operators see and set.
type Settings struct {
	Strategy Strategy `json:"strategy"`
	// The token bucket of each account.
	MaxTokens             float64 `json:"max_tokens"`
	RegenerationPerMinute float64 `json:"regeneration_rate_per_minute"`
	InitialTokens         float64 `json:"initial_tokens"`
	// Health goes from 0 to 100.
	MinUsable       float64 `json:"min_usable"`
	Success         float64 `json:"health_success"`
	RateLimit       float64 `json:"health_rate_limit"`
	Failure         float64 `json:"health_failure"`
	RecoveryPerHour float64 `json:"health_recovery_per_hour"`
	// Stickiness is on top of the current account's score; another account has to be
	// better by SwitchThreshold.
	Stickiness      float64 `json:"stickiness"`
	SwitchThreshold float64 `json:"switch_threshold"`
	// FloorSeconds is how long the last usable account is parked where the provider
	// does not say.
	FloorSeconds float64 `json:"floor_seconds"`
}

// Defaults are the settings of a pool that has none of its own.
func Defaults() Settings {
	return Settings{
		Strategy: rules[0].Name, MaxTokens: 50, RegenerationPerMinute: 6, InitialTokens: 50,
		MinUsable: 50, Success: 1, RateLimit: -10, Failure: -20, RecoveryPerHour: 2,
		Stickiness: 150, SwitchThreshold: 100, FloorSeconds: 5,
	}
}

// Validate says what is wrong, and what would be right.
func (s Settings) Validate() error {
	var errs []error
	if s.Strategy.Rule() == nil {
		errs = append(errs, fmt.Errorf("strategy: %.32q is unknown: use %s", string(s.Strategy), List(Strategies())))
	}
	for _, f := range []struct {
		name          string
		v, least, top float64
	}{
		{"max_tokens", s.MaxTokens, 1, 1e6},
		{"regeneration_rate_per_minute", s.RegenerationPerMinute, 0, 1e6},
		{"initial_tokens", s.InitialTokens, 0, 1e6},
		{"min_usable", s.MinUsable, 0, maxHealth},
		{"health_success", s.Success, 0, maxHealth},
		{"health_rate_limit", s.RateLimit, -maxHealth, 0},
		{"health_failure", s.Failure, -maxHealth, 0},
		{"health_recovery_per_hour", s.RecoveryPerHour, 0, 3600 * maxHealth},
		{"stickiness", s.Stickiness, 0, 1e6},
		{"switch_threshold", s.SwitchThreshold, 0, 1e6},
		{"floor_seconds", s.FloorSeconds, 1, 3600},
	} {
		if math.IsNaN(f.v) || f.v < f.least || f.v > f.top {
			errs = append(errs, fmt.Errorf("%s: %v is out of range: use %v to %v", f.name, f.v, f.least, f.top))
		}
	}
	if s.InitialTokens > s.MaxTokens {
		errs = append(errs, fmt.Errorf("initial_tokens: %v is more than max_tokens, %v", s.InitialTokens, s.MaxTokens))
	}
	return errors.Join(errs...)
}

func (s *Settings) floor() time.Duration {
	return time.Duration(s.FloorSeconds * float64(time.Second))
}

// ParseSettings reads stored settings: those that differ from the defaults. Unknown names
// are a newer version's, and are ignored.
func ParseSettings(text []byte) (Settings, error) {
	s := Defaults()
	if len(text) == 0 {
		return s, nil
	}
	if err := json.Unmarshal(text, &s); err != nil {
		return s, fmt.Errorf("settings: %w", err)
	}
	if err := s.Validate(); err != nil {
		return s, fmt.Errorf("settings: %w", err)
	}
	return s, nil
}

// Stored returns the settings as they are stored: those that differ from the defaults, and
// the names now stored that only a newer version knows.
func (s Settings) Stored(now []byte) ([]byte, error) {
	own := s.fields()
	out := map[string]json.RawMessage{}
	_ = json.Unmarshal(now, &out) // if that is no object, there is nothing to keep
	maps.DeleteFunc(out, func(name string, _ json.RawMessage) bool { return own[name] != nil })
	for _, name := range s.Changed() {
		out[name] = own[name]
	}
	return json.Marshal(out)
}

// Changed returns the names of the settings that differ from the defaults, in order.
func (s Settings) Changed() []string {
	out := []string{}
	own, defaults := s.fields(), Defaults().fields()
	for _, name := range slices.Sorted(maps.Keys(own)) {
		if !bytes.Equal(own[name], defaults[name]) {
			out = append(out, name)
		}
	}
	return out
}

// Assign sets settings by their names. Its errors are Invalid faults that say what would be
// valid.
func (s *Settings) Assign(values map[string]any) error {
	names := s.fields()
	for name := range values {
		if _, ok := names[name]; !ok {
			return fault.New(fault.Invalid, "%.64s: unknown setting: use %s", name, strings.Join(slices.Sorted(maps.Keys(names)), ", "))
		}
	}
	text, err := json.Marshal(values)
	if err != nil {
		return fault.New(fault.Invalid, "settings: %v", err)
	}
	if err := json.Unmarshal(text, s); err != nil {
		return fault.New(fault.Invalid, "settings: strategy is a string, all others are numbers")
	}
	if err := s.Validate(); err != nil {
		return fault.New(fault.Invalid, "%s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return nil
}

// fields returns the settings by their names.
func (s Settings) fields() map[string]json.RawMessage {
	text, err := json.Marshal(s)
	var out map[string]json.RawMessage
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	if err != nil {
		panic(fmt.Sprintf("settings as JSON: %v", err)) // numbers within bounds, and a word
	}
	return out
}
