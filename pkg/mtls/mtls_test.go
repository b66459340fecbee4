package mtls_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"signalbox.dev/pkg/mtls"
	"signalbox.dev/pkg/mtls/mtlstest"
)

var quiet = slog.New(slog.DiscardHandler)

func TestOpen(t *testing.T) {
	t.Parallel()
	ca, other := mtlstest.NewAuthority(t), mtlstest.NewAuthority(t)
	own := mtlstest.Certificate{Names: []string{"document-sync", "signalbox-document-sync"}}
	with := func(change func(cfg *mtls.Config)) mtls.Config {
		cfg := ca.Files(t, t.TempDir(), own)
		change(&cfg)
		return cfg
	}
	replaced := func(file func(mtls.Config) string, text []byte) mtls.Config {
		return with(func(cfg *mtls.Config) { mtlstest.Replace(t, file(*cfg), text) })
	}
	for _, tt := range []struct {
		name string
		cfg  mtls.Config
		want string // in the error; empty for none
	}{
		{"all files", with(func(*mtls.Config) {}), ""},
		{"no key", with(func(cfg *mtls.Config) { cfg.KeyFile = "" }), "set all of them, or none"},
		{"a missing file", with(func(cfg *mtls.Config) { cfg.CAFile += "x" }), "no such file"},
		{"the key of another certificate", replaced(func(c mtls.Config) string { return c.KeyFile }, second(ca.Sign(t, own))), "private key does not match"},
		{"a certificate without PEM", replaced(func(c mtls.Config) string { return c.CertFile }, []byte("certificate")), "TLS_CERT_FILE"},
		{"no authority", replaced(func(c mtls.Config) string { return c.CAFile }, []byte("\n")), "TLS_CA_FILE: it has no certificate"},
		{"half an authority", replaced(func(c mtls.Config) string { return c.CAFile }, append(bytes.Clone(ca.PEM), []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")...)), "TLS_CA_FILE: certificate 2"},
		{"another authority", replaced(func(c mtls.Config) string { return c.CAFile }, other.PEM), "signed by unknown authority"},
		{"another name", ca.Files(t, t.TempDir(), mtlstest.Certificate{Names: []string{"gateway"}}), "want a certificate whose DNS names include document-sync"},
		{"expired", ca.Files(t, t.TempDir(), mtlstest.Certificate{Names: own.Names, Expired: true}), "expired"},
		{"for servers only", ca.Files(t, t.TempDir(), mtlstest.Certificate{Names: own.Names, Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}), "both usages, server and client"},
	} {
		c, err := mtls.Open(tt.cfg, "document-sync", nil, quiet)
		if tt.want == "" && (err != nil || c == nil) || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: Open() = %v, want an error with %q", tt.name, err, tt.want)
		}
	}
	if c, err := mtls.Open(mtls.Config{}, "document-sync", nil, quiet); c != nil || err != nil {
		t.Errorf("Open() without files = %v, %v, want nil", c, err)
	}
}

func second(_, b []byte) []byte { return b }

// party is a service with its files, listening.
type party struct {
	dir  string
	log  *lines
	addr string
	*mtls.Credentials
}

// lines collects a log.
type lines struct {
	mu  sync.Mutex // guards buf
	buf strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.buf.String(), text)
}

func start(t *testing.T, ca *mtlstest.Authority, name string) *party {
	t.Helper()
	p := &party{dir: t.TempDir(), log: &lines{}}
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.addr = l.Addr().String()
	cfg := ca.Files(t, p.dir, mtlstest.Certificate{Names: []string{name}})
	if p.Credentials, err = mtls.Open(cfg, name, []mtls.Peer{{Service: name, URL: "https://" + p.addr}}, slog.New(slog.NewTextHandler(p.log, nil))); err != nil {
		t.Fatal(err)
	}
	secure := p.Listen(l)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := secure.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer func() { _ = c.Close() }()
				_ = c.(*tls.Conn).HandshakeContext(context.WithoutCancel(t.Context())) // the client sees why
			})
		}
	})
	t.Cleanup(func() {
		_ = secure.Close()
		wg.Wait()
	})
	return p
}

// serial connects and returns the serial number of the certificate that p shows.
func (p *party) serial(t *testing.T) string {
	t.Helper()
	conn, err := p.Dialer(new(net.Dialer), "h2")(t.Context(), "tcp", p.addr)
	if err != nil {
		t.Fatalf("dial: %v", err)
	}
	defer func() { _ = conn.Close() }()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0].SerialNumber.String()
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) { //nolint:forbidigo // files are read by the clock
		if time.Now().After(end) {
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}

// New files are used for new connections, through symbolic links too, as Kubernetes replaces
// them. Files that cannot be used change nothing, and say so once.
func TestReload(t *testing.T) {
	t.Parallel()
	ca := mtlstest.NewAuthority(t)
	p := start(t, ca, "document-sync")
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(p.Collector())
	refused := func(want string) bool {
		return testutil.GatherAndCompare(metrics, strings.NewReader(`# HELP signalbox_tls_files_refused Whether the files of the certificate cannot be used, so that the previous ones stay in use: 1 or 0.
# TYPE signalbox_tls_files_refused gauge
signalbox_tls_files_refused `+want+"\n"), "signalbox_tls_files_refused") == nil
	}
	first := p.serial(t)
	if !refused("0") {
		t.Error("signalbox_tls_files_refused is not 0 with good files")
	}
	ca.Files(t, p.dir, mtlstest.Certificate{Names: []string{"document-sync"}})
	until(t, "the new certificate is shown", func() bool { return p.serial(t) != first })

	next := p.serial(t)
	mtlstest.Replace(t, filepath.Join(p.dir, "tls.key"), []byte("broken"))
	until(t, "the metric reports the broken key", func() bool { return refused("1") })
	for range 3 {
		time.Sleep(400 * time.Millisecond) //nolint:forbidigo // longer than files are cached, all in all
		if got := p.serial(t); got != next {
			t.Fatalf("with a broken key, the certificate is %s, want %s", got, next)
		}
	}
	if n := p.log.count("certificates not reloaded"); n != 1 {
		t.Errorf("the broken key was logged %d times, want once", n)
	}
	// A folder behind a link.
	if err := os.Rename(p.dir, p.dir+"-1"); err != nil {
		t.Fatal(err)
	}
	other := t.TempDir()
	ca.Files(t, other, mtlstest.Certificate{Names: []string{"document-sync"}})
	if err := os.Symlink(other, p.dir); err != nil {
		t.Fatal(err)
	}
	until(t, "the certificate behind the link is shown", func() bool { return p.serial(t) != next })
	if !refused("0") {
		t.Error("signalbox_tls_files_refused is not 0 after the repair")
	}
}

// A listener tells clients of another authority, and expired ones, apart from those of its own.
func TestListenerRefuses(t *testing.T) {
	t.Parallel()
	ca, other := mtlstest.NewAuthority(t), mtlstest.NewAuthority(t)
	p := start(t, ca, "document-sync")
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.PEM)
	for _, tt := range []struct {
		name string
		ca   *mtlstest.Authority
		cert mtlstest.Certificate
		want string
	}{
		{"of its own", ca, mtlstest.Certificate{Names: []string{"gateway"}}, "EOF"}, // which this server sends after a handshake
		{"of another authority", other, mtlstest.Certificate{Names: []string{"gateway"}}, "unknown certificate authority"},
		{"expired", ca, mtlstest.Certificate{Names: []string{"gateway"}, Expired: true}, "expired certificate"},
		{"of a server only", ca, mtlstest.Certificate{Names: []string{"gateway"}, Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}, "bad certificate"},
	} {
		pair, err := tls.X509KeyPair(tt.ca.Sign(t, tt.cert))
		if err != nil {
			t.Fatal(err)
		}
		d := tls.Dialer{Config: &tls.Config{
			RootCAs: roots, ServerName: "document-sync",
			// Also one that the server has not asked for.
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil },
		}}
		conn, err := d.DialContext(t.Context(), "tcp", p.addr)
		if err == nil {
			_, err = conn.Read(make([]byte, 1)) // TLS 1.3: the refusal comes after the client's handshake
			_ = conn.Close()
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("a client's certificate %s: %v, want %q", tt.name, err, tt.want)
		}
	}
}

// A caller demands the name of the service that it means, and sends nothing before.
func TestDialerDemandsTheName(t *testing.T) {
	t.Parallel()
	ca, other := mtlstest.NewAuthority(t), mtlstest.NewAuthority(t)
	loopback := []net.IP{net.IPv4(127, 0, 0, 1)}
	for _, tt := range []struct {
		name      string
		cert, key []byte
		want      string
	}{
		{"another authority", nil, nil, "unknown authority"},
		{"another service, with this address", nil, nil, "is valid for tool-executor, not credential-broker"},
		{"expired", nil, nil, "expired"},
		{"no TLS", nil, nil, "first record does not look like a TLS handshake"},
	} {
		switch tt.name {
		case "another authority":
			tt.cert, tt.key = other.Sign(t, mtlstest.Certificate{Names: []string{"credential-broker"}, IPs: loopback})
		case "another service, with this address":
			tt.cert, tt.key = ca.Sign(t, mtlstest.Certificate{Names: []string{"tool-executor"}, IPs: loopback})
		case "expired":
			tt.cert, tt.key = ca.Sign(t, mtlstest.Certificate{Names: []string{"credential-broker"}, IPs: loopback, Expired: true})
		}
		greet := func(c net.Conn) {
			if tt.cert == nil {
				_, _ = c.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
			}
		}
		far := mtlstest.NewImpostor(t, tt.cert, tt.key, greet)
		caller, err := mtls.Open(ca.Files(t, t.TempDir(), mtlstest.Certificate{Names: []string{"gateway"}}), "gateway",
			[]mtls.Peer{{Service: "credential-broker", URL: "https://" + far.Addr}}, quiet)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := caller.Dialer(new(net.Dialer), "h2")(t.Context(), "tcp", far.Addr)
		if err == nil {
			_ = conn.Close()
			err = errors.New("it is accepted")
		}
		if !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "credential-broker") {
			t.Errorf("%s: %v, want %q and the service's name", tt.name, err, tt.want)
		}
	}
}
