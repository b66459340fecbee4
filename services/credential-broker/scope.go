package credentialbroker

import (
	"context"
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

// Scope is the accounts of one workspace, or those that the operator shares with all,
// and who acts on them. What it does is written to the audit in their name. Errors are
// faults whose messages are for people; an account of somebody else is a NotFound one.
type Scope struct {
	accounts  *Accounts
	by        identity.Actor
	workspace id.Workspace // zero for the operator's
	pool      *pool.Set    // of the broker that this is in; nil elsewhere
}

// Operator returns the accounts of a workspace for the operator, whose role nobody
// checks; with the zero workspace the shared ones.
func (a *Accounts) Operator(ws id.Workspace) *Scope {
	return &Scope{accounts: a, by: identity.Actor{Service: commandLine, Address: a.operator}, workspace: ws}
}

// Workspace returns whose accounts these are; zero for the operator's.
func (s *Scope) Workspace() id.Workspace { return s.workspace }

// Possible returns a fault where there can be no such accounts: a workspace's own, without
// a database.
func (s *Scope) Possible() error {
	if s.accounts.file != nil && !id.IsZero(s.workspace) {
		return store.ErrOwn
	}
	return nil
}

func (s *Scope) event(action string) store.Event {
	origin := pool.Workspace
	if id.IsZero(s.workspace) {
		origin = pool.Shared
	}
	return store.Event{Action: action, Origin: string(origin), Member: s.by.Member, Key: s.by.Key, Service: s.by.Service, Address: s.by.Address}
}

func (s *Scope) who() oauth.Who {
	return oauth.Who{Workspace: s.workspace, Member: s.by.Member, Key: s.by.Key, Service: s.by.Service, Address: s.by.Address}
}

func (s *Scope) ref(account id.Account) oauth.Ref {
	return oauth.Ref{Workspace: s.workspace, Account: account}
}

// changed has brokers read the accounts again at once; without one around they do
// within a second.
func (s *Scope) changed() {
	if s.pool != nil {
		s.pool.Forget(s.workspace)
	}
}

// done is what follows a change of an account.
func (s *Scope) done(ctx context.Context, account id.Account, err error) (Account, error) {
	if err != nil {
		return Account{}, err
	}
	s.changed()
	return s.Get(ctx, account)
}

// List returns the accounts, in the order in which they were added.
func (s *Scope) List(ctx context.Context) ([]Account, error) {
	rows, err := s.accounts.store.List(ctx, s.workspace)
	if err != nil {
		return nil, err
	}
	own := rows[:0:0]
	for _, r := range rows {
		if r.WorkspaceID == s.workspace {
			own = append(own, r)
		}
	}
	live, err := s.live(ctx, own)
	if err != nil {
		return nil, err
	}
	return s.describe(ctx, own, live, s.accounts.vault.Look())
}

// Get returns an account.
func (s *Scope) Get(ctx context.Context, account id.Account) (Account, error) {
	row, err := s.accounts.store.Get(ctx, s.workspace, account)
	if err != nil {
		return Account{}, err
	}
	all, err := s.describe(ctx, []store.Account{row}, nil, s.accounts.vault.Look())
	if err != nil {
		return Account{}, err
	}
	return all[0], nil
}

// Enable lets requests go out under an account again. One that does not open stays as it
// is.
func (s *Scope) Enable(ctx context.Context, account id.Account) (Account, error) {
	if err := s.Opens(ctx, account); vault.Lasting(err) {
		return Account{}, err
	}
	return s.done(ctx, account, s.accounts.store.SetEnabled(ctx, s.workspace, account, true, s.event("changed")))
}

// Disable keeps requests from an account until it is enabled.
func (s *Scope) Disable(ctx context.Context, account id.Account) (Account, error) {
	return s.done(ctx, account, s.accounts.store.SetEnabled(ctx, s.workspace, account, false, s.event("changed")))
}

// SetFlatRate says whether an account is paid by the month: then its use costs nothing.
func (s *Scope) SetFlatRate(ctx context.Context, account id.Account, flat bool) (Account, error) {
	return s.done(ctx, account, s.accounts.store.SetFlatRate(ctx, s.workspace, account, flat, s.event("changed")))
}

// Reset forgets an account's limits and makes it healthy.
func (s *Scope) Reset(ctx context.Context, account id.Account) (Account, error) {
	return s.done(ctx, account, s.accounts.store.Reset(ctx, s.workspace, account, s.event("changed")))
}

// Switch makes an account the current one of its pool.
func (s *Scope) Switch(ctx context.Context, account id.Account) (Account, error) {
	a, err := s.Get(ctx, account)
	if err != nil {
		return Account{}, err
	}
	if err := s.Opens(ctx, account); vault.Lasting(err) {
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
		return Account{}, fault.New(fault.Conflict, "the pool of %s takes its accounts %s: disable the others, or choose another strategy (%s)", a.Provider, r.About, pool.List(others))
	}
	return s.done(ctx, account, s.accounts.store.Switch(ctx, s.workspace, account, s.event("changed")))
}

// removable returns an account that is to be removed. What only a person can make, a
// sign-in, only a person takes away.
func (s *Scope) removable(ctx context.Context, account id.Account) (Account, error) {
	a, err := s.Get(ctx, account)
	if err == nil && a.Grant != nil && !id.IsZero(s.by.Key) {
		err = fault.Coded(fault.Forbidden, "PERSON_NEEDED", "somebody signed in to account %s, and an API key cannot take that away: use a person's token, or disable the account", account)
	}
	return a, err
}

// takeBack is how long the removal of an account may take to tell the provider.
const takeBack = 8 * time.Second

// Remove forgets an account. Where somebody signed in to it the provider is told first, as
// far as that can be done within some seconds: the account goes whatever the provider
// answers, and the audit says what came of it. It stays where nobody could tell the provider,
// as while its token is being renewed: what that brings could not be taken back any more.
func (s *Scope) Remove(ctx context.Context, account id.Account) (Revocation, error) {
	a, err := s.removable(ctx, account)
	if err != nil {
		return Revocation{}, err
	}
	if a.Grant == nil {
		return Revocation{}, s.forget(ctx, account, "")
	}
	if a.Grant.State == string(oauth.Revoked) {
		return Revocation{Why: "it was signed out before"}, s.forget(ctx, account, "signed out before")
	}
	r, err := s.accounts.keeper.RevokeWithin(ctx, s.who(), s.ref(account), takeBack)
	if err != nil {
		return r, err
	}
	detail := "taken back at the provider"
	if !r.AtProvider {
		detail = "not taken back at the provider: " + r.Why
	}
	return r, s.forget(context.WithoutCancel(ctx), account, detail)
}

// Forget forgets an account here. A sign-in stays good at the provider.
func (s *Scope) Forget(ctx context.Context, account id.Account) error {
	a, err := s.removable(ctx, account)
	if err != nil {
		return err
	}
	detail := ""
	if a.Grant != nil {
		detail = "left as it is at the provider"
	}
	return s.forget(ctx, account, detail)
}

func (s *Scope) forget(ctx context.Context, account id.Account, detail string) error {
	ev := s.event("removed")
	ev.Detail = detail
	if err := s.accounts.store.Remove(ctx, s.workspace, account, ev); err != nil {
		return err
	}
	s.changed()
	return nil
}

// Stat is what an account did that went one way.
type Stat struct {
	// Workspace is empty for the operator's.
	Workspace string `json:"workspace_id,omitempty"`
	Account   string `json:"account_id"`
	Provider  string `json:"provider"`
	// Reason is OK, or why not.
	Reason     string `json:"reason"`
	Requests   int64  `json:"requests"`
	TokensIn   int64  `json:"tokens_in"`
	TokensOut  int64  `json:"tokens_out"`
	CostMicros int64  `json:"cost_micros"`
}

// Stats returns what the accounts did since they were counted anew. It is half a second
// behind.
func (s *Scope) Stats(ctx context.Context) ([]Stat, error) {
	rows, err := s.accounts.store.Stats(ctx, s.workspace)
	if err != nil {
		return nil, err
	}
	out := make([]Stat, len(rows))
	for i, r := range rows {
		out[i] = Stat{
			Workspace: nameOf(r.Workspace), Account: r.Account.String(), Provider: r.Provider, Reason: string(r.Reason), Requests: r.Requests,
			TokensIn: r.TokensIn, TokensOut: r.TokensOut, CostMicros: r.CostMicros,
		}
	}
	return out, nil
}

// ResetStats begins to count anew, for one account or, with the zero one, for all.
func (s *Scope) ResetStats(ctx context.Context, account id.Account) error {
	return s.accounts.store.ResetStats(ctx, s.workspace, account, s.event("changed"))
}
