// Package discover finds out where one signs in to an MCP server, and registers the broker
// there as a client. Both the server and what it points at may be hostile: every URL is checked
// before it is stored or requested (Config.Check), every address before it is dialled, every
// document is bounded, and one that contradicts itself is refused.
//
// Find goes the way of the MCP specification's chapter on authorization: the protected resource
// metadata (RFC 9728) at the URL of the server's challenge or, if that brings none, at the well-known ones; from
// there the authorization server's metadata (RFC 8414, or OpenID Connect Discovery); and a
// client that the caller brings along, or a client id metadata document, or dynamic registration
// (RFC 7591). A server without resource metadata is its own authorization server, as the
// version 2025-03-26 of the specification has it.
package discover

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/services/credential-broker/internal/store"
	"signalbox.dev/services/credential-broker/internal/vault"
)

const (
	timeout     = 20 * time.Second // for everything
	maxScopes   = 50
	maxScope    = 256
	maxClientID = 2048
	maxSecret   = 4096
)

// Config is what Find works with.
type Config struct {
	// HTTP connects to allowed addresses only. It follows no redirects and keeps no cookies.
	HTTP *http.Client
	// Check refuses a URL whose form or literal address is not allowed.
	Check     func(*url.URL) error
	UserAgent string
	// Document is the URL of the broker's client id metadata document; empty if there is none.
	Document string
}

// Request says what to sign in to.
type Request struct {
	URL string // the MCP server's
	// Metadata and Scope are the parameters resource_metadata and scope of the server's
	// challenge; either may be empty.
	Metadata, Scope string
	// Redirect is where the browser is sent back to.
	Redirect string
	// Loopback says that Redirect is on the person's machine.
	Loopback bool
	// ClientID and Secret are a client that somebody has registered; empty if nobody has.
	ClientID string
	Secret   vault.Secret
}

// Find returns the server with its authorization server and a client there, and the client's
// secret, if it has one. Its errors are faults for the person who wants to sign in: a Conflict
// with the code OAUTH_DISCOVERY if what was found cannot be used, Unavailable if a server did
// not answer.
func Find(ctx context.Context, cfg Config, r Request) (store.Server, vault.Secret, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	f := &finder{cfg, r}
	base, err := f.parse("the MCP server's URL", r.URL)
	if err != nil {
		return store.Server{}, vault.Secret{}, err
	}
	resource, err := f.resource(ctx, base)
	if err != nil {
		return store.Server{}, vault.Secret{}, err
	}
	meta, err := f.authorizationServer(ctx, base, resource)
	if err != nil {
		return store.Server{}, vault.Secret{}, err
	}
	s := store.Server{
		URL: r.URL, Resource: r.URL, Issuer: meta.Issuer, Authorize: meta.Authorize, Token: meta.Token, Revoke: meta.Revoke,
		NamesItself: meta.NamesItself, Scopes: scopes(r.Scope, resource, meta),
	}
	if resource != nil {
		s.Resource = resource.Resource
	}
	secret, err := f.client(ctx, meta, &s)
	return s, secret, err
}

// refuse returns the fault for something that cannot be used.
func refuse(format string, args ...any) error {
	return fault.Coded(fault.Conflict, "OAUTH_DISCOVERY", "cannot sign in to the MCP server: "+format, args...)
}

// finder is one discovery.
type finder struct {
	cfg Config
	req Request
}

// parse reads a URL that may be requested or opened.
func (f *finder) parse(what, text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Opaque != "" {
		return nil, refuse("%s is not a URL", what)
	}
	if err := f.cfg.Check(u); err != nil {
		return nil, refuse("%s, %s, %v", what, clip(u.Redacted()), err)
	}
	return u, nil
}

// resourceMetadata is protected resource metadata, as far as it is used.
type resourceMetadata struct {
	Resource string   `json:"resource"`
	Servers  []string `json:"authorization_servers"`
	Scopes   []string `json:"scopes_supported"`
}

// resource returns the metadata of the MCP server; nil if it has none. The challenge may be from
// long ago, so that what is wrong at its URL counts only if there is nothing at the others.
func (f *finder) resource(ctx context.Context, base *url.URL) (*resourceMetadata, error) {
	var stale error
	if f.req.Metadata != "" {
		limited, cancel := context.WithTimeout(ctx, timeout/2)
		m, err := f.resourceAt(limited, base, f.req.Metadata)
		cancel()
		if m != nil {
			return m, nil
		}
		stale = err
	}
	places := []string{wellKnown(base, "oauth-protected-resource")}
	if strings.Trim(base.Path, "/") != "" {
		places = append(places, wellKnown(&url.URL{Scheme: base.Scheme, Host: base.Host}, "oauth-protected-resource"))
	}
	for _, place := range places {
		if m, err := f.resourceAt(ctx, base, place); m != nil || err != nil {
			return m, err
		}
	}
	return nil, stale
}

// resourceAt returns the metadata at a URL; nil if there is none.
func (f *finder) resourceAt(ctx context.Context, base *url.URL, place string) (*resourceMetadata, error) {
	const what = "its protected resource metadata"
	m := &resourceMetadata{}
	found, err := f.get(ctx, what, place, m)
	switch {
	case err != nil || !found:
		return nil, err
	case !covers(m.Resource, base):
		return nil, refuse("%s is for another resource, %q", what, clip(m.Resource))
	case len(m.Servers) == 0:
		return nil, refuse("%s names no authorization server", what)
	}
	return m, nil
}

// covers reports whether a resource identifier is a server's URL or a path above it.
func covers(resource string, server *url.URL) bool {
	u, err := url.Parse(resource)
	if err != nil || u.Scheme != server.Scheme || !strings.EqualFold(u.Host, server.Host) || u.User != nil || u.Fragment != "" || u.RawQuery != "" && u.RawQuery != server.RawQuery {
		return false
	}
	return strings.HasPrefix(strings.TrimSuffix(server.Path, "/")+"/", strings.TrimSuffix(u.Path, "/")+"/")
}

// metadata is an authorization server's metadata, as far as it is used.
type metadata struct {
	Issuer      string   `json:"issuer"`
	Authorize   string   `json:"authorization_endpoint"`
	Token       string   `json:"token_endpoint"`
	Register    string   `json:"registration_endpoint"`
	Revoke      string   `json:"revocation_endpoint"`
	Challenges  []string `json:"code_challenge_methods_supported"`
	AuthMethods []string `json:"token_endpoint_auth_methods_supported"`
	Scopes      []string `json:"scopes_supported"`
	NamesItself bool     `json:"authorization_response_iss_parameter_supported"`
	Documents   bool     `json:"client_id_metadata_document_supported"`
}

// authorizationServer returns the metadata of the authorization server that the resource names
// first or, without resource metadata, of the MCP server's own.
func (f *finder) authorizationServer(ctx context.Context, base *url.URL, resource *resourceMetadata) (*metadata, error) {
	const what = "its authorization server's metadata"
	origin := base.Scheme + "://" + base.Host
	issuer := origin
	if resource != nil {
		issuer = resource.Servers[0]
	}
	u, err := f.parse("its authorization server", issuer)
	if err != nil {
		return nil, err
	}
	if u.RawQuery != "" || u.Fragment != "" {
		return nil, refuse("its authorization server, %s, has a query or a fragment", clip(issuer))
	}
	places := []string{wellKnown(u, "oauth-authorization-server"), wellKnown(u, "openid-configuration")}
	if path := strings.TrimSuffix(u.Path, "/"); path != "" {
		places = append(places, u.Scheme+"://"+u.Host+path+"/.well-known/openid-configuration")
	}
	for _, place := range places {
		m := &metadata{}
		found, err := f.get(ctx, what, place, m)
		if err != nil {
			return nil, err
		}
		if found {
			return m, f.check(m, issuer)
		}
	}
	if resource != nil {
		return nil, refuse("its authorization server, %s, publishes no metadata", clip(issuer))
	}
	m := &metadata{Issuer: origin, Authorize: origin + "/authorize", Token: origin + "/token", Register: origin + "/register"}
	return m, f.checkEndpoints(m)
}

// check refuses metadata that is another server's, or from which no safe sign-in follows.
func (f *finder) check(m *metadata, issuer string) error {
	switch {
	case strings.TrimSuffix(m.Issuer, "/") != strings.TrimSuffix(issuer, "/"):
		return refuse("the metadata at %s is that of another authorization server, %q", clip(issuer), clip(m.Issuer))
	case m.Authorize == "" || m.Token == "":
		return refuse("its authorization server, %s, names no authorization endpoint or no token endpoint", clip(issuer))
	case !slices.Contains(m.Challenges, "S256"):
		return refuse("its authorization server, %s, does not say that it supports PKCE with S256", clip(issuer))
	}
	return f.checkEndpoints(m)
}

func (f *finder) checkEndpoints(m *metadata) error {
	for _, e := range []struct{ what, url string }{
		{"its authorization endpoint", m.Authorize},
		{"its token endpoint", m.Token},
		{"its registration endpoint", cmp.Or(m.Register, m.Token)},
		{"its revocation endpoint", cmp.Or(m.Revoke, m.Token)},
	} {
		if _, err := f.parse(e.what, e.url); err != nil {
			return err
		}
	}
	return nil
}

// wellKnown returns a well-known URL (RFC 8615) of an identifier: its path comes last.
func wellKnown(u *url.URL, name string) string {
	return u.Scheme + "://" + u.Host + "/.well-known/" + name + strings.TrimSuffix(u.EscapedPath(), "/")
}

// scopes returns what to ask for: what the challenge wants, or else everything that the
// resource has, and where the server offers it a refresh token.
func scopes(challenge string, resource *resourceMetadata, meta *metadata) []string {
	all := strings.Fields(challenge)
	if len(all) == 0 && resource != nil {
		all = slices.Clone(resource.Scopes)
	}
	const refresh = "offline_access"
	if slices.Contains(meta.Scopes, refresh) && !slices.Contains(all, refresh) {
		all = append(all, refresh)
	}
	all = slices.DeleteFunc(all, func(s string) bool {
		return s == "" || len(s) > maxScope || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' || r == '"' || r == '\\' })
	})
	return all[:min(len(all), maxScopes)]
}

// clip shortens foreign text for a message, and keeps control characters out of it.
func clip(text string) string {
	text = fmt.Sprintf("%.200q", text)
	return text[1 : len(text)-1]
}
