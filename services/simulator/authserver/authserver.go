// Package authserver is an OAuth 2.0 authorisation server that is not one: it signs
// everybody in who asks, and goes wrong in the ways in which real ones do. It is for
// the tests of whoever keeps grants, and, under /oauth of the simulator, for people
// who try things out.
//
//	GET  authorize   sends the browser back with a code at once; without a redirect_uri,
//	                 or with the server's own /code, the code is shown for pasting
//	POST token       authorization_code (PKCE S256), refresh_token, device_code; form or JSON
//	POST device      RFC 8628; GET approve?user_code= and deny?user_code= end it
//	POST revoke      RFC 7009
//	GET  me          200 or 401, by the bearer token
//	GET  calls       what was called, and how often
//	PUT  settings    Settings as JSON, from then on
//
// Grants are families: all tokens that come from one sign-in. With Rotate each refresh
// token is good once, and again within Grace of its use; a later use ends the whole
// family where ReuseEnds says so. Scripted faults (Fault) meet the next refreshes, in
// order. Everything is in memory, bounded by MaxFamilies, and gone with the process.
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
	// MaxFamilies is how many sign-ins are remembered; more are refused.
	MaxFamilies = 100_000
	maxTokens   = 1000 // of a family
)

// Settings say how the server behaves. The zero value is a public client's server
// without rotation, whose access tokens live for an hour.
type Settings struct {
	ClientID     string `json:"client_id"`     // empty: any
	ClientSecret string `json:"client_secret"` // empty: none is asked for
	// LifeSeconds of access tokens; 0 for an hour, negative for ever.
	LifeSeconds float64 `json:"life_seconds"`
	// Rotate makes refresh tokens good for one use, and once more within GraceSeconds.
	Rotate       bool    `json:"rotate"`
	GraceSeconds float64 `json:"grace_seconds"`
	// ReuseEnds ends the family when a used token comes after its grace.
	ReuseEnds bool `json:"reuse_ends"`
	// EndsAccess makes a refresh end the former access token.
	EndsAccess bool `json:"ends_access"`
	// NoRefresh issues access tokens alone.
	NoRefresh bool `json:"no_refresh"`
	// Interval of a device's polls, in seconds; 0 for 5.
	Interval int `json:"interval"`
}

// Fault is what goes wrong with one refresh.
type Fault struct {
	// Status answers so, with Code as the error, and does nothing else.
	Status int
	Code   string
	// RetryAfter is sent with Status.
	RetryAfter string
	// Drop cuts the connection: before anything happened, or, with After, when the
	// tokens have been rotated.
	Drop, After bool
	// Garbage answers 200 with something that is no JSON, after the rotation.
	Garbage bool
	// Wait is waited for before the answer, after the rotation with After.
	Wait <-chan struct{}
}

// Calls are counts.
type Calls struct {
	Authorize, Exchange, Device, Poll, Revoke int
	// Refresh counts what came to the token endpoint, Refreshed what was issued, Graced
	// what of it was for a token that had been used.
	Refresh, Refreshed, Graced int
	// Reused counts refresh tokens that came again after their grace, Ended the
	// families that this ended.
	Reused, Ended int
}

// Server is the handler. Make one with New.
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
	current string // access token issued last
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

// Fail makes the next refreshes go wrong, one for each fault.
func (s *Server) Fail(f ...Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, f...)
}

// Watch has fn called at the stages of each refresh: "arrived", "rotated" (also when
// it was refused), "answered". It runs on the goroutine of the request.
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

// Grant signs somebody in without the ceremony.
func (s *Server) Grant() (accessToken, refreshToken string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.families++
	return s.issue(&family{})
}

// Good reports whether an access token would be taken.
func (s *Server) Good(accessToken string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	a, ok := s.access[accessToken]
	return ok && !a.dead && !a.family.ended && (a.expires.IsZero() || s.now().Before(a.expires))
}

// End takes the grant of an access token back, as a person would in their settings.
func (s *Server) End(accessToken string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a, ok := s.access[accessToken]; ok {
		a.family.ended = true
	}
}

// issue makes tokens of a family. The lock is held.
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

// note forgets a family's oldest token when it has many. The lock is held.
func (s *Server) note(f *family, token string) {
	f.tokens = append(f.tokens, token)
	if len(f.tokens) > maxTokens {
		delete(s.access, f.tokens[0])
		delete(s.refresh, f.tokens[0])
		f.tokens = f.tokens[1:]
	}
}

// life returns how long access tokens are good; 0 for ever.
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

// proves reports whether a verifier belongs to a PKCE challenge.
func proves(verifier, challenge string) bool {
	sum := sha256.Sum256([]byte(verifier))
	return subtle.ConstantTimeCompare([]byte(base64.RawURLEncoding.EncodeToString(sum[:])), []byte(challenge)) == 1
}
