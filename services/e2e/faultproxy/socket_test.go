package faultproxy_test

import (
	"errors"
	"io"
	"net"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"signalbox.dev/services/e2e/faultproxy"
)

// These tests use real sockets, for the parts that the kernel does.

// between returns a proxy to a new listener.
func between(t *testing.T, from, network, at string) (*faultproxy.Proxy, net.Listener) {
	t.Helper()
	target, err := new(net.ListenConfig).Listen(t.Context(), network, at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { target.Close() })
	to := target.Addr().String()
	if network == "unix" {
		to = "unix:" + to
	}
	p, err := faultproxy.Listen(t.Context(), from, to)
	if err != nil {
		t.Fatalf("Listen(%q, %q) = %v", from, to, err)
	}
	t.Cleanup(func() { p.Close() })
	return p, target
}

func dial(t *testing.T, network, addr string) net.Conn {
	t.Helper()
	c, err := new(net.Dialer).DialContext(t.Context(), network, addr)
	if err != nil {
		t.Fatal(err)
	}
	bound(t, c)
	return c
}

func accept(t *testing.T, l net.Listener) net.Conn {
	t.Helper()
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	bound(t, c)
	return c
}

// bound sets a deadline, so that a failing test does not hang, and closes the connection.
func bound(t *testing.T, c net.Conn) {
	t.Helper()
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
}

func TestSockets(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, from, to string }{
		{"tcp to tcp", "tcp", "tcp"},
		{"tcp to unix", "tcp", "unix"},
		{"unix to tcp", "unix", "tcp"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			addr := map[string]string{"tcp": "127.0.0.1:0", "unix": filepath.Join(dir, "to")}
			from := "127.0.0.1:0"
			if tt.from == "unix" {
				from = "unix:" + filepath.Join(dir, "from")
			}
			p, target := between(t, from, tt.to, addr[tt.to])
			client := dial(t, tt.from, p.Addr())
			server := accept(t, target)
			say(t, client, "question")
			if err := client.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
				t.Fatal(err)
			}
			if got, err := io.ReadAll(server); err != nil || string(got) != "question" {
				t.Errorf("the target read %q, %v, want the question and its end", got, err)
			}
			// One direction is closed, the other is not.
			say(t, server, "answer")
			server.Close()
			if got, err := io.ReadAll(client); err != nil || string(got) != "answer" {
				t.Errorf("the client read %q, %v, want the answer and its end", got, err)
			}
		})
	}
}

func isReset(t *testing.T, c net.Conn) {
	t.Helper()
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("Read = %v, want %v", err, syscall.ECONNRESET)
	}
}

// resetAtOnce dials; the reset may be faster than the dial.
func resetAtOnce(t *testing.T, addr string) {
	t.Helper()
	c, err := new(net.Dialer).DialContext(t.Context(), "tcp", addr)
	if err == nil {
		bound(t, c)
		isReset(t, c)
	} else if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("Dial = %v, want %v", err, syscall.ECONNRESET)
	}
}

// speaking returns both ends of a connection that the proxy has joined.
func speaking(t *testing.T, p *faultproxy.Proxy, target net.Listener) (client, server net.Conn) {
	t.Helper()
	client, server = dial(t, "tcp", p.Addr()), accept(t, target)
	say(t, client, "hello")
	hear(t, server, "hello")
	return client, server
}

func TestReset(t *testing.T) {
	t.Parallel()
	p, target := between(t, "127.0.0.1:0", "tcp", "127.0.0.1:0")
	client, server := speaking(t, p, target)
	p.Reset()
	isReset(t, client)
	isReset(t, server)

	client, server = speaking(t, p, target)
	if err := p.Set(faultproxy.Fault{Reset: true}); err != nil {
		t.Fatal(err)
	}
	isReset(t, client)
	isReset(t, server)
	resetAtOnce(t, p.Addr())

	if err := p.Set(faultproxy.Fault{}); err != nil {
		t.Fatal(err)
	}
	client, server = speaking(t, p, target)
	// A reset of one end resets the other.
	if err := server.(*net.TCPConn).SetLinger(0); err != nil {
		t.Fatal(err)
	}
	server.Close()
	isReset(t, client)
}

func TestRefuse(t *testing.T) {
	t.Parallel()
	p, target := between(t, "127.0.0.1:0", "tcp", "127.0.0.1:0")
	addr := p.Addr()
	if err := p.Set(faultproxy.Fault{Refuse: true}); err != nil {
		t.Fatal(err)
	}
	if c, err := new(net.Dialer).DialContext(t.Context(), "tcp", addr); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("Dial = %v, %v, want %v", c, err, syscall.ECONNREFUSED)
	}
	if err := p.Set(faultproxy.Fault{}); err != nil {
		t.Fatal(err)
	}
	if got := p.Addr(); got != addr {
		t.Errorf("Addr() = %q after a refusal, want %q", got, addr)
	}
	speaking(t, p, target)
}

// TestNoTarget checks that an unreachable target looks like a reset connection.
func TestNoTarget(t *testing.T) {
	t.Parallel()
	p, target := between(t, "127.0.0.1:0", "tcp", "127.0.0.1:0")
	target.Close()
	resetAtOnce(t, p.Addr())
}

func TestClose(t *testing.T) {
	t.Parallel()
	p, target := between(t, "127.0.0.1:0", "tcp", "127.0.0.1:0")
	client, _ := speaking(t, p, target)
	p.Close()
	p.Close()
	if _, err := client.Read(make([]byte, 1)); err == nil {
		t.Error("a connection still works after Close")
	}
	if err := p.Set(faultproxy.Fault{}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Set after Close = %v, want %v", err, net.ErrClosed)
	}
	if got := p.Stats().Open; got != 0 {
		t.Errorf("%d connections are open after Close, want 0", got)
	}
}
