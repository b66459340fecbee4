package credentialbroker

import (
	"context"
	"time"

	"github.com/google/uuid"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/oauth"
)

// LoginKind is a way to sign in.
type LoginKind = oauth.Kind

// The ways.
const (
	LoginBrowser = oauth.Browser // the provider sends the browser back to the console, or to the command line
	LoginPaste   = oauth.Paste   // the provider shows a code, which is pasted
	LoginDevice  = oauth.Device  // a short code is typed in on another device
)

// Login is a sign-in that has begun.
type Login struct {
	ID   string    `json:"id"`
	Kind LoginKind `json:"kind"`
	// URL is what the person opens, and nobody else: it holds the state.
	URL         string    `json:"url"`
	UserCode    string    `json:"user_code,omitempty"`
	URLWithCode string    `json:"url_with_code,omitempty"`
	ExpiresAt   time.Time `json:"expires_at"`
	// Wait is how long to wait before each poll of a device.
	Wait time.Duration `json:"-"`
}

// LoopbackPath is where a command line that waits for a browser is sent it.
const LoopbackPath = oauth.LoopbackPath

// LoginWays returns how one can sign in to a provider without a console, the simplest way
// first; none where there is no way. LoginBrowser is with a loopback redirect.
func (a *Accounts) LoginWays(provider string) ([]LoginKind, error) {
	p, err := a.providers.Get(provider)
	if err != nil {
		return nil, err
	}
	var out []LoginKind
	if p.Loopback {
		out = append(out, LoginBrowser)
	}
	if p.Device != "" {
		out = append(out, LoginDevice)
	}
	if p.Authorize != "" && p.CodePage != "" {
		out = append(out, LoginPaste)
	}
	return out, nil
}

// LoginRequest says what to sign in to.
type LoginRequest = oauth.LoginRequest

// StartLogin begins signing in to a provider for a new account or, with an account, for
// that one again, in which case the provider may be empty.
func (s *Scope) StartLogin(ctx context.Context, r LoginRequest) (Login, error) {
	var err error
	if r.Label, err = labelOf(r.Label); err != nil {
		return Login{}, fault.New(fault.Invalid, "label: %v", err)
	}
	if !id.IsZero(r.Account) {
		if err := s.signedIn(ctx, r.Account); err != nil {
			return Login{}, err
		}
	}
	l, err := s.accounts.keeper.Start(ctx, s.who(), r)
	if err != nil {
		return Login{}, err
	}
	return Login{
		ID: l.ID.String(), Kind: l.Kind, URL: l.URL, UserCode: l.UserCode, URLWithCode: l.URLWithCode,
		ExpiresAt: time.Now().Add(l.Life).UTC().Truncate(time.Second), Wait: l.Wait,
	}, nil
}

// LoginAnswer is what came back from the provider.
type LoginAnswer struct {
	// Login may be empty where State is there.
	Login string
	State string
	// Code is the code, or all that was pasted.
	Code string
	// Error is what the provider sent the browser back with.
	Error string
}

// CompleteLogin ends a login and returns the account. Called again it answers the same.
func (s *Scope) CompleteLogin(ctx context.Context, answer LoginAnswer) (Account, error) {
	login, err := loginID(answer.Login)
	if err != nil {
		return Account{}, err
	}
	ref, err := s.accounts.keeper.Complete(ctx, s.who(), oauth.Answer{Login: login, State: answer.State, Code: answer.Code, Error: answer.Error})
	return s.done(ctx, ref.Account, err)
}

// loginID reads a login's id; the zero one where there is none.
func loginID(text string) (login uuid.UUID, err error) {
	if text == "" {
		return login, nil
	}
	if login, err = uuid.Parse(text); err != nil {
		return login, fault.New(fault.Invalid, "id: it is not the id of a sign-in")
	}
	return login, nil
}

// PollLogin asks whether a device's code was typed in. Until it was, wait is how long to
// wait. Called again after it was it answers the same.
func (s *Scope) PollLogin(ctx context.Context, login string) (account Account, wait time.Duration, err error) {
	l, err := uuid.Parse(login)
	if err != nil {
		return Account{}, 0, fault.New(fault.Invalid, "id: it is not the id of a sign-in")
	}
	p, err := s.accounts.keeper.Poll(ctx, s.who(), l)
	if err != nil {
		return Account{}, 0, err
	}
	if !p.Done {
		return Account{}, max(p.Wait, time.Second), nil
	}
	account, err = s.done(ctx, p.Account.Account, nil)
	return account, 0, err
}

// Refresh renews the access token of an account now.
func (s *Scope) Refresh(ctx context.Context, account id.Account) (Account, error) {
	if err := s.signedIn(ctx, account); err != nil {
		return Account{}, err
	}
	if err := s.Opens(ctx, account); err != nil {
		return Account{}, err
	}
	return s.done(ctx, account, s.accounts.keeper.Refresh(ctx, s.who(), s.ref(account)))
}

// Revocation is how a sign-out went at the provider.
type Revocation = oauth.Revocation

// Logout takes a sign-in back, here and at the provider. The account stays, and can be
// signed in to again. One whose token does not open is left as it is: nobody could tell
// the provider, and with the right key somebody still can.
func (s *Scope) Logout(ctx context.Context, account id.Account) (Account, Revocation, error) {
	if err := s.signedIn(ctx, account); err != nil {
		return Account{}, Revocation{}, err
	}
	if err := s.Opens(ctx, account); err != nil {
		return Account{}, Revocation{}, err
	}
	r, err := s.accounts.keeper.Revoke(ctx, s.who(), s.ref(account))
	a, err := s.done(ctx, account, err)
	return a, r, err
}

// signedIn refuses accounts that are keys.
func (s *Scope) signedIn(ctx context.Context, account id.Account) error {
	a, err := s.Get(ctx, account)
	if err == nil && a.Grant == nil {
		err = fault.New(fault.Conflict, "account %s is a key: nobody signed in to it; to be rid of it, remove it", account)
	}
	return err
}
