// Package apis has fakes of the services that tools call: Google Calendar, Google Tasks, Notion
// and the contents API of GitHub. They store what they are told, page, answer partially, and
// refuse as the real ones do, so that people without accounts can try the tools, and tests see
// what a tool does at the far end.
//
//	/google/calendar/v3/calendars/{calendar}/events…   events of the calendar primary
//	/google/tasks/v1/lists/{list}/tasks…               tasks of the list @default
//	/notion/v1/…                                       search, pages, children of blocks
//	/github/repos/{owner}/{repo}/contents/{path…}      files of signalbox/research
//	POST /faults                                       makes the next requests fail: see Fault
//
// Each bearer token has data of its own, which begins with a plausible week around today. All
// state is in memory and bounded. Every answer has the header X-Simulated.
package apis

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

const (
	maxBody     = 1 << 20
	maxAccounts = 256
	maxThings   = 5000 // events, tasks or blocks of an account
	maxFaults   = 1000
)

// Config configures a Server. The zero value is complete.
type Config struct {
	Now func() time.Time // time.Now when nil
	// Good reports whether an access token that an authorisation server has issued (access-…)
	// is valid. Other tokens are, unless they begin with "bad-". Nil: all are.
	Good func(token string) bool
}

// Server is the handler of all APIs.
type Server struct {
	cfg Config
	mux *http.ServeMux

	mu       sync.Mutex // guards what follows, with the accounts' data
	accounts map[string]*account
	faults   map[string][]Fault // by provider
}

// Fault makes a request fail.
type Fault struct {
	Provider string `json:"provider"` // google, notion or github
	// Status and Reason are the error's; Google's 403 has a reason such as rateLimitExceeded.
	// With the status 0 nothing goes wrong, which lets a request pass before the next fault.
	Status int    `json:"status"`
	Reason string `json:"reason"`
	// RetryAfter is the header's text; empty for none.
	RetryAfter string `json:"retry_after"`
	// After makes the request take effect before it fails; Drop breaks the connection off in
	// place of an answer.
	After bool `json:"after"`
	Drop  bool `json:"drop"`
	// Times is how many requests fail; once if zero.
	Times int `json:"times"`
}

// account is the data behind one token.
type account struct {
	events map[string]object
	tasks  []object
	blocks map[string][]object // children, by page or block
	pages  []object
	next   int // of ids
}

// object is a JSON object as a service stores it.
type object = map[string]any

// New returns a server.
func New(cfg Config) *Server {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	s := &Server{cfg: cfg, mux: http.NewServeMux(), accounts: map[string]*account{}, faults: map[string][]Fault{}}
	s.calendarRoutes()
	s.tasksRoutes()
	s.notionRoutes()
	s.githubRoutes()
	s.mux.HandleFunc("POST /faults", s.postFault)
	return s
}

// Fail makes the next requests to the providers fail.
func (s *Server) Fail(all ...Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range all {
		for range max(f.Times, 1) {
			if len(s.faults[f.Provider]) < maxFaults {
				s.faults[f.Provider] = append(s.faults[f.Provider], f)
			}
		}
	}
}

func (s *Server) postFault(w http.ResponseWriter, r *http.Request) {
	var f Fault
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&f)
	if err != nil || dialects[f.Provider] == nil || f.Status < 400 || f.Status > 599 {
		http.Error(w, "want {\"provider\": google, notion or github, \"status\": 400 to 599, …}", http.StatusBadRequest)
		return
	}
	s.Fail(f)
	w.WriteHeader(http.StatusNoContent)
}

// dialects write an error as a provider does.
var dialects = map[string]func(e *apiError) any{"google": googleError, "notion": notionError, "github": githubError}

// apiError is an answer with an error status.
type apiError struct {
	status  int
	reason  string // the provider's own word
	message string
}

func refuse(status int, reason, format string, args ...any) *apiError {
	return &apiError{status, reason, fmt.Sprintf(format, args...)}
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Simulated", "true")
	s.mux.ServeHTTP(w, r)
}

// request is a request of an account. Its handler runs under the server's mutex.
type request struct {
	*http.Request

	now  time.Time
	acc  *account
	body object // empty if there is none
}

// handle registers a handler that returns the answer's body: an object, or nil for 204.
func (s *Server) handle(provider, pattern string, do func(r *request) (object, *apiError)) {
	method, path, _ := strings.Cut(pattern, " ")
	s.mux.HandleFunc(method+" /"+provider+path, func(w http.ResponseWriter, r *http.Request) {
		body, e, fault := s.serve(w, r, provider, do)
		if fault.Drop {
			panic(http.ErrAbortHandler)
		}
		if e == nil && body == nil {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		status, answer := http.StatusOK, any(body)
		if e != nil {
			status, answer = e.status, dialects[provider](e)
		}
		if e != nil && provider == "github" && e.reason == "rateLimitExceeded" {
			w.Header().Set("X-RateLimit-Remaining", "0")
		}
		if fault.RetryAfter != "" {
			w.Header().Set("Retry-After", fault.RetryAfter)
		}
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		if list, ok := body["\x00list"]; ok && e == nil { // GitHub lists a directory without an object around
			answer = list
		}
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(answer) // the client may have left
	})
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request, provider string, do func(r *request) (object, *apiError)) (object, *apiError, Fault) {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok || token == "" || strings.HasPrefix(token, "bad-") || strings.HasPrefix(token, "access-") && s.cfg.Good != nil && !s.cfg.Good(token) {
		return nil, unauthorized(provider), Fault{}
	}
	req := &request{Request: r, now: s.cfg.Now(), body: object{}}
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err == nil && len(text) > 0 {
		err = json.Unmarshal(text, &req.body)
	}
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "parseError", "Parse Error"), Fault{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var f Fault
	if all := s.faults[provider]; len(all) > 0 {
		f, s.faults[provider] = all[0], all[1:]
		if !f.After && f.Status != 0 {
			return nil, f.error(), f
		}
	}
	req.acc = s.account(token, req.now)
	body, e := do(req)
	if f.Status != 0 && e == nil {
		e = f.error()
	}
	return body, e, f
}

func (f *Fault) error() *apiError {
	return refuse(f.Status, f.Reason, "%s", cmp.Or(map[string]string{
		"rateLimitExceeded": "Rate Limit Exceeded", "userRateLimitExceeded": "User Rate Limit Exceeded", "authError": "Invalid Credentials",
	}[f.Reason], http.StatusText(f.Status)))
}

func unauthorized(provider string) *apiError {
	switch provider {
	case "google":
		return refuse(http.StatusUnauthorized, "authError", "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or other valid authentication credential.")
	case "notion":
		return refuse(http.StatusUnauthorized, "unauthorized", "API token is invalid.")
	}
	return refuse(http.StatusUnauthorized, "", "Bad credentials")
}

// account returns the data behind a token. The lock is held.
func (s *Server) account(token string, now time.Time) *account {
	a, ok := s.accounts[token]
	if !ok {
		if len(s.accounts) >= maxAccounts {
			clear(s.accounts)
		}
		a = seed(now)
		s.accounts[token] = a
	}
	return a
}

// text returns a member that is a string.
func text(o object, name string) string {
	s, _ := o[name].(string)
	return s
}
