package gateway

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"net/url"
	"regexp"
	"strings"
	"time"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/mtls"
	"signalbox.dev/pkg/subject"
	"signalbox.dev/pkg/telemetry"

	"signalbox.dev/services/gateway/internal/store"
)

// Config is every setting of the gateway. Load it with conf.Load.
type Config struct {
	HTTPAddr string `env:"GATEWAY_HTTP_ADDR" envDefault:":8080" doc:"Address of the public HTTP listener."`
	OpsAddr  string `env:"GATEWAY_OPS_ADDR" envDefault:"127.0.0.1:9080" doc:"Address of the operators' listener (/health, /ready, /metrics). Do not expose it to the public."`

	DatabaseURL conf.Secret `env:"DATABASE_URL,required" doc:"PostgreSQL URL: postgres://user:password@host:5432/database. The user is the role signalbox_gateway or a member of it."`
	DatabaseMax int32       `env:"GATEWAY_DATABASE_CONNECTIONS" envDefault:"20" doc:"Maximum number of connections to PostgreSQL."`

	NATSURL        string      `env:"NATS_URL" envDefault:"nats://127.0.0.1:4222" doc:"NATS servers, separated by commas."`
	NATSUser       string      `env:"NATS_USER" envDefault:"gateway" doc:"NATS user, if the servers check permissions."`
	NATSPassword   conf.Secret `env:"NATS_PASSWORD" doc:"NATS password; empty: no login."`
	NATSCA         string      `env:"NATS_CA_FILE" doc:"PEM file with the authorities that sign the NATS servers' certificates. With it, or with tls:// in NATS_URL, the connection is encrypted; empty: those of TLS_CA_FILE, or the system's without that."`
	NATSPartitions int         `env:"EVENT_PARTITIONS" envDefault:"4" doc:"Partitions of the run log; must be the same for all services."`

	AgentRunnerURL  string `env:"AGENT_RUNNER_URL" envDefault:"http://127.0.0.1:8081" doc:"URL of agent-runner."`
	ToolExecutorURL string `env:"TOOL_EXECUTOR_URL" envDefault:"http://127.0.0.1:8082" doc:"URL of tool-executor."`
	DocumentSyncURL string `env:"DOCUMENT_SYNC_URL" envDefault:"http://127.0.0.1:8083" doc:"URL of document-sync."`

	// Without a default, so that a deployment from before this setting stays ready.
	CredentialBrokerURL string `env:"CREDENTIAL_BROKER_URL" doc:"URL of credential-broker, for accounts and connections. Empty: http://127.0.0.1:8084, which /ready then does not check."`

	ServiceKey conf.Secret `env:"SERVICE_KEY,required" doc:"The gateway's private key; the other services trust its public key. Create one with signalbox keygen."`

	JWT       JWTConfig
	DevSecret conf.Secret `env:"GATEWAY_DEV_SECRET" doc:"Enables the development issuer: the gateway accepts tokens signed with this secret (32 bytes or more). Not for production."`

	OIDC OIDCConfig

	MemberPerMinute    int `env:"GATEWAY_MEMBER_REQUESTS_PER_MINUTE" envDefault:"1200" doc:"Requests per minute of one person."`
	MemberBurst        int `env:"GATEWAY_MEMBER_REQUESTS_BURST" envDefault:"400" doc:"Requests that one person may make at once, above the rate."`
	WorkspacePerMinute int `env:"GATEWAY_WORKSPACE_REQUESTS_PER_MINUTE" envDefault:"12000" doc:"Requests per minute of one workspace."`
	WorkspaceBurst     int `env:"GATEWAY_WORKSPACE_REQUESTS_BURST" envDefault:"4000" doc:"Requests that one workspace may make at once, above the rate."`
	MemberStreams      int `env:"GATEWAY_MEMBER_STREAMS" envDefault:"100" doc:"Open streams of one person on one gateway."`
	WorkspaceStreams   int `env:"GATEWAY_WORKSPACE_STREAMS" envDefault:"5000" doc:"Open streams of one workspace on one gateway."`

	MemberSockets    int `env:"GATEWAY_MEMBER_SOCKETS" envDefault:"200" doc:"Open document sockets of one person on one gateway; a client opens one per document."`
	WorkspaceSockets int `env:"GATEWAY_WORKSPACE_SOCKETS" envDefault:"5000" doc:"Open document sockets of one workspace on one gateway."`
	Sockets          int `env:"GATEWAY_SOCKETS" envDefault:"20000" doc:"Open document sockets on one gateway; each needs two file descriptors."`

	BodyTimeout time.Duration `env:"GATEWAY_BODY_TIMEOUT" envDefault:"10s" doc:"Maximum time to receive a request body of up to 1 MiB. Operations that accept larger bodies get a quarter of it more per MiB."`

	WriteTimeout time.Duration `env:"GATEWAY_WRITE_TIMEOUT" envDefault:"10s" doc:"Maximum time that a client may take to read 64 KiB of an answer before it is disconnected."`

	TrustedProxies []string `env:"GATEWAY_TRUSTED_PROXIES" doc:"Addresses of the proxies in front of the gateway, such as 10.0.0.0/8, separated by commas. The gateway trusts the header X-Forwarded-For of these proxies. It counts failed tokens and keys by the client's address and records it in the audit log. Empty: the address of the connection."`

	ReturnPaths []string `env:"GATEWAY_RETURN_PATHS" doc:"Paths on this server's host, separated by commas, to which a browser may be redirected after it connected a tool or signed in to an account, such as /settings/connections. The first is the default. Empty: the browser is shown a page."`

	CORSOrigins []string `env:"GATEWAY_CORS_ORIGINS" doc:"Origins, separated by commas, whose pages may call the API and open document sockets, in addition to the gateway's own; * for all."`

	DrainWindow time.Duration `env:"GATEWAY_DRAIN_WINDOW" envDefault:"5s" doc:"On shutdown, streams and sockets are closed spread over this time."`
	DrainLimit  time.Duration `env:"GATEWAY_DRAIN_LIMIT" envDefault:"25s" doc:"On shutdown, the maximum time for open requests to finish."`

	TLS       mtls.Config
	Telemetry telemetry.Config

	// Feed and Relay are for tests.
	Feed  FeedConfig
	Relay RelayConfig
}

// JWTConfig configures the verification of access tokens.
type JWTConfig struct {
	Secret   conf.Secret `env:"GATEWAY_JWT_SECRET" doc:"Secret of HS256 access tokens (32 bytes or more), such as a Supabase project's."`
	JWKSURL  string      `env:"GATEWAY_JWKS_URL" doc:"URL of a JSON Web Key Set with the keys of ES256 and RS256 access tokens."`
	Issuer   string      `env:"GATEWAY_JWT_ISSUER" doc:"Issuer (iss) of access tokens, such as https://<project>.supabase.co/auth/v1."`
	Audience string      `env:"GATEWAY_JWT_AUDIENCE" envDefault:"authenticated" doc:"Audience (aud) of access tokens."`
}

// OIDCConfig configures the sign-in at an OpenID Connect provider.
type OIDCConfig struct {
	Issuer       string        `env:"GATEWAY_OIDC_ISSUER" doc:"Issuer of an OpenID Connect provider at which people sign in to the console, such as https://accounts.google.com. Empty: no such sign-in."`
	ClientID     string        `env:"GATEWAY_OIDC_CLIENT_ID" doc:"The gateway's client id at the provider."`
	ClientSecret conf.Secret   `env:"GATEWAY_OIDC_CLIENT_SECRET" doc:"The gateway's client secret at the provider; empty for a public client."`
	RedirectURL  string        `env:"GATEWAY_OIDC_REDIRECT_URL" doc:"Where the provider sends browsers back, as registered there: https://<this server>/api/sign-in/oidc/callback."`
	Name         string        `env:"GATEWAY_OIDC_NAME" envDefault:"your company" doc:"What people call the provider: the sign-in page says Continue with <name>."`
	Domains      []string      `env:"GATEWAY_OIDC_DOMAINS" doc:"Whose people may sign in without an invitation, separated by commas: a domain of e-mail addresses, such as example.com, or a domain whose people join a workspace when they first sign in, such as example.com=<workspace id>:editor."`
	Session      time.Duration `env:"GATEWAY_OIDC_SESSION" envDefault:"168h" doc:"How long a person stays signed in before the provider is asked again."`
	TrustEmail   bool          `env:"GATEWAY_OIDC_TRUST_EMAIL" doc:"Accept e-mail addresses that the provider does not call verified. Only for a provider whose administrators alone set addresses, such as a single-tenant Microsoft Entra ID."`
}

// FeedConfig overrides the feed's defaults in tests. A zero field keeps its default.
type FeedConfig struct {
	Linger, Heartbeat, Silence, Pace, Idle, MaxBehind, Recheck time.Duration
	RingFrames, GroupSize                                      int
	BehindBytes                                                uint64
	// KeepConnections serves streams through net/http instead of hijacked connections.
	KeepConnections bool
}

// RelayConfig overrides the socket relay's defaults in tests. A zero field keeps its default.
type RelayConfig struct {
	TokenWait time.Duration
}

// Validate implements conf.Validator.
func (c Config) Validate() error {
	var problems []error
	complain := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	for name, u := range map[string]string{"AGENT_RUNNER_URL": c.AgentRunnerURL, "TOOL_EXECUTOR_URL": c.ToolExecutorURL, "DOCUMENT_SYNC_URL": c.DocumentSyncURL} {
		if p, err := url.Parse(u); err != nil || p.Host == "" || p.Scheme != "http" && p.Scheme != "https" {
			complain("%s is %q: want a URL such as http://host:8081", name, u)
		}
	}
	if p, err := url.Parse(c.CredentialBrokerURL); c.CredentialBrokerURL != "" && (err != nil || p.Host == "" || p.Scheme != "http" && p.Scheme != "https") {
		complain("CREDENTIAL_BROKER_URL is %q: want a URL such as http://host:8084", c.CredentialBrokerURL)
	}
	if _, err := c.trustedProxies(); err != nil {
		complain("%w", err)
	}
	for _, p := range c.ReturnPaths {
		if !returnPathForm.MatchString(p) {
			complain("GATEWAY_RETURN_PATHS has %q: want paths such as /settings/connections, without ? or #", p)
		}
	}
	if c.NATSPartitions < 1 || c.NATSPartitions > subject.MaxPartitions {
		complain("EVENT_PARTITIONS is %d: want 1 to %d", c.NATSPartitions, subject.MaxPartitions)
	}
	if c.JWT.Secret == "" && c.JWT.JWKSURL == "" && c.DevSecret == "" && c.OIDC.Issuer == "" {
		complain("nobody could sign in: set GATEWAY_JWT_SECRET, GATEWAY_JWKS_URL, GATEWAY_OIDC_ISSUER or, for development, GATEWAY_DEV_SECRET")
	}
	if c.OIDC.Issuer != "" {
		if c.OIDC.ClientID == "" {
			complain("GATEWAY_OIDC_CLIENT_ID is not set: set it to the gateway's client id at %s", c.OIDC.Issuer)
		}
		if u, err := url.Parse(c.OIDC.RedirectURL); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.Path != OIDCCallbackPath {
			complain("GATEWAY_OIDC_REDIRECT_URL is %q: want https://<this server>%s", c.OIDC.RedirectURL, OIDCCallbackPath)
		}
		if c.OIDC.Session <= 0 || c.OIDC.Session > 90*24*time.Hour {
			complain("GATEWAY_OIDC_SESSION is %s: want up to 2160h", c.OIDC.Session)
		}
	}
	if _, err := c.OIDC.domains(); err != nil {
		complain("%w", err)
	}
	if (c.JWT.Secret != "" || c.JWT.JWKSURL != "") && c.JWT.Issuer == "" {
		complain("GATEWAY_JWT_ISSUER is not set: set it to the issuer (iss) of the access tokens")
	}
	for name, s := range map[string]conf.Secret{"GATEWAY_JWT_SECRET": c.JWT.Secret, "GATEWAY_DEV_SECRET": c.DevSecret} {
		if s != "" && len(s) < 32 {
			complain("%s is shorter than 32 bytes", name)
		}
	}
	for name, n := range map[string]int{
		"GATEWAY_MEMBER_REQUESTS_PER_MINUTE": c.MemberPerMinute, "GATEWAY_MEMBER_REQUESTS_BURST": c.MemberBurst,
		"GATEWAY_WORKSPACE_REQUESTS_PER_MINUTE": c.WorkspacePerMinute, "GATEWAY_WORKSPACE_REQUESTS_BURST": c.WorkspaceBurst,
		"GATEWAY_MEMBER_STREAMS": c.MemberStreams, "GATEWAY_WORKSPACE_STREAMS": c.WorkspaceStreams,
		"GATEWAY_MEMBER_SOCKETS": c.MemberSockets, "GATEWAY_WORKSPACE_SOCKETS": c.WorkspaceSockets, "GATEWAY_SOCKETS": c.Sockets,
	} {
		if n < 1 {
			complain("%s is %d: want 1 or more", name, n)
		}
	}
	for _, o := range c.CORSOrigins {
		if o = strings.TrimSpace(o); o != "*" && !strings.HasPrefix(o, "http://") && !strings.HasPrefix(o, "https://") {
			complain("GATEWAY_CORS_ORIGINS has %q: want origins such as http://localhost:5173", o)
		}
	}
	if c.BodyTimeout <= 0 {
		complain("GATEWAY_BODY_TIMEOUT is %s: want more than 0", c.BodyTimeout)
	}
	if c.WriteTimeout <= 0 {
		complain("GATEWAY_WRITE_TIMEOUT is %s: want more than 0", c.WriteTimeout)
	}
	if c.DrainWindow <= 0 || c.DrainLimit <= c.DrainWindow {
		complain("GATEWAY_DRAIN_LIMIT (%s) must be longer than GATEWAY_DRAIN_WINDOW (%s), and both more than 0", c.DrainLimit, c.DrainWindow)
	}
	return errors.Join(problems...)
}

// returnPathForm matches paths that a browser resolves on the same host, unlike //host and
// /\host.
var returnPathForm = regexp.MustCompile(`^/([A-Za-z0-9._~-]+/?)*$`)

// trustedProxies returns the proxies as prefixes. An address is a prefix of full length.
func (c Config) trustedProxies() (all []netip.Prefix, err error) {
	for _, text := range c.TrustedProxies {
		p, err := netip.ParsePrefix(text)
		if a, one := netip.ParseAddr(text); one == nil {
			p, err = a.Prefix(a.BitLen())
		}
		if err != nil {
			return nil, fmt.Errorf("GATEWAY_TRUSTED_PROXIES has %q: want addresses such as 10.0.0.0/8 or 192.0.2.1", text)
		}
		all = append(all, p.Masked())
	}
	return all, nil
}

// domains parses Domains.
func (c OIDCConfig) domains() (all []store.Domain, err error) {
	for _, text := range c.Domains {
		name, rule, joins := strings.Cut(strings.TrimSpace(text), "=")
		d := store.Domain{Name: strings.ToLower(name)}
		if joins {
			workspace, role, _ := strings.Cut(rule, ":")
			if d.Workspace, err = id.Parse[id.Workspace](workspace); err == nil {
				d.Role, err = identity.ParseRole(role)
			}
		}
		if err != nil || !domainForm.MatchString(d.Name) {
			return nil, fmt.Errorf("GATEWAY_OIDC_DOMAINS has %q: want a domain such as example.com, or example.com=<workspace id>:<owner, editor or viewer>", text)
		}
		all = append(all, d)
	}
	return all, nil
}

var domainForm = regexp.MustCompile(`^([a-z0-9-]+\.)+[a-z0-9-]+$`)

// Peers are the services that the gateway calls.
func (c Config) Peers() []mtls.Peer {
	return []mtls.Peer{
		{Setting: "AGENT_RUNNER_URL", Service: subject.AgentRunner, URL: c.AgentRunnerURL},
		{Setting: "TOOL_EXECUTOR_URL", Service: subject.ToolExecutor, URL: c.ToolExecutorURL},
		{Setting: "DOCUMENT_SYNC_URL", Service: subject.DocumentSync, URL: c.DocumentSyncURL},
		{Setting: "CREDENTIAL_BROKER_URL", Service: subject.CredentialBroker, URL: c.credentialBroker()},
	}
}

// credentialBroker returns the URL of credential-broker.
func (c Config) credentialBroker() string {
	return cmp.Or(c.CredentialBrokerURL, "http://127.0.0.1:8084")
}

// origins returns CORSOrigins in the form that browsers send.
func (c Config) origins() []string {
	all := make([]string, 0, len(c.CORSOrigins))
	for _, o := range c.CORSOrigins {
		all = append(all, strings.TrimSuffix(strings.TrimSpace(o), "/"))
	}
	return all
}

// verifiers returns the verifiers of access tokens.
func (c Config) verifiers(log *slog.Logger) (all []*identity.TokenVerifier, err error) {
	if c.JWT.Secret != "" || c.JWT.JWKSURL != "" {
		v, err := identity.NewTokenVerifier(identity.TokenConfig{Secret: c.JWT.Secret, JWKSURL: c.JWT.JWKSURL, Issuer: c.JWT.Issuer, Audience: c.JWT.Audience, Log: log})
		if err != nil {
			return nil, fmt.Errorf("access tokens: %w", err)
		}
		all = append(all, v)
	}
	if c.DevSecret != "" {
		v, err := identity.NewTokenVerifier(identity.TokenConfig{Secret: c.DevSecret, Issuer: identity.DevIssuer, Audience: identity.DevAudience, Log: log})
		if err != nil {
			return nil, fmt.Errorf("development tokens: %w", err)
		}
		all = append(all, v)
	}
	return all, nil
}
