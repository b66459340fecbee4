// Package mtlstest makes authorities and certificates for tests.
package mtlstest

import (
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"signalbox.dev/pkg/mtls"
)

// Authority signs certificates.
type Authority struct {
	// PEM is its certificate.
	PEM []byte

	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Certificate is what an Authority signs.
type Certificate struct {
	Names   []string // DNS names
	IPs     []net.IP
	Life    time.Duration // 0: an hour
	Expired bool
	Usages  []x509.ExtKeyUsage // nil: server and client
}

// NewAuthority returns a new authority.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{key: newKey(t)}
	template := &x509.Certificate{
		SerialNumber: serial(t), Subject: pkix.Name{CommonName: "Authority of a test"}, NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Now().AddDate(1, 0, 0),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key)
	if err == nil {
		a.cert, err = x509.ParseCertificate(der)
	}
	if err != nil {
		t.Fatal(err)
	}
	a.PEM = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return a
}

// Sign returns a certificate and its private key as PEM.
func (a *Authority) Sign(t testing.TB, c Certificate) (cert, key []byte) {
	t.Helper()
	if c.Usages == nil {
		c.Usages = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	}
	template := &x509.Certificate{
		SerialNumber: serial(t), NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: time.Now().Add(cmp.Or(c.Life, time.Hour)),
		DNSNames: c.Names, IPAddresses: c.IPs, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: c.Usages,
	}
	if c.Expired {
		template.NotAfter = time.Now().Add(-time.Hour)
	}
	own := newKey(t)
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, own.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(own)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
}

// Files writes a new certificate for a service to dir, replaces what is there, and returns the
// settings. The service trusts this authority and the other ones.
func (a *Authority) Files(t testing.TB, dir string, c Certificate, others ...*Authority) mtls.Config {
	t.Helper()
	cert, key := a.Sign(t, c)
	roots := a.PEM
	for _, o := range others {
		roots = append(append([]byte{}, roots...), o.PEM...)
	}
	cfg := mtls.Config{CertFile: filepath.Join(dir, "tls.crt"), KeyFile: filepath.Join(dir, "tls.key"), CAFile: filepath.Join(dir, "ca.crt")}
	for path, text := range map[string][]byte{cfg.CertFile: cert, cfg.KeyFile: key, cfg.CAFile: roots} {
		Replace(t, path, text)
	}
	return cfg
}

// Replace replaces a file as a whole.
func Replace(t testing.TB, path string, text []byte) {
	t.Helper()
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func serial(t testing.TB) *big.Int {
	t.Helper()
	n, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// ClientConfig returns the configuration of a client without a certificate that trusts a, and
// expects a server with that name.
func ClientConfig(a *Authority, name string) *tls.Config {
	roots := x509.NewCertPool()
	roots.AddCert(a.cert)
	return &tls.Config{RootCAs: roots, ServerName: name, MinVersion: tls.VersionTLS13}
}
