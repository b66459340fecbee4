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
	"signalbox.dev/proto/signalbox/credential/v1/credentialv1connect"
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

// access says who may call a method. Methods that are not listed are for owners, through
// the gateway.
var access = map[string]rule{
	credentialv1connect.AccountServiceListProvidersProcedure:         {identity.Viewer, []string{subject.Gateway, subject.AgentRunner}},
	credentialv1connect.ConnectionServiceListConnectionsProcedure:    {identity.Viewer, []string{subject.Gateway, subject.ToolExecutor}},
	credentialv1connect.ConnectionServiceStartConnectionProcedure:    {identity.Editor, []string{subject.Gateway}},
	credentialv1connect.ConnectionServiceCompleteConnectionProcedure: {identity.Editor, []string{subject.Gateway}},
	credentialv1connect.ConnectionServiceDisconnectProcedure:         {identity.Editor, []string{subject.Gateway}},
}

type rule struct {
	least    identity.Role
	services []string // that may vouch for the caller
}

// authorize is the interceptor that applies access, and gives methods their scope.
func (s *server) authorize(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		r, ok := access[req.Spec().Procedure]
		if !ok {
			r = rule{identity.Owner, []string{subject.Gateway}}
		}
		actor, err := identity.Require(ctx, r.least)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(r.services, actor.Service) {
			return nil, fault.New(fault.Forbidden, "the service %s may not call this", actor.Service)
		}
		if actor.Address == "" {
			actor.Address = req.Peer().Addr // the calling service's, if it does not name the actor's
		}
		return next(context.WithValue(ctx, scopeKey{}, s.accounts.For(actor, s.pool)), req)
	}
}

type scopeKey struct{}

// scope returns the accounts of the caller's workspace; it panics without authorize.
func scope(ctx context.Context) *admin.Scope { return ctx.Value(scopeKey{}).(*admin.Scope) }

// one does something with an account of the caller's workspace.
func one(ctx context.Context, text string, do func(s *admin.Scope, ctx context.Context, account id.Account) (admin.Account, error)) (*credentialv1.Account, error) {
	account, err := accountID(text)
	if err != nil {
		return nil, err
	}
	a, err := do(scope(ctx), ctx, account)
	return accountMessage(a), err
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
		if n, err = scope(ctx).Unseal(ctx, body.GetKeyId(), body.GetSealed()); err != nil {
			return nil, err
		}
	}
	n.ID = account
	a, err := scope(ctx).Add(ctx, n)
	return &credentialv1.AddAccountResponse{Account: accountMessage(a)}, err
}

// GetSealingKey returns the key with which the caller seals what only a broker may read.
func (s *server) GetSealingKey(ctx context.Context, _ *credentialv1.GetSealingKeyRequest) (*credentialv1.GetSealingKeyResponse, error) {
	key, err := scope(ctx).SealingKey(ctx)
	return &credentialv1.GetSealingKeyResponse{KeyId: key.ID, PublicKey: key.Public}, err
}

// ListAccounts returns the workspace's accounts and the shared ones. Of a shared one it
// tells little more than that it exists.
func (s *server) ListAccounts(ctx context.Context, _ *credentialv1.ListAccountsRequest) (*credentialv1.ListAccountsResponse, error) {
	own, err := scope(ctx).List(ctx)
	if err != nil {
		return nil, err
	}
	shared, err := scope(ctx).Shared(ctx)
	return &credentialv1.ListAccountsResponse{Accounts: each(slices.Concat(own, shared), accountMessage)}, err
}

// RemoveAccount forgets a credential of the caller's workspace.
func (s *server) RemoveAccount(ctx context.Context, req *credentialv1.RemoveAccountRequest) (*credentialv1.RemoveAccountResponse, error) {
	account, err := accountID(req.GetId())
	if err != nil {
		return nil, err
	}
	if req.GetKeepAtProvider() {
		return &credentialv1.RemoveAccountResponse{}, scope(ctx).Forget(ctx, account)
	}
	r, err := scope(ctx).Remove(ctx, account)
	return &credentialv1.RemoveAccountResponse{AtProvider: r.AtProvider, Reason: r.Why}, err
}

// EnableAccount lets requests use an account again.
func (s *server) EnableAccount(ctx context.Context, req *credentialv1.EnableAccountRequest) (*credentialv1.EnableAccountResponse, error) {
	a, err := one(ctx, req.GetId(), (*admin.Scope).Enable)
	return &credentialv1.EnableAccountResponse{Account: a}, err
}

// DisableAccount keeps requests from using an account.
func (s *server) DisableAccount(ctx context.Context, req *credentialv1.DisableAccountRequest) (*credentialv1.DisableAccountResponse, error) {
	a, err := one(ctx, req.GetId(), (*admin.Scope).Disable)
	return &credentialv1.DisableAccountResponse{Account: a}, err
}

// SetFlatRate says whether an account is paid by the month.
func (s *server) SetFlatRate(ctx context.Context, req *credentialv1.SetFlatRateRequest) (*credentialv1.SetFlatRateResponse, error) {
	a, err := one(ctx, req.GetId(), func(s *admin.Scope, ctx context.Context, account id.Account) (admin.Account, error) {
		return s.SetFlatRate(ctx, account, req.GetFlatRate())
	})
	return &credentialv1.SetFlatRateResponse{Account: a}, err
}

// ResetAccount clears an account's limits and restores its health.
func (s *server) ResetAccount(ctx context.Context, req *credentialv1.ResetAccountRequest) (*credentialv1.ResetAccountResponse, error) {
	a, err := one(ctx, req.GetId(), (*admin.Scope).Reset)
	return &credentialv1.ResetAccountResponse{Account: a}, err
}

// SwitchAccount makes an account the current one of its pool.
func (s *server) SwitchAccount(ctx context.Context, req *credentialv1.SwitchAccountRequest) (*credentialv1.SwitchAccountResponse, error) {
	a, err := one(ctx, req.GetId(), (*admin.Scope).Switch)
	return &credentialv1.SwitchAccountResponse{Account: a}, err
}

// ListProviders returns the providers that every member's runs can call, and for the
// others why not.
func (s *server) ListProviders(ctx context.Context, _ *credentialv1.ListProvidersRequest) (*credentialv1.ListProvidersResponse, error) {
	all, err := s.pool.Providers(ctx, scope(ctx).Workspace())
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
