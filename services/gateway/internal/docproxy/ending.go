package docproxy

import (
	"context"
	"errors"

	"signalbox.dev/pkg/fault"
)

// The gateway's close codes: RFC 6455, section 7.4, and codes of the application range, which
// follow the REST API's statuses.
const (
	codeCut       = 1006 // the connection ended without a close frame; never sent
	codeMalformed = 1007
	codeTooBig    = 1009
	codeInternal  = 1011
	codeRestart   = 1012 // the gateway shuts down: connect again
	codeBusy      = 1013 // document-sync is unavailable, or there are too many sockets: try again later
	codeInvalid   = 4400 // the reason says what is missing
	codeToken     = 4401 // no token, or an invalid or expired one
	codeForbidden = 4403 // no membership in the workspace
	codeNotFound  = 4404
)

// ending is the reason for the end of a socket, as sent to the client.
type ending struct {
	code   int
	reason string
	err    error // the cause, which is only logged; may be nil
}

// Error implements error.
func (e *ending) Error() string {
	if e.err != nil {
		return e.reason + ": " + e.err.Error()
	}
	return e.reason
}

// Unwrap returns the cause.
func (e *ending) Unwrap() error { return e.err }

var (
	errDraining    = &ending{code: codeRestart, reason: "this gateway is shutting down: connect again"}
	errTooMany     = &ending{code: codeBusy, reason: "this gateway has too many open sockets: try again later"}
	errUnavailable = &ending{code: codeBusy, reason: reasonUnavailable}
	errSilent      = &ending{code: codeBusy, reason: "the document service does not answer: try again in a moment"}
	errStuck       = &ending{code: codeBusy, reason: "the document service accepts no messages: try again later"}
	errNoToken     = &ending{code: codeToken, reason: "no token: send it in the URL or, with Hocuspocus, as the provider's token"}

	// errLeft ends a socket whose client has left, and is not sent.
	errLeft = &ending{code: codeCut, reason: "the client has left"}
)

const reasonUnavailable = "the document service cannot be reached: try again in a moment"

func unavailable(err error) error {
	return &ending{code: codeBusy, reason: reasonUnavailable, err: err}
}

// endingOf returns the ending of a socket for err. An internal error is not shown.
func endingOf(err error) *ending {
	if e, ok := errors.AsType[*ending](err); ok {
		return e
	}
	f := fault.From(err)
	e := &ending{reason: f.Message, err: err}
	switch f.Kind {
	case fault.Unauthenticated:
		e.code = codeToken
	case fault.Forbidden:
		e.code = codeForbidden
	case fault.NotFound:
		e.code = codeNotFound
	case fault.Invalid:
		e.code = codeInvalid
	case fault.Limited, fault.Unavailable, fault.Deadline:
		e.code = codeBusy
	default:
		e.code, e.reason = codeInternal, "internal error"
	}
	return e
}

// withCause returns the cause of ctx if ctx has ended, else err.
func withCause(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	cause := context.Cause(ctx)
	if errors.Is(cause, context.Canceled) {
		return errLeft
	}
	return cause
}
