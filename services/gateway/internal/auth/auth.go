// Package auth authenticates requests and authorizes them in a workspace: it turns an
// access token or an API key, and a workspace id, into an actor. It also limits the rate
// of requests and ends open streams whose permission has been withdrawn.
//
// Nothing is cached: the membership is looked up with every request, so a member who is
// removed is refused at the next one. An open stream was authorized once; Streams checks
// the memberships of all of a gateway's streams again every few seconds, in one query.
package auth

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"time"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/httpserver"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"

	"signalbox.dev/services/gateway/internal/limit"
	"signalbox.dev/services/gateway/internal/store"
)

// Members looks up roles and API keys.
type Members interface {
	Role(ctx context.Context, ws id.Workspace, m id.Member) (identity.Role, error)
	Holder(ctx context.Context, secret conf.Secret) (store.Holder, bool, error)
	Session(ctx context.Context, secret conf.Secret) (store.BrowserSession, bool, error)
	UseLink(ctx context.Context, key conf.Secret) (id.Member, error)
}

// Verifier checks people's access tokens.
type Verifier interface {
	Verify(token string) (identity.Token, error)
}

// Config configures an Authenticator.
type Config struct {
	Verifiers    []Verifier // tried in order
	Members      Members
	Log          *slog.Logger
	PerMember    limit.Rate
	PerWorkspace limit.Rate
	// TrustedProxies may set X-Forwarded-For.
	TrustedProxies []netip.Prefix
}

// Authenticator authenticates callers and authorizes them in workspaces. It is safe for
// concurrent use.
type Authenticator struct {
	cfg        Config
	members    *limit.Limiter[id.Member]
	workspaces *limit.Limiter[id.Workspace]
	failures   *limit.Limiter[netip.Prefix] // by IPv4 address or IPv6 /64
}

const (
	maxKeys = 50_000
	// maxFailures bounds the invalid tokens and keys per minute and address; further ones get 429.
	maxFailures = 20
)

// New returns an Authenticator.
func New(cfg Config) *Authenticator {
	return &Authenticator{
		cfg: cfg, members: limit.New[id.Member](cfg.PerMember, maxKeys), workspaces: limit.New[id.Workspace](cfg.PerWorkspace, maxKeys),
		failures: limit.New[netip.Prefix](limit.Rate{PerMinute: maxFailures, Burst: maxFailures}, maxKeys),
	}
}

// Caller is the holder of a valid token, browser session or API key.
type Caller struct {
	Member  id.Member
	Name    string                 // as an access token has it; may be empty
	Expires time.Time              // zero for never
	holder  store.Holder           // of the API key, which is valid in one workspace only; zero without one
	session store.BrowserSessionID // zero without one
}

// Session returns the caller's browser session; zero without one.
func (p Caller) Session() store.BrowserSessionID { return p.session }

// IsKey reports whether the caller presented an API key.
func (p Caller) IsKey() bool { return p.holder.Key != (store.KeyID{}) }

// Key returns the holder of the caller's API key. It returns false for a token.
func (p Caller) Key() (store.Holder, bool) { return p.holder, p.IsKey() }

// Principal is a caller that is authorized in a workspace.
type Principal struct {
	Actor   identity.Actor
	Expires time.Time // zero for never
	Grant   store.Grant
}

// Authenticate verifies a token or API key and counts a request of its member. A failure
// counts against the client's address. A valid token is accepted from an address with
// many failures, since clients may share an address.
func (a *Authenticator) Authenticate(ctx context.Context, from netip.Addr, token string) (Caller, error) {
	p, err := a.authenticate(ctx, token)
	if err != nil {
		return Caller{}, a.Failed(from, token != "", err)
	}
	if wait, ok := a.members.Take(p.Member, time.Now()); !ok {
		return Caller{}, tooMany(wait, "you make")
	}
	return p, nil
}

// signedOut is the code of the error for a browser's session that has ended.
const signedOut = "SIGNED_OUT"

// UseLink returns the person whom a link signs in, and makes the link invalid. A failure counts
// against the client's address.
func (a *Authenticator) UseLink(ctx context.Context, from netip.Addr, key conf.Secret) (id.Member, error) {
	m, err := a.cfg.Members.UseLink(ctx, key)
	if err != nil {
		return m, a.Failed(from, true, err)
	}
	return m, nil
}

// Failed counts a presented credential that was not valid against the client's address, and
// returns the error to answer with. The secret of a browser's session, which nobody can guess, does
// not count: pages go on to send one that has ended, and are to learn that.
func (a *Authenticator) Failed(from netip.Addr, presented bool, err error) error {
	if presented && fault.KindOf(err) == fault.Unauthenticated && fault.From(err).Code != signedOut {
		if wait, ok := a.failures.Take(httpserver.Network(from), time.Now()); !ok {
			return limited(wait, "too many tokens or keys from your address were not valid")
		}
	}
	return err
}

func (a *Authenticator) authenticate(ctx context.Context, token string) (Caller, error) {
	if token == "" {
		return Caller{}, fault.New(fault.Unauthenticated, "no token: send the header Authorization: Bearer <token>")
	}
	if strings.HasPrefix(token, store.KeyPrefix) {
		h, ok, err := a.cfg.Members.Holder(ctx, conf.Secret(token))
		if err != nil {
			return Caller{}, err
		}
		if !ok {
			return Caller{}, fault.Coded(fault.Unauthenticated, "INVALID_KEY", "the API key is invalid: it was revoked or never existed")
		}
		return Caller{Member: h.Member, holder: h}, nil
	}
	if strings.HasPrefix(token, store.SessionPrefix) {
		s, ok, err := a.cfg.Members.Session(ctx, conf.Secret(token))
		if err != nil {
			return Caller{}, err
		}
		if !ok {
			return Caller{}, fault.Coded(fault.Unauthenticated, signedOut, "you are signed out: sign in again")
		}
		return Caller{Member: s.Member, Expires: s.ExpiresAt, session: s.ID}, nil
	}
	var reasons []error
	for _, v := range a.cfg.Verifiers {
		t, err := v.Verify(token)
		if err == nil {
			return Caller{Member: t.Member, Name: t.Name, Expires: t.End()}, nil
		}
		reasons = append(reasons, err)
	}
	a.cfg.Log.DebugContext(ctx, "token refused", "error", errors.Join(reasons...))
	return Caller{}, fault.Coded(fault.Unauthenticated, "INVALID_TOKEN", "the token is invalid or has expired: sign in again")
}

// Authorize looks up the caller's role in a workspace, given by the text of its id, and
// counts a request there. An API key implies its workspace.
func (a *Authenticator) Authorize(ctx context.Context, p Caller, workspace string) (Principal, error) {
	ws, err := a.workspace(p, workspace)
	if err != nil {
		return Principal{}, err
	}
	g := Principal{Expires: p.Expires, Grant: store.Grant{Workspace: ws, Member: p.Member, Key: p.holder.Key, Session: p.session}}
	role := p.holder.Role
	if !p.IsKey() {
		if role, err = a.cfg.Members.Role(ctx, ws, p.Member); err != nil {
			return Principal{}, err
		}
		if role == identity.NoRole {
			return Principal{}, fault.Coded(fault.Forbidden, "NOT_A_MEMBER", "you are not a member of this workspace")
		}
	}
	g.Actor = identity.Actor{Workspace: ws, Member: p.Member, Role: role, Key: id.APIKey(p.holder.Key)}
	g.Grant.Role = role
	if wait, ok := a.workspaces.Take(ws, time.Now()); !ok {
		return Principal{}, tooMany(wait, "this workspace makes")
	}
	return g, nil
}

func (a *Authenticator) workspace(p Caller, text string) (id.Workspace, error) {
	key := p.IsKey()
	if text == "" && key {
		return p.holder.Workspace, nil
	}
	if text == "" {
		return id.Workspace{}, fault.Coded(fault.Invalid, "NO_WORKSPACE", "X-Workspace-Id is missing: send the workspace's id in this header, or as ?workspace_id= where headers cannot be set")
	}
	ws, err := id.Parse[id.Workspace](text)
	if err != nil {
		return id.Workspace{}, fault.New(fault.Invalid, "X-Workspace-Id: %s", err)
	}
	if key && ws != p.holder.Workspace {
		return id.Workspace{}, fault.Coded(fault.Forbidden, "NOT_A_MEMBER", "this API key belongs to another workspace")
	}
	return ws, nil
}

func tooMany(wait time.Duration, subject string) error {
	return limited(wait, subject+" too many requests")
}

func limited(wait time.Duration, why string) error {
	return &fault.Error{
		Kind: fault.Limited, Code: "RATE_LIMITED", RetryAfter: wait,
		Message: fmt.Sprintf("%s: wait %s", why, max(wait.Round(time.Second), time.Second)),
	}
}
