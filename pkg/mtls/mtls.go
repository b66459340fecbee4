// Package mtls secures the connections between services with mutual TLS, and reads the
// certificates again when their files change.
//
// # Who is checked
//
// Each service has a certificate for its name, such as credential-broker, and all certificates
// are signed by one authority. A caller demands the name of the service that it means to call,
// whatever host its URL names: the stolen certificate of one service does not pass for another.
// A service demands a certificate of that authority from its callers, except for the pages of
// operators (package httpserver), which probes without a certificate request. Which service
// calls, and for whom, is proved by the signed context (package identity).
//
// # Rotation
//
// The files are read again when a connection is opened or metrics are collected, at most once a
// second, so that nothing runs in the background. Files that do not fit together, as in the
// middle of a replacement, change nothing: the previous certificate stays in use, the error is
// logged once, and a metric reports it until the files are good again. Open connections stay
// open.
package mtls

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Config names a service's files. Without any of them the service does not use TLS.
type Config struct {
	CertFile string `env:"TLS_CERT_FILE" doc:"PEM file with this service's certificate and those of intermediate authorities, for TLS between services. Its DNS names must include the service's name. It is read again when it changes, like the next two."`
	KeyFile  string `env:"TLS_KEY_FILE" doc:"PEM file with the private key of TLS_CERT_FILE."`
	CAFile   string `env:"TLS_CA_FILE" doc:"PEM file with the authorities that sign the certificates of all services; several while they are being replaced."`
	Required bool   `env:"TLS_REQUIRED" envDefault:"false" doc:"Refuses to start if a connection to another service, PostgreSQL or NATS would not be encrypted and checked."`
}

// Enabled reports whether any file is named.
func (c Config) Enabled() bool { return c.CertFile != "" || c.KeyFile != "" || c.CAFile != "" }

// Peer is a service to call.
type Peer struct {
	Setting string // the environment variable of URL, for errors
	Service string // its name, as in package subject
	URL     string
}

const (
	recheck          = time.Second // how often files are read at most
	handshakeTimeout = 5 * time.Second
)

// Credentials prove who this service is, and check the others. A nil *Credentials stands for a
// service without TLS. The methods may be called from any goroutine.
type Credentials struct {
	files *files[*material]
	names map[string]string // host:port → service
}

// material is the content of the three files.
type material struct {
	cert  tls.Certificate
	roots *x509.CertPool
	// until is when others cease to accept the certificate: the first expiry in its chain.
	until time.Time
}

// Open reads the certificate of the service with that name, which may be empty for a program
// that is only a client. It returns nil if the settings name no files. Errors name the setting
// to change.
func Open(cfg Config, name string, peers []Peer, log *slog.Logger) (*Credentials, error) {
	if !cfg.Enabled() {
		return nil, nil //nolint:nilnil // as the type says
	}
	if cfg.CertFile == "" || cfg.KeyFile == "" || cfg.CAFile == "" {
		return nil, errors.New("TLS_CERT_FILE, TLS_KEY_FILE and TLS_CA_FILE belong together: set all of them, or none")
	}
	c := &Credentials{names: map[string]string{}}
	for _, p := range peers {
		u, err := url.Parse(p.URL)
		if err != nil {
			return nil, fmt.Errorf("%s does not parse", p.Setting)
		}
		c.names[hostPort(u)] = p.Service
	}
	parse := func(contents [][]byte) (*material, error) { return parseMaterial(contents, name) }
	var err error
	c.files, err = open([]string{cfg.CertFile, cfg.KeyFile, cfg.CAFile}, parse, log)
	return c, err
}

func hostPort(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = "443"
	}
	return net.JoinHostPort(u.Hostname(), port)
}

func parseMaterial(contents [][]byte, name string) (*material, error) {
	cert, err := tls.X509KeyPair(contents[0], contents[1])
	if err != nil {
		return nil, fmt.Errorf("TLS_CERT_FILE, TLS_KEY_FILE: %w", err)
	}
	roots, err := parseRoots(contents[2])
	if err != nil {
		return nil, fmt.Errorf("TLS_CA_FILE: %w", err)
	}
	// What the others would say, said here first.
	var chains [][]*x509.Certificate
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		o := x509.VerifyOptions{Roots: roots, Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{usage}}
		for _, der := range cert.Certificate[1:] {
			between, err := x509.ParseCertificate(der)
			if err != nil {
				return nil, fmt.Errorf("TLS_CERT_FILE: %w", err)
			}
			o.Intermediates.AddCert(between)
		}
		if chains, err = cert.Leaf.Verify(o); err != nil {
			return nil, fmt.Errorf("TLS_CERT_FILE: other services would refuse it, with the authorities of TLS_CA_FILE and both usages, server and client: %w", err)
		}
	}
	if name != "" {
		if err := cert.Leaf.VerifyHostname(name); err != nil {
			return nil, fmt.Errorf("TLS_CERT_FILE: want a certificate whose DNS names include %s: %w", name, err)
		}
	}
	return &material{cert, roots, until(chains)}, nil
}

// until returns when the last of the chains breaks.
func until(chains [][]*x509.Certificate) (end time.Time) {
	for _, chain := range chains {
		first := slices.MinFunc(chain, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) }).NotAfter
		if first.After(end) {
			end = first
		}
	}
	return end
}

// parseRoots reads authorities. Unlike x509.CertPool.AppendCertsFromPEM, it refuses a file of
// which it cannot read a part.
func parseRoots(text []byte) (*x509.CertPool, error) {
	pool, n := x509.NewCertPool(), 0
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			break
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", n+1, err)
		}
		pool.AddCert(cert)
		n++
	}
	if n == 0 {
		return nil, errors.New("it has no certificate: want PEM, which begins with -----BEGIN CERTIFICATE-----")
	}
	return pool, nil
}

// Listen returns l with TLS, for HTTP/2 and HTTP/1.1. A client may come without a certificate;
// httpserver.Serve refuses it everything but the pages of operators. A nil c returns l.
func (c *Credentials) Listen(l net.Listener) net.Listener {
	if c == nil {
		return l
	}
	return tls.NewListener(l, &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			m := c.files.get()
			return &tls.Config{
				MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{m.cert}, NextProtos: []string{"h2", "http/1.1"},
				ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: m.roots,
				// A resumed session would skip the check of the caller's certificate.
				SessionTicketsDisabled: true,
			}, nil
		},
	})
}

// Dialer returns a function that opens connections to peers with TLS, as
// http.Transport.DialTLSContext, for these protocols (ALPN). It returns only when the peer has
// proved its name: nothing is sent to an impostor. A nil c returns nil, with which a Transport
// checks https URLs against the system's authorities.
func (c *Credentials) Dialer(d *net.Dialer, protocols ...string) func(ctx context.Context, network, addr string) (net.Conn, error) {
	if c == nil {
		return nil
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := d.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		cfg := c.client(addr)
		cfg.NextProtos = protocols
		secure := tls.Client(conn, cfg)
		ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
		defer cancel()
		if err := secure.HandshakeContext(ctx); err != nil {
			_ = conn.Close() // nothing was sent
			return nil, fmt.Errorf("check the certificate of %s at %s: %w", cfg.ServerName, addr, err)
		}
		return secure, nil
	}
}

// client returns the configuration for one connection to a peer. Other addresses have to prove
// their host name.
func (c *Credentials) client(addr string) *tls.Config {
	name := c.names[addr]
	if name == "" {
		name, _, _ = net.SplitHostPort(addr) // an empty name matches no certificate
	}
	m := c.files.get()
	return &tls.Config{MinVersion: tls.VersionTLS13, ServerName: name, RootCAs: m.roots, Certificates: []tls.Certificate{m.cert}}
}

// Certificate returns the current certificate, to prove who this service is.
func (c *Credentials) Certificate() tls.Certificate { return c.files.get().cert }

// Roots returns the current authorities.
func (c *Credentials) Roots() *x509.CertPool { return c.files.get().roots }

// Collector returns the metrics of the certificate.
func (c *Credentials) Collector() prometheus.Collector { return collector{c} }

type collector struct{ c *Credentials }

var (
	untilDesc = prometheus.NewDesc("signalbox_tls_certificate_expiry_timestamp_seconds",
		"When the service's certificate, or an authority that it depends on, expires.", nil, nil)
	staleDesc = prometheus.NewDesc("signalbox_tls_files_refused",
		"Whether the files of the certificate cannot be used, so that the previous ones stay in use: 1 or 0.", nil, nil)
)

// Describe implements prometheus.Collector.
func (collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- untilDesc
	ch <- staleDesc
}

// Collect implements prometheus.Collector.
func (m collector) Collect(ch chan<- prometheus.Metric) {
	current, refused := m.c.files.state()
	stale := 0.0
	if refused != nil {
		stale = 1
	}
	ch <- prometheus.MustNewConstMetric(untilDesc, prometheus.GaugeValue, float64(current.until.Unix()))
	ch <- prometheus.MustNewConstMetric(staleDesc, prometheus.GaugeValue, stale)
}

// Roots are the authorities in a file, which is read again when it changes.
type Roots struct{ files *files[*x509.CertPool] }

// OpenRoots reads authorities from a PEM file.
func OpenRoots(file string, log *slog.Logger) (*Roots, error) {
	f, err := open([]string{file}, func(contents [][]byte) (*x509.CertPool, error) { return parseRoots(contents[0]) }, log)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return &Roots{f}, nil
}

// Pool returns the current authorities.
func (r *Roots) Pool() *x509.CertPool { return r.files.get() }

// files are some files that are parsed together.
type files[T any] struct {
	paths []string
	parse func(contents [][]byte) (T, error)
	log   *slog.Logger

	mu       sync.Mutex // guards what follows, and is held while the files are read
	checked  time.Time
	contents [][]byte
	value    T // of contents
	refused  error
}

func open[T any](paths []string, parse func([][]byte) (T, error), log *slog.Logger) (*files[T], error) {
	f := &files[T]{paths: paths, parse: parse, log: log, checked: time.Now()}
	contents, err := f.read()
	if err != nil {
		return nil, err
	}
	f.contents = contents
	f.value, err = parse(contents)
	return f, err
}

func (f *files[T]) read() (contents [][]byte, err error) {
	for _, path := range f.paths {
		b, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		contents = append(contents, b)
	}
	return contents, nil
}

// get returns what the files contain, or contained when they were last good.
func (f *files[T]) get() T {
	value, _ := f.state()
	return value
}

// state also returns why newer contents are not used.
func (f *files[T]) state() (value T, refused error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.checked) < recheck {
		return f.value, f.refused
	}
	f.checked = time.Now()
	contents, err := f.read()
	if err == nil && f.refused == nil && slices.EqualFunc(contents, f.contents, bytes.Equal) {
		return f.value, nil
	}
	if err == nil {
		value, err = f.parse(contents)
	}
	if err != nil {
		if f.refused == nil || f.refused.Error() != err.Error() {
			f.log.ErrorContext(context.Background(), "certificates not reloaded: the previous ones stay in use", "files", f.paths, "error", err)
		}
		f.refused = err
		return f.value, err
	}
	f.log.InfoContext(context.Background(), "certificates reloaded", "files", f.paths)
	f.contents, f.value, f.refused = contents, value, nil
	return value, nil
}
