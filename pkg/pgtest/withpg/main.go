// Withpg runs a command with a PostgreSQL for tests:
//
//	go run ./pkg/pgtest/withpg -- go test ./...
//
// It starts a temporary, fast server, sets SIGNALBOX_TEST_POSTGRES to its URL, passes signals
// on, and exits with the command's code. If the variable is set already, it only runs the
// command.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"signalbox.dev/pkg/pgd"
)

const variable = "SIGNALBOX_TEST_POSTGRES"

func main() {
	args := os.Args[1:]
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if len(args) == 0 {
		fmt.Fprintln(os.Stderr, "usage: withpg [--] command [argument...]")
		os.Exit(2)
	}
	code, err := run(args)
	if err != nil {
		fmt.Fprintln(os.Stderr, "withpg:", err)
		os.Exit(1)
	}
	os.Exit(code)
}

func run(args []string) (int, error) {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(signals)
	if os.Getenv(variable) == "" {
		ctx := context.Background()
		s, err := pgd.Start(ctx, pgd.Config{Fast: true})
		if err != nil {
			return 0, err
		}
		defer func() {
			ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
			defer cancel()
			_ = s.Stop(ctx) // after the timeout the server is killed and still removed
		}()
		if err := os.Setenv(variable, s.URL("postgres")); err != nil {
			return 0, err
		}
	}
	cmd := exec.Command(args[0], args[1:]...) //nolint:noctx,gosec // running a given command is its purpose; signals end it
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case s := <-signals:
			_ = cmd.Process.Signal(s) // it may have ended
		case err := <-ended:
			if e, ok := errors.AsType[*exec.ExitError](err); ok {
				if st, ok := e.Sys().(syscall.WaitStatus); ok && st.Signaled() {
					return 128 + int(st.Signal()), nil
				}
				return e.ExitCode(), nil
			}
			return 0, err
		}
	}
}
