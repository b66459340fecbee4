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

// Usage returns an error of the command line.
func Usage(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrUsage, fmt.Sprintf(format, args...))
}

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

// Code tells err on stderr, if there is one, and returns the exit code for it.
func Code(err error) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, ErrUsage):
		fmt.Fprintln(os.Stderr, err)
		return 2
	default:
		fmt.Fprintln(os.Stderr, "error:", err)
		return 1
	}
}

// Version returns the version that was built in: the main module's, or "devel".
func Version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}
