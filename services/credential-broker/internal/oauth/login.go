package oauth

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/google/uuid"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/services/credential-broker/internal/store"
)

// Kind is a way to sign in.
type Kind = store.LoginKind

// The kinds.
const (
	Browser Kind = "browser" // the provider sends the browser back to the product, or to the command line
	Paste   Kind = "paste"   // the provider shows a code, which is pasted
	Device  Kind = "device"  // a short code is typed in on another device (RFC 8628)
)

// Purpose is what a login is for. It can be completed for nothing else: an actor who may do
// the one may not be allowed to do the other.
type Purpose string

// The purposes.
const (
	ForAccount    Purpose = "account"    // an account that owners manage
	ForConnection Purpose = "connection" // an account that a member connects the workspace's tools to
)

const maxLabel = 400 // bytes

// LoginRequest says what to sign in to.
type LoginRequest struct {
	// ID makes beginning the login idempotent; zero for a new one.
	ID uuid.UUID
	// Purpose is ForAccount if empty.
	Purpose Purpose
	// Provider may be empty if there is an Account.
	Provider string
	Kind     Kind
	// Account is the one to be authorised again; zero for a new one.
	Account id.Account
	// Label is for people to tell accounts apart.
	Label string
	// Server is set for an MCP server. Provider and Account are then those of its account.
	Server *ServerRequest
	// Redirect is where the command line waits for the browser: LoopbackPath at a port of
	// 127.0.0.1 or [::1]. Empty for Config.Redirect. It needs Browser, and a provider with
	// Loopback.
	Redirect string
}

// LoopbackPath is the path of loopback redirects (RFC 8252, section 7.3). Browsers are sent back
// to DocumentLoopbackPath instead if the client is the client id metadata document.
const (
	LoopbackPath         = "/callback"
	DocumentLoopbackPath = LoopbackPath + "/" + documentPath
)

// checkRedirect refuses a Redirect that the provider may not be given.
func (r *LoginRequest) checkRedirect(p *Provider) error {
	switch {
	case r.Redirect == "":
		return nil
	case r.Kind != Browser:
		return fault.New(fault.Invalid, "redirect: only the kind browser has one, not %q", clip(string(r.Kind)))
	case !p.Loopback:
		return fault.New(fault.Invalid, "redirect: %s does not redirect to loopback addresses: use another of browser, paste and device", p.Name)
	case !isLoopbackRedirect(r.Redirect):
		return fault.New(fault.Invalid, "redirect: want http://127.0.0.1:port%[1]s or http://[::1]:port%[1]s", LoopbackPath)
	}
	return nil
}

// isLoopbackRedirect accepts one spelling of each address. localhost is refused: it may
// resolve to an address of another machine, or of another program.
func isLoopbackRedirect(redirect string) bool {
	text, ok := strings.CutPrefix(redirect, "http://")
	text, hasPath := strings.CutSuffix(text, LoopbackPath)
	at, err := netip.ParseAddrPort(text)
	return ok && hasPath && err == nil && at.String() == text && at.Port() != 0 &&
		(at.Addr() == netip.AddrFrom4([4]byte{127, 0, 0, 1}) || at.Addr() == netip.IPv6Loopback())
}

// Login is one that has begun.
type Login struct {
	ID   uuid.UUID
	Kind Kind
	// URL is what the person opens; for a device, the page that they type UserCode into.
	URL string
	// UserCode and URLWithCode are set for a device only, the latter not always.
	UserCode, URLWithCode string
	// Wait is how long to wait before each Poll of a device.
	Wait time.Duration
	// Life is how long there is to complete it.
	Life time.Duration
}

// Start begins a login. The result is for the person who acts: its URL holds the state, which
// is good once. With the ID of a login that has begun it returns that one; a device gets new
// codes, and the former ones become useless.
func (k *Keeper) Start(ctx context.Context, by identity.Actor, r LoginRequest) (Login, error) {
	known, err := k.checkAccount(ctx, by, &r)
	if err != nil {
		return Login{}, err
	}
	if r.Server != nil {
		return k.startAtServer(ctx, by, r, known)
	}
	p, err := k.provider(r.Provider, known)
	if err != nil {
		return Login{}, err
	}
	if p.server != nil {
		return Login{}, fault.New(fault.Conflict, "account: it is a sign-in to an MCP server: sign in with `signalbox mcp sign-in`, or POST /api/mcp-servers/{id}/sign-in")
	}
	if err := p.Ready(); err != nil {
		return Login{}, err
	}
	if len(r.Label) > maxLabel {
		return Login{}, fault.New(fault.Invalid, "label: it is longer than %d bytes", maxLabel)
	}
	if err := r.checkRedirect(p); err != nil {
		return Login{}, err
	}
	l := r.login(p)
	switch r.Kind {
	case Browser:
		l.Redirect = cmp.Or(r.Redirect, k.cfg.Redirect)
	case Paste:
		l.Redirect = p.CodePage
	case Device:
		return k.startDevice(ctx, by, p, l)
	default:
		return Login{}, fault.New(fault.Invalid, "kind: %q is not a way to sign in: use browser, paste or device", clip(string(r.Kind)))
	}
	if p.Authorize == "" || l.Redirect == "" {
		return Login{}, fault.New(fault.Invalid, "kind: %s does not offer this way to sign in (%s): use another of browser, paste and device", p.Name, r.Kind)
	}
	return k.startBrowser(ctx, by, p, l)
}

// startBrowser stores a login and returns the URL for the browser.
func (k *Keeper) startBrowser(ctx context.Context, by identity.Actor, p *Provider, l store.Login) (Login, error) {
	verifier := random()
	l.StateHash = hash(stateOf(verifier))
	l, secret, left, err := k.begin(ctx, by, l, joinSecrets(verifier, p), loginLife)
	if err != nil {
		return Login{}, err
	}
	if l.Server != nil { // another one's, if the login had begun
		p = discovered(l.Provider, l.Server)
		secret, _ = splitSecrets(secret)
	}
	return Login{ID: l.ID, Kind: l.Kind, URL: authorizeURL(p, l.Redirect, secret.Reveal()), Life: left}, nil
}

// checkAccount checks the account that is to be authorised again, if any, and sets its
// provider. It returns the MCP server that the account is for, if it is for one.
func (k *Keeper) checkAccount(ctx context.Context, by identity.Actor, r *LoginRequest) (*store.Server, error) {
	if id.IsZero(r.Account) {
		return nil, nil
	}
	g, err := k.read(ctx, Ref{by.Workspace, r.Account})
	if err != nil {
		return nil, err
	}
	if r.Provider = cmp.Or(r.Provider, g.Provider); r.Provider != g.Provider {
		return nil, fault.New(fault.Invalid, "account: it belongs to %s, not to %s", clip(g.Provider), clip(r.Provider))
	}
	return g.Server, nil
}

func (r *LoginRequest) login(p *Provider) store.Login {
	l := store.Login{
		ID: r.ID, Purpose: string(cmp.Or(r.Purpose, ForAccount)), Provider: p.Name, Kind: r.Kind,
		Account: r.Account, Again: !id.IsZero(r.Account), Label: r.Label,
	}
	if l.ID == uuid.Nil {
		l.ID = uuid.Must(uuid.NewV7())
	}
	if !l.Again {
		l.Account = id.New[id.Account]()
	}
	return l
}

func authorizeURL(p *Provider, redirect, verifier string) string {
	q := url.Values{
		"response_type": {"code"}, "client_id": {p.Client.ID}, "redirect_uri": {redirect}, "state": {stateOf(verifier)},
		"code_challenge": {base64.RawURLEncoding.EncodeToString(hash(verifier))}, "code_challenge_method": {"S256"},
	}
	if len(p.Scopes) > 0 {
		q.Set("scope", strings.Join(p.Scopes, " "))
	}
	for name, value := range p.AuthorizeParams {
		q.Set(name, value)
	}
	sep := "?"
	if strings.Contains(p.Authorize, "?") {
		sep = "&"
	}
	return p.Authorize + sep + q.Encode()
}

// random returns 256 bits as text: a PKCE verifier (RFC 7636, 4.1).
func random() string {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails: crypto/rand
	return base64.RawURLEncoding.EncodeToString(b)
}

// stateOf derives the state from a verifier, so that only one of the two is stored. Neither the
// state nor the challenge, which is another hash of the verifier, reveals one of the others.
func stateOf(verifier string) string {
	return base64.RawURLEncoding.EncodeToString(hash("state of " + verifier))
}

func hash(text string) []byte {
	sum := sha256.Sum256([]byte(text))
	return sum[:]
}
