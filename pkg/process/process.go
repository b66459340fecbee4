// Package process has what every main function does: the first SIGINT or SIGTERM starts a
// drain, a second one ends the process, and the exit code is 0 for success, 1 for failure, 2
// for wrong usage and 3 for partial success.
package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
)

// ErrUsage marks an error of the command line: exit code 2.
var ErrUsage = errors.New("usage")

// ErrShown marks an error that the user has seen already: Code prints nothing.
var ErrShown = errors.New("failed as shown")

// Usage returns an error of the command line.
func Usage(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrUsage, fmt.Sprintf(format, args...))
}

// ErrPartial marks an error of a command that has done only part of its work: exit code 3.
var ErrPartial = errors.New("only part of the work was done")

// Main runs main with a context that ends with the first signal, and returns the exit code.
// The second signal ends the process.
func Main(main func(ctx context.Context) error) int {
	ctx, stop := Signals(context.Background())
	defer stop()
	return Code(main(ctx))
}

// Signals returns a context that ends with the first SIGINT or SIGTERM. It then restores the
// default action, so that the second signal ends the process.
func Signals(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// Code prints err on stderr, unless it is nil or ErrShown, and returns the exit code for it.
func Code(err error) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, ErrShown):
		return 1
	case errors.Is(err, ErrUsage):
		fmt.Fprintln(os.Stderr, err)
		return 2
	case errors.Is(err, ErrPartial):
		fmt.Fprintln(os.Stderr, "error:", err)
		return 3
	default:
		fmt.Fprintln(os.Stderr, "error:", err)
		return 1
	}
}

// version is set by the linker: -ldflags "-X signalbox.dev/pkg/process.version=1.2.3".
var version string

// Version returns the version that the linker has set, the main module's version, or "devel".
func Version() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}
