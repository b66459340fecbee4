// Package farend is the external HTTP service that tools call in tests. It does not know about our
// retries, completes each request even if the caller is gone, and counts effects.
//
//	GET  /pure?operation=     reads: no effect
//	POST /keyed               {"operation","key"}: one effect for each key
//	POST /marked              {"operation","marker"}: an effect each time
//	GET  /marked?marker=      finds an effect by its marker
//	POST /blind               {"operation"}: an effect each time, which cannot be looked up
//	GET  /report              requests and effects, by operation
//	PUT  /settings            {"before_ms","after_ms"}: latency before the effect, and from there to the response
//	GET  /ready               200
//
// An operation is an opaque name by which effects are counted. A request may set its own
// latencies, before_ms and after_ms. The state is in memory: tests do not kill the far end.
//
// Tests in the same process can hold requests at either point (Hold).
package farend

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// Limits of a request.
const (
	maxBody    = 64 << 10
	maxLatency = 5 * time.Minute
)

// Point is a point in the processing of a request.
type Point int

// The points at which a request can be held.
const (
	Received Point = iota // received, without effect yet
	Done                  // done, without a response yet
)

// Operation is the requests and effects of one operation.
type Operation struct {
	Operation string `json:"operation"`
	Kind      string `json:"kind"` // pure, keyed, marked, blind
	Requests  int    `json:"requests"`
	Effects   int    `json:"effects"`
	// First is the time of the first request.
	First time.Time `json:"first"`
}

// Effect is the response to a request with an effect: the same for the same key.
type Effect struct {
	ID string `json:"id"`
}

// Report is the response of /report, sorted by the operations' names.
type Report struct {
	Operations []Operation `json:"operations"`
}

// Settings are the latencies of requests that set none.
type Settings struct {
	BeforeMS int `json:"before_ms"`
	AfterMS  int `json:"after_ms"`
}

// request is the body of a request with an effect.
type request struct {
	Operation string `json:"operation"`
	Key       string `json:"key"`
	Marker    string `json:"marker"`
	BeforeMS  *int   `json:"before_ms"`
	AfterMS   *int   `json:"after_ms"`
}

// Server is the far end, an http.Handler. Close ends the waiting requests.
type Server struct {
	mux    *http.ServeMux
	closed chan struct{}
	close  func()
	// watch is told of each request with an effect at each point.
	watch func(Point)

	mu         sync.Mutex // guards the rest
	settings   Settings
	operations map[string]*Operation
	byName     map[string]Effect // keys and markers
	effects    int
	holds      map[Point]*Hold
}

// New returns a far end without requests or effects.
func New() *Server { return Watched(func(Point) {}) }

// Watched is New with a function that is called at each point of each request with an effect.
func Watched(watch func(Point)) *Server {
	s := &Server{
		mux: http.NewServeMux(), closed: make(chan struct{}), watch: watch,
		operations: map[string]*Operation{}, byName: map[string]Effect{}, holds: map[Point]*Hold{},
	}
	s.close = sync.OnceFunc(func() { close(s.closed) })
	s.mux.HandleFunc("GET /pure", s.read)
	s.mux.HandleFunc("POST /keyed", s.act("keyed"))
	s.mux.HandleFunc("POST /marked", s.act("marked"))
	s.mux.HandleFunc("GET /marked", s.find)
	s.mux.HandleFunc("POST /blind", s.act("blind"))
	s.mux.HandleFunc("GET /report", func(w http.ResponseWriter, _ *http.Request) { reply(w, http.StatusOK, s.Report()) })
	s.mux.HandleFunc("PUT /settings", s.set)
	s.mux.HandleFunc("GET /ready", func(w http.ResponseWriter, _ *http.Request) { reply(w, http.StatusOK, struct{}{}) })
	return s
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// Close ends the waiting of all requests, without an effect for those that had none.
func (s *Server) Close() { s.close() }

// Set sets the latencies.
func (s *Server) Set(to Settings) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settings = to
}

// Report returns the requests and effects so far.
func (s *Server) Report() Report {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := Report{Operations: make([]Operation, 0, len(s.operations))}
	for _, o := range s.operations {
		out.Operations = append(out.Operations, *o)
	}
	slices.SortFunc(out.Operations, func(a, b Operation) int { return strings.Compare(a.Operation, b.Operation) })
	return out
}

// Get returns the requests and effects of one operation, zero if there was no request.
func (s *Server) Get(operation string) Operation {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.operations[operation]; o != nil {
		return *o
	}
	return Operation{}
}

// Hold is a point at which requests with an effect wait.
type Hold struct {
	reached chan string
	release chan struct{}
	once    func()
}

// Reached returns a channel with the operation of each request that has reached the point.
func (h *Hold) Reached() <-chan string { return h.reached }

// Release lets the requests continue, later ones too.
func (h *Hold) Release() { h.once() }

// Hold makes requests with an effect wait at a point until it is released.
func (s *Server) Hold(at Point) *Hold {
	h := &Hold{reached: make(chan string, 1024), release: make(chan struct{})}
	h.once = sync.OnceFunc(func() { close(h.release) })
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holds[at] = h
	return h
}

// pause waits as long as settings, request and test require, even if the client has gone. It
// returns false if the far end is closed.
func (s *Server) pause(at Point, req request) bool {
	s.mu.Lock()
	ms, own, hold := s.settings.BeforeMS, req.BeforeMS, s.holds[at]
	if at == Done {
		ms, own = s.settings.AfterMS, req.AfterMS
	}
	s.mu.Unlock()
	if own != nil {
		ms = *own
	}
	s.watch(at)
	if hold != nil {
		select {
		case hold.reached <- req.Operation:
		default: // no test counts that many
		}
		select {
		case <-hold.release:
		case <-s.closed:
			return false
		}
	}
	t := time.NewTimer(min(time.Duration(max(ms, 0))*time.Millisecond, maxLatency))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-s.closed:
		return false
	}
}

// requested counts a request.
func (s *Server) requested(operation, kind string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.of(operation, kind).Requests++
}

// of returns the operation's count; mu is held.
func (s *Server) of(operation, kind string) *Operation {
	o := s.operations[operation]
	if o == nil {
		o = &Operation{Operation: operation, Kind: kind, First: time.Now()}
		s.operations[operation] = o
	}
	return o
}

func (s *Server) read(w http.ResponseWriter, r *http.Request) {
	req := request{Operation: r.FormValue("operation")}
	s.requested(req.Operation, "pure")
	if !s.pause(Received, req) || !s.pause(Done, req) {
		reply(w, http.StatusServiceUnavailable, struct{}{})
		return
	}
	reply(w, http.StatusOK, Effect{"read"})
}

func (s *Server) find(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	e, ok := s.byName["marked:"+r.FormValue("marker")]
	s.mu.Unlock()
	if !ok {
		reply(w, http.StatusNotFound, struct{}{})
		return
	}
	reply(w, http.StatusOK, e)
}

func (s *Server) act(kind string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var req request
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&req); err != nil || req.Operation == "" ||
			kind == "keyed" && req.Key == "" || kind == "marked" && req.Marker == "" {
			reply(w, http.StatusBadRequest, map[string]string{"error": "want a JSON object with an operation, and a key or a marker where there is one"})
			return
		}
		s.requested(req.Operation, kind)
		if !s.pause(Received, req) {
			reply(w, http.StatusServiceUnavailable, struct{}{})
			return
		}
		e := s.do(kind, req)
		s.pause(Done, req)
		reply(w, http.StatusOK, e)
	}
}

// do performs the effect.
func (s *Server) do(kind string, req request) Effect {
	name := kind + ":" + req.Key + req.Marker
	s.mu.Lock()
	defer s.mu.Unlock()
	if e, ok := s.byName[name]; ok && kind == "keyed" {
		return e
	}
	s.effects++
	s.of(req.Operation, kind).Effects++
	e := Effect{fmt.Sprint(s.effects)}
	if kind != "blind" {
		s.byName[name] = e
	}
	return e
}

func (s *Server) set(w http.ResponseWriter, r *http.Request) {
	var to Settings
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&to); err != nil {
		reply(w, http.StatusBadRequest, map[string]string{"error": err.Error()})
		return
	}
	s.Set(to)
	reply(w, http.StatusOK, to)
}

func reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client may have gone
}
