package credentialbroker

import (
	"context"
	"strings"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	credentialv1 "signalbox.dev/proto/signalbox/credential/v1"
	"signalbox.dev/services/credential-broker/admin"
	"signalbox.dev/services/credential-broker/internal/vault"
)

const kindPrefix = "LOGIN_KIND_"

// StartLogin begins a sign-in at a provider.
func (s *server) StartLogin(ctx context.Context, req *credentialv1.StartLoginRequest) (*credentialv1.StartLoginResponse, error) {
	if _, known := credentialv1.LoginKind_name[int32(req.GetKind())]; !known || req.GetKind() == credentialv1.LoginKind_LOGIN_KIND_UNSPECIFIED {
		return nil, fault.New(fault.Invalid, "kind: choose how to sign in: browser, paste or device")
	}
	account, err := optionalID(req.GetAccountId())
	if err != nil {
		return nil, err
	}
	login, err := loginID(req.GetId())
	if err != nil {
		return nil, err
	}
	kind := admin.LoginKind(strings.ToLower(strings.TrimPrefix(req.GetKind().String(), kindPrefix)))
	r := admin.LoginRequest{ID: login, Provider: req.GetProvider(), Kind: kind, Label: req.GetLabel(), Account: account}
	start := (*admin.Scope).StartLogin
	if m := req.GetMcpServer(); m != nil {
		r.Redirect, start = m.GetRedirect(), (*admin.Scope).StartServerLogin
		r.Server = &admin.ServerRequest{
			URL: m.GetUrl(), Metadata: m.GetResourceMetadata(), Scope: m.GetScope(), ClientID: m.GetClientId(), Secret: vault.NewSecret(m.GetClientSecret()),
		}
	}
	l, err := start(scope(ctx), ctx, r)
	if err != nil {
		return nil, err
	}
	return &credentialv1.StartLoginResponse{
		Id: l.ID.String(), Kind: req.GetKind(), Url: l.URL, UserCode: l.UserCode, UrlWithCode: l.URLWithCode,
		PollSeconds: seconds(l.Wait), ExpiresAt: timestamppb.New(l.ExpiresAt),
	}, nil
}

var errLoginID = fault.New(fault.Invalid, "id: it is not the id of a sign-in")

// loginID parses the id of a sign-in; an empty one is the zero id.
func loginID(text string) (uuid.UUID, error) {
	if text == "" {
		return uuid.Nil, nil
	}
	login, err := uuid.Parse(text)
	if err != nil {
		return uuid.Nil, errLoginID
	}
	return login, nil
}

// CompleteLogin ends a sign-in.
func (s *server) CompleteLogin(ctx context.Context, req *credentialv1.CompleteLoginRequest) (*credentialv1.CompleteLoginResponse, error) {
	login, err := loginID(req.GetId())
	if err != nil {
		return nil, err
	}
	a, err := scope(ctx).CompleteLogin(ctx, admin.LoginAnswer{Login: login, State: req.GetState(), Code: req.GetCode(), Error: req.GetError(), Issuer: req.GetIssuer(), Redirect: req.GetRedirect()})
	return &credentialv1.CompleteLoginResponse{Account: accountMessage(a)}, err
}

// PollLogin asks whether a device's code was entered.
func (s *server) PollLogin(ctx context.Context, req *credentialv1.PollLoginRequest) (*credentialv1.PollLoginResponse, error) {
	login, err := loginID(req.GetId())
	if err == nil && login == uuid.Nil {
		err = errLoginID
	}
	if err != nil {
		return nil, err
	}
	a, wait, err := scope(ctx).PollLogin(ctx, login)
	if wait > 0 {
		return &credentialv1.PollLoginResponse{PollSeconds: seconds(wait)}, err
	}
	return &credentialv1.PollLoginResponse{Account: accountMessage(a)}, err
}

// RefreshAccount renews the access token of an account now.
func (s *server) RefreshAccount(ctx context.Context, req *credentialv1.RefreshAccountRequest) (*credentialv1.RefreshAccountResponse, error) {
	a, err := one(ctx, req.GetId(), (*admin.Scope).Refresh)
	return &credentialv1.RefreshAccountResponse{Account: a}, err
}

// LogoutAccount revokes a sign-in.
func (s *server) LogoutAccount(ctx context.Context, req *credentialv1.LogoutAccountRequest) (*credentialv1.LogoutAccountResponse, error) {
	var r admin.Revocation
	a, err := one(ctx, req.GetId(), func(s *admin.Scope, ctx context.Context, account id.Account) (a admin.Account, err error) {
		a, r, err = s.Logout(ctx, account)
		return a, err
	})
	return &credentialv1.LogoutAccountResponse{AtProvider: r.AtProvider, Reason: r.Why, Account: a}, err
}

// ListAccountKinds returns the kinds of accounts that can be added.
func (s *server) ListAccountKinds(ctx context.Context, _ *credentialv1.ListAccountKindsRequest) (*credentialv1.ListAccountKindsResponse, error) {
	logins, err := s.accounts.Logins()
	if err != nil {
		return nil, err
	}
	res := &credentialv1.ListAccountKindsResponse{KeyProviders: s.accounts.Providers(), Profiles: s.accounts.Profiles.Names()}
	for _, l := range logins {
		m := &credentialv1.LoginProvider{Name: l.Name, Provider: l.Provider, Reason: l.Problem}
		for _, k := range l.Kinds {
			m.Kinds = append(m.Kinds, enum[credentialv1.LoginKind](credentialv1.LoginKind_value, kindPrefix, k))
		}
		res.Logins = append(res.Logins, m)
	}
	return res, nil
}
