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
	// ErrFenced means that another message was published on the subject first.
	ErrFenced = errors.New("another message came first on this subject")
	// ErrNotFound means that the stream has no message on the subject, or no longer.
	ErrNotFound = errors.New("no message on this subject")
	// ErrNoStream means that no stream has the subject or the name: it has not been created,
	// or has no leader at the moment.
	ErrNoStream = errors.New("no stream answers; `signalbox migrate` (or standalone) creates it")
	// ErrFull means that a work queue is full: try again later.
	ErrFull = errors.New("the work queue is full")
	// ErrTooLarge means that a message exceeds the limit. A retry will not help.
	ErrTooLarge = errors.New("message too large")
	// ErrSchema means that a message does not have the expected schema.
	ErrSchema = errors.New("unexpected schema")
	// ErrDraining is the cause of a handler's cancelled context when the drain timeout is
	// over.
	ErrDraining = errors.New("this worker is draining")
	// ErrDisconnected means that there is no connection at the moment, or that it was lost
	// before the server replied.
	ErrDisconnected = errors.New("not connected to NATS")
	// ErrClosed means that the bus was closed.
	ErrClosed = errors.New("the bus is closed")
)

// Terminal makes err the decision to drop the message, which is logged as an error.
func Terminal(err error) error { return &terminalError{err} }

// RetryAfter makes err the decision to deliver the message again after d.
func RetryAfter(d time.Duration, err error) error { return &retryError{d, err} }

// After returns the delay of a RetryAfter in err's chain.
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

func (e *retryError) Error() string { return text(e.err, "retry requested") }
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
	codeDuplicateInFlight         = 10158 // the first message of this id is being stored
)

// errLate marks an attempt without a reply.
var errLate = errors.New("the server did not reply in time")

// translate wraps the client's errors in those of this package.
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
	case errors.Is(err, nats.ErrReconnectBufExceeded): // its text would mislead: there is no such buffer
		return ErrDisconnected
	case errors.Is(err, nats.ErrDisconnected), errors.Is(err, nats.ErrConnectionReconnecting):
		return fmt.Errorf("%w: %w", ErrDisconnected, err)
	case errors.Is(err, nats.ErrConnectionClosed), errors.Is(err, jetstream.ErrConnectionClosed),
		errors.Is(err, nats.ErrConnectionDraining):
		return fmt.Errorf("%w: %w", ErrClosed, err)
	}
	return err
}
