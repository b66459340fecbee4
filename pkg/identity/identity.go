// Package identity identifies who is acting. A person authenticates to the gateway with an
// access token (TokenVerifier) or an API key. From there on, services tell each other on whose
// behalf they call with a signed context: a JSON Web Token (RFC 7519), signed with the calling
// service's Ed25519 key and valid for one audience and 60 seconds (Signer, Verifier).
//
// No error contains the text of a token.
package identity

import (
	"context"
	"fmt"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
)

// Role is what a member may do in a workspace. A higher role includes the lower ones.
type Role uint8

// The roles, in ascending order. The zero Role may do nothing.
const (
	NoRole Role = iota
	Viewer      // reads and watches
	Editor      // writes: sessions, messages, documents
	Owner       // administers: members, keys, accounts
)

var roleNames = [...]string{NoRole: "", Viewer: "viewer", Editor: "editor", Owner: "owner"}

// ParseRole parses viewer, editor or owner.
func ParseRole(s string) (Role, error) {
	for r := Viewer; r <= Owner; r++ {
		if roleNames[r] == s {
			return r, nil
		}
	}
	return NoRole, fmt.Errorf("unknown role %q: use owner, editor or viewer", s)
}

// String returns the role's name.
func (r Role) String() string { return roleNames[r] }

// Actor is on whose behalf something is done. It is always verified: code that builds one from
// anything but a verified token opens a workspace to others.
type Actor struct {
	Workspace id.Workspace
	Member    id.Member
	Role      Role
	// Run is set if an agent's run acts for the member.
	Run id.Run
	// Session is set along with Run.
	Session id.Session
	// Key is set if the member used an API key.
	Key id.APIKey
	// Service is the service that signed the context; empty at the gateway's own door.
	Service string
	// Address is the person's network address, if Service knows it. It is only for records.
	Address string
}

type actorKey struct{}

// With returns a context that carries a.
func With(ctx context.Context, a Actor) context.Context {
	return context.WithValue(ctx, actorKey{}, a)
}

// From returns the actor that the context carries.
func From(ctx context.Context) (Actor, bool) {
	a, ok := ctx.Value(actorKey{}).(Actor)
	return a, ok
}

// Require returns the context's actor if its role is at least least, or an Unauthenticated or
// Forbidden fault.
func Require(ctx context.Context, least Role) (Actor, error) {
	a, ok := From(ctx)
	if !ok || id.IsZero(a.Workspace) {
		return Actor{}, fault.New(fault.Unauthenticated, "no identity: send a token")
	}
	if a.Role < least {
		return Actor{}, fault.New(fault.Forbidden, "this needs the role %s; yours is %s", least, a.Role)
	}
	return a, nil
}
