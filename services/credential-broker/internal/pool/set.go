package pool

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/price"
	"signalbox.dev/services/credential-broker/internal/profile"
	"signalbox.dev/services/credential-broker/internal/store"
	"signalbox.dev/services/credential-broker/internal/vault"
)

const (
	maxEntries = 10_000 // of each cache
	// unreachableFor is how long the accounts at other servers go first once a server cannot
	// be reached.
	unreachableFor = time.Minute
)

// EnvironmentAccount is a credential from the environment.
type EnvironmentAccount struct {
	Provider string
	// Secret may be empty: a self-hosted server may want none.
	Secret vault.Secret
	// BaseURL is nil for the profile's own.
	BaseURL *url.URL
	// Simulated says that the simulator is at BaseURL. It needs no secret.
	Simulated bool
}

// Store has the accounts, and takes what is learned of them. Its methods are those of
// store.Store.
type Store interface {
	Pool(ctx context.Context, ws id.Workspace, provider string) (store.Pool, error)
	Marks(ctx context.Context, keys []store.PoolKey) (map[store.PoolKey]store.Mark, error)
	List(ctx context.Context, ws id.Workspace) ([]store.Account, error)
	Used(ctx context.Context, all []store.Use) error
	Learn(ctx context.Context, l store.Learned) error
}

// Config is what a Set is made of.
type Config struct {
	Store  Store
	Vault  *vault.Vault
	Tokens Tokens
	// Forget makes the holder of the Tokens check those of a workspace's own accounts again,
	// or with the zero workspace the operator's: one may be gone. It is nil if the holder
	// finds out by itself.
	Forget      func(ws id.Workspace)
	Profiles    *profile.Set
	Environment []EnvironmentAccount
	// Simulator is the simulated provider's base URL; nil for none.
	Simulator *url.URL
	// CheckBase refuses base URLs that a workspace's or a shared account may not have. It is
	// called whenever an account is read.
	CheckBase func(u *url.URL, shared bool) error
	// Bus connects the instances; nil for none.
	Bus *bus.Bus
	Log *slog.Logger
	// WriteEvery is the time between two writes of what was learned; half a second if zero.
	WriteEvery time.Duration
	// UsesBehind has first uses written with the rest, and no answer wait for them: for a
	// file, which is not written all the time.
	UsesBehind bool
	// RecordWait is how long an answer waits for a first use to be recorded; a quarter of a
	// second if zero.
	RecordWait time.Duration
	// Prices says what tokens cost; nil for nothing.
	Prices *price.List
	// Meter counts for operators; nil for none.
	Meter *Meter
}

// Set is all pools of this instance. It hands out accounts; Run exchanges what is learned
// with other instances and the store. Wait waits for all that it has started.
type Set struct {
	cfg      Config
	instance uuid.UUID
	env      map[string]Account
	work     sync.WaitGroup // added to under mu while ended is false, or by what it waits for

	mu       sync.Mutex // guards what follows, up to warned
	ended    bool       // Wait was called: nothing is started any more
	cache    map[poolKey]*cached
	flights  map[poolKey]*flight
	polled   time.Time // when the last poll ended
	pools    map[owner]*Pool
	stored   map[owner]storedAccounts // that metrics are about
	unusable map[id.Account]string    // reasons that were logged
	warned   map[string]time.Time     // see mayWarn

	stats   stats
	uses    uses
	rereads chan struct{}     // has a place for each changed pool that is being read
	dropped chan id.Workspace // by Forget, to be announced
	pollNow chan struct{}     // another instance has announced a change
	parked  chan struct{}     // an account was parked, which is written at once

	missed  atomic.Bool // the bus was away: announcements may have been missed
	wanted  atomic.Bool // an instance wants to be told everything
	toldAll time.Time   // when that was done last; only Run uses it
}

type poolKey = store.PoolKey

// owner is whose accounts a pool has: a workspace's, or with the zero one the operator's.
type owner struct {
	workspace   id.Workspace
	provider    string
	environment bool
}

// New returns a Set without pools: they are read when they are asked for.
func New(cfg Config) (*Set, error) {
	if cfg.WriteEvery <= 0 {
		cfg.WriteEvery = writeEvery
	}
	if cfg.RecordWait <= 0 {
		cfg.RecordWait = recordWait
	}
	if cfg.Forget == nil {
		cfg.Forget = func(id.Workspace) {}
	}
	if cfg.Prices == nil {
		cfg.Prices = &price.List{}
	}
	s := &Set{
		cfg: cfg, instance: uuid.New(), env: map[string]Account{}, cache: map[poolKey]*cached{}, flights: map[poolKey]*flight{},
		pools: map[owner]*Pool{}, stored: map[owner]storedAccounts{}, unusable: map[id.Account]string{}, warned: map[string]time.Time{},
		stats:   stats{pending: map[statKey]*store.Stat{}},
		uses:    uses{noted: map[useKey]time.Time{}, waiting: map[useKey]*use{}, wake: make(chan struct{}, 1)},
		rereads: make(chan struct{}, maxRereads), dropped: make(chan id.Workspace, 64), pollNow: make(chan struct{}, 1), parked: make(chan struct{}, 1),
	}
	for _, e := range cfg.Environment {
		p, ok := cfg.Profiles.For(e.Provider)
		if !ok {
			return nil, fmt.Errorf("environment: no request profile is the default for provider %s", e.Provider)
		}
		base := p.Base(e.BaseURL)
		if base == nil {
			return nil, fmt.Errorf("environment: provider %s needs a base URL", e.Provider)
		}
		a := Account{Provider: e.Provider, Origin: Environment, Profile: p, Base: base, Secret: e.Secret}
		if e.Simulated {
			a.Origin, a.Secret = Simulator, vault.NewSecret(simulated)
		}
		a.ID = derived(a.Origin, e.Provider)
		s.env[e.Provider] = a
	}
	return s, nil
}

// Began tells that an account has begun to answer a request well, before any of the answer
// is shown. When it returns, a first use of the account is recorded, unless the database is
// slow or away. The account is still to be reported on.
func (s *Set) Began(a Account) {
	if a.pool != nil {
		a.pool.Began(time.Now(), a.ticket)
	}
	s.awaitRecord(a.use)
}

// Report tells how a request ended with an account that Select returned for it.
func (s *Set) Report(_ context.Context, a Account, out Outcome) {
	cost, known := s.cost(a, out)
	label := s.cfg.Profiles.Label(a.Provider)
	s.cfg.Meter.Ended(label, a.ID, Metered{Reason: out.Reason, Tokens: out.Tokens, CostMicros: cost, Unpriced: !known})
	if a.pool == nil {
		return
	}
	if out.Reason == Unreachable && out.Unsent && a.Elsewhere() {
		out.Later = unreachableFor
	}
	parked := a.pool.Report(time.Now(), *a.ticket, out)
	s.stats.add(statKey{a.owner, a.ID, out.Reason}, out.Tokens, cost)
	if !parked {
		return
	}
	s.cfg.Meter.Cooled(label, a.ID, out.Reason)
	if !s.cfg.UsesBehind {
		signal(s.parked)
	}
}

// signal wakes the receiver of a channel with room for one, unless it is about to wake.
func signal(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// cost returns what a request cost; false if nobody knows.
func (s *Set) cost(a Account, out Outcome) (micros int64, known bool) {
	if out.Tokens == (price.Tokens{}) || a.FlatRate || a.Origin == Simulator {
		return 0, true
	}
	return s.cfg.Prices.Cost(a.Provider, out.Model, out.Tokens)
}

// Forget makes the next Select of a workspace read its own accounts again, and other
// instances poll at once. The zero workspace stands for all.
func (s *Set) Forget(ws id.Workspace) {
	defer s.cfg.Forget(ws)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(func(k poolKey) bool { return id.IsZero(ws) || k.Workspace == ws })
	select {
	case s.dropped <- ws:
	default: // others poll anyway
	}
}

// Route says where a workspace's requests for a provider go.
type Route struct {
	Origin  Origin
	Dialect profile.Dialect
	// OwnBase says that the account has a base URL of its own.
	OwnBase bool
	// Problem is why none of the accounts can be used, for people; empty if one can.
	Problem string
}

// Providers returns, by provider, where a workspace's requests go, for every provider of
// models that it has accounts for, and for the simulator.
func (s *Set) Providers(ctx context.Context, ws id.Workspace) (map[string]Route, error) {
	stored, err := s.cfg.Store.List(ctx, ws)
	if err != nil {
		return nil, err
	}
	profiles := map[string]*profile.Profile{SimulatorName: nil}
	for _, a := range stored {
		profiles[a.Provider], _ = s.cfg.Profiles.Get(a.Profile)
	}
	for _, name := range s.cfg.Profiles.Providers() {
		profiles[name], _ = s.cfg.Profiles.For(name)
	}
	out := map[string]Route{}
	for name, p := range profiles {
		e, err := s.accounts(ctx, ws, name)
		switch {
		case fault.KindOf(err) == fault.Conflict:
			if p != nil && p.Dialect.Models() {
				out[name] = Route{Dialect: p.Dialect, Problem: fault.From(err).Message}
			}
		case err != nil:
			return nil, err
		case len(e.accounts) > 0 && e.accounts[0].Profile.Dialect.Models():
			a := e.accounts[0]
			out[name] = Route{Origin: a.Origin, Dialect: a.Profile.Dialect, OwnBase: a.Profile.BaseURL == nil || *a.Base != *a.Profile.BaseURL}
		}
	}
	return out, nil
}

// States returns what this instance knows of the accounts that a workspace may use for a
// provider.
func (s *Set) States(ctx context.Context, ws id.Workspace, provider string) ([]State, error) {
	e, err := s.accounts(ctx, ws, provider)
	if err != nil || e.pool == nil {
		return nil, err
	}
	return e.pool.States(time.Now()), nil
}

// Wait returns when nothing is read or written any more. From then on Select fails where a
// pool would have to be read.
func (s *Set) Wait() {
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	s.work.Wait()
}

// poolOf returns an owner's pool, made if need be. If there are too many, those of which
// everything was written make room.
func (s *Set) poolOf(o owner) *Pool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.pools[o]
	if ok {
		return p
	}
	if len(s.pools) >= maxEntries {
		for other, p := range s.pools {
			if !p.Changed(ToStore) {
				delete(s.pools, other)
				delete(s.stored, other)
			}
		}
		s.drop(func(poolKey) bool { return true }) // what was read refers to them
	}
	p = NewPool(time.Now(), Defaults())
	s.pools[o] = p
	return p
}

// knownPool returns an owner's pool, nil if it is not in use here.
func (s *Set) knownPool(o owner) *Pool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pools[o]
}

// all returns the pools by owner.
func (s *Set) all() map[owner]*Pool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.pools)
}
