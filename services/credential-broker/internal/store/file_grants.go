package store

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"

	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/accountfile"
)

// grantAt returns a copy of an account's grant, nil if it has none.
func grantAt(a *Account, now time.Time) *Grant {
	if a == nil || a.Grant == nil {
		return nil
	}
	g := *a.Grant
	g.AccountProvider, g.Now = a.Provider, now
	if g.Attempt != nil {
		g.Attempt = new(*g.Attempt)
	}
	return &g
}

func (s file) Grant(ctx context.Context, ws id.Workspace, account id.Account) (Grant, error) {
	now := time.Now().UTC()
	st, err := s.view(ctx, ws)
	if err != nil {
		return Grant{}, err
	}
	if g := grantAt(st.Account(account), now); g != nil {
		return *g, nil
	}
	return Grant{}, errNoGrant(account)
}

func (s file) Grants(ctx context.Context, ws id.Workspace) (map[id.Account]Grant, error) {
	all, now := map[id.Account]Grant{}, time.Now().UTC()
	st, err := s.view(ctx, ws)
	if err != nil {
		return all, err
	}
	for i := range st.Accounts {
		if g := grantAt(&st.Accounts[i], now); g != nil {
			all[st.Accounts[i].ID] = *g
		}
	}
	return all, nil
}

// grantKeys returns the grants that fit.
func (s file) grantKeys(ctx context.Context, fits func(a *Account, g *Grant, now time.Time) bool) (all []GrantKey, err error) {
	st, err := s.View(ctx)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	for i := range st.Accounts {
		if a := &st.Accounts[i]; a.Grant != nil && fits(a, a.Grant, now) {
			all = append(all, GrantKey{Account: a.ID, Provider: a.Grant.Provider, Version: a.Grant.Version, State: a.Grant.State})
		}
	}
	return all, nil
}

// clockStep is how far in the future tokens are issued that a clock which was ahead has left
// behind. Their age is unknown, and they are due, as package oauth has it.
const clockStep = 30 * time.Second

func (s file) PendingGrants(ctx context.Context, q GrantQuery) ([]GrantKey, error) {
	return s.grantKeys(ctx, func(a *Account, g *Grant, now time.Time) bool {
		leased := g.Attempt != nil && g.Attempt.LeaseUntil.After(now) && g.Attempt.LeaseUntil.Sub(now) <= q.LongestLease
		paused := g.RetryAt != nil && g.RetryAt.After(now) && g.RetryAt.Sub(now) <= q.LongestPause
		reached := g.RefreshAt != nil && (!g.RefreshAt.After(now) || g.IssuedAt.Sub(now) > clockStep)
		due := g.State == "active" && reached && g.Refresh != nil && !paused
		pending := q.Revoking && g.State == "revoking" || !q.Revoking && due
		return pending && !leased && slices.Contains(q.Providers, g.Provider) && !slices.Contains(q.Except, a.ID)
	})
}

func (s file) ChangedGrants(ctx context.Context, _ time.Duration) (grants []GrantKey, all bool, err error) {
	grants, err = s.grantKeys(ctx, func(*Account, *Grant, time.Time) bool { return true })
	return grants, true, err
}

func (s file) SweepLogins(ctx context.Context, _, _ time.Duration) error {
	return s.File.Update(ctx, func(st *accountfile.State) error {
		removeExpired(st)
		return nil
	})
}

// removeExpired removes the logins that are over, unless somebody works on them still.
func removeExpired(st *accountfile.State) {
	now := time.Now()
	st.Logins = slices.DeleteFunc(st.Logins, func(l Login) bool { return !l.ExpiresAt.After(now) && !l.PollAt.After(now) })
}

func (t *fileTx) Grant(_ context.Context, account id.Account) (*Grant, error) {
	if g := grantAt(t.State.Account(account), time.Now().UTC()); g != nil {
		return g, nil
	}
	return nil, errNoGrant(account)
}

func (t *fileTx) UpdateGrant(_ context.Context, account id.Account, g *Grant) error {
	if a := t.State.Account(account); a != nil {
		a.Grant = g
	}
	return nil
}

// InsertAttempt does nothing: a file has only the attempt of each grant that is open.
func (*fileTx) InsertAttempt(context.Context, id.Account, int64, *Attempt) error { return nil }

// EndAttempt logs the attempts whose outcome nobody will know.
func (t *fileTx) EndAttempt(ctx context.Context, account id.Account, attempt uuid.UUID, outcome string, _ int, _ string) error {
	if a := t.State.Account(account); outcome == "lost" && a != nil && a.Grant != nil && a.Grant.Attempt != nil {
		t.log.WarnContext(ctx, "an attempt has no outcome: its process died", "account", account, "attempt", attempt,
			"kind", a.Grant.Attempt.Kind, "instance", a.Grant.Attempt.Instance, "began", a.Grant.Attempt.StartedAt)
	}
	return nil
}

func (t *fileTx) Logins(_ context.Context, member id.Member) ([]Login, error) {
	removeExpired(t.State)
	all := filter(t.State.Logins, func(l *Login) bool { return l.Member == member })
	for i := range all {
		all[i].Purpose, all[i].Now = "account", time.Now().UTC()
	}
	return all, nil
}

// login returns where a login is, -1 if there is none of that ID.
func (t *fileTx) login(login uuid.UUID) int {
	return slices.IndexFunc(t.State.Logins, func(l Login) bool { return l.ID == login })
}

func (t *fileTx) Login(_ context.Context, login uuid.UUID) (*Login, error) {
	i := t.login(login)
	if i < 0 {
		return nil, nil
	}
	l := t.State.Logins[i]
	l.Purpose, l.Now = "account", time.Now().UTC()
	return &l, nil
}

func (t *fileTx) InsertLogin(_ context.Context, l *Login) (bool, error) {
	if t.login(l.ID) >= 0 {
		return false, nil
	}
	t.State.Logins = append(t.State.Logins, *l)
	return true, nil
}

// UpdateLogin removes a login that has ended: the one who began it, on the command line,
// does not ask again.
func (t *fileTx) UpdateLogin(ctx context.Context, l *Login) error {
	if l.EndedAt != nil {
		return t.DeleteLogin(ctx, l.ID)
	}
	if i := t.login(l.ID); i >= 0 {
		t.State.Logins[i] = *l
	}
	return nil
}

func (t *fileTx) DeleteLogin(_ context.Context, login uuid.UUID) error {
	t.State.Logins = slices.DeleteFunc(t.State.Logins, func(l Login) bool { return l.ID == login })
	return nil
}

func (t *fileTx) DeleteOtherLogins(_ context.Context, account id.Account, except uuid.UUID) error {
	t.State.Logins = slices.DeleteFunc(t.State.Logins, func(l Login) bool { return l.Account == account && l.ID != except })
	return nil
}
