// Package simulator is a simulated model provider for development, tests and benchmarks: an
// HTTP server that speaks the Anthropic Messages API, the OpenAI Chat Completions API and
// OpenRouter's dialect of it, and answers from scripts. Clients cannot tell it from the real
// providers. README.md describes the scripts.
//
// One server simulates all providers: under /anthropic, /openai and /openrouter/api, and at
// its root, where path and headers tell them apart. The model id selects the script:
// sim/<name> plays the script of that name, and every other id the default script. The model
// id is the only selector, because it passes through every proxy between a test and this
// server. Tests whose scripts have different names do not disturb each other.
//
// Each answer is played on the goroutine of its request, which ends when the client leaves.
// No other goroutine is started. The state that requests share has its own locks: the scripts
// (package script), the counts of faults and of repeated requests (tally), the prompt cache's
// hashes (promptcache) and the journal of requests (journal). All of it is bounded and in
// memory.
package simulator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"signalbox.dev/services/simulator/internal/journal"
	"signalbox.dev/services/simulator/internal/promptcache"
	"signalbox.dev/services/simulator/internal/script"
	"signalbox.dev/services/simulator/internal/tally"
)

const (
	maxTallied  = 10_000
	tallyLife   = 5 * time.Minute
	maxPrefixes = 50_000
)

// Deps are a simulator's dependencies. The zero value works.
type Deps struct {
	Log *slog.Logger     // nil: nothing is logged
	Now func() time.Time // nil: time.Now
}

// Simulator is the server's handler. Make one with New.
type Simulator struct {
	cfg     Config
	log     *slog.Logger
	now     func() time.Time
	scripts *script.Library
	faults  *tally.Tally // how often scripted faults happened
	seen    *tally.Tally // how often the same request came, for ids
	cache   *promptcache.Cache
	journal *journal.Journal
	mux     *http.ServeMux

	mu     sync.Mutex // guards what follows
	closed bool
	open   map[*context.CancelCauseFunc]struct{} // active answers
}

// New returns a simulator. Errors of scripts name file, line and field.
func New(cfg Config, deps Deps) (*Simulator, error) {
	if cfg.Requests == 0 {
		cfg.Requests = defaultRequests
	}
	if cfg.MaxBody == 0 {
		cfg.MaxBody = defaultMaxBody
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	if deps.Now == nil {
		deps.Now = time.Now
	}
	scripts, err := script.Open(cfg.Script)
	if err != nil {
		return nil, err
	}
	s := &Simulator{
		cfg:     cfg,
		log:     deps.Log,
		now:     deps.Now,
		scripts: scripts,
		faults:  tally.New(maxTallied, tallyLife, deps.Now),
		seen:    tally.New(maxTallied, tallyLife, deps.Now),
		cache:   promptcache.New(maxPrefixes, deps.Now),
		journal: journal.New(cfg.Requests, deps.Now),
		open:    map[*context.CancelCauseFunc]struct{}{},
	}
	s.mux = s.routes()
	return s, nil
}

// ServeHTTP answers one request.
func (s *Simulator) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// PutScript parses source and plays it for the model ids sim/<name> from now on.
func (s *Simulator) PutScript(name, source string) error {
	_, err := s.scripts.Put(name, []byte(source))
	if err != nil {
		return fmt.Errorf("put script %s: %w", name, err)
	}
	return nil
}

var errClosing = errors.New("the simulator is closing")

// Close breaks off the active answers, like a provider that goes down, and refuses further
// requests. It does not wait for the answers to end; the HTTP server does.
func (s *Simulator) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for cancel := range s.open {
		(*cancel)(errClosing)
	}
}

// enter registers an active answer. The returned context ends when the client leaves, with
// Close, or with leave. ok is false after Close.
func (s *Simulator) enter(ctx context.Context) (answer context.Context, leave func(), ok bool) {
	ctx, cancel := context.WithCancelCause(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		cancel(errClosing)
		return ctx, func() {}, false
	}
	s.open[&cancel] = struct{}{}
	return ctx, func() {
		s.mu.Lock()
		delete(s.open, &cancel)
		s.mu.Unlock()
		cancel(nil)
	}, true
}
