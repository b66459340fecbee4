package gateway_test

import (
	"context"
	"crypto/ecdh"
	"crypto/hpke"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/identity"
	credentialv1 "signalbox.dev/proto/signalbox/credential/v1"
	"signalbox.dev/proto/signalbox/credential/v1/credentialv1connect"

	"signalbox.dev/services/gateway"
)

// fakeBroker is a small credential-broker: it starts sign-ins, and accepts any code for them from
// the member who started them.
type fakeBroker struct {
	credentialv1connect.UnimplementedAccountServiceHandler
	credentialv1connect.UnimplementedConnectionServiceHandler

	mu       sync.Mutex // guards what follows
	redirect string     // the URL that browsers are redirected to
	begun    map[string]identity.Actor
	states   map[string]string // by the id of the sign-in
	away     int               // number of calls to answer with Unavailable
	accounts []*credentialv1.Account
	sealing  hpke.PrivateKey
	added    []*credentialv1.AddAccountRequest
	bodies   []string                        // decrypted
	asked    *credentialv1.StartLoginRequest // the last one
	issuer   string                          // of the last answer
}

func newFakeBroker(t testing.TB) *fakeBroker {
	t.Helper()
	key, err := hpke.DHKEM(ecdh.X25519()).GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	return &fakeBroker{sealing: key}
}

func (f *fakeBroker) begin(ctx context.Context, least identity.Role, login string) (link string, err error) {
	a, err := may(ctx, least)
	if err != nil {
		return "", err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.begun == nil {
		f.begun, f.states = map[string]identity.Actor{}, map[string]string{}
	}
	state, again := f.states[login]
	if !again {
		state = fmt.Sprintf("state-%d", len(f.begun))
	}
	if f.begun[state] = a; login != "" {
		f.states[login] = state
	}
	return "https://provider.example/authorize?" + url.Values{"state": {state}, "redirect_uri": {f.redirect}}.Encode(), nil
}

func (f *fakeBroker) end(ctx context.Context, state string, least identity.Role) error {
	a, err := may(ctx, least)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.away > 0 {
		f.away--
		return &fault.Error{Kind: fault.Unavailable, Message: "the provider is away", RetryAfter: 7 * time.Second}
	}
	if began, ok := f.begun[state]; !ok || began != a {
		return fault.Coded(fault.Conflict, "LOGIN_UNKNOWN", "this sign-in is not one that you have open")
	}
	return nil
}

func (f *fakeBroker) StartConnection(ctx context.Context, req *credentialv1.StartConnectionRequest) (*credentialv1.StartConnectionResponse, error) {
	link, err := f.begin(ctx, identity.Editor, req.GetId())
	return &credentialv1.StartConnectionResponse{Url: link, ExpiresAt: timestamppb.New(time.Now().Add(time.Minute))}, err
}

func (f *fakeBroker) CompleteConnection(ctx context.Context, req *credentialv1.CompleteConnectionRequest) (*credentialv1.CompleteConnectionResponse, error) {
	c := &credentialv1.Connection{Provider: req.GetProvider(), Title: "A <b>provider</b>", Subject: "ada", State: credentialv1.ConnectionState_CONNECTION_STATE_CONNECTED}
	return &credentialv1.CompleteConnectionResponse{Connection: c}, f.end(ctx, req.GetState(), identity.Editor)
}

func (f *fakeBroker) StartLogin(ctx context.Context, req *credentialv1.StartLoginRequest) (*credentialv1.StartLoginResponse, error) {
	link, err := f.begin(ctx, identity.Owner, req.GetId())
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = req
	return &credentialv1.StartLoginResponse{Url: link, ExpiresAt: timestamppb.New(time.Now().Add(time.Minute))}, err
}

func (f *fakeBroker) CompleteLogin(ctx context.Context, req *credentialv1.CompleteLoginRequest) (*credentialv1.CompleteLoginResponse, error) {
	f.mu.Lock()
	f.issuer = req.GetIssuer()
	provider := f.asked.GetProvider()
	f.mu.Unlock()
	return &credentialv1.CompleteLoginResponse{Account: &credentialv1.Account{Provider: provider, Grant: &credentialv1.AccountGrant{Provider: "theirs"}}}, f.end(ctx, req.GetState(), identity.Owner)
}

func (f *fakeBroker) ListAccounts(ctx context.Context, _ *credentialv1.ListAccountsRequest) (*credentialv1.ListAccountsResponse, error) {
	_, err := may(ctx, identity.Owner)
	f.mu.Lock()
	defer f.mu.Unlock()
	return &credentialv1.ListAccountsResponse{Accounts: f.accounts}, err
}

// ListAudit returns a row that tells what was searched for.
func (f *fakeBroker) ListAudit(ctx context.Context, req *credentialv1.ListAuditRequest) (*credentialv1.ListAuditResponse, error) {
	_, err := may(ctx, identity.Owner)
	return &credentialv1.ListAuditResponse{Rows: []*credentialv1.AuditRow{{Sequence: 1, Detail: req.GetQuery() + strings.Join(req.GetQueryMembers(), "")}}}, err
}

// TestSignInCookie checks that the cookie that binds a sign-in to the browser fits the page to
// which the provider redirects, and that there is none if this page is not the gateway's.
func TestSignInCookie(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	for _, tt := range []struct{ redirect, prefix, path string }{
		{"http://localhost:8080/api/connections/callback", "signalbox_sign_in_", "/api/connections/callback"},
		{"http://localhost:8080/under/api/connections/callback", "signalbox_sign_in_", "/under/api/connections/callback"},
		{"https://signalbox.example/api/connections/callback", "__Host-signalbox_sign_in_", "/"},
		{"https://console.example/connected", "", ""},
	} {
		w.broker.mu.Lock()
		w.broker.redirect = tt.redirect
		w.broker.mu.Unlock()
		for _, begin := range []struct{ path, body string }{{"/api/connections", `{"provider":"x"}`}, {"/api/accounts/logins", `{"provider":"x","kind":"browser"}`}} {
			got := in.send(t, in.request(t, w.owner, "POST", begin.path, begin.body, nil))
			cookies := (&http.Response{Header: got.header}).Cookies()
			if tt.prefix == "" {
				if got.status != http.StatusCreated || len(cookies) != 0 {
					t.Errorf("%s with %s = %d %s, %v, want no cookie", begin.path, tt.redirect, got.status, got.body, cookies)
				}
				continue
			}
			if got.status != http.StatusCreated || len(cookies) != 1 {
				t.Fatalf("%s with %s = %d %s, %v, want a cookie", begin.path, tt.redirect, got.status, got.body, cookies)
			}
			c := cookies[0]
			if secure := strings.HasPrefix(tt.redirect, "https:"); !strings.HasPrefix(c.Name, tt.prefix) || c.Path != tt.path || c.Secure != secure || !c.HttpOnly ||
				c.SameSite != http.SameSiteLaxMode || c.Domain != "" || c.MaxAge < 50 || c.MaxAge > 60 || strings.Contains(got.body, c.Value) {
				t.Errorf("%s with %s sets %+v", begin.path, tt.redirect, c)
			}
		}
	}
}

// TestSignInCookieOfAnotherHost checks that another host of the domain, which can only set a cookie
// without the prefix, cannot complete a sign-in over https.
func TestSignInCookieOfAnotherHost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.broker.redirect = "https://signalbox.example/api/connections/callback"
	in := w.gateway(t)
	got := in.send(t, in.request(t, w.owner, "POST", "/api/connections", `{"provider":"x"}`, nil))
	cookies := (&http.Response{Header: got.header}).Cookies()
	if got.status != http.StatusCreated || len(cookies) != 1 {
		t.Fatalf("POST /api/connections = %d %s", got.status, got.body)
	}
	for _, tt := range []struct {
		name   string
		status int
	}{{strings.TrimPrefix(cookies[0].Name, "__Host-"), http.StatusForbidden}, {cookies[0].Name, http.StatusOK}} {
		req := in.request(t, person{}, "GET", "/api/connections/callback?code=c&state=state-0", "", nil)
		req.AddCookie(&http.Cookie{Name: tt.name, Value: cookies[0].Value})
		if got := in.send(t, req); got.status != tt.status {
			t.Errorf("with the cookie %s: %d %s, want %d", tt.name, got.status, got.body, tt.status)
		}
	}
}

func TestSignInCallback(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.broker.redirect = "http://localhost/api/connections/callback"
	shown, sent := w.gateway(t), w.gateway(t, func(c *gateway.Config) { c.ReturnPaths = []string{"/settings/tools", "/welcome"} })
	begin := func(in *instance, path, body string) (state string, cookie *http.Cookie) {
		t.Helper()
		got := in.send(t, in.request(t, w.owner, "POST", path, body, nil))
		cookies := (&http.Response{Header: got.header}).Cookies()
		_, after, ok := strings.Cut(got.body, "state=")
		if got.status != http.StatusCreated || len(cookies) != 1 || !ok {
			t.Fatalf("POST %s = %d %s", path, got.status, got.body)
		}
		return strings.TrimRight(after[:strings.IndexAny(after, `&"\`)], `\`), cookies[0]
	}
	back := func(in *instance, state string, c *http.Cookie) answer {
		t.Helper()
		req := in.request(t, person{}, "GET", "/api/connections/callback?code=secret-code&state="+state, "", nil)
		if c != nil {
			req.AddCookie(&http.Cookie{Name: c.Name, Value: c.Value})
		}
		in.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		return in.send(t, req)
	}

	state, cookie := begin(shown, "/api/connections", `{"provider":"x"}`)
	if got := back(shown, state, nil); got.status != http.StatusForbidden || !strings.Contains(got.body, "not started in this browser") {
		t.Errorf("without a cookie = %d %s", got.status, got.body)
	}
	if got := back(shown, state, &http.Cookie{Name: cookie.Name, Value: "another"}); got.status != http.StatusForbidden {
		t.Errorf("with another cookie = %d %s", got.status, got.body)
	}
	got := back(shown, state, cookie)
	if got.status != http.StatusOK || !strings.Contains(got.body, "A &lt;b&gt;provider&lt;/b&gt; is connected as ada. You can close this page.") {
		t.Errorf("the callback = %d %s, want a page that says so", got.status, got.body)
	}
	for name, want := range map[string]string{
		"Content-Type": "text/html; charset=utf-8", "Cache-Control": "no-store", "Referrer-Policy": "no-referrer",
		"Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
	} {
		if got.header.Get(name) != want {
			t.Errorf("%s: %q, want %q", name, got.header.Get(name), want)
		}
	}
	if again := back(shown, state, cookie); again.status != http.StatusOK || again.body != got.body {
		t.Errorf("once more = %d %s", again.status, again.body)
	}

	for _, tt := range []struct{ path, body, want string }{
		{"/api/connections", `{"provider":"x"}`, "/settings/tools?connected=x"},
		{"/api/connections", `{"provider":"x","return_to":"/welcome"}`, "/welcome?connected=x"},
		{"/api/accounts/logins", `{"provider":"x","kind":"browser"}`, "/settings/tools?signed_in=x"},
		{"/api/accounts/logins", `{"account_id":"00000000-0000-4000-8000-000000000001","kind":"browser"}`, "/settings/tools?signed_in=theirs"},
	} {
		state, cookie := begin(sent, tt.path, tt.body)
		if got := back(sent, state, cookie); got.status != http.StatusSeeOther || got.header.Get("Location") != tt.want {
			t.Errorf("%s %s: %d to %q, want 303 to %q", tt.path, tt.body, got.status, got.header.Get("Location"), tt.want)
		}
	}
	// After a failure the page links back too.
	state, cookie = begin(sent, "/api/connections", `{"provider":"x"}`)
	w.broker.mu.Lock()
	clear(w.broker.begun)
	w.broker.mu.Unlock()
	if got := back(sent, state, cookie); got.status != http.StatusConflict || !strings.Contains(got.body, `<a href="/settings/tools">Go back</a>`) || !strings.Contains(got.body, "<p>This sign-in is not one that you have open.</p>") {
		t.Errorf("a refusal of the broker = %d %s", got.status, got.body)
	}
	for _, in := range []*instance{shown, sent} {
		if log := in.log.String(); strings.Contains(log, "secret-code") || strings.Contains(log, "state-") {
			t.Error("the log holds a code or a state")
		}
	}
}

// TestSignInCanBeRetried reloads the page after a service was unavailable, after too many requests,
// and after the first answer was lost.
func TestSignInCanBeRetried(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.broker.redirect = "http://localhost/api/connections/callback"
	in, limited := w.gateway(t), w.gateway(t, func(c *gateway.Config) { c.WorkspacePerMinute, c.WorkspaceBurst = 1, 1 })
	begin := func() *http.Cookie {
		t.Helper()
		req := in.request(t, w.owner, "POST", "/api/connections", `{"provider":"x"}`, nil)
		req.Header.Set("Idempotency-Key", "k")
		got := in.send(t, req)
		cookies := (&http.Response{Header: got.header}).Cookies()
		if got.status != http.StatusCreated || len(cookies) != 1 || !strings.Contains(got.body, "state-0") {
			t.Fatalf("POST /api/connections = %d %s", got.status, got.body)
		}
		return cookies[0]
	}
	back := func(in *instance, c *http.Cookie, status int, wait, text string) {
		t.Helper()
		req := in.request(t, person{}, "GET", "/api/connections/callback?code=c&state=state-0", "", nil)
		req.AddCookie(&http.Cookie{Name: c.Name, Value: c.Value})
		if got := in.send(t, req); got.status != status || got.header.Get("Retry-After") != wait && wait != "some" || !strings.Contains(got.body, text) {
			t.Errorf("the callback = %d %q %s, want %d %q %s", got.status, got.header.Get("Retry-After"), got.body, status, wait, text)
		}
	}
	lost, cookie := begin(), begin() // the same sign-in
	back(in, lost, http.StatusForbidden, "", "not started in this browser")
	w.broker.mu.Lock()
	w.broker.away = 1
	w.broker.mu.Unlock()
	back(in, cookie, http.StatusServiceUnavailable, "7", "<p>The provider is away. To try again, reload this page.</p>")
	limited.send(t, limited.request(t, w.owner, "GET", "/api/connections", "", nil))
	back(limited, cookie, http.StatusTooManyRequests, "some", "To try again, reload this page.")
	back(in, cookie, http.StatusOK, "", "is connected as ada")
	back(in, cookie, http.StatusOK, "", "is connected as ada")
}

// TestSignInsAreBounded starts more sign-ins than a member may have.
func TestSignInsAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.broker.redirect = "http://localhost/api/connections/callback"
	in := w.gateway(t)
	var all []*http.Cookie
	for range 60 {
		got := in.send(t, in.request(t, w.owner, "POST", "/api/connections", `{"provider":"x"}`, nil))
		cookies := (&http.Response{Header: got.header}).Cookies()
		if got.status != http.StatusCreated || len(cookies) != 1 {
			t.Fatalf("POST /api/connections = %d %s", got.status, got.body)
		}
		all = append(all, cookies[0])
	}
	for n, status := range map[int]int{0: http.StatusConflict, len(all) - 1: http.StatusOK} {
		req := in.request(t, person{}, "GET", fmt.Sprintf("/api/connections/callback?code=c&state=state-%d", n), "", nil)
		req.AddCookie(&http.Cookie{Name: all[n].Name, Value: all[n].Value})
		if got := in.send(t, req); got.status != status {
			t.Errorf("coming back from sign-in %d of %d = %d %s, want %d", n+1, len(all), got.status, got.body, status)
		}
	}
}

// TestUnusableAccount checks that the API tells why an account is unusable.
func TestUnusableAccount(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.broker.accounts = []*credentialv1.Account{
		{Id: "00000000-0000-4000-8000-000000000001", Status: credentialv1.AccountStatus_ACCOUNT_STATUS_UNUSABLE, Reason: "it does not open"},
		{Id: "00000000-0000-4000-8000-000000000002", Status: credentialv1.AccountStatus_ACCOUNT_STATUS_READY},
	}
	type account struct{ Status, Reason *string }
	got := call[struct{ Accounts []account }](t, w.gateway(t), w.owner, "GET", "/api/accounts", "", http.StatusOK)
	want := []account{{new("unusable"), new("it does not open")}, {Status: new("ready")}}
	if diff := cmp.Diff(want, got.Accounts); diff != "" {
		t.Errorf("GET /api/accounts (-want +got):\n%s", diff)
	}
}

// TestAccountPages reads a list in pages that the broker returns as a whole.
func TestAccountPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	at := timestamppb.New(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	for _, n := range []int{4, 2, 5, 1, 3} {
		w.broker.accounts = append(w.broker.accounts, &credentialv1.Account{Id: fmt.Sprintf("00000000-0000-4000-8000-00000000000%d", n), CreatedAt: at})
	}
	type page struct {
		Accounts   []struct{ ID string }
		NextCursor *string `json:"next_cursor"`
	}
	var seen []string
	query := "?limit=2"
	for {
		p := call[page](t, in, w.owner, "GET", "/api/accounts"+query, "", http.StatusOK)
		for _, a := range p.Accounts {
			seen = append(seen, a.ID[len(a.ID)-1:])
		}
		if p.NextCursor == nil {
			break
		}
		query = "?limit=2&cursor=" + url.QueryEscape(*p.NextCursor)
	}
	if got := strings.Join(seen, ""); got != "12345" {
		t.Errorf("the pages have %s, want 12345", got)
	}
}

func TestSignInSettings(t *testing.T) {
	t.Parallel()
	cfg := gateway.Config{
		AgentRunnerURL: "http://x", ToolExecutorURL: "http://x", DocumentSyncURL: "http://x", NATSPartitions: 1, DevSecret: devSecret,
		MemberPerMinute: 1, MemberBurst: 1, WorkspacePerMinute: 1, WorkspaceBurst: 1, MemberStreams: 1, WorkspaceStreams: 1,
		MemberSockets: 1, WorkspaceSockets: 1, Sockets: 1, BodyTimeout: 1, WriteTimeout: 1, DrainWindow: 1, DrainLimit: 2,
	}
	for path, good := range map[string]bool{
		"/": true, "/settings": true, "/settings/tools/": true, "": false, "settings": false, "//evil.example": false, `/\evil.example`: false,
		"/a//b": false, "https://evil.example": false, "/a?b=c": false, "/a#b": false, "/a\nb": false, "/%2f/x": false,
	} {
		cfg.ReturnPaths = []string{path}
		if err := cfg.Validate(); (err == nil) != good {
			t.Errorf("GATEWAY_RETURN_PATHS=%q: %v, want good: %t", path, err, good)
		}
	}
	cfg.ReturnPaths = nil
	for proxy, good := range map[string]bool{"10.0.0.0/8": true, "192.0.2.1": true, "2001:db8::/32": true, "": false, "proxy": false, "10.0.0.0/99": false} {
		cfg.TrustedProxies = []string{proxy}
		if err := cfg.Validate(); (err == nil) != good {
			t.Errorf("GATEWAY_TRUSTED_PROXIES=%q: %v, want good: %t", proxy, err, good)
		}
	}
	cfg.TrustedProxies, cfg.CredentialBrokerURL = nil, "broker"
	if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), "CREDENTIAL_BROKER_URL") {
		t.Errorf("Validate() of a broker that is no URL = %v", err)
	}
}
