package pool

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/oauth"
	"signalbox.dev/services/credential-broker/internal/store"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// simulated is what the simulator is sent: it takes any credential, but wants one, as the
// real ones do.
const simulated = "signalbox-no-credential"

// entry is a pool as it was read.
type entry struct {
	accounts []Account
	index    map[id.Account]int
	pool     *Pool // nil for the simulator's, and where there are no accounts
	owner    owner
	read     time.Time  // when its reading began
	mark     store.Mark // by which a look finds out whether it has changed
	none     bool       // a workspace has no account of its own
	partial  bool       // an account of it does not open
	err      error      // says why none of its accounts can be used
}

func (s *Set) load(ctx context.Context, key poolKey) (entry, error) {
	began := time.Now()
	stored, err := s.cfg.Store.Pool(ctx, key.Workspace, key.Provider)
	if err != nil {
		return entry{}, err
	}
	e := entry{
		accounts: make([]Account, 0, len(stored.Accounts)+1), index: map[id.Account]int{},
		owner: owner{workspace: key.Workspace, provider: key.Provider}, read: began, mark: stored.Mark,
	}
	var closed error // that a key service does not open one now
	for i := range stored.Accounts {
		a, err := s.open(ctx, &stored.Accounts[i])
		switch {
		case errors.Is(err, vault.ErrAway):
			closed = err
		case err != nil && isAway(err):
			return entry{}, err // the database, for all of them
		case err == nil:
			e.accounts = append(e.accounts, a)
		}
		e.partial = e.partial || err != nil
		s.unopened(ctx, key, stored.Accounts[i].ID, err)
	}
	if closed != nil && len(e.accounts) == 0 {
		return entry{}, closed
	}
	if len(e.accounts) == 0 {
		// Never the next tier where there is an account: someone else would pay.
		switch {
		case len(stored.Accounts) > 0:
			e.err = fault.Coded(fault.Conflict, "ACCOUNT_UNUSABLE", "the stored account for %s cannot be used: the credential broker's log says why; remove it and add it again, or restore the broker's key file", key.Provider)
			return e, nil
		case len(stored.Disabled) > 0:
			e.err = allDisabled(key, len(stored.Disabled))
			return e, nil
		}
		s.emptied(&e, &stored)
		if !id.IsZero(key.Workspace) {
			e.none = true
			return e, nil
		}
		if a, ok := s.env[key.Provider]; ok {
			e.accounts = []Account{a}
		}
		e.owner.environment = true
	}
	groupByServer(e.accounts)
	if len(e.accounts) > 0 {
		s.learn(ctx, &e, stored)
	}
	return e, nil
}

// groupByServer tells accounts which others are at the same server, if not all are.
func groupByServer(all []Account) {
	servers := map[string][]id.Account{}
	for i := range all {
		servers[all[i].Server()] = append(servers[all[i].Server()], all[i].ID)
	}
	if len(servers) < 2 {
		return
	}
	for i := range all {
		all[i].server = servers[all[i].Server()]
	}
}

func allDisabled(key poolKey, n int) error {
	whose := "of this workspace"
	if id.IsZero(key.Workspace) {
		whose = "that the operator shares"
	}
	return fault.Coded(fault.Conflict, "ACCOUNTS_DISABLED", "all accounts %s for %s are disabled (%d): enable one, or remove them to have requests go elsewhere", whose, key.Provider, n)
}

// unopened has operators know that an account cannot be used, once for each reason: it
// is read again and again.
func (s *Set) unopened(ctx context.Context, key poolKey, account id.Account, err error) {
	why := ""
	if err != nil {
		why = err.Error()
	}
	s.mu.Lock()
	known := s.unusable[account]
	switch {
	case err == nil:
		delete(s.unusable, account)
	case len(s.unusable) < maxEntries:
		s.unusable[account] = why
	}
	s.mu.Unlock()
	if why != known && err != nil {
		s.cfg.Log.ErrorContext(ctx, "account cannot be used", "account", account, "workspace", key.Workspace, "provider", key.Provider, "error", err)
	}
}

// learn gives a pool what is stored of it.
func (s *Set) learn(ctx context.Context, e *entry, stored store.Pool) {
	settings, err := ParseSettings(stored.Settings)
	if err != nil {
		s.cfg.Log.ErrorContext(ctx, "settings of a pool cannot be used: the defaults are", "workspace", e.owner.workspace, "provider", e.owner.provider, "error", err)
		settings = Defaults()
	}
	ids := make([]id.Account, len(e.accounts))
	for i, a := range e.accounts {
		ids[i], e.index[a.ID] = a.ID, i
	}
	now := time.Now()
	e.pool = s.poolOf(e.owner)
	e.pool.SetSettings(now, e.read, settings)
	added := map[id.Account]bool{}
	came, went := e.pool.SetMembers(now, e.read, ids)
	for _, a := range came {
		added[a] = true
	}
	s.parted(e.owner, went, &stored)
	for _, l := range stored.Limits {
		e.pool.Restore(now, l.Account, []Limit{l}, -1, now)
	}
	for _, h := range stored.Health {
		if added[h.Account] {
			e.pool.Restore(now, h.Account, nil, h.Health, h.At)
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

// emptied takes the accounts out of a pool whose last one was removed.
func (s *Set) emptied(e *entry, stored *store.Pool) {
	s.mu.Lock()
	p := s.pools[e.owner]
	s.mu.Unlock()
	if p == nil {
		return
	}
	_, went := p.SetMembers(time.Now(), e.read, nil)
	s.parted(e.owner, went, stored)
}

// parted has operators see no more of accounts that are not in a pool any more because they
// were removed. What was counted of one that is disabled, or does not open, stays as long
// as that is there.
func (s *Set) parted(o owner, went []id.Account, stored *store.Pool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var aside []id.Account
	for _, a := range slices.Concat(s.aside[o], went) {
		switch {
		case !stored.Has(a):
			s.cfg.Meter.Forget(a)
		case !slices.Contains(aside, a):
			aside = append(aside, a)
		}
	}
	delete(s.aside, o)
	if len(aside) > 0 {
		s.aside[o] = aside
	}
}

func (s *Set) open(ctx context.Context, row *store.Account) (Account, error) {
	p, ok := s.cfg.Profiles.Get(row.Profile)
	if !ok {
		return Account{}, fmt.Errorf("there is no request profile %q any more", row.Profile)
	}
	a := Account{ID: row.ID, Provider: row.Provider, Origin: Workspace, Profile: p, FlatRate: row.FlatRate}
	if row.Shared() {
		a.Origin = Shared
	}
	var own *url.URL
	if row.BaseURL != "" {
		var err error
		if own, err = url.Parse(row.BaseURL); err != nil {
			return Account{}, errors.New("its base URL does not parse")
		}
		if err := s.cfg.CheckBase(own, row.Shared()); err != nil {
			return Account{}, err
		}
		a.Own = !row.Shared()
	}
	if a.Base = p.Base(own); a.Base == nil {
		return Account{}, fmt.Errorf("neither the account nor profile %s has a base URL", p.Name)
	}
	if len(row.Sealed) == 0 { // somebody signed in to it
		a.Grant = oauth.Ref{Workspace: row.WorkspaceID, Account: row.ID}
		return a, nil
	}
	var err error
	a.Secret, err = s.cfg.Vault.Open(ctx, row.Place(), vault.Sealed{KeyVersion: row.KeyVersion, Bytes: row.Sealed})
	return a, err
}

// unstoredIDs returns the accounts from the environment.
func (s *Set) unstoredIDs() []id.Account {
	all := make([]id.Account, 0, len(s.env))
	for _, a := range s.env {
		all = append(all, a.ID)
	}
	return all
}

// simulator returns what stands for an account of the simulator, if there is one of that name.
func (s *Set) simulator(name string) []Account {
	like := simulators[name]
	p, ok := s.cfg.Profiles.For(like)
	if s.cfg.Simulator == nil || !ok {
		return nil
	}
	// It has each protocol under the provider's name, with the provider's own paths: what an
	// SDK has behind the host.
	base := *s.cfg.Simulator
	base.Path = strings.TrimRight(base.Path, "/") + "/" + like
	if len(p.Mounts) > 0 {
		base.Path += p.Mounts[0]
	}
	return []Account{{ID: derived(Simulator, name), Provider: name, Origin: Simulator, Profile: p, Base: &base, Secret: vault.NewSecret(simulated)}}
}
