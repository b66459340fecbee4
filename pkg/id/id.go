// Package id has a type for the ids of each kind of thing, so that a session id cannot be
// passed for a run id. All are UUIDs. New ids are of version 7 (RFC 9562): they sort by
// creation time, which keeps Postgres indexes dense.
//
// The types embed uuid.UUID, and so work with Postgres uuid columns and as JSON strings.
package id

import (
	"fmt"

	"github.com/google/uuid"
)

type (
	// Workspace identifies a tenant.
	Workspace struct{ uuid.UUID }
	// Member identifies a person, as the token's sub claim does: a person is the same Member
	// in every workspace.
	Member struct{ uuid.UUID }
	// Session identifies a conversation.
	Session struct{ uuid.UUID }
	// Message identifies a stored message of a session.
	Message struct{ uuid.UUID }
	// Run identifies the work on a user message.
	Run struct{ uuid.UUID }
	// Document identifies a document.
	Document struct{ uuid.UUID }
	// Account identifies a credential for a provider.
	Account struct{ uuid.UUID }
	// APIKey identifies a key that a member created for a program.
	APIKey struct{ uuid.UUID }
	// Operation identifies an idempotent operation, a tool call or an edit. The caller derives
	// it from what it stands for.
	Operation struct{ uuid.UUID }
)

// Kind is any of this package's id types.
type Kind interface {
	~struct{ uuid.UUID }
}

// New returns a new id.
func New[T Kind]() T {
	return T{uuid.Must(uuid.NewV7())}
}

// Parse parses the canonical form of 36 characters. It refuses other forms that the uuid
// library accepts (braces, urn:), so that an id has one spelling, and the nil UUID, which comes
// from callers that forgot to set an id.
func Parse[T Kind](s string) (T, error) {
	if len(s) != 36 {
		return T{}, fmt.Errorf("%q is not a UUID", clip(s))
	}
	u, err := uuid.Parse(s)
	if err != nil {
		return T{}, fmt.Errorf("%q is not a UUID", clip(s))
	}
	if u == uuid.Nil {
		return T{}, fmt.Errorf("%q is the nil UUID", s)
	}
	return T{u}, nil
}

// Must is Parse for constants and tests; it panics on an error.
func Must[T Kind](s string) T {
	v, err := Parse[T](s)
	if err != nil {
		panic(err)
	}
	return v
}

// IsZero reports whether v is the nil UUID.
func IsZero[T Kind](v T) bool {
	return struct{ uuid.UUID }(v).UUID == uuid.Nil
}

// Derive returns the operation that the parts stand for: a UUID of version 5 in the namespace
// space, of the parts, each preceded by its length. The same parts always give the same
// operation.
func Derive(space uuid.UUID, parts ...string) Operation {
	var b []byte
	for _, p := range parts {
		b = fmt.Appendf(b, "%d:%s", len(p), p)
	}
	return Operation{uuid.NewSHA1(space, b)}
}

func clip(s string) string {
	if len(s) > 64 {
		return s[:64] + "…"
	}
	return s
}
