package proxy

import (
	"net"
	"net/http"
	"syscall"
	"time"
)

const (
	dialTimeout  = 5 * time.Second
	tlsTimeout   = 5 * time.Second
	maxHeaders   = 256 << 10
	streamWindow = 256 << 10 // HTTP/2 bytes in flight per stream: what a slow reader can make us hold
)

// NewTransport returns the transport to providers: HTTP/2 where TLS offers it,
// pooled connections, no proxy from the environment, no compression asked for.
// Redirects and cookies are a matter of clients and not of transports: there are
// none. control, when set, sees every address before it is dialled.
func NewTransport(control func(network, address string, c syscall.RawConn) error) *http.Transport {
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second, Control: control}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	return &http.Transport{
		Proxy:                  nil,
		DialContext:            dialer.DialContext,
		Protocols:              protocols,
		TLSHandshakeTimeout:    tlsTimeout,
		DisableCompression:     true,
		MaxIdleConns:           1024,
		MaxIdleConnsPerHost:    256,
		IdleConnTimeout:        90 * time.Second,
		MaxResponseHeaderBytes: maxHeaders,
		ReadBufferSize:         16 << 10,
		WriteBufferSize:        16 << 10,
		HTTP2: &http.HTTP2Config{
			MaxReceiveBufferPerStream: streamWindow,
			SendPingTimeout:           15 * time.Second,
			PingTimeout:               10 * time.Second,
		},
	}
}
