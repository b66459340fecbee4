package docproxy_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/gorilla/websocket"
	"go.uber.org/goleak"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/mtls"
	"signalbox.dev/pkg/mtls/mtlstest"
	"signalbox.dev/pkg/mux"

	"signalbox.dev/services/gateway/internal/auth"
	"signalbox.dev/services/gateway/internal/docproxy"
	"signalbox.dev/services/gateway/internal/docproxy/editor"
	"signalbox.dev/services/gateway/internal/limit"
	"signalbox.dev/services/gateway/internal/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// everybody makes every caller a member with an API key.
type everybody struct{}

func (everybody) Role(context.Context, id.Workspace, id.Member) (identity.Role, error) {
	return identity.Owner, nil
}

func (everybody) Holder(context.Context, conf.Secret) (store.Holder, bool, error) {
	return store.Holder{Key: store.KeyID{UUID: uuid.New()}, Workspace: id.New[id.Workspace](), Member: id.New[id.Member](), Role: identity.Editor}, true, nil
}

func (everybody) Session(context.Context, conf.Secret) (store.BrowserSession, bool, error) {
	return store.BrowserSession{}, false, nil
}

func (everybody) UseLink(context.Context, conf.Secret) (id.Member, error) {
	return id.Member{}, fault.New(fault.Unauthenticated, "no links")
}

func (everybody) Ended(context.Context, []store.Grant) ([]store.Grant, error) { return nil, nil }

// serve runs a proxy in front of document-sync at a URL, over TLS or not, with credentials for
// document-sync.
func serve(t testing.TB, url string, secure bool, own *mtls.Credentials) *httptest.Server {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	key, err := identity.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	much := limit.Rate{PerMinute: 1e9, Burst: 1e9}
	p, err := docproxy.New(docproxy.Config{
		Authenticator: auth.New(auth.Config{Members: everybody{}, Log: log, PerMember: much, PerWorkspace: much}),
		Streams:       auth.NewStreams(auth.StreamsConfig{Grants: everybody{}, Log: log, PerMember: 1e6, PerWorkspace: 1e6}),
		Signer:        identity.NewSigner("gateway", key), URL: url, Secure: own, Log: log, Max: 1e6, WriteTimeout: 10 * time.Second, DrainWindow: time.Millisecond,
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

// peer is a document-sync that accepts every stream and is controlled by its test.
type peer struct {
	*httptest.Server
	mux     mux.Server
	streams chan *mux.ServerStream
	got     chan []byte
}

func newPeer(t testing.TB, own *mtls.Credentials) *peer {
	t.Helper()
	p := &peer{streams: make(chan *mux.ServerStream, 3000), got: make(chan []byte, 1000)}
	p.mux.Accept = func(s *mux.ServerStream, _ mux.OpenRequest) mux.Session {
		p.streams <- s
		return &peerStream{p: p, stream: s}
	}
	p.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, first, err := mux.Hijack(w, r)
		if err == nil {
			_ = p.mux.Serve(conn, first) // returns when the gateway closes the connection
		}
	}))
	p.Listener = own.Listen(p.Listener)
	p.Start()
	t.Cleanup(func() {
		p.mux.Close(time.After(10 * time.Second))
		p.Close()
	})
	return p
}

// peerStream is a stream at the peer.
type peerStream struct {
	p      *peer
	stream *mux.ServerStream
	whole  []byte
}

func (*peerStream) Begin()             {}
func (*peerStream) Stop()              {}
func (*peerStream) Closed(int, string) {}

func (g *peerStream) Receive(part []byte, more bool) {
	if g.whole = append(g.whole, part...); !more {
		g.p.got <- g.whole
		g.whole = nil
	}
}

// dialRaw opens a socket without a library, whose memory would be counted.
func dialRaw(t testing.TB, addr string) net.Conn {
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
	for b := make([]byte, 512); !strings.HasSuffix(string(head), "\r\n\r\n"); { // nothing follows unasked
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

// memory returns the live memory of the process after garbage collection.
func memory() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // frees the pools too
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

// TestIdleMemory bounds the memory of an idle socket: its connection, its goroutine, its stream at
// both ends and its entry in the counts. The cost of the client's end, which is in this process
// too, is subtracted.
//
//nolint:paralleltest // other tests would be counted
func TestIdleMemory(t *testing.T) {
	const n, most = 1000, 9 << 10
	p := newPeer(t, nil)
	srv := serve(t, p.URL, false, nil)
	msg := append([]byte{0x82, 100}, make([]byte, 100)...)
	per := func(talk bool) int {
		var all []net.Conn
		defer func() {
			for _, c := range all {
				c.Close()
			}
		}()
		before := memory()
		for range n {
			client := dialRaw(t, srv.Listener.Addr().String())
			stream := <-p.streams
			all = append(all, client)
			if talk {
				masked := append([]byte{0x82, 0x80 | 100, 0, 0, 0, 0}, make([]byte, 100)...)
				if _, err := client.Write(masked); err != nil {
					t.Fatal(err)
				}
				<-p.got
				if err := stream.Send(msg); err != nil {
					t.Fatal(err)
				}
				if _, err := io.ReadFull(client, make([]byte, len(msg))); err != nil {
					t.Fatal(err)
				}
			}
		}
		return (int(memory()) - int(before)) / n
	}
	per(false) // allocations that happen once
	fresh, used := per(false), per(true)
	t.Logf("an idle socket takes %d bytes, %d after a message each way", fresh, used)
	if fresh > most || used > most {
		t.Errorf("an idle socket takes %d bytes, %d after a message each way, want %d at most", fresh, used, most)
	}
}

// TestOverTLS checks that connections other than plain sockets work too: a client's with TLS, and
// the one to document-sync with the certificates of both.
func TestOverTLS(t *testing.T) {
	t.Parallel()
	ca := mtlstest.NewAuthority(t)
	credentials := func(name string, peers ...mtls.Peer) *mtls.Credentials {
		t.Helper()
		own, err := mtls.Open(ca.Files(t, t.TempDir(), mtlstest.Certificate{Names: []string{name}}), name, peers, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		return own
	}
	p := newPeer(t, credentials("document-sync"))
	url := "https" + strings.TrimPrefix(p.URL, "http")
	srv := serve(t, url, true, credentials("gateway", mtls.Peer{Setting: "DOCUMENT_SYNC_URL", Service: "document-sync", URL: url}))
	roots := srv.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	dialer := websocket.Dialer{TLSClientConfig: &tls.Config{RootCAs: roots}}
	c, res, err := dialer.DialContext(t.Context(), "wss"+strings.TrimPrefix(srv.URL, "https")+"/ws/documents/"+uuid.NewString(), http.Header{"Authorization": {"Bearer sb_x"}})
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	defer c.Close()
	var stream *mux.ServerStream
	select {
	case stream = <-p.streams:
	case <-time.After(30 * time.Second):
		t.Fatal("no stream to document-sync was opened")
	}
	for _, n := range []int{1, 5000, 1 << 20} {
		msg := strings.Repeat("x", n)
		if err := c.WriteMessage(websocket.BinaryMessage, []byte(msg)); err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(editor.Message(<-p.got)); err != nil {
			t.Fatal(err)
		}
		if _, got, err := c.ReadMessage(); err != nil || string(got) != msg {
			t.Fatalf("%d bytes came back as %d, %v", n, len(got), err)
		}
	}
	stream.Close(1013, "enough")
	_, _, err = c.ReadMessage()
	if e, ok := errors.AsType[*websocket.CloseError](err); !ok || e.Code != 1013 {
		t.Errorf("end = %v, want 1013", err)
	}
}

// BenchmarkDeliver measures the delivery of messages of 100 bytes to 200 clients of one gateway,
// from the sender's call to the clients' sockets. The clients read only as much as their sockets'
// buffers require.
func BenchmarkDeliver(b *testing.B) {
	const n = 200
	p := newPeer(b, nil)
	srv := serve(b, p.URL, false, nil)
	msg := append([]byte{0x82, 100}, make([]byte, 100)...)
	var streams []*mux.ServerStream
	var clients []net.Conn
	for range n {
		c := dialRaw(b, srv.Listener.Addr().String())
		defer c.Close()
		clients, streams = append(clients, c), append(streams, <-p.streams)
	}
	buf := make([]byte, 64<<10)
	for b.Loop() {
		shared := bytes.Clone(msg)
		for _, s := range streams {
			if err := s.Send(shared); err != nil {
				b.Fatal(err)
			}
		}
		for _, c := range clients {
			if _, err := io.ReadFull(c, buf[:len(msg)]); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/delivery")
}
