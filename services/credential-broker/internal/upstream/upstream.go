// Package upstream is an HTTP/1.1 client for long answers: one request, one connection,
// one goroutine.
//
// The goroutine that asks writes the request, reads the answer's head and then its
// body, on the socket itself: nothing is handed to another goroutine on the way,
// which for the first byte of a stream takes longer than all the rest. Only a
// request too long for the sockets' buffers is written by a goroutine of its own,
// since its answer may come, and have to be read, before it is written; the end of
// the body waits for it. The answer's parsing is net/http's.
//
// HTTP/2 is not offered. On a connection of its own a stream is not held up by the
// loss of another's packet, does not end with everybody else's when a server closes
// a connection, and its cancellation closes the socket, which no provider can
// overlook.
//
// # Connections
//
// A connection belongs to one exchange from take until the body has been read to
// its end or was closed. Read to its end, and with nothing left over of what came, it
// goes back to the idle ones, the last used first in line, and is looked at before it
// is used again: one that the server has closed meanwhile, or said something on, is
// not. Everything else closes it. What was cancelled is
// closed by the context's own goroutine, whatever the exchange is waiting for.
package upstream

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync"
	"syscall"
	"time"

	"signalbox.dev/services/credential-broker/internal/sock"
)

const (
	dialTimeout = 5 * time.Second
	tlsTimeout  = 5 * time.Second
	idleTimeout = 90 * time.Second
	idlePerHost = 256
	idleTotal   = 1024
	readBuffer  = 16 << 10
	tlsSessions = 256 // hosts whose last session is resumed
)

// ErrNotSent is in the chain of errors before which nothing of a request was sent:
// there was no connection.
var ErrNotSent = errors.New("no connection")

// Config says how connections are made. The zero value dials whatever is asked for.
type Config struct {
	// Control, when set, sees every address before it is dialled.
	Control func(network, address string, c syscall.RawConn) error
	// Dial takes the place of TCP.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// TLS is for https; nil trusts what the system trusts.
	TLS *tls.Config
}

// Transport sends requests. It is safe for concurrent use. It follows no redirect,
// keeps no cookie, asks for no compression (it sends Accept-Encoding: identity), takes no
// proxy from the environment, and sends nothing twice that a server may have seen, but for
// GET and HEAD.
type Transport struct {
	dial  func(ctx context.Context, network, address string) (net.Conn, error)
	tls   *tls.Config
	heads sync.Pool // of *[]byte

	mu    sync.Mutex // guards idle, count, sweep
	idle  map[origin][]*conn
	count int
	sweep *time.Timer // nil while nothing is idle
}

// origin is where connections lead.
type origin struct{ scheme, address string }

// New returns a Transport.
func New(cfg Config) *Transport {
	t := &Transport{dial: cfg.Dial, idle: map[origin][]*conn{}, heads: sync.Pool{New: func() any { return new([]byte) }}}
	if t.dial == nil {
		t.dial = (&net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second, Control: cfg.Control}).DialContext
	}
	t.tls = &tls.Config{MinVersion: tls.VersionTLS12}
	if cfg.TLS != nil {
		t.tls = cfg.TLS.Clone()
	}
	t.tls.NextProtos = []string{"http/1.1"}
	if t.tls.ClientSessionCache == nil {
		t.tls.ClientSessionCache = tls.NewLRUClientSessionCache(tlsSessions)
	}
	return t
}

// RoundTrip implements http.RoundTripper. When the request's context ends, the
// error, also the body's, is the context's cause.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	o, err := originOf(req.URL)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	ctx := req.Context()
	c := t.take(o)
	for {
		if c == nil {
			if c, err = t.open(ctx, o); err != nil {
				return nil, fmt.Errorf("%w: %w", ErrNotSent, reason(ctx, err))
			}
		}
		res, err := c.exchange(req)
		if err == nil {
			return res, nil
		}
		if ctx.Err() != nil || !c.again(req) {
			return nil, reason(ctx, err)
		}
		// The server had closed it, and nothing came of the request. A fresh
		// connection says whether the server is there.
		if req.GetBody != nil {
			if req.Body, err = req.GetBody(); err != nil {
				return nil, err
			}
		}
		c = nil
	}
}

// reason is why something failed: the context's cause once that has ended.
func reason(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

func originOf(u *url.URL) (origin, error) {
	port := u.Port()
	switch u.Scheme {
	case "https":
		if port == "" {
			port = "443"
		}
	case "http":
		if port == "" {
			port = "80"
		}
	default:
		return origin{}, fmt.Errorf("the scheme %q is not http or https", u.Scheme)
	}
	return origin{u.Scheme, net.JoinHostPort(u.Hostname(), port)}, nil
}

// open dials.
func (t *Transport) open(ctx context.Context, o origin) (*conn, error) {
	plain, err := t.dial(ctx, "tcp", o.address)
	if err != nil {
		return nil, err
	}
	c := &conn{t: t, origin: o, socket: sock.Wrap(plain), unlimited: true}
	c.stream = c.socket
	if o.scheme == "https" {
		if err := c.shake(ctx); err != nil {
			c.abort()
			return nil, err
		}
	}
	c.in = bufio.NewReaderSize(c, readBuffer)
	return c, nil
}

// shake makes the connection a TLS one.
func (c *conn) shake(ctx context.Context) error {
	cfg := c.t.tls
	if cfg.ServerName == "" {
		cfg = cfg.Clone()
		cfg.ServerName, _, _ = net.SplitHostPort(c.origin.address)
	}
	c.under = &records{Conn: c.socket}
	secure := tls.Client(c.under, cfg)
	ctx, cancel := context.WithTimeout(ctx, tlsTimeout)
	defer cancel()
	if err := secure.HandshakeContext(ctx); err != nil {
		return fmt.Errorf("TLS handshake with %s: %w", c.origin.address, err)
	}
	c.stream = secure
	return nil
}

// take returns an idle connection that is good, or nil.
func (t *Transport) take(o origin) *conn {
	for {
		c := t.last(o)
		if c == nil {
			return nil
		}
		if time.Since(c.since) < idleTimeout && sock.Alive(c.socket) {
			c.reused = true
			return c
		}
		c.abort()
	}
}

// last takes the connection that was idle for the shortest time.
func (t *Transport) last(o origin) *conn {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := t.idle[o]
	if len(all) == 0 {
		return nil
	}
	c := all[len(all)-1]
	all[len(all)-1] = nil
	t.keep(o, all[:len(all)-1])
	t.count--
	return c
}

// keep sets the idle connections of an origin. The caller holds the mutex.
func (t *Transport) keep(o origin, all []*conn) {
	if len(all) == 0 {
		delete(t.idle, o)
		return
	}
	t.idle[o] = all
}

// put makes a connection idle, or closes it where there are enough.
func (t *Transport) put(c *conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.count >= idleTotal || len(t.idle[c.origin]) >= idlePerHost {
		c.abort()
		return
	}
	c.since = time.Now()
	t.idle[c.origin] = append(t.idle[c.origin], c)
	t.count++
	if t.sweep == nil {
		t.sweep = time.AfterFunc(idleTimeout, t.expire)
	}
}

// expire closes what was idle for too long. It runs on the timer's goroutine.
func (t *Transport) expire() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sweep == nil {
		return // CloseIdleConnections came first
	}
	for o, all := range t.idle {
		n := 0 // the first were put back first
		for n < len(all) && time.Since(all[n].since) >= idleTimeout {
			all[n].abort()
			n++
		}
		t.count -= n
		t.keep(o, append([]*conn(nil), all[n:]...))
	}
	t.sweep.Reset(idleTimeout)
	if t.count == 0 {
		t.sweep.Stop()
		t.sweep = nil
	}
}

// CloseIdleConnections closes the connections that nobody uses.
func (t *Transport) CloseIdleConnections() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, all := range t.idle {
		for _, c := range all {
			c.abort()
		}
	}
	clear(t.idle)
	t.count = 0
	if t.sweep != nil {
		t.sweep.Stop()
		t.sweep = nil
	}
}
