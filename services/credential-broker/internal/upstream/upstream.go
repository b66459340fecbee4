// Package upstream is the HTTP client for providers: net/http's Transport with the
// settings that the egress needs, and stricter in three ways.
//
// A kept connection is checked before it is used again. One that the provider has closed
// meanwhile is not used, so that a POST is not lost to it. One on which the provider has
// sent more than its answer is not used either, also if that is buffered here already:
// otherwise it would pass for the answer to the next request, which is another caller's.
//
// A request is not sent again once any of it was sent, except GET and HEAD. An
// Idempotency-Key does not change that: net/http would repeat such a request.
//
// When the request's context ends, errors are its cause.
//
// HTTP/2 is not offered. With a connection for each stream, lost packets and closed
// connections affect one stream only, and cancelling a stream closes its connection, which
// no provider can overlook. No redirect is followed, no compression asked for, no proxy
// taken from the environment.
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

// ErrNotSent is in the chain of an error if no connection could be made, so that nothing
// of the request was sent.
var ErrNotSent = errors.New("no connection")

// Config says how connections are made. The zero value connects to any address.
type Config struct {
	// Control, if set, sees every address before it is dialled.
	Control func(network, address string, c syscall.RawConn) error
	// Dial takes the place of TCP.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// TLS is for https; nil trusts what the system trusts.
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
			// net/http goes on dialling for a request that was cancelled.
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			if asked, ok := ctx.Value(asking{}).(context.Context); ok {
				defer context.AfterFunc(asked, cancel)() //nolint:contextcheck // the same request's, with its end
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

// asking is the key of a request's own context.
type asking struct{}

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	// net/http would cut the host short and send the space.
	if uri := req.URL.RequestURI(); !isVisible(req.Host) || !isVisible(uri) {
		return nil, fmt.Errorf("%w: neither host nor URL may hold spaces or control characters", ErrNotSent)
	}
	h := maps.Clone(req.Header)
	if h == nil {
		h = http.Header{}
	}
	if _, ok := h["Accept-Encoding"]; !ok {
		h["Accept-Encoding"] = []string{"identity"} // without it any encoding would do
	}
	if _, ok := h["User-Agent"]; !ok {
		h["User-Agent"] = nil
	}
	// net/http repeats requests with these keys, and knows them in this spelling only.
	for _, name := range [...]string{"Idempotency-Key", "X-Idempotency-Key"} {
		if values, ok := h[name]; ok {
			delete(h, name)
			h[strings.ToLower(name)] = values
		}
	}
	ctx := req.Context()
	ctx = context.WithValue(ctx, asking{}, ctx)
	for {
		var used *conn
		var sent int64
		reused := false
		out := req.WithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) {
			var secure bool
			used, secure = unwrap(i.Conn)
			reused, sent = i.Reused, used.sent.Load()
			if reused && !used.clean(secure) {
				_ = used.Close() // the request fails before anything is written
			}
		}}))
		out.Header = h
		res, err := t.http.RoundTrip(out)
		switch {
		case err == nil:
			return wrapBody(ctx, res), nil
		case used == nil:
			return nil, fmt.Errorf("%w: %w", ErrNotSent, reason(ctx, err))
		case ctx.Err() != nil || !reused || used.sent.Load() != sent:
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, reason(ctx, err)
		}
		if req.Body != nil && req.Body != http.NoBody {
			if req.GetBody == nil {
				return nil, err
			}
			body, bodyErr := req.GetBody()
			if bodyErr != nil {
				return nil, bodyErr
			}
			again := *req
			again.Body = body
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

// reason is the cause of a context that has ended, else the error.
func reason(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// body is a response's body, whose errors are the context's cause once that has ended.
type body struct {
	io.ReadCloser
	ctx context.Context //nolint:containedctx // the request's, which lives as long as the body
}

func wrapBody(ctx context.Context, res *http.Response) *http.Response {
	switch {
	case res.StatusCode == http.StatusSwitchingProtocols:
		_ = res.Body.Close()
		res.Body = http.NoBody
	case res.Body != http.NoBody:
		res.Body = &body{res.Body, ctx}
	}
	return res
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = reason(b.ctx, err)
	}
	return n, err
}
