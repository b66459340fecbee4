package gateway_test

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"

	"signalbox.dev/services/gateway"
)

// provider is an OpenID Connect provider that signs everybody in without asking, and lies as it
// is told. The tests of the console use a real one.
type provider struct {
	*httptest.Server
	key *rsa.PrivateKey

	mu     sync.Mutex // guards the rest
	down   bool
	names  bool              // it sends iss with its answers
	claims map[string]any    // beside or instead of the standard ones
	sign   jwt.SigningMethod // RS256 when nil
	codes  map[string]url.Values
}

func newProvider(t *testing.T) *provider {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	p := &provider{key: key, codes: map[string]url.Values{}}
	mux := http.NewServeMux()
	reply := func(w http.ResponseWriter, v any) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v)
	}
	mux.HandleFunc("GET /.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.down {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		reply(w, map[string]any{
			"issuer": p.URL, "authorization_endpoint": p.URL + "/authorize", "token_endpoint": p.URL + "/token", "jwks_uri": p.URL + "/keys",
			"id_token_signing_alg_values_supported": []string{"RS256"}, "authorization_response_iss_parameter_supported": p.names,
		})
	})
	mux.HandleFunc("GET /keys", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, map[string]any{"keys": []any{map[string]any{
			"kty": "RSA", "kid": "one", "alg": "RS256", "use": "sig", "n": base64.RawURLEncoding.EncodeToString(key.N.Bytes()),
			"e": base64.RawURLEncoding.EncodeToString(big.NewInt(int64(key.E)).Bytes()),
		}}})
	})
	mux.HandleFunc("GET /authorize", func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		defer p.mu.Unlock()
		q := r.URL.Query()
		code := rand.Text()
		p.codes[code] = q
		back := url.Values{"code": {code}, "state": q["state"]}
		if p.names {
			back.Set("iss", p.URL)
		}
		http.Redirect(w, r, q.Get("redirect_uri")+"?"+back.Encode(), http.StatusFound)
	})
	mux.HandleFunc("POST /token", func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		defer p.mu.Unlock()
		begun, ok := p.codes[r.FormValue("code")]
		delete(p.codes, r.FormValue("code"))
		challenge := sha256.Sum256([]byte(r.FormValue("code_verifier")))
		client, secret, _ := r.BasicAuth()
		if !ok || begun.Get("code_challenge") != base64.RawURLEncoding.EncodeToString(challenge[:]) || begun.Get("code_challenge_method") != "S256" ||
			client != "signalbox" || secret != "client-secret-of-thirty-two-bytes" {
			w.WriteHeader(http.StatusBadRequest)
			reply(w, map[string]any{"error": "invalid_grant"})
			return
		}
		claims := jwt.MapClaims{
			"iss": p.URL, "aud": "signalbox", "sub": "someone", "nonce": begun.Get("nonce"), "iat": time.Now().Unix(), "exp": time.Now().Add(time.Minute).Unix(),
			"email": "Someone@Example.com", "email_verified": true, "name": "Some One",
		}
		maps.Copy(claims, p.claims)
		method, with := jwt.SigningMethod(jwt.SigningMethodRS256), any(key)
		switch p.sign {
		case nil:
		case jwt.SigningMethodNone:
			method, with = p.sign, jwt.UnsafeAllowNoneSignatureType
		default:
			method, with = p.sign, []byte("client-secret-of-thirty-two-bytes")
		}
		token := jwt.NewWithClaims(method, claims)
		token.Header["kid"] = "one"
		signed, err := token.SignedString(with)
		if err != nil {
			t.Error(err)
		}
		reply(w, map[string]any{"access_token": "unused", "token_type": "Bearer", "id_token": signed})
	})
	p.Server = httptest.NewServer(mux)
	t.Cleanup(p.Close)
	return p
}

// company starts a gateway whose people sign in at the provider.
func (w *world) company(t *testing.T, p *provider, domains ...string) *instance {
	t.Helper()
	in := w.gateway(t, func(c *gateway.Config) {
		c.OIDC = gateway.OIDCConfig{
			Issuer: p.URL, ClientID: "signalbox", ClientSecret: "client-secret-of-thirty-two-bytes", RedirectURL: "http://signalbox.example" + gateway.OIDCCallbackPath,
			Name: "Acme", Domains: domains, Session: time.Hour,
		}
	})
	in.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return in
}

// begin begins a sign-in, visits the provider, and returns the attempt's cookie and the address
// to which the provider sends the browser. The browser may have cookies.
func (in *instance) begin(t *testing.T, query string, cookies ...*http.Cookie) (*http.Cookie, *url.URL) {
	t.Helper()
	got := in.send(t, in.request(t, person{}, "GET", "/api/sign-in/oidc"+query, "", func(r *http.Request) {
		for _, c := range cookies {
			r.AddCookie(c)
		}
	}))
	if got.status != http.StatusSeeOther {
		t.Fatalf("begin = %d %s, want 303", got.status, got.body)
	}
	c, err := http.ParseSetCookie(got.header.Get("Set-Cookie"))
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), "GET", got.header.Get("Location"), nil)
	if err != nil {
		t.Fatal(err)
	}
	back, err := in.send(t, req).location()
	if err != nil {
		t.Fatal(err)
	}
	return c, back
}

func (a answer) location() (*url.URL, error) { return url.Parse(a.header.Get("Location")) }

// finish opens the page to which the provider sent the browser.
func (in *instance) finish(t *testing.T, c *http.Cookie, back *url.URL) answer {
	t.Helper()
	return in.send(t, in.request(t, person{}, "GET", back.RequestURI(), "", withCookie(c)))
}

func (in *instance) companySession(t *testing.T, got answer) *http.Cookie {
	t.Helper()
	for _, line := range got.header.Values("Set-Cookie") {
		if c, err := http.ParseSetCookie(line); err == nil && c.Name == "signalbox_session" {
			return c
		}
	}
	t.Fatalf("sign in = %d %s, want a session", got.status, got.body)
	return nil
}

func TestCompanySignIn(t *testing.T) {
	t.Parallel()
	w, p := newWorld(t), newProvider(t)
	in := w.company(t, p)
	methods := call[map[string]map[string]string](t, in, person{}, "GET", "/api/sign-in", "", http.StatusOK)
	if methods["company"]["name"] != "Acme" || methods["company"]["path"] != "/api/sign-in/oidc" {
		t.Errorf("methods = %v", methods)
	}

	c, back := in.begin(t, "")
	if got := in.finish(t, c, back); got.status != http.StatusForbidden || !strings.Contains(got.body, "Nobody has invited someone@example.com") {
		t.Fatalf("without an invitation = %d %s, want 403", got.status, got.body)
	}
	path := "/api/workspaces/" + w.workspace.String()
	editor := w.join(t, w.workspace, identity.Editor)
	call[object](t, in, editor, "POST", path+"/invitations", `{"email":"x@example.com","role":"viewer"}`, http.StatusForbidden)
	for _, bad := range []string{"", "someone", "Some One <someone@example.com>", "a@b\r\nc"} {
		body, _ := json.Marshal(map[string]string{"email": bad, "role": "viewer"})
		call[object](t, in, w.owner, "POST", path+"/invitations", string(body), http.StatusBadRequest)
	}
	for _, role := range []string{"owner", "viewer"} { // the second replaces the first
		call[object](t, in, w.owner, "POST", path+"/invitations", fmt.Sprintf(`{"email":"SomeOne@example.com","role":%q}`, role), http.StatusCreated)
	}
	call[object](t, in, w.owner, "POST", path+"/invitations", `{"email":"other@example.com","role":"viewer"}`, http.StatusCreated)
	call[object](t, in, w.owner, "DELETE", path+"/invitations/other@example.com", "", http.StatusOK)

	c, back = in.begin(t, "?return_to=/w/acme/s/1")
	got := in.finish(t, c, back)
	session := in.companySession(t, got)
	if to, _ := got.location(); got.status != http.StatusSeeOther || to.String() != "/w/acme/s/1" {
		t.Errorf("after the sign-in = %d to %s", got.status, to)
	}
	if !session.HttpOnly || session.SameSite != http.SameSiteStrictMode || session.MaxAge != 3600 {
		t.Errorf("session = %v", session)
	}
	here := person{workspace: w.workspace}
	me := call[object](t, in, here, "GET", "/api/me", "", http.StatusOK, withCookie(session))
	if me["name"] != "Some One" || me["email"] != "someone@example.com" {
		t.Errorf("me = %v", me)
	}
	call[object](t, in, here, "POST", "/api/sessions", "", http.StatusForbidden, withCookie(session)) // a viewer
	var listed bool
	for _, m := range call[map[string][]object](t, in, w.owner, "GET", path+"/members", "", http.StatusOK)["members"] {
		listed = listed || m["name"] == "Some One" && m["email"] == "someone@example.com" && m["role"] == "viewer" && m["member_id"] == me["member_id"]
	}
	if !listed {
		t.Error("the person is not in the list of members")
	}
	if open := call[map[string][]object](t, in, w.owner, "GET", path+"/invitations", "", http.StatusOK)["invitations"]; len(open) != 0 {
		t.Errorf("open invitations = %v, want none: the one is used, the other withdrawn", open)
	}
	if got := in.finish(t, c, back); got.status != http.StatusUnauthorized {
		t.Errorf("the same code again = %d, want 401", got.status)
	}

	audit := call[map[string][]object](t, in, w.owner, "GET", "/api/audit", "", http.StatusOK)["audit"]
	if !slices.ContainsFunc(audit, func(r object) bool {
		return r["action"] == "member-joined" && r["member_id"] == me["member_id"] && r["subject"] == "someone@example.com" && r["detail"] == "viewer, invited"
	}) {
		t.Errorf("the audit has no row about who joined: %v", audit)
	}

	taken := call[object](t, in, w.owner, "POST", path+"/invitations", `{"email":"SomeOne@example.com","role":"owner"}`, http.StatusConflict)
	if taken["code"] != "ALREADY_MEMBER" || taken["error"] != "this address belongs to a member already, with the role viewer: change the role in the list of members, or remove the member first if the person now signs in with another account" {
		t.Errorf("inviting a member = %v", taken)
	}

	// The invitation is used up, and another that was open goes with the membership: who was
	// removed stays out.
	member := path + "/members/" + me["member_id"].(string)
	call[object](t, in, w.owner, "DELETE", member, "", http.StatusOK)
	call[object](t, in, w.owner, "POST", path+"/invitations", `{"email":"someone@example.com","role":"owner"}`, http.StatusCreated)
	call[object](t, in, w.owner, "POST", path+"/members", fmt.Sprintf(`{"member_id":%q,"role":"viewer"}`, me["member_id"]), http.StatusCreated)
	call[object](t, in, w.owner, "DELETE", member, "", http.StatusOK)
	c, back = in.begin(t, "")
	if got := in.finish(t, c, back); got.status != http.StatusForbidden {
		t.Errorf("after the removal = %d, want 403", got.status)
	}

	// So do the invitations of an owner who is one no longer.
	second := w.join(t, w.workspace, identity.Owner)
	call[object](t, in, second, "POST", path+"/invitations", `{"email":"someone@example.com","role":"owner"}`, http.StatusCreated)
	call[object](t, in, w.owner, "PATCH", path+"/members/"+second.member.String(), `{"role":"viewer"}`, http.StatusOK)
	c, back = in.begin(t, "")
	if got := in.finish(t, c, back); got.status != http.StatusForbidden {
		t.Errorf("invited by a former owner = %d, want 403", got.status)
	}
	if log := in.log.String(); strings.Contains(log, back.Query().Get("code")) {
		t.Error("the log has a code")
	}
}

// After a refusal the provider asks for the account: it would give the same one again.
func TestCompanyOtherAccount(t *testing.T) {
	t.Parallel()
	w, p := newWorld(t), newProvider(t)
	in := w.company(t, p)
	cookie := &http.Cookie{Name: "signalbox_oidc"}
	// attempt signs in with the browser's cookie, and returns the prompt that the provider was sent.
	attempt := func(forge func(url.Values)) (prompt string, got answer) {
		t.Helper()
		c, back := in.begin(t, "?return_to=/w/acme", cookie)
		q := back.Query()
		p.mu.Lock()
		prompt = p.codes[q.Get("code")].Get("prompt")
		p.mu.Unlock()
		forge(q)
		back.RawQuery = q.Encode()
		got = in.finish(t, c, back)
		if line := got.header.Get("Set-Cookie"); line != "" {
			var err error
			if c, err = http.ParseSetCookie(line); err != nil {
				t.Fatal(err)
			}
		}
		cookie = c
		return prompt, got
	}
	fails := func(code string) func(url.Values) {
		return func(q url.Values) { q.Del("code"); q.Set("error", code) }
	}
	for _, step := range []struct {
		name   string
		answer func(url.Values)
		prompt string // with which it was begun
		status int
	}{
		{"the first", func(url.Values) {}, "", http.StatusForbidden},
		{"after a refusal", fails("access_denied"), "select_account", http.StatusUnauthorized},
		{"after one by the provider", fails("invalid_request"), "select_account", http.StatusUnauthorized},
		{"after one of the prompt", func(url.Values) {}, "login", http.StatusForbidden},
		{"after a refusal with that prompt", func(q url.Values) { q.Set("state", "another") }, "login", http.StatusUnauthorized},
		{"after an answer to another attempt", fails("temporarily_unavailable"), "", http.StatusUnauthorized},
		{"after an outage", func(url.Values) {}, "", http.StatusForbidden},
	} {
		if prompt, got := attempt(step.answer); prompt != step.prompt || got.status != step.status {
			t.Errorf("%s: prompt %q, %d %s, want %q, %d", step.name, prompt, got.status, got.body, step.prompt, step.status)
		}
	}
	call[object](t, in, w.owner, "POST", "/api/workspaces/"+w.workspace.String()+"/invitations", `{"email":"someone@example.com","role":"viewer"}`, http.StatusCreated)
	prompt, got := attempt(func(url.Values) {})
	if to, _ := got.location(); prompt != "select_account" || got.status != http.StatusSeeOther || to.String() != "/w/acme" {
		t.Errorf("the invited account: prompt %q, %d to %s, want a sign-in", prompt, got.status, to)
	}
	in.companySession(t, got)
}

func TestCompanyDomains(t *testing.T) {
	t.Parallel()
	w, p := newWorld(t), newProvider(t)
	in := w.company(t, p, "example.com="+w.workspace.String()+":editor", "free.example", "work.example")
	here := person{workspace: w.workspace}
	c, back := in.begin(t, "")
	session := in.companySession(t, in.finish(t, c, back))
	call[object](t, in, here, "POST", "/api/sessions", "", http.StatusCreated, withCookie(session))
	member := call[object](t, in, here, "GET", "/api/me", "", http.StatusOK, withCookie(session))["member_id"].(string)

	// Who was removed may sign in, and does not join again.
	call[object](t, in, w.owner, "DELETE", "/api/workspaces/"+w.workspace.String()+"/members/"+member, "", http.StatusOK)
	c, back = in.begin(t, "")
	session = in.companySession(t, in.finish(t, c, back))
	call[object](t, in, here, "GET", "/api/sessions", "", http.StatusForbidden, withCookie(session))

	// Who joins no workspace makes one.
	p.claims = map[string]any{"sub": "another", "email": "a@free.example"}
	c, back = in.begin(t, "")
	session = in.companySession(t, in.finish(t, c, back))
	made := call[map[string]object](t, in, person{}, "POST", "/api/workspaces", `{"name":"Mine"}`, http.StatusCreated, withCookie(session))
	if made["workspace"]["role"] != "owner" {
		t.Errorf("workspace = %v", made)
	}
	for _, claims := range []map[string]any{
		{"sub": "third", "email": "a@notexample.com"},
		{"sub": "third", "email": "a@sub.example.com"},
		{"sub": "third", "email": "example.com"},
		{"sub": "third", "email": "a@example.com", "email_verified": false},
		{"sub": "third", "email": "a@example.com", "email_verified": nil},
		{"sub": "third", "email": "a@evil.example@example.com"},
		{"sub": "third", "email": "a@wor\u212a.example"}, // the Kelvin sign, whose lower case is k
		{"sub": "third", "email": nil},
	} {
		p.claims = claims
		c, back = in.begin(t, "")
		if got := in.finish(t, c, back); got.status != http.StatusForbidden {
			t.Errorf("%v = %d, want 403", claims, got.status)
		}
	}
}

func TestCompanySignInForged(t *testing.T) {
	t.Parallel()
	w, p := newWorld(t), newProvider(t)
	p.names = true
	in := w.company(t, p, "example.com")
	refused := func(name string, got answer) {
		t.Helper()
		session := slices.ContainsFunc(got.header.Values("Set-Cookie"), func(c string) bool { return strings.HasPrefix(c, "signalbox_session=") })
		if got.status != http.StatusUnauthorized || session {
			t.Errorf("%s = %d %s, want 401 without a session", name, got.status, got.body)
		}
	}
	with := func(back *url.URL, name, value string) *url.URL {
		u, q := *back, back.Query()
		q.Set(name, value)
		u.RawQuery = q.Encode()
		return &u
	}
	other, theirs := in.begin(t, "")
	for name, forge := range map[string]func(c *http.Cookie, back *url.URL) (*http.Cookie, *url.URL){
		"no cookie": func(_ *http.Cookie, back *url.URL) (*http.Cookie, *url.URL) {
			return &http.Cookie{Name: "x", Value: "x"}, back
		},
		"an empty cookie": func(c *http.Cookie, back *url.URL) (*http.Cookie, *url.URL) {
			return &http.Cookie{Name: c.Name, Value: "..."}, with(back, "state", "")
		},
		"another browser": func(_ *http.Cookie, back *url.URL) (*http.Cookie, *url.URL) { return other, back },
		"another state": func(c *http.Cookie, back *url.URL) (*http.Cookie, *url.URL) {
			return c, with(back, "state", theirs.Query().Get("state"))
		},
		"another issuer": func(c *http.Cookie, back *url.URL) (*http.Cookie, *url.URL) {
			return c, with(back, "iss", "https://evil.example")
		},
		"no issuer": func(c *http.Cookie, back *url.URL) (*http.Cookie, *url.URL) { return c, with(back, "iss", "") },
		"another sign-in's code": func(c *http.Cookie, back *url.URL) (*http.Cookie, *url.URL) {
			return c, with(back, "code", theirs.Query().Get("code"))
		},
		"an error": func(c *http.Cookie, back *url.URL) (*http.Cookie, *url.URL) {
			return c, with(with(back, "code", ""), "error", "access_denied")
		},
	} {
		c, back := forge(in.begin(t, ""))
		refused(name, in.finish(t, c, back))
	}
	for name, claims := range map[string]map[string]any{
		"another nonce": {"nonce": "x"}, "no nonce": {"nonce": ""}, "for another client": {"aud": "another"}, "of another issuer": {"iss": "https://evil.example"},
		"expired": {"exp": time.Now().Add(-time.Hour).Unix()}, "of nobody": {"sub": ""},
	} {
		p.claims = claims
		c, back := in.begin(t, "")
		refused("an ID token "+name, in.finish(t, c, back))
	}
	p.claims = nil
	for _, method := range []jwt.SigningMethod{jwt.SigningMethodNone, jwt.SigningMethodHS256} {
		p.sign = method
		c, back := in.begin(t, "")
		refused("an ID token signed with "+method.Alg(), in.finish(t, c, back))
	}
	p.sign = nil
	for _, to := range []string{"//evil.example", "https://evil.example", `/\evil.example`, "/x\n", "javascript:alert(1)", "/%0d%0aSet-Cookie:x"} {
		c, back := in.begin(t, "?return_to="+url.QueryEscape(to))
		if got := in.finish(t, c, back); got.header.Get("Location") != "/" {
			t.Errorf("return_to=%q leads to %q, want /", to, got.header.Get("Location"))
		}
	}
	// Who guesses is told to wait.
	var last answer
	for range 40 {
		last = in.finish(t, &http.Cookie{Name: "signalbox_oidc", Value: "a.b.c.Lw"}, &url.URL{Path: theirs.Path, RawQuery: "state=a&code=x&iss=" + url.QueryEscape(p.URL)})
	}
	if last.status != http.StatusTooManyRequests {
		t.Errorf("after 40 guesses = %d, want 429", last.status)
	}
}

func TestCompanyUnavailable(t *testing.T) {
	t.Parallel()
	w, p := newWorld(t), newProvider(t)
	p.down = true
	in := w.company(t, p, "example.com")
	for range 2 { // the second does not ask
		if got := in.send(t, in.request(t, person{}, "GET", "/api/sign-in/oidc", "", nil)); got.status != http.StatusServiceUnavailable || !strings.Contains(got.body, "does not answer") {
			t.Errorf("begin = %d %s, want 503", got.status, got.body)
		}
	}
	plain := w.gateway(t)
	if got := plain.send(t, plain.request(t, person{}, "GET", "/api/sign-in/oidc", "", nil)); got.status != http.StatusNotFound {
		t.Errorf("begin without a provider = %d %s, want 404", got.status, got.body)
	}
	call[object](t, plain, w.owner, "POST", "/api/workspaces/"+w.workspace.String()+"/invitations", `{"email":"a@example.com","role":"viewer"}`, http.StatusConflict)
}

func TestCompanySettings(t *testing.T) {
	t.Parallel()
	ws := id.New[id.Workspace]().String()
	for domain, good := range map[string]bool{
		"example.com": true, "Example.com": true, "a.b.example": true, "example.com=" + ws + ":viewer": true,
		"": false, "example": false, "@example.com": false, "example.com=" + ws: false, "example.com=" + ws + ":admin": false, "example.com=x:viewer": false, "*": false,
	} {
		cfg := gateway.Config{OIDC: gateway.OIDCConfig{Issuer: "https://issuer.example", ClientID: "x", RedirectURL: "https://signalbox.example/api/sign-in/oidc/callback", Session: time.Hour, Domains: []string{domain}}}
		if err := cfg.Validate(); strings.Contains(err.Error(), "GATEWAY_OIDC") == good {
			t.Errorf("GATEWAY_OIDC_DOMAINS=%q: %v, want good: %t", domain, err, good)
		}
	}
}
