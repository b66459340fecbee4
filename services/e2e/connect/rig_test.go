package connect_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/subject"
	"signalbox.dev/services/e2e/world"
)

const returnPath = "/settings/connections"

// somewhere is the client address that the front reports.
const somewhere = "198.51.100.7"

// rig is a cluster with a front before its gateways, and one workspace.
type rig struct {
	*world.World
	t                     *testing.T
	ctx                   context.Context //nolint:containedctx // the test's, with a deadline
	far                   *far
	front                 string
	tools                 *identity.Signer // tool-executor's
	answers               *transcript      // of the gateways
	bus                   string           // the data folder of NATS
	owner, editor, viewer world.Member
}

// transcript records responses.
type transcript struct {
	mu      sync.Mutex // guards the rest
	text    bytes.Buffer
	cookies []string // values that only browsers may see
}

func (tr *transcript) add(format string, args ...any) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	fmt.Fprintf(&tr.text, format, args...)
}

func (tr *transcript) keep(cookies []*http.Cookie) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	for _, c := range cookies {
		tr.cookies = append(tr.cookies, c.Value)
	}
}

func (tr *transcript) bytes() []byte {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return slices.Clone(tr.text.Bytes())
}

// in returns a rig for a story in a new workspace.
func (r *rig) in(t *testing.T) *rig {
	t.Helper()
	own := *r
	own.t = t
	own.owner = own.member("", "owner")
	own.editor, own.viewer = own.member(own.owner.Workspace, "editor"), own.member(own.owner.Workspace, "viewer")
	return &own
}

func start(t *testing.T) *rig {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*world.Timeout)
	t.Cleanup(cancel)
	r := &rig{t: t, ctx: ctx, far: newFar(t), answers: &transcript{}, bus: t.TempDir()}
	var targets atomic.Pointer[[]*url.URL]
	var turn atomic.Uint32
	front := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(p *httputil.ProxyRequest) {
		all := *targets.Load()
		p.SetURL(all[int(turn.Add(1))%len(all)])
		p.Out.Host = p.In.Host
		p.Out.Header.Set("X-Forwarded-For", somewhere)
	}})
	t.Cleanup(front.Close)
	r.front = front.URL

	env, trusted := map[string][]string{}, map[string]string{}
	for _, s := range world.Services() {
		key, err := identity.NewKey()
		if err != nil {
			t.Fatal(err)
		}
		trusted[s], env[s] = key.Public(), []string{"SERVICE_KEY=" + key.Encode()}
		if s == subject.ToolExecutor {
			r.tools = identity.NewSigner(s, key)
		}
	}
	for s := range env {
		env[s] = append(env[s], "TRUSTED_KEYS="+identity.FormatTrusted(trusted))
	}
	env[subject.CredentialBroker] = append(append(env[subject.CredentialBroker], r.far.describe(t)...), "CREDENTIAL_BROKER_OAUTH_REDIRECT="+r.front+"/api/connections/callback", "CREDENTIAL_BROKER_OAUTH_CLIENT_DOCUMENT="+r.document(), "SIMULATED_SERVICES=false")
	env[subject.Gateway] = append(env[subject.Gateway], "GATEWAY_RETURN_PATHS="+returnPath+",/welcome", "GATEWAY_TRUSTED_PROXIES=127.0.0.1")
	env[subject.ToolExecutor] = append(env[subject.ToolExecutor], "TOOL_EXECUTOR_ALLOW_PRIVATE=127.0.0.0/8")
	programs := t.TempDir()
	if err := world.Build(ctx, programs); err != nil {
		t.Fatal(err)
	}
	var err error
	r.World, err = world.Start(ctx, world.Options{
		Dir: t.TempDir(), Programs: programs, NATSDir: r.bus, LogLevel: "debug", Partitions: 2,
		Env: func(service string, _ int) []string { return env[service] },
	})
	if r.World != nil {
		t.Cleanup(func() { //nolint:contextcheck // it has to end whatever became of the test
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	var urls []*url.URL
	for _, g := range r.Gateways {
		u, err := url.Parse(g)
		if err != nil {
			t.Fatal(err)
		}
		urls = append(urls, u)
	}
	targets.Store(&urls)
	return r
}

func (r *rig) member(workspace, role string) world.Member {
	r.t.Helper()
	m, err := r.NewMember(r.ctx, workspace, role)
	if err != nil {
		r.t.Fatal(err)
	}
	return m
}

// browser is a member's browser with its cookies.
type browser struct {
	r    *rig
	who  world.Member
	http *http.Client
}

func (r *rig) browser(who world.Member) *browser {
	r.t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		r.t.Fatal(err)
	}
	return &browser{r, who, &http.Client{Jar: jar, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

// answer is a complete response.
type answer struct {
	status int
	header http.Header
	body   string
}

// object decodes the response's JSON.
func (a answer) object() map[string]any {
	var out map[string]any
	_ = json.Unmarshal([]byte(a.body), &out) // other content has no fields
	return out
}

func (a answer) String() string { return fmt.Sprintf("%d %.600s", a.status, a.body) }

// call sends a request of the member to the API.
func (b *browser) call(method, path, body string, header ...string) answer {
	b.r.t.Helper()
	h := http.Header{"Authorization": {"Bearer " + b.who.Token}, "X-Workspace-Id": {b.who.Workspace}}
	for i := 0; i+1 < len(header); i += 2 {
		h.Set(header[i], header[i+1])
	}
	return b.send(method, b.r.front+path, body, h)
}

// want is call with an expected status.
func (b *browser) want(status int, method, path, body string, header ...string) answer {
	b.r.t.Helper()
	got := b.call(method, path, body, header...)
	if got.status != status {
		b.r.t.Fatalf("%s %s = %s, want %d", method, path, got, status)
	}
	return got
}

// open opens a link in the browser.
func (b *browser) open(link string) answer {
	b.r.t.Helper()
	return b.send(http.MethodGet, link, "", nil)
}

func (b *browser) send(method, link, body string, h http.Header) answer {
	b.r.t.Helper()
	req, err := http.NewRequestWithContext(b.r.ctx, method, link, strings.NewReader(body))
	if err != nil {
		b.r.t.Fatal(err)
	}
	if h != nil {
		req.Header = h
	}
	res, err := b.http.Do(req)
	if err != nil {
		b.r.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		b.r.t.Fatal(err)
	}
	if strings.HasPrefix(link, b.r.front) {
		b.r.answers.add("%s %s\n%v\n%s\n", method, link, res.Header, text)
		b.r.answers.keep(res.Cookies())
	}
	return answer{res.StatusCode, res.Header, string(text)}
}

// begin starts a connection and returns the URL for the browser.
func (b *browser) begin(provider string, more ...string) string {
	b.r.t.Helper()
	got := b.want(http.StatusCreated, http.MethodPost, "/api/connections", fmt.Sprintf(`{"provider":%q%s}`, provider, strings.Join(more, "")))
	link, _ := got.object()["url"].(string)
	return link
}

// consent approves the request at the provider, and returns the URL to which the provider sends the
// browser back.
func (b *browser) consent(link string) string {
	b.r.t.Helper()
	got := b.open(link)
	back := got.header.Get("Location")
	if got.status != http.StatusFound || !strings.HasPrefix(back, b.r.front+"/api/connections/callback?") {
		b.r.t.Fatalf("the provider returned %s %q", got, back)
	}
	return back
}

// deny returns the URL to which the provider sends the browser after a refusal.
func (b *browser) deny(link string) string {
	b.r.t.Helper()
	u, err := url.Parse(link)
	if err != nil {
		b.r.t.Fatal(err)
	}
	return u.Query().Get("redirect_uri") + "?" + url.Values{"error": {"access_denied"}, "state": {u.Query().Get("state")}}.Encode()
}

// connect completes a connection.
func (b *browser) connect(provider string) {
	b.r.t.Helper()
	done := b.open(b.consent(b.begin(provider)))
	if want := returnPath + "?connected=" + provider; done.status != http.StatusSeeOther || done.header.Get("Location") != want {
		b.r.t.Fatalf("the callback of %s = %s, %q, want 303 to %q", provider, done, done.header.Get("Location"), want)
	}
}

// connection is the state of a connection.
type connection struct {
	State, Reason, Origin, Subject string
	ConnectedBy                    string `json:"connected_by"`
	Title                          string
}

func (b *browser) connection(provider string) connection {
	b.r.t.Helper()
	var list struct {
		Connections []struct {
			Provider string
			connection
		}
	}
	got := b.want(http.StatusOK, http.MethodGet, "/api/connections", "")
	if err := json.Unmarshal([]byte(got.body), &list); err != nil {
		b.r.t.Fatal(err)
	}
	for _, c := range list.Connections {
		if c.Provider == provider {
			return c.connection
		}
	}
	b.r.t.Fatalf("there is no %s among %s", provider, got.body)
	return connection{}
}

// wantEgress sends a request through both brokers, like a tool of the workspace.
func (r *rig) wantEgress(when, provider string, want int, text string) {
	r.t.Helper()
	ws, err := id.Parse[id.Workspace](r.owner.Workspace)
	if err != nil {
		r.t.Fatal(err)
	}
	token, err := r.tools.Sign(identity.Actor{Workspace: ws, Member: id.New[id.Member](), Role: identity.Editor, Run: id.New[id.Run](), Session: id.New[id.Session]()}, subject.CredentialBroker)
	if err != nil {
		r.t.Fatal(err)
	}
	for replica := range 2 {
		// Another broker learns of a change within a second.
		err := r.until(func() error {
			req, err := http.NewRequestWithContext(r.ctx, http.MethodGet, "http://"+r.Replica(subject.CredentialBroker, replica+1).Addr+"/egress/"+provider+"/things", nil)
			if err != nil {
				return err
			}
			req.Header.Set("Authorization", "Bearer "+token)
			req.Header.Set(ofWorkspace, r.owner.Workspace)
			res, err := r.HTTP.Do(req)
			if err != nil {
				return err
			}
			defer res.Body.Close()
			body, err := io.ReadAll(res.Body)
			if err != nil {
				return err
			}
			if res.StatusCode != want || !strings.Contains(string(body), text) {
				return fmt.Errorf("%d %s", res.StatusCode, body)
			}
			return nil
		})
		if err != nil {
			r.t.Errorf("%s: a tool's request to %s through broker %d = %v, want %d %s", when, provider, replica+1, err, want, text)
		}
	}
}

// until retries for a while: an account that fails is parked for five seconds.
func (r *rig) until(try func() error) error {
	var err error
	for range 600 {
		if err = try(); err == nil {
			return nil
		}
		select {
		case <-r.ctx.Done():
			return err
		case <-time.After(50 * time.Millisecond):
		}
	}
	return err
}

// exec changes the database directly.
func (r *rig) exec(sql string, args ...any) {
	r.t.Helper()
	db, err := pgx.Connect(r.ctx, r.Database)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = db.Close(r.ctx) }()
	if _, err := db.Exec(r.ctx, sql, args...); err != nil {
		r.t.Fatal(err)
	}
}
