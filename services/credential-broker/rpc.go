package credentialbroker

import (
	"context"
	"maps"
	"slices"

	"connectrpc.com/connect"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/subject"
	credentialv1 "signalbox.dev/proto/signalbox/credential/v1"
	"signalbox.dev/services/credential-broker/internal/pool"
	"signalbox.dev/services/credential-broker/internal/store"
)

// accountServer is AccountService: what workspaces' owners may do with their own
// credentials. No answer holds a secret.
type accountServer struct {
	accounts *Accounts
	pool     *pool.Set
}

// require returns the actor if their role is enough and one of the given services
// vouches for them. Every service may call some of what is behind this door: none
// is to do more with it than it was made for.
func require(ctx context.Context, least identity.Role, services ...string) (identity.Actor, error) {
	actor, err := identity.Require(ctx, least)
	if call, ok := connect.CallInfoForHandlerContext(ctx); ok && actor.Address == "" {
		actor.Address = call.Peer().Addr // the service's own, where it does not say from where the actor calls
	}
	if err == nil && !slices.Contains(services, actor.Service) {
		return identity.Actor{}, fault.New(fault.Forbidden, "the service %s may not ask for this", actor.Service)
	}
	return actor, err
}

// scope is the caller's workspace, if they own it. All that owners may do comes through
// the gateway.
func (s *accountServer) scope(ctx context.Context) (*Scope, error) {
	actor, err := require(ctx, identity.Owner, subject.Gateway)
	if err != nil {
		return nil, err
	}
	return &Scope{accounts: s.accounts, by: actor, workspace: actor.Workspace, pool: s.pool}, nil
}

// one does something with an account of the caller's workspace.
func (s *accountServer) one(ctx context.Context, text string, do func(s *Scope, account id.Account) (Account, error)) (*credentialv1.Account, error) {
	scope, err := s.scope(ctx)
	if err != nil {
		return nil, err
	}
	account, err := accountID(text)
	if err != nil {
		return nil, err
	}
	a, err := do(scope, account)
	if err != nil {
		return nil, err
	}
	return message(a), nil
}

func accountID(text string) (id.Account, error) {
	account, err := id.Parse[id.Account](text)
	if err != nil {
		return account, fault.New(fault.Invalid, "id: %v", err)
	}
	return account, nil
}

// AddAccount seals a credential of the caller's workspace.
func (s *accountServer) AddAccount(ctx context.Context, req *credentialv1.AddAccountRequest) (*credentialv1.AddAccountResponse, error) {
	scope, err := s.scope(ctx)
	if err != nil {
		return nil, err
	}
	if req.GetShared() {
		return nil, fault.New(fault.Forbidden, "shared: only the operator's command line adds accounts that all workspaces share")
	}
	var account id.Account
	if req.GetId() != "" {
		if account, err = accountID(req.GetId()); err != nil {
			return nil, err
		}
	}
	n := NewAccount{
		FlatRate: req.GetFlatRate(), Provider: req.GetProvider(), Profile: req.GetProfile(), Label: req.GetLabel(),
		BaseURL: req.GetBaseUrl(), Secret: conf.Secret(req.GetSecret()),
	}
	if body := req.GetBody(); body != nil {
		if n, err = scope.newAccount(ctx, body); err != nil {
			return nil, err
		}
	}
	n.ID = account
	a, err := scope.Add(ctx, n)
	if err != nil {
		return nil, err
	}
	return &credentialv1.AddAccountResponse{Account: message(a)}, nil
}

// ListAccounts returns the workspace's accounts and the shared ones. Of a shared
// one it tells only that it is there.
func (s *accountServer) ListAccounts(ctx context.Context, _ *credentialv1.ListAccountsRequest) (*credentialv1.ListAccountsResponse, error) {
	scope, err := s.scope(ctx)
	if err != nil {
		return nil, err
	}
	own, err := scope.List(ctx)
	if err != nil {
		return nil, err
	}
	all, err := s.accounts.store.List(ctx, scope.workspace)
	if err != nil {
		return nil, err
	}
	res := &credentialv1.ListAccountsResponse{}
	for _, a := range own {
		res.Accounts = append(res.Accounts, message(a))
	}
	for i := range all {
		if all[i].Shared() {
			res.Accounts = append(res.Accounts, message(forWorkspace(&all[i])))
		}
	}
	return res, nil
}

// forWorkspace hides of a shared account what is the operator's business.
func forWorkspace(row *store.Account) Account {
	a := describe(row)
	a.Label, a.Hint, a.BaseURL, a.LastUsedAt = "", "", "", nil
	return a
}

// RemoveAccount forgets a credential of the caller's workspace.
func (s *accountServer) RemoveAccount(ctx context.Context, req *credentialv1.RemoveAccountRequest) (*credentialv1.RemoveAccountResponse, error) {
	scope, err := s.scope(ctx)
	if err != nil {
		return nil, err
	}
	account, err := accountID(req.GetId())
	if err != nil {
		return nil, err
	}
	if req.GetKeepAtProvider() {
		return &credentialv1.RemoveAccountResponse{}, scope.Forget(ctx, account)
	}
	r, err := scope.Remove(ctx, account)
	if err != nil {
		return nil, err
	}
	return &credentialv1.RemoveAccountResponse{AtProvider: r.AtProvider, Reason: r.Why}, nil
}

// EnableAccount lets requests go out under an account again.
func (s *accountServer) EnableAccount(ctx context.Context, req *credentialv1.EnableAccountRequest) (*credentialv1.EnableAccountResponse, error) {
	a, err := s.one(ctx, req.GetId(), func(s *Scope, a id.Account) (Account, error) { return s.Enable(ctx, a) })
	return &credentialv1.EnableAccountResponse{Account: a}, err
}

// DisableAccount keeps requests from an account.
func (s *accountServer) DisableAccount(ctx context.Context, req *credentialv1.DisableAccountRequest) (*credentialv1.DisableAccountResponse, error) {
	a, err := s.one(ctx, req.GetId(), func(s *Scope, a id.Account) (Account, error) { return s.Disable(ctx, a) })
	return &credentialv1.DisableAccountResponse{Account: a}, err
}

// SetFlatRate says whether an account is paid by the month.
func (s *accountServer) SetFlatRate(ctx context.Context, req *credentialv1.SetFlatRateRequest) (*credentialv1.SetFlatRateResponse, error) {
	a, err := s.one(ctx, req.GetId(), func(s *Scope, a id.Account) (Account, error) { return s.SetFlatRate(ctx, a, req.GetFlatRate()) })
	return &credentialv1.SetFlatRateResponse{Account: a}, err
}

// ResetAccount forgets an account's limits and makes it healthy.
func (s *accountServer) ResetAccount(ctx context.Context, req *credentialv1.ResetAccountRequest) (*credentialv1.ResetAccountResponse, error) {
	a, err := s.one(ctx, req.GetId(), func(s *Scope, a id.Account) (Account, error) { return s.Reset(ctx, a) })
	return &credentialv1.ResetAccountResponse{Account: a}, err
}

// SwitchAccount makes an account the current one of its pool.
func (s *accountServer) SwitchAccount(ctx context.Context, req *credentialv1.SwitchAccountRequest) (*credentialv1.SwitchAccountResponse, error) {
	a, err := s.one(ctx, req.GetId(), func(s *Scope, a id.Account) (Account, error) { return s.Switch(ctx, a) })
	return &credentialv1.SwitchAccountResponse{Account: a}, err
}

// ListProviders returns what every member's runs can call, and why not.
func (s *accountServer) ListProviders(ctx context.Context, _ *credentialv1.ListProvidersRequest) (*credentialv1.ListProvidersResponse, error) {
	actor, err := require(ctx, identity.Viewer, subject.Gateway, subject.AgentRunner)
	if err != nil {
		return nil, err
	}
	all, err := s.pool.Providers(ctx, actor.Workspace)
	if err != nil {
		return nil, err
	}
	res := &credentialv1.ListProvidersResponse{}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		r := all[name]
		res.Providers = append(res.Providers, &credentialv1.Provider{
			Name: name, Origin: origin(r.Origin), Dialect: string(r.Dialect), OwnBaseUrl: r.OwnBase, Problem: r.Problem,
		})
	}
	return res, nil
}

func origin(o pool.Origin) credentialv1.Origin {
	switch o {
	case pool.Workspace:
		return credentialv1.Origin_ORIGIN_WORKSPACE
	case pool.Shared:
		return credentialv1.Origin_ORIGIN_SHARED
	case pool.Environment:
		return credentialv1.Origin_ORIGIN_ENVIRONMENT
	case pool.Simulator:
		return credentialv1.Origin_ORIGIN_SIMULATOR
	}
	return credentialv1.Origin_ORIGIN_UNSPECIFIED
}
