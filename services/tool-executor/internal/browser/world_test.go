package browser_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/natsd/natstest"
	browserv1 "signalbox.dev/proto/signalbox/browser/v1"
	"signalbox.dev/services/tool-executor/internal/browser"
)

func TestMain(m *testing.M) {
	browser.Relay()
	code := m.Run()
	stopShared()
	os.Exit(code)
}

// shared is a Service for the tests that need none of their own, and a workspace.
var (
	shared = sync.OnceValues(func() (*browser.Service, error) {
		var s browser.Settings
		if err := conf.SetDefaults(&s); err != nil {
			return nil, err
		}
		s.AllowPrivate, s.Chromium, s.Pages = "127.0.0.1/32", os.Getenv("CHROMIUM"), 50
		service, err := browser.New(s, slog.New(slog.DiscardHandler))
		if err == nil {
			sharing.Go(func() { _ = service.Run(sharedUntil) }) // it has no error
		}
		return service, err
	})
	sharing                 sync.WaitGroup
	sharedUntil, endSharing = context.WithCancel(context.Background())
	sharedWorkspace         = id.New[id.Workspace]()
)

func stopShared() {
	endSharing()
	sharing.Wait()
}

// share is start with the shared Service and workspace.
func share(t testing.TB, handler http.Handler) *world {
	t.Helper()
	needChromium(t)
	service, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(handler)
	t.Cleanup(web.Close)
	w := &world{t: t, web: web, service: service}
	w.newSession(sharedWorkspace)
	return w
}

// needChromium skips a test on a machine without Chromium.
func needChromium(t testing.TB) {
	t.Helper()
	if _, err := browser.Find(); err != nil {
		t.Skipf("NOT TESTED: %v (apt-get install chromium bubblewrap)", err)
	}
}

// world is a running Service, and a web server that its pages may come from.
type world struct {
	t       testing.TB
	service *browser.Service
	web     *httptest.Server
	ctx     context.Context // a session's
	actor   identity.Actor
}

type option func(*browser.Settings)

func start(t testing.TB, handler http.Handler, options ...option) *world {
	t.Helper()
	needChromium(t)
	web := httptest.NewServer(handler)
	t.Cleanup(web.Close)
	w := &world{t: t, web: web}
	settings := settings(t, web.Listener.Addr().String())
	for _, o := range options {
		o(&settings)
	}
	var err error
	if w.service, err = browser.New(settings, natstest.Log(t)); err != nil {
		t.Fatal(err)
	}
	run(t, w.service)
	w.newSession(id.New[id.Workspace]())
	return w
}

func settings(t testing.TB, allow string) browser.Settings {
	t.Helper()
	var s browser.Settings
	if err := conf.SetDefaults(&s); err != nil {
		t.Fatal(err)
	}
	s.AllowPrivate, s.Chromium = allow, os.Getenv("CHROMIUM")
	return s
}

func run(t testing.TB, s *browser.Service) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run = %v", err)
		}
	})
}

// newSession lets the world act for another session.
func (w *world) newSession(ws id.Workspace) {
	w.actor = identity.Actor{Workspace: ws, Session: id.New[id.Session](), Member: id.New[id.Member](), Role: identity.Editor}
	w.ctx = identity.With(w.t.Context(), w.actor)
}

func (w *world) open(path string) (*browserv1.Page, error) {
	w.t.Helper()
	res, err := w.service.Open(w.ctx, &browserv1.OpenRequest{Url: w.web.URL + path, Private: true})
	return res.GetPage(), err
}

func (w *world) mustOpen(path string) *browserv1.Page {
	w.t.Helper()
	p, err := w.open(path)
	if err != nil {
		w.t.Fatalf("Open(%s) = %v", path, err)
	}
	return p
}

func (w *world) read() string {
	w.t.Helper()
	res, err := w.service.Read(w.ctx, &browserv1.ReadRequest{})
	if err != nil {
		w.t.Fatalf("Read = %v", err)
	}
	return strings.ReplaceAll(res.GetMarkdown(), w.web.URL, "")
}

func (w *world) click(selector string) *browserv1.Page {
	w.t.Helper()
	res, err := w.service.Click(w.ctx, &browserv1.ClickRequest{Selector: selector, Origin: w.web.URL})
	if err != nil {
		w.t.Fatalf("Click(%s) = %v", selector, err)
	}
	return res.GetPage()
}

func (w *world) typeInto(selector, text string, submit bool) *browserv1.Page {
	w.t.Helper()
	res, err := w.service.Type(w.ctx, &browserv1.TypeRequest{Selector: selector, Text: text, Submit: submit, Origin: w.web.URL})
	if err != nil {
		w.t.Fatalf("Type(%s, %q) = %v", selector, text, err)
	}
	return res.GetPage()
}

// wantFault fails unless err is a fault of a kind with a text.
func wantFault(t testing.TB, what string, err error, k fault.Kind, text string) {
	t.Helper()
	if f := fault.From(err); err == nil || f.Kind != k || !strings.Contains(f.Message, text) {
		t.Errorf("%s = %v (%v), want %v with %q", what, err, fault.From(err).Kind, k, text)
	}
}

// pages serves HTML by path.
type pages map[string]string

// ServeHTTP implements http.Handler.
func (p pages) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	html, ok := p[r.URL.Path]
	if !ok {
		w.WriteHeader(http.StatusNotFound)
		html = "<title>Missing</title>nothing here"
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = fmt.Fprint(w, html)
}
