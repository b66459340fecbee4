package authserver

import (
	"encoding/json"
	"fmt"
	"html"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	maxBody     = 64 << 10
	maxPending  = 10_000
	deviceLife  = 15 * time.Minute
	deviceGrant = "urn:ietf:params:oauth:grant-type:device_code"
)

func (s *Server) routes() {
	s.mux.HandleFunc("GET /authorize", s.authorize)
	s.mux.HandleFunc("GET /code", showCode)
	s.mux.HandleFunc("POST /token", s.token)
	s.mux.HandleFunc("POST /device", s.startDevice)
	s.mux.HandleFunc("GET /approve", s.endDevice(true))
	s.mux.HandleFunc("GET /deny", s.endDevice(false))
	s.mux.HandleFunc("POST /revoke", s.revoke)
	s.mux.HandleFunc("GET /me", s.me)
	s.mux.HandleFunc("GET /calls", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, s.Calls()) })
	s.mux.HandleFunc("PUT /settings", s.putSettings)
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client may have left
}

// refuse responds as RFC 6749, 5.2 says. The description quotes the request's secrets, as some
// real servers do, to test that clients do not log them.
func refuse(w http.ResponseWriter, status int, code string, said url.Values) {
	answer(w, status, map[string]string{"error": code, "error_description": "refused: " + said.Get("refresh_token") + said.Get("code")})
}

// parameters decodes a body, form or JSON.
func parameters(w http.ResponseWriter, r *http.Request) (url.Values, bool) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		refuse(w, http.StatusBadRequest, "invalid_request", nil)
		return nil, false
	}
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind == "application/json" {
		var object map[string]string
		if err := json.Unmarshal(body, &object); err != nil {
			refuse(w, http.StatusBadRequest, "invalid_request", nil)
			return nil, false
		}
		all := url.Values{}
		for name, value := range object {
			all.Set(name, value)
		}
		return all, true
	}
	all, err := url.ParseQuery(string(body))
	if err != nil {
		refuse(w, http.StatusBadRequest, "invalid_request", nil)
		return nil, false
	}
	return all, true
}

// client checks the client's credentials. The lock is held.
func (s *Server) client(r *http.Request, p url.Values) bool {
	clientID, secret := p.Get("client_id"), p.Get("client_secret")
	if user, password, ok := r.BasicAuth(); ok {
		clientID, _ = url.QueryUnescape(user)
		secret, _ = url.QueryUnescape(password)
	}
	return (s.settings.ClientID == "" || clientID == s.settings.ClientID) && secret == s.settings.ClientSecret
}

func (s *Server) authorize(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	redirect, err := url.Parse(q.Get("redirect_uri"))
	if err != nil || q.Get("code_challenge_method") != "S256" || q.Get("code_challenge") == "" || q.Get("response_type") != "code" {
		http.Error(w, "want response_type=code, redirect_uri and a code_challenge by S256", http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	s.calls.Authorize++
	if len(s.codes) >= maxPending {
		clear(s.codes)
	}
	text := "code-" + random()
	s.codes[text] = &code{challenge: q.Get("code_challenge"), redirect: q.Get("redirect_uri")}
	s.mu.Unlock()
	back := url.Values{"state": {q.Get("state")}, "code": {text}}
	if redirect.Host == "" {
		fmt.Fprintf(w, "<!doctype html><title>Code</title><p>Paste this: <code>%s</code>\n", html.EscapeString(text+"#"+q.Get("state")))
		return
	}
	redirect.RawQuery = back.Encode()
	http.Redirect(w, r, redirect.String(), http.StatusFound)
}

// showCode is the page for codes that a person pastes, for use as redirect_uri.
func showCode(w http.ResponseWriter, r *http.Request) {
	fmt.Fprintf(w, "<!doctype html><title>Code</title><p>Paste this: <code>%s</code>\n",
		html.EscapeString(r.URL.Query().Get("code")+"#"+r.URL.Query().Get("state")))
}

func (s *Server) token(w http.ResponseWriter, r *http.Request) {
	p, ok := parameters(w, r)
	if !ok {
		return
	}
	s.mu.Lock()
	known := s.client(r, p)
	s.mu.Unlock()
	switch grant := p.Get("grant_type"); {
	case grant == "refresh_token":
		s.renew(w, r, p, known)
	case !known:
		refuse(w, http.StatusUnauthorized, "invalid_client", p)
	case grant == "authorization_code":
		s.exchange(w, p)
	case grant == deviceGrant:
		s.poll(w, p)
	default:
		refuse(w, http.StatusBadRequest, "unsupported_grant_type", p)
	}
}

// issued is the response with tokens.
type issued struct {
	Access  string  `json:"access_token"`
	Refresh string  `json:"refresh_token,omitempty"`
	Type    string  `json:"token_type"`
	Life    float64 `json:"expires_in,omitempty"`
	Scope   string  `json:"scope,omitempty"`
}

// grant issues the first tokens of a family. The lock is held.
func (s *Server) grant() (issued, bool) {
	if s.families >= MaxFamilies {
		return issued{}, false
	}
	s.families++
	a, f := s.issue(&family{})
	return issued{Access: a, Refresh: f, Type: "bearer", Life: s.life().Seconds()}, true
}

func (s *Server) exchange(w http.ResponseWriter, p url.Values) {
	s.mu.Lock()
	s.calls.Exchange++
	c, ok := s.codes[p.Get("code")]
	delete(s.codes, p.Get("code"))
	ok = ok && c.redirect == p.Get("redirect_uri") && proves(p.Get("code_verifier"), c.challenge)
	var t issued
	if ok {
		t, ok = s.grant()
	}
	s.mu.Unlock()
	if !ok {
		refuse(w, http.StatusBadRequest, "invalid_grant", p)
		return
	}
	answer(w, http.StatusOK, t)
}

func (s *Server) revoke(w http.ResponseWriter, r *http.Request) {
	p, ok := parameters(w, r)
	if !ok {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls.Revoke++
	if !s.client(r, p) {
		refuse(w, http.StatusUnauthorized, "invalid_client", p)
		return
	}
	if t, ok := s.refresh[p.Get("token")]; ok {
		t.family.ended = true
	}
	if t, ok := s.access[p.Get("token")]; ok {
		t.dead = true
	}
	w.WriteHeader(http.StatusOK) // also for unknown tokens
}

func (s *Server) me(w http.ResponseWriter, r *http.Request) {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok || !s.Good(token) {
		refuse(w, http.StatusUnauthorized, "invalid_token", nil)
		return
	}
	answer(w, http.StatusOK, map[string]string{"name": "Somebody"})
}

func (s *Server) putSettings(w http.ResponseWriter, r *http.Request) {
	var v Settings
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil {
		http.Error(w, "settings: "+err.Error(), http.StatusBadRequest)
		return
	}
	s.Set(v)
	w.WriteHeader(http.StatusNoContent)
}
