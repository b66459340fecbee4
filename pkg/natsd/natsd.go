// Package natsd runs a NATS server with JetStream inside this process, for standalone and for
// tests (natstest). No other package imports the server, so that no service's binary contains
// it.
//
// The server's folder belongs to one process at a time, and is locked while the server runs.
// It can be rebuilt: if it is lost or damaged, delete it, and unfinished runs are queued again
// from Postgres.
package natsd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/subject"
)

// Config configures a server.
type Config struct {
	Dir string       // JetStream's folder, created if necessary
	Log *slog.Logger // required

	// Port is the port at Host: 0 for none, so that only this process can connect (Options),
	// -1 for a free one.
	Port int
	Host string // defaults to 127.0.0.1

	// Users turns permissions on; the streams are in the account of subject.Admin. Each user
	// gets its password of Passwords, or a new one (Options, Password). Without users,
	// everybody may do everything.
	Users     []subject.User
	Passwords map[string]conf.Secret

	// SyncInterval is how often files are synced to disk. 0 means 100 ms, a negative interval
	// before every ack.
	SyncInterval time.Duration
	MaxStore     int64 // bytes on disk that streams may reserve; 0 means 8 GiB
}

// Server is a running NATS server, which is restarted when it cannot write any more (see
// watch).
type Server struct {
	lock      *os.File
	cfg       Config
	passwords map[string]conf.Secret
	stop      context.CancelFunc // ends watch
	watched   chan struct{}      // closed when watch has ended

	mu  sync.Mutex     // guards srv
	srv *server.Server // nil between two servers
}

// Start runs a server and returns when it accepts connections and JetStream has read its
// folder. The caller ends it with Shutdown; ctx limits only the start.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	if cfg.Dir == "" || cfg.Log == nil {
		return nil, errors.New("start NATS: a folder and a logger are needed")
	}
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("start NATS: %w", err)
	}
	cfg.Dir = dir
	if cfg.Host == "" {
		cfg.Host = "127.0.0.1"
	}
	s := &Server{cfg: cfg, passwords: map[string]conf.Secret{}, watched: make(chan struct{})}
	opts, err := s.options()
	if err != nil {
		return nil, fmt.Errorf("start NATS: %w", err)
	}
	if s.lock, err = lockDir(dir); err != nil {
		return nil, fmt.Errorf("start NATS: %w", err)
	}
	if err := s.start(ctx, opts); err != nil {
		s.unlock()
		return nil, fmt.Errorf("start NATS: %w", err)
	}
	ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	go s.watch(ctx)
	return s, nil
}

func (s *Server) options() (*server.Options, error) {
	cfg, opts := s.cfg, &server.Options{}
	if len(cfg.Users) > 0 {
		for _, u := range cfg.Users {
			if s.passwords[u.Name] != "" { // this is a restart
				continue
			}
			s.passwords[u.Name] = cfg.Passwords[u.Name]
			if s.passwords[u.Name] == "" {
				s.passwords[u.Name] = conf.Secret("p" + rand.Text())
			}
		}
		text := subject.AccountsConf(cfg.Users, func(user string) string {
			return fmt.Sprintf("%q", s.passwords[user].Reveal())
		})
		if err := opts.ProcessConfigString(string(text)); err != nil {
			return nil, fmt.Errorf("read the accounts: %w", err)
		}
	}
	opts.ServerName = "signalbox"
	opts.Host = cfg.Host
	opts.Port = cfg.Port
	opts.DontListen = cfg.Port == 0
	opts.NoSigs = true
	opts.JetStream = true
	opts.DisableJetStreamBanner = true
	opts.StoreDir = cfg.Dir
	opts.MaxPayload = subject.MaxMessage
	opts.JetStreamMaxStore = cfg.MaxStore
	if opts.JetStreamMaxStore == 0 {
		opts.JetStreamMaxStore = 8 << 30
	}
	opts.JetStreamMaxMemory = 64 << 20 // all our streams are on disk
	switch {
	case cfg.SyncInterval < 0:
		opts.SyncAlways = true
	case cfg.SyncInterval == 0:
		opts.SyncInterval = 100 * time.Millisecond
	default:
		opts.SyncInterval = cfg.SyncInterval
	}
	return opts, nil
}

func (s *Server) start(ctx context.Context, opts *server.Options) error {
	srv, err := server.NewServer(opts)
	if err != nil {
		return err
	}
	log := newServerLog(s.cfg.Log)
	srv.SetLoggerV2(log, false, false, false)
	srv.Start() // returns when the folder is read; an interruption would damage the folder
	err = s.started(ctx, srv, log)
	if err == nil {
		err = damaged(srv, s.cfg.Dir, log)
	}
	if err != nil {
		srv.Shutdown()
		srv.WaitForShutdown()
		return explain(err, s.cfg)
	}
	if a, ok := srv.Addr().(*net.TCPAddr); ok && s.cfg.Port == -1 {
		s.cfg.Port = a.Port
	}
	s.mu.Lock()
	s.srv = srv
	s.mu.Unlock()
	return nil
}

// started returns an error unless the server is running after its Start.
func (s *Server) started(ctx context.Context, srv *server.Server, log *serverLog) error {
	select {
	case err := <-log.fatal:
		return err
	case <-ctx.Done():
		return ctx.Err()
	default:
	}
	if !srv.JetStreamEnabled() || s.cfg.Port != 0 && srv.Addr() == nil {
		return errors.New("the server did not become ready")
	}
	return nil
}

// damaged returns an error about streams that are in the folder and not on the server, which
// skips streams that it cannot read with a warning.
func damaged(srv *server.Server, dir string, log *serverLog) error {
	found, err := filepath.Glob(filepath.Join(dir, server.JetStreamStoreDir, "*", "streams", "*"))
	if err != nil || len(found) == 0 {
		return err
	}
	z, err := srv.Jsz(&server.JSzOptions{Accounts: true, Streams: true})
	if err != nil {
		return fmt.Errorf("list the streams: %w", err)
	}
	accounts, alive := map[string]bool{}, map[string]bool{}
	for _, a := range z.AccountDetails {
		accounts[a.Id] = true
		for _, st := range a.Streams {
			alive[filepath.Join(a.Id, st.Name)] = true
		}
	}
	var lost []string
	for _, path := range found {
		account := filepath.Base(filepath.Dir(filepath.Dir(path)))
		// Accounts that the server does not know come from a start with other users.
		if name := filepath.Base(path); accounts[account] && !alive[filepath.Join(account, name)] {
			lost = append(lost, name)
		}
	}
	if len(lost) == 0 {
		return nil
	}
	return fmt.Errorf("%w: the server cannot read the streams %s: %s", errDamaged, strings.Join(lost, ", "), log.lastWarning())
}

var errDamaged = errors.New("the folder is damaged")

func explain(err error, cfg Config) error {
	text := err.Error()
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case strings.Contains(text, "Error listening"):
		return fmt.Errorf("port %d at %s: %w: if another server is running, stop it, or choose another port", cfg.Port, cfg.Host, err)
	case errors.Is(err, errDamaged), strings.Contains(text, "JetStream"):
		return fmt.Errorf("JetStream in %s: %w: move the folder away and start again (unfinished runs are queued again from Postgres)", cfg.Dir, err)
	}
	return err
}

// ClientURL returns the address to connect to, "" if only this process can connect.
func (s *Server) ClientURL() string {
	if s.cfg.Port == 0 {
		return ""
	}
	return fmt.Sprintf("nats://%s", net.JoinHostPort(s.cfg.Host, strconv.Itoa(s.cfg.Port)))
}

// Options returns the options of an in-process connection as a user.
func (s *Server) Options(user string) []nats.Option {
	opts := []nats.Option{nats.InProcessServer(s)}
	if p, ok := s.passwords[user]; ok {
		opts = append(opts, nats.UserInfo(user, p.Reveal()))
	}
	return opts
}

// Password returns a user's password, for connections to ClientURL. It is empty without
// permissions.
func (s *Server) Password(user string) conf.Secret { return s.passwords[user] }

// Config returns the configuration to start the same server again after Shutdown: with the
// same folder, port and passwords, so that clients reconnect.
func (s *Server) Config() Config {
	cfg := s.cfg
	cfg.Passwords = maps.Clone(s.passwords)
	return cfg
}

// Shutdown ends the server and returns when everything is on disk. Calling it twice is
// harmless.
func (s *Server) Shutdown() {
	s.stop()
	<-s.watched
	s.end()
	s.unlock()
}

// end shuts the running server down, if there is one.
func (s *Server) end() {
	s.mu.Lock()
	srv := s.srv
	s.srv = nil
	s.mu.Unlock()
	if srv != nil {
		srv.Shutdown()
		srv.WaitForShutdown()
	}
}

func (s *Server) current() *server.Server {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.srv
}

// InProcessConn implements nats.InProcessConnProvider: clients reconnect to a restarted
// server.
func (s *Server) InProcessConn() (net.Conn, error) {
	srv := s.current()
	if srv == nil {
		return nil, errors.New("the NATS server is restarting")
	}
	return srv.InProcessConn()
}
