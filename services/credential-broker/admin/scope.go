package admin

import (
	"context"
	"fmt"
	"slices"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/services/credential-broker/internal/oauth"
	"signalbox.dev/services/credential-broker/internal/pool"
	"signalbox.dev/services/credential-broker/internal/store"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// Scope is the accounts of one workspace, or those that the operator shares with all
// workspaces, and who acts on them. An account outside the scope is a NotFound fault.
type Scope struct {
	accounts *Accounts
	by       identity.Actor // the zero workspace stands for the shared accounts
	pool     *pool.Set      // the running broker's; nil at the command line
}

func (s *Scope) shared() bool { return id.IsZero(s.by.Workspace) }

// Workspace returns the workspace; zero for the shared accounts.
func (s *Scope) Workspace() id.Workspace { return s.by.Workspace }

// Possible returns a fault if the scope cannot have accounts: a workspace's own, without a
// database.
func (s *Scope) Possible() error {
	if s.accounts.File != nil && !s.shared() {
		return store.ErrNeedsDatabase
	}
	return nil
}

func (s *Scope) event(action string) store.Event {
	origin := pool.Workspace
	if s.shared() {
		origin = pool.Shared
	}
	return store.Event{Action: action, Origin: string(origin), Member: s.by.Member, Key: s.by.Key, Service: s.by.Service, Address: s.by.Address}
}

func (s *Scope) ref(account id.Account) oauth.Ref {
	return oauth.Ref{Workspace: s.by.Workspace, Account: account}
}

// invalidate has the running broker read the accounts again at once; other brokers do so
// within a second.
func (s *Scope) invalidate() {
	if s.pool != nil {
		s.pool.Forget(s.by.Workspace)
	}
}

// changed returns an account after a change that had the given outcome.
func (s *Scope) changed(ctx context.Context, account id.Account, err error) (Account, error) {
	if err != nil {
		return Account{}, err
	}
	s.invalidate()
	return s.Get(ctx, account)
}

// List returns the scope's own accounts, in the order in which they were added.
func (s *Scope) List(ctx context.Context) ([]Account, error) {
	own, _, err := s.rows(ctx)
	if err != nil {
		return nil, err
	}
	live, err := s.live(ctx, own)
	if err != nil {
		return nil, err
	}
	return s.describe(ctx, own, live, s.accounts.Vault.Look())
}

// Shared returns the shared accounts as a workspace may see them, without the operator's
// labels, hints, addresses and use.
func (s *Scope) Shared(ctx context.Context) ([]Account, error) {
	_, shared, err := s.rows(ctx)
	out := make([]Account, len(shared))
	for i := range shared {
		out[i] = account(&shared[i])
		out[i].Label, out[i].Hint, out[i].BaseURL, out[i].LastUsedAt = "", "", "", nil
	}
	return out, err
}

// rows returns the scope's own accounts, and those that a workspace shares with others.
func (s *Scope) rows(ctx context.Context) (own, shared []store.Account, err error) {
	all, err := s.accounts.Store.List(ctx, s.by.Workspace)
	for _, r := range all {
		if r.WorkspaceID == s.by.Workspace {
			own = append(own, r)
		} else {
			shared = append(shared, r)
		}
	}
	return own, shared, err
}

// Get returns an account.
func (s *Scope) Get(ctx context.Context, account id.Account) (Account, error) {
	row, err := s.accounts.Store.Get(ctx, s.by.Workspace, account)
	if err != nil {
		return Account{}, err
	}
	all, err := s.describe(ctx, []store.Account{row}, nil, s.accounts.Vault.Look())
	if err != nil {
		return Account{}, err
	}
	return all[0], nil
}

// CheckDecrypt refuses an account whose credential cannot be decrypted with the keys at
// hand, before something that needs it: an operator who has named the wrong key is told so
// and loses nothing. If a key service is unavailable, the fault is Unavailable.
func (s *Scope) CheckDecrypt(ctx context.Context, account id.Account) error {
	row, err := s.accounts.Store.Get(ctx, s.by.Workspace, account)
	if err != nil {
		return err
	}
	if len(row.Bytes) > 0 {
		_, err = s.accounts.Vault.Open(ctx, row.Place(), row.Sealed)
	} else {
		err = s.accounts.Keeper.CheckDecrypt(ctx, s.ref(account))
	}
	if !vault.Lasting(err) {
		return err
	}
	f := fault.Wrap(err, fault.Conflict, fmt.Sprintf("the credential of account %s cannot be decrypted, and nothing was changed: %s", account, vault.Why(err)))
	f.Code = "ACCOUNT_UNUSABLE"
	return f
}

// Enable lets requests use an account again. An account whose credential cannot be
// decrypted stays disabled.
func (s *Scope) Enable(ctx context.Context, account id.Account) (Account, error) {
	if err := s.CheckDecrypt(ctx, account); vault.Lasting(err) {
		return Account{}, err
	}
	return s.changed(ctx, account, s.accounts.Store.SetEnabled(ctx, s.by.Workspace, account, true, s.event("changed")))
}

// Disable keeps requests from using an account until it is enabled.
func (s *Scope) Disable(ctx context.Context, account id.Account) (Account, error) {
	return s.changed(ctx, account, s.accounts.Store.SetEnabled(ctx, s.by.Workspace, account, false, s.event("changed")))
}

// SetFlatRate says whether an account is paid by the month: its usage then costs nothing.
func (s *Scope) SetFlatRate(ctx context.Context, account id.Account, flat bool) (Account, error) {
	return s.changed(ctx, account, s.accounts.Store.SetFlatRate(ctx, s.by.Workspace, account, flat, s.event("changed")))
}

// Reset clears an account's limits and restores its health.
func (s *Scope) Reset(ctx context.Context, account id.Account) (Account, error) {
	return s.changed(ctx, account, s.accounts.Store.Reset(ctx, s.by.Workspace, account, s.event("changed")))
}

// Switch makes an account the current one of its pool.
func (s *Scope) Switch(ctx context.Context, account id.Account) (Account, error) {
	a, err := s.Get(ctx, account)
	if err != nil {
		return Account{}, err
	}
	if err := s.CheckDecrypt(ctx, account); vault.Lasting(err) {
		return Account{}, err
	}
	if a.Status == SignedOut || a.Status == Reauthorize {
		return Account{}, fault.New(fault.Conflict, "nobody is signed in to account %s: sign in again first (accounts reauth)", account)
	}
	p, err := s.Pool(ctx, a.Provider)
	if err != nil {
		return Account{}, err
	}
	if r := p.Settings.Strategy.Rule(); !r.Current {
		others := slices.DeleteFunc(slices.Clone(pool.Strategies()), func(r pool.Rule) bool { return !r.Current })
		return Account{}, fault.New(fault.Conflict, "the pool of %s chooses its accounts %s: disable the others, or choose another strategy (%s)", a.Provider, r.About, pool.List(others))
	}
	return s.changed(ctx, account, s.accounts.Store.Switch(ctx, s.by.Workspace, account, s.event("changed")))
}

// revokeTimeout bounds how long the removal of an account waits for the provider.
const revokeTimeout = 8 * time.Second

// Remove forgets an account. A sign-in is revoked at the provider first, within some
// seconds: the account is removed whatever the provider answers, and the audit records the
// outcome. The account stays if nobody could tell the provider, for example while its token
// is being renewed: the new token could not be revoked any more.
func (s *Scope) Remove(ctx context.Context, account id.Account) (Revocation, error) {
	a, err := s.removable(ctx, account)
	if err != nil {
		return Revocation{}, err
	}
	if a.Grant == nil {
		return Revocation{}, s.forget(ctx, account, "")
	}
	if a.Grant.State == oauth.Revoked {
		return Revocation{Why: "it was already signed out"}, s.forget(ctx, account, "already signed out")
	}
	r, err := s.accounts.Keeper.RevokeWithin(ctx, s.by, s.ref(account), revokeTimeout)
	if err != nil {
		return r, err
	}
	detail := "revoked at the provider"
	if !r.AtProvider {
		detail = "not revoked at the provider: " + r.Why
	}
	return r, s.forget(context.WithoutCancel(ctx), account, detail)
}

// Forget removes an account here only. A sign-in stays valid at the provider.
func (s *Scope) Forget(ctx context.Context, account id.Account) error {
	a, err := s.removable(ctx, account)
	if err != nil {
		return err
	}
	detail := ""
	if a.Grant != nil {
		detail = "still valid at the provider"
	}
	return s.forget(ctx, account, detail)
}

// removable returns an account that is to be removed. A sign-in, which only a person can
// make, only a person may remove.
func (s *Scope) removable(ctx context.Context, account id.Account) (Account, error) {
	a, err := s.Get(ctx, account)
	if err == nil && a.Grant != nil && !id.IsZero(s.by.Key) {
		err = fault.Coded(fault.Forbidden, "PERSON_NEEDED", "account %s is a person's sign-in, which an API key cannot remove: use a person's token, or disable the account", account)
	}
	return a, err
}

func (s *Scope) forget(ctx context.Context, account id.Account, detail string) error {
	ev := s.event("removed")
	ev.Detail = detail
	if err := s.accounts.Store.Remove(ctx, s.by.Workspace, account, ev); err != nil {
		return err
	}
	s.invalidate()
	return nil
}

// Stat counts the requests of an account that had one outcome.
type Stat struct {
	Workspace id.Workspace `json:"workspace_id,omitzero"` // zero for a shared account
	Account   id.Account   `json:"account_id"`
	Provider  string       `json:"provider"`
	// Reason is OK, or why the requests failed.
	Reason     store.Reason `json:"reason"`
	Requests   int64        `json:"requests"`
	TokensIn   int64        `json:"tokens_in"`
	TokensOut  int64        `json:"tokens_out"`
	CostMicros int64        `json:"cost_micros"`
}

// Stats returns the accounts' counters since they were last reset. They lag by half a
// second.
func (s *Scope) Stats(ctx context.Context) ([]Stat, error) {
	rows, err := s.accounts.Store.Stats(ctx, s.by.Workspace)
	out := make([]Stat, len(rows))
	for i, r := range rows {
		out[i] = Stat{r.Workspace, r.Account, r.Provider, r.Reason, r.Requests, r.TokensIn, r.TokensOut, r.CostMicros}
	}
	return out, err
}

// ResetStats resets the counters of one account or, with the zero id, of all.
func (s *Scope) ResetStats(ctx context.Context, account id.Account) error {
	return s.accounts.Store.ResetStats(ctx, s.by.Workspace, account, s.event("changed"))
}
