package pool

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/services/credential-broker/internal/profile"
	"signalbox.dev/services/credential-broker/internal/store"
	"signalbox.dev/services/credential-broker/internal/vault"
)

const (
	fresh       = time.Second // how long accounts that were read are believed
	touchEvery  = time.Minute // how often an account's last use is written
	loadTimeout = 10 * time.Second
	maxEntries  = 10_000                    // of each cache; a full one is emptied
	simulated   = "signalbox-no-credential" // the simulator takes any credential, but wants one, as the real ones do
)

// EnvironmentAccount is a credential from the environment.
type EnvironmentAccount struct {
	Provider string
	// Secret may be empty: a server of one's own may want none.
	Secret vault.Secret
	// BaseURL is nil for the profile's own.
	BaseURL *url.URL
}

// Config is what an Ordered pool draws from.
type Config struct {
	Store       *store.Store
	Vault       *vault.Vault
	Profiles    *profile.Set
	Environment []EnvironmentAccount
	// Simulator is the simulated provider's base URL; nil for none.
	Simulator *url.URL
	// CheckBase refuses base URLs that accounts of a workspace may not have; it
	// is asked again whenever an account is read.
	CheckBase func(*url.URL) error
	Log       *slog.Logger
}

// Ordered hands out accounts in the order in which they were added.
type Ordered struct {
	cfg    Config
	env    map[string]Account
	flight singleflight.Group

	mu    sync.Mutex // guards cache, used
	cache map[poolKey]entry
	used  map[useKey]time.Time
}

type poolKey struct {
	workspace id.Workspace
	provider  string
}

type entry struct {
	accounts []Account
	until    time.Time
}

type useKey struct {
	workspace id.Workspace
	account   id.Account
	session   id.Session
}

// NewOrdered returns a pool.
func NewOrdered(cfg Config) (*Ordered, error) {
	o := &Ordered{cfg: cfg, env: map[string]Account{}, cache: map[poolKey]entry{}, used: map[useKey]time.Time{}}
	for _, e := range cfg.Environment {
		p, ok := cfg.Profiles.For(e.Provider)
		if !ok {
			return nil, fmt.Errorf("environment: no request profile is the default for provider %s", e.Provider)
		}
		base := p.Base(e.BaseURL)
		if base == nil {
			return nil, fmt.Errorf("environment: provider %s needs a base URL", e.Provider)
		}
		o.env[e.Provider] = Account{ID: derived(Environment, e.Provider), Provider: e.Provider, Origin: Environment, Profile: p, Base: base, Secret: e.Secret}
	}
	return o, nil
}

// Select returns the first account that the request has not tried. Its errors are
// ErrNone, ErrExhausted, or a fault that says why accounts cannot be had now.
func (o *Ordered) Select(ctx context.Context, r Request) (Account, error) {
	all, err := o.accounts(ctx, r.Actor.Workspace, r.Provider)
	if err != nil {
		return Account{}, err
	}
	if len(all) == 0 {
		return Account{}, ErrNone
	}
	for _, a := range all {
		if slices.Contains(r.Tried, a.ID) {
			continue
		}
		if err := o.note(ctx, r, a); err != nil {
			return Account{}, err
		}
		return a, nil
	}
	return Account{}, ErrExhausted
}

// Report tells how a request went with an account. The order does not depend on it.
func (*Ordered) Report(context.Context, Account, Outcome) {}

// Forget makes the next Select of a workspace read its accounts anew. The zero
// workspace stands for all.
func (o *Ordered) Forget(ws id.Workspace) {
	o.mu.Lock()
	defer o.mu.Unlock()
	maps.DeleteFunc(o.cache, func(k poolKey, _ entry) bool { return id.IsZero(ws) || k.workspace == ws })
}

// Providers returns, by provider, where a workspace's requests would go, for
// every provider that it can call.
func (o *Ordered) Providers(ctx context.Context, ws id.Workspace) (map[string]Account, error) {
	stored, err := o.cfg.Store.List(ctx, ws)
	if err != nil {
		return nil, err
	}
	names := o.cfg.Profiles.Providers()
	for _, a := range stored {
		names = append(names, a.Provider)
	}
	out := map[string]Account{}
	for _, name := range names {
		if _, done := out[name]; done {
			continue
		}
		all, err := o.accounts(ctx, ws, name)
		if err != nil {
			if fault.KindOf(err) == fault.Conflict {
				continue // it is there and cannot be opened: it cannot be called
			}
			return nil, err
		}
		if len(all) > 0 {
			out[name] = all[0]
		}
	}
	return out, nil
}

// accounts returns a workspace's pool for a provider.
func (o *Ordered) accounts(ctx context.Context, ws id.Workspace, provider string) ([]Account, error) {
	key := poolKey{ws, provider}
	o.mu.Lock()
	e, ok := o.cache[key]
	o.mu.Unlock()
	if ok && time.Now().Before(e.until) {
		return e.accounts, nil
	}
	// One reads for all who wait, under a context that none of them can end.
	v, err, _ := o.flight.Do(ws.String()+" "+provider, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), loadTimeout)
		defer cancel()
		return o.load(ctx, key)
	})
	if err != nil {
		return nil, err
	}
	return v.([]Account), nil
}

func (o *Ordered) load(ctx context.Context, key poolKey) ([]Account, error) {
	began := time.Now()
	stored, err := o.cfg.Store.Enabled(ctx, key.workspace, key.provider)
	if err != nil {
		return nil, err
	}
	accounts := make([]Account, 0, len(stored)+1)
	for i := range stored {
		a, err := o.open(ctx, &stored[i])
		if err != nil {
			if k := fault.KindOf(err); k == fault.Unavailable || k == fault.Cancelled || k == fault.Deadline {
				return nil, err
			}
			o.cfg.Log.ErrorContext(ctx, "account cannot be used", "account", stored[i].ID, "workspace", key.workspace, "provider", key.provider, "error", err)
			continue
		}
		accounts = append(accounts, a)
	}
	if len(stored) > 0 && len(accounts) == 0 {
		// Never the next tier instead: someone else would pay for a broken key.
		return nil, fault.Coded(fault.Conflict, "ACCOUNT_UNUSABLE", "the stored account for %s cannot be used: the credential broker's log says why; remove it and add it again, or restore the broker's key file", key.provider)
	}
	if len(accounts) == 0 {
		accounts = append(accounts, o.unstored(key.provider)...)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.cache) >= maxEntries {
		clear(o.cache)
	}
	o.cache[key] = entry{accounts, began.Add(fresh)}
	return accounts, nil
}

func (o *Ordered) open(ctx context.Context, s *store.Account) (Account, error) {
	p, ok := o.cfg.Profiles.Get(s.Profile)
	if !ok {
		return Account{}, fmt.Errorf("there is no request profile %q any more", s.Profile)
	}
	a := Account{ID: s.ID, Provider: s.Provider, Origin: Workspace, Profile: p}
	if s.Shared() {
		a.Origin = Shared
	}
	var own *url.URL
	if s.BaseURL != "" {
		var err error
		if own, err = url.Parse(s.BaseURL); err != nil {
			return Account{}, errors.New("its base URL does not parse")
		}
		if err := o.cfg.CheckBase(own); err != nil {
			return Account{}, err
		}
		a.Own = !s.Shared()
	}
	if a.Base = p.Base(own); a.Base == nil {
		return Account{}, fmt.Errorf("neither the account nor profile %s has a base URL", p.Name)
	}
	var err error
	a.Secret, err = o.cfg.Vault.Open(ctx, s.Place(), vault.Sealed{KeyVersion: s.KeyVersion, Bytes: s.Sealed})
	return a, err
}

// unstored returns the environment's account, else the simulator, else nothing.
func (o *Ordered) unstored(provider string) []Account {
	if a, ok := o.env[provider]; ok {
		return []Account{a}
	}
	p, ok := o.cfg.Profiles.For(provider)
	if o.cfg.Simulator == nil || !ok {
		return nil
	}
	// The simulator serves each provider under its name, with the provider's own
	// paths: what an SDK has behind the host.
	base := *o.cfg.Simulator
	base.Path = strings.TrimRight(base.Path, "/") + "/" + provider
	if len(p.Mounts) > 0 {
		base.Path += p.Mounts[0]
	}
	return []Account{{ID: derived(Simulator, provider), Provider: provider, Origin: Simulator, Profile: p, Base: &base, Secret: vault.NewSecret(simulated)}}
}

// note writes the first use of an account in a session to the audit, and once a
// minute when it was last used.
func (o *Ordered) note(ctx context.Context, r Request, a Account) error {
	if a.Origin == Simulator {
		return nil
	}
	now := time.Now()
	key := useKey{r.Actor.Workspace, a.ID, r.Actor.Session}
	o.mu.Lock()
	last, known := o.used[key]
	o.mu.Unlock()
	if known && now.Sub(last) < touchEvery {
		return nil
	}
	err := o.cfg.Store.Use(ctx, r.Actor.Workspace, use(r.Actor, a, r.Address))
	if err != nil {
		if known {
			o.cfg.Log.WarnContext(ctx, "last use of an account not written", "account", a.ID, "error", err)
			return nil
		}
		return fmt.Errorf("record the use of account %s: %w", a.ID, err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.used) >= maxEntries {
		clear(o.used)
	}
	o.used[key] = now
	return nil
}

func use(actor identity.Actor, a Account, address string) store.Event {
	return store.Event{Account: a.ID, Provider: a.Provider, Origin: string(a.Origin), Member: actor.Member, Service: actor.Service, Address: address, Session: actor.Session}
}
