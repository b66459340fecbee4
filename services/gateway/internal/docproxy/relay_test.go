package docproxy_test

import (
	"bufio"
	"context"
	"crypto/sha1"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/gorilla/websocket"
	"go.uber.org/goleak"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"

	"signalbox.dev/services/gateway/internal/docproxy"
	"signalbox.dev/services/gateway/internal/door"
	"signalbox.dev/services/gateway/internal/limit"
	"signalbox.dev/services/gateway/internal/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// everybody are members with an API key.
type everybody struct{}

func (everybody) Role(context.Context, id.Workspace, id.Member) (identity.Role, error) {
	return identity.Owner, nil
}

func (everybody) Holder(context.Context, conf.Secret) (store.Holder, bool, error) {
	return store.Holder{Key: store.KeyID{UUID: uuid.New()}, Workspace: id.New[id.Workspace](), Member: id.New[id.Member](), Role: identity.Editor}, true, nil
}

func (everybody) Ended(context.Context, []store.Grant) ([]store.Grant, error) { return nil, nil }

// serve runs a proxy in front of document-sync at a URL, over TLS or not.
func serve(t testing.TB, url string, secure bool) *httptest.Server {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	key, err := identity.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	much := limit.Rate{PerMinute: 1e9, Burst: 1e9}
	p, err := docproxy.New(docproxy.Config{
		Door:    door.New(door.Config{Members: everybody{}, Log: log, PerMember: much, PerWorkspace: much}),
		Streams: door.NewStreams(door.StreamsConfig{Grants: everybody{}, Log: log, PerMember: 1e6, PerWorkspace: 1e6}),
		Signer:  identity.NewSigner("gateway", key), URL: url, Log: log, Max: 1e6, Patience: 10 * time.Second, DrainWindow: time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /ws/documents/{id}", p.Document)
	srv := httptest.NewUnstartedServer(mux)
	if secure {
		srv.StartTLS()
	} else {
		srv.Start()
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(func() {
		srv.Close()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v", err)
		}
	})
	return srv
}

// peer is a document-sync that accepts every socket and does nothing with it.
type peer struct {
	l     net.Listener
	conns chan net.Conn // upgraded
	done  sync.WaitGroup
}

func newPeer(t testing.TB) *peer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &peer{l: l, conns: make(chan net.Conn, 2000)}
	p.done.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if err := greet(c); err != nil {
				c.Close()
				continue
			}
			p.conns <- c
		}
	})
	t.Cleanup(func() {
		l.Close()
		p.done.Wait()
	})
	return p
}

func (p *peer) url() string { return "http://" + p.l.Addr().String() }

// greet answers an upgrade.
func greet(c net.Conn) error {
	r, err := http.ReadRequest(bufio.NewReaderSize(c, 1024))
	if err != nil {
		return err
	}
	sum := sha1.Sum([]byte(r.Header.Get("Sec-Websocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	_, err = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: "+base64.StdEncoding.EncodeToString(sum[:])+"\r\n\r\n")
	return err
}

// knock opens a socket without a library, whose memory would be counted.
func knock(t testing.TB, addr string) net.Conn {
	t.Helper()
	c, err := new(net.Dialer).DialContext(context.Background(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.WriteString(c, "GET /ws/documents/0193a1b2-7c3d-7e4f-8a5b-6c7d8e9f0a1b HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nAuthorization: Bearer sb_x\r\n\r\n")
	if err != nil {
		t.Fatal(err)
	}
	var head []byte
	for b := make([]byte, 512); !strings.HasSuffix(string(head), "\r\n\r\n"); { // nothing follows by itself
		n, err := c.Read(b)
		if err != nil {
			t.Fatalf("open a socket: %v after %q", err, head)
		}
		head = append(head, b[:n]...)
	}
	if !strings.HasPrefix(string(head), "HTTP/1.1 101 ") {
		t.Fatalf("open a socket = %s", head)
	}
	return c
}

// memory returns what the process uses when it has cleaned up.
func memory() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // what pools held
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

// TestIdleMemory bounds what a socket costs that nothing goes through: both
// connections, both pumps and the count of it. What the two ends cost that are in
// this process, too, is taken off.
//
//nolint:paralleltest // others would be counted
func TestIdleMemory(t *testing.T) {
	const n, most = 1000, 15 << 10
	p := newPeer(t)
	srv := serve(t, p.url(), false)
	per := func(addr string, first []byte) int {
		var all []net.Conn
		closeAll := func() {
			for _, c := range all {
				c.Close()
			}
		}
		defer closeAll()
		before := memory()
		for range n {
			client := knock(t, addr)
			backend := <-p.conns
			all = append(all, client, backend)
			if len(first) > 0 { // both pumps have had something to do
				exchange(t, client, backend, first)
				exchange(t, backend, client, first)
			}
		}
		return (int(memory()) - int(before)) / n
	}
	per(srv.Listener.Addr().String(), nil) // what is made once
	ends := per(p.l.Addr().String(), nil)
	fresh := per(srv.Listener.Addr().String(), nil) - ends
	used := per(srv.Listener.Addr().String(), append([]byte{0x82, 100}, make([]byte, 100)...)) - ends
	t.Logf("an idle socket takes %d bytes, %d after a message each way (without its ends, %d)", fresh, used, ends)
	if fresh > most || used > most {
		t.Errorf("an idle socket takes %d bytes, %d after a message each way, want %d at most", fresh, used, most)
	}
}

func exchange(t testing.TB, from, to net.Conn, b []byte) {
	t.Helper()
	if _, err := from.Write(b); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(to, make([]byte, len(b))); err != nil {
		t.Fatal(err)
	}
}

// TestRelayOverTLS sees that connections which are more than a socket work, too.
func TestRelayOverTLS(t *testing.T) {
	t.Parallel()
	echo := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := new(websocket.Upgrader).Upgrade(w, r, nil)
		if err != nil {
			return
		}
		defer c.Close()
		for {
			kind, msg, err := c.ReadMessage()
			if err != nil {
				return
			}
			if string(msg) == "die" {
				return
			}
			if err := c.WriteMessage(kind, msg); err != nil {
				return
			}
		}
	}))
	defer echo.Close()
	srv := serve(t, echo.URL, true)
	roots := srv.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	dialer := websocket.Dialer{TLSClientConfig: &tls.Config{RootCAs: roots}}
	c, res, err := dialer.DialContext(t.Context(), "wss"+strings.TrimPrefix(srv.URL, "https")+"/ws/documents/"+uuid.NewString(), http.Header{"Authorization": {"Bearer sb_x"}})
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	defer c.Close()
	for _, n := range []int{1, 5000, 1 << 20} {
		msg := strings.Repeat("x", n)
		if err := c.WriteMessage(websocket.BinaryMessage, []byte(msg)); err != nil {
			t.Fatal(err)
		}
		if _, got, err := c.ReadMessage(); err != nil || string(got) != msg {
			t.Fatalf("%d bytes came back as %d, %v", n, len(got), err)
		}
	}
	if err := c.WriteMessage(websocket.BinaryMessage, []byte("die")); err != nil {
		t.Fatal(err)
	}
	_, _, err = c.ReadMessage()
	if e, ok := errors.AsType[*websocket.CloseError](err); !ok || e.Code != 1013 {
		t.Errorf("end = %v, want 1013", err)
	}
}

// BenchmarkRelay measures messages of 100 bytes: one there and back at a time, and
// one after the other down to the client; with the relay in between and without.
func BenchmarkRelay(b *testing.B) {
	p := newPeer(b)
	srv := serve(b, p.url(), false)
	msg := append([]byte{0x82, 100}, make([]byte, 100)...)
	for _, way := range []struct{ name, addr string }{{"relayed", srv.Listener.Addr().String()}, {"direct", p.l.Addr().String()}} {
		client := knock(b, way.addr)
		backend := <-p.conns
		defer client.Close()
		defer backend.Close()
		b.Run("there-and-back/"+way.name, func(b *testing.B) {
			b.ReportAllocs()
			var done sync.WaitGroup
			done.Go(func() {
				buf := make([]byte, len(msg))
				for range b.N {
					if _, err := io.ReadFull(backend, buf); err != nil {
						return
					}
					if _, err := backend.Write(buf); err != nil {
						return
					}
				}
			})
			buf := make([]byte, len(msg))
			for range b.N {
				if _, err := client.Write(msg); err != nil {
					b.Fatal(err)
				}
				if _, err := io.ReadFull(client, buf); err != nil {
					b.Fatal(err)
				}
			}
			done.Wait()
		})
		b.Run("down/"+way.name, func(b *testing.B) {
			b.ReportAllocs()
			var done sync.WaitGroup
			done.Go(func() {
				for range b.N {
					if _, err := backend.Write(msg); err != nil {
						return
					}
				}
			})
			if _, err := io.CopyN(io.Discard, client, int64(b.N*len(msg))); err != nil {
				b.Fatal(err)
			}
			done.Wait()
		})
	}
}
