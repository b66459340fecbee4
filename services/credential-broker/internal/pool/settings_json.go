package pool

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"signalbox.dev/pkg/fault"
)

// ParseSettings reads what is stored as a pool's settings: those that differ from the
// defaults. Names that are unknown here are a newer version's and ignored.
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
// of what is stored now what only a newer version knows.
func (s Settings) Stored(now []byte) ([]byte, error) {
	own := s.fields()
	out := map[string]json.RawMessage{}
	_ = json.Unmarshal(now, &out) // nothing, or no object: nothing to keep
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
// right.
func (s *Settings) Assign(values map[string]any) error {
	names := s.fields()
	for name := range values {
		if _, ok := names[name]; !ok {
			return fault.New(fault.Invalid, "%.64s: there is no such setting: use %s", name, strings.Join(slices.Sorted(maps.Keys(names)), ", "))
		}
	}
	text, err := json.Marshal(values)
	if err != nil {
		return fault.New(fault.Invalid, "settings: %v", err)
	}
	if err := json.Unmarshal(text, s); err != nil {
		return fault.New(fault.Invalid, "settings: strategy is a word, all others are numbers")
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
