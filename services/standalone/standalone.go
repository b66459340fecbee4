// Package standalone composes Signalbox for one machine: the five services in one
// process, with a NATS server in the process and a private PostgreSQL beside it (or others
// that the environment names), and the simulated provider for workspaces without a
// credential. Each service has its own bus connection, database role, key and loopback
// listener. The services do not know that they share a process: they communicate over the
// bus and HTTP, as in a cluster.
//
// Up starts in this order: data folder, public port, Postgres, migrations, NATS, streams,
// services. The first failure stops everything that was started. It stops in stages, each
// waited for: the gateway ends its viewers' streams and agent-runner parks its runs; then
// the services that runs depend on stop; then NATS and Postgres. A service that fails
// stops everything. The private Postgres and the NATS server are restarted instead when
// they end or when a full disk stops them; until then the API answers 503. If the process
// is killed, Postgres stops by itself (package pgd), and the next start continues from what
// was committed.
package standalone

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/httpserver"
	"signalbox.dev/pkg/process"
	"signalbox.dev/pkg/telemetry"
	"signalbox.dev/services/standalone/internal/datadir"
)

// Options say where to run.
type Options struct {
	HTTP string // the public address
	Data string // the data folder
	// DatabaseURL names a database to use instead of a private one, as its administrator.
	DatabaseURL conf.Secret
	NATSURL     conf.Secret // NATS servers to use instead of one in the process
	// Replicas are for Doctor: how many of each service share DatabaseURL, if they are separate
	// programs.
	Replicas map[string]int
	Environ  []string  // the services' other settings, as in os.Environ
	Out      io.Writer // progress, for people
	Log      *slog.Logger
}

// Up runs Signalbox until ctx is done.
func Up(ctx context.Context, opts Options) (err error) {
	dir, err := datadir.Open(opts.Data)
	if err != nil {
		return err
	}
	_, alive, err := dir.LockOrRunning(ctx, lockWait)
	if err != nil {
		return err
	}
	if alive {
		return dir.InUse()
	}
	defer dir.Unlock()
	who, err := dir.Identity()
	if err != nil {
		return err
	}
	public, err := httpserver.Listen(ctx, opts.HTTP)
	if err != nil {
		return fmt.Errorf("%w (--http)", err)
	}
	defer public.Close()

	s := &stack{opts: opts, dir: dir, identity: who, public: public, failed: make(chan error, 1), registry: prometheus.NewRegistry()}
	s.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	defer func() { err = errors.Join(err, s.close(context.WithoutCancel(ctx))) }()
	if err := conf.Load(&s.telemetry, opts.Environ); err != nil {
		return err
	}
	stopTracing, err := telemetry.StartTracing(ctx, s.telemetry, "signalbox", process.Version())
	if err != nil {
		return err
	}
	defer func() { _ = stopTracing(context.WithoutCancel(ctx)) }() // the last spans may be lost
	for _, part := range []struct {
		what  string
		start func(context.Context) error
	}{
		{"database", s.startPostgres},
		{"message bus", s.startNATS},
		{"services", s.startServices},
		{"workspace", s.ensureMember},
	} {
		fmt.Fprintf(opts.Out, "starting the %s …\n", part.what)
		err := part.start(ctx)
		if ctx.Err() != nil {
			// The error is a consequence of the stop.
			fmt.Fprintln(opts.Out, "\nstopped before it was ready; the next start continues from here")
			return nil
		}
		if err != nil {
			return fmt.Errorf("start the %s: %w", part.what, err)
		}
	}
	return s.serve(ctx)
}

// serve announces the addresses and waits for the end.
func (s *stack) serve(ctx context.Context) error {
	url := "http://" + s.public.Addr().String()
	running := datadir.Running{PID: os.Getpid(), URL: url, OpsURL: s.opsURL, DatabaseURL: s.adminURL}
	if err := s.dir.SetRunning(running); err != nil {
		return err
	}
	defer s.dir.ClearRunning()
	s.printReady(url)
	select {
	case <-ctx.Done():
		fmt.Fprintln(s.opts.Out, "\nstopping: parking runs and ending streams …")
		return nil
	case err := <-s.failed:
		return err
	}
}

func (s *stack) printReady(url string) {
	page := ""
	if s.example != "" {
		page = fmt.Sprintf("    bin/signalbox chat --data %s --preset browser \"read http://%s/\"\n", s.opts.Data, s.example)
	}
	fmt.Fprintf(s.opts.Out, `
Signalbox is ready at %[1]s

  Open it in a browser (the link signs you in once; then use %[1]s):

    %[7]s

  Or chat in another terminal:

    bin/signalbox chat --data %[4]s
    bin/signalbox chat --data %[4]s --preset assistant "what is on my calendar this week?"
%[8]s
  Or over HTTP (the token is good for %[5]s):

    export TOKEN=%[2]s
    export WORKSPACE=%[3]s
    SESSION=$(curl -s %[1]s/api/sessions -H "Authorization: Bearer $TOKEN" -H "X-Workspace-Id: $WORKSPACE" -H 'Content-Type: application/json' -d '{}' | sed 's/.*"session":{"id":"\([^"]*\)".*/\1/')
    curl -N %[1]s/api/sessions/$SESSION/messages -H "Authorization: Bearer $TOKEN" -H "X-Workspace-Id: $WORKSPACE" -H 'Content-Type: application/json' -d '{"content":"create a document about tea"}'

The API is described at %[1]s/docs (for programs at %[1]s/openapi.json), metrics are at %[6]s/metrics.
Ctrl-C stops it.
`, url, s.token.Token, s.identity.Workspace, s.opts.Data, lifetimeText, s.opsURL, s.token.Link, page)
	if len(keysIn(s.opts.Environ)) == 0 {
		fmt.Fprintln(s.opts.Out, "No credential in the environment: unless one is stored, the simulated provider answers.\nStore one with: bin/signalbox accounts add anthropic --data "+s.opts.Data)
	}
}
