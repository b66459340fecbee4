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

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/subject"
)

// Names of parts that are no services.
const (
	PostgresName  = "postgres"
	NATSName      = "nats"
	SimulatorName = "simulator"
	Standalone    = "signalbox" // the program of StartStandalone
)

// Services lists the services of a cluster in the order of their start.
func Services() []string {
	return []string{subject.CredentialBroker, subject.DocumentSync, subject.ToolExecutor, subject.AgentRunner, subject.Gateway}
}

const database = "signalbox"

// devSecret signs the tokens of a cluster.
const devSecret = "end-to-end-development-secret-0123456789"

// Options say what to start. Dir and Programs are needed, the rest may be zero.
type Options struct {
	// Dir is where logs and small files go. It is the caller's to remove.
	Dir string
	// Programs is a folder that Build has filled.
	Programs string
	// Program returns the path of another program for a replica (they count from 1)
	// of a service, of the simulator, nats-server or signalbox (which migrates);
	// "" stands for the one in Programs. May be nil.
	Program func(service string, replica int) string
	// Env returns more environment for a part, which wins over ours. May be nil.
	Env func(service string, replica int) []string
	// Via returns the address, host:port, under which a part is to reach another; it
	// is called once for each link before the part starts. May be nil: all are direct.
	Via func(Link) (string, error)
	// Replicas of each service: 2 when 0.
	Replicas int
	// Partitions of the run log: 16 when 0, which deploy/nats is written for; fewer
	// is quicker to start.
	Partitions int
	// LogLevel is info when empty.
	LogLevel string
	// Traces is the URL of an OpenTelemetry collector; empty turns traces off.
	Traces string
	// Durable makes PostgreSQL keep what it has committed when it is killed. Without
	// it a world is quicker and PostgreSQL must not be killed.
	Durable bool
	// DataDir is where PostgreSQL keeps its data, and the cluster's NATS, unless
	// NATSDir says otherwise. When empty it is a folder of the world's own, in memory
	// where there is room, which Close removes. Its path must be short (80 bytes).
	DataDir string
	// NATSDir is where NATS keeps its streams.
	NATSDir string
}

// Link is a way from one part to another, as Via sees it.
type Link struct {
	From, To string // names of parts, such as agent-runner-1 and postgres
	// Network is tcp, or unix for the way to PostgreSQL; Address is where To listens.
	Network, Address string
}

// World is a running Signalbox.
type World struct {
	// Dir has the logs: <part>.log.
	Dir string
	// Gateways are the base URLs, one for each replica (standalone's one comes twice).
	Gateways []string
	// Simulator is the simulated provider's base URL; "" in standalone.
	Simulator string
	// Database is an administrator's URL of the database.
	Database string
	// TokenEnv is what `signalbox token` needs in its environment, and TokenArgs in
	// its command line, to make tokens for this world.
	TokenEnv, TokenArgs []string
	// Postgres is nil in standalone.
	Postgres *Postgres
	// HTTP is what clients of this world share. It follows no redirects and has no
	// deadline of its own.
	HTTP *http.Client

	opts    Options
	secret  string // signs tokens
	natsDir string
	own     *os.File // the lock on the folder of our own, nil without one
	migrate func(context.Context) error
	bus     func(service string) bus.Config

	mu    sync.Mutex // guards what follows
	procs []*Proc    // in the order of their start
}

func newWorld(o Options) (*World, error) {
	o.Replicas, o.Partitions, o.LogLevel = cmp.Or(o.Replicas, 2), cmp.Or(o.Partitions, 16), cmp.Or(o.LogLevel, "info")
	if o.Dir == "" || o.Programs == "" {
		return nil, errors.New("start a world: it needs Dir and Programs")
	}
	w := &World{
		Dir: o.Dir, opts: o,
		HTTP: &http.Client{
			Transport:     &http.Transport{MaxIdleConnsPerHost: 256, IdleConnTimeout: 30 * time.Second},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
	if o.DataDir == "" {
		if err := w.makeOwnFolder(); err != nil {
			return nil, err
		}
	}
	w.natsDir = cmp.Or(o.NATSDir, filepath.Join(w.opts.DataDir, "nats"))
	return w, nil
}

// ownPrefix begins the names of the folders that worlds make for themselves.
const ownPrefix = "signalbox-world-"

// makeOwnFolder makes the folder for data, and removes those of worlds whose
// owner is gone. A lock on the folder says that its owner is there.
func (w *World) makeOwnFolder() error {
	parent := cmp.Or(memoryFolder(), os.TempDir())
	old, _ := filepath.Glob(filepath.Join(parent, ownPrefix+"*")) // a strange folder matches nothing
	for _, dir := range old {
		if info, err := os.Stat(dir); err != nil || time.Since(info.ModTime()) < time.Minute {
			continue // it may be about to be locked
		}
		if f, err := os.Open(dir); err == nil {
			if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
				_ = os.RemoveAll(dir) // what cannot be removed is somebody else's
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
	// PostgreSQL may run as another user, who must get through to its folder.
	if err := os.Chmod(dir, 0o711); err != nil {
		return err
	}
	return syscall.Flock(int(w.own.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
}

// Parts returns everything that runs, or did: PostgreSQL, NATS, the simulator, then
// the services in the order of their start.
func (w *World) Parts() []Part {
	var out []Part
	if w.Postgres != nil {
		out = append(out, w.Postgres)
	}
	for _, p := range w.Procs() {
		out = append(out, p)
	}
	return out
}

// Procs returns the programs in the order of their start.
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

// Migrate brings the database and the streams up to date, as `signalbox migrate`
// does.
func (w *World) Migrate(ctx context.Context) error { return w.migrate(ctx) }

// WipeNATS kills the NATS server, removes all that it had stored and starts it again.
// The services make the streams anew.
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

// Bus connects to NATS with the rights of a service. The caller closes the bus.
func (w *World) Bus(ctx context.Context, service string) (*bus.Bus, error) {
	if w.bus == nil {
		return nil, errors.New("connect to NATS: standalone lets nobody else in")
	}
	return bus.Connect(ctx, w.bus(service))
}

// Close stops everything, those that were started last first, and removes the
// data folder if it was the world's own. It says what did not end well.
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
