package proxy_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/services/credential-broker/internal/pool"
	"signalbox.dev/services/credential-broker/internal/profile"
	"signalbox.dev/services/credential-broker/internal/proxy"
	"signalbox.dev/services/credential-broker/internal/sock"
	"signalbox.dev/services/credential-broker/internal/upstream"
	"signalbox.dev/services/credential-broker/internal/vault"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// canary is part of every secret in these tests; it must appear only in requests to providers.
const canary = "canary-5f1c0d"

// accounts is a pool that hands its accounts out in order and records the reports.
type accounts struct {
	all []pool.Account
	err error

	mu      sync.Mutex // guards what follows
	handed  int
	server  string // of the last request
	reports []report
	told    []pool.Outcome
}

type report struct {
	Account string
	Reason  pool.Reason
	Status  int
}

// outcomes returns everything that the pool was told.
func (a *accounts) outcomes() []pool.Outcome {
	a.got()
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.told
}

func (a *accounts) Select(_ context.Context, r pool.Request) (pool.Account, error) {
	a.mu.Lock()
	a.server = r.Server
	a.mu.Unlock()
	if a.err != nil {
		return pool.Account{}, a.err
	}
	if len(a.all) == 0 {
		return pool.Account{}, pool.ErrNone
	}
	if len(r.Tried) >= len(a.all) {
		return pool.Account{}, pool.ErrExhausted
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.handed++
	return a.all[len(r.Tried)], nil
}

func (*accounts) Began(pool.Account) {}

func (a *accounts) Report(_ context.Context, acc pool.Account, out pool.Outcome) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.told = append(a.told, out)
	a.reports = append(a.reports, report{acc.Secret.Reveal(), out.Reason, out.Status})
}

// got returns the reports, for which it waits: a caller may have its answer a moment before the
// account is reported on.
func (a *accounts) got() []report {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(2 * time.Second); ; <-tick.C {
		a.mu.Lock()
		reports, all := a.reports, len(a.reports) >= a.handed
		a.mu.Unlock()
		if all || time.Now().After(deadline) {
			return reports
		}
	}
}

// lines is a log that tests read while it is being written.
type lines struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// network connects the parts of a rig: over loopback, or in memory for tests on synctest's
// clock.
type network interface {
	listen(t testing.TB) net.Listener
	dial(ctx context.Context, network, addr string) (net.Conn, error)
}

type loopback struct{ net.Dialer }

func (*loopback) listen(t testing.TB) net.Listener {
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func (l *loopback) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	return l.DialContext(ctx, network, addr)
}

// memory connects by name over net.Pipe.
type memory struct {
	mu    sync.Mutex // guards hosts
	hosts map[string]*pipes
}

func (m *memory) listen(testing.TB) net.Listener {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.hosts == nil {
		m.hosts = map[string]*pipes{}
	}
	p := &pipes{name: fmt.Sprintf("host%d.test:80", len(m.hosts)), conns: make(chan net.Conn), closed: make(chan struct{})}
	m.hosts[p.name] = p
	return p
}

func (m *memory) dial(ctx context.Context, _, addr string) (net.Conn, error) {
	m.mu.Lock()
	p := m.hosts[addr]
	m.mu.Unlock()
	if p == nil {
		return nil, &net.OpError{Op: "dial", Net: "pipe", Err: errors.New("no such host: " + addr)}
	}
	here, there := net.Pipe()
	select {
	case p.conns <- there:
		return here, nil
	case <-p.closed:
		return nil, &net.OpError{Op: "dial", Net: "pipe", Err: net.ErrClosed}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

type pipes struct {
	name   string
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *pipes) Addr() net.Addr  { return p }
func (p *pipes) Network() string { return "pipe" }
func (p *pipes) String() string  { return p.name }

// rig is a proxy with callers on one side and upstreams on the other.
type rig struct {
	t       testing.TB
	net     network
	url     string
	proxy   *proxy.Proxy
	pool    *accounts
	logs    *lines
	metrics *prometheus.Registry
	signer  *identity.Signer
	actor   identity.Actor
	client  *http.Client
}

// newRig starts a proxy; change may alter its configuration.
func newRig(t testing.TB, n network, change func(*proxy.Config)) *rig {
	t.Helper()
	key, err := identity.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	verifier, err := identity.NewVerifier("credential-broker", map[string]string{"agent-runner": key.Public()})
	if err != nil {
		t.Fatal(err)
	}
	profiles, err := profile.Load("1.2.3", profile.Shipped())
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{
		t: t, net: n, pool: &accounts{}, logs: &lines{}, metrics: prometheus.NewRegistry(),
		signer: identity.NewSigner("agent-runner", key),
		actor: identity.Actor{
			Workspace: id.New[id.Workspace](), Member: id.New[id.Member](), Role: identity.Editor,
			Run: id.New[id.Run](), Session: id.New[id.Session](),
		},
	}
	transport := upstream.New(upstream.Config{Dial: n.dial})
	cfg := proxy.Config{
		Pool: r.pool, Profiles: profiles, Verifier: verifier, Open: transport, Guarded: transport,
		Metrics: r.metrics, Log: slog.New(slog.NewJSONHandler(r.logs, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	if change != nil {
		change(&cfg)
	}
	if r.proxy, err = proxy.New(cfg); err != nil {
		t.Fatal(err)
	}
	r.url = r.serve(r.proxy)
	toProxy := &http.Transport{DialContext: n.dial, DisableCompression: true}
	r.client = &http.Client{Transport: toProxy}
	t.Cleanup(func() {
		toProxy.CloseIdleConnections()
		r.proxy.Wait()
		transport.CloseIdleConnections()
	})
	return r
}

// serve starts an HTTP server and returns its URL.
func (r *rig) serve(h http.Handler) string {
	l := sock.Listen(r.net.listen(r.t)) // as the service does
	srv := &httptest.Server{Listener: l, Config: &http.Server{Handler: h, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0)}}
	srv.Start()
	r.t.Cleanup(srv.Close)
	return srv.URL
}

// account returns an account of a provider with that base URL.
func (r *rig) account(provider, base, secret string) pool.Account {
	profiles, err := profile.Load("1.2.3", profile.Shipped())
	if err != nil {
		r.t.Fatal(err)
	}
	p, ok := profiles.For(provider)
	if !ok {
		r.t.Fatalf("no profile for %s", provider)
	}
	if len(p.Mounts) > 0 {
		base += p.Mounts[0]
	}
	u, err := url.Parse(base)
	if err != nil {
		r.t.Fatal(err)
	}
	return pool.Account{ID: id.New[id.Account](), Provider: provider, Origin: pool.Workspace, Profile: p, Base: u, Secret: vault.NewSecret(secret)}
}

// upstream starts a provider and gives the pool one account for each secret.
func (r *rig) upstream(provider string, h http.HandlerFunc, secrets ...string) {
	base := r.serve(h)
	if len(secrets) == 0 {
		secrets = []string{"sk-" + canary}
	}
	for _, s := range secrets {
		r.pool.all = append(r.pool.all, r.account(provider, base, s))
	}
}

func (r *rig) token() string {
	token, err := r.signer.Sign(r.actor, "credential-broker")
	if err != nil {
		r.t.Fatal(err)
	}
	return token
}

// request returns a request like an SDK's.
func (r *rig) request(ctx context.Context, path, body string) *http.Request {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Api-Key", r.token())
	return req
}

const (
	messages = "/egress/anthropic/v1/messages"
	chats    = "/egress/openai/v1/chat/completions"
	asking   = `{"model":"m","stream":true,"messages":[]}`
)

// result is what a caller saw.
type result struct {
	status int
	header http.Header
	body   string
	err    error // how the body ended; nil for a clean end
}

func (r *rig) do(req *http.Request) result {
	r.t.Helper()
	res, err := r.client.Do(req)
	if err != nil {
		return result{err: err}
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return result{res.StatusCode, res.Header, string(body), err}
}

func (r *rig) post(path, body string) result {
	r.t.Helper()
	return r.do(r.request(r.t.Context(), path, body))
}

// stream answers with a 200 event stream of the given pieces, each flushed.
func stream(pieces ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		for _, p := range pieces {
			_, _ = io.WriteString(w, p)
			_ = http.NewResponseController(w).Flush()
		}
	}
}

// cut breaks off the connection.
func cut() { panic(http.ErrAbortHandler) }

// answer answers with a status and a JSON body.
func answer(status int, body string, headers ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		for i := 0; i < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// Parts of streams as providers send them.
const (
	msgStart = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m1\",\"usage\":{\"input_tokens\":1}}}\n\n"
	msgPing  = "event: ping\ndata: {\"type\": \"ping\"}\n\n"
	msgBlock = "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n"
	msgDelta = "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"Hello\"}         }\n\n"
	msgStop  = "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"
	msgError = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n"

	chatRole   = "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}],\"obfuscation\":\"x8\"}\n\n"
	chatDelta  = "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hi\"},\"finish_reason\":null}],\"obfuscation\":\"aZ\"}\n\n"
	chatFinish = "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"
	chatSecond = "data: {\"id\":\"c\",\"choices\":[{\"index\":1,\"delta\":{\"content\":\"Ho\"},\"finish_reason\":null}]}\n\n"
	chatUsage  = "data: {\"id\":\"c\",\"choices\":[],\"usage\":{\"total_tokens\":9007199254740993}}\n\n"
	chatDone   = "data: [DONE]\n\n"
)
