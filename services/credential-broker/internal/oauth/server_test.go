package oauth_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/services/credential-broker/internal/oauth"
	"signalbox.dev/services/credential-broker/internal/target"
	"signalbox.dev/services/simulator/authserver"
)

// mcpServer is an MCP server that is its own authorization server, in front of the simulated one.
type mcpServer struct {
	*authserver.Server
	url string

	registered atomic.Int64 // clients

	mu     sync.Mutex // guards tokens
	tokens []url.Values
}

func newMCPServer(t *testing.T) *mcpServer {
	t.Helper()
	m := &mcpServer{Server: authserver.New(authserver.Settings{ClientID: "us", ClientSecret: "hush", Rotate: true})}
	front := httptest.NewServer(m)
	t.Cleanup(front.Close)
	m.url = front.URL
	return m
}

// ServeHTTP implements http.Handler.
func (m *mcpServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	switch r.URL.Path {
	case "/.well-known/oauth-protected-resource/mcp":
		_, _ = fmt.Fprintf(w, `{"resource": "%[1]s/mcp", "authorization_servers": ["%[1]s"], "scopes_supported": ["read", "write"]}`, m.url)
	case "/.well-known/oauth-authorization-server":
		_, _ = fmt.Fprintf(w, `{"issuer": "%[1]s", "authorization_endpoint": "%[1]s/authorize", "token_endpoint": "%[1]s/token", "registration_endpoint": "%[1]s/register",
			"revocation_endpoint": "%[1]s/revoke", "code_challenge_methods_supported": ["S256"], "authorization_response_iss_parameter_supported": true}`, m.url)
	case "/register":
		m.registered.Add(1)
		var asked struct {
			Redirects []string `json:"redirect_uris"`
		}
		if err := json.NewDecoder(r.Body).Decode(&asked); err != nil || !slices.Contains(asked.Redirects, "https://console.example/back") {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, `{"client_id": "us", "client_secret": "hush", "token_endpoint_auth_method": "client_secret_basic"}`)
	case "/token":
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		form, err := url.ParseQuery(string(body))
		if err != nil {
			return
		}
		m.mu.Lock()
		m.tokens = append(m.tokens, form)
		m.mu.Unlock()
		r.Body = io.NopCloser(strings.NewReader(string(body)))
		m.Server.ServeHTTP(w, r)
	default:
		m.Server.ServeHTTP(w, r)
	}
}

// resources returns the resource parameters of the requests to the token endpoint.
func (m *mcpServer) resources() (all []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, form := range m.tokens {
		all = append(all, form.Get("grant_type")+" "+form.Get("resource"))
	}
	return all
}

// private lets a keeper reach authorization servers on this machine.
func private(c *oauth.Config) {
	p := target.Policy{AllowPrivate: true}
	c.CheckEndpoint, c.Control = p.CheckEndpoint, p.Control
}

func (m *mcpServer) login() oauth.LoginRequest {
	return oauth.LoginRequest{Provider: "mcp-notes", Kind: oauth.Browser, Server: &oauth.ServerRequest{URL: m.url + "/mcp"}}
}

func TestServerLogin(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{}, "")
	m := newMCPServer(t)
	w.server = m.Server
	k := w.keeper(private)
	login, err := k.Start(t.Context(), w.who, m.login())
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(login.URL)
	if err != nil {
		t.Fatal(err)
	}
	if q := u.Query(); q.Get("resource") != m.url+"/mcp" || q.Get("client_id") != "us" || q.Get("code_challenge_method") != "S256" || q.Get("scope") != "read write" {
		t.Errorf("Start() = %s, want the resource, the registered client, PKCE and the server's scopes", login.URL)
	}
	back := w.sentBack(login.URL).Query()
	answer := oauth.Answer{State: back.Get("state"), Code: back.Get("code"), Issuer: m.url}
	ref, err := k.Complete(t.Context(), w.who, answer)
	if err != nil {
		t.Fatal(err)
	}
	if got := w.rows(`SELECT provider || ' ' || profile || ' ' || base_url FROM credentials.accounts`); got[0] != "mcp-notes mcp "+m.url {
		t.Errorf("the account is %q", got)
	}
	w.wantAgain("Complete()", ref, func() (oauth.Ref, error) { return k.Complete(t.Context(), w.who, answer) })

	// Another instance renews it, and knows nothing but what is stored.
	w.expire(ref)
	other := w.keeper(private)
	if got := w.token(other, ref); !m.Good(got.Secret.Reveal()) || got.Version != 2 {
		t.Errorf("version %d after the expiry, want a renewed token", got.Version)
	}
	if diff := cmp.Diff([]string{"authorization_code " + m.url + "/mcp", "refresh_token " + m.url + "/mcp"}, m.resources()); diff != "" {
		t.Errorf("resources of the token requests (-want +got):\n%s", diff)
	}
	for _, table := range []string{"accounts", "grants", "logins"} {
		for _, row := range w.rows(`SELECT row_to_json(t)::text FROM credentials.` + table + ` t`) {
			if noTokens(t, "table "+table, row); strings.Contains(row, "hush") {
				t.Errorf("table %s has the client's secret: %s", table, row)
			}
		}
	}

	// The server withdraws the grant: somebody has to sign in again, to the same account.
	m.End(w.token(other, ref).Secret.Reveal())
	w.expire(ref, k, other)
	if _, err := other.Token(t.Context(), ref); fault.From(err).Code != "ACCOUNT_REAUTHORIZE" {
		t.Errorf("Token() of a withdrawn grant: %v, want ACCOUNT_REAUTHORIZE", err)
	}
	again := m.login()
	again.Account = ref.Account
	if login, err = k.Start(t.Context(), w.who, again); err != nil {
		t.Fatal(err)
	}
	back = w.sentBack(login.URL).Query()
	if second, err := k.Complete(t.Context(), w.who, oauth.Answer{State: back.Get("state"), Code: back.Get("code"), Issuer: m.url}); err != nil || second != ref {
		t.Fatalf("Complete() again = %v, %v, want %v", second, err, ref)
	}
	k.Forget(ref)
	w.token(k, ref)
	if r, err := k.Revoke(t.Context(), w.who, ref); err != nil || !r.AtProvider {
		t.Errorf("Revoke() = %+v, %v, want it revoked at the server", r, err)
	}
}

// The token of one server is never sent to another: where a renewal goes was decided when the
// person signed in.
func TestServerMoved(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{}, "")
	first, second := newMCPServer(t), newMCPServer(t)
	w.server = first.Server
	k := w.keeper(private)
	login, err := k.Start(t.Context(), w.who, first.login())
	if err != nil {
		t.Fatal(err)
	}
	back := w.sentBack(login.URL).Query()
	ref, err := k.Complete(t.Context(), w.who, oauth.Answer{State: back.Get("state"), Code: back.Get("code"), Issuer: first.url})
	if err != nil {
		t.Fatal(err)
	}
	again := second.login()
	again.Account = ref.Account
	if _, err := k.Start(t.Context(), w.who, again); err != nil { // begun, and not completed
		t.Fatal(err)
	}
	w.expire(ref, k)
	w.token(k, ref)
	if got := second.resources(); len(got) > 0 {
		t.Errorf("the second server was sent a token: %q", got)
	}
}

func TestServerIssuer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{}, "")
	m := newMCPServer(t)
	w.server = m.Server
	k := w.keeper(private)
	for name, issuer := range map[string]func() string{"missing": func() string { return "" }, "other": func() string { return "https://other.example" }, "slash": func() string { return m.url + "/" }} {
		login, err := k.Start(t.Context(), w.who, m.login())
		if err != nil {
			t.Fatal(err)
		}
		back := w.sentBack(login.URL).Query()
		answer := oauth.Answer{State: back.Get("state"), Code: back.Get("code"), Issuer: issuer()}
		if _, err := k.Complete(t.Context(), w.who, answer); fault.From(err).Code != "LOGIN_FAILED" {
			t.Errorf("%s issuer: Complete() = %v, want LOGIN_FAILED", name, err)
		}
		answer.Issuer = m.url
		if _, err := k.Complete(t.Context(), w.who, answer); fault.From(err).Code != "LOGIN_FAILED" {
			t.Errorf("%s issuer: Complete() again = %v, want LOGIN_FAILED: the state is good once", name, err)
		}
	}
	if got := m.resources(); len(got) > 0 {
		t.Errorf("codes were sent: %q", got)
	}
}

func TestServerPrivate(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{}, "")
	m := newMCPServer(t)
	w.server = m.Server
	if _, err := w.keeper().Start(t.Context(), w.who, m.login()); fault.From(err).Code != "OAUTH_DISCOVERY" {
		t.Errorf("Start() for a private address = %v, want OAUTH_DISCOVERY", err)
	}
}

// The same person signs in in two windows: the one who comes second is told, and there is one
// account.
func TestServerLoginTwice(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{}, "")
	m := newMCPServer(t)
	w.server = m.Server
	k := w.keeper(private)
	var answers []oauth.Answer
	for range 2 {
		login, err := k.Start(t.Context(), w.who, m.login())
		if err != nil {
			t.Fatal(err)
		}
		back := w.sentBack(login.URL).Query()
		answers = append(answers, oauth.Answer{State: back.Get("state"), Code: back.Get("code"), Issuer: m.url})
	}
	errs := make(chan error, len(answers))
	for _, a := range answers {
		go func() { // ends with its answer
			_, err := k.Complete(t.Context(), w.who, a)
			errs <- err
		}()
	}
	var codes []string
	for range answers {
		codes = append(codes, fault.From(<-errs).Code)
	}
	slices.Sort(codes)
	if got := w.rows(`SELECT provider FROM credentials.accounts`); len(got) != 1 || codes[1] != "CONNECTED_MEANWHILE" {
		t.Errorf("accounts %q, Complete() = %q, want one account and CONNECTED_MEANWHILE", got, codes)
	}
}

// A repetition of the request with its key registers no second client.
func TestServerLoginRepeated(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{}, "")
	m := newMCPServer(t)
	w.server = m.Server
	k := w.keeper(private)
	r := m.login()
	r.ID = uuid.Must(uuid.NewV7())
	first, err := k.Start(t.Context(), w.who, r)
	if err != nil {
		t.Fatal(err)
	}
	again, err := k.Start(t.Context(), w.who, r)
	if err != nil || again.URL != first.URL {
		t.Errorf("Start() again = %s, %v, want %s", again.URL, err, first.URL)
	}
	if got := m.registered.Load(); got != 1 {
		t.Errorf("%d clients were registered, want 1", got)
	}
	back := w.sentBack(again.URL).Query()
	if _, err := k.Complete(t.Context(), w.who, oauth.Answer{State: back.Get("state"), Code: back.Get("code"), Issuer: m.url}); err != nil {
		t.Error(err)
	}
}
