// Package upstream is the HTTP client for providers: net/http's Transport with the settings that
// the egress needs, and stricter in three ways.
//
// A kept connection is checked before it is used again. One that the provider has closed is not
// used, so that no POST is lost to it. Neither is one on which the provider sent more than its
// answer, even if that is buffered here: it would pass for the answer to the next request,
// which is another caller's.
//
// A request is not sent again once any of it was sent, except for GET and HEAD; net/http would
// also repeat one with an Idempotency-Key.
//
// When the request's context ends, errors are its cause.
//
// HTTP/2 is not offered. With a connection for each stream, lost packets and closed connections
// affect one stream only, and cancelling a stream closes its connection, which no provider can
// overlook. No redirect is followed, no compression asked for, and no proxy taken from the
// environment.
package upstream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"syscall"
	"time"
)

const (
	dialTimeout = 5 * time.Second
	tlsTimeout  = 5 * time.Second
	idleTimeout = 90 * time.Second
	idlePerHost = 256
	idleTotal   = 1024
	bufferSize  = 16 << 10
	maxHead     = 256 << 10 // bytes of a response's head
	tlsSessions = 256       // hosts whose last session is resumed
)

// ErrNotSent is wrapped if no connection could be made, so that nothing of the request was
// sent.
var ErrNotSent = errors.New("no connection")

// Config says how connections are made. The zero value connects to any address.
type Config struct {
	// Control, if set, is called with every address before it is dialled.
	Control func(network, address string, c syscall.RawConn) error
	// Dial replaces TCP.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// TLS is for https; nil trusts the system's roots.
	TLS *tls.Config
}

// Transport sends requests. It is safe for concurrent use.
type Transport struct{ http *http.Transport }

// New returns a Transport.
func New(cfg Config) *Transport {
	dial := cfg.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second, Control: cfg.Control}).DialContext
	}
	secure := &tls.Config{MinVersion: tls.VersionTLS12}
	if cfg.TLS != nil {
		secure = cfg.TLS.Clone()
	}
	if secure.ClientSessionCache == nil {
		secure.ClientSessionCache = tls.NewLRUClientSessionCache(tlsSessions)
	}
	only := new(http.Protocols)
	only.SetHTTP1(true)
	return &Transport{&http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			// net/http continues to dial for a request that was cancelled.
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			if caller, ok := ctx.Value(callerCtx{}).(context.Context); ok {
				defer context.AfterFunc(caller, cancel)() //nolint:contextcheck // the same request's, with its end
			}
			c, err := dial(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return newConn(c), nil
		},
		TLSClientConfig: secure, TLSHandshakeTimeout: tlsTimeout, Protocols: only,
		MaxIdleConns: idleTotal, MaxIdleConnsPerHost: idlePerHost, IdleConnTimeout: idleTimeout,
		DisableCompression: true, MaxResponseHeaderBytes: maxHead, ReadBufferSize: bufferSize, WriteBufferSize: bufferSize,
	}}
}

// callerCtx is the key of a request's own context.
type callerCtx struct{}

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	// net/http would truncate the host and send the space.
	if uri := req.URL.RequestURI(); !isVisible(req.Host) || !isVisible(uri) {
		return nil, fmt.Errorf("%w: host and URL must not contain spaces or control characters", ErrNotSent)
	}
	h := maps.Clone(req.Header)
	if h == nil {
		h = http.Header{}
	}
	if _, ok := h["Accept-Encoding"]; !ok {
		h["Accept-Encoding"] = []string{"identity"} // without it any encoding is allowed
	}
	if _, ok := h["User-Agent"]; !ok {
		h["User-Agent"] = nil
	}
	// net/http repeats requests with these keys, and recognises only this spelling.
	for _, name := range [...]string{"Idempotency-Key", "X-Idempotency-Key"} {
		if values, ok := h[name]; ok {
			delete(h, name)
			h[strings.ToLower(name)] = values
		}
	}
	ctx := req.Context()
	ctx = context.WithValue(ctx, callerCtx{}, ctx)
	for {
		var used *conn
		var sent int64
		reused := false
		out := req.WithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) {
			c, secure := i.Conn, false
			if over, ok := c.(*tls.Conn); ok {
				c, secure = over.NetConn(), true
			}
			used = c.(*conn)
			reused, sent = i.Reused, used.sent.Load()
			if reused && !used.clean(secure) {
				_ = used.Close() // the request fails before anything is written
			}
		}}))
		out.Header = h
		res, err := t.http.RoundTrip(out)
		switch {
		case err == nil && res.StatusCode == http.StatusSwitchingProtocols:
			_ = res.Body.Close()
			res.Body = http.NoBody
			return res, nil
		case err == nil:
			if res.Body != http.NoBody {
				res.Body = &body{res.Body, ctx}
			}
			return res, nil
		case used == nil:
			return nil, fmt.Errorf("%w: %w", ErrNotSent, reason(ctx, err))
		case ctx.Err() != nil || !reused || used.sent.Load() != sent:
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, reason(ctx, err)
		}
		// Nothing was sent over the reused connection.
		if req.Body != nil && req.Body != http.NoBody {
			if req.GetBody == nil {
				return nil, err
			}
			again := *req
			if again.Body, err = req.GetBody(); err != nil {
				return nil, err
			}
			req = &again
		}
	}
}

// CloseIdleConnections closes the connections that no request uses.
func (t *Transport) CloseIdleConnections() { t.http.CloseIdleConnections() }

// isVisible reports whether s is visible ASCII throughout.
func isVisible(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f })
}

// reason returns the cause of a context that has ended, or else the error.
func reason(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// body is a response's body. Once its context has ended, errors are the context's cause.
type body struct {
	io.ReadCloser
	ctx context.Context //nolint:containedctx // the request's, which lives as long as the body
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = reason(b.ctx, err)
	}
	return n, err
}
