// Package authserver is a simulated OAuth 2.0 authorisation server: it grants every request and
// can fail in the ways in which real servers do. Tests of OAuth clients use it, and the
// simulator serves it under /oauth for people who try the product.
//
//	GET  authorize   sends the browser back with a code at once; without a redirect_uri,
//	                 or with the server's own /code, the code is shown for pasting
//	POST token       authorization_code (PKCE S256), refresh_token, device_code; form or JSON
//	POST device      RFC 8628; GET approve?user_code= and deny?user_code= end it
//	POST revoke      RFC 7009
//	GET  me          200 or 401, by the bearer token
//	GET  calls       Calls as JSON
//	PUT  settings    sets the Settings from JSON
//
// A family has all tokens of one sign-in. With Rotate a refresh token is valid for one use, and
// for repetitions within GraceSeconds of it; with ReuseEnds a later use ends the whole family.
// Scripted faults (Fault) apply to the next refreshes, in order. All state is in memory and
// bounded by MaxFamilies.
package authserver

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"net/http"
	"sync"
	"time"
)

const (
	// MaxFamilies bounds the number of sign-ins; more are refused.
	MaxFamilies = 100_000
	maxTokens   = 1000 // of a family
)

// Settings configure the server. The zero value is for a public client, without rotation and
// with access tokens that live for an hour.
type Settings struct {
	ClientID     string `json:"client_id"`     // empty: any
	ClientSecret string `json:"client_secret"` // empty: none is required
	// LifeSeconds is the lifetime of access tokens; 0 means an hour, negative means for ever.
	LifeSeconds float64 `json:"life_seconds"`
	// Rotate makes refresh tokens valid for one use, and for repetitions within GraceSeconds.
	Rotate       bool    `json:"rotate"`
	GraceSeconds float64 `json:"grace_seconds"`
	// ReuseEnds ends the family if a used token is used again after GraceSeconds.
	ReuseEnds bool `json:"reuse_ends"`
	// EndsAccess makes a refresh revoke the previous access token.
	EndsAccess bool `json:"ends_access"`
	// NoRefresh issues access tokens without refresh tokens.
	NoRefresh bool `json:"no_refresh"`
	// Interval is the interval of a device's polls in seconds; 0 means 5.
	Interval int `json:"interval"`
}

// Fault is a scripted fault of one refresh.
type Fault struct {
	// Status, if set, is the response's status, with Code as the error. Unless After is set,
	// nothing else happens.
	Status int
	Code   string
	// RetryAfter is sent with Status.
	RetryAfter string
	// Drop closes the connection before anything has happened or, with After, after the tokens
	// were rotated.
	Drop, After bool
	// Garbage responds with a 200 that is not JSON, after the rotation.
	Garbage bool
	// Wait delays the response, before the rotation or, with After, after it.
	Wait <-chan struct{}
}

// Calls are the counts of requests.
type Calls struct {
	Authorize, Exchange, Device, Poll, Revoke int
	// Refresh counts refresh requests, Refreshed those that issued tokens, and Graced those of
	// them that repeated a used token.
	Refresh, Refreshed, Graced int
	// Reused counts refresh tokens that were used again after their grace, and Ended the families
	// that this ended.
	Reused, Ended int
}

// Server is the server's handler. New returns one.
type Server struct {
	mux *http.ServeMux
	now func() time.Time

	mu       sync.Mutex // guards what follows
	settings Settings
	calls    Calls
	faults   []Fault
	watch    func(stage string)
	codes    map[string]*code    // authorisation codes
	devices  map[string]*device  // by device code
	refresh  map[string]*refresh // refresh tokens, used ones too
	access   map[string]*access
	families int
}

// family is one sign-in; tokens point to it.
type family struct {
	ended   bool
	current string // latest access token
	tokens  []string
}

type code struct {
	challenge, redirect string
}

type device struct {
	user            string
	approved, dead  bool
	polled, expires time.Time
	interval        time.Duration
}

type refresh struct {
	family *family
	used   time.Time // zero: not yet
}

type access struct {
	family  *family
	expires time.Time // zero: never
	dead    bool
}

// New returns a server.
func New(s Settings) *Server {
	v := &Server{
		now: time.Now, settings: s, codes: map[string]*code{}, devices: map[string]*device{},
		refresh: map[string]*refresh{}, access: map[string]*access{}, mux: http.NewServeMux(),
	}
	v.routes()
	return v
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// Set changes the settings.
func (s *Server) Set(v Settings) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settings = v
}

// Fail makes the next refreshes fail, one for each fault.
func (s *Server) Fail(f ...Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, f...)
}

// Watch calls fn at the stages of each refresh: "arrived", "rotated" (also if the refresh was
// refused) and "answered". fn runs on the goroutine of the request.
func (s *Server) Watch(fn func(stage string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watch = fn
}

// Calls returns the counts.
func (s *Server) Calls() Calls {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

// Grant returns the tokens of a new sign-in, without the protocol.
func (s *Server) Grant() (accessToken, refreshToken string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.families++
	return s.issue(&family{})
}

// Good reports whether an access token is valid.
func (s *Server) Good(accessToken string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	a, ok := s.access[accessToken]
	return ok && !a.dead && !a.family.ended && (a.expires.IsZero() || s.now().Before(a.expires))
}

// End revokes the grant of an access token, as a person does in their settings.
func (s *Server) End(accessToken string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a, ok := s.access[accessToken]; ok {
		a.family.ended = true
	}
}

// issue issues tokens of a family. The lock is held.
func (s *Server) issue(f *family) (accessToken, refreshToken string) {
	if old, ok := s.access[f.current]; ok {
		old.dead = old.dead || s.settings.EndsAccess
	}
	accessToken = "access-" + random()
	a := &access{family: f}
	if life := s.life(); life > 0 {
		a.expires = s.now().Add(life)
	}
	s.access[accessToken], f.current = a, accessToken
	s.note(f, accessToken)
	if s.settings.NoRefresh {
		return accessToken, ""
	}
	refreshToken = "refresh-" + random()
	s.refresh[refreshToken] = &refresh{family: f}
	s.note(f, refreshToken)
	return accessToken, refreshToken
}

// note removes a family's oldest token if it has too many. The lock is held.
func (s *Server) note(f *family, token string) {
	f.tokens = append(f.tokens, token)
	if len(f.tokens) > maxTokens {
		delete(s.access, f.tokens[0])
		delete(s.refresh, f.tokens[0])
		f.tokens = f.tokens[1:]
	}
}

// life returns the lifetime of access tokens; 0 means for ever.
func (s *Server) life() time.Duration {
	if s.settings.LifeSeconds < 0 {
		return 0
	}
	return time.Duration(cmp.Or(s.settings.LifeSeconds, 3600) * float64(time.Second))
}

func random() string {
	b := make([]byte, 24)
	_, _ = rand.Read(b) // never fails: crypto/rand
	return base64.RawURLEncoding.EncodeToString(b)
}

// proves reports whether a verifier matches a PKCE challenge.
func proves(verifier, challenge string) bool {
	sum := sha256.Sum256([]byte(verifier))
	return subtle.ConstantTimeCompare([]byte(base64.RawURLEncoding.EncodeToString(sum[:])), []byte(challenge)) == 1
}
