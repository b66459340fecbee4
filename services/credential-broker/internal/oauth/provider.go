package oauth

import (
	"embed"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// ClientAuth says how the broker names itself to an authorisation server. It is
// always said and never found out by trying: a refresh token that is posted twice is
// taken for a stolen one.
type ClientAuth string

// The ways.
const (
	AuthNone  ClientAuth = "none"  // the client id in the body: a public client
	AuthBody  ClientAuth = "body"  // id and secret in the body
	AuthBasic ClientAuth = "basic" // id and secret in an Authorization header
)

// Encoding is how parameters are sent to the token endpoint.
type Encoding string

// The encodings.
const (
	Form Encoding = "form"
	JSON Encoding = "json"
)

// Client is what a provider registered the operator as.
type Client struct {
	ID     string
	Secret vault.Secret // empty for a public client

	nth int // in the operator's setting, from 1
}

// Provider is one authorisation server, as data. It is not to be changed.
type Provider struct {
	Name string
	// Account is the provider's name in the pool, and Profile the request profile
	// that its accounts use.
	Account, Profile string
	// Authorize and CodePage are empty where there is no login in a browser,
	// Device and Revoke where the server has none.
	Authorize, Token, Device, Revoke string
	// CodePage is a page of the provider's that shows the code to be pasted.
	CodePage string
	Client   Client
	// Loopback says that browsers may be sent back to LoopbackPath at any port of this
	// machine (RFC 8252, section 7.3), where the command line waits for them.
	Loopback bool
	Auth     ClientAuth
	Encoding Encoding
	Scopes   []string
	// AuthorizeParams and TokenParams are sent in addition.
	AuthorizeParams, TokenParams map[string]string
	// SendState says that the token endpoint wants the state parameter too.
	SendState bool
	// Rotates says that a refresh token is good for one refresh.
	Rotates bool
	// KillsAccess says that a refresh ends the former access token at once.
	KillsAccess bool
	// Idle is after what time without a refresh the refresh token is void; 0 for never.
	Idle time.Duration
	// Ahead is how long before its expiry an access token is renewed.
	Ahead time.Duration
	// Void are error codes that mean the same as invalid_grant.
	Void []string
	// Title is what members know it as who connect tools to it; empty where its accounts
	// are not for tools but, as those of models, for owners to look after.
	Title string
	// Whoami says whose a token is.
	Whoami Whoami
}

// Providers is a collection of providers. It never changes and is safe for
// concurrent use.
type Providers struct{ byName map[string]*Provider }

// Get returns the provider of that name, or a fault that says which there are.
func (p *Providers) Get(name string) (*Provider, error) {
	if found, ok := p.byName[name]; ok {
		return found, nil
	}
	return nil, fault.New(fault.Invalid, "provider: nobody can sign in to %q here: use one of %s", clip(name), strings.Join(p.Names(), ", "))
}

// Names returns all providers' names, sorted.
func (p *Providers) Names() []string { return slices.Sorted(maps.Keys(p.byName)) }

// Ready returns a fault for people where the operator has not set a client.
func (p *Provider) Ready() error {
	if p.Client.ID == "" {
		return fault.Coded(fault.Conflict, "OAUTH_CLIENT_MISSING", "signing in to %s is not set up: the operator registers a client with the provider and adds its id to CREDENTIAL_BROKER_OAUTH_CLIENTS", p.Name)
	}
	if p.Auth != AuthNone && p.Client.Secret.IsZero() {
		return fault.Coded(fault.Conflict, "OAUTH_CLIENT_MISSING", "signing in to %s is not set up: the operator adds the client's secret to CREDENTIAL_BROKER_OAUTH_CLIENTS", p.Name)
	}
	return nil
}

// void reports whether an error code says that the grant is over.
func (p *Provider) void(code string) bool {
	return code == "invalid_grant" || slices.Contains(p.Void, code)
}

//go:embed providers/*.yaml
var shipped embed.FS

// Shipped returns the files of the providers that come with the product.
func Shipped() fs.FS {
	sub, err := fs.Sub(shipped, "providers")
	if err != nil {
		panic(fmt.Sprintf("embedded OAuth providers: %v", err)) // the pattern above is a constant
	}
	return sub
}

func clip(s string) string {
	if len(s) > 64 {
		return s[:64] + "…"
	}
	return s
}
