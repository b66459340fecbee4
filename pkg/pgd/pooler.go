package pgd

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// Pooler configures a PgBouncer in transaction mode in front of a Server. It is for tests.
type Pooler struct {
	Dir    string            // for its files; other users may enter it
	Addr   string            // where it listens
	Host   string            // of the server: its socket's folder, or a name
	Port   uint16            // of the server
	Logins map[string]string // role → password
	Size   int               // server connections for each role and database
	// CertFile and KeyFile are the pooler's certificate, and CAFile the authority of the server's.
	// With them, all connections use TLS, and the server has to prove that its name is Host.
	CertFile, KeyFile, CAFile string
	// Owner is a file of the user that runs the pooler if we are root: PgBouncer refuses to run as
	// root. If it is empty, that is the owner of Host, where that is a folder, or nobody.
	Owner string
}

// FindPooler returns the path of the pgbouncer program.
func FindPooler() (string, error) {
	for _, name := range []string{"pgbouncer", "/usr/sbin/pgbouncer"} { // sbin is not on everybody's PATH
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errors.New("there is no pgbouncer: on Debian, apt-get install pgbouncer")
}

// Configure writes the pooler's files, and returns the arguments with which to run it as the
// user of As.
func (p Pooler) Configure() (args []string, err error) {
	host, port, err := net.SplitHostPort(p.Addr)
	if err != nil {
		return nil, fmt.Errorf("address of the pooler: %w", err)
	}
	users, ini := p.users(), filepath.Join(p.Dir, "pooler.ini")
	config := fmt.Sprintf(`[databases]
* = host=%s port=%d
[pgbouncer]
listen_addr = %s
listen_port = %s
unix_socket_dir =
auth_type = scram-sha-256
auth_file = %s
pool_mode = transaction
default_pool_size = %d
max_client_conn = 500
server_login_retry = 1
`, p.Host, p.Port, host, port, users, p.Size)
	if p.CertFile != "" {
		config += fmt.Sprintf("client_tls_sslmode = require\nclient_tls_cert_file = %s\nclient_tls_key_file = %s\nserver_tls_sslmode = verify-full\nserver_tls_ca_file = %s\n",
			p.CertFile, p.KeyFile, p.CAFile)
	}
	return []string{"-q", ini}, errors.Join(p.WriteLogins(), write(ini, config))
}

// WriteLogins writes the passwords, which the pooler reads again on SIGHUP.
func (p Pooler) WriteLogins() error {
	var logins strings.Builder
	for role, password := range p.Logins {
		fmt.Fprintf(&logins, "\"%s\" \"%s\"\n", role, password)
	}
	return write(p.users(), logins.String())
}

func (p Pooler) users() string { return filepath.Join(p.Dir, "pooler-users.txt") }

func write(name, text string) error {
	return os.WriteFile(name, []byte(text), 0o644) //nolint:gosec // the pooler runs as another user
}

// As makes attr run the pooler as another user than root: see Owner. Nobody but the server's user
// reaches its socket.
func (p Pooler) As(attr *syscall.SysProcAttr) {
	if os.Geteuid() != 0 {
		return
	}
	attr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	if info, err := os.Stat(cmp.Or(p.Owner, p.Host)); err == nil { // Host may be a name
		if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid != 0 {
			attr.Credential = &syscall.Credential{Uid: st.Uid, Gid: st.Gid}
		}
	}
}
