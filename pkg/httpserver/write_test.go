package httpserver_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"signalbox.dev/pkg/httpserver"
)

func TestBoundWritesCutsStalledReaders(t *testing.T) {
	t.Parallel()
	left := make(chan error, 1)
	much := make([]byte, 32<<20) // more than the sockets hold
	s := serve(t, httpserver.BoundWrites(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, err := w.Write(much)
		left <- err
	}), 300*time.Millisecond), time.Second)
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	select {
	case err := <-left:
		if err == nil {
			t.Error("Write to a stalled reader = nil, want an error")
		}
	case <-time.After(10 * time.Second):
		t.Error("Write to a stalled reader did not return")
	}
}

// Nothing else is cut: a slow reader, a handler with pauses, and the connection's next request.
func TestBoundWritesCutsNothingElse(t *testing.T) {
	t.Parallel()
	const wait = 10 * time.Second
	for proto, http2 := range bothProtocols {
		t.Run(proto, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := pipedClient(t, http2, httpserver.BoundWrites(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					switch r.URL.Path {
					case "/pauses":
						for range 2 {
							_, _ = io.WriteString(w, "x")
							if err := http.NewResponseController(w).Flush(); err != nil {
								t.Errorf("Flush = %v", err)
							}
							<-time.After(2 * wait)
						}
					case "/much":
						_, _ = w.Write(make([]byte, 8<<20))
					}
				}), wait))
				for _, tt := range []struct {
					path string
					want int
				}{{"/pauses", 2}, {"/nothing", 0}, {"/much", 8 << 20}, {"/nothing", 0}} {
					if got, err := fetch(t, c, "http://piped"+tt.path); err != nil || len(got) != tt.want {
						t.Errorf("GET %s = %d bytes, %v, want %d", tt.path, len(got), err, tt.want)
					}
				}
				<-time.After(2 * wait)
				if n, err := slowly(t.Context(), c, "http://piped/much", wait/3); err != nil || n != 8<<20 {
					t.Errorf("slow reader got %d bytes, %v, want all", n, err)
				}
			})
		})
	}
}

// slowly reads 64 KiB at a time, with pauses between.
func slowly(ctx context.Context, c *http.Client, url string, pause time.Duration) (n int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	res, err := c.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	r := bufio.NewReader(res.Body)
	for {
		m, err := r.Discard(64 << 10)
		n += m
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
		<-time.After(pause)
	}
}

// pipedClient returns a client of a server that serves h over pipes in memory, for tests with a
// fake clock.
func pipedClient(t *testing.T, http2 bool, h http.Handler) *http.Client {
	t.Helper()
	l := pipes{make(chan net.Conn), make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- httpserver.Serve(ctx, httpserver.Config{Listener: l, Handler: h, Log: slog.New(slog.DiscardHandler), Drain: time.Second})
	}()
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!http2)
	protocols.SetUnencryptedHTTP2(http2)
	transport := &http.Transport{Protocols: protocols, DialContext: func(context.Context, string, string) (net.Conn, error) {
		here, there := net.Pipe()
		l.conns <- there
		return here, nil
	}}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve() = %v", err)
		}
	})
	return &http.Client{Transport: transport}
}

// pipes is a listener for pipes.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

// Accept implements net.Listener.
func (p pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (p pipes) Close() error {
	close(p.closed)
	return nil
}

// Addr implements net.Listener.
func (pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }
