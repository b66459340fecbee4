package httpserver_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"signalbox.dev/pkg/httpserver"
)

const writeWait = 300 * time.Millisecond

func TestBoundWritesCutsWhoDoesNotRead(t *testing.T) {
	t.Parallel()
	left := make(chan error, 1)
	much := make([]byte, 32<<20) // more than the sockets hold
	s := serve(t, httpserver.BoundWrites(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, err := w.Write(much)
		left <- err
	}), writeWait), time.Second)
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	select {
	case err := <-left:
		if err == nil {
			t.Error("Write to nobody = nil, want an error")
		}
	case <-time.After(10 * time.Second):
		t.Error("Write to nobody did not return")
	}
}

// TestBoundWritesLetsTheRestBe sees that nothing else is cut: a slow reader, a
// handler that has nothing to say for a while, and the connection's next request.
func TestBoundWritesLetsTheRestBe(t *testing.T) {
	t.Parallel()
	for proto, http2 := range bothProtocols {
		t.Run(proto, func(t *testing.T) {
			t.Parallel()
			s := serve(t, httpserver.BoundWrites(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch r.URL.Path {
				case "/pauses":
					for range 2 {
						_, _ = io.WriteString(w, "x")
						if err := http.NewResponseController(w).Flush(); err != nil {
							t.Errorf("Flush = %v", err)
						}
						<-time.After(2 * writeWait)
					}
				case "/much":
					_, _ = w.Write(make([]byte, 8<<20))
				}
			}), writeWait), time.Second)
			c := client(t, http2)
			for _, tt := range []struct {
				path string
				want int
			}{{"/pauses", 2}, {"/nothing", 0}, {"/much", 8 << 20}, {"/nothing", 0}} {
				if got, err := fetch(t, c, s.url+tt.path); err != nil || len(got) != tt.want {
					t.Errorf("GET %s = %d bytes, %v, want %d", tt.path, len(got), err, tt.want)
				}
			}
			<-time.After(2 * writeWait)
			if n, err := slowly(t.Context(), c, s.url+"/much"); err != nil || n != 8<<20 {
				t.Errorf("slow reader got %d bytes, %v, want all", n, err)
			}
		})
	}
}

// slowly reads with pauses, in all longer than one write may take.
func slowly(ctx context.Context, c *http.Client, url string) (n int, err error) {
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
		m, err := r.Discard(256 << 10)
		n += m
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
		<-time.After(writeWait / 10)
	}
}
