package rpc_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/httpserver"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/rpc"
	documentv1 "signalbox.dev/proto/signalbox/document/v1"
	"signalbox.dev/proto/signalbox/document/v1/documentv1connect"
)

// documents is a service whose methods each test sets.
type documents struct {
	documentv1connect.UnimplementedDocumentServiceHandler
	get       func(ctx context.Context, req *documentv1.GetRequest) (*documentv1.GetResponse, error)
	subscribe func(ctx context.Context, send func(*documentv1.SubscribeResponse) error) error
}

func (d *documents) Get(ctx context.Context, req *documentv1.GetRequest) (*documentv1.GetResponse, error) {
	return d.get(ctx, req)
}

func (d *documents) Subscribe(ctx context.Context, _ *documentv1.SubscribeRequest, stream *connect.ServerStream[documentv1.SubscribeResponse]) error {
	return d.subscribe(ctx, stream.Send)
}

// logs collects what a service logs.
type logs struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// house is a service behind a real listener, with the keys of its callers.
type house struct {
	url  string
	logs *logs
	key  identity.Key
	// stop closes the listener and its connections.
	stop func()
}

func open(t *testing.T, handler documentv1connect.DocumentServiceHandler) *house {
	t.Helper()
	key, err := identity.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	verifier, err := identity.NewVerifier("document-sync", map[string]string{"gateway": key.Public()})
	if err != nil {
		t.Fatal(err)
	}
	h := &house{logs: &logs{}, key: key}
	log := slog.New(slog.NewTextHandler(h.logs, nil))
	options, err := rpc.Server{Verifier: verifier, Log: log}.HandlerOptions()
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle(documentv1connect.NewDocumentServiceHandler(handler, options...))
	l, err := httpserver.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- httpserver.Serve(ctx, httpserver.Config{Listener: l, Handler: mux, Log: log}) }()
	h.url = "http://" + l.Addr().String()
	h.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve = %v", err)
		}
	})
	t.Cleanup(h.stop)
	return h
}

func (h *house) client(t *testing.T, key identity.Key) documentv1connect.DocumentServiceClient {
	t.Helper()
	options, err := rpc.Client{Signer: identity.NewSigner("gateway", key), Audience: "document-sync"}.ClientOptions()
	if err != nil {
		t.Fatal(err)
	}
	c := rpc.NewHTTPClient(nil)
	t.Cleanup(c.CloseIdleConnections)
	return documentv1connect.NewDocumentServiceClient(c, h.url, options...)
}

func person() identity.Actor {
	return identity.Actor{Workspace: id.New[id.Workspace](), Member: id.New[id.Member](), Role: identity.Editor}
}

func as(t *testing.T, a identity.Actor) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(identity.With(t.Context(), a), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestActorIsPassedOn(t *testing.T) {
	t.Parallel()
	var got identity.Actor
	h := open(t, &documents{get: func(ctx context.Context, _ *documentv1.GetRequest) (*documentv1.GetResponse, error) {
		got, _ = identity.From(ctx)
		return &documentv1.GetResponse{Document: &documentv1.Document{Name: "a"}}, nil
	}})
	want := person()
	want.Run, want.Session = id.New[id.Run](), id.New[id.Session]()
	res, err := h.client(t, h.key).Get(as(t, want), &documentv1.GetRequest{Id: "1"})
	if err != nil || res.GetDocument().GetName() != "a" {
		t.Fatalf("Get = %v, %v", res, err)
	}
	want.Service = "gateway"
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("actor (-want +got):\n%s", d)
	}
}

func TestCallWithoutIdentity(t *testing.T) {
	t.Parallel()
	var requests atomic.Int32
	far := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requests.Add(1) }))
	defer far.Close()
	h := &house{url: far.URL}
	key, err := identity.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	c := h.client(t, key)
	if _, err := c.Get(t.Context(), &documentv1.GetRequest{}); err == nil || !strings.Contains(err.Error(), "no identity") {
		t.Errorf("Get = %v, want an error that says the identity is missing", err)
	}
	if stream, err := c.Subscribe(t.Context(), &documentv1.SubscribeRequest{}); err == nil || !strings.Contains(err.Error(), "no identity") {
		t.Errorf("Subscribe = %v, %v, want an error that says the identity is missing", stream, err)
	}
	if n := requests.Load(); n != 0 {
		t.Errorf("%d requests left the process, want none", n)
	}
}

// A call signed with a wrong key reaches no handler, and the error does not blame the person's
// token.
func TestUntrustedCaller(t *testing.T) {
	t.Parallel()
	h := open(t, &documents{
		get: func(context.Context, *documentv1.GetRequest) (*documentv1.GetResponse, error) {
			t.Error("the handler was reached")
			return nil, errors.New("reached")
		},
		subscribe: func(context.Context, func(*documentv1.SubscribeResponse) error) error {
			t.Error("the handler was reached")
			return nil
		},
	})
	stranger, err := identity.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	c := h.client(t, stranger)
	if _, err := c.Get(as(t, person()), &documentv1.GetRequest{}); err == nil || fault.KindOf(err) != fault.Internal {
		t.Errorf("Get = %v, want an internal error", err)
	}
	if err := drain(c.Subscribe(as(t, person()), &documentv1.SubscribeRequest{})); err == nil || fault.KindOf(err) != fault.Internal {
		t.Errorf("Subscribe = %v, want an internal error", err)
	}
	if got := h.logs.String(); strings.Count(got, "call refused") != 2 || !strings.Contains(got, documentv1connect.DocumentServiceGetProcedure) {
		t.Errorf("logs = %s, want both refusals with their procedures", got)
	}

	// Without a context the message is not decoded.
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, h.url+documentv1connect.DocumentServiceGetProcedure, strings.NewReader("no protobuf"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/proto")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusUnauthorized {
		t.Errorf("a call without a context = %d, want 401", res.StatusCode)
	}
}

// drain reads a stream to its end and returns its error.
func drain(s *connect.ServerStreamForClient[documentv1.SubscribeResponse], err error) error {
	if err != nil {
		return err
	}
	defer s.Close()
	for s.Receive() {
		_ = s.Msg()
	}
	return s.Err()
}

func TestFaultsArePassedOn(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		in   error
		want *fault.Error
	}{
		{"not found", fault.New(fault.NotFound, "no document %s", "d1"), &fault.Error{Kind: fault.NotFound, Message: "no document d1"}},
		{"with a code", fault.Coded(fault.Conflict, "STALE", "reload"), &fault.Error{Kind: fault.Conflict, Code: "STALE", Message: "reload"}},
		{"with a delay", &fault.Error{Kind: fault.Limited, Message: "wait", RetryAfter: 1500 * time.Millisecond}, &fault.Error{Kind: fault.Limited, Message: "wait", RetryAfter: 1500 * time.Millisecond}},
		{"too large", fault.New(fault.TooLarge, "over 10 MiB"), &fault.Error{Kind: fault.TooLarge, Message: "over 10 MiB"}},
		{"forbidden", fault.New(fault.Forbidden, "for owners"), &fault.Error{Kind: fault.Forbidden, Message: "for owners"}},
		{"unavailable", fault.Wrap(errors.New("dial 10.0.0.7"), fault.Unavailable, "the database is away"), &fault.Error{Kind: fault.Unavailable, Message: "the database is away"}},
		{"wrapped", fmt.Errorf("store: %w", fault.New(fault.Invalid, "name is empty")), &fault.Error{Kind: fault.Invalid, Message: "name is empty"}},
		{"a deadline inside", context.DeadlineExceeded, &fault.Error{Kind: fault.Deadline, Message: "the request took too long"}},
		{"unclassified", errors.New("password=hunter2"), &fault.Error{Kind: fault.Internal, Message: "internal error"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := open(t, &documents{
				get: func(context.Context, *documentv1.GetRequest) (*documentv1.GetResponse, error) { return nil, tt.in },
				subscribe: func(_ context.Context, send func(*documentv1.SubscribeResponse) error) error {
					return errors.Join(send(&documentv1.SubscribeResponse{}), tt.in)
				},
			})
			c := h.client(t, h.key)
			_, unary := c.Get(as(t, person()), &documentv1.GetRequest{})
			stream := drain(c.Subscribe(as(t, person()), &documentv1.SubscribeRequest{}))
			for door, err := range map[string]error{"Get": unary, "Subscribe": stream} {
				got, ok := errors.AsType[*fault.Error](err)
				if !ok {
					t.Errorf("%s = %v, want a fault", door, err)
					continue
				}
				if d := cmp.Diff(tt.want, got, cmpopts.IgnoreFields(fault.Error{}, "Err")); d != "" {
					t.Errorf("%s (-want +got):\n%s", door, d)
				}
				if strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "10.0.0.7") {
					t.Errorf("%s = %v: internals travelled", door, err)
				}
			}
			logged := strings.Contains(h.logs.String(), tt.in.Error())
			if want := tt.want.Kind == fault.Internal || tt.want.Kind == fault.Unavailable; logged != want && tt.want.Kind != fault.Deadline {
				t.Errorf("logged = %v, want %v: %s", logged, want, h.logs)
			}
		})
	}
}

func TestPanic(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	h := open(t, &documents{
		get: func(context.Context, *documentv1.GetRequest) (*documentv1.GetResponse, error) {
			if calls.Add(1) == 1 {
				panic("index out of range")
			}
			return &documentv1.GetResponse{}, nil
		},
		subscribe: func(context.Context, func(*documentv1.SubscribeResponse) error) error { panic("nil map") },
	})
	c := h.client(t, h.key)
	if _, err := c.Get(as(t, person()), &documentv1.GetRequest{}); fault.KindOf(err) != fault.Internal || strings.Contains(err.Error(), "range") {
		t.Errorf("Get = %v, want an internal error that tells nothing", err)
	}
	if err := drain(c.Subscribe(as(t, person()), &documentv1.SubscribeRequest{})); fault.KindOf(err) != fault.Internal || strings.Contains(err.Error(), "map") {
		t.Errorf("Subscribe = %v, want an internal error that tells nothing", err)
	}
	got := h.logs.String()
	for _, want := range []string{"index out of range", "nil map", "rpc_test.go"} {
		if strings.Count(got, want) == 0 {
			t.Errorf("logs lack %q: %s", want, got)
		}
	}
	if n := strings.Count(got, "level=ERROR"); n != 2 {
		t.Errorf("%d errors logged, want one for each panic: %s", n, got)
	}
	if _, err := c.Get(as(t, person()), &documentv1.GetRequest{}); err != nil {
		t.Errorf("Get after a panic = %v", err)
	}
}

func TestCallIsBounded(t *testing.T) {
	t.Parallel()
	deadline := make(chan time.Duration, 2)
	h := open(t, &documents{get: func(ctx context.Context, _ *documentv1.GetRequest) (*documentv1.GetResponse, error) {
		d, _ := ctx.Deadline()
		deadline <- time.Until(d)
		return &documentv1.GetResponse{}, nil
	}})
	c := h.client(t, h.key)
	if _, err := c.Get(identity.With(t.Context(), person()), &documentv1.GetRequest{}); err != nil {
		t.Fatal(err)
	}
	if d := <-deadline; d <= 0 || d > 15*time.Second {
		t.Errorf("a call without a deadline has %v, want up to 15 s", d)
	}
	ctx, cancel := context.WithTimeout(identity.With(t.Context(), person()), 40*time.Second)
	defer cancel()
	if _, err := c.Get(ctx, &documentv1.GetRequest{}); err != nil {
		t.Fatal(err)
	}
	if d := <-deadline; d < 30*time.Second {
		t.Errorf("a call with 40 s has %v", d)
	}
}

func TestCallerIsGone(t *testing.T) {
	t.Parallel()
	entered := make(chan struct{}, 1)
	left := make(chan struct{}, 1)
	h := open(t, &documents{
		get: func(ctx context.Context, _ *documentv1.GetRequest) (*documentv1.GetResponse, error) {
			entered <- struct{}{}
			<-ctx.Done()
			left <- struct{}{}
			return nil, fmt.Errorf("query: %w", ctx.Err())
		},
		subscribe: func(ctx context.Context, send func(*documentv1.SubscribeResponse) error) error {
			defer func() { left <- struct{}{} }()
			if err := send(&documentv1.SubscribeResponse{}); err != nil {
				return err
			}
			entered <- struct{}{}
			<-ctx.Done()
			for { // a handler that ignores its context notices it by writing
				if err := send(&documentv1.SubscribeResponse{}); err != nil {
					return fmt.Errorf("send: %w", err)
				}
			}
		},
	})
	c := h.client(t, h.key)
	for name, call := range map[string]func(context.Context) error{
		"Get": func(ctx context.Context) error {
			_, err := c.Get(ctx, &documentv1.GetRequest{})
			return err
		},
		"Subscribe": func(ctx context.Context) error {
			return drain(c.Subscribe(ctx, &documentv1.SubscribeRequest{}))
		},
	} {
		ctx, cancel := context.WithCancel(as(t, person()))
		answer := make(chan error, 1)
		go func() { answer <- call(ctx) }()
		<-entered
		cancel()
		if err := <-answer; fault.KindOf(err) != fault.Cancelled {
			t.Errorf("%s = %v, want a cancelled fault", name, err)
		}
		<-left
	}

	ctx, cancel := context.WithTimeout(as(t, person()), 50*time.Millisecond)
	defer cancel()
	if _, err := c.Get(ctx, &documentv1.GetRequest{}); fault.KindOf(err) != fault.Deadline {
		t.Errorf("Get past its deadline = %v, want a deadline fault", err)
	}
	select {
	case <-entered:
		<-left
	default: // the deadline passed before the call arrived
	}
	h.stop()
	if got := h.logs.String(); strings.Contains(got, "level=ERROR") {
		t.Errorf("a caller that leaves is logged as an error: %s", got)
	}
}

func TestServiceIsDown(t *testing.T) {
	t.Parallel()
	entered := make(chan struct{}, 1)
	hang := func(ctx context.Context) error {
		entered <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}
	for _, name := range []string{"Get", "Subscribe"} {
		h := open(t, &documents{
			get: func(ctx context.Context, _ *documentv1.GetRequest) (*documentv1.GetResponse, error) {
				return nil, hang(ctx)
			},
			subscribe: func(ctx context.Context, send func(*documentv1.SubscribeResponse) error) error {
				return errors.Join(send(&documentv1.SubscribeResponse{}), hang(ctx))
			},
		})
		c := h.client(t, h.key)
		call := func() error {
			if name == "Get" {
				_, err := c.Get(as(t, person()), &documentv1.GetRequest{})
				return err
			}
			return drain(c.Subscribe(as(t, person()), &documentv1.SubscribeRequest{}))
		}
		answer := make(chan error, 1)
		go func() { answer <- call() }()
		<-entered
		h.stop() // dies in the middle of the call
		if err := <-answer; fault.KindOf(err) != fault.Unavailable {
			t.Errorf("%s of a service that dies = %v, want an unavailable fault", name, err)
		}
		if err := call(); fault.KindOf(err) != fault.Unavailable {
			t.Errorf("%s of a service that is not there = %v, want an unavailable fault", name, err)
		}
	}
}

func TestStreamEnds(t *testing.T) {
	t.Parallel()
	h := open(t, &documents{subscribe: func(_ context.Context, send func(*documentv1.SubscribeResponse) error) error {
		for range 3 {
			if err := send(&documentv1.SubscribeResponse{Kind: documentv1.SubscribeResponse_KIND_CHANGED}); err != nil {
				return err
			}
		}
		return nil
	}})
	stream, err := h.client(t, h.key).Subscribe(as(t, person()), &documentv1.SubscribeRequest{})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	n := 0
	for stream.Receive() {
		n++
	}
	if n != 3 || stream.Err() != nil {
		t.Errorf("%d messages, then %v, want 3 and a clean end", n, stream.Err())
	}
}

func TestMessageBounds(t *testing.T) {
	t.Parallel()
	huge := strings.Repeat("x", rpc.MaxMessage+1)
	h := open(t, &documents{get: func(context.Context, *documentv1.GetRequest) (*documentv1.GetResponse, error) {
		return &documentv1.GetResponse{Document: &documentv1.Document{Name: huge}}, nil
	}})
	c := h.client(t, h.key)
	if _, err := c.Get(as(t, person()), &documentv1.GetRequest{Id: huge}); fault.KindOf(err) != fault.TooLarge {
		t.Errorf("a request over the limit = %v, want a too-large fault", err)
	}
	if _, err := c.Get(as(t, person()), &documentv1.GetRequest{}); fault.KindOf(err) != fault.TooLarge {
		t.Errorf("an answer over the limit = %v, want a too-large fault", err)
	}
}

// Calls use HTTP/2, and do not follow redirects. TestCallsSpreadOverReplicas is about their connections.
func TestHTTPClient(t *testing.T) {
	t.Parallel()
	var elsewhere atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	defer other.Close()
	requests := make(chan string, 10)
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	far := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests <- r.Proto
		if r.URL.Path == "/redirect" {
			http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
		}
	}))
	far.Config.Protocols = protocols
	far.Start()
	defer far.Close()

	c := rpc.NewHTTPClient(nil)
	defer c.CloseIdleConnections()
	for i, path := range []string{"/", "/redirect", "/"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, far.URL+path, strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		res, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, res.Body)
		res.Body.Close()
		if path == "/redirect" && res.StatusCode != http.StatusTemporaryRedirect {
			t.Errorf("redirect = %d, want it as it is", res.StatusCode)
		}
		if proto := <-requests; proto != "HTTP/2.0" {
			t.Errorf("request %d = %s, want HTTP/2", i, proto)
		}
	}
	if n := elsewhere.Load(); n != 0 {
		t.Errorf("a redirect was followed %d times", n)
	}
}

func BenchmarkCall(b *testing.B) {
	b.ReportAllocs()
	key, err := identity.NewKey()
	if err != nil {
		b.Fatal(err)
	}
	verifier, err := identity.NewVerifier("document-sync", map[string]string{"gateway": key.Public()})
	if err != nil {
		b.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	handlerOptions, err := rpc.Server{Verifier: verifier, Log: log}.HandlerOptions()
	if err != nil {
		b.Fatal(err)
	}
	clientOptions, err := rpc.Client{Signer: identity.NewSigner("gateway", key), Audience: "document-sync"}.ClientOptions()
	if err != nil {
		b.Fatal(err)
	}
	res := &documentv1.GetResponse{Document: &documentv1.Document{Id: id.New[id.Document]().String(), Name: strings.Repeat("plan of the quarter ", 50)}}
	_, handler := documentv1connect.NewDocumentServiceHandler(&documents{get: func(context.Context, *documentv1.GetRequest) (*documentv1.GetResponse, error) {
		return res, nil
	}}, handlerOptions...)
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	far := httptest.NewUnstartedServer(handler)
	far.Config.Protocols = protocols
	far.Start()
	defer far.Close()
	httpClient := rpc.NewHTTPClient(nil)
	defer httpClient.CloseIdleConnections()
	client := documentv1connect.NewDocumentServiceClient(httpClient, far.URL, clientOptions...)
	ctx := identity.With(b.Context(), person())
	for b.Loop() {
		if _, err := client.Get(ctx, &documentv1.GetRequest{Id: "1"}); err != nil {
			b.Fatal(err)
		}
	}
}
