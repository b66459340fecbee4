// Package process is the outer shell of every binary: the first SIGINT or SIGTERM
// asks it to drain, a second one ends it at once, and its exit code tells what
// happened: 0 well, 1 failed, 2 wrong usage.
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

// ErrShown marks a failure that the person has already been told of: Code prints nothing.
var ErrShown = errors.New("it failed, as was shown")

// Usage returns an error of the command line.
func Usage(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrUsage, fmt.Sprintf(format, args...))
}

// ErrPartial marks an error of a command that has done what it could, and has said what it
// left: exit code 3.
var ErrPartial = errors.New("not all was done")

// Main runs main under a context that ends with the first signal, and returns the
// exit code. After the second signal the process is gone.
func Main(main func(ctx context.Context) error) int {
	ctx, stop := Signals(context.Background())
	defer stop()
	return Code(main(ctx))
}

// Signals returns a context that ends with the first SIGINT or SIGTERM. From then
// on the default action is back: the second one kills.
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

// version is what a release is stamped with: -ldflags "-X signalbox.dev/pkg/process.version=1.2.3".
var version string

// Version returns the version that was built in: the one that the linker was given, else
// the main module's, else "devel".
func Version() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}
