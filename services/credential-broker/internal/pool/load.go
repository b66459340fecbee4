package pool

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/choice"
	"signalbox.dev/services/credential-broker/internal/oauth"
	"signalbox.dev/services/credential-broker/internal/store"
	"signalbox.dev/services/credential-broker/internal/vault"
)

const (
	fresh       = time.Second      // how long accounts that were read are believed
	ahead       = fresh / 2        // before that is over, they are read again if somebody asks
	stale       = 15 * time.Minute // how long they are believed while the database is away
	patience    = 2 * time.Second  // for a database that does not answer, where there are stale ones
	loadTimeout = 10 * time.Second
	simulated   = "signalbox-no-credential" // the simulator takes any credential, but wants one, as the real ones do
)

// entry is a pool as it was read.
type entry struct {
	accounts []Account
	index    map[id.Account]int
	pool     *choice.Pool // nil for the simulator's
	owner    owner
	read     time.Time // when its reading began
	renewed  bool      // is being read again, or was without success
	away     bool      // was not read again: the database did not answer
}

// accounts returns a workspace's pool for a provider.
func (s *Set) accounts(ctx context.Context, key poolKey) (entry, error) {
	e, epoch, how := s.cached(key)
	switch how {
	case unknown:
		return s.read(ctx, key, epoch)
	case due:
		s.renew(ctx, key, epoch)
	case old:
		return s.readOr(ctx, key, epoch, e)
	case believed:
	}
	return e, nil
}

// belief is how far what is cached counts.
type belief int

const (
	unknown  belief = iota
	believed        // it counts
	due             // it counts, and the one who is told so reads it again
	old             // it counts if it cannot be read again
)

// cached returns what is known of a pool. due is said to one caller.
func (s *Set) cached(key poolKey) (e entry, epoch int, how belief) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e = s.cache[key]
	age := time.Since(e.read)
	switch {
	case age >= stale: // also what is not there
		return entry{}, s.epoch, unknown
	case age >= fresh && !e.away:
		return e, s.epoch, old
	case age >= ahead && !e.renewed:
		e.renewed = true
		s.cache[key] = e
		return e, s.epoch, due
	}
	return e, s.epoch, believed
}

// renew reads a pool again, and nobody waits.
func (s *Set) renew(ctx context.Context, key poolKey, epoch int) {
	ctx = context.WithoutCancel(ctx)
	s.work.Go(func() {
		if _, err := s.read(ctx, key, epoch); err != nil {
			s.cfg.Log.WarnContext(ctx, "accounts not read ahead of time", "workspace", key.workspace, "provider", key.provider, "error", err)
			s.unread(key)
		}
	})
}

// unread has somebody try again in a second, if a pool that could not be read is still
// believed for so long.
func (s *Set) unread(key poolKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e, ok := s.cache[key]; ok && e.away {
		time.AfterFunc(fresh, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if e, ok := s.cache[key]; ok && e.away {
				e.renewed = false
				s.cache[key] = e
			}
		})
	}
}

// readOr reads a pool, or returns what is stale where the database is away. From then
// on nobody waits for it.
func (s *Set) readOr(ctx context.Context, key poolKey, epoch int, e entry) (entry, error) {
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	now, err := s.read(limited, key, epoch)
	if err == nil || ctx.Err() != nil || !isAway(err) {
		return now, err
	}
	s.mu.Lock()
	if kept, ok := s.cache[key]; ok && kept.read.Equal(e.read) {
		kept.away, kept.renewed = true, true
		s.cache[key] = kept
	}
	s.mu.Unlock()
	s.unread(key)
	s.cfg.Log.WarnContext(ctx, "the database is away: accounts are believed as they were", "workspace", key.workspace, "provider", key.provider, "read", e.read, "error", err)
	return e, nil
}

func isAway(err error) bool {
	k := fault.KindOf(err)
	return k == fault.Unavailable || k == fault.Cancelled || k == fault.Deadline
}

// read reads a pool from the database. One reads for all who wait, under a context
// that none of them can end.
func (s *Set) read(ctx context.Context, key poolKey, epoch int) (entry, error) {
	ch := s.flight.DoChan(fmt.Sprint(key.workspace, key.provider, epoch), func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), loadTimeout)
		defer cancel()
		s.work.Add(1)
		defer s.work.Done()
		return s.load(ctx, key, epoch)
	})
	select {
	case r := <-ch:
		if r.Err != nil {
			return entry{}, r.Err
		}
		return r.Val.(entry), nil
	case <-ctx.Done():
		return entry{}, fault.Wrap(ctx.Err(), fault.Unavailable, "the credential broker's database does not answer: try again in a moment")
	}
}

func (s *Set) load(ctx context.Context, key poolKey, epoch int) (entry, error) {
	began := time.Now()
	stored, err := s.cfg.Store.Pool(ctx, key.workspace, key.provider)
	if err != nil {
		return entry{}, err
	}
	e := entry{accounts: make([]Account, 0, len(stored.Accounts)+1), index: map[id.Account]int{}, read: began}
	for i := range stored.Accounts {
		a, err := s.open(ctx, &stored.Accounts[i])
		if err != nil {
			if isAway(err) {
				return entry{}, err
			}
			s.cfg.Log.ErrorContext(ctx, "account cannot be used", "account", stored.Accounts[i].ID, "workspace", key.workspace, "provider", key.provider, "error", err)
			continue
		}
		e.accounts = append(e.accounts, a)
	}
	if len(stored.Accounts) > 0 && len(e.accounts) == 0 {
		// Never the next tier instead: someone else would pay for a broken key.
		return entry{}, fault.Coded(fault.Conflict, "ACCOUNT_UNUSABLE", "the stored account for %s cannot be used: the credential broker's log says why; remove it and add it again, or restore the broker's key file", key.provider)
	}
	e.owner = owner{workspace: stored.Owner, provider: key.provider}
	if len(e.accounts) == 0 {
		e.accounts = s.unstored(key.provider)
		e.owner.environment = true
	}
	if len(e.accounts) > 0 && e.accounts[0].Origin != Simulator {
		s.learn(ctx, &e, stored)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if epoch != s.epoch {
		return e, nil
	}
	if len(s.cache) >= maxEntries {
		clear(s.cache)
	}
	s.cache[key] = e
	return e, nil
}

// learn gives a pool what is stored of it.
func (s *Set) learn(ctx context.Context, e *entry, stored store.Pool) {
	settings, err := ParseSettings(stored.Settings)
	if err != nil {
		s.cfg.Log.ErrorContext(ctx, "settings of a pool cannot be used: the defaults are", "workspace", e.owner.workspace, "provider", e.owner.provider, "error", err)
		settings = choice.Defaults()
	}
	ids := make([]id.Account, len(e.accounts))
	for i, a := range e.accounts {
		ids[i], e.index[a.ID] = a.ID, i
	}
	now := time.Now()
	e.pool = s.poolOf(e.owner)
	e.pool.SetSettings(now, settings)
	added := map[id.Account]bool{}
	for _, a := range e.pool.SetMembers(now, e.read, ids) {
		added[a] = true
	}
	for _, l := range stored.Limits {
		e.pool.Restore(now, l.Account, []choice.Limit{l.Limit}, -1, now)
	}
	for _, h := range stored.Health {
		if added[h.Account] {
			e.pool.Restore(now, h.Account, nil, h.Health, h.At)
		}
		if h.ResetAt != nil {
			e.pool.Heal(now, *h.ResetAt, h.Account, added[h.Account] && h.ResetAt.Before(h.At))
		}
	}
	if !stored.CurrentAt.IsZero() {
		e.pool.Use(stored.CurrentAt, stored.Current)
	}
}

// ParseSettings reads what is stored as a pool's settings: those that differ from the
// defaults. Its errors say what would be right.
func ParseSettings(text []byte) (choice.Settings, error) {
	settings := choice.Defaults()
	if len(text) == 0 {
		return settings, nil
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&settings); err != nil {
		return settings, fmt.Errorf("settings: %w", err)
	}
	if err := settings.Validate(); err != nil {
		return settings, fmt.Errorf("settings: %w", err)
	}
	return settings, nil
}

func (s *Set) open(ctx context.Context, row *store.Account) (Account, error) {
	p, ok := s.cfg.Profiles.Get(row.Profile)
	if !ok {
		return Account{}, fmt.Errorf("there is no request profile %q any more", row.Profile)
	}
	a := Account{ID: row.ID, Provider: row.Provider, Origin: Workspace, Profile: p}
	if row.Shared() {
		a.Origin = Shared
	}
	var own *url.URL
	if row.BaseURL != "" {
		var err error
		if own, err = url.Parse(row.BaseURL); err != nil {
			return Account{}, errors.New("its base URL does not parse")
		}
		if err := s.cfg.CheckBase(own); err != nil {
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

// unstored returns the environment's account, else the simulator, else nothing.
func (s *Set) unstored(provider string) []Account {
	if a, ok := s.env[provider]; ok {
		return []Account{a}
	}
	p, ok := s.cfg.Profiles.For(provider)
	if s.cfg.Simulator == nil || !ok || !p.Dialect.Models() {
		return nil
	}
	// The simulator serves each provider under its name, with the provider's own
	// paths: what an SDK has behind the host.
	base := *s.cfg.Simulator
	base.Path = strings.TrimRight(base.Path, "/") + "/" + provider
	if len(p.Mounts) > 0 {
		base.Path += p.Mounts[0]
	}
	return []Account{{ID: derived(Simulator, provider), Provider: provider, Origin: Simulator, Profile: p, Base: &base, Secret: vault.NewSecret(simulated)}}
}
