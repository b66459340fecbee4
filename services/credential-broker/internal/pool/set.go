package pool

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/singleflight"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/choice"
	"signalbox.dev/services/credential-broker/internal/profile"
	"signalbox.dev/services/credential-broker/internal/store"
	"signalbox.dev/services/credential-broker/internal/vault"
)

const maxEntries = 10_000 // of each cache; a full one is emptied

// EnvironmentAccount is a credential from the environment.
type EnvironmentAccount struct {
	Provider string
	// Secret may be empty: a server of one's own may want none.
	Secret vault.Secret
	// BaseURL is nil for the profile's own.
	BaseURL *url.URL
}

// Config is what a Set draws from.
type Config struct {
	Store       *store.Store
	Vault       *vault.Vault
	Tokens      Tokens
	Profiles    *profile.Set
	Environment []EnvironmentAccount
	// Simulator is the simulated provider's base URL; nil for none.
	Simulator *url.URL
	// CheckBase refuses base URLs that accounts of a workspace may not have; it
	// is asked again whenever an account is read.
	CheckBase func(*url.URL) error
	// Bus is where other instances are; nil for none.
	Bus *bus.Bus
	Log *slog.Logger
}

// Set hands out accounts. A request waits for the database only where nothing is known
// yet: of a pool that nobody asked for within a second, and of a session's first use of
// an account, which must be on record before it happens. Run tells and writes what was
// learned; what is known is read again, and uses are dated, by goroutines that Wait
// waits for.
type Set struct {
	cfg      Config
	instance uuid.UUID
	env      map[string]Account
	flight   singleflight.Group
	work     sync.WaitGroup

	mu    sync.Mutex // guards cache, epoch, used, pools
	cache map[poolKey]entry
	epoch int // counts Forget: what was read before is not kept after
	used  map[useKey]time.Time
	pools map[owner]*choice.Pool

	behind    behind
	forgotten chan id.Workspace // to be told to others
}

// poolKey is who asks for what.
type poolKey struct {
	workspace id.Workspace
	provider  string
}

// owner is whose accounts a pool is: a workspace's, or with the zero one the operator's.
type owner struct {
	workspace   id.Workspace
	provider    string
	environment bool
}

// New returns a Set. It is empty: pools are read when they are asked for.
func New(cfg Config) (*Set, error) {
	s := &Set{
		cfg: cfg, instance: uuid.New(), env: map[string]Account{}, cache: map[poolKey]entry{}, used: map[useKey]time.Time{},
		pools: map[owner]*choice.Pool{}, behind: behind{pending: map[statKey]tally{}},
		forgotten: make(chan id.Workspace, 64),
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

// Select returns an account that the request has not tried. It is to be reported on,
// once. Select's errors are ErrNone, ErrExhausted (mostly as an *Exhausted), or a fault
// that says why accounts cannot be had now.
func (s *Set) Select(ctx context.Context, r Request) (Account, error) {
	e, err := s.accounts(ctx, poolKey{r.Actor.Workspace, r.Provider})
	if err != nil {
		return Account{}, err
	}
	if len(e.accounts) == 0 {
		return Account{}, ErrNone
	}
	if e.pool == nil {
		return s.simulated(e.accounts[0], r)
	}
	tried := r.Tried
	var unready error
	for {
		k, err := e.pool.Pick(time.Now(), choice.Request{Family: family(e.accounts[0].Profile, r.Provider, r.Model), Session: r.Actor.Session, Tried: tried})
		if err != nil {
			if unready != nil && len(r.Tried) == 0 {
				return Account{}, unready
			}
			return Account{}, err
		}
		a, err := s.prepare(ctx, r, e, &k)
		if err == nil {
			return a, nil
		}
		if !errors.Is(err, errOther) {
			return Account{}, err
		}
		unready = errors.Unwrap(err)
		tried = append(slices.Clip(tried), k.Account)
	}
}

// simulated returns the simulator's account, which is in no pool.
func (*Set) simulated(a Account, r Request) (Account, error) {
	if slices.Contains(r.Tried, a.ID) {
		return Account{}, ErrExhausted
	}
	return a, nil
}

// errOther marks an error after which another account may do.
var errOther = errors.New("this account cannot be used")

type otherError struct{ error }

func (otherError) Is(target error) bool { return target == errOther }
func (e otherError) Unwrap() error      { return e.error }

// prepare makes the account that was chosen ready to use, or settles its ticket.
func (s *Set) prepare(ctx context.Context, r Request, e entry, k *choice.Ticket) (Account, error) {
	i, ok := e.index[k.Account]
	if !ok { // the pool's members were read anew meanwhile
		e.pool.Report(time.Now(), *k, choice.Outcome{Reason: Cancelled, Unsent: true})
		return Account{}, otherError{nil}
	}
	a := e.accounts[i]
	a.pool, a.owner, a.ticket = e.pool, e.owner, k // before withToken, whose Renew hands them on
	a, err := withToken(ctx, s.cfg.Tokens, a)
	if err != nil && ctx.Err() != nil { // the caller went away
		e.pool.Report(time.Now(), *k, choice.Outcome{Reason: Cancelled, Unsent: true})
		return Account{}, err
	}
	if err != nil {
		out := choice.Outcome{Reason: Unreachable, Unsent: true}
		if fault.KindOf(err) == fault.Conflict { // somebody has to sign in again
			out = choice.Outcome{Reason: AuthFailed, Unsent: true}
		}
		e.pool.Report(time.Now(), *k, out)
		return Account{}, otherError{err}
	}
	if err := s.note(ctx, r, a); err != nil {
		e.pool.Report(time.Now(), *k, choice.Outcome{Reason: Cancelled, Unsent: true})
		return Account{}, err
	}
	return a, nil
}

// Began tells that an account has begun to answer a request well. It is still to be
// reported on.
func (*Set) Began(a Account) {
	if a.pool != nil {
		a.pool.Began(time.Now(), a.ticket)
	}
}

// Report tells how a request ended with an account that Select returned for it.
func (s *Set) Report(_ context.Context, a Account, out Outcome) {
	if a.pool == nil {
		return
	}
	a.pool.Report(time.Now(), *a.ticket, choice.Outcome{
		Reason: out.Reason, Wait: out.RetryAfter, Unsent: out.Unsent, Status: out.Status, Raw: out.Raw,
	})
	s.behind.add(statKey{a.owner.workspace, a.ID, out.Reason}, a.Provider, out.Usage)
}

// Forget makes the next Select of a workspace read its accounts anew, here and in other
// instances. The zero workspace stands for all.
func (s *Set) Forget(ws id.Workspace) {
	s.forget(ws)
	select {
	case s.forgotten <- ws:
	default: // others believe what they know for a second at most
	}
}

func (s *Set) forget(ws id.Workspace) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.epoch++
	maps.DeleteFunc(s.cache, func(k poolKey, _ entry) bool { return id.IsZero(ws) || k.workspace == ws })
}

// Providers returns, by provider, where a workspace's requests would go, for
// every provider that it can call.
func (s *Set) Providers(ctx context.Context, ws id.Workspace) (map[string]Account, error) {
	stored, err := s.cfg.Store.List(ctx, ws)
	if err != nil {
		return nil, err
	}
	names := s.cfg.Profiles.Providers()
	for _, a := range stored {
		names = append(names, a.Provider)
	}
	out := map[string]Account{}
	for _, name := range names {
		if _, done := out[name]; done {
			continue
		}
		e, err := s.accounts(ctx, poolKey{ws, name})
		if err != nil {
			if fault.KindOf(err) == fault.Conflict {
				continue // it is there and cannot be opened: it cannot be called
			}
			return nil, err
		}
		if len(e.accounts) > 0 {
			out[name] = e.accounts[0]
		}
	}
	return out, nil
}

// States returns what this instance knows of the accounts that a workspace may use for a
// provider.
func (s *Set) States(ctx context.Context, ws id.Workspace, provider string) ([]choice.State, error) {
	e, err := s.accounts(ctx, poolKey{ws, provider})
	if err != nil || e.pool == nil {
		return nil, err
	}
	return e.pool.States(time.Now()), nil
}

// Wait returns when nothing is read or written any more. Nobody may Select
// meanwhile.
func (s *Set) Wait() { s.work.Wait() }

// poolOf returns the pool of an owner, which is made where there is none.
func (s *Set) poolOf(o owner) *choice.Pool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.pools[o]
	if !ok {
		if len(s.pools) >= maxEntries {
			s.dropPools()
		}
		p = choice.New(time.Now(), choice.Defaults())
		s.pools[o] = p
	}
	return p
}

// dropPools forgets pools of which everything was written; what was stored of them is
// read again.
func (s *Set) dropPools() {
	for o, p := range s.pools {
		if !p.Changed(choice.Store) {
			delete(s.pools, o)
		}
	}
	clear(s.cache) // it refers to them
	s.epoch++
}

// all returns the pools that there are.
func (s *Set) all() map[owner]*choice.Pool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.pools)
}
