package admin

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"

	"github.com/google/uuid"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/process"
	"signalbox.dev/services/credential-broker/internal/oauth"
	"signalbox.dev/services/credential-broker/internal/profile"
)

// OAuth is what an operator can set about signing in.
type OAuth struct {
	Clients   conf.Secret `env:"CREDENTIAL_BROKER_OAUTH_CLIENTS" doc:"Clients that you registered with providers, as provider=id or provider=id:secret, separated by commas (% codes for a comma or colon inside). Nobody can sign in to a provider without one."`
	Providers string      `env:"CREDENTIAL_BROKER_OAUTH_PROVIDERS" doc:"Folder with OAuth providers of your own (*.yaml), which add to the built-in ones or replace them; read at the start. docs/sign-in-providers.md describes the format. Empty for none."`
	Document  string      `env:"CREDENTIAL_BROKER_OAUTH_CLIENT_DOCUMENT" doc:"URL of a client id metadata document, by which authorization servers of MCP servers know this client without a registration. Its redirect_uris are CREDENTIAL_BROKER_OAUTH_REDIRECT with /document appended, http://127.0.0.1/callback/document and http://[::1]/callback/document, and no others. Empty: with CREDENTIAL_BROKER_OAUTH_REDIRECT at https://…/api/connections/callback, the document that the gateway publishes; otherwise none."`
	Redirect  string      `env:"CREDENTIAL_BROKER_OAUTH_REDIRECT" doc:"Page to which providers redirect browsers, as registered with them: this server's https://…/api/connections/callback, or a page of your own, which a console on another origin needs. Empty if codes are pasted."`
}

// Validate says what is wrong, and what is allowed.
func (o *OAuth) Validate() error {
	if o.Redirect != "" {
		u, err := url.Parse(o.Redirect)
		if err != nil || u.Host == "" || (u.Scheme != "https" && u.Scheme != "http") || u.Fragment != "" {
			return errors.New("CREDENTIAL_BROKER_OAUTH_REDIRECT is not a page: use https://host/path, without #")
		}
	}
	if u, err := url.Parse(o.Document); o.Document != "" && (err != nil || u.Host == "" || u.Scheme != "https" || u.Path == "") {
		return errors.New("CREDENTIAL_BROKER_OAUTH_CLIENT_DOCUMENT is not a document: use https://host/path")
	}
	if _, err := oauth.ParseClients(o.Clients.Reveal()); err != nil {
		return fmt.Errorf("CREDENTIAL_BROKER_OAUTH_CLIENTS: %w", err)
	}
	return nil
}

// providers loads the built-in providers, the operator's own and their clients. Every
// provider needs an existing request profile for its accounts.
func (o *OAuth) providers(profiles *profile.Set) (*oauth.Providers, error) {
	clients, err := oauth.ParseClients(o.Clients.Reveal())
	if err != nil {
		return nil, fmt.Errorf("CREDENTIAL_BROKER_OAUTH_CLIENTS: %w", err)
	}
	dirs := []fs.FS{oauth.Shipped()}
	if o.Providers != "" {
		if _, err := os.Stat(o.Providers); err != nil {
			return nil, fmt.Errorf("CREDENTIAL_BROKER_OAUTH_PROVIDERS: %w", err)
		}
		dirs = append(dirs, os.DirFS(o.Providers))
	}
	all, err := oauth.Load(clients, dirs...)
	if err != nil {
		return nil, fmt.Errorf("load OAuth providers: %w", err)
	}
	for _, name := range all.Names() {
		p, err := all.Get(name)
		if err != nil {
			return nil, err
		}
		if _, ok := profiles.Get(p.Profile); !ok {
			return nil, fmt.Errorf("load OAuth providers: %s: profile: there is no request profile %q", path.Join(o.Providers, name), p.Profile)
		}
	}
	return all, nil
}

// newKeeper returns what keeps sign-ins valid.
func newKeeper(cfg Config, a *Accounts) *oauth.Keeper {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return oauth.New(oauth.Config{
		Store: a.Store, Vault: a.Vault, Providers: a.providers, Log: cfg.Log, Redirect: a.redirect,
		Document: cmp.Or(cfg.OAuth.Document, clientDocument(a.redirect)), CheckEndpoint: a.Policy.CheckEndpoint, Control: a.Policy.Control,
		Instance: host + " " + uuid.NewString(), UserAgent: "signalbox/" + process.Version(),
	})
}

// clientDocument returns the URL at which the gateway publishes its client id metadata document,
// beside the page that completes sign-ins; empty if browsers are sent to another page, or
// authorization servers cannot fetch it.
func clientDocument(redirect string) string {
	u, err := url.Parse(redirect)
	if err != nil || u.Scheme != "https" || u.Path != "/api/connections/callback" || u.RawQuery != "" {
		return ""
	}
	u.Path = "/api/connections/client.json"
	return u.String()
}
