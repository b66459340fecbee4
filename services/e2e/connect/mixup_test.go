package connect_test

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
)

// document is the URL of the client document: https as seen from outside, where something in
// front of the gateways ends TLS.
func (r *rig) document() string {
	return strings.Replace(r.front, "http://", "https://", 1) + "/api/connections/client.json"
}

// site is an MCP server that is its own authorization server. It knows clients by their client
// metadata document only, which it fetches, or by registration with itself.
type site struct {
	*httptest.Server
	r     *rig
	names bool   // it promises iss, and sends it
	sends bool   // it sends iss
	to    string // a hostile server sends browsers on to this authorization endpoint

	mu    sync.Mutex            // guards the rest
	codes map[string]url.Values // the authorization requests by the codes issued for them
	given []url.Values          // the requests to a hostile server's token endpoint
}

func (r *rig) site(s *site) *site {
	s.r, s.codes = r, map[string]url.Values{}
	s.Server = httptest.NewServer(s)
	r.t.Cleanup(s.Close)
	return s
}

// ServeHTTP implements http.Handler.
func (s *site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	q := r.URL.Query()
	switch r.URL.Path {
	case "/.well-known/oauth-protected-resource":
		_, _ = fmt.Fprintf(w, `{"resource": "%[1]s", "authorization_servers": ["%[1]s"]}`, s.URL)
	case "/.well-known/oauth-authorization-server":
		_, _ = fmt.Fprintf(w, `{"issuer": "%[1]s", "authorization_endpoint": "%[1]s/authorize", "token_endpoint": "%[1]s/token", "registration_endpoint": "%[1]s/register",
			"code_challenge_methods_supported": ["S256"], "token_endpoint_auth_methods_supported": ["none"],
			"client_id_metadata_document_supported": true, "authorization_response_iss_parameter_supported": %[2]t}`, s.URL, s.names)
	case "/register":
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, `{"client_id": "registered", "token_endpoint_auth_method": "none"}`)
	case "/authorize":
		if s.to != "" {
			s.sendOn(w, r, q)
			return
		}
		s.authorize(w, r, q)
	case "/token":
		s.token(w, r)
	default:
		w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer resource_metadata="%s/.well-known/oauth-protected-resource"`, s.URL))
		w.WriteHeader(http.StatusUnauthorized)
	}
}

// redirects returns the pages that the client document lists, as the test's browser reaches them.
func (s *site) redirects() (client string, all []string) {
	res, err := http.Get(strings.Replace(s.r.document(), "https://", "http://", 1)) //nolint:noctx // ends with the servers
	if err != nil {
		return "", nil
	}
	defer res.Body.Close()
	var doc struct {
		ID        string   `json:"client_id"`
		Redirects []string `json:"redirect_uris"`
	}
	if json.NewDecoder(res.Body).Decode(&doc) != nil {
		return "", nil
	}
	for _, uri := range doc.Redirects {
		all = append(all, strings.Replace(uri, "https://", "http://", 1))
	}
	return doc.ID, all
}

// sendOn is the attack: the browser goes to the honest server with the state and the challenge of
// the sign-in that began here, as the client that everybody knows.
func (s *site) sendOn(w http.ResponseWriter, r *http.Request, q url.Values) {
	q.Set("client_id", s.r.document())
	_, all := s.redirects()
	back, err := url.Parse(q.Get("redirect_uri"))
	if err != nil || len(all) < 2 {
		http.Error(w, "the client document lists no pages", http.StatusInternalServerError)
		return
	}
	listed := all[0]
	if "http://"+back.Host != s.r.front {
		listed = strings.Replace(all[1], "127.0.0.1", back.Host, 1)
	}
	q.Set("redirect_uri", listed)
	q.Set("resource", strings.TrimSuffix(s.to, "/authorize"))
	http.Redirect(w, r, s.to+"?"+q.Encode(), http.StatusFound)
}

// authorize issues a code, as after a person's consent.
func (s *site) authorize(w http.ResponseWriter, r *http.Request, q url.Values) {
	client, all := s.redirects()
	back, err := url.Parse(q.Get("redirect_uri"))
	if err != nil || q.Get("client_id") != client {
		http.Error(w, "unknown client", http.StatusBadRequest)
		return
	}
	listed := *back
	if listed.Scheme == "http" && listed.Hostname() == "127.0.0.1" && "http://"+listed.Host != s.r.front { // any port of the loopback address
		listed.Host = listed.Hostname()
	}
	if !slices.Contains(all, listed.String()) {
		http.Error(w, "the client has no such redirect URI", http.StatusBadRequest)
		return
	}
	code := rand.Text()
	s.mu.Lock()
	s.codes[code] = q
	s.mu.Unlock()
	answer := url.Values{"code": {code}, "state": {q.Get("state")}}
	if s.names || s.sends {
		answer.Set("iss", s.URL)
	}
	back.RawQuery = answer.Encode()
	http.Redirect(w, r, back.String(), http.StatusFound)
}

// token issues a token for a code to whoever has its verifier.
func (s *site) token(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.to != "" {
		s.given = append(s.given, r.PostForm)
	}
	asked, ok := s.codes[r.PostForm.Get("code")]
	delete(s.codes, r.PostForm.Get("code"))
	sum := sha256.Sum256([]byte(r.PostForm.Get("code_verifier")))
	if !ok || asked.Get("code_challenge") != base64.RawURLEncoding.EncodeToString(sum[:]) ||
		asked.Get("client_id") != r.PostForm.Get("client_id") || asked.Get("redirect_uri") != r.PostForm.Get("redirect_uri") {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"error": "invalid_grant"}`)
		return
	}
	_, _ = io.WriteString(w, `{"access_token": "`+rand.Text()+`", "token_type": "Bearer", "expires_in": 3600}`)
}

// stolen returns what a hostile server was sent.
func (s *site) stolen() []url.Values {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.given)
}

// addServer adds an MCP server and begins to sign in to it. It returns the login.
func (b *browser) addServer(name string, s *site, body string) (id, link string) {
	b.r.t.Helper()
	made, _ := b.want(http.StatusCreated, http.MethodPost, "/api/mcp-servers", fmt.Sprintf(`{"name":%q,"url":%q}`, name, s.URL)).object()["mcp_server"].(map[string]any)
	login, _ := b.want(http.StatusCreated, http.MethodPost, fmt.Sprintf("/api/mcp-servers/%v/sign-in", made["id"]), body).object()["login"].(map[string]any)
	id, _ = login["id"].(string)
	link, _ = login["url"].(string)
	return id, link
}

// backFrom opens a link and goes where servers send the browser on to, until it comes back.
func (b *browser) backFrom(link string) (back *url.URL) {
	b.r.t.Helper()
	for range 5 {
		got := b.open(link)
		link = got.header.Get("Location")
		u, err := url.Parse(link)
		if err != nil || link == "" {
			b.r.t.Fatalf("the browser was not sent on: %s", got)
		}
		if u.Query().Has("code") {
			return u
		}
	}
	b.r.t.Fatal("the browser was sent on and on")
	return nil
}

const commandLine = "http://127.0.0.1:49152/callback"

// mixUp: a hostile server sends the browser on to an honest one, with the client that all servers
// know, and never gets the honest server's code.
func mixUp(r *rig) {
	for name, honest := range map[string]*site{"silent": r.site(&site{}), "named": r.site(&site{sends: true})} {
		hostile := r.site(&site{to: honest.URL + "/authorize"})
		own := r.in(r.t)
		b := own.browser(own.owner)

		_, link := b.addServer("page", hostile, `{}`)
		back := b.backFrom(link)
		if got := b.open(back.String()); got.status < 400 {
			r.t.Errorf("%s: the page completes the sign-in: %s", name, got)
		}
		id, link := b.addServer("line", hostile, fmt.Sprintf(`{"redirect":%q}`, commandLine))
		back = b.backFrom(link)
		q := back.Query()
		for _, tt := range []struct { // the second ends the sign-in
			redirect string
			want     int
		}{{"", http.StatusBadRequest}, {back.Path, http.StatusConflict}} {
			body, err := json.Marshal(map[string]string{"state": q.Get("state"), "code": q.Get("code"), "iss": q.Get("iss"), "redirect": tt.redirect})
			if err != nil {
				r.t.Fatal(err)
			}
			b.want(tt.want, http.MethodPost, "/api/accounts/logins/"+id+"/complete", string(body))
		}
		if got := hostile.stolen(); len(got) > 0 {
			r.t.Errorf("%s: the hostile server was sent %v", name, got)
		}
	}
}

// document: a server that promises to name itself knows the client by its document, and its
// answers come to the document's own page.
func document(r *rig) {
	honest := r.site(&site{names: true})
	b := r.browser(r.owner)
	_, link := b.addServer("page", honest, `{}`)
	back := b.backFrom(link)
	if want := "/api/connections/callback/document"; back.Path != want {
		r.t.Errorf("the browser was sent back to %s, want %s", back.Path, want)
	}
	mute := *back
	q := back.Query()
	q.Del("iss")
	mute.RawQuery = q.Encode()
	if got := b.open(mute.String()); got.status != http.StatusBadRequest {
		r.t.Errorf("an answer without iss = %s, want 400", got)
	}
	if got := b.open(back.String()); got.status != http.StatusSeeOther {
		r.t.Errorf("the callback = %s, want 303", got)
	}

	other := r.in(r.t)
	b = other.browser(other.owner)
	for redirect, want := range map[string]int{"/callback": http.StatusConflict, "/callback/document": http.StatusOK} {
		id, link := b.addServer("line-"+fmt.Sprint(want), honest, fmt.Sprintf(`{"redirect":%q}`, commandLine))
		q := b.backFrom(link).Query()
		body := fmt.Sprintf(`{"state":%q,"code":%q,"iss":%q,"redirect":%q}`, q.Get("state"), q.Get("code"), q.Get("iss"), redirect)
		b.want(want, http.MethodPost, "/api/accounts/logins/"+id+"/complete", body)
	}
}
