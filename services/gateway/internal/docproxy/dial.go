package docproxy

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/url"
	"time"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/mux"

	"signalbox.dev/services/gateway/internal/auth"
)

// audience is document-sync's name in signed contexts.
const audience = "document-sync"

// keepAlive detects within a minute that the remote machine is gone.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 10 * time.Second, Count: 3}

// openRequest returns the request that opens a caller's stream. Only the path comes from the
// client.
func (p *Proxy) openRequest(g auth.Principal, path string) (mux.OpenRequest, error) {
	signed, err := p.cfg.Signer.Sign(g.Actor, audience)
	if err != nil {
		return mux.OpenRequest{}, err
	}
	o := mux.OpenRequest{Path: path, Context: signed}
	if !g.Expires.IsZero() {
		o.Expires = g.Expires.Unix()
	}
	return o, nil
}

// dial opens a multiplexed connection to document-sync. Its identity proves that a gateway is
// calling, but no member: the ids are random.
func (p *Proxy) dial(ctx context.Context) (net.Conn, []byte, error) {
	signed, err := p.cfg.Signer.Sign(identity.Actor{Workspace: id.New[id.Workspace](), Member: id.New[id.Member](), Role: identity.Viewer}, audience)
	if err != nil {
		return nil, nil, err
	}
	conn, err := p.connect(ctx)
	if err != nil {
		return nil, nil, err
	}
	// It may still run after dial has returned, and fails if the connection is closed.
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	first, err := mux.Upgrade(conn, &http.Request{
		Method: http.MethodGet, URL: p.target.JoinPath("trunk"), Host: p.target.Host, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"User-Agent": {"signalbox-gateway"}, identity.Header: {signed}},
	})
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	return conn, first, nil
}

// connect opens a connection to document-sync.
func (p *Proxy) connect(ctx context.Context) (net.Conn, error) {
	d := &net.Dialer{KeepAliveConfig: keepAlive}
	dial := d.DialContext
	if p.target.Scheme == "https" {
		dial = p.cfg.Secure.Dialer(d, "http/1.1")
		if dial == nil { // the system's authorities
			dial = (&tls.Dialer{NetDialer: d, Config: &tls.Config{NextProtos: []string{"http/1.1"}}}).DialContext
		}
	}
	return dial(ctx, "tcp", hostPort(p.target))
}

func hostPort(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return net.JoinHostPort(u.Hostname(), port)
}
