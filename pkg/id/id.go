// Package id names things. Every kind of thing has an id type of its own, so
// that a session id cannot be handed where a run id is wanted; underneath all
// are UUIDs. New ids are version 7 (RFC 9562): they sort by the time they were
// made, which keeps the indexes of Postgres dense.
//
// The types embed uuid.UUID and therefore scan from and encode to Postgres
// uuid columns and marshal to and from JSON strings.
package id

import (
	"fmt"

	"github.com/google/uuid"
)

type (
	// Workspace names a tenant.
	Workspace struct{ uuid.UUID }
	// Member names a person in the sense of the token's sub claim; the same
	// person is the same Member in every workspace.
	Member struct{ uuid.UUID }
	// Session names a conversation.
	Session struct{ uuid.UUID }
	// Message names one stored message of a session.
	Message struct{ uuid.UUID }
	// Run names the answering of one user message.
	Run struct{ uuid.UUID }
	// Document names a document.
	Document struct{ uuid.UUID }
	// Account names one credential of one provider.
	Account struct{ uuid.UUID }
	// APIKey names a key that a member made for a program of theirs.
	APIKey struct{ uuid.UUID }
	// Operation names one idempotent operation: a tool call or an edit. It is
	// made by the caller and derived from what it stands for.
	Operation struct{ uuid.UUID }
)

// Kind is any of this package's id types.
type Kind interface {
	~struct{ uuid.UUID }
}

// New returns a fresh id.
func New[T Kind]() T {
	return T{uuid.Must(uuid.NewV7())}
}

// Parse reads the canonical 36 character form. Other forms that the uuid
// library knows (braces, urn:) are refused: an id has one spelling. So is the id of
// nothing: whoever sends it has forgotten to fill something in, and as a member it
// would be everybody who forgot.
func Parse[T Kind](s string) (T, error) {
	if len(s) != 36 {
		return T{}, fmt.Errorf("%q is not a UUID", clip(s))
	}
	u, err := uuid.Parse(s)
	if err != nil {
		return T{}, fmt.Errorf("%q is not a UUID", clip(s))
	}
	if u == uuid.Nil {
		return T{}, fmt.Errorf("%q is the UUID of nothing", s)
	}
	return T{u}, nil
}

// Must is Parse for constants of tests and programs; it panics on an error.
func Must[T Kind](s string) T {
	v, err := Parse[T](s)
	if err != nil {
		panic(err)
	}
	return v
}

// IsZero reports whether v is the id of nothing.
func IsZero[T Kind](v T) bool {
	return struct{ uuid.UUID }(v).UUID == uuid.Nil
}

// Derive returns the operation that the given parts stand for: UUID version 5
// under space, of the parts each preceded by its length. The same parts give
// the same operation on any machine.
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
