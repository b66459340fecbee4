// Package fault classifies errors that cross a door. Inside a service errors are wrapped with
// %w. At a door (public HTTP, Connect, bus) an error either has a kind of this package or is
// internal: logged in full and shown to nobody.
//
// A kind maps to a Connect code and an HTTP status. A Connect client returns the fault of the
// handler: package rpc carries message, machine-readable code and retry delay as an error
// detail.
package fault

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"connectrpc.com/connect"
)

// Kind classifies an error by what a caller can do about it.
type Kind uint8

// The kinds. Internal is the zero value, for unclassified errors.
const (
	Internal        Kind = iota // a bug or a broken dependency: the caller can do nothing
	Invalid                     // the request is wrong; the message names the field
	Unauthenticated             // no identity, or an invalid one
	Forbidden                   // known, but not allowed
	NotFound                    // absent, or not visible to this caller
	Conflict                    // not possible in the current state
	TooLarge                    // over a size limit
	Limited                     // over a rate limit or quota; see RetryAfter
	Unavailable                 // a dependency is down: the same request may succeed later
	Deadline                    // ran out of time
	Cancelled                   // the caller is gone
)

var kinds = [...]struct {
	name   string
	code   connect.Code
	status int
}{
	Internal:        {"internal", connect.CodeInternal, http.StatusInternalServerError},
	Invalid:         {"invalid", connect.CodeInvalidArgument, http.StatusBadRequest},
	Unauthenticated: {"unauthenticated", connect.CodeUnauthenticated, http.StatusUnauthorized},
	Forbidden:       {"forbidden", connect.CodePermissionDenied, http.StatusForbidden},
	NotFound:        {"not_found", connect.CodeNotFound, http.StatusNotFound},
	Conflict:        {"conflict", connect.CodeFailedPrecondition, http.StatusConflict},
	TooLarge:        {"too_large", connect.CodeOutOfRange, http.StatusRequestEntityTooLarge},
	Limited:         {"limited", connect.CodeResourceExhausted, http.StatusTooManyRequests},
	Unavailable:     {"unavailable", connect.CodeUnavailable, http.StatusServiceUnavailable},
	Deadline:        {"deadline", connect.CodeDeadlineExceeded, http.StatusServiceUnavailable},
	Cancelled:       {"cancelled", connect.CodeCanceled, 499},
}

// CodePrecondition is the code of a Conflict with a condition of the request, such as a
// version. The public API responds with 412.
const CodePrecondition = "PRECONDITION_FAILED"

// String returns the kind in lower case, for logs and metrics.
func (k Kind) String() string { return kinds[k].name }

// ConnectCode returns the Connect code a fault of this kind travels under.
func (k Kind) ConnectCode() connect.Code { return kinds[k].code }

// HTTPStatus returns the status of the public API for this kind. 499, for Cancelled, only
// appears in logs and metrics.
func (k Kind) HTTPStatus() int { return kinds[k].status }

// KindOfCode returns the kind that travels under a Connect code, or Internal.
func KindOfCode(c connect.Code) Kind {
	for k := range kinds {
		if kinds[k].code == c {
			return Kind(k)
		}
	}
	return Internal
}

// Error is an error with a kind. Message tells the caller what was wrong and what to do. It
// must not contain secrets or internals.
type Error struct {
	Kind       Kind
	Code       string        // machine-readable, UPPER_SNAKE; may be empty
	Message    string        // for people
	RetryAfter time.Duration // with Limited and Unavailable; 0 if unknown
	Err        error         // the cause, for logs only; may be nil
}

// Error returns message and cause. It is for logs; doors show Message.
func (e *Error) Error() string {
	if e.Err != nil {
		return e.Message + ": " + e.Err.Error()
	}
	return e.Message
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// New returns a fault of a kind with a formatted message. It does not support %w: use Wrap to
// keep a cause for the logs.
func New(k Kind, format string, args ...any) *Error {
	return &Error{Kind: k, Message: fmt.Sprintf(format, args...)}
}

// Coded is New with a machine-readable code.
func Coded(k Kind, code, format string, args ...any) *Error {
	e := New(k, format, args...)
	e.Code = code
	return e
}

// Wrap returns a fault with a message for people and err as its cause, which is for logs only.
func Wrap(err error, k Kind, message string) *Error {
	return &Error{Kind: k, Message: message, Err: err}
}

// From returns the fault in err's chain. An error without one is Internal, with a generic
// message, or Cancelled or Deadline if it is a context error.
func From(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	switch {
	case errors.Is(err, context.Canceled):
		return Wrap(err, Cancelled, "the request was cancelled")
	case errors.Is(err, context.DeadlineExceeded):
		return Wrap(err, Deadline, "the request took too long")
	}
	return Wrap(err, Internal, "internal error")
}

// KindOf returns the kind of From(err).
func KindOf(err error) Kind { return From(err).Kind }
