package world

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/subject"
)

// Names of parts other than services.
const (
	PostgresName  = "postgres"
	NATSName      = "nats"
	PoolerName    = "pgbouncer"
	SimulatorName = "simulator"
	Standalone    = "signalbox" // the program of StartStandalone
)

// Services lists the services of a cluster in start order.
func Services() []string {
	return []string{subject.CredentialBroker, subject.DocumentSync, subject.ToolExecutor, subject.AgentRunner, subject.Gateway}
}

const database = "signalbox"

// devSecret signs the tokens of a cluster.
const devSecret = "end-to-end-development-secret-0123456789"

// Options configure a world. Dir and Programs are required.
type Options struct {
	// Dir has logs and small files. The caller removes it.
	Dir string
	// Programs is a folder that Build has filled.
	Programs string
	// Program returns the path of another program for a replica (from 1) of a service, the
	// simulator, nats-server or signalbox (which migrates), "" for the one in Programs. May be
	// nil.
	Program func(service string, replica int) string
	// Env returns additional environment for a part, which overrides ours. May be nil.
	Env func(service string, replica int) []string
	// Via returns the address, host:port, that a part uses for another one. It is called once
	// for each link before the part starts. Nil means direct links.
	Via func(Link) (string, error)
	// Replicas of each service; 0 means 2.
	Replicas int
	// Partitions of the run log; 0 means 16, as in deploy/nats. Fewer start faster.
	Partitions int
	// LogLevel defaults to info.
	LogLevel string
	// Traces is the URL of an OpenTelemetry collector; empty turns traces off.
	Traces string
	// Durable makes PostgreSQL keep committed data when it is killed. Without it a world is
	// faster, and PostgreSQL must not be killed.
	Durable bool
	// Statements makes PostgreSQL count statements: its database postgres has the extension
	// pg_stat_statements, which must be installed.
	Statements bool
	// Pooler gives a cluster a PostgreSQL as providers have it: a PgBouncer in transaction mode is
	// before it, the migration's user is no superuser, and every connection of either uses TLS and
	// verifies the other end's name. The environment variable SIGNALBOX_E2E_POOLER does the same
	// for all worlds.
	Pooler bool
	// TLS is a folder with a folder for each service of a cluster, and for nats, that has
	// tls.crt, tls.key and ca.crt. With it, all connections between them use TLS. PostgreSQL is
	// at a Unix socket.
	TLS string
	// DataDir has the data of PostgreSQL and, unless NATSDir is set, of NATS. The default is a
	// folder of the world's own, in memory if there is room, which Close removes. The path must
	// be short (80 bytes).
	DataDir string
	// NATSDir has the streams of NATS.
	NATSDir string
}

// Link is a connection from one part to another.
type Link struct {
	From, To string // names of parts, such as agent-runner-1 and postgres
	// Network is tcp, or unix for PostgreSQL; Address is where To listens.
	Network, Address string
}

// World is a running Signalbox.
type World struct {
	// Dir has the logs: <part>.log.
	Dir string
	// Gateways are the base URLs of the replicas (standalone's single one is listed twice).
	Gateways []string
	// Simulator is the simulated provider's base URL; "" in standalone.
	Simulator string
	// Database is an administrator's URL of the database.
	Database string
	// TokenEnv and TokenArgs are the environment and arguments with which `signalbox token`
	// makes tokens for this world.
	TokenEnv, TokenArgs []string
	// Postgres is nil in standalone.
	Postgres *Postgres
	// HTTP is shared by the clients of this world. It follows no redirects and has no timeout.
	HTTP *http.Client

	opts    Options
	secret  string // signs tokens
	natsDir string
	own     *os.File // the lock on the folder of our own, nil without one
	migrate func(context.Context) error
	rotate  func(context.Context) error // nil without a pooler
	bus     func(service string) bus.Config
	// attached are the parts of an installation that is not ours.
	attached []Part

	mu    sync.Mutex // guards what follows
	procs []*Proc    // in the order of their start
}

func newWorld(o Options) (*World, error) {
	o.Replicas, o.Partitions, o.LogLevel = cmp.Or(o.Replicas, 2), cmp.Or(o.Partitions, 16), cmp.Or(o.LogLevel, "info")
	if o.Dir == "" || o.Programs == "" {
		return nil, errors.New("start a world: it needs Dir and Programs")
	}
	o.Pooler = o.Pooler || os.Getenv("SIGNALBOX_E2E_POOLER") != ""
	w := &World{
		Dir: o.Dir, opts: o,
		HTTP: newHTTPClient(),
	}
	if o.DataDir == "" {
		if err := w.makeOwnFolder(); err != nil {
			return nil, err
		}
	}
	w.natsDir = cmp.Or(o.NATSDir, filepath.Join(w.opts.DataDir, "nats"))
	return w, nil
}

func newHTTPClient() *http.Client {
	return &http.Client{
		Transport:     &http.Transport{MaxIdleConnsPerHost: 256, IdleConnTimeout: 30 * time.Second},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// ownPrefix is the prefix of worlds' own folders.
const ownPrefix = "signalbox-world-"

// makeOwnFolder creates the folder for data, and removes those of worlds whose process is gone.
// A process holds a lock on its folder.
func (w *World) makeOwnFolder() error {
	parent := cmp.Or(memoryFolder(), os.TempDir())
	old, _ := filepath.Glob(filepath.Join(parent, ownPrefix+"*")) // a folder with odd characters matches nothing
	for _, dir := range old {
		if info, err := os.Stat(dir); err != nil || time.Since(info.ModTime()) < time.Minute {
			continue // its owner may not have locked it yet
		}
		if f, err := os.Open(dir); err == nil {
			if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
				_ = os.RemoveAll(dir) // fails for another user's folder
			}
			_ = f.Close()
		}
	}
	dir, err := os.MkdirTemp(parent, ownPrefix)
	if err != nil {
		return err
	}
	w.opts.DataDir = dir
	if w.own, err = os.Open(dir); err != nil {
		return err
	}
	// PostgreSQL may run as another user, who must be able to enter its folder.
	if err := os.Chmod(dir, 0o711); err != nil {
		return err
	}
	return syscall.Flock(int(w.own.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
}

// Parts returns all parts, running or not: PostgreSQL, NATS, the simulator, then the services in
// start order.
func (w *World) Parts() []Part {
	var out []Part
	if w.Postgres != nil {
		out = append(out, w.Postgres)
	}
	for _, p := range w.Procs() {
		out = append(out, p)
	}
	return append(out, w.attached...)
}

// Procs returns the programs in start order.
func (w *World) Procs() []*Proc {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.procs)
}

// Proc returns a program by its name, or nil.
func (w *World) Proc(name string) *Proc {
	for _, p := range w.Procs() {
		if p.name == name {
			return p
		}
	}
	return nil
}

// Replica returns the n-th replica, from 1, of a service, or nil.
func (w *World) Replica(service string, n int) *Proc { return w.Proc(fmt.Sprintf("%s-%d", service, n)) }

// Migrate runs `signalbox migrate`.
func (w *World) Migrate(ctx context.Context) error { return w.migrate(ctx) }

// RotateDatabasePasswords gives the services new passwords for a database behind a pooler, while
// they run.
func (w *World) RotateDatabasePasswords(ctx context.Context) error {
	if w.rotate == nil {
		return errors.New("rotate the passwords of the database: this world has no pooler")
	}
	return w.rotate(ctx)
}

// WipeNATS kills the NATS server, removes its data and restarts it. The services create the
// streams again.
func (w *World) WipeNATS(ctx context.Context) error {
	server := w.Proc(NATSName)
	stored, err := filepath.Glob(filepath.Join(w.natsDir, "*")) // not the folder itself: it may be a mount point
	if err := errors.Join(err, server.Kill()); err != nil {
		return err
	}
	for _, s := range stored {
		if err := os.RemoveAll(s); err != nil {
			return err
		}
	}
	if err := server.Restart(); err != nil {
		return err
	}
	return server.Ready(ctx)
}

// PurgeRunLog removes all events of the run log from the streams, as their limits do when they are
// full.
func (w *World) PurgeRunLog(ctx context.Context) error {
	if w.bus == nil {
		return errors.New("purge the run log: standalone accepts no other connections")
	}
	cfg := w.bus(subject.Admin)
	options := []nats.Option{nats.UserInfo(subject.Admin, cfg.Password.Reveal()), nats.CustomInboxPrefix(subject.InboxPrefix(subject.Admin))}
	if w.opts.TLS != "" {
		at := func(file string) string { return filepath.Join(w.opts.TLS, NATSName, file) }
		options = append(options, nats.ClientCert(at("tls.crt"), at("tls.key")), nats.RootCAs(at("ca.crt")))
	}
	nc, err := nats.Connect(cfg.URL, options...)
	if err != nil {
		return fmt.Errorf("purge the run log: %w", err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	for p := range w.opts.Partitions {
		stream, err := js.Stream(ctx, subject.EventStream(p))
		if err != nil {
			return fmt.Errorf("purge the run log: %w", err)
		}
		if err := stream.Purge(ctx); err != nil {
			return fmt.Errorf("purge the run log: %w", err)
		}
	}
	return nil
}

// Bus connects to NATS with the rights of a service. The caller closes the bus.
func (w *World) Bus(ctx context.Context, service string) (*bus.Bus, error) {
	if w.bus == nil {
		return nil, errors.New("connect to NATS: this world accepts no other connections")
	}
	return bus.Connect(ctx, w.bus(service))
}

// Close stops all parts in reverse start order, and removes the data folder if it is the world's
// own. It returns the errors of parts that failed.
func (w *World) Close() error {
	var errs []error
	for _, p := range slices.Backward(w.Procs()) {
		errs = append(errs, p.Stop())
	}
	if w.Postgres != nil {
		errs = append(errs, w.Postgres.Stop())
	}
	w.HTTP.CloseIdleConnections()
	if w.own != nil {
		errs = append(errs, os.RemoveAll(w.opts.DataDir), w.own.Close())
	}
	return errors.Join(errs...)
}

// start runs a program and waits until it is ready.
func (w *World) start(ctx context.Context, s spec) (*Proc, error) {
	s.dir = w.Dir
	if s.path == "" {
		s.path = w.program(s.service, s.replica)
	}
	if w.opts.Env != nil {
		s.env = append(s.env, w.opts.Env(s.service, s.replica)...)
	}
	p, err := run(s)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	w.procs = append(w.procs, p)
	w.mu.Unlock()
	return p, p.Ready(ctx)
}

func (w *World) program(name string, replica int) string {
	if w.opts.Program != nil {
		if path := w.opts.Program(name, replica); path != "" {
			return path
		}
	}
	return filepath.Join(w.opts.Programs, name)
}
