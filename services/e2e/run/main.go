// Command run starts every service as a separate program, with a temporary database and bus, and
// shows the log of one: see docs/develop.md. Enter rebuilds and restarts that service; the others
// keep running.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"signalbox.dev/pkg/process"

	"signalbox.dev/services/e2e/world"
)

func main() {
	os.Exit(process.Main(func(ctx context.Context) error {
		if len(os.Args) != 2 || !slices.Contains(world.Services(), os.Args[1]) {
			return process.Usage("name one service: %s", strings.Join(world.Services(), ", "))
		}
		return run(ctx, os.Args[1], os.Stdout)
	}))
}

func run(ctx context.Context, service string, out io.Writer) error {
	root, err := world.Checkout()
	if err != nil {
		return err
	}
	dir := filepath.Join(root, "bin/run")
	err = errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755))
	if err == nil {
		err = world.Build(ctx, dir)
	}
	if err != nil {
		return err
	}
	w, err := world.Start(ctx, world.Options{Dir: dir, Programs: dir, Replicas: 1, Env: func(name string, _ int) []string {
		if name != service {
			return nil
		}
		return []string{"LOG_LEVEL=debug", "LOG_FORMAT=text"}
	}})
	if w != nil {
		defer func() { _ = w.Close() }() //nolint:contextcheck // ctx has ended by then; Ctrl-C reached the programs too, and they end as they like
	}
	if err != nil {
		return err
	}
	who, err := w.NewMember(ctx, "", "owner")
	if err != nil {
		return err
	}
	watched := w.Replica(service, 1)
	fmt.Fprintf(out, "export SIGNALBOX_URL=%s\nexport SIGNALBOX_TOKEN=%s\nexport SIGNALBOX_WORKSPACE=%s\n\nbin/signalbox chat uses these. Logs are in %s.\nEnter builds %s and restarts it (pid %d); Ctrl-C stops everything.\n\n",
		w.Gateways[0], who.Token, who.Workspace, dir, service, watched.PID())
	follow := exec.CommandContext(ctx, "tail", "-n", "+1", "-f", watched.LogFile())
	follow.Stdout = out
	if err := follow.Start(); err != nil {
		return err
	}
	enter := make(chan struct{})
	go func() {
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			enter <- struct{}{}
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-enter:
		}
		build := exec.CommandContext(ctx, "go", "build", "-o", dir+"/", "./services/"+service+"/cmd/"+service)
		build.Dir, build.Stderr = root, os.Stderr
		if build.Run() != nil {
			continue // the error was printed
		}
		if err := errors.Join(watched.Stop(), watched.Restart(), watched.Ready(ctx)); err != nil {
			return err
		}
		fmt.Fprintf(out, "%s runs again (pid %d)\n", service, watched.PID())
	}
}
