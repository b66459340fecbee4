package world

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	insecure "math/rand/v2"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/freeport"
	"signalbox.dev/pkg/pgd"
)

const (
	owner         = "deployer" // of the database; its password is the same
	postgresPort  = 5432
	poolerServers = 8 // connections for each role
)

// provided is a PostgreSQL as providers have it; see [Options.Pooler].
type provided struct {
	dir  string // of its files
	host string // of the server: an address of its own, since the port is fixed
	addr string // of the pooler
}

// provide writes the certificates, and the rules of who may connect.
func provide(dir string) (*provided, error) {
	p := &provided{dir: dir, host: fmt.Sprintf("127.%d.%d.%d", 1+insecure.N(254), insecure.N(255), 1+insecure.N(254))}
	var err error
	if p.addr, err = freeport.Addr(); err != nil {
		return nil, err
	}
	if err := p.certify(); err != nil {
		return nil, fmt.Errorf("certificate of PostgreSQL: %w", err)
	}
	rules := "local all all trust\nhostssl all all 127.0.0.0/8 scram-sha-256\n"
	return p, os.WriteFile(p.at("hba.conf"), []byte(rules), 0o644) //nolint:gosec // PostgreSQL runs as another user
}

func (p *provided) at(file string) string { return filepath.Join(p.dir, file) }

// certify writes one certificate for the server and the pooler, which is its own authority.
func (p *provided) certify() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "PostgreSQL of a test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.ParseIP(p.host), net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	if err := os.WriteFile(p.at("db.crt"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), 0o644); err != nil { //nolint:gosec // everybody's
		return err
	}
	return os.WriteFile(p.at("db.key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), 0o600)
}

// settings are those of the server.
func (p *provided) settings() []string {
	return []string{"listen_addresses=" + p.host, "hba_file=" + p.at("hba.conf")}
}

// setUp turns the server's TLS on, and gives its database to an owner who is no superuser.
func (p *provided) setUp(ctx context.Context, s *pgd.Server) error {
	// The server's user has to own the key.
	dir, err := os.Stat(p.at("pg"))
	if err != nil {
		return err
	}
	if err := giveTo(dir, p.at("db.key")); err != nil {
		return err
	}
	c, err := pgx.Connect(ctx, s.URL(database))
	if err != nil {
		return err
	}
	defer func() { _ = c.Close(context.WithoutCancel(ctx)) }() // nothing is left to write
	for _, sql := range []string{
		"CREATE ROLE " + owner + " LOGIN CREATEROLE PASSWORD '" + owner + "'",
		"ALTER DATABASE " + database + " OWNER TO " + owner,
		"ALTER SYSTEM SET ssl_cert_file = '" + p.at("db.crt") + "'",
		"ALTER SYSTEM SET ssl_key_file = '" + p.at("db.key") + "'",
		"ALTER SYSTEM SET ssl = on",
		"SELECT pg_reload_conf()",
	} {
		if _, err := c.Exec(ctx, sql); err != nil {
			return fmt.Errorf("set up the database: %w", err)
		}
	}
	return p.awaitTLS(ctx)
}

// awaitTLS waits until the server, which reads its configuration when it likes, uses TLS.
func (p *provided) awaitTLS(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	for {
		c, err := pgx.Connect(ctx, p.owner())
		if err == nil {
			return c.Close(ctx)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("PostgreSQL does not use TLS: %w", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (p *provided) pooler(logins map[string]string) pgd.Pooler {
	return pgd.Pooler{
		Dir: p.dir, Addr: p.addr, Host: p.host, Port: postgresPort, Logins: logins, Size: poolerServers,
		CertFile: p.at("db.crt"), KeyFile: p.at("db.key"), CAFile: p.at("db.crt"), Owner: p.at("pg"),
	}
}

// writePasswords writes a file of passwords for each role, all at once.
func (p *provided) writePasswords(logins map[string]string) error {
	var errs []error
	for role, password := range logins {
		file := p.at(role + ".pgpass")
		errs = append(errs, os.WriteFile(file+".new", []byte("*:*:*:*:"+password+"\n"), 0o600), os.Rename(file+".new", file))
	}
	return errors.Join(errs...)
}

// owner is the URL of the database's owner.
func (p *provided) owner() string {
	u := p.url(net.JoinHostPort(p.host, fmt.Sprint(postgresPort)))
	u.User = url.UserPassword(owner, owner)
	return u.String()
}

// urls are those of a service: through the pooler, and of the server itself.
func (p *provided) urls(role string, via func(to, address string) (string, error)) (through, direct string, err error) {
	var out []string
	for _, link := range []struct{ to, address string }{
		{PoolerName, p.addr}, {PostgresName, net.JoinHostPort(p.host, fmt.Sprint(postgresPort))},
	} {
		addr, err := via(link.to, link.address)
		if err != nil {
			return "", "", err
		}
		u := p.url(addr)
		u.User = url.User(role)
		u.RawQuery += "&passfile=" + url.QueryEscape(p.at(role+".pgpass"))
		out = append(out, u.String())
	}
	return out[0], out[1], nil
}

func (p *provided) url(addr string) *url.URL {
	return &url.URL{
		Scheme: "postgres", Host: addr, Path: "/" + database,
		RawQuery: url.Values{"sslmode": {"verify-full"}, "sslrootcert": {p.at("db.crt")}}.Encode(),
	}
}

// giveTo gives a file to the owner of another one.
func giveTo(owned os.FileInfo, file string) error {
	st, ok := owned.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	return os.Chown(file, int(st.Uid), int(st.Gid))
}
