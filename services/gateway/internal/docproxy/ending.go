package docproxy

import (
	"context"
	"errors"

	"signalbox.dev/pkg/fault"
)

// The close codes that are the gateway's own: RFC 6455, section 7.4, and the range
// that it leaves to applications, where they follow the REST API's statuses.
const (
	codeCut       = 1006 // of a connection that ended without a close frame; never sent
	codeMalformed = 1007
	codeTooBig    = 1009
	codeInternal  = 1011
	codeRestart   = 1012 // the gateway goes away: connect again
	codeBusy      = 1013 // document-sync is away, or there are too many: try again later
	codeInvalid   = 4400 // what is missing is in the reason
	codeToken     = 4401 // no token, or one that is not valid, or that has expired
	codeForbidden = 4403 // no membership in the workspace
	codeNotFound  = 4404
)

// ending is why a socket ends, as its client is told.
type ending struct {
	code   int
	reason string
	err    error // the cause, for logs only; may be nil
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
	errDraining = &ending{code: codeRestart, reason: "this gateway is going away: connect again"}
	errTooMany  = &ending{code: codeBusy, reason: "this gateway has too many open sockets: try again later"}
	errAway     = &ending{code: codeBusy, reason: reasonAway}
	errSilent   = &ending{code: codeBusy, reason: "the documents' service does not answer: try again in a moment"}
	errStuck    = &ending{code: codeBusy, reason: "the documents' service takes nothing: try again later"}
	errNoToken  = &ending{code: codeToken, reason: "no token: send it in the URL or, with Hocuspocus, as the provider's token"}

	// errLeft ends a socket whose client is not to be told anything.
	errLeft = &ending{code: codeCut, reason: "the client has left"}
)

const reasonAway = "the documents' service cannot be reached: try again in a moment"

func away(err error) error { return &ending{code: codeBusy, reason: reasonAway, err: err} }

// endingOf returns how a socket ends that ends with err. What has no kind is told
// to nobody.
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

// withCause returns why ctx ended where that is what err comes from.
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
