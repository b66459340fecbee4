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
	ahead       = fresh / 2   // before that is over, they are read again if somebody asks
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

// Ordered hands out accounts in the order in which they were added. A request waits
// for the database only where nothing is known yet: of a pool that nobody asked for
// within a second, and of a session's first use of an account, which must be on
// record before it happens. What is known is read again, and uses are dated, by
// goroutines of the pool's own, which Wait waits for.
type Ordered struct {
	cfg    Config
	env    map[string]Account
	flight singleflight.Group
	work   sync.WaitGroup

	mu    sync.Mutex // guards cache, epoch, used
	cache map[poolKey]entry
	epoch int // counts Forget: what was read before is not kept after
	used  map[useKey]time.Time
}

type poolKey struct {
	workspace id.Workspace
	provider  string
}

type entry struct {
	accounts []Account
	until    time.Time
	renewed  bool // is being read again, or was without success
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
	o.epoch++
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

// Wait returns when nothing is read or written any more. Nobody may Select
// meanwhile.
func (o *Ordered) Wait() { o.work.Wait() }

// accounts returns a workspace's pool for a provider.
func (o *Ordered) accounts(ctx context.Context, ws id.Workspace, provider string) ([]Account, error) {
	key := poolKey{ws, provider}
	e, epoch, old := o.cached(key)
	if e.accounts == nil {
		return o.read(ctx, key, epoch)
	}
	if old {
		ctx := context.WithoutCancel(ctx)
		o.work.Go(func() {
			if _, err := o.read(ctx, key, epoch); err != nil {
				o.cfg.Log.WarnContext(ctx, "accounts not read ahead of time", "workspace", ws, "provider", provider, "error", err)
			}
		})
	}
	return e.accounts, nil
}

// cached returns what is believed of a pool, the zero entry for nothing. old is true
// for one caller, who reads it again.
func (o *Ordered) cached(key poolKey) (e entry, epoch int, old bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	e = o.cache[key]
	left := time.Until(e.until)
	if left <= 0 {
		return entry{}, o.epoch, false
	}
	if old = left <= ahead && !e.renewed; old {
		e.renewed = true
		o.cache[key] = e
	}
	return e, o.epoch, old
}

// read reads a pool from the database. One reads for all who wait, under a context
// that none of them can end.
func (o *Ordered) read(ctx context.Context, key poolKey, epoch int) ([]Account, error) {
	v, err, _ := o.flight.Do(fmt.Sprint(key.workspace, key.provider, epoch), func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), loadTimeout)
		defer cancel()
		return o.load(ctx, key, epoch)
	})
	if err != nil {
		return nil, err
	}
	return v.([]Account), nil
}

func (o *Ordered) load(ctx context.Context, key poolKey, epoch int) ([]Account, error) {
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
	if epoch != o.epoch {
		return accounts, nil
	}
	if len(o.cache) >= maxEntries {
		clear(o.cache)
	}
	o.cache[key] = entry{accounts: accounts, until: began.Add(fresh)}
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

// note writes the first use of an account in a session to the audit, and about once
// a minute when it was last used.
func (o *Ordered) note(ctx context.Context, r Request, a Account) error {
	if a.Origin == Simulator {
		return nil
	}
	key := useKey{r.Actor.Workspace, a.ID, r.Actor.Session}
	known, due := o.due(key)
	switch {
	case !known:
		if err := o.cfg.Store.Use(ctx, r.Actor.Workspace, use(r.Actor, a, r.Address)); err != nil {
			return fmt.Errorf("record the use of account %s: %w", a.ID, err)
		}
		o.noted(key)
	case due:
		ctx := context.WithoutCancel(ctx)
		o.work.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, loadTimeout)
			defer cancel()
			if err := o.cfg.Store.Use(ctx, r.Actor.Workspace, use(r.Actor, a, r.Address)); err != nil {
				o.cfg.Log.WarnContext(ctx, "last use of an account not written", "account", a.ID, "error", err)
			}
		})
	}
	return nil
}

// due reports whether a use is on record, and whether it is time to date it anew,
// which it says to one caller.
func (o *Ordered) due(key useKey) (known, due bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	last, known := o.used[key]
	if due = known && time.Since(last) >= touchEvery; due {
		o.used[key] = time.Now()
	}
	return known, due
}

func (o *Ordered) noted(key useKey) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.used) >= maxEntries {
		clear(o.used)
	}
	o.used[key] = time.Now()
}

func use(actor identity.Actor, a Account, address string) store.Event {
	return store.Event{Account: a.ID, Provider: a.Provider, Origin: string(a.Origin), Member: actor.Member, Service: actor.Service, Address: address, Session: actor.Session}
}
