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

// keepAlive finds out within a minute that the machine at the other end is gone.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 10 * time.Second, Count: 3}

// opening returns what a guest's stream begins with. It is made of nothing that the
// client sent but what was asked for.
func (p *Proxy) opening(g auth.Principal, path string) (mux.OpenRequest, error) {
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

// dial opens a trunk to document-sync. It proves that a gateway asks, and for nobody: the
// ids are fresh.
func (p *Proxy) dial(ctx context.Context) (net.Conn, []byte, error) {
	signed, err := p.cfg.Signer.Sign(identity.Actor{Workspace: id.New[id.Workspace](), Member: id.New[id.Member](), Role: identity.Viewer}, audience)
	if err != nil {
		return nil, nil, err
	}
	conn, err := p.connect(ctx)
	if err != nil {
		return nil, nil, err
	}
	// It may still run when this has returned. It fails when the connection is gone, which
	// is as good.
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
	conn, err := d.DialContext(ctx, "tcp", hostPort(p.target))
	if err != nil || p.target.Scheme != "https" {
		return conn, err
	}
	secure := tls.Client(conn, &tls.Config{ServerName: p.target.Hostname(), NextProtos: []string{"http/1.1"}})
	if err := secure.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, err
	}
	return secure, nil
}

func hostPort(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = u.Scheme // net knows them by their names
	}
	return net.JoinHostPort(u.Hostname(), port)
}
