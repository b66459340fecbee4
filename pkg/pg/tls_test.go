package pg_test

import (
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/mtls/mtlstest"
	"signalbox.dev/pkg/pg"
)

// With sslmode=verify-full, a server that does not prove its name, or refuses TLS, gets neither
// the user nor the password.
func TestImpostor(t *testing.T) {
	t.Parallel()
	ca, other := mtlstest.NewAuthority(t), mtlstest.NewAuthority(t)
	loopback := []net.IP{net.IPv4(127, 0, 0, 1)}
	roots := filepath.Join(t.TempDir(), "ca.crt")
	mtlstest.Replace(t, roots, ca.PEM)
	for _, tt := range []struct {
		name string
		ca   *mtlstest.Authority // nil: no TLS
		cert mtlstest.Certificate
		want string
	}{
		{"of another authority", other, mtlstest.Certificate{IPs: loopback}, "certificate signed by unknown authority"},
		{"with another name", ca, mtlstest.Certificate{Names: []string{"postgres"}}, "cannot validate certificate for 127.0.0.1"},
		{"with an expired certificate", ca, mtlstest.Certificate{IPs: loopback, Expired: true}, "certificate has expired"},
		{"without TLS", nil, mtlstest.Certificate{}, "server refused TLS connection"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var cert, key []byte
			reply := "N"
			if tt.ca != nil {
				cert, key = tt.ca.Sign(t, tt.cert)
				reply = "S"
			}
			far := mtlstest.NewImpostor(t, cert, key, func(c net.Conn) {
				_, _ = io.ReadFull(c, make([]byte, 8)) // the request for TLS
				_, _ = io.WriteString(c, reply)
			})
			db := openWith(t, pg.Config{URL: conf.Secret("postgres://someone:a-secret@" + far.Addr + "/db?sslmode=verify-full&sslrootcert=" + roots)})
			if err := db.Ping(t.Context()); fault.KindOf(err) != fault.Unavailable || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Ping() = %v, want %v with %q", err, fault.Unavailable, tt.want)
			}
			if got := far.Got(); len(got) > 0 {
				t.Errorf("the impostor got %q, want nothing", got)
			}
		})
	}
}

func TestCheckTLS(t *testing.T) {
	t.Parallel()
	roots := filepath.Join(t.TempDir(), "ca.crt")
	mtlstest.Replace(t, roots, mtlstest.NewAuthority(t).PEM)
	for _, tt := range []struct{ url, direct, want string }{
		{"postgres://u:p@db:5432/x?sslmode=verify-full&sslrootcert=" + roots, "", ""},
		{"postgres://u:p@a,b/x?sslmode=verify-full", "", ""},
		{"postgres:///x?host=/run/postgresql", "", ""},
		{"postgres://u:p@db/x?sslmode=disable", "", "DATABASE_URL"},
		{"postgres://u:p@db/x", "", "DATABASE_URL"}, // sslmode=prefer
		{"postgres://u:p@db/x?sslmode=require", "", "DATABASE_URL"},
		{"postgres://u:p@db/x?sslmode=verify-ca&sslrootcert=" + roots, "", "DATABASE_URL"},
		{"postgres:///x?host=/run/postgresql", "postgres://u:p@db/x?sslmode=require", "DATABASE_DIRECT_URL"},
	} {
		err := pg.Config{URL: conf.Secret(tt.url), DirectURL: conf.Secret(tt.direct)}.CheckTLS()
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.HasPrefix(err.Error(), tt.want+" is not encrypted")) {
			t.Errorf("CheckTLS() of %s and %q = %v, want an error about %q", tt.url, tt.direct, err, tt.want)
		}
	}
}
