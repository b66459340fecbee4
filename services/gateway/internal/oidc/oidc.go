// Package oidc signs people in at an OpenID Connect provider: authorization code with PKCE
// (OpenID Connect Core 1.0, section 3.1; RFC 7636).
//
// Nothing is stored until the provider has answered. What identifies an attempt (its state,
// nonce and PKCE verifier) is kept by the browser that began it, in a cookie that no page can
// read; whoever has not begun a sign-in cannot end it. A provider that is down when the gateway
// starts is asked again with the next sign-in.
package oidc

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/google/uuid"
	"golang.org/x/oauth2"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
)

const (
	// timeout bounds each request to the provider.
	timeout = 10 * time.Second
	// pause is how long a provider that did not answer is not asked about itself again.
	pause = 5 * time.Second
)

const maxEmail = 254 // RFC 5321

// Config configures a Provider.
type Config struct {
	Issuer       string // of the discovery document, such as https://accounts.example.com
	ClientID     string
	ClientSecret conf.Secret // empty for a public client
	RedirectURL  string      // as registered with the provider
	// TrustEmail takes a person's e-mail address as verified even if the provider does not say so.
	TrustEmail bool
	Log        *slog.Logger
}

// Provider is an OpenID Connect provider. It is safe for concurrent use.
type Provider struct {
	cfg    Config
	client *http.Client

	mu     sync.Mutex // guards found and failed, and lets one caller discover at a time
	found  *discovered
	failed time.Time // when it did not answer
}

type discovered struct {
	oauth    oauth2.Config
	verifier *oidc.IDTokenVerifier
	namesIss bool // it sends iss with its answers (RFC 9207)
}

// New returns a Provider. It makes no request.
func New(cfg Config) *Provider {
	return &Provider{cfg: cfg, client: &http.Client{Timeout: timeout}}
}

// Values of Attempt.Prompt (OpenID Connect Core 1.0, section 3.1.2.1). Without one, a provider
// that knows the browser identifies the same person again without asking.
const (
	SelectAccount = "select_account" // has the person choose an account; some providers refuse it
	Login         = "login"          // has the person sign in again
)

// Attempt is a sign-in that has begun.
type Attempt struct{ State, Nonce, Verifier, Prompt string }

// Person is somebody whom the provider has identified.
type Person struct {
	Member id.Member // the same for every sign-in
	Email  string    // as the provider writes it; empty unless it is verified
	Name   string    // as the provider writes it; may be empty
}

// Begin returns an attempt, and the URL of the provider's page for it. The prompt may be empty.
func (p *Provider) Begin(ctx context.Context, prompt string) (page string, a Attempt, err error) {
	d, err := p.discover(ctx)
	if err != nil {
		return "", a, err
	}
	a = Attempt{State: rand.Text(), Nonce: rand.Text(), Verifier: oauth2.GenerateVerifier(), Prompt: prompt}
	options := []oauth2.AuthCodeOption{oidc.Nonce(a.Nonce), oauth2.S256ChallengeOption(a.Verifier)}
	if prompt != "" {
		options = append(options, oauth2.SetAuthURLParam("prompt", prompt))
	}
	return d.oauth.AuthCodeURL(a.State, options...), a, nil
}

// Answer has the parameters with which the provider sent the browser back.
type Answer struct{ State, Code, Error, Iss string }

// Finish ends an attempt with the provider's answer. An answer that does not belong to the
// attempt, or that the provider does not confirm, is Unauthenticated.
func (p *Provider) Finish(ctx context.Context, a Attempt, answer Answer) (Person, error) {
	if a.State == "" || subtle.ConstantTimeCompare([]byte(a.State), []byte(answer.State)) != 1 {
		return Person{}, fault.Coded(fault.Unauthenticated, "SIGN_IN_UNKNOWN", "this sign-in was not begun in this browser, or more than ten minutes ago: sign in again")
	}
	if answer.Error != "" {
		return Person{}, fault.Coded(fault.Unauthenticated, "SIGN_IN_REFUSED", "your company's sign-in page refused: %s", answer.Error)
	}
	d, err := p.discover(ctx)
	if err != nil {
		return Person{}, err
	}
	if (d.namesIss || answer.Iss != "") && answer.Iss != p.cfg.Issuer {
		return Person{}, fault.Coded(fault.Unauthenticated, "SIGN_IN_UNKNOWN", "the answer comes from another sign-in page: sign in again")
	}
	ctx, cancel := context.WithTimeout(oidc.ClientContext(ctx, p.client), timeout)
	defer cancel()
	token, err := d.oauth.Exchange(ctx, answer.Code, oauth2.VerifierOption(a.Verifier))
	if err != nil {
		var refused *oauth2.RetrieveError
		if errors.As(err, &refused) && refused.Response.StatusCode < 500 {
			p.cfg.Log.WarnContext(ctx, "sign-in code refused", "issuer", p.cfg.Issuer, "status", refused.Response.StatusCode, "code", refused.ErrorCode)
			return Person{}, notConfirmed()
		}
		return Person{}, p.unavailable(ctx, err)
	}
	raw, _ := token.Extra("id_token").(string)
	verified, err := d.verifier.Verify(ctx, raw)
	if err != nil || subtle.ConstantTimeCompare([]byte(verified.Nonce), []byte(a.Nonce)) != 1 {
		p.cfg.Log.WarnContext(ctx, "ID token refused", "issuer", p.cfg.Issuer, "error", err)
		return Person{}, notConfirmed()
	}
	return p.person(verified)
}

func notConfirmed() error {
	return fault.Coded(fault.Unauthenticated, "SIGN_IN_REFUSED", "your company's sign-in page did not confirm who you are: sign in again")
}

// person reads the claims of a verified ID token.
func (p *Provider) person(t *oidc.IDToken) (Person, error) {
	var claims struct {
		Email    string `json:"email"`
		Verified any    `json:"email_verified"` // a string at some providers
		Name     string `json:"name"`
	}
	if err := t.Claims(&claims); err != nil || t.Subject == "" {
		return Person{}, notConfirmed()
	}
	// Subjects are unique for an issuer only.
	out := Person{Member: id.Member{UUID: uuid.NewSHA1(uuid.NameSpaceURL, []byte(t.Issuer+"\x00"+t.Subject))}, Name: claims.Name}
	if claims.Verified == true || claims.Verified == "true" || p.cfg.TrustEmail {
		out.Email = strings.TrimSpace(claims.Email)
	}
	if _, domain, ok := strings.Cut(out.Email, "@"); !ok || domain == "" || len(out.Email) > maxEmail {
		out.Email = ""
	}
	return out, nil
}

// discover returns what the provider publishes about itself. It asks once.
func (p *Provider) discover(ctx context.Context) (*discovered, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.found != nil {
		return p.found, nil
	}
	if time.Since(p.failed) < pause {
		return nil, unavailable()
	}
	// The key set keeps the context for later refreshes: it must not end with the request.
	provider, err := oidc.NewProvider(oidc.ClientContext(context.WithoutCancel(ctx), p.client), p.cfg.Issuer)
	if err != nil {
		p.failed = time.Now()
		return nil, p.unavailable(ctx, err)
	}
	var more struct {
		NamesIss bool `json:"authorization_response_iss_parameter_supported"`
	}
	if err := provider.Claims(&more); err != nil {
		return nil, p.unavailable(ctx, err)
	}
	p.found = &discovered{
		oauth: oauth2.Config{
			ClientID: p.cfg.ClientID, ClientSecret: p.cfg.ClientSecret.Reveal(), Endpoint: provider.Endpoint(),
			RedirectURL: p.cfg.RedirectURL, Scopes: []string{oidc.ScopeOpenID, "email", "profile"},
		},
		verifier: provider.Verifier(&oidc.Config{ClientID: p.cfg.ClientID}),
		namesIss: more.NamesIss,
	}
	return p.found, nil
}

func (p *Provider) unavailable(ctx context.Context, err error) error {
	p.cfg.Log.WarnContext(ctx, "OpenID Connect provider unavailable", "issuer", p.cfg.Issuer, "error", err)
	return unavailable()
}

func unavailable() error {
	return fault.New(fault.Unavailable, "your company's sign-in page does not answer: try again in a moment")
}
