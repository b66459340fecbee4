// Package panics confines a bug to the unit of work that has it: a panic ends one request,
// message, connection, document or round of a background loop, but never the process and with
// it the work of every tenant.
//
// net/http, Connect handlers and tests recover by themselves. Every other goroutine of a
// service uses one of these:
//
//   - Recover, in a function whose caller handles the error;
//   - Contain, around work that nobody waits for;
//   - Supervise, around a loop that must run until the service ends.
//
// A panic is always a bug: an *Error is logged with its stack, and never shown outside.
package panics

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"
)

// Error is a recovered panic.
type Error struct {
	Value any    // what the code panicked with
	Stack []byte // of the goroutine that panicked
}

// Error returns the value without the stack.
func (e *Error) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// Unwrap returns the value if it is an error, as a nil dereference is.
func (e *Error) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// LogValue returns the value and the stack.
func (e *Error) LogValue() slog.Value {
	return slog.GroupValue(slog.String("panic", fmt.Sprint(e.Value)), slog.String("stack", string(e.Stack)))
}

// Recover recovers a panic of the function that defers it and sets *err to an *Error:
//
//	func (s *Store) Load() (err error) {
//		defer panics.Recover(&err)
//
// Locks that the function holds must be released by defer.
func Recover(err *error) {
	if v := recover(); v != nil {
		*err = &Error{Value: v, Stack: debug.Stack()}
	}
}

// Try calls f and returns its error, or an *Error if f panicked.
func Try(f func() error) (err error) {
	defer Recover(&err)
	return f()
}

// Contain calls f and reports whether it panicked. It logs the panic, with what as the name of
// the work.
func Contain(ctx context.Context, log *slog.Logger, what string, f func()) (panicked bool) {
	err := Try(func() error { f(); return nil })
	if err != nil {
		log.ErrorContext(ctx, "panic contained", "in", what, "error", err)
	}
	return err != nil
}

// restartPause is the pause before Supervise calls a loop again.
const restartPause = time.Second

// Supervise calls loop and returns its error. If loop panics, Supervise logs it, with what as
// the name of the loop, and calls loop again a second later, or returns nil when ctx is done. A
// loop must therefore be able to start from any state that one of its rounds may leave.
func Supervise(ctx context.Context, log *slog.Logger, what string, loop func(context.Context) error) error {
	for {
		var err error
		if !Contain(ctx, log, what, func() { err = loop(ctx) }) {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(restartPause):
		}
	}
}
