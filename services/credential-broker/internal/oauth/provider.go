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
	"signalbox.dev/services/credential-broker/internal/store"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// ClientAuth says how the broker authenticates to an authorisation server. It is always
// configured and never found out by trying: a refresh token that is posted twice is taken for a
// stolen one.
type ClientAuth string

// The kinds of client authentication.
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
	ID     string       `yaml:"id"` // the operator's setting takes precedence over the file
	Secret vault.Secret `yaml:"-"`  // empty for a public client

	position int // in the operator's setting, from 1
}

// Provider is one authorisation server, as a YAML file describes it. It is not to be changed.
type Provider struct {
	// Name is unique: letters, digits and dashes.
	Name string `yaml:"name"`
	// Account is the provider's name in the pool, Name by default, and Profile the request
	// profile that its accounts use.
	Account   string `yaml:"account"`
	Profile   string `yaml:"profile"`
	Endpoints `yaml:"endpoints"`
	Identity  `yaml:"client"`
	Request   `yaml:"request"`
	Scopes    []string `yaml:"scopes"`
	Tokens    `yaml:"tokens"`
	// Void are error codes that mean the same as invalid_grant.
	Void []string `yaml:"errors"`
	// Connection is for tools, which members connect; models have none.
	Connection `yaml:"connection"`

	server *store.Server // set if it was discovered: it comes from no file
}

// Endpoints are a provider's URLs. Authorize and CodePage are empty if one cannot sign in with
// a browser, Device (RFC 8628) and Revoke (RFC 7009) if the server has none.
type Endpoints struct {
	Authorize string `yaml:"authorize"`
	Token     string `yaml:"token"`
	Device    string `yaml:"device"`
	Revoke    string `yaml:"revoke"`
	// CodePage is a page of the provider's that shows the code to be pasted.
	CodePage string `yaml:"code_page"`
}

// Identity is how the broker identifies itself to a provider.
type Identity struct {
	Client Client     `yaml:",inline"`
	Auth   ClientAuth `yaml:"auth"`
	// Loopback says that browsers may be sent back to LoopbackPath at any port of this
	// machine (RFC 8252, section 7.3), where the command line waits for them.
	Loopback bool `yaml:"loopback"`
}

// Request is what requests look like.
type Request struct {
	Encoding Encoding `yaml:"encoding"` // Form by default
	// SendState says that the token endpoint wants the state parameter too.
	SendState bool `yaml:"state"`
	// AuthorizeParams and TokenParams are sent in addition.
	AuthorizeParams map[string]string `yaml:"authorize"`
	TokenParams     map[string]string `yaml:"token"`
}

// Tokens is how a provider's tokens live.
type Tokens struct {
	// Rotates says that a refresh token is good for one refresh.
	Rotates bool `yaml:"rotate"`
	// KillsAccess says that a refresh ends the former access token at once.
	KillsAccess bool `yaml:"refresh_ends_access"`
	// Idle is after how long without a refresh the refresh token is void; 0 for never.
	Idle     time.Duration `yaml:"-"`
	IdleText string        `yaml:"idle"`
	// Ahead is how long before its expiry an access token is renewed.
	Ahead     time.Duration `yaml:"-"`
	AheadText string        `yaml:"ahead"`
}

// Connection is how members see a provider that they connect tools to.
type Connection struct {
	Title  string `yaml:"title"` // empty if it is not for tools
	Whoami Whoami `yaml:"whoami"`
}

// Providers is a collection of providers. It never changes and is safe for
// concurrent use.
type Providers struct{ byName map[string]*Provider }

// Get returns the provider of that name, or a fault that lists the providers.
func (p *Providers) Get(name string) (*Provider, error) {
	if found, ok := p.byName[name]; ok {
		return found, nil
	}
	return nil, fault.New(fault.Invalid, "provider: there is no sign-in provider %q: use one of %s", clip(name), strings.Join(p.Names(), ", "))
}

// Names returns all providers' names, sorted.
func (p *Providers) Names() []string { return slices.Sorted(maps.Keys(p.byName)) }

// Ready returns a fault for people if the operator has not set a client.
func (p *Provider) Ready() error {
	if p.Client.ID == "" {
		return fault.Coded(fault.Conflict, "OAUTH_CLIENT_MISSING", "signing in to %s is not set up: the operator has to register a client with the provider and add its id to CREDENTIAL_BROKER_OAUTH_CLIENTS", p.Name)
	}
	if p.Auth != AuthNone && p.Client.Secret.IsZero() {
		return fault.Coded(fault.Conflict, "OAUTH_CLIENT_MISSING", "signing in to %s is not set up: the operator has to add the client's secret to CREDENTIAL_BROKER_OAUTH_CLIENTS", p.Name)
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
