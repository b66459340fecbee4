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

const maxEntries = 10_000 // of each cache

// serverLater is how long the accounts at other servers go first, once a server cannot be
// reached.
const serverLater = time.Minute

// EnvironmentAccount is a credential from the environment.
type EnvironmentAccount struct {
	Provider string
	// Secret may be empty: a server of one's own may want none.
	Secret vault.Secret
	// BaseURL is nil for the profile's own.
	BaseURL *url.URL
}

// Store is where accounts are and where what is learned of them is written: a
// store.Store, or a store.File. Its methods are theirs.
type Store interface {
	Pool(ctx context.Context, ws id.Workspace, provider string) (store.Pool, error)
	Marks(ctx context.Context, keys []store.PoolKey) (map[store.PoolKey]store.Mark, error)
	List(ctx context.Context, ws id.Workspace) ([]store.Account, error)
	Used(ctx context.Context, all []store.Use) error
	Learn(ctx context.Context, l store.Learned) error
}

// Config is what a Set draws from.
type Config struct {
	Store  Store
	Vault  *vault.Vault
	Tokens Tokens
	// Forget makes who holds the Tokens look again for those of a workspace's own accounts,
	// with the zero workspace for the operator's: one of them may be gone. It is nil where
	// they find out by themselves.
	Forget      func(ws id.Workspace)
	Profiles    *profile.Set
	Environment []EnvironmentAccount
	// Simulator is the simulated provider's base URL; nil for none.
	Simulator *url.URL
	// CheckBase refuses base URLs that stored accounts may not have, those of a
	// workspace or shared ones; it is asked again whenever an account is read.
	CheckBase func(u *url.URL, shared bool) error
	// Bus is where other instances are; nil for none.
	Bus *bus.Bus
	Log *slog.Logger
	// WriteEvery is between two writes of what was learned; half a second when zero.
	WriteEvery time.Duration
	// UsesBehind has first uses written with the rest, and no answer wait for them: where
	// the Store is a file, which is not written all the time.
	UsesBehind bool
	// RecordWait is how long an answer waits at most for a first use to be on record; a
	// quarter of a second when zero.
	RecordWait time.Duration
	// Prices says what tokens cost; nil for nothing.
	Prices *price.List
	// Meter counts for operators; nil for nobody.
	Meter *Meter
}

// Set hands out accounts. A request waits for the database only where nothing is known
// yet: of a pool that nobody asked for in the last minutes, or that was forgotten. Run
// tells what was learned, writes it and who used what, and has pools that have changed
// read again, by goroutines that Wait waits for.
type Set struct {
	cfg      Config
	instance uuid.UUID
	env      map[string]Account
	work     sync.WaitGroup // is added to under mu while ended is false, or by what it waits for

	mu      sync.Mutex // guards what follows, up to unusable
	ended   bool       // Wait was called: nothing is begun any more
	cache   map[poolKey]*known
	flights map[poolKey]*flight
	pools   map[owner]*Pool
	aside   map[owner][]id.Account // that were in a pool, and are still stored
	// looked is when pools were last looked after, blindly when operators were told that
	// they cannot be.
	looked, blindly time.Time
	// unusable is what operators were told of accounts that do not open.
	unusable map[id.Account]string

	behind    behind
	uses      uses
	forgotten chan id.Workspace // to be told to others
	lookNow   chan struct{}     // somebody has told of a change
	parked    chan struct{}     // an account was: that is written at once, unless a write runs
	away      atomic.Bool       // the bus was: something may have been said meanwhile
	asked     atomic.Bool       // somebody wants to be told all
	toldAll   time.Time         // when that was done last; Run's
	deaf      time.Time         // when operators were told that others are not heard; Run's
}

type poolKey = store.PoolKey

// owner is whose accounts a pool is: a workspace's, or with the zero one the operator's.
type owner struct {
	workspace   id.Workspace
	provider    string
	environment bool
}

// New returns a Set. It is empty: pools are read when they are asked for.
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
		cfg: cfg, instance: uuid.New(), env: map[string]Account{}, cache: map[poolKey]*known{}, flights: map[poolKey]*flight{}, aside: map[owner][]id.Account{},
		pools: map[owner]*Pool{}, unusable: map[id.Account]string{}, behind: behind{pending: map[statKey]tally{}},
		uses:      uses{noted: map[useKey]time.Time{}, waiting: map[useKey]*use{}, wake: make(chan struct{}, 1)},
		forgotten: make(chan id.Workspace, 64), lookNow: make(chan struct{}, 1),
		parked: make(chan struct{}, 1),
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
		s.env[e.Provider] = Account{ID: derived(Environment, e.Provider), Provider: e.Provider, Origin: Environment, Profile: p, Base: base, Secret: e.Secret}
	}
	return s, nil
}

// Began tells that an account has begun to answer a request well, before anything of the
// answer is shown: a first use of the account is on record then, unless the database is
// slow or away. The account is still to be reported on.
func (s *Set) Began(a Account) {
	if a.pool != nil {
		a.pool.Began(time.Now(), a.ticket)
	}
	s.onRecord(a.use)
}

// Report tells how a request ended with an account that Select returned for it.
func (s *Set) Report(_ context.Context, a Account, out Outcome) {
	cost, known := s.cost(a, out)
	label := s.cfg.Profiles.Label(a.Provider)
	s.cfg.Meter.Ended(label, a.ID, Metered{Reason: out.Reason, Tokens: out.Tokens, CostMicros: cost, Unpriced: !known})
	if a.pool == nil {
		return
	}
	if out.Reason == Unreachable && out.Unsent && a.server != nil {
		out.Later = serverLater
	}
	parked := a.pool.Report(time.Now(), *a.ticket, out)
	if parked {
		s.cfg.Meter.Cooled(label, a.ID, out.Reason)
	}
	s.behind.add(statKey{a.owner.workspace, a.ID, out.Reason}, a.Provider, out.Tokens, cost)
	if parked && !s.cfg.UsesBehind {
		select {
		case s.parked <- struct{}{}:
		default: // it is going to be written, now or every WriteEvery
		}
	}
}

// cost returns what a request cost; false where nobody knows.
func (s *Set) cost(a Account, out Outcome) (micros int64, known bool) {
	if out.Tokens == (price.Tokens{}) || a.FlatRate || a.Origin == Simulator {
		return 0, true
	}
	return s.cfg.Prices.Cost(a.Provider, out.Model, out.Tokens)
}

// Forget makes the next Select of a workspace read its own accounts anew, and has other
// instances look at once for what has changed. The zero workspace stands for all.
func (s *Set) Forget(ws id.Workspace) {
	s.forget(ws)
	select {
	case s.forgotten <- ws:
	default: // others look all the time
	}
}

func (s *Set) forget(ws id.Workspace) {
	defer s.cfg.Forget(ws)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(func(k poolKey) bool { return id.IsZero(ws) || k.Workspace == ws })
}

// Route says where a workspace's requests for a provider go.
type Route struct {
	Origin  Origin
	Dialect profile.Dialect
	// OwnBase says that the account has a base URL of its own.
	OwnBase bool
	// Problem is why none of the accounts can be used, for people; empty where one can.
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

// Wait returns when nothing is read or written any more. From then on nothing is: who
// selects all the same gets an error where the pool would have to be read.
func (s *Set) Wait() {
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	s.work.Wait()
}

// begin has Wait wait for work.Done, unless it was called before.
func (s *Set) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended {
		s.work.Add(1)
	}
	return !s.ended
}

// poolOf returns the pool of an owner, which is made where there is none.
func (s *Set) poolOf(o owner) *Pool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.pools[o]
	if !ok {
		if len(s.pools) >= maxEntries {
			s.dropPools()
		}
		p = NewPool(time.Now(), Defaults())
		s.pools[o] = p
	}
	return p
}

// dropPools forgets pools of which everything was written; what was stored of them is
// read again.
func (s *Set) dropPools() {
	for o, p := range s.pools {
		if !p.Changed(ToStore) {
			delete(s.pools, o)
		}
	}
	s.drop(func(poolKey) bool { return true }) // what was read refers to them
}

// all returns the pools that there are.
func (s *Set) all() map[owner]*Pool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.pools)
}
