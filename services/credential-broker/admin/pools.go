package admin

import (
	"context"
	"maps"
	"slices"

	"signalbox.dev/services/credential-broker/internal/pool"
)

// Settings are the rules by which a pool's accounts are chosen.
type Settings = pool.Settings

// Strategies returns the strategies by which a pool's accounts can be chosen, the default
// first.
func Strategies() []pool.Rule { return pool.Strategies() }

// Pool is the accounts of a scope for one provider.
type Pool struct {
	Provider string   `json:"provider"`
	Accounts int      `json:"accounts"`
	Settings Settings `json:"settings"`
	// Changed are the names of the settings that differ from the defaults.
	Changed []string `json:"changed"`
}

// Pools returns the pools that have accounts or settings, by provider.
func (s *Scope) Pools(ctx context.Context) ([]Pool, error) {
	settings, err := s.accounts.Store.Settings(ctx, s.by.Workspace)
	if err != nil {
		return nil, err
	}
	own, _, err := s.rows(ctx)
	if err != nil {
		return nil, err
	}
	pools := map[string]Pool{}
	for _, x := range settings {
		p := find(nil, x.Provider)
		if parsed, err := pool.ParseSettings(x.Settings); err == nil { // else the defaults, as in the pool, which logs it
			p.Settings, p.Changed = parsed, parsed.Changed()
		}
		if len(p.Changed) > 0 {
			pools[x.Provider] = p
		}
	}
	for _, r := range own {
		p, ok := pools[r.Provider]
		if !ok {
			p = find(nil, r.Provider)
		}
		p.Accounts++
		pools[r.Provider] = p
	}
	out := make([]Pool, 0, len(pools))
	for _, provider := range slices.Sorted(maps.Keys(pools)) {
		out = append(out, pools[provider])
	}
	return out, nil
}

// find returns the pool for a provider; one with the defaults if it is not listed.
func find(pools []Pool, provider string) Pool {
	for _, p := range pools {
		if p.Provider == provider {
			return p
		}
	}
	return Pool{Provider: provider, Settings: pool.Defaults(), Changed: []string{}}
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
	return find(all, provider), nil
}

// SetPool changes settings of the pool for a provider, by their names, all or nothing.
// With reset, the others get their defaults. An unknown setting, or one that is out of
// range, is an Invalid fault that says what is allowed.
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
	if err := s.accounts.Store.ChangeSettings(ctx, s.by.Workspace, provider, s.event("changed"), change); err != nil {
		return Pool{}, err
	}
	s.invalidate()
	return s.Pool(ctx, provider)
}
