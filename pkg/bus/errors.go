package bus

import (
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Errors that callers act on.
var (
	// ErrFenced means that somebody else published on the subject in between.
	ErrFenced = errors.New("another message came first on this subject")
	// ErrNotFound means that the log has no message on the subject (any more).
	ErrNotFound = errors.New("no message on this subject")
	// ErrNoStream means that no stream takes the subject or has the name: it is
	// not made yet, or has no leader at the moment.
	ErrNoStream = errors.New("no stream answers; it is made by `signalbox migrate` (or by standalone)")
	// ErrFull means that a work queue is full. It is the back-pressure: try later.
	ErrFull = errors.New("the work queue is full")
	// ErrTooLarge means that a message is over the limit and will never be taken.
	ErrTooLarge = errors.New("message too large")
	// ErrSchema means that a message is not of the expected schema.
	ErrSchema = errors.New("unexpected schema")
	// ErrDraining is the cause of a handler's cancelled context when the time
	// given to drain is over.
	ErrDraining = errors.New("this worker is draining")
	// ErrDisconnected means that there is no connection at the moment, or that it
	// was lost before the server answered.
	ErrDisconnected = errors.New("not connected to NATS")
	// ErrClosed means that the bus was closed.
	ErrClosed = errors.New("the bus is closed")
)

// Terminal makes err a decision to drop the message: it is logged as an error
// and never delivered again.
func Terminal(err error) error { return &terminalError{err} }

// RetryAfter makes err a decision to deliver the message again after d.
func RetryAfter(d time.Duration, err error) error { return &retryError{d, err} }

// After returns the delay that a RetryAfter in err's chain asks for.
func After(err error) (d time.Duration, ok bool) {
	if r, ok := errors.AsType[*retryError](err); ok {
		return r.after, true
	}
	return 0, false
}

// IsTerminal reports whether err's chain has a Terminal.
func IsTerminal(err error) bool {
	_, ok := errors.AsType[*terminalError](err)
	return ok
}

type terminalError struct{ err error }

func (e *terminalError) Error() string { return text(e.err, "dropped") }
func (e *terminalError) Unwrap() error { return e.err }

type retryError struct {
	after time.Duration
	err   error
}

func (e *retryError) Error() string { return text(e.err, "asked to come again") }
func (e *retryError) Unwrap() error { return e.err }

func text(err error, otherwise string) string {
	if err == nil {
		return otherwise
	}
	return err.Error()
}

// Server error codes that have a meaning here.
const (
	codeWrongLastSequence         = 10071
	codeWrongLastSequenceConstant = 10164 // the same, with replicas
	codeStoreFailed               = 10077 // such as maximum messages exceeded
	codeDuplicateInFlight         = 10158 // the first of this id is being stored
)

// errLate marks an attempt whose answer did not come.
var errLate = errors.New("the server did not answer in time")

// translate gives the client's errors this package's meaning and keeps them in the chain.
func translate(err error) error {
	if err == nil {
		return nil
	}
	if api, ok := errors.AsType[*jetstream.APIError](err); ok {
		switch api.ErrorCode {
		case codeWrongLastSequence, codeWrongLastSequenceConstant:
			return fmt.Errorf("%w: %w", ErrFenced, err)
		case codeStoreFailed:
			return fmt.Errorf("%w: %w", ErrFull, err)
		case codeDuplicateInFlight:
			return fmt.Errorf("%w: %w", errLate, err)
		}
	}
	switch {
	case errors.Is(err, jetstream.ErrNoStreamResponse), errors.Is(err, nats.ErrNoResponders),
		errors.Is(err, jetstream.ErrStreamNotFound):
		return fmt.Errorf("%w: %w", ErrNoStream, err)
	case errors.Is(err, nats.ErrMaxPayload):
		return fmt.Errorf("%w: %w", ErrTooLarge, err)
	case errors.Is(err, nats.ErrDisconnected), errors.Is(err, nats.ErrReconnectBufExceeded),
		errors.Is(err, nats.ErrConnectionReconnecting):
		return fmt.Errorf("%w: %w", ErrDisconnected, err)
	case errors.Is(err, nats.ErrConnectionClosed), errors.Is(err, jetstream.ErrConnectionClosed),
		errors.Is(err, nats.ErrConnectionDraining):
		return fmt.Errorf("%w: %w", ErrClosed, err)
	}
	return err
}
