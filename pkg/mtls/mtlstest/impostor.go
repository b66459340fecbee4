package mtlstest

import (
	"bytes"
	"crypto/tls"
	"net"
	"sync"
	"testing"
	"time"
)

// Impostor is a server that stands where another one is expected, and keeps what it is told.
type Impostor struct {
	Addr string

	mu  sync.Mutex // guards got
	got bytes.Buffer
}

// NewImpostor starts an impostor with that certificate or, without one, without TLS. greet, which
// may be nil, speaks first, as the protocol demands.
func NewImpostor(t testing.TB, cert, key []byte, greet func(net.Conn)) *Impostor {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	i := &Impostor{Addr: l.Addr().String()}
	var cfg *tls.Config
	if cert != nil {
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			t.Fatal(err)
		}
		cfg = &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequestClientCert, NextProtos: []string{"h2", "http/1.1"}}
	}
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns.Go(func() { i.listen(c, cfg, greet) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		conns.Wait()
	})
	return i
}

func (i *Impostor) listen(c net.Conn, cfg *tls.Config, greet func(net.Conn)) {
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second)) // it fails only on a closed connection
	if greet != nil {
		greet(c)
	}
	if cfg != nil {
		c = tls.Server(c, cfg)
	}
	b := make([]byte, 4096)
	for {
		n, err := c.Read(b) // with TLS, what comes after the handshake
		i.mu.Lock()
		i.got.Write(b[:n])
		i.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// Got returns what clients have sent: after the handshake, if there is one.
func (i *Impostor) Got() []byte {
	i.mu.Lock()
	defer i.mu.Unlock()
	return bytes.Clone(i.got.Bytes())
}
