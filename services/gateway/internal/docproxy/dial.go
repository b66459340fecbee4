package docproxy

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha1" //nolint:gosec // RFC 6455 wants it
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"

	"signalbox.dev/pkg/identity"

	"signalbox.dev/services/gateway/internal/door"
)

// ExpiresHeader tells document-sync when the right to a socket ends, in seconds of
// Unix time. It is absent where it does not end by itself.
const ExpiresHeader = "Signalbox-Token-Expires"

// audience is document-sync's name in signed contexts.
const audience = "document-sync"

// dialTimeout bounds how long document-sync may take to answer an upgrade.
const dialTimeout = 5 * time.Second

// keepAlive finds out within a minute that the machine at the other end is gone.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 10 * time.Second, Count: 3}

// dial asks document-sync for a socket in a guest's name. rest is what it sent behind
// its answer.
func (p *Proxy) dial(ctx context.Context, g door.Guest, path string) (conn net.Conn, rest []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	req, err := p.request(ctx, g, path)
	if err != nil {
		return nil, nil, err
	}
	if conn, err = p.connect(ctx); err != nil {
		return nil, nil, away(err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) }) // fails when the connection is gone, which is as good
	rest, err = upgrade(conn, req)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		conn.Close()
		return nil, nil, away(err)
	}
	return conn, rest, nil
}

// request returns the request for an upgrade. It is made of nothing that the client sent.
func (p *Proxy) request(ctx context.Context, g door.Guest, path string) (*http.Request, error) {
	signed, err := p.cfg.Signer.Sign(g.Actor, audience)
	if err != nil {
		return nil, err
	}
	var nonce [16]byte
	rand.Read(nonce[:]) // never fails
	h := http.Header{
		"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "User-Agent": {"signalbox-gateway"},
		"Sec-Websocket-Version": {"13"}, "Sec-Websocket-Key": {base64.StdEncoding.EncodeToString(nonce[:])},
		identity.Header: {signed},
	}
	if !g.Expires.IsZero() {
		h.Set(ExpiresHeader, strconv.FormatInt(g.Expires.Unix(), 10))
	}
	otel.GetTextMapPropagator().Inject(ctx, propagation.HeaderCarrier(h))
	return &http.Request{
		Method: http.MethodGet, URL: p.target.JoinPath(path), Host: p.target.Host, Header: h, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}, nil
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

// upgrade makes a connection a WebSocket.
func upgrade(conn net.Conn, req *http.Request) (rest []byte, err error) {
	if err := req.Write(conn); err != nil {
		return nil, err
	}
	br := bufio.NewReader(conn)
	res, err := http.ReadResponse(br, req)
	if err != nil {
		return nil, err
	}
	res.Body.Close()
	if res.StatusCode != http.StatusSwitchingProtocols {
		return nil, fmt.Errorf("document-sync answers an upgrade with %s", res.Status)
	}
	if !strings.EqualFold(res.Header.Get("Upgrade"), "websocket") || res.Header.Get("Sec-Websocket-Accept") != accept(req.Header.Get("Sec-Websocket-Key")) {
		return nil, errors.New("document-sync's answer to an upgrade is not a WebSocket's")
	}
	rest, err = br.Peek(br.Buffered())
	return bytes.Clone(rest), err
}

// accept returns the answer to a Sec-WebSocket-Key (RFC 6455, section 4.2.2).
func accept(key string) string {
	sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11")) //nolint:gosec // as above
	return base64.StdEncoding.EncodeToString(sum[:])
}
