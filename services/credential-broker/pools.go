package credentialbroker

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/services/credential-broker/internal/choice"
	"signalbox.dev/services/credential-broker/internal/pool"
)

// Settings are the rules by which a pool's accounts are chosen.
type Settings = choice.Settings

// Strategies returns the strategies by which a pool's accounts can be chosen, the default
// first.
func Strategies() []choice.Rule { return choice.Strategies() }

// Pool is the accounts of a scope for one provider.
type Pool struct {
	Provider string   `json:"provider"`
	Accounts int      `json:"accounts"`
	Settings Settings `json:"settings"`
	// Changed are the names of those that are not the defaults.
	Changed []string `json:"changed"`
}

// Pools returns the pools that have accounts or settings, by provider.
func (s *Scope) Pools(ctx context.Context) ([]Pool, error) {
	settings, err := s.accounts.store.Settings(ctx, s.workspace)
	if err != nil {
		return nil, err
	}
	rows, err := s.accounts.store.List(ctx, s.workspace)
	if err != nil {
		return nil, err
	}
	of := map[string]*Pool{}
	at := func(provider string) *Pool {
		if of[provider] == nil {
			of[provider] = &Pool{Provider: provider, Settings: choice.Defaults(), Changed: []string{}}
		}
		return of[provider]
	}
	for _, x := range settings {
		parsed, err := pool.ParseSettings(x.Settings)
		if err != nil {
			parsed = choice.Defaults() // as the pool does, which logs it
		}
		p := at(x.Provider)
		p.Settings, p.Changed = parsed, differences(parsed)
	}
	for _, r := range rows {
		if r.WorkspaceID == s.workspace {
			at(r.Provider).Accounts++
		}
	}
	out := make([]Pool, 0, len(of))
	for _, p := range of {
		if p.Accounts > 0 || len(p.Changed) > 0 {
			out = append(out, *p)
		}
	}
	slices.SortFunc(out, func(a, b Pool) int { return strings.Compare(a.Provider, b.Provider) })
	return out, nil
}

// Pool returns the pool for a provider, which may be empty.
func (s *Scope) Pool(ctx context.Context, provider string) (Pool, error) {
	if err := checkProvider(provider); err != nil {
		return Pool{}, err
	}
	all, err := s.Pools(ctx)
	if err != nil {
		return Pool{}, err
	}
	for _, p := range all {
		if p.Provider == provider {
			return p, nil
		}
	}
	return Pool{Provider: provider, Settings: choice.Defaults(), Changed: []string{}}, nil
}

// SetPool changes settings of the pool for a provider, by their names, all or nothing.
// With reset the others get their defaults. A setting that is not one, or out of its
// range, is an Invalid fault that says what would be right.
func (s *Scope) SetPool(ctx context.Context, provider string, values map[string]any, reset bool) (Pool, error) {
	if err := checkProvider(provider); err != nil {
		return Pool{}, err
	}
	change := func(now []byte) ([]byte, string, error) {
		settings, err := pool.ParseSettings(now)
		before := settings
		if err != nil || reset {
			settings = choice.Defaults()
		}
		if assigned := assign(&settings, values); assigned != nil || err == nil && settings == before {
			return nil, "", assigned
		}
		if reset {
			now = nil
		}
		next, err := different(settings, now)
		return next, "settings " + string(next), err
	}
	if err := s.accounts.store.ChangeSettings(ctx, s.workspace, provider, s.event("changed"), change); err != nil {
		return Pool{}, err
	}
	s.changed()
	return s.Pool(ctx, provider)
}

func checkProvider(provider string) error {
	if !providerForm.MatchString(provider) {
		return fault.New(fault.Invalid, "provider: %q is not a provider's name: use lower-case letters, digits and dashes, 32 at most", clip(provider))
	}
	return nil
}

// assign sets settings by their JSON names.
func assign(settings *Settings, values map[string]any) error {
	names := fields(*settings)
	for name := range values {
		if _, ok := names[name]; !ok {
			return fault.New(fault.Invalid, "%s: there is no such setting: use %s", clip(name), strings.Join(sortedNames(names), ", "))
		}
	}
	text, err := json.Marshal(values)
	if err != nil {
		return fault.New(fault.Invalid, "settings: %v", err)
	}
	if err := json.Unmarshal(text, settings); err != nil {
		return fault.New(fault.Invalid, "settings: strategy is a word, all others are numbers")
	}
	if err := settings.Validate(); err != nil {
		return fault.New(fault.Invalid, "%s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return nil
}

// fields returns settings by their names.
func fields(s Settings) map[string]json.RawMessage {
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

func sortedNames(m map[string]json.RawMessage) []string {
	var out []string
	for name := range m {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// differences returns the names of the settings that are not the defaults.
func differences(s Settings) []string {
	out := []string{}
	defaults, own := fields(choice.Defaults()), fields(s)
	for _, name := range sortedNames(own) {
		if !bytes.Equal(own[name], defaults[name]) {
			out = append(out, name)
		}
	}
	return out
}

// different returns the settings that are not the defaults, as they are stored, and what
// is stored that only a newer version knows.
func different(s Settings, now []byte) ([]byte, error) {
	own := fields(s)
	out := map[string]json.RawMessage{}
	_ = json.Unmarshal(now, &out) // nothing, or no object: nothing to keep
	maps.DeleteFunc(out, func(name string, _ json.RawMessage) bool { return own[name] != nil })
	for _, name := range differences(s) {
		out[name] = own[name]
	}
	return json.Marshal(out)
}

// settings returns a function that knows each provider's.
func (s *Scope) settings(ctx context.Context) (func(provider string) Settings, error) {
	all, err := s.Pools(ctx)
	if err != nil {
		return nil, err
	}
	return func(provider string) Settings {
		for _, p := range all {
			if p.Provider == provider {
				return p.Settings
			}
		}
		return choice.Defaults()
	}, nil
}
