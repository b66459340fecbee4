package main

import (
	"net"
	"net/url"
	"os/exec"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
)

// TestDatabaseRefuses: the error says why the named database cannot be used, without the
// password.
func TestDatabaseRefuses(t *testing.T) {
	t.Parallel()
	p := newPlace(t, t.TempDir())
	const password = "planted-password"
	as := func(user string) func(u *url.URL) {
		return func(u *url.URL) { u.User = url.UserPassword(user, password) }
	}
	for _, tt := range []struct {
		name string
		sql  string // as the database's administrator, before
		set  func(u *url.URL)
		want string
	}{
		{"a role that is not there", "", as("nobody_at_all"), `error: the database cannot be opened: role "nobody_at_all" does not exist`},
		{"a database that is not there", "", func(u *url.URL) { as("postgres")(u); u.Path = "/nowhere" }, `error: the database cannot be opened: database "nowhere" does not exist`},
		{"nobody at the port", "", func(u *url.URL) {
			*u = url.URL{Scheme: "postgres", Host: "127.0.0.1:1", Path: "/signalbox"}
			as("postgres")(u)
		}, "error: the database cannot be opened: dial tcp 127.0.0.1:1: connect: connection refused"},
		{"no such host", "", func(u *url.URL) {
			*u = url.URL{Scheme: "postgres", Host: "nowhere.invalid", Path: "/signalbox"}
			as("postgres")(u)
		}, "error: the database cannot be opened: lookup nowhere.invalid"},
		{"a password that is refused", "", func(u *url.URL) {
			*u = url.URL{Scheme: "postgres", Host: refusing(t, "28P01", `password authentication failed for user "signalbox"`), Path: "/signalbox"}
			as("signalbox")(u)
		}, `error: the database cannot be opened: password authentication failed for user "signalbox"`},
		{"the service's role is not there", "", func(u *url.URL) {
			*u = url.URL{Scheme: "postgres", Host: refusing(t, "22023", `role "signalbox_credentials" does not exist`), Path: "/signalbox"}
			as("signalbox")(u)
		}, "error: the database is not prepared: run signalbox migrate"},
		{"tables that are not there", "DROP SCHEMA credentials CASCADE", as("postgres"), "error: the database is not prepared: run signalbox migrate"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := p
			if tt.sql != "" {
				p = newPlace(t, t.TempDir())
				if err := p.exec(t.Context(), tt.sql); err != nil {
					t.Fatal(err)
				}
			}
			u, err := url.Parse(p.adminURL)
			if err != nil {
				t.Fatal(err)
			}
			tt.set(u)
			cmd := exec.CommandContext(t.Context(), "signalbox", "accounts", "list")
			cmd.Env = append(cmd.Environ(), p.environ...)
			cmd.Env = append(cmd.Env, "DATABASE_URL="+u.String())
			out, err := cmd.CombinedOutput()
			if text := string(out); err == nil || !strings.HasPrefix(text, tt.want) || strings.Count(text, "\n") != 1 || strings.Contains(text, password) {
				t.Errorf("list: %v, %q, want one line that begins with %q", err, text, tt.want)
			}
		})
	}
}

// refusing returns the address of a database server that refuses every login.
func refusing(t *testing.T, code, message string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			b := pgproto3.NewBackend(conn, conn)
			for m, err := b.ReceiveStartupMessage(); err == nil; m, err = b.ReceiveStartupMessage() {
				if _, ok := m.(*pgproto3.SSLRequest); ok {
					_, _ = conn.Write([]byte("N"))
					continue
				}
				b.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: code, Message: message})
				_ = b.Flush()
				break
			}
			_ = conn.Close()
		}
	}()
	return l.Addr().String()
}
