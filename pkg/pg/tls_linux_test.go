package pg_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	osexec "os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/mtls/mtlstest"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/pgd"
	"signalbox.dev/pkg/pgtest"
)

// secureServer is a PostgreSQL that demands TLS and passwords. Its database app belongs to a role
// that is no superuser.
type secureServer struct {
	host   string // an address of its own, since the port is fixed
	socket string // the superuser's URL of app, without TLS
	dir    string
}

// installations returns the PostgreSQL that tests use and, of the other versions on this machine,
// one each.
func installations(t *testing.T) map[string]string {
	t.Helper()
	all := []string{pgtest.Bin(t)}
	if !testing.Short() {
		others, err := filepath.Glob("/usr/lib/postgresql/*/bin")
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, others...)
	}
	found := map[string]string{}
	for _, bin := range all {
		out, err := osexec.CommandContext(t.Context(), filepath.Join(bin, "postgres"), "--version").Output()
		if err != nil {
			continue // a folder without the server
		}
		if major := regexp.MustCompile(`\d+`).FindString(string(out)); found[major] == "" {
			found[major] = bin
		}
	}
	return found
}

func startSecure(t *testing.T, bin string) *secureServer {
	t.Helper()
	s := &secureServer{host: fmt.Sprintf("127.%d.%d.%d", 1+rand.N(254), rand.N(255), 1+rand.N(254)), dir: filepath.Join(pgtest.Folder(t), "data")}
	srv, err := pgd.Start(t.Context(), pgd.Config{Dir: s.dir, Bin: bin, Fast: true, Settings: []string{"listen_addresses=" + s.host}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = srv.Stop(context.WithoutCancel(t.Context())) })
	if err := os.WriteFile(filepath.Join(s.dir, "pg_hba.conf"), []byte("local all all trust\nhostssl all all 127.0.0.0/8 scram-sha-256\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	admin := connect(t, srv.URL("postgres"))
	exec(t, admin, "create role deployer login createrole password 'deployer'")
	exec(t, admin, "create database app owner deployer")
	exec(t, admin, "alter system set ssl = on")
	s.socket = srv.URL("app")
	return s
}

// present lets the server use a certificate.
func (s *secureServer) present(t *testing.T, ca *mtlstest.Authority, c mtlstest.Certificate) {
	t.Helper()
	owner, err := os.Stat(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	cert, key := ca.Sign(t, c)
	for name, text := range map[string][]byte{"server.crt": cert, "server.key": key} {
		path := filepath.Join(s.dir, name)
		mtlstest.Replace(t, path, text)
		if is, ok := owner.Sys().(*syscall.Stat_t); ok {
			if err := os.Chown(path, int(is.Uid), int(is.Gid)); err != nil {
				t.Fatal(err)
			}
		}
	}
	exec(t, connect(t, s.socket), "select pg_reload_conf()")
}

// url returns a URL that checks the server.
func (s *secureServer) url(login, roots, more string) conf.Secret {
	return conf.Secret("postgres://" + login + "@" + s.host + "/app?sslmode=verify-full&sslrootcert=" + roots + more)
}

// With sslmode=verify-full a service talks to a server that proves its name, as the authorities in
// a file say that is read again; it does everything without a superuser; and its password is replaced
// while it works.
func TestVerifyFull(t *testing.T) {
	t.Parallel()
	for major, bin := range installations(t) {
		t.Run(major, func(t *testing.T) {
			t.Parallel()
			s := startSecure(t, bin)
			ca, other := mtlstest.NewAuthority(t), mtlstest.NewAuthority(t)
			own := mtlstest.Certificate{IPs: []net.IP{net.ParseIP(s.host)}}
			dir := t.TempDir()
			roots, passwords := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "passwords")
			mtlstest.Replace(t, roots, ca.PEM)
			s.present(t, ca, own)
			m := notes()
			migrate := func(password string) error {
				m.Password = conf.Secret(password)
				return pg.Migrate(t.Context(), s.url("deployer:deployer", roots, "").Reveal(), quiet, m)
			}
			until(t, "a migration without a superuser", func() bool { return migrate("first") == nil })
			write := func(password string) { mtlstest.Replace(t, passwords, []byte("*:*:*:*:"+password+"\n")) }
			write("first")
			cfg := pg.Config{URL: s.url(m.Role, roots, "&passfile="+passwords), MaxConns: 4}
			if err := cfg.CheckTLS(); err != nil {
				t.Error(err)
			}
			// anew returns the error of a new connection.
			anew := func() error {
				db := openWith(t, cfg)
				defer db.Close()
				return db.Ping(t.Context())
			}
			if err := anew(); err != nil {
				t.Fatal(err)
			}
			refused := func(want string) {
				t.Helper()
				until(t, want, func() bool {
					err := anew()
					return fault.KindOf(err) == fault.Unavailable && strings.Contains(err.Error(), want)
				})
			}

			load := startLoad(t, openWith(t, cfg))
			load.await(t, 20)
			s.present(t, ca, mtlstest.Certificate{Names: []string{"postgres"}})
			refused("cannot validate certificate for " + s.host)
			s.present(t, other, own)
			refused("certificate signed by unknown authority")
			mtlstest.Replace(t, roots, other.PEM)
			until(t, "a connection with the new authority", func() bool { return anew() == nil })

			if err := migrate("second"); err != nil {
				t.Fatal(err)
			}
			refused("password authentication failed")
			load.await(t, 20)
			if got := load.errors(); len(got) > 0 {
				t.Errorf("replacing certificates and the password made open connections fail: %v", errors.Join(got...))
			}
			write("second")
			terminate(t, s.socket)
			load.await(t, 20)
			load.stop()
			for _, err := range load.errors() { // of connections that were cut
				if fault.KindOf(err) != fault.Unavailable || strings.Contains(err.Error(), "password") {
					t.Errorf("a write failed with %v", err)
				}
			}
			if n := len(load.errors()); n > 4 {
				t.Errorf("%d writes failed, want one for each connection that was cut at most", n)
			}
			load.check(t)
		})
	}
}

// load is four writers.
type load struct {
	db      *pg.DB
	ws      id.Workspace
	end     context.CancelFunc
	writers sync.WaitGroup

	mu     sync.Mutex // guards what follows
	stored []string
	failed []error
}

func startLoad(t *testing.T, db *pg.DB) *load {
	t.Helper()
	l := &load{db: db, ws: id.New[id.Workspace]()}
	var ctx context.Context
	ctx, l.end = context.WithCancel(t.Context())
	for n := range 4 {
		l.writers.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				text := fmt.Sprintf("%d-%d", n, i)
				// The last write is not interrupted.
				err := db.InWorkspace(context.WithoutCancel(ctx), l.ws, func(ctx context.Context, tx pgx.Tx) error { return add(ctx, tx, l.ws, text) })
				l.mu.Lock()
				if err == nil {
					l.stored = append(l.stored, text)
				} else {
					l.failed = append(l.failed, err)
				}
				l.mu.Unlock()
			}
		})
	}
	t.Cleanup(l.stop)
	return l
}

func (l *load) stop() {
	l.end()
	l.writers.Wait()
}

// await returns after that many more writes.
func (l *load) await(t *testing.T, more int) {
	t.Helper()
	count := func() int {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.stored)
	}
	end := count() + more
	until(t, "further writes", func() bool { return count() >= end })
}

func (l *load) errors() []error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.failed)
}

// check reads what was stored.
func (l *load) check(t *testing.T) {
	t.Helper()
	got := seen(t, inWorkspace(l.db, l.ws))
	for _, want := range l.stored {
		if !slices.Contains(got, want) {
			t.Errorf("the write %s is not there", want)
		}
	}
}
