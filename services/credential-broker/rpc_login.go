package credentialbroker

import (
	"context"
	"math"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	credentialv1 "signalbox.dev/proto/signalbox/credential/v1"
	"signalbox.dev/services/credential-broker/internal/oauth"
)

// StartLogin begins signing in to a provider.
func (s *accountServer) StartLogin(ctx context.Context, req *credentialv1.StartLoginRequest) (*credentialv1.StartLoginResponse, error) {
	scope, err := s.scope(ctx)
	if err != nil {
		return nil, err
	}
	kind, err := loginKind(req.GetKind())
	if err != nil {
		return nil, err
	}
	var account id.Account
	if req.GetAccountId() != "" {
		if account, err = accountID(req.GetAccountId()); err != nil {
			return nil, err
		}
	}
	login, err := loginID(req.GetId())
	if err != nil {
		return nil, err
	}
	l, err := scope.StartLogin(ctx, LoginRequest{ID: login, Provider: req.GetProvider(), Kind: kind, Label: req.GetLabel(), Account: account})
	if err != nil {
		return nil, err
	}
	return &credentialv1.StartLoginResponse{
		Id: l.ID, Kind: req.GetKind(), Url: l.URL, UserCode: l.UserCode, UrlWithCode: l.URLWithCode,
		PollSeconds: seconds(l.Wait), ExpiresAt: timestamppb.New(l.ExpiresAt),
	}, nil
}

func loginKind(k credentialv1.LoginKind) (LoginKind, error) {
	switch k {
	case credentialv1.LoginKind_LOGIN_KIND_BROWSER:
		return LoginBrowser, nil
	case credentialv1.LoginKind_LOGIN_KIND_PASTE:
		return LoginPaste, nil
	case credentialv1.LoginKind_LOGIN_KIND_DEVICE:
		return LoginDevice, nil
	case credentialv1.LoginKind_LOGIN_KIND_UNSPECIFIED:
	}
	return "", fault.New(fault.Invalid, "kind: say how to sign in: browser, paste or device")
}

// seconds returns whole seconds, no fewer than d is.
func seconds(d time.Duration) int32 { return int32(min(math.Ceil(d.Seconds()), math.MaxInt32)) }

// CompleteLogin ends a login.
func (s *accountServer) CompleteLogin(ctx context.Context, req *credentialv1.CompleteLoginRequest) (*credentialv1.CompleteLoginResponse, error) {
	scope, err := s.scope(ctx)
	if err != nil {
		return nil, err
	}
	a, err := scope.CompleteLogin(ctx, LoginAnswer{Login: req.GetId(), State: req.GetState(), Code: req.GetCode(), Error: req.GetError()})
	if err != nil {
		return nil, err
	}
	return &credentialv1.CompleteLoginResponse{Account: message(a)}, nil
}

// PollLogin asks whether a device's code was typed in.
func (s *accountServer) PollLogin(ctx context.Context, req *credentialv1.PollLoginRequest) (*credentialv1.PollLoginResponse, error) {
	scope, err := s.scope(ctx)
	if err != nil {
		return nil, err
	}
	a, wait, err := scope.PollLogin(ctx, req.GetId())
	switch {
	case err != nil:
		return nil, err
	case wait > 0:
		return &credentialv1.PollLoginResponse{PollSeconds: seconds(wait)}, nil
	}
	return &credentialv1.PollLoginResponse{Account: message(a)}, nil
}

// RefreshAccount renews the access token of an account now.
func (s *accountServer) RefreshAccount(ctx context.Context, req *credentialv1.RefreshAccountRequest) (*credentialv1.RefreshAccountResponse, error) {
	a, err := s.one(ctx, req.GetId(), func(s *Scope, a id.Account) (Account, error) { return s.Refresh(ctx, a) })
	return &credentialv1.RefreshAccountResponse{Account: a}, err
}

// LogoutAccount takes a sign-in back.
func (s *accountServer) LogoutAccount(ctx context.Context, req *credentialv1.LogoutAccountRequest) (*credentialv1.LogoutAccountResponse, error) {
	var r Revocation
	a, err := s.one(ctx, req.GetId(), func(s *Scope, account id.Account) (a Account, err error) {
		a, r, err = s.Logout(ctx, account)
		return a, err
	})
	return &credentialv1.LogoutAccountResponse{AtProvider: r.AtProvider, Reason: r.Why, Account: a}, err
}

// ListAccountKinds returns what accounts can be added.
func (s *accountServer) ListAccountKinds(ctx context.Context, _ *credentialv1.ListAccountKindsRequest) (*credentialv1.ListAccountKindsResponse, error) {
	if _, err := s.scope(ctx); err != nil {
		return nil, err
	}
	res := &credentialv1.ListAccountKindsResponse{KeyProviders: s.accounts.Providers(), Profiles: s.accounts.profiles.Names()}
	for _, name := range s.accounts.providers.Names() {
		p, err := s.accounts.providers.Get(name)
		if err != nil {
			return nil, err
		}
		l := &credentialv1.LoginProvider{Name: p.Name, Provider: p.Account, Kinds: s.accounts.loginKinds(p)}
		if err := p.Ready(); err != nil {
			l.Reason = fault.From(err).Message
		}
		res.Logins = append(res.Logins, l)
	}
	return res, nil
}

func (a *Accounts) loginKinds(p *oauth.Provider) (kinds []credentialv1.LoginKind) {
	if p.Authorize != "" && a.redirect != "" {
		kinds = append(kinds, credentialv1.LoginKind_LOGIN_KIND_BROWSER)
	}
	if p.Authorize != "" && p.CodePage != "" {
		kinds = append(kinds, credentialv1.LoginKind_LOGIN_KIND_PASTE)
	}
	if p.Device != "" {
		kinds = append(kinds, credentialv1.LoginKind_LOGIN_KIND_DEVICE)
	}
	return kinds
}
