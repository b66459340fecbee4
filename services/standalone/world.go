package standalone

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/natsd"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/pgd"
	"signalbox.dev/pkg/process"
	"signalbox.dev/pkg/subject"
	"signalbox.dev/services/standalone/internal/datadir"
)

func version() string { return process.Version() }

// world is what Up has started. It belongs to the goroutine of Up; the services'
// goroutines report to failed and are waited for by close.
type world struct {
	opts     Options
	dir      *datadir.Dir
	who      datadir.Identity
	public   net.Listener
	registry *prometheus.Registry

	adminURL string // Postgres, as administrator
	opsURL   string // the operators' pages
	// logins are the services' passwords at the private database, by role; nil where
	// the database was named, and services act as members of their roles.
	logins map[string]conf.Secret

	connect func(service string) bus.Config
	stages  []*stage // in the order of their start
	closers []func(context.Context) error
	failed  chan error
}

// stage is a service that runs: it ends after those that were started later.
type stage struct {
	stop context.CancelFunc
	done sync.WaitGroup
}

// simulatorDrain bounds how long the simulator may go on talking at the end.
const simulatorDrain = time.Second

// stopTime bounds the end of the database and the bus, after the services' own drain.
const stopTime = 30 * time.Second

// close stops everything in the reverse order of its start.
func (w *world) close(ctx context.Context) error {
	for _, v := range slices.Backward(w.stages) {
		v.stop()
		v.done.Wait()
	}
	var errs []error
	for _, v := range slices.Backward(w.closers) {
		limited, cancel := context.WithTimeout(ctx, stopTime)
		errs = append(errs, v(limited))
		cancel()
	}
	return errors.Join(errs...)
}

func (w *world) onClose(f func(context.Context) error) { w.closers = append(w.closers, f) }

// log returns the logger of a part.
func (w *world) log(part string) *slog.Logger { return w.opts.Log.With("service", part) }

// startPostgres runs the private database, or takes the one that was named, and
// brings every service's schema up to date.
func (w *world) startPostgres(ctx context.Context) error {
	w.adminURL = w.opts.DatabaseURL.Reveal()
	if w.adminURL == "" {
		server, err := OpenDatabase(ctx, w.dir.Path("postgres"), w.log("postgres"))
		if err != nil {
			return err
		}
		w.onClose(server.Stop)
		w.adminURL = server.URL(databaseName)
		w.logins = map[string]conf.Secret{}
	}
	migrations := Migrations()
	for i, m := range migrations {
		if w.logins != nil {
			w.logins[m.Role] = conf.Secret(rand.Text())
			migrations[i].Password = w.logins[m.Role]
		}
	}
	err := pg.Migrate(ctx, w.adminURL, w.log("migrate"), migrations...)
	if err != nil && w.opts.DatabaseURL != "" {
		return fmt.Errorf("DATABASE_URL: %w", err)
	}
	return err
}

// databaseURL returns the database as a service reaches it: at the private one as
// its own login, which is less than the administrator whatever it is made to say.
func (w *world) databaseURL(role string) (conf.Secret, error) {
	password, ok := w.logins[role]
	if !ok {
		return conf.Secret(w.adminURL), nil
	}
	u, err := url.Parse(w.adminURL)
	if err != nil {
		return "", fmt.Errorf("address of the private database: %w", err)
	}
	u.User = url.UserPassword(role, password.Reveal())
	return conf.Secret(u.String()), nil
}

// leastRoom is how much room there has to be for Postgres to write on: a segment of its log.
const leastRoom = 16 << 20

// diskFull reports whether the disk of the data folder has no room to write on.
func (w *world) diskFull() bool {
	var st syscall.Statfs_t
	if err := syscall.Statfs(w.dir.Path(), &st); err != nil {
		return false
	}
	return st.Bavail*uint64(st.Bsize) < leastRoom || st.Files > 0 && st.Ffree == 0
}

const databaseName = "signalbox"

// OpenDatabase starts the private PostgreSQL of a data folder with the product's
// database in it. The caller stops it; until then it is started again when it ends.
func OpenDatabase(ctx context.Context, dir string, log *slog.Logger) (*pgd.Kept, error) {
	server, err := pgd.Keep(ctx, pgd.Config{Dir: dir, Password: conf.Secret(rand.Text()), Log: log})
	if err != nil {
		return nil, err
	}
	if err := server.EnsureDatabase(ctx, databaseName); err != nil {
		return nil, errors.Join(err, server.Stop(context.WithoutCancel(ctx)))
	}
	return server, nil
}

// startNATS runs the server in the process, each service its own user on it, or
// takes the servers that were named; then the streams are made.
func (w *world) startNATS(ctx context.Context) error {
	topology, err := subject.NewTopology(subject.Options{})
	if err != nil {
		return err
	}
	if url := w.opts.NATSURL.Reveal(); url != "" {
		w.connect = func(service string) bus.Config { return bus.Config{URL: url, Service: service} }
	} else if err := w.runNATS(ctx, topology); err != nil {
		return err
	}
	admin, err := w.bus(ctx, subject.Admin)
	if err != nil {
		return err
	}
	defer admin.Close()
	err = bus.Apply(ctx, admin, topology)
	if err != nil && w.opts.NATSURL != "" {
		return fmt.Errorf("NATS_URL: %w", err)
	}
	return err
}

func (w *world) runNATS(ctx context.Context, topology subject.Topology) error {
	server, err := natsd.Start(ctx, natsd.Config{Dir: w.dir.Path("nats"), Users: subject.Users(topology), Log: w.log("nats")})
	if err != nil {
		return err
	}
	w.onClose(func(context.Context) error { server.Shutdown(); return nil })
	w.connect = func(service string) bus.Config {
		return bus.Config{Service: service, Conn: server.Options(service)}
	}
	return nil
}

// bus opens a service's connection, which the caller closes.
func (w *world) bus(ctx context.Context, service string) (*bus.Bus, error) {
	cfg := w.connect(service)
	cfg.Log = w.log(service)
	cfg.Metrics = w.metrics(service)
	return bus.Connect(ctx, cfg)
}

// metrics gives each service its own label, so that five fit into one registry.
func (w *world) metrics(service string) prometheus.Registerer {
	return prometheus.WrapRegistererWith(prometheus.Labels{"service": service}, w.registry)
}

// stage starts a service. Its life is not bound to ctx: close ends it in its turn.
func (w *world) stage(ctx context.Context, name string, run func(context.Context) error) {
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	s := &stage{stop: stop}
	w.stages = append(w.stages, s)
	s.done.Go(func() {
		err := run(ctx)
		if err == nil && ctx.Err() == nil {
			err = errors.New("it ended on its own")
		}
		if err == nil {
			return
		}
		w.log(name).ErrorContext(ctx, "service failed", "error", err)
		select {
		case w.failed <- fmt.Errorf("%s: %w", name, err):
		default: // the first failure is the one to tell
		}
	})
}

// load fills a service's settings from the environment with what standalone
// decides in front of it.
func (w *world) load(into any, decided map[string]string) error {
	environ := make([]string, 0, len(w.opts.Environ)+len(decided))
	environ = append(environ, w.opts.Environ...)
	for k, v := range decided {
		environ = append(environ, k+"="+v)
	}
	return conf.Load(into, environ)
}
