// Package browser shows web pages to models, in a real Chromium.
//
// # Isolation
//
// A workspace that uses the browser has a Chromium process of its own, and each of its sessions a
// browser context in it, with one page. Both are closed when they are idle, or when others need
// the room; a session whose page is gone is told so (NO_PAGE) and opens it again. Nothing is
// stored: cookies and the cache end with the context.
//
// # Containment
//
// Pages are hostile. All requests of a Chromium go through a proxy of its own (proxy.go), which
// resolves names itself and connects only to what netguard allows. Chromium resolves no names,
// and does not do what would avoid the proxy: QUIC, WebRTC over UDP, background requests. Where
// bubblewrap works, Chromium is also in a network namespace without any network, in which
// 127.0.0.1:3128 leads to the proxy (relay.go). It runs as an ordinary user, sees only system
// folders, has none of our environment, and keeps its own sandbox on. It is driven over a pipe,
// so that there is no debugging port that a page could reach.
//
// Only http and https addresses are opened, downloads are refused, and windows that a page opens
// are closed.
//
// # Hanging
//
// Each step of a call has a limit that does not depend on Chromium. A page that does not answer
// in time is closed, and a Chromium that does not answer is killed; the next call starts another.
package browser

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/netguard"
)

// retryStart is how long the browser counts as unavailable after it could not be started.
const retryStart = 30 * time.Second

// closeTime bounds how long Run waits for browsers to end.
const closeTime = 5 * time.Second

// Service implements browserv1connect.BrowserServiceHandler, and without its HTTP part
// browserv1connect.BrowserServiceClient.
type Service struct {
	settings Settings
	log      *slog.Logger
	guard    *netguard.Guard
	private  bool  // pages may come from private addresses
	missing  error // why there is never a browser

	probe    sync.Once // makes launcher complete
	launcher launcher

	mu         sync.Mutex // guards the fields below, and what its comments say
	workspaces map[id.Workspace]*workspace
	failure    error // of the last start
	failedAt   time.Time
	closed     bool
}

// workspace is a workspace that uses the browser.
type workspace struct {
	turn chan struct{} // held while a browser is started or a page is opened

	// Service.mu guards these.
	process *process // nil before the first start; it may be dead
	users   int      // calls
	used    time.Time
}

// New returns a Service. Run must be called; it ends the browsers.
func New(settings Settings, log *slog.Logger) (*Service, error) {
	return newService(settings, log, nil)
}

func newService(settings Settings, log *slog.Logger, resolver *net.Resolver) (*Service, error) {
	allowed, err := netguard.ParseAllowed(settings.AllowPrivate)
	if err != nil {
		return nil, fmt.Errorf("BROWSER_ALLOW_PRIVATE: %w", err)
	}
	private := len(allowed) > 0
	example, err := netguard.ParseAllowed(settings.Example)
	if err != nil {
		return nil, fmt.Errorf("the example page: %w", err)
	}
	allowed = append(allowed, example...)
	s := &Service{
		settings: settings, log: log, private: private, workspaces: map[id.Workspace]*workspace{},
		guard: netguard.New(netguard.Config{Allowed: allowed, MaxBody: maxBody, HeaderTimeout: navigateTime, Resolver: resolver}),
	}
	path, err := find(settings.Chromium)
	if err != nil {
		s.missing = err
		return s, nil
	}
	s.launcher = launcher{chromium: path, noSandbox: settings.NoSandbox}
	return s, nil
}

// isolate finds out, once, whether browsers get a network namespace.
func (s *Service) isolate(ctx context.Context) {
	s.probe.Do(func() {
		if err := s.launcher.isolate(context.WithoutCancel(ctx)); err != nil {
			s.log.InfoContext(ctx, "browsers have no network namespace", "reason", clip(err.Error(), maxLogged))
		}
	})
}

// Unavailable returns why the browser cannot be used now, or "".
func (s *Service) Unavailable() string {
	if s.missing != nil {
		return s.missing.Error()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failure != nil && time.Since(s.failedAt) < retryStart {
		return "the browser does not start here; its log says why"
	}
	return ""
}

// Run closes what is idle until ctx is done, and then everything. It first removes what killed
// processes have left.
func (s *Service) Run(ctx context.Context) error {
	if s.missing == nil {
		removeLeftovers(ctx, s.log)
	}
	t := time.NewTicker(min(s.settings.Idle/4, 15*time.Second))
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			s.closeAll()
			return nil
		case now := <-t.C:
			s.closeIdle(ctx, now.Add(-s.settings.Idle))
		}
	}
}

// closeIdle closes the pages, and then the browsers, that no call has used since a time.
func (s *Service) closeIdle(ctx context.Context, since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ws, w := range s.workspaces {
		if w.process != nil {
			for session, g := range w.process.pages {
				if g.users == 0 && (g.used.Before(since) || !g.alive()) {
					delete(w.process.pages, session)
					go g.close(ctx)
				}
			}
		}
		if w.users > 0 || w.process != nil && len(w.process.pages) > 0 && w.process.alive() {
			continue
		}
		if w.process != nil {
			w.process.kill()
		}
		delete(s.workspaces, ws)
	}
}

func (s *Service) closeAll() {
	s.mu.Lock()
	s.closed = true
	var all []*process
	for _, w := range s.workspaces {
		if w.process != nil {
			w.process.kill()
			all = append(all, w.process)
		}
	}
	s.mu.Unlock()
	defer func() {
		s.probe.Do(func() {}) // no start comes after this, and one that goes on has ended
		if s.launcher.self != nil {
			_ = s.launcher.self.Close() // it was only read
		}
	}()
	limit := time.NewTimer(closeTime)
	defer limit.Stop()
	for _, p := range all {
		select {
		case <-p.gone:
		case <-limit.C:
			return
		}
	}
}

// errNoPage is told to a session without a page.
func errNoPage() error {
	return fault.Coded(fault.NotFound, "NO_PAGE", "no page is open in this session, or it is open no more: open it with browser_open")
}

// acquire returns the page of the context's session, for one call at a time. If there is none,
// it opens an empty one, or returns the fault NO_PAGE unless create is set. The caller calls
// release.
func (s *Service) acquire(ctx context.Context, create bool) (_ *page, release func(), err error) {
	actor, err := identity.Require(ctx, identity.Editor)
	if err != nil {
		return nil, nil, err
	}
	if id.IsZero(actor.Session) {
		return nil, nil, fault.New(fault.Invalid, "the browser is for sessions only")
	}
	if s.missing != nil {
		return nil, nil, fault.New(fault.Conflict, "%v", s.missing)
	}
	w, err := s.enter(actor.Workspace, create)
	if err != nil {
		return nil, nil, err
	}
	g, err := s.pageOf(ctx, w, actor.Session, create)
	if err == nil {
		select {
		case g.turn <- struct{}{}:
		case <-ctx.Done():
			s.leave(w, g)
			return nil, nil, context.Cause(ctx)
		}
		s.mu.Lock()
		g.began = time.Now()
		s.mu.Unlock()
		return g, func() { <-g.turn; s.leave(w, g) }, nil
	}
	s.leave(w, nil)
	return nil, nil, err
}

// enter returns a workspace, as one of its users.
func (s *Service) enter(ws id.Workspace, create bool) (*workspace, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.workspaces[ws]
	switch {
	case s.closed:
		return nil, fault.New(fault.Unavailable, "the browser is being stopped")
	case w == nil && !create:
		return nil, errNoPage()
	case w == nil:
		w = &workspace{turn: make(chan struct{}, 1)}
		s.workspaces[ws] = w
	}
	w.users++
	return w, nil
}

// leave undoes enter, and pageOf if g is a page.
func (s *Service) leave(w *workspace, g *page) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.users--
	w.used = time.Now()
	if g != nil {
		g.users--
		g.used = w.used
	}
}

// pageOf returns a session's page, as one of its users.
func (s *Service) pageOf(ctx context.Context, w *workspace, session id.Session, create bool) (*page, error) {
	select {
	case w.turn <- struct{}{}:
		defer func() { <-w.turn }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if g := s.open(w, session); g != nil {
		return g, nil
	}
	if !create {
		return nil, errNoPage()
	}
	p, err := s.processOf(ctx, w)
	if err != nil {
		return nil, err
	}
	if err := s.makeRoomForPage(ctx, p); err != nil {
		return nil, err
	}
	g, err := p.open(ctx)
	if err != nil {
		if ctx.Err() == nil && !p.answers(ctx) {
			p.kill()
		}
		return nil, s.failed(ctx, fault.Unavailable, fmt.Errorf("open a page: %w", err))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p.pages[session] = g
	g.users++
	return g, nil
}

// failed logs why the browser does not work and returns what the model is told.
func (s *Service) failed(ctx context.Context, k fault.Kind, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	s.log.WarnContext(ctx, "browser does not work", "error", clip(err.Error(), maxLogged))
	return fault.Wrap(err, k, "the browser does not work now: go on without it")
}

const maxLogged = 2000 // runes of Chromium's messages

// open returns a session's page if it is open, as one of its users.
func (s *Service) open(w *workspace, session id.Session) *page {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.process == nil || !w.process.alive() {
		return nil
	}
	g := w.process.pages[session]
	if g == nil || !g.alive() {
		return nil
	}
	g.users++
	return g
}

// processOf returns a workspace's browser. The caller has the workspace's turn.
func (s *Service) processOf(ctx context.Context, w *workspace) (*process, error) {
	s.isolate(ctx)
	if err := s.makeRoom(w); err != nil {
		return nil, err
	}
	s.mu.Lock()
	p := w.process
	s.mu.Unlock()
	if p != nil && p.alive() {
		return p, nil
	}
	p, err := s.launcher.start(ctx, s.guard, s.log)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		if ctx.Err() == nil {
			s.failure, s.failedAt = err, time.Now()
		}
		return nil, s.failed(ctx, fault.Conflict, err)
	}
	if s.closed {
		p.kill()
		return nil, fault.New(fault.Unavailable, "the browser is being stopped")
	}
	s.failure, w.process = nil, p
	s.log.DebugContext(ctx, "browser started", "namespace", s.launcher.bwrap != "")
	return p, nil
}

// makeRoom ends the browser that was idle for the longest time if there would be too many.
func (s *Service) makeRoom(w *workspace) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	running := 0
	var oldest *workspace
	for _, other := range s.workspaces {
		if other == w || other.users == 0 && (other.process == nil || !other.process.alive()) {
			continue
		}
		running++
		if other.users == 0 && (oldest == nil || other.used.Before(oldest.used)) {
			oldest = other
		}
	}
	if running < s.settings.Processes {
		return nil
	}
	if oldest == nil {
		return fault.New(fault.Limited, "all browsers are in use by other workspaces: try again in a minute")
	}
	oldest.process.kill()
	return nil
}

// makeRoomForPage closes the page that was idle for the longest time if there would be too many.
func (s *Service) makeRoomForPage(ctx context.Context, p *process) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var oldest id.Session
	var found *page
	for session, g := range p.pages {
		switch {
		case g.users > 0:
		case !g.alive():
			delete(p.pages, session)
		case found == nil || g.used.Before(found.used):
			oldest, found = session, g
		}
	}
	if len(p.pages) < s.settings.Pages {
		return nil
	}
	if found == nil {
		return fault.New(fault.Limited, "all pages of this workspace's browser are in use: try again in a minute")
	}
	delete(p.pages, oldest)
	go found.close(context.WithoutCancel(ctx))
	return nil
}

// outcome returns the error of a call, and sees to it that the page of a failed one is not in the
// way of the next.
func (s *Service) outcome(ctx context.Context, g *page, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		defer s.cut(g)()
		g.stopLoading(ctx)
		return context.Cause(ctx)
	case errors.Is(err, errHangs):
		g.giveUp()
		go s.dispose(context.WithoutCancel(ctx), g)
	case !g.alive():
		go s.dispose(context.WithoutCancel(ctx), g)
		if fault.From(err).Kind == fault.Internal {
			return errCrashed()
		}
	}
	if err == errHangs { //nolint:errorlint // a fault may wrap it
		return fault.Coded(fault.Conflict, "PAGE_HANGS", "the page does not respond and was closed: go on without it")
	}
	return err
}

// cut ends what a stopped call has requested, without waiting for Chromium, which may be slow. The
// proxy does not know which page makes a request: while another one is in use or loads, Chromium
// has to do it. Chromium may ask again; the proxy refuses that until resume is called.
func (s *Service) cut(g *page) (resume func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, other := range g.process.pages {
		if other != g && (other.users > 0 || other.busy()) {
			return func() {}
		}
	}
	return g.process.proxy.cut(g.began)
}

// dispose closes a page that does not answer, and its browser if that does not answer either.
func (s *Service) dispose(ctx context.Context, g *page) {
	g.close(ctx)
	if g.process.alive() && !g.process.answers(ctx) {
		s.log.WarnContext(ctx, "browser killed because it does not answer")
		g.process.kill()
	}
}
