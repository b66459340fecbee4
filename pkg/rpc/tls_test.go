package rpc_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/httpserver"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/mtls"
	"signalbox.dev/pkg/mtls/mtlstest"
	"signalbox.dev/pkg/rpc"
	documentv1 "signalbox.dev/proto/signalbox/document/v1"
	"signalbox.dev/proto/signalbox/document/v1/documentv1connect"
)

var gatewayCertificate = mtlstest.Certificate{Names: []string{"gateway"}}

// caller returns a client of document-sync at addr with the gateway's certificate.
func caller(t *testing.T, key identity.Key, cfg mtls.Config, addr string) documentv1connect.DocumentServiceClient {
	t.Helper()
	secure, err := mtls.Open(cfg, "gateway", []mtls.Peer{{Setting: "DOCUMENT_SYNC_URL", Service: "document-sync", URL: "https://" + addr}}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	options, err := rpc.Client{Signer: identity.NewSigner("gateway", key), Audience: "document-sync"}.ClientOptions()
	if err != nil {
		t.Fatal(err)
	}
	c := rpc.NewHTTPClient(secure)
	t.Cleanup(c.CloseIdleConnections)
	return documentv1connect.NewDocumentServiceClient(c, "https://"+addr, options...)
}

// An impostor in the place of a service is refused, the error says why, and the impostor gets
// neither the signed context nor the call.
func TestImpostor(t *testing.T) {
	t.Parallel()
	ca, other := mtlstest.NewAuthority(t), mtlstest.NewAuthority(t)
	loopback := []net.IP{net.IPv4(127, 0, 0, 1)}
	key, err := identity.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		ca   *mtlstest.Authority // nil: no TLS
		cert mtlstest.Certificate
		want string
	}{
		{"of another authority", other, mtlstest.Certificate{Names: []string{"document-sync"}, IPs: loopback}, "certificate signed by unknown authority"},
		{"with the certificate of another service", ca, mtlstest.Certificate{Names: []string{"tool-executor"}, IPs: loopback}, "certificate is valid for tool-executor, not document-sync"},
		{"with an expired certificate", ca, mtlstest.Certificate{Names: []string{"document-sync"}, IPs: loopback, Expired: true}, "certificate has expired"},
		{"without TLS", nil, mtlstest.Certificate{}, "does not look like a TLS handshake"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var far *mtlstest.Impostor
			if tt.ca == nil {
				far = mtlstest.NewImpostor(t, nil, nil, func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n") })
			} else {
				cert, key := tt.ca.Sign(t, tt.cert)
				far = mtlstest.NewImpostor(t, cert, key, nil)
			}
			c := caller(t, key, ca.Files(t, t.TempDir(), gatewayCertificate), far.Addr)
			_, err := c.Get(as(t, person()), &documentv1.GetRequest{Id: "a-secret-id"})
			if fault.KindOf(err) != fault.Unavailable || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "document-sync") {
				t.Errorf("Get() = %v, want %v with %q", err, fault.Unavailable, tt.want)
			}
			got := string(far.Got())
			// Without TLS, the impostor sees the first message of the handshake, which names nobody.
			if tt.ca != nil && got != "" || strings.Contains(got, "secret") || strings.Contains(strings.ToLower(got), strings.ToLower(identity.Header)) {
				t.Errorf("the impostor got %q, want nothing", got)
			}
		})
	}
}

// secure is a document-sync behind TLS.
type secure struct {
	addr string
	dir  string
	key  identity.Key
}

func openSecure(t *testing.T, ca *mtlstest.Authority, handler documentv1connect.DocumentServiceHandler) *secure {
	t.Helper()
	s := &secure{dir: t.TempDir()}
	var err error
	if s.key, err = identity.NewKey(); err != nil {
		t.Fatal(err)
	}
	verifier, err := identity.NewVerifier("document-sync", map[string]string{"gateway": s.key.Public()})
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	own, err := mtls.Open(ca.Files(t, s.dir, mtlstest.Certificate{Names: []string{"document-sync"}}), "document-sync", nil, log)
	if err != nil {
		t.Fatal(err)
	}
	options, err := rpc.Server{Verifier: verifier, Log: log}.HandlerOptions()
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle(documentv1connect.NewDocumentServiceHandler(handler, options...))
	httpserver.Ops{}.Mount(mux)
	l, err := httpserver.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.addr = l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- httpserver.Serve(ctx, httpserver.Config{Listener: own.Listen(l), Handler: mux, Log: log})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve() = %v", err)
		}
	})
	return s
}

// Calls and streams use HTTP/2. A caller without a certificate of the authority gets no further
// than the pages of operators, whatever its signed context says.
func TestSecureService(t *testing.T) {
	t.Parallel()
	ca := mtlstest.NewAuthority(t)
	s := openSecure(t, ca, &documents{
		get: func(context.Context, *documentv1.GetRequest) (*documentv1.GetResponse, error) {
			return &documentv1.GetResponse{}, nil
		},
		subscribe: func(_ context.Context, send func(*documentv1.SubscribeResponse) error) error {
			for range 3 {
				if err := send(&documentv1.SubscribeResponse{}); err != nil {
					return err
				}
				time.Sleep(50 * time.Millisecond) //nolint:forbidigo // a stream that lasts
			}
			return nil
		},
	})
	own, err := mtls.Open(ca.Files(t, t.TempDir(), gatewayCertificate), "gateway", []mtls.Peer{{Service: "document-sync", URL: "https://" + s.addr}}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	known, stranger := rpc.NewHTTPClient(own), openStranger(t, ca)
	for _, tt := range []struct {
		client *http.Client
		path   string
		want   int
	}{
		{known, "/health", http.StatusOK},
		{stranger, "/health", http.StatusOK},
		{stranger, "/ready", http.StatusOK},
		{stranger, documentv1connect.DocumentServiceGetProcedure, http.StatusForbidden},
		{known, documentv1connect.DocumentServiceGetProcedure, http.StatusUnauthorized}, // no signed context
		{stranger, "/health/../" + documentv1connect.DocumentServiceGetProcedure, http.StatusForbidden},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+s.addr+tt.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(tt.path, "signalbox") {
			req.Method, req.Body = http.MethodPost, io.NopCloser(strings.NewReader("{}"))
			req.Header.Set("Content-Type", "application/json")
		}
		res, err := tt.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != tt.want || tt.client == known && res.ProtoMajor != 2 {
			t.Errorf("%s with %s = %d, want %d and HTTP/2", tt.path, res.Proto, res.StatusCode, tt.want)
		}
	}
	stream, err := caller(t, s.key, ca.Files(t, t.TempDir(), gatewayCertificate), s.addr).Subscribe(as(t, person()), &documentv1.SubscribeRequest{})
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for stream.Receive() {
		n++
	}
	if err := stream.Err(); err != nil || n != 3 {
		t.Errorf("the stream has %d messages and ends with %v, want 3 and nil", n, err)
	}
}

// openStranger returns a client that trusts the authority, and has no certificate of its own.
func openStranger(t *testing.T, ca *mtlstest.Authority) *http.Client {
	t.Helper()
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = mtlstest.ClientConfig(ca, "document-sync")
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// While calls run, the authority and all certificates are replaced in the usual three steps, and
// then a service that has missed the first step is left out. No call fails.
func TestRotation(t *testing.T) {
	t.Parallel()
	before, after := mtlstest.NewAuthority(t), mtlstest.NewAuthority(t)
	s := openSecure(t, before, &documents{get: func(context.Context, *documentv1.GetRequest) (*documentv1.GetResponse, error) {
		return &documentv1.GetResponse{}, nil
	}})
	dir := t.TempDir()
	cfg := before.Files(t, dir, gatewayCertificate)
	c := caller(t, s.key, cfg, s.addr)
	secured, err := mtls.Open(cfg, "gateway", []mtls.Peer{{Service: "document-sync", URL: "https://" + s.addr}}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	var (
		calls atomic.Int64
		stop  = make(chan struct{})
		wg    sync.WaitGroup
	)
	ctx := identity.With(t.Context(), person())
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := c.Get(ctx, &documentv1.GetRequest{}); err != nil {
					t.Errorf("Get() during the rotation: %v", err)
					return
				}
				// And one over a new connection each time.
				fresh := rpc.NewHTTPClient(secured)
				if res, err := fresh.Get("https://" + s.addr + "/health"); err != nil {
					t.Errorf("a new connection during the rotation: %v", err)
					return
				} else if err := res.Body.Close(); err != nil {
					t.Error(err)
				}
				fresh.CloseIdleConnections()
				calls.Add(1)
			}
		})
	}
	server := mtlstest.Certificate{Names: []string{"document-sync"}}
	time.Sleep(200 * time.Millisecond) //nolint:forbidigo // calls run before, between and after
	for _, step := range []func(){
		func() { before.Files(t, s.dir, server, after); before.Files(t, dir, gatewayCertificate, after) }, // both trusted
		func() { after.Files(t, s.dir, server, before) },                                                  // one by one
		func() { after.Files(t, dir, gatewayCertificate, before) },
		func() { after.Files(t, s.dir, server); after.Files(t, dir, gatewayCertificate) }, // the old one is gone
	} {
		step()
		n := calls.Load()
		time.Sleep(1200 * time.Millisecond) //nolint:forbidigo // files are read once a second
		if calls.Load() == n {
			t.Error("no calls were made in a step of the rotation")
		}
	}
	close(stop)
	wg.Wait()
	late := caller(t, s.key, before.Files(t, t.TempDir(), gatewayCertificate, after), s.addr)
	if _, err := late.Get(ctx, &documentv1.GetRequest{}); err == nil {
		t.Error("a certificate of the previous authority still works")
	}
}
