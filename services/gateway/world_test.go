package gateway_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/natsd"
	"signalbox.dev/pkg/natsd/natstest"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/pgtest"
	"signalbox.dev/pkg/rpc"
	"signalbox.dev/pkg/sse"
	"signalbox.dev/pkg/subject"
	"signalbox.dev/proto/signalbox/agent/v1/agentv1connect"
	"signalbox.dev/proto/signalbox/credential/v1/credentialv1connect"
	"signalbox.dev/proto/signalbox/document/v1/documentv1connect"
	"signalbox.dev/proto/signalbox/tool/v1/toolv1connect"

	"signalbox.dev/services/gateway"
)

const devSecret = conf.Secret("a development secret of 32 bytes")

// world is the environment of gateways: real NATS, real Postgres, and small fakes of the other
// services.
type world struct {
	nats   *natsd.Server
	pg     *pgtest.Database
	db     *pg.DB
	runner *fakeRunner
	docs   *fakeDocuments
	broker *fakeBroker
	sync   *fakeSync
	peers  string // URL of the fakes
	traced traced
	key    identity.Key
	keep   bool // gateways serve streams through net/http

	diskFull atomic.Bool // the result of Deps.DiskFull

	workspace id.Workspace
	owner     person
}

// traced records the trace headers of calls to the fakes.
type traced struct {
	mu  sync.Mutex // guards what follows
	all []string
}

func (tr *traced) add(parent string) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.all = append(tr.all, parent)
}

func (tr *traced) values() []string {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return slices.Clone(tr.all)
}

// person is a caller with a token.
type person struct {
	member    id.Member
	token     string
	workspace id.Workspace
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{nats: natstest.New(t), pg: pgtest.New(t, gateway.Migrations())}
	w.db = w.pg.Open(t, gateway.Migrations())
	var err error
	if w.key, err = identity.NewKey(); err != nil {
		t.Fatal(err)
	}
	w.runner = newFakeRunner(natstest.Bus(t, w.nats, subject.AgentRunner))
	t.Cleanup(w.runner.scripts.Wait)
	w.docs = newFakeDocuments()
	w.broker = newFakeBroker(t)
	w.sync = newFakeSync(t, w.key)
	w.peers = w.servePeers(t)
	w.workspace = id.New[id.Workspace]()
	w.owner = w.join(t, w.workspace, identity.Owner)
	return w
}

// withBothTransports runs a test with streams that are attached to the feed, and with streams
// that net/http serves.
func withBothTransports(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	for name, keep := range map[string]bool{"attached": false, "net-http": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.keep = keep
			test(t, w)
		})
	}
}

// servePeers serves the fakes like the real services.
func (w *world) servePeers(t *testing.T) string {
	t.Helper()
	mux := http.NewServeMux()
	options := func(audience string) rpc.Server {
		v, err := identity.NewVerifier(audience, map[string]string{gateway.Name: w.key.Public()})
		if err != nil {
			t.Fatal(err)
		}
		return rpc.Server{Verifier: v, Log: natstest.Log(t)}
	}
	runner, err1 := options("agent-runner").HandlerOptions()
	tools, err2 := options("tool-executor").HandlerOptions()
	docs, err3 := options("document-sync").HandlerOptions()
	broker, err4 := options("credential-broker").HandlerOptions()
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		t.Fatal(err)
	}
	mux.Handle(agentv1connect.NewConversationServiceHandler(w.runner, runner...))
	mux.Handle(agentv1connect.NewRunServiceHandler(w.runner, runner...))
	mux.Handle(agentv1connect.NewApprovalServiceHandler(fakeApprovals{w.runner}, runner...))
	mux.Handle(agentv1connect.NewModelServiceHandler(fakeModels{}, runner...))
	mux.Handle(agentv1connect.NewUsageServiceHandler(fakeUsage{}, runner...))
	mux.Handle(agentv1connect.NewAuditServiceHandler(fakeAudit{}, runner...))
	mux.Handle(agentv1connect.NewPresetServiceHandler(fakePresets{}, runner...))
	mux.Handle(toolv1connect.NewToolServiceHandler(fakeTools{}, tools...))
	mux.Handle(toolv1connect.NewMcpServiceHandler(&fakeMcp{}, tools...))
	mux.Handle(documentv1connect.NewDocumentServiceHandler(w.docs, docs...))
	mux.Handle(credentialv1connect.NewAccountServiceHandler(w.broker, broker...))
	mux.Handle(credentialv1connect.NewConnectionServiceHandler(w.broker, broker...))
	mux.Handle("/trunk", w.sync)
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.traced.add(r.Header.Get("Traceparent"))
		mux.ServeHTTP(rw, r)
	}))
	srv.Config.Protocols = new(http.Protocols)
	srv.Config.Protocols.SetUnencryptedHTTP2(true)
	srv.Config.Protocols.SetHTTP1(true) // sockets
	srv.Start()
	t.Cleanup(srv.Close)
	return srv.URL
}

// join makes a new person a member.
func (w *world) join(t testing.TB, ws id.Workspace, role identity.Role) person {
	t.Helper()
	m := id.New[id.Member]()
	if err := gateway.EnsureMember(t.Context(), w.db, ws, "Test", m, role); err != nil {
		t.Fatal(err)
	}
	return person{m, devToken(t, m, time.Hour), ws}
}

func devToken(t testing.TB, m id.Member, lifetime time.Duration) string {
	t.Helper()
	token, _, err := identity.DevToken(devSecret, m, lifetime)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// instance is one running gateway.
type instance struct {
	w    *world
	url  string
	ops  string
	bus  *bus.Bus
	stop func() // drains and waits for Run
	log  *lockedBuffer
	http *http.Client
}

func (w *world) gateway(t *testing.T, change ...func(*gateway.Config)) *instance {
	t.Helper()
	cfg := gateway.Config{
		NATSPartitions: partitions, AgentRunnerURL: w.peers, ToolExecutorURL: w.peers, DocumentSyncURL: w.peers, CredentialBrokerURL: w.peers,
		DevSecret: devSecret, MemberPerMinute: 100_000, MemberBurst: 10_000, WorkspacePerMinute: 100_000, WorkspaceBurst: 10_000,
		MemberStreams: 200, WorkspaceStreams: 500, MemberSockets: 200, WorkspaceSockets: 500, Sockets: 1000, DrainWindow: 50 * time.Millisecond, DrainLimit: 10 * time.Second, BodyTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second,
		Feed: gateway.FeedConfig{Silence: 150 * time.Millisecond, Pace: 200 * time.Millisecond, Idle: 500 * time.Millisecond, Recheck: 100 * time.Millisecond, KeepConnections: w.keep},
	}
	for _, c := range change {
		c(&cfg)
	}
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	public, err1 := net.Listen("tcp", "127.0.0.1:0")
	ops, err2 := net.Listen("tcp", "127.0.0.1:0")
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	calls := rpc.NewHTTPClient(nil)
	in := &instance{w: w, url: "http://" + public.Addr().String(), ops: "http://" + ops.Addr().String(), log: &lockedBuffer{}}
	in.bus = natstest.Bus(t, w.nats, subject.Gateway)
	s, err := gateway.New(cfg, gateway.Deps{
		Log: in.log.logger(), DB: w.db, Bus: in.bus, Signer: identity.NewSigner(gateway.Name, w.key), HTTP: calls,
		Public: public, Ops: ops, Registerer: reg, Gatherer: reg, DiskFull: w.diskFull.Load,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	in.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v, want nil after a drain", err)
		}
		calls.CloseIdleConnections()
	})
	in.http = &http.Client{Transport: &http.Transport{}}
	t.Cleanup(func() {
		in.stop()
		in.http.CloseIdleConnections()
		if t.Failed() {
			t.Logf("log of the gateway:\n%s", in.log)
		}
	})
	return in
}

// request returns a person's request; change may be nil.
func (in *instance) request(t testing.TB, p person, method, path, body string, change func(*http.Request)) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, in.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if p.token != "" {
		req.Header.Set("Authorization", "Bearer "+p.token)
	}
	if !id.IsZero(p.workspace) {
		req.Header.Set("X-Workspace-Id", p.workspace.String())
	}
	if change != nil {
		change(req)
	}
	return req
}

// answer is a complete response.
type answer struct {
	status int
	header http.Header
	body   string
	closed bool // the connection ended with it
}

func (in *instance) send(t testing.TB, req *http.Request) answer {
	t.Helper()
	res, err := in.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{res.StatusCode, res.Header, string(b), res.Close}
}

// call makes a request and decodes the answer's JSON. It fails unless the status is want.
func call[T any](t testing.TB, in *instance, p person, method, path, body string, want int, change ...func(*http.Request)) T {
	t.Helper()
	var first func(*http.Request)
	if len(change) > 0 {
		first = change[0]
	}
	got := in.send(t, in.request(t, p, method, path, body, first))
	var v T
	if got.status != want {
		t.Fatalf("%s %s = %d %s, want %d", method, path, got.status, got.body, want)
	}
	if err := json.Unmarshal([]byte(got.body), &v); err != nil {
		t.Fatalf("%s %s = %q: %v", method, path, got.body, err)
	}
	return v
}

type object = map[string]any

// newSession creates a session and returns its id.
func (in *instance) newSession(t testing.TB, p person) string {
	t.Helper()
	s, _ := call[map[string]object](t, in, p, "POST", "/api/sessions", "", http.StatusCreated)["session"]["id"].(string)
	return s
}

// event is one server-sent event.
type event struct{ name, data, id string }

// stream is an open stream of events.
type stream struct {
	header http.Header
	events chan event // closed at the end
	cancel context.CancelFunc

	mu  sync.Mutex // guards what follows
	raw bytes.Buffer
	err error // nil if the stream ended cleanly
}

// Write records the raw bytes.
func (s *stream) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.raw.Write(p)
}

func (s *stream) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.raw.String()
}

// open makes a request that answers with a stream.
func (in *instance) open(t testing.TB, p person, method, path, body string, change ...func(*http.Request)) *stream {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var first func(*http.Request)
	if len(change) > 0 {
		first = change[0]
	}
	req := in.request(t, p, method, path, body, first).WithContext(ctx)
	res, err := in.http.Do(req) //nolint:bodyclose // the stream closes it
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	if got := res.Header.Get("Content-Type"); res.StatusCode != http.StatusOK || got != "text/event-stream" {
		b, _ := io.ReadAll(res.Body)
		res.Body.Close()
		cancel()
		t.Fatalf("%s %s = %d %s %s, want a stream", method, path, res.StatusCode, got, b)
	}
	s := &stream{header: res.Header, events: make(chan event, 4096), cancel: cancel}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(s.events)
		defer res.Body.Close()
		r := sse.NewReader(io.TeeReader(res.Body, s), 64<<20)
		for {
			e, err := r.Next()
			if err != nil {
				s.mu.Lock()
				if !errors.Is(err, io.EOF) {
					s.err = err
				}
				s.mu.Unlock()
				return
			}
			s.events <- event{e.Type, string(e.Data), string(e.ID)}
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return s
}

const patience = time.Minute

// next returns the next event.
func (s *stream) next(t testing.TB) event {
	t.Helper()
	select {
	case e, ok := <-s.events:
		if !ok {
			s.mu.Lock()
			defer s.mu.Unlock()
			t.Fatalf("stream ended (%v) after:\n%s", s.err, &s.raw)
		}
		return e
	case <-time.After(patience):
		t.Fatalf("no event in %s after:\n%s", patience, s.text())
	}
	return event{}
}

// until returns the events up to and including the first one of the given type.
func (s *stream) until(t testing.TB, name string) []event {
	t.Helper()
	var all []event
	for {
		e := s.next(t)
		all = append(all, e)
		if e.name == name {
			return all
		}
	}
}

// ended waits for the end of the stream and returns its error, nil for a clean end.
func (s *stream) ended(t testing.TB) error {
	t.Helper()
	timeout := time.After(patience)
	for {
		select {
		case e, ok := <-s.events:
			if !ok {
				s.mu.Lock()
				defer s.mu.Unlock()
				return s.err
			}
			t.Logf("event before the end: %v", e)
		case <-timeout:
			t.Fatalf("stream did not end in %s; so far:\n%s", patience, s.text())
		}
	}
}

func ids(events []event) []string {
	out := make([]string, len(events))
	for i, e := range events {
		out[i] = e.name + " " + e.id
	}
	return out
}

// eventually waits for a state by polling.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not in %s: %s", patience, what)
		}
		<-time.After(2 * time.Millisecond)
	}
}
