package credentialbroker

import (
	"context"
	"maps"
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"

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
	if err == nil && !slices.Contains(services, actor.Service) {
		return identity.Actor{}, fault.New(fault.Forbidden, "the service %s may not ask for this", actor.Service)
	}
	return actor, err
}

// AddAccount seals a credential of the caller's workspace.
func (s *accountServer) AddAccount(ctx context.Context, req *credentialv1.AddAccountRequest) (*credentialv1.AddAccountResponse, error) {
	actor, err := require(ctx, identity.Owner, subject.Gateway)
	if err != nil {
		return nil, err
	}
	if req.GetShared() {
		return nil, fault.New(fault.Forbidden, "shared: only the operator's command line adds accounts that all workspaces share")
	}
	a, err := s.accounts.add(ctx, actor, NewAccount{
		Workspace: actor.Workspace, Provider: req.GetProvider(), Profile: req.GetProfile(), Label: req.GetLabel(),
		BaseURL: req.GetBaseUrl(), Secret: conf.Secret(req.GetSecret()),
	})
	if err != nil {
		return nil, err
	}
	s.pool.Forget(actor.Workspace)
	return &credentialv1.AddAccountResponse{Account: message(a)}, nil
}

// ListAccounts returns the workspace's accounts and the shared ones. Of a shared
// one it tells only that it is there.
func (s *accountServer) ListAccounts(ctx context.Context, _ *credentialv1.ListAccountsRequest) (*credentialv1.ListAccountsResponse, error) {
	actor, err := require(ctx, identity.Owner, subject.Gateway)
	if err != nil {
		return nil, err
	}
	all, err := s.accounts.store.List(ctx, actor.Workspace)
	if err != nil {
		return nil, err
	}
	res := &credentialv1.ListAccountsResponse{}
	for i := range all {
		res.Accounts = append(res.Accounts, message(forWorkspace(&all[i])))
	}
	return res, nil
}

// forWorkspace hides of a shared account what is the operator's business.
func forWorkspace(row *store.Account) Account {
	a := describe(row)
	if a.Shared {
		a.Label, a.Hint, a.BaseURL, a.LastUsedAt = "", "", "", nil
	}
	return a
}

// RemoveAccount forgets a credential of the caller's workspace.
func (s *accountServer) RemoveAccount(ctx context.Context, req *credentialv1.RemoveAccountRequest) (*credentialv1.RemoveAccountResponse, error) {
	actor, err := require(ctx, identity.Owner, subject.Gateway)
	if err != nil {
		return nil, err
	}
	account, err := id.Parse[id.Account](req.GetId())
	if err != nil {
		return nil, fault.New(fault.Invalid, "id: %v", err)
	}
	if err := s.accounts.remove(ctx, actor, actor.Workspace, account); err != nil {
		return nil, err
	}
	s.pool.Forget(actor.Workspace)
	return &credentialv1.RemoveAccountResponse{}, nil
}

// ListProviders returns what every member's runs can call.
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
		res.Providers = append(res.Providers, &credentialv1.Provider{Name: name, Origin: origin(all[name].Origin), Dialect: string(all[name].Profile.Dialect)})
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

func message(a Account) *credentialv1.Account {
	m := &credentialv1.Account{
		Id: a.ID, Provider: a.Provider, Profile: a.Profile, Label: a.Label, Hint: a.Hint, BaseUrl: a.BaseURL,
		Origin: credentialv1.Origin_ORIGIN_WORKSPACE, Enabled: a.Enabled, CreatedAt: timestamppb.New(a.CreatedAt),
	}
	if a.Shared {
		m.Origin = credentialv1.Origin_ORIGIN_SHARED
	}
	if a.LastUsedAt != nil {
		m.LastUsedAt = timestamppb.New(*a.LastUsedAt)
	}
	return m
}
