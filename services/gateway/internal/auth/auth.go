// Package auth finds out who is asking: it turns an access token or an API key
// and a workspace id into an actor, counts requests, and ends open streams whose
// right has gone.
//
// Nothing is cached: a membership is looked up with every request, so that one
// who is removed is out with the next. Open streams rest on a membership that was
// looked up once; Streams looks again every few seconds, for all of a gateway's
// streams in one query.
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

// Members is what the door needs to know about workspaces.
type Members interface {
	Role(ctx context.Context, ws id.Workspace, m id.Member) (identity.Role, error)
	Holder(ctx context.Context, secret conf.Secret) (store.Holder, bool, error)
}

// Verifier checks people's access tokens.
type Verifier interface {
	Verify(token string) (identity.Token, error)
}

// Config says whom the door lets in.
type Config struct {
	Verifiers    []Verifier // asked one after the other
	Members      Members
	Log          *slog.Logger
	PerMember    limit.Rate
	PerWorkspace limit.Rate
	// TrustedProxies are those whose X-Forwarded-For is believed.
	TrustedProxies []netip.Prefix
}

// Door is the gateway's entrance. It is safe for concurrent use.
type Door struct {
	cfg        Config
	members    *limit.Limiter[id.Member]
	workspaces *limit.Limiter[id.Workspace]
	failures   *limit.Limiter[netip.Prefix] // of an address, or the /64 of one
}

const (
	maxKeys = 50_000
	// maxFailures is how many tokens and keys a minute may fail from one address before
	// the next one that fails is told to wait.
	maxFailures = 20
)

// New returns a door.
func New(cfg Config) *Door {
	return &Door{
		cfg: cfg, members: limit.New[id.Member](cfg.PerMember, maxKeys), workspaces: limit.New[id.Workspace](cfg.PerWorkspace, maxKeys),
		failures: limit.New[netip.Prefix](limit.Rate{PerMinute: maxFailures, Burst: maxFailures}, maxKeys),
	}
}

// Person is somebody whose token was verified.
type Person struct {
	Member  id.Member
	Expires time.Time    // zero for never
	holder  store.Holder // of an API key, which is good for one workspace only
}

// IsKey reports whether an API key speaks for the person.
func (p Person) IsKey() bool { return p.holder.Key != (store.KeyID{}) }

// Key returns what the API key is good for that speaks for the person, if one does.
func (p Person) Key() (store.Holder, bool) { return p.holder, p.IsKey() }

// Guest is a person in a workspace.
type Guest struct {
	Actor   identity.Actor
	Expires time.Time // zero for never
	Grant   store.Grant
}

// Who returns whose token or API key it is, and counts a request of theirs. What fails
// counts against the address it comes from. Who brings a good one is let in also from an
// address of many failures: others may be behind it, too.
func (d *Door) Who(ctx context.Context, from netip.Addr, token string) (Person, error) {
	p, err := d.who(ctx, token)
	if token != "" && err != nil && fault.KindOf(err) == fault.Unauthenticated {
		if wait, ok := d.failures.Take(httpserver.Network(from), time.Now()); !ok {
			return Person{}, limited(wait, "too many tokens or keys from your address were not valid")
		}
	}
	if err != nil {
		return Person{}, err
	}
	if wait, ok := d.members.Take(p.Member, time.Now()); !ok {
		return Person{}, tooMany(wait, "you make")
	}
	return p, nil
}

func (d *Door) who(ctx context.Context, token string) (Person, error) {
	if token == "" {
		return Person{}, fault.New(fault.Unauthenticated, "no token: send the header Authorization: Bearer <token>")
	}
	if strings.HasPrefix(token, store.KeyPrefix) {
		h, ok, err := d.cfg.Members.Holder(ctx, conf.Secret(token))
		if err != nil {
			return Person{}, err
		}
		if !ok {
			return Person{}, fault.Coded(fault.Unauthenticated, "INVALID_KEY", "the API key is not valid: it was revoked, or never made")
		}
		return Person{Member: h.Member, holder: h}, nil
	}
	var reasons []error
	for _, v := range d.cfg.Verifiers {
		t, err := v.Verify(token)
		if err == nil {
			return Person{Member: t.Member, Expires: t.End()}, nil
		}
		reasons = append(reasons, err)
	}
	d.cfg.Log.DebugContext(ctx, "token refused", "error", errors.Join(reasons...))
	return Person{}, fault.Coded(fault.Unauthenticated, "INVALID_TOKEN", "the token is not valid, or has expired: sign in again")
}

// Enter lets a person into a workspace, given as its id's text, and counts a
// request there. An API key brings its workspace along.
func (d *Door) Enter(ctx context.Context, p Person, workspace string) (Guest, error) {
	ws, err := d.workspace(p, workspace)
	if err != nil {
		return Guest{}, err
	}
	g := Guest{Expires: p.Expires, Grant: store.Grant{Workspace: ws, Member: p.Member, Key: p.holder.Key}}
	role := p.holder.Role
	if !p.IsKey() {
		if role, err = d.cfg.Members.Role(ctx, ws, p.Member); err != nil {
			return Guest{}, err
		}
		if role == identity.NoRole {
			return Guest{}, fault.Coded(fault.Forbidden, "NOT_A_MEMBER", "you are not a member of this workspace")
		}
	}
	g.Actor = identity.Actor{Workspace: ws, Member: p.Member, Role: role, Key: id.APIKey(p.holder.Key)}
	g.Grant.Role = role
	if wait, ok := d.workspaces.Take(ws, time.Now()); !ok {
		return Guest{}, tooMany(wait, "this workspace makes")
	}
	return g, nil
}

func (d *Door) workspace(p Person, text string) (id.Workspace, error) {
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
		return id.Workspace{}, fault.Coded(fault.Forbidden, "NOT_A_MEMBER", "this API key is of another workspace")
	}
	return ws, nil
}

func tooMany(wait time.Duration, who string) error { return limited(wait, who+" too many requests") }

func limited(wait time.Duration, why string) error {
	return &fault.Error{
		Kind: fault.Limited, Code: "RATE_LIMITED", RetryAfter: wait,
		Message: fmt.Sprintf("%s: wait %s", why, max(wait.Round(time.Second), time.Second)),
	}
}
