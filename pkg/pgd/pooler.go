package pgd

import (
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
	var logins strings.Builder
	for role, password := range p.Logins {
		fmt.Fprintf(&logins, "\"%s\" \"%s\"\n", role, password)
	}
	users, ini := filepath.Join(p.Dir, "pooler-users.txt"), filepath.Join(p.Dir, "pooler.ini")
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
	for name, text := range map[string]string{users: logins.String(), ini: config} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil { //nolint:gosec // the pooler runs as another user
			return nil, err
		}
	}
	return []string{"-q", ini}, nil
}

// As makes attr run the pooler as the user that runs the server: PgBouncer refuses to run as
// root, and nobody else reaches the server's socket.
func (p Pooler) As(attr *syscall.SysProcAttr) {
	if os.Geteuid() != 0 {
		return
	}
	attr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	if info, err := os.Stat(p.Host); err == nil { // it is a folder, not a name
		if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid != 0 {
			attr.Credential = &syscall.Credential{Uid: st.Uid, Gid: st.Gid}
		}
	}
}
