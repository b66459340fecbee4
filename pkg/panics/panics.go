// Package panics keeps a bug within the unit of work that has it: a panic costs one
// request, message, connection, document or round of a background loop, never the
// process and with it every tenant.
//
// net/http, Connect handlers and tests recover by themselves; every other goroutine of
// a service begins with one of these:
//
//   - Recover, in a function that returns an error to a caller who handles it;
//   - Contain, around work that nobody waits for;
//   - Supervise, around a loop that must run as long as the service does.
//
// A panic is always a bug: whoever handles an *Error logs it with its stack, and shows
// it to nobody outside.
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

// Error returns the value alone. A log also wants the Stack.
func (e *Error) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// Unwrap returns the value if it is an error, as a nil dereference is.
func (e *Error) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// LogValue gives a log both the value and the stack.
func (e *Error) LogValue() slog.Value {
	return slog.GroupValue(slog.String("panic", fmt.Sprint(e.Value)), slog.String("stack", string(e.Stack)))
}

// Recover ends a panic of the function that defers it and puts an *Error into *err:
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

// Try calls f and returns its error, or an *Error when it panicked.
func Try(f func() error) (err error) {
	defer Recover(&err)
	return f()
}

// Contain calls f. A panic ends f and is logged, with what as the name of the work.
// It reports whether f panicked.
func Contain(ctx context.Context, log *slog.Logger, what string, f func()) (panicked bool) {
	err := Try(func() error { f(); return nil })
	if err != nil {
		log.ErrorContext(ctx, "panic contained", "in", what, "error", err)
	}
	return err != nil
}

// restartPause is how long Supervise waits before it calls the loop again.
const restartPause = time.Second

// Supervise calls loop and returns what it returns. A loop that panics is called again
// a second later, until ctx is done; then Supervise returns nil. The panic is logged,
// with what as the name of the loop. A loop must therefore be able to start over from
// the state in which any of its rounds may have left it.
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
