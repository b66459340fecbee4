package admin

import (
	"context"
	"strings"
	"time"

	"github.com/google/uuid"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/oauth"
)

type (
	// LoginKind is a way to sign in.
	LoginKind = oauth.Kind
	// LoginRequest says what to sign in to.
	LoginRequest = oauth.LoginRequest
	// ServerRequest says which MCP server to sign in to.
	ServerRequest = oauth.ServerRequest
	// LoginAnswer is what came back from the provider.
	LoginAnswer = oauth.Answer
	// Revocation is how a sign-out went at the provider.
	Revocation = oauth.Revocation
)

// The ways to sign in.
const (
	LoginBrowser = oauth.Browser // the provider sends the browser back to the console, or to the command line
	LoginPaste   = oauth.Paste   // the provider shows a code, which is pasted
	LoginDevice  = oauth.Device  // a short code is entered on another device
)

// The paths to which browsers are sent back at a command line that waits for one: the second
// from MCP servers' authorization servers that know this client by its document.
const (
	LoopbackPath         = oauth.LoopbackPath
	DocumentLoopbackPath = oauth.DocumentLoopbackPath
)

// Login is a sign-in that has begun.
type Login struct {
	ID   uuid.UUID `json:"id"`
	Kind LoginKind `json:"kind"`
	// URL is for the person who signs in and nobody else: it holds the state.
	URL         string    `json:"url"`
	UserCode    string    `json:"user_code,omitempty"`
	URLWithCode string    `json:"url_with_code,omitempty"`
	ExpiresAt   time.Time `json:"expires_at"`
	// Wait is how long to wait before each poll of a device.
	Wait time.Duration `json:"-"`
}

// LoginProvider is a provider that people can sign in to.
type LoginProvider struct {
	Name, Provider string
	Kinds          []LoginKind // in the console
	Problem        string      // why nobody can sign in now; empty if they can
}

// Logins returns the providers that people can sign in to.
func (a *Accounts) Logins() (all []LoginProvider, err error) {
	for _, name := range a.providers.Names() {
		p, err := a.providers.Get(name)
		if err != nil {
			return nil, err
		}
		l := LoginProvider{Name: p.Name, Provider: p.Account, Kinds: loginKinds(p, p.Authorize != "" && a.redirect != "")}
		if err := p.Ready(); err != nil {
			l.Problem = fault.From(err).Message
		}
		all = append(all, l)
	}
	return all, nil
}

// LoginKinds returns how the command line can sign in to a provider.
func (a *Accounts) LoginKinds(provider string) ([]LoginKind, error) {
	p, err := a.providers.Get(provider)
	if err != nil {
		return nil, err
	}
	return loginKinds(p, p.Loopback), nil
}

func loginKinds(p *oauth.Provider, browser bool) (kinds []LoginKind) {
	if browser {
		kinds = append(kinds, LoginBrowser)
	}
	if p.Authorize != "" && p.CodePage != "" {
		kinds = append(kinds, LoginPaste)
	}
	if p.Device != "" {
		kinds = append(kinds, LoginDevice)
	}
	return kinds
}

// StartLogin begins a sign-in at a provider for a new account or, with an account, again
// for that one; the provider may then be empty.
func (s *Scope) StartLogin(ctx context.Context, r LoginRequest) (Login, error) {
	var err error
	if r.Label, err = checkLabel(r.Label); err != nil {
		return Login{}, err
	}
	if !id.IsZero(r.Account) {
		if err := s.checkGrant(ctx, r.Account); err != nil {
			return Login{}, err
		}
	}
	l, err := s.accounts.Keeper.Start(ctx, s.by, r)
	if err != nil {
		return Login{}, err
	}
	return Login{
		ID: l.ID, Kind: l.Kind, URL: l.URL, UserCode: l.UserCode, URLWithCode: l.URLWithCode,
		ExpiresAt: time.Now().Add(l.Life).UTC().Truncate(time.Second), Wait: l.Wait,
	}, nil
}

// serverProvider begins the provider of every account for an MCP server.
const serverProvider = "mcp-"

// The bounds of a ServerRequest, in bytes.
const (
	maxServerURL = 2048
	maxClient    = 2048
)

// StartServerLogin begins a sign-in to an MCP server, whose authorization server is
// discovered. It is for the account that the workspace has for the server, or for a new one.
func (s *Scope) StartServerLogin(ctx context.Context, r LoginRequest) (Login, error) {
	if err := s.Possible(); err != nil {
		return Login{}, err
	}
	n := r.Server
	switch {
	case s.shared() || !id.IsZero(r.Account):
		return Login{}, fault.New(fault.Invalid, "mcp_server: a workspace signs in to it, and the account follows from the server")
	case !strings.HasPrefix(r.Provider, serverProvider):
		return Login{}, fault.New(fault.Invalid, "provider: the accounts of an MCP server have the provider %s<name>", serverProvider)
	case len(n.URL) > maxServerURL || len(n.Metadata) > maxServerURL || len(n.Scope) > maxServerURL:
		return Login{}, fault.New(fault.Invalid, "mcp_server: url, resource_metadata and scope have at most %d bytes each", maxServerURL)
	case len(n.ClientID) > maxClient || n.ClientID == "" && !n.Secret.IsZero():
		return Login{}, fault.New(fault.Invalid, "client_id: it is longer than %d bytes, or there is a client_secret without it", maxClient)
	}
	if err := checkProvider(r.Provider); err != nil {
		return Login{}, err
	}
	if text := n.Secret.Reveal(); text != "" {
		if err := CheckSecret(text); err != nil {
			return Login{}, fault.New(fault.Invalid, "client_secret: %v", err)
		}
	}
	own, err := s.List(ctx)
	if err != nil {
		return Login{}, err
	}
	for _, a := range own {
		switch {
		case a.Provider != r.Provider:
		case a.Grant == nil:
			return Login{}, fault.Coded(fault.Conflict, "MCP_HAS_TOKEN", "the workspace has a token for this MCP server, in account %s: remove that account to sign in instead", a.ID)
		case a.BaseURL != oauth.Origin(n.URL):
			return Login{}, fault.Coded(fault.Conflict, "MCP_OTHER_SERVER", "account %s is for an MCP server of the same name at %s: remove that account first", a.ID, a.BaseURL)
		default:
			r.Account = a.ID
		}
	}
	return s.StartLogin(ctx, r)
}

// CompleteLogin ends a sign-in and returns the account. A repeat returns the same.
func (s *Scope) CompleteLogin(ctx context.Context, answer LoginAnswer) (Account, error) {
	ref, err := s.accounts.Keeper.Complete(ctx, s.by, answer)
	return s.changed(ctx, ref.Account, err)
}

// PollLogin asks whether a device's code was entered. Until it was, wait is how long to
// wait before the next call. A repeat after that returns the same account.
func (s *Scope) PollLogin(ctx context.Context, login uuid.UUID) (account Account, wait time.Duration, err error) {
	p, err := s.accounts.Keeper.Poll(ctx, s.by, login)
	if err != nil {
		return Account{}, 0, err
	}
	if !p.Done {
		return Account{}, max(p.Wait, time.Second), nil
	}
	account, err = s.changed(ctx, p.Account.Account, nil)
	return account, 0, err
}

// Refresh renews the access token of an account now.
func (s *Scope) Refresh(ctx context.Context, account id.Account) (Account, error) {
	if err := s.checkTokens(ctx, account); err != nil {
		return Account{}, err
	}
	return s.changed(ctx, account, s.accounts.Keeper.Refresh(ctx, s.by, s.ref(account)))
}

// Logout revokes a sign-in, here and at the provider. The account stays and can be signed
// in to again. If its tokens cannot be decrypted it is left unchanged: the provider could
// not be told, and the right key may still be found.
func (s *Scope) Logout(ctx context.Context, account id.Account) (Account, Revocation, error) {
	if err := s.checkTokens(ctx, account); err != nil {
		return Account{}, Revocation{}, err
	}
	r, err := s.accounts.Keeper.Revoke(ctx, s.by, s.ref(account))
	a, err := s.changed(ctx, account, err)
	return a, r, err
}

// checkTokens refuses accounts that are keys, and those whose tokens cannot be decrypted.
func (s *Scope) checkTokens(ctx context.Context, account id.Account) error {
	if err := s.checkGrant(ctx, account); err != nil {
		return err
	}
	return s.CheckDecrypt(ctx, account)
}

// checkGrant refuses accounts that are keys.
func (s *Scope) checkGrant(ctx context.Context, account id.Account) error {
	a, err := s.Get(ctx, account)
	if err == nil && a.Grant == nil {
		err = fault.New(fault.Conflict, "account %s is an API key, not a sign-in: to stop using it, remove the account", account)
	}
	return err
}
