// Package standalone composes Signalbox for one machine: the five services in one
// process, each with its own connection to the bus, its own role in Postgres, its
// own key and its own listener on the loopback; a NATS server in the process and a
// private PostgreSQL beside it, unless others are named; and the simulated provider
// for what has no credential. The services do not know that they are together:
// everything between them goes over the bus and over HTTP, as in a cluster.
//
// # Life
//
// Start: data folder, public port, Postgres, migrations, NATS, streams, services;
// the first failure takes down what has been started. Stop, in stages, each waited
// for: the gateway ends its viewers' streams and agent-runner parks its runs; then
// the services that runs depend on; then NATS and Postgres. A service that fails on
// its own begins the stop. The private Postgres and the NATS server are different: one
// that ends, or that a full disk stopped, is started again, and until then the API
// answers 503. Killed: Postgres ends by itself (package pgd), everything
// else dies with the process, and the next start goes on from what was committed.
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
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/telemetry"
	"signalbox.dev/services/standalone/internal/datadir"
)

// Options say where to run.
type Options struct {
	// HTTP is the public address.
	HTTP string
	// Data is the data folder.
	Data string
	// DatabaseURL names a database to use instead of a private one; its user is an
	// administrator of it.
	DatabaseURL conf.Secret
	// NATSURL names NATS servers to use instead of one in the process.
	NATSURL conf.Secret
	// Environ are further settings of the services, as in os.Environ.
	Environ []string
	// Out is where a person reads what happens.
	Out io.Writer
	Log *slog.Logger
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

	w := &world{opts: opts, dir: dir, who: who, public: public, failed: make(chan error, 1), registry: prometheus.NewRegistry()}
	w.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	defer func() { err = errors.Join(err, w.close(context.WithoutCancel(ctx))) }()
	stopTracing, err := w.startTracing(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = stopTracing(context.WithoutCancel(ctx)) }() // at worst the last spans are missing
	for _, part := range []struct {
		what  string
		start func(context.Context) error
	}{
		{"database", w.startPostgres},
		{"message bus", w.startNATS},
		{"services", w.startServices},
		{"workspace", w.ensureMember},
	} {
		fmt.Fprintf(opts.Out, "starting the %s …\n", part.what)
		err := part.start(ctx)
		if ctx.Err() != nil {
			// What was cut off has no better reason, whatever it says.
			fmt.Fprintln(opts.Out, "\nstopped before it was ready; the next start goes on from here")
			return nil
		}
		if err != nil {
			return fmt.Errorf("start the %s: %w", part.what, err)
		}
	}
	return w.serve(ctx)
}

func (w *world) startTracing(ctx context.Context) (func(context.Context) error, error) {
	var cfg telemetry.Config
	if err := conf.Load(&cfg, w.opts.Environ); err != nil {
		return nil, err
	}
	return telemetry.StartTracing(ctx, cfg, "signalbox", version())
}

// serve tells the person what there is and waits for the end.
func (w *world) serve(ctx context.Context) error {
	url := "http://" + w.public.Addr().String()
	token, _, err := identity.DevToken(conf.Secret(w.who.Secret), w.who.Member, TokenLifetime)
	if err != nil {
		return err
	}
	running := datadir.Running{PID: os.Getpid(), URL: url, OpsURL: w.opsURL, DatabaseURL: w.adminURL}
	if err := w.dir.SetRunning(running); err != nil {
		return err
	}
	defer w.dir.ClearRunning()
	w.welcome(url, token)
	select {
	case <-ctx.Done():
		fmt.Fprintln(w.opts.Out, "\nstopping: runs are parked, streams end …")
		return nil
	case err := <-w.failed:
		return err
	}
}

func (w *world) welcome(url, token string) {
	fmt.Fprintf(w.opts.Out, `
Signalbox is ready at %[1]s

  Chat in another terminal:

    bin/signalbox chat --data %[4]s

  Or over HTTP (the token is good for %[5]s):

    export TOKEN=%[2]s
    export WORKSPACE=%[3]s
    SESSION=$(curl -s %[1]s/api/sessions -H "Authorization: Bearer $TOKEN" -H "X-Workspace-Id: $WORKSPACE" -H 'Content-Type: application/json' -d '{}' | sed 's/.*"session":{"id":"\([^"]*\)".*/\1/')
    curl -N %[1]s/api/sessions/$SESSION/messages -H "Authorization: Bearer $TOKEN" -H "X-Workspace-Id: $WORKSPACE" -H 'Content-Type: application/json' -d '{"content":"create a document about tea"}'

The API is described at %[1]s/docs (for programs at %[1]s/openapi.json), metrics are at %[6]s/metrics.
Ctrl-C stops it.
`, url, token, w.who.Workspace, w.opts.Data, lifetimeText, w.opsURL)
	if len(keysIn(w.opts.Environ)) == 0 {
		fmt.Fprintln(w.opts.Out, "No credential is in the environment: without a stored one the simulated provider answers.\nStore one with: bin/signalbox accounts add anthropic --data "+w.opts.Data)
	}
}

// Token is a development token and whom it stands for.
type Token struct {
	Token     string       `json:"token"`
	Workspace id.Workspace `json:"workspace_id"`
	Member    id.Member    `json:"member_id"`
	ExpiresAt string       `json:"expires_at"`
}
