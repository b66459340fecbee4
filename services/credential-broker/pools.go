package credentialbroker

import (
	"context"
	"slices"
	"strings"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/services/credential-broker/internal/pool"
)

// Strategies returns the strategies by which a pool's accounts can be chosen, the default
// first.
func Strategies() []pool.Rule { return pool.Strategies() }

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
			of[provider] = &Pool{Provider: provider, Settings: pool.Defaults(), Changed: []string{}}
		}
		return of[provider]
	}
	for _, x := range settings {
		parsed, err := pool.ParseSettings(x.Settings)
		if err != nil {
			parsed = pool.Defaults() // as the pool does, which logs it
		}
		p := at(x.Provider)
		p.Settings, p.Changed = parsed, parsed.Changed()
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
	return Pool{Provider: provider, Settings: pool.Defaults(), Changed: []string{}}, nil
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
			settings = pool.Defaults()
		}
		if assigned := settings.Assign(values); assigned != nil || err == nil && settings == before {
			return nil, "", assigned
		}
		if reset {
			now = nil
		}
		next, err := settings.Stored(now)
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
		return pool.Defaults()
	}, nil
}
