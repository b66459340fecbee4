package discover

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"signalbox.dev/services/credential-broker/internal/store"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// The ways in which a client authenticates at the token endpoint (RFC 7591), and what package
// oauth calls them, best first.
var authMethods = []struct{ name, auth string }{
	{"client_secret_basic", "basic"},
	{"client_secret_post", "body"},
	{"none", "none"},
}

// method returns how to authenticate, of what a server supports and a client with or without
// a secret can do.
func (m *metadata) method(secret bool) (name, auth string, ok bool) {
	supported := m.AuthMethods
	if len(supported) == 0 {
		supported = []string{"client_secret_basic"} // the default of RFC 8414
	}
	for _, a := range authMethods {
		if slices.Contains(supported, a.name) && (secret || a.auth == "none") {
			return a.name, a.auth, true
		}
	}
	return "", "", false
}

// client sets the client to sign in with, and returns its secret.
func (f *finder) client(ctx context.Context, m *metadata, s *store.Server) (vault.Secret, error) {
	switch {
	case f.req.ClientID != "":
		s.ClientID, s.Auth = f.req.ClientID, "none"
		if f.req.Secret.IsZero() {
			return vault.Secret{}, nil
		}
		var ok bool
		if _, s.Auth, ok = m.method(true); !ok || s.Auth == "none" {
			return vault.Secret{}, refuse("its authorization server accepts no client with a secret: leave the secret out")
		}
		return f.req.Secret, nil
	case m.Documents && m.NamesItself && f.cfg.Document != "":
		// All servers get the same client id, so that an answer of one could pass for another's
		// (mix-up) if it did not name its server.
		s.ClientID, s.Auth, s.Document = f.cfg.Document, "none", true
		return vault.Secret{}, nil
	case m.Register != "":
		return f.register(ctx, m, s)
	}
	return vault.Secret{}, refuse("its authorization server registers no clients: register one there by hand, with the redirect URI %s, and give its client id", f.req.Redirect)
}

// registration is what a client is registered with.
type registration struct {
	Name       string   `json:"client_name"`
	Redirects  []string `json:"redirect_uris"`
	Grants     []string `json:"grant_types"`
	Responses  []string `json:"response_types"`
	AuthMethod string   `json:"token_endpoint_auth_method"`
	Type       string   `json:"application_type"`
	Scope      string   `json:"scope,omitempty"`
}

// registered is what a server answers.
type registered struct {
	ID         string `json:"client_id"`
	Secret     string `json:"client_secret"`
	AuthMethod string `json:"token_endpoint_auth_method"`
}

func (f *finder) register(ctx context.Context, m *metadata, s *store.Server) (vault.Secret, error) {
	const what = "its registration endpoint"
	method, _, ok := m.method(true)
	if !ok {
		return vault.Secret{}, refuse("its authorization server accepts none of the client authentications client_secret_basic, client_secret_post and none")
	}
	r := registration{
		Name: "Signalbox", Redirects: []string{f.req.Redirect}, Grants: []string{"authorization_code", "refresh_token"}, Responses: []string{"code"},
		AuthMethod: method, Type: "web", Scope: strings.Join(s.Scopes, " "),
	}
	if f.req.Loopback {
		r.Type = "native"
	}
	body, err := json.Marshal(r)
	if err != nil {
		return vault.Secret{}, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, m.Register, bytes.NewReader(body))
	if err != nil {
		return vault.Secret{}, refuse("%s is not a URL", what)
	}
	req.Header.Set("Content-Type", "application/json")
	status, answer, err := f.do(req, what)
	if err != nil {
		return vault.Secret{}, err
	}
	var got registered
	switch {
	case status != http.StatusCreated && status != http.StatusOK:
		return vault.Secret{}, refuse("%s answers %d%s: register a client there by hand, with the redirect URI %s, and give its client id", what, status, errorCode(answer), f.req.Redirect)
	case json.Unmarshal(answer, &got) != nil || got.ID == "" || len(got.ID) > maxClientID:
		return vault.Secret{}, refuse("%s gives no valid client id", what)
	case len(got.Secret) > maxSecret || strings.ContainsFunc(got.ID+got.Secret, func(r rune) bool { return r <= ' ' || r > '~' }):
		return vault.Secret{}, refuse("%s gives a client that cannot be used", what)
	}
	s.ClientID, s.Auth = got.ID, "none"
	if got.AuthMethod == "" {
		got.AuthMethod = method
	}
	for _, a := range authMethods {
		if a.name == got.AuthMethod && got.Secret != "" {
			s.Auth = a.auth
		}
	}
	if s.Auth == "none" {
		return vault.Secret{}, nil
	}
	return vault.NewSecret(got.Secret), nil
}
