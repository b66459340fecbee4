// Package netguard sends HTTP requests to URLs that somebody else chose: a workspace, a model, or
// a server's redirect. Without a guard, such a URL could reach into the operator's network.
//
// The guard checks the address of each connection after name resolution, just before it is
// made (Guard.Control), so that neither the spelling of an address nor a DNS record that
// changes between check and use matters. Allowed are public unicast addresses on the ports 80
// and 443, and the operator's own exceptions (ParseAllowed).
//
// Transport adds what net/http leaves open: no proxy from the environment, limits on the size
// of heads and bodies and on the time to the first byte. Client adds rules for redirects.
package netguard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"
)

// ErrRefused is in the chain of each error for a URL, address or redirect that is not allowed.
var ErrRefused = errors.New("not allowed")

// ErrTooLarge is in the chain of the error when an answer's body exceeds Config.MaxBody.
var ErrTooLarge = errors.New("the answer is too large")

const (
	dialTimeout  = 5 * time.Second
	tlsTimeout   = 5 * time.Second
	idleTimeout  = 30 * time.Second
	maxHead      = 64 << 10
	maxRedirects = 3
	maxURL       = 4096
)

// Config says what a Guard allows. The zero value allows public addresses only.
type Config struct {
	// Allowed are the operator's private targets.
	Allowed []Allowed
	// MaxBody bounds an answer's body after decompression; 4 MiB when 0.
	MaxBody int64
	// HeaderTimeout bounds the time to an answer's head; 30 seconds when 0.
	HeaderTimeout time.Duration
	// Resolver looks up names; nil uses the system's.
	Resolver *net.Resolver
}

// Guard makes connections to allowed addresses only. It is safe for concurrent use.
type Guard struct {
	cfg       Config
	ports     []uint16 // of public addresses
	transport *http.Transport
}

// New returns a Guard.
func New(cfg Config) *Guard {
	if cfg.MaxBody == 0 {
		cfg.MaxBody = 4 << 20
	}
	if cfg.HeaderTimeout == 0 {
		cfg.HeaderTimeout = 30 * time.Second
	}
	g := &Guard{cfg: cfg, ports: []uint16{80, 443}}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	g.transport = &http.Transport{
		Proxy: nil, DialContext: g.DialContext, Protocols: protocols,
		TLSHandshakeTimeout: tlsTimeout, ResponseHeaderTimeout: cfg.HeaderTimeout, IdleConnTimeout: idleTimeout,
		MaxIdleConnsPerHost: 4, MaxIdleConns: 64, MaxResponseHeaderBytes: maxHead,
	}
	return g
}

// CheckURL refuses a URL that no request may be sent to, whatever its name resolves to. Its
// errors wrap ErrRefused and are written for the person who gave the URL.
func (g *Guard) CheckURL(u *url.URL) error {
	host := u.Hostname()
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return refused("the URL must begin with https: or http:")
	case u.User != nil:
		return refused("the URL must hold no user or password")
	case u.Opaque != "" || host == "":
		return refused("the URL has no host: use https://host/path")
	case len(u.String()) > maxURL:
		return refused("the URL is longer than %d bytes", maxURL)
	case strings.ContainsAny(host, "%"):
		return refused("the URL's host must hold no zone and no %%")
	}
	port, err := portOf(u)
	if err != nil {
		return err
	}
	a, err := netip.ParseAddr(host)
	if err != nil {
		if strings.ContainsFunc(host, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
			return refused("the URL's host must be ASCII: write a name in other letters as xn--…")
		}
		if !slices.Contains(g.ports, port) && !g.allowsPort(host, port) {
			return refused("the URL's port must be 80 or 443")
		}
		return nil
	}
	return g.check(netip.AddrPortFrom(a, port))
}

// allowsPort reports whether an exception may allow a host's port: what the name resolves to is
// checked when it is dialled.
func (g *Guard) allowsPort(host string, port uint16) bool {
	for _, x := range g.cfg.Allowed {
		if (x.port == 0 || x.port == port) && (x.host == "" || x.host == canonical(host)) {
			return true
		}
	}
	return false
}

// MayBePrivate reports whether a URL may lead to one of the operator's private targets. A name
// counts as soon as there is a target that it could resolve to.
func (g *Guard) MayBePrivate(u *url.URL) bool {
	a, err := netip.ParseAddr(u.Hostname())
	if err == nil {
		return !IsPublic(a)
	}
	port, err := portOf(u)
	return err != nil || g.allowsPort(u.Hostname(), port)
}

func portOf(u *url.URL) (uint16, error) {
	text := u.Port()
	if text == "" {
		text = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	port, err := parsePort(text)
	if err != nil {
		return 0, refused("the URL's port must be a number from 1 to 65535")
	}
	return port, nil
}

// Control is a net.Dialer's Control hook: it sees each address after name resolution, before
// the connection is made.
func (g *Guard) Control(_, address string, _ syscall.RawConn) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return refused("%s is not an address and a port", address)
	}
	return g.check(ap)
}

func (g *Guard) check(ap netip.AddrPort) error {
	a := Unwrap(ap.Addr())
	for _, x := range g.cfg.Allowed {
		if x.host == "" && a.Zone() == "" && x.prefix.Contains(a) && (x.port == 0 || x.port == ap.Port()) {
			return nil
		}
	}
	if !IsPublic(a) {
		return refused("%s is not a public address", ap.Addr())
	}
	if !slices.Contains(g.ports, ap.Port()) {
		return refused("the port of %s is not 80 or 443", ap)
	}
	return nil
}

// DialContext connects to host:port over TCP if the address is allowed.
func (g *Guard) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	if network != "tcp" && network != "tcp4" && network != "tcp6" {
		return nil, refused("the network %s", network)
	}
	d := net.Dialer{Timeout: dialTimeout, Resolver: g.cfg.Resolver, Control: g.Control}
	if g.allowsName(address) {
		d.Control = notMetadata
	}
	return d.DialContext(ctx, network, address)
}

// allowsName reports whether the operator has allowed host:port by name, which means whatever
// the name resolves to.
func (g *Guard) allowsName(address string) bool {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	port, err := parsePort(text)
	if err != nil {
		return false
	}
	for _, x := range g.cfg.Allowed {
		if x.host != "" && x.host == canonical(host) && x.port == port {
			return true
		}
	}
	return false
}

func notMetadata(_, address string, _ syscall.RawConn) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil || IsMetadata(ap.Addr()) {
		return refused("%s is a metadata or link-local address", address)
	}
	return nil
}

// Transport returns the guarded transport. It follows no redirects.
func (g *Guard) Transport() http.RoundTripper { return &transport{g} }

type transport struct{ guard *Guard }

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := t.guard.CheckURL(req.URL); err != nil {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, err
	}
	res, err := t.guard.transport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	limit := t.guard.cfg.MaxBody
	if res.ContentLength > limit {
		_ = res.Body.Close()
		return nil, fmt.Errorf("%w: %d bytes, at most %d are read", ErrTooLarge, res.ContentLength, limit)
	}
	if _, upgraded := res.Body.(io.Writer); !upgraded {
		res.Body = &limitedBody{res.Body, limit}
	}
	return res, nil
}

// CloseIdleConnections is called by http.Client.CloseIdleConnections.
func (t *transport) CloseIdleConnections() { t.guard.transport.CloseIdleConnections() }

// limitedBody fails when more than left bytes are read.
type limitedBody struct {
	io.ReadCloser

	left int64
}

// Read implements io.Reader.
func (b *limitedBody) Read(p []byte) (int, error) {
	if b.left < 0 {
		return 0, ErrTooLarge
	}
	// One byte more than is left, to tell a body of exactly the limit from a longer one.
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left+1)])
	if b.left -= int64(n); b.left < 0 {
		return n - 1, ErrTooLarge
	}
	return n, err
}

// Client returns a client over Transport. It follows at most three redirects, each of which
// is checked like the first URL:
//
//   - to another host, only headers without a secret go along (see harmless), and no body
//   - from https to http, none is followed by a request that carries more than those headers
//
// timeout bounds a request with the reading of its answer; 0 leaves that to the context.
func (g *Guard) Client(timeout time.Duration) *http.Client {
	return &http.Client{Transport: g.Transport(), CheckRedirect: CheckRedirect, Timeout: timeout}
}

// CheckRedirect is an http.Client's hook with the rules of Guard.Client.
func CheckRedirect(req *http.Request, via []*http.Request) error {
	if len(via) > maxRedirects {
		return refused("the server redirects more than %d times", maxRedirects)
	}
	elsewhere, downgrade := false, false
	for i, v := range via {
		next := req.URL
		if i+1 < len(via) {
			next = via[i+1].URL
		}
		elsewhere = elsewhere || !sameOrigin(v.URL, next)
		downgrade = downgrade || v.URL.Scheme == "https" && next.Scheme != "https"
	}
	if downgrade && carriesSecrets(via[0].Header) {
		return refused("the server redirects from https to %s, which would show the credentials to the network", req.URL.Scheme)
	}
	if !elsewhere {
		return nil
	}
	if req.Body != nil && req.Body != http.NoBody {
		return refused("the server redirects to %s, which would send it the request's body", req.URL.Host)
	}
	for name := range req.Header {
		if !harmless(name) {
			req.Header.Del(name)
		}
	}
	return nil
}

// sameOrigin treats an upgrade from http to https on the default ports as the same origin.
func sameOrigin(a, b *url.URL) bool {
	if canonical(a.Hostname()) != canonical(b.Hostname()) {
		return false
	}
	pa, err1 := portOf(a)
	pb, err2 := portOf(b)
	if err1 != nil || err2 != nil {
		return false
	}
	return pa == pb || a.Port() == "" && b.Port() == ""
}

func carriesSecrets(h http.Header) bool {
	for name := range h {
		if !harmless(name) {
			return true
		}
	}
	return false
}

// harmless reports whether a header may go to a host that the caller did not name.
func harmless(name string) bool {
	switch http.CanonicalHeaderKey(name) {
	case "Accept", "Accept-Encoding", "Accept-Language", "Cache-Control", "Content-Type", "If-Modified-Since", "If-None-Match", "Range", "User-Agent":
		return true
	}
	return false
}

func refused(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrRefused, fmt.Sprintf(format, args...))
}
