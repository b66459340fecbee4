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
	"signalbox.dev/services/credential-broker/admin"
	"signalbox.dev/services/credential-broker/internal/pool"
)

// server is AccountService, through which workspaces' owners manage their own
// credentials, and ConnectionService, through which members connect tools. No answer
// holds a secret.
type server struct {
	accounts *admin.Accounts
	pool     *pool.Set
}

// require returns the actor if their role suffices and one of the given services vouches
// for them. Every service may call some of these methods, and each only what it needs.
func require(ctx context.Context, least identity.Role, services ...string) (identity.Actor, error) {
	actor, err := identity.Require(ctx, least)
	if call, ok := connect.CallInfoForHandlerContext(ctx); ok && actor.Address == "" {
		actor.Address = call.Peer().Addr // the calling service's, if it does not name the actor's
	}
	if err == nil && !slices.Contains(services, actor.Service) {
		return identity.Actor{}, fault.New(fault.Forbidden, "the service %s may not ask for this", actor.Service)
	}
	return actor, err
}

// scope returns the accounts of the caller's workspace.
func (s *server) scope(ctx context.Context, least identity.Role, services ...string) (*admin.Scope, error) {
	actor, err := require(ctx, least, services...)
	if err != nil {
		return nil, err
	}
	return s.accounts.For(actor, s.pool), nil
}

// owned returns the accounts of the caller's workspace if they own it. Owners come through
// the gateway.
func (s *server) owned(ctx context.Context) (*admin.Scope, error) {
	return s.scope(ctx, identity.Owner, subject.Gateway)
}

// one does something with an account of the caller's workspace.
func (s *server) one(ctx context.Context, text string, do func(s *admin.Scope, ctx context.Context, account id.Account) (admin.Account, error)) (*credentialv1.Account, error) {
	scope, err := s.owned(ctx)
	if err != nil {
		return nil, err
	}
	account, err := accountID(text)
	if err != nil {
		return nil, err
	}
	a, err := do(scope, ctx, account)
	if err != nil {
		return nil, err
	}
	return accountMessage(a), nil
}

func accountID(text string) (id.Account, error) {
	account, err := id.Parse[id.Account](text)
	if err != nil {
		return account, fault.New(fault.Invalid, "id: %v", err)
	}
	return account, nil
}

// optionalID is accountID for a field that may be empty.
func optionalID(text string) (id.Account, error) {
	if text == "" {
		return id.Account{}, nil
	}
	return accountID(text)
}

// AddAccount seals a credential of the caller's workspace.
func (s *server) AddAccount(ctx context.Context, req *credentialv1.AddAccountRequest) (*credentialv1.AddAccountResponse, error) {
	scope, err := s.owned(ctx)
	if err != nil {
		return nil, err
	}
	if req.GetShared() {
		return nil, fault.New(fault.Forbidden, "shared: only the operator's command line adds accounts that all workspaces share")
	}
	account, err := optionalID(req.GetId())
	if err != nil {
		return nil, err
	}
	n := admin.NewAccount{
		FlatRate: req.GetFlatRate(), Provider: req.GetProvider(), Profile: req.GetProfile(), Label: req.GetLabel(),
		BaseURL: req.GetBaseUrl(), Secret: conf.Secret(req.GetSecret()),
	}
	if body := req.GetBody(); body != nil {
		if n, err = scope.Unseal(ctx, body.GetKeyId(), body.GetSealed()); err != nil {
			return nil, err
		}
	}
	n.ID = account
	a, err := scope.Add(ctx, n)
	if err != nil {
		return nil, err
	}
	return &credentialv1.AddAccountResponse{Account: accountMessage(a)}, nil
}

// GetSealingKey returns the key with which the caller seals what only a broker may read.
func (s *server) GetSealingKey(ctx context.Context, _ *credentialv1.GetSealingKeyRequest) (*credentialv1.GetSealingKeyResponse, error) {
	scope, err := s.owned(ctx)
	if err != nil {
		return nil, err
	}
	key, err := scope.SealingKey(ctx)
	if err != nil {
		return nil, err
	}
	return &credentialv1.GetSealingKeyResponse{KeyId: key.ID, PublicKey: key.Public}, nil
}

// ListAccounts returns the workspace's accounts and the shared ones. Of a shared one it
// tells little more than that it exists.
func (s *server) ListAccounts(ctx context.Context, _ *credentialv1.ListAccountsRequest) (*credentialv1.ListAccountsResponse, error) {
	scope, err := s.owned(ctx)
	if err != nil {
		return nil, err
	}
	own, err := scope.List(ctx)
	if err != nil {
		return nil, err
	}
	shared, err := scope.Shared(ctx)
	if err != nil {
		return nil, err
	}
	res := &credentialv1.ListAccountsResponse{}
	for _, a := range slices.Concat(own, shared) {
		res.Accounts = append(res.Accounts, accountMessage(a))
	}
	return res, nil
}

// RemoveAccount forgets a credential of the caller's workspace.
func (s *server) RemoveAccount(ctx context.Context, req *credentialv1.RemoveAccountRequest) (*credentialv1.RemoveAccountResponse, error) {
	scope, err := s.owned(ctx)
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

// EnableAccount lets requests use an account again.
func (s *server) EnableAccount(ctx context.Context, req *credentialv1.EnableAccountRequest) (*credentialv1.EnableAccountResponse, error) {
	a, err := s.one(ctx, req.GetId(), (*admin.Scope).Enable)
	return &credentialv1.EnableAccountResponse{Account: a}, err
}

// DisableAccount keeps requests from using an account.
func (s *server) DisableAccount(ctx context.Context, req *credentialv1.DisableAccountRequest) (*credentialv1.DisableAccountResponse, error) {
	a, err := s.one(ctx, req.GetId(), (*admin.Scope).Disable)
	return &credentialv1.DisableAccountResponse{Account: a}, err
}

// SetFlatRate says whether an account is paid by the month.
func (s *server) SetFlatRate(ctx context.Context, req *credentialv1.SetFlatRateRequest) (*credentialv1.SetFlatRateResponse, error) {
	a, err := s.one(ctx, req.GetId(), func(s *admin.Scope, ctx context.Context, account id.Account) (admin.Account, error) {
		return s.SetFlatRate(ctx, account, req.GetFlatRate())
	})
	return &credentialv1.SetFlatRateResponse{Account: a}, err
}

// ResetAccount clears an account's limits and restores its health.
func (s *server) ResetAccount(ctx context.Context, req *credentialv1.ResetAccountRequest) (*credentialv1.ResetAccountResponse, error) {
	a, err := s.one(ctx, req.GetId(), (*admin.Scope).Reset)
	return &credentialv1.ResetAccountResponse{Account: a}, err
}

// SwitchAccount makes an account the current one of its pool.
func (s *server) SwitchAccount(ctx context.Context, req *credentialv1.SwitchAccountRequest) (*credentialv1.SwitchAccountResponse, error) {
	a, err := s.one(ctx, req.GetId(), (*admin.Scope).Switch)
	return &credentialv1.SwitchAccountResponse{Account: a}, err
}

// ListProviders returns the providers that every member's runs can call, and for the
// others why not.
func (s *server) ListProviders(ctx context.Context, _ *credentialv1.ListProvidersRequest) (*credentialv1.ListProvidersResponse, error) {
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
			Name: name, Origin: originEnum(string(r.Origin)), Dialect: string(r.Dialect), OwnBaseUrl: r.OwnBase, Problem: r.Problem,
		})
	}
	return res, nil
}
