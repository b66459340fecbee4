package pool

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/oauth"
	"signalbox.dev/services/credential-broker/internal/store"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// simulated is the secret that the simulator is sent: it takes any, but wants one, as real
// providers do.
const simulated = "signalbox-no-credential"

// entry is a pool as it was read.
type entry struct {
	accounts []Account
	pool     *Pool // nil for the simulator's, and if there are no accounts
	owner    owner
	read     time.Time  // when its reading began
	mark     store.Mark // which changes when the pool does
	none     bool       // a workspace has no account of its own
	partial  bool       // an account of it cannot be used
	err      error      // says why none of its accounts can be used
}

// load reads a pool. An account that cannot be used is left out. If none can, that is the
// entry's error, and the next tier is not asked: somebody else would pay.
func (s *Set) load(ctx context.Context, key poolKey) (entry, error) {
	began := time.Now()
	stored, err := s.cfg.Store.Pool(ctx, key.Workspace, key.Provider)
	if err != nil {
		return entry{}, err
	}
	e := entry{
		accounts: make([]Account, 0, len(stored.Accounts)+1),
		owner:    owner{workspace: key.Workspace, provider: key.Provider}, read: began, mark: stored.Mark,
	}
	var away error // of the key service, which opens an account
	for i := range stored.Accounts {
		a, err := s.open(ctx, &stored.Accounts[i])
		switch {
		case errors.Is(err, vault.ErrUnavailable):
			away = err
		case err != nil && isAway(err):
			return entry{}, err // the database, for all of them
		case err == nil:
			e.accounts = append(e.accounts, a)
		}
		e.partial = e.partial || err != nil
		s.logUnusable(ctx, key, stored.Accounts[i].ID, err)
	}
	if len(e.accounts) == 0 {
		switch {
		case away != nil:
			return entry{}, away
		case len(stored.Accounts) > 0:
			e.err = fault.Coded(fault.Conflict, "ACCOUNT_UNUSABLE", "the stored account for %s cannot be used: the credential broker's log says why; remove it and add it again, or restore the broker's key file", key.Provider)
			return e, nil
		case len(stored.Disabled) > 0:
			e.err = allDisabled(key, len(stored.Disabled))
			return e, nil
		}
		s.empty(&e)
		if !id.IsZero(key.Workspace) {
			e.none = true
			return e, nil
		}
		if a, ok := s.env[key.Provider]; ok {
			e.accounts = []Account{a}
		}
		e.owner.environment = true
	}
	if len(e.accounts) > 0 {
		s.learn(ctx, &e, &stored)
	}
	return e, nil
}

func allDisabled(key poolKey, n int) error {
	whose := "of this workspace"
	if id.IsZero(key.Workspace) {
		whose = "that the operator shares"
	}
	return fault.Coded(fault.Conflict, "ACCOUNTS_DISABLED", "all accounts %s for %s are disabled (%d): enable one, or remove them so that requests use other credentials", whose, key.Provider, n)
}

// logUnusable logs that an account cannot be used, once for each reason.
func (s *Set) logUnusable(ctx context.Context, key poolKey, account id.Account, err error) {
	s.mu.Lock()
	known := s.unusable[account]
	delete(s.unusable, account)
	if err != nil {
		makeRoom(s.unusable)
		s.unusable[account] = err.Error()
	}
	s.mu.Unlock()
	if err != nil && err.Error() != known {
		s.cfg.Log.ErrorContext(ctx, "account cannot be used", "account", account, "workspace", key.Workspace, "provider", key.Provider, "error", err)
	}
}

// learn gives a pool what is stored of it.
func (s *Set) learn(ctx context.Context, e *entry, stored *store.Pool) {
	settings, err := ParseSettings(stored.Settings)
	if err != nil {
		s.cfg.Log.ErrorContext(ctx, "invalid pool settings: using the defaults", "workspace", e.owner.workspace, "provider", e.owner.provider, "error", err)
		settings = Defaults()
	}
	now := time.Now()
	e.pool = s.poolOf(e.owner)
	e.pool.SetSettings(now, e.read, settings)
	added := map[id.Account]bool{}
	for _, a := range e.pool.SetMembers(now, e.read, e.accounts) {
		added[a] = true
	}
	s.meterStored(e.owner, e.read, stored)
	for _, l := range stored.Limits {
		e.pool.RestoreLimits(now, l.Account, l)
	}
	for _, h := range stored.Health {
		if added[h.Account] {
			e.pool.RestoreHealth(now, h.Account, h.Health, h.At)
		}
		if h.ResetAt != nil {
			order := Order{Asked: *h.ResetAt, Account: h.Account}
			if added[h.Account] {
				order.Known = h.At
			}
			e.pool.Reset(now, order)
		}
	}
	if !stored.CurrentAt.IsZero() {
		e.pool.Switch(stored.CurrentAt, stored.Current)
	}
}

// empty takes the accounts out of a pool whose last one was removed.
func (s *Set) empty(e *entry) {
	if p := s.knownPool(e.owner); p != nil {
		p.SetMembers(time.Now(), e.read, nil)
		s.meterStored(e.owner, e.read, &store.Pool{})
	}
}

// storedAccounts are the accounts of a pool, as they were read at a time.
type storedAccounts struct {
	ids  map[id.Account]bool
	read time.Time
}

// meterStored ends the series of accounts that are not stored any more. A disabled or
// unusable account keeps its own. Accounts that were read before the present ones are ignored.
func (s *Set) meterStored(o owner, read time.Time, stored *store.Pool) {
	ids := map[id.Account]bool{}
	for _, a := range stored.Disabled {
		ids[a] = true
	}
	for i := range stored.Accounts {
		ids[stored.Accounts[i].ID] = true
	}
	for _, a := range s.replaceStored(o, storedAccounts{ids: ids, read: read}) {
		s.cfg.Meter.Forget(a) // without the mutex, for it looks at all series
	}
}

// replaceStored notes the accounts of a pool, and returns those that are gone.
func (s *Set) replaceStored(o owner, now storedAccounts) (gone []id.Account) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.stored[o]
	if now.read.Before(old.read) {
		return nil
	}
	for a := range old.ids {
		if !now.ids[a] {
			gone = append(gone, a)
		}
	}
	if s.stored[o] = now; len(now.ids) == 0 {
		delete(s.stored, o)
	}
	return gone
}

// open returns an account that is ready to use but for its access token.
func (s *Set) open(ctx context.Context, row *store.Account) (Account, error) {
	p, ok := s.cfg.Profiles.Get(row.Profile)
	if !ok {
		return Account{}, fmt.Errorf("the request profile %q no longer exists", row.Profile)
	}
	a := Account{ID: row.ID, Provider: row.Provider, Origin: Workspace, Profile: p, FlatRate: row.FlatRate}
	if row.Shared() {
		a.Origin = Shared
	}
	var own *url.URL
	if row.BaseURL != "" {
		var err error
		if own, err = url.Parse(row.BaseURL); err != nil {
			return Account{}, errors.New("its base URL cannot be parsed")
		}
		if err := s.cfg.CheckBase(own, row.Shared()); err != nil {
			return Account{}, err
		}
		a.Own = !row.Shared()
	}
	if a.Base = p.Base(own); a.Base == nil {
		return Account{}, fmt.Errorf("neither the account nor profile %s has a base URL", p.Name)
	}
	if len(row.Bytes) == 0 { // somebody signed in to it
		a.Grant = oauth.Ref{Workspace: row.WorkspaceID, Account: row.ID}
		return a, nil
	}
	var err error
	a.Secret, err = s.cfg.Vault.Open(ctx, row.Place(), row.Sealed)
	return a, err
}

// simulator returns the account that stands for the simulator of that name, if there is one.
func (s *Set) simulator(name string) []Account {
	like := simulators[name]
	p, ok := s.cfg.Profiles.For(like)
	if s.cfg.Simulator == nil || !ok {
		return nil
	}
	// The simulator has each protocol under the provider's name, with the provider's own
	// paths: what an SDK has behind the host.
	base := *s.cfg.Simulator
	base.Path = strings.TrimRight(base.Path, "/") + "/" + like
	if len(p.Mounts) > 0 {
		base.Path += p.Mounts[0]
	}
	return []Account{{ID: derived(Simulator, name), Provider: name, Origin: Simulator, Profile: p, Base: &base, Secret: vault.NewSecret(simulated)}}
}
