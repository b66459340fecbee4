// Package fault gives failures a kind where they cross a door. Inside a service
// errors are plain and wrapped with %w; at a door (public HTTP, Connect, bus) an
// error either carries a kind of this package or it is internal: logged in full
// and shown to nobody.
//
// A kind maps to a Connect code and an HTTP status, and the same fault comes out
// of a Connect client as went into the handler: message, machine-readable code and
// retry delay survive the hop (package rpc carries them as an error detail).
package fault

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"connectrpc.com/connect"
)

// Kind says what a caller can do about a failure.
type Kind uint8

// The kinds. Internal is the zero value: what nobody classified is ours.
const (
	Internal        Kind = iota // a bug or a broken part: nothing the caller can do
	Invalid                     // the request is wrong: names the field
	Unauthenticated             // no identity, or one that does not verify
	Forbidden                   // known, but not allowed
	NotFound                    // absent, or not visible to this caller
	Conflict                    // the state of things refuses it now
	TooLarge                    // over a size limit
	Limited                     // over a rate or a quota: RetryAfter says how long
	Unavailable                 // a part is down: the same request may work later
	Deadline                    // ran out of time
	Cancelled                   // the caller went away
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

// CodePrecondition is the code of a Conflict with a condition of the request: a thing is
// not in the version that the caller knows. The public API answers 412.
const CodePrecondition = "PRECONDITION_FAILED"

// String returns the kind in lower case, for logs and metrics.
func (k Kind) String() string { return kinds[k].name }

// ConnectCode returns the Connect code a fault of this kind travels under.
func (k Kind) ConnectCode() connect.Code { return kinds[k].code }

// HTTPStatus returns the status of the public API for this kind. Cancelled is
// 499, which no client ever sees: it is for logs and metrics.
func (k Kind) HTTPStatus() int { return kinds[k].status }

// KindOfCode returns the kind that travels under a Connect code; codes that no
// kind uses are Internal.
func KindOfCode(c connect.Code) Kind {
	for k := range kinds {
		if kinds[k].code == c {
			return Kind(k)
		}
	}
	return Internal
}

// Error is a failure with a kind. Message is written for the person on the other
// side: what was wrong and what to do. It must hold no secret and no internals.
type Error struct {
	Kind       Kind
	Code       string        // machine-readable, UPPER_SNAKE; may be empty
	Message    string        // for people
	RetryAfter time.Duration // with Limited and Unavailable; 0 when unknown
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

// New returns a fault of a kind with a formatted message. To keep a cause for
// the logs, use Wrap: %w has no meaning here.
func New(k Kind, format string, args ...any) *Error {
	return &Error{Kind: k, Message: fmt.Sprintf(format, args...)}
}

// Coded is New with a machine-readable code.
func Coded(k Kind, code, format string, args ...any) *Error {
	e := New(k, format, args...)
	e.Code = code
	return e
}

// Wrap gives err a kind and a message for people; err itself is for logs only.
func Wrap(err error, k Kind, message string) *Error {
	return &Error{Kind: k, Message: message, Err: err}
}

// From returns the fault in err's chain. An error without one is Internal, with
// a message that tells nothing; a bare context error gives Cancelled or Deadline.
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

// KindOf returns the kind of the fault in err's chain, Internal without one.
func KindOf(err error) Kind { return From(err).Kind }
