package connect_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"signalbox.dev/services/simulator/authserver"
)

const clientSecret = "client-secret-that-nobody-else-sees"

// provider is an external service: an authorization server under /<name>/oauth, and an API under
// /<name>/api that accepts its tokens.
type provider struct {
	name string
	auth *authserver.Server
	down atomic.Bool // its token endpoint returns 503
}

// far has all providers behind one listener.
type far struct {
	*httptest.Server
	providers map[string]*provider

	mu     sync.Mutex        // guards the rest
	issued []string          // every token and PKCE verifier
	passed []string          // every state and authorization code, which browsers see
	tokens map[string]string // the last token by workspace
	wrong  []string          // invalid requests
}

func newFar(t *testing.T) *far {
	t.Helper()
	f := &far{providers: map[string]*provider{}, tokens: map[string]string{}}
	mux := http.NewServeMux()
	for name, s := range map[string]authserver.Settings{
		"google": {},
		"notion": {Rotate: true, ReuseEnds: true},
		"github": {LifeSeconds: -1, NoRefresh: true},
		"gitea":  {}, // for failures
	} {
		s.ClientID, s.ClientSecret, s.Interval = "us-"+name, clientSecret, 1
		p := &provider{name: name, auth: authserver.New(s)}
		f.providers[name] = p
		mux.Handle("/"+name+"/oauth/", http.StripPrefix("/"+name+"/oauth", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { f.authorise(p, w, r) })))
		mux.HandleFunc("/"+name+"/api/", func(w http.ResponseWriter, r *http.Request) { f.serve(p, w, r) })
	}
	f.Server = httptest.NewServer(mux)
	t.Cleanup(f.Close)
	return f
}

// authorise is the authorization server.
func (f *far) authorise(p *provider, w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil {
		return // the broker left
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	token := strings.HasSuffix(r.URL.Path, "/token")
	if token && p.down.Load() {
		http.Error(w, "come back later", http.StatusServiceUnavailable)
		return
	}
	if token {
		f.look(p, r, body)
	}
	said := httptest.NewRecorder()
	p.auth.ServeHTTP(said, r)
	answer := said.Body.Bytes()
	maps.Copy(w.Header(), said.Header())
	f.pass(said.Header().Get("Location"))
	w.Header().Del("Content-Length")
	if token {
		answer = f.note(p, w.Header(), answer)
	}
	w.WriteHeader(said.Code)
	_, _ = w.Write(answer) // the broker left
}

// pass records what a browser is sent back with.
func (f *far) pass(back string) {
	u, err := url.Parse(back)
	if err != nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, name := range []string{"state", "code"} {
		if value := u.Query().Get(name); value != "" {
			f.passed = append(f.passed, value)
		}
	}
}

// look records invalid parts of a token request.
func (f *far) look(p *provider, r *http.Request, body []byte) {
	_, _, basic := r.BasicAuth()
	isJSON := strings.HasPrefix(r.Header.Get("Content-Type"), "application/json")
	if want := p.name == "notion"; basic != want || isJSON != want {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.wrong = append(f.wrong, fmt.Sprintf("%s was asked for a token with basic authentication %t, as JSON %t", p.name, basic, isJSON))
	}
	if form, err := url.ParseQuery(string(body)); err == nil && form.Get("code") != "" {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.issued = append(f.issued, form.Get("code_verifier"))
	}
}

// note records issued tokens and formats them like the provider.
func (f *far) note(p *provider, h http.Header, answer []byte) []byte {
	var object map[string]any
	if json.Unmarshal(answer, &object) != nil {
		return answer
	}
	form := url.Values{}
	for name, value := range object {
		form.Set(name, fmt.Sprint(value))
		if strings.HasSuffix(name, "_token") {
			f.mu.Lock()
			f.issued = append(f.issued, fmt.Sprint(value))
			f.mu.Unlock()
		}
	}
	if p.name != "github" {
		return answer
	}
	h.Set("Content-Type", "application/x-www-form-urlencoded; charset=utf-8")
	return []byte(form.Encode())
}

// serve is the API, which returns the caller.
func (f *far) serve(p *provider, w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	f.mu.Lock()
	f.tokens[r.Header.Get(ofWorkspace)] = token
	f.mu.Unlock()
	if !p.auth.Good(token) {
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprint(w, `{"message":"Bad credentials","status":"401"}`)
		return
	}
	if strings.HasSuffix(r.URL.Path, "/me") {
		fmt.Fprintf(w, `{"user":{"email":"ada@%s.example"}}`, p.name)
		return
	}
	fmt.Fprintf(w, `{"provider":%q,"path":%q}`, p.name, r.URL.Path)
}

// ofWorkspace is the header with the workspace of a tool's request.
const ofWorkspace = "X-Of-Workspace"

// seen returns the last token of a workspace's tool.
func (f *far) seen(workspace string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.tokens[workspace]
}

// secrets returns everything that only brokers may see, and what only browsers and brokers may see.
func (f *far) secrets() (issued, passed []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string{clientSecret}, f.issued...), slices.Clone(f.passed)
}

func (f *far) complaints() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string{}, f.wrong...)
}

// describe writes request profiles and OAuth providers with the addresses of this server, and
// returns a broker's settings for them.
func (f *far) describe(t *testing.T) []string {
	t.Helper()
	dir := t.TempDir()
	put := func(name, text string) {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(strings.ReplaceAll(text, "URL", f.URL)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const whoami = "  whoami: {url: URL/NAME/api/me, at: [nobody.here, user.email]}\n"
	for name, text := range map[string]string{
		"google": "endpoints: {authorize: URL/NAME/oauth/authorize, token: URL/NAME/oauth/token, device: URL/NAME/oauth/device, revoke: URL/NAME/oauth/revoke}\nclient: {auth: body}\nconnection:\n  title: Google\n" + whoami,
		"notion": "endpoints: {authorize: URL/NAME/oauth/authorize, token: URL/NAME/oauth/token, revoke: URL/NAME/oauth/revoke, code_page: URL/NAME/oauth/code}\nclient: {auth: basic}\nrequest: {encoding: json}\ntokens: {rotate: true}\nconnection:\n  title: Notion\n" + whoami,
		"github": "endpoints: {authorize: URL/NAME/oauth/authorize, token: URL/NAME/oauth/token}\nclient: {auth: body}\nconnection:\n  title: GitHub\n" + whoami,
		"gitea":  "endpoints: {authorize: URL/NAME/oauth/authorize, token: URL/NAME/oauth/token}\nclient: {auth: body}\nconnection:\n  title: Gitea\n" + whoami,
		"linear": "endpoints: {authorize: URL/NAME/oauth/authorize, token: URL/NAME/oauth/token}\nprofile: generic\nclient: {auth: body}\nconnection: {title: Linear}\n",
	} {
		text = "name: NAME\n" + text
		if name != "linear" {
			text += "profile: NAME\n"
			dialect := name
			if name == "gitea" {
				dialect = "github"
			}
			put("profiles/"+name+".yaml", strings.NewReplacer("NAME", name, "DIALECT", dialect).Replace("name: NAME\ndefault_for: NAME\ndialect: DIALECT\nbase_url: URL/NAME/api\nauth: {header: authorization, scheme: Bearer}\n"))
		}
		put("oauth/"+name+".yaml", strings.ReplaceAll(text, "NAME", name))
	}
	return []string{
		"CREDENTIAL_BROKER_ALLOW_PRIVATE=true",
		"CREDENTIAL_BROKER_PROFILES=" + filepath.Join(dir, "profiles"),
		"CREDENTIAL_BROKER_OAUTH_PROVIDERS=" + filepath.Join(dir, "oauth"),
		"CREDENTIAL_BROKER_OAUTH_CLIENTS=google=us-google:" + clientSecret + ",notion=us-notion:" + clientSecret + ",github=us-github:" + clientSecret + ",gitea=us-gitea:" + clientSecret,
	}
}
