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
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/natsd"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/pgd"
	"signalbox.dev/pkg/subject"
	"signalbox.dev/pkg/telemetry"
	"signalbox.dev/services/standalone/internal/datadir"
)

// stack is what Up has started. It belongs to the goroutine of Up; the services'
// goroutines report to failed and are waited for by close.
type stack struct {
	opts      Options
	telemetry telemetry.Config
	dir       *datadir.Dir
	identity  datadir.Identity
	token     Token // of the identity
	public    net.Listener
	registry  *prometheus.Registry
	keys      map[string]identity.Key // by service

	adminURL string // Postgres, as administrator
	opsURL   string // health checks and metrics
	example  string // host:port of pages for trying the browser; empty without them
	// logins are the services' passwords at the private database, by role; nil if
	// DATABASE_URL names a database, where services act as members of their roles.
	logins map[string]conf.Secret

	connect func(service string) bus.Config
	stages  []*stage // in the order of their start
	closers []func(context.Context) error
	failed  chan error
}

// stage is a running service. It ends after those that were started later.
type stage struct {
	stop context.CancelFunc
	done sync.WaitGroup
}

const (
	simulatorDrain = time.Second
	// stopTimeout bounds the end of the database and the bus, after the services' own drain.
	stopTimeout = 30 * time.Second
	// leastRoom is the disk space that Postgres needs to write: a segment of its log.
	leastRoom    = 16 << 20
	databaseName = "signalbox"
)

// close stops everything in the reverse order of its start.
func (s *stack) close(ctx context.Context) error {
	for _, v := range slices.Backward(s.stages) {
		v.stop()
		v.done.Wait()
	}
	var errs []error
	for _, v := range slices.Backward(s.closers) {
		limited, cancel := context.WithTimeout(ctx, stopTimeout)
		errs = append(errs, v(limited))
		cancel()
	}
	return errors.Join(errs...)
}

func (s *stack) onClose(f func(context.Context) error) { s.closers = append(s.closers, f) }

// log returns the logger of a service.
func (s *stack) log(service string) *slog.Logger { return s.opts.Log.With("service", service) }

// startPostgres runs the private database, or uses the one that DATABASE_URL names, and
// migrates every service's schema.
func (s *stack) startPostgres(ctx context.Context) error {
	s.adminURL = s.opts.DatabaseURL.Reveal()
	if s.adminURL == "" {
		server, err := OpenDatabase(ctx, s.dir.Path("postgres"), s.log("postgres"))
		if err != nil {
			return err
		}
		s.onClose(server.Stop)
		s.adminURL = server.URL(databaseName)
		s.logins = map[string]conf.Secret{}
	}
	migrations := Migrations()
	for i, m := range migrations {
		if s.logins != nil {
			s.logins[m.Role] = conf.Secret(rand.Text())
			migrations[i].Password = s.logins[m.Role]
		}
	}
	err := pg.Migrate(ctx, s.adminURL, s.log("migrate"), migrations...)
	if err != nil && s.opts.DatabaseURL != "" {
		return fmt.Errorf("DATABASE_URL: %w", err)
	}
	return err
}

// databaseURL returns the database for a service. At the private one it is a login of the
// service's own, which cannot become the administrator.
func (s *stack) databaseURL(role string) (conf.Secret, error) {
	password, ok := s.logins[role]
	if !ok {
		return conf.Secret(s.adminURL), nil
	}
	u, err := url.Parse(s.adminURL)
	if err != nil {
		return "", fmt.Errorf("address of the private database: %w", err)
	}
	u.User = url.UserPassword(role, password.Reveal())
	return conf.Secret(u.String()), nil
}

// diskFull reports whether the disk of the data folder is full.
func (s *stack) diskFull() bool {
	var st syscall.Statfs_t
	if err := syscall.Statfs(s.dir.Path(), &st); err != nil {
		return false
	}
	return st.Bavail*uint64(st.Bsize) < leastRoom || st.Files > 0 && st.Ffree == 0
}

// OpenDatabase starts the private PostgreSQL of a data folder and makes the product's
// database. The caller stops it; until then it is restarted if it ends.
func OpenDatabase(ctx context.Context, dir string, log *slog.Logger) (*pgd.Supervised, error) {
	server, err := pgd.Supervise(ctx, pgd.Config{Dir: dir, Password: conf.Secret(rand.Text()), Log: log})
	if err != nil {
		return nil, err
	}
	if err := server.EnsureDatabase(ctx, databaseName); err != nil {
		return nil, errors.Join(err, server.Stop(context.WithoutCancel(ctx)))
	}
	return server, nil
}

// startNATS runs a server in the process, with a user for each service, or uses the servers
// that NATS_URL names; then it makes the streams.
func (s *stack) startNATS(ctx context.Context) error {
	topology, err := subject.NewTopology(subject.Options{})
	if err != nil {
		return err
	}
	if url := s.opts.NATSURL.Reveal(); url != "" {
		s.connect = func(service string) bus.Config { return bus.Config{URL: url, Service: service} }
	} else if err := s.runNATS(ctx, topology); err != nil {
		return err
	}
	admin, err := s.bus(ctx, subject.Admin)
	if err != nil {
		return err
	}
	defer admin.Close()
	err = bus.Apply(ctx, admin, topology)
	if err != nil && s.opts.NATSURL != "" {
		return fmt.Errorf("NATS_URL: %w", err)
	}
	return err
}

func (s *stack) runNATS(ctx context.Context, topology subject.Topology) error {
	server, err := natsd.Start(ctx, natsd.Config{Dir: s.dir.Path("nats"), Users: subject.Users(topology), Log: s.log("nats")})
	if err != nil {
		return err
	}
	s.onClose(func(context.Context) error { server.Shutdown(); return nil })
	s.connect = func(service string) bus.Config {
		return bus.Config{Service: service, Conn: server.Options(service)}
	}
	return nil
}

// bus opens a service's connection, which the caller closes.
func (s *stack) bus(ctx context.Context, service string) (*bus.Bus, error) {
	cfg := s.connect(service)
	cfg.Log = s.log(service)
	cfg.Metrics = s.metrics(service)
	return bus.Connect(ctx, cfg)
}

// metrics returns a registerer that labels metrics with the service.
func (s *stack) metrics(service string) prometheus.Registerer {
	return prometheus.WrapRegistererWith(prometheus.Labels{"service": service}, s.registry)
}

// stage runs a service until its turn in close; ctx does not end it.
func (s *stack) stage(ctx context.Context, service string, run func(context.Context) error) {
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	st := &stage{stop: stop}
	s.stages = append(s.stages, st)
	st.done.Go(func() {
		err := run(ctx)
		if err == nil && ctx.Err() == nil {
			err = errors.New("it stopped unexpectedly")
		}
		if err == nil {
			return
		}
		s.log(service).ErrorContext(ctx, "service failed", "error", err)
		select {
		case s.failed <- fmt.Errorf("%s: %w", service, err):
		default: // only the first failure is reported
		}
	})
}

// setting returns a variable of the environment, or a fallback if it is not set.
func (s *stack) setting(name, fallback string) string {
	for _, v := range slices.Backward(s.opts.Environ) {
		if value, ok := strings.CutPrefix(v, name+"="); ok {
			return value
		}
	}
	return fallback
}

// load reads a service's settings from the environment, with what standalone decides in
// their place.
func (s *stack) load(into any, decided map[string]string) error {
	environ := slices.Clone(s.opts.Environ)
	// The services get these as open connections and keys; their programs require them.
	for _, name := range []string{"DATABASE_URL", "SERVICE_KEY", "TRUSTED_KEYS"} {
		environ = append(environ, name+"=handed over")
	}
	for name, value := range decided {
		environ = append(environ, name+"="+value)
	}
	return conf.Load(into, environ)
}
