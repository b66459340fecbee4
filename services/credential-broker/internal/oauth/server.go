package oauth

import (
	"cmp"
	"context"
	"net/url"
	"slices"
	"strings"

	"github.com/google/uuid"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/services/credential-broker/internal/discover"
	"signalbox.dev/services/credential-broker/internal/store"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// An MCP server's authorization server is in no file: it is discovered when somebody begins to
// sign in, and kept with the login and then with the grant. A renewal goes to the server that
// issued the token, whatever the MCP server says by then.

// ServerRequest says which MCP server to sign in to.
type ServerRequest struct {
	URL string
	// Metadata and Scope are the parameters of its challenge; empty for none.
	Metadata, Scope string
	// ClientID and Secret are a client that somebody registered by hand; empty for none.
	ClientID string
	Secret   vault.Secret
}

// serverProfile is the request profile of accounts for MCP servers.
const serverProfile = "mcp"

// provider returns the provider of a login or a grant. The caller may change one that was
// discovered.
func (k *Keeper) provider(name string, s *store.Server) (*Provider, error) {
	if s != nil {
		return discovered(name, s), nil
	}
	return k.cfg.Providers.Get(name)
}

// discovered returns a server as a provider, without its client's secret.
func discovered(name string, s *store.Server) *Provider {
	resource := map[string]string{"resource": s.Resource}
	return &Provider{
		Name: name, Account: name, Profile: serverProfile, server: s, Scopes: s.Scopes,
		Endpoints: Endpoints{Authorize: s.Authorize, Token: s.Token, Revoke: s.Revoke},
		Identity:  Identity{Client: Client{ID: s.ClientID}, Auth: ClientAuth(s.Auth), Loopback: true},
		Request:   Request{Encoding: Form, AuthorizeParams: resource, TokenParams: resource},
		Tokens:    Tokens{Rotates: true, Ahead: defaultAhead},
		Void:      []string{"invalid_client", "unauthorized_client"}, // a registration can end, too
	}
}

// base returns the base URL of the provider's accounts: of an MCP server its origin; otherwise
// it is empty.
func (p *Provider) base() string {
	if p.server == nil {
		return ""
	}
	return Origin(p.server.URL)
}

// Origin returns the scheme and host of a URL.
func Origin(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return ""
	}
	return u.Scheme + "://" + u.Host
}

// documentPath follows the path of a redirect page where the client is the client id metadata
// document. The document is public and lists these pages alone: a hostile authorization server
// can send a browser on to an honest one that accepts the document, but the answer comes to a
// page at which no login of the hostile server ends (mix-up, RFC 9700, section 4.4).
const documentPath = "document"

// redirectOf returns the page for a login at a server, next to the usual one.
func redirectOf(usual string, s *store.Server) string {
	u, err := url.Parse(usual)
	if err != nil || !s.Document {
		return usual
	}
	return u.JoinPath(documentPath).String()
}

// checkRedirect refuses an answer that came to another page than the login's.
func (k *Keeper) checkRedirect(p *Provider, l *store.Login, path string) error {
	if path == "" && p.server != nil && k.cfg.Document != "" {
		return fault.New(fault.Invalid, "redirect: it is missing: say to which page the browser was sent back, such as /api/connections/callback")
	}
	u, err := url.Parse(l.Redirect)
	if path != "" && (err != nil || path[0] != '/' || !strings.HasSuffix(u.Path, path)) {
		return fault.Coded(fault.Conflict, "LOGIN_FAILED", "the answer to the sign-in came to another page than the one that %s was given: start again, and if that repeats, do not trust the server", p.Name)
	}
	return nil
}

// checkIssuer refuses an answer that names another issuer than the one that was asked (RFC
// 9207), or none if the server had said that it would name itself.
func (p *Provider) checkIssuer(issuer string) error {
	switch {
	case p.server == nil:
		return nil
	case issuer == "" && p.server.NamesItself:
		return fault.Coded(fault.Conflict, "LOGIN_FAILED", "the answer to the sign-in does not say which server it is from (iss), which %s always says: start again", p.Name)
	case issuer != "" && issuer != p.server.Issuer:
		return fault.Coded(fault.Conflict, "LOGIN_FAILED", "the answer to the sign-in is from another server (iss) than the one that %s names: start again, and if that repeats, do not trust the server", p.Name)
	}
	return nil
}

// startAtServer begins a login at an MCP server's authorization server. known is that of the
// account to be authorized again, if any.
func (k *Keeper) startAtServer(ctx context.Context, by identity.Actor, r LoginRequest, known *store.Server) (Login, error) {
	if r.Kind != Browser {
		return Login{}, fault.New(fault.Invalid, "kind: one signs in to an MCP server with a browser")
	}
	if err := r.checkRedirect(&Provider{Identity: Identity{Loopback: true}}); err != nil {
		return Login{}, err
	}
	l := r.login(&Provider{Name: r.Provider})
	if l.Redirect = cmp.Or(r.Redirect, k.cfg.Redirect); l.Redirect == "" {
		return Login{}, fault.Coded(fault.Conflict, "OAUTH_REDIRECT_MISSING", "signing in to MCP servers in a browser is not set up: the operator has to set CREDENTIAL_BROKER_OAUTH_REDIRECT to this server's https://…/api/connections/callback; `signalbox mcp sign-in` works without")
	}
	// A repetition must not register another client.
	switch first, err := k.begun(ctx, by, r.ID); {
	case err != nil:
		return Login{}, err
	case first != nil && first.Server != nil:
		l.Server, l.Redirect = first.Server, redirectOf(l.Redirect, first.Server)
		return k.startBrowser(ctx, by, discovered(r.Provider, first.Server), l)
	}
	s, secret, err := discover.Find(ctx, discover.Config{HTTP: k.guarded, Check: k.cfg.CheckEndpoint, UserAgent: k.cfg.UserAgent, Document: k.cfg.Document}, discover.Request{
		URL: r.Server.URL, Metadata: r.Server.Metadata, Scope: r.Server.Scope, ClientID: r.Server.ClientID, Secret: r.Server.Secret,
		Redirect: l.Redirect, Loopback: r.Redirect != "",
	})
	if err != nil {
		return Login{}, err
	}
	if known != nil && known.Issuer == s.Issuer && r.Server.Scope != "" { // it asks for more
		for _, scope := range known.Scopes {
			if !slices.Contains(s.Scopes, scope) {
				s.Scopes = append(s.Scopes, scope)
			}
		}
	}
	l.Server, l.Redirect = &s, redirectOf(l.Redirect, &s)
	p := discovered(r.Provider, &s)
	p.Client.Secret = secret
	return k.startBrowser(ctx, by, p, l)
}

// begun returns the login of the actor with an id that has begun already; nil if there is none.
func (k *Keeper) begun(ctx context.Context, by identity.Actor, login uuid.UUID) (found *store.Login, err error) {
	if login == uuid.Nil {
		return nil, nil
	}
	err = k.cfg.Store.Update(ctx, by.Workspace, func(ctx context.Context, tx store.Tx) error {
		all, err := tx.Logins(ctx, by.Member)
		if err != nil {
			return err
		}
		now, err := tx.Now(ctx)
		if i := slices.IndexFunc(all, func(l store.Login) bool { return l.ID == login && l.ExpiresAt.After(now) }); i >= 0 {
			found = &all[i]
		}
		return err
	})
	return found, err
}

// checkFirst refuses a second account for an MCP server: whose sign-in was meant would be a
// matter of chance. Two people may have begun to sign in at the same time.
func checkFirst(ctx context.Context, tx store.Tx, p *Provider) error {
	if err := tx.Room(ctx, p.Account); err != nil {
		return err
	}
	has, err := tx.HasAccount(ctx, p.Account)
	if err == nil && has {
		err = fault.Coded(fault.Conflict, "CONNECTED_MEANWHILE", "somebody has signed in to %s, or added a token for it, in the meantime: it can be used already", p.Name)
	}
	return err
}

// joinSecrets returns what a login keeps: the verifier and, after a space, the secret of the
// client that was discovered.
func joinSecrets(verifier string, p *Provider) vault.Secret {
	if p.server == nil {
		return vault.NewSecret(verifier)
	}
	return vault.NewSecret(verifier + " " + p.Client.Secret.Reveal())
}

// splitSecrets is the reverse of joinSecrets, for a provider that was discovered.
func splitSecrets(joined vault.Secret) (verifier, client vault.Secret) {
	before, after, _ := strings.Cut(joined.Reveal(), " ")
	return vault.NewSecret(before), vault.NewSecret(after)
}

// openClient decrypts the client's secret of a provider that was discovered.
func (k *Keeper) openClient(ctx context.Context, ref Ref, p *Provider, sealed *vault.Sealed) (err error) {
	if p.server == nil || sealed == nil {
		return nil
	}
	p.Client.Secret, err = k.cfg.Vault.Open(ctx, ref.place(store.ClientField), *sealed)
	return err
}
