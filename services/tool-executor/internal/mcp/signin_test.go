package mcp_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"signalbox.dev/services/tool-executor/internal/mcp"
)

// lockedServer is a good server with a broker in front of it, each with a lock.
type lockedServer struct {
	url    string
	broker string

	signedIn atomic.Bool  // the broker has a token
	answer   atomic.Value // func(http.ResponseWriter) of the server to the token's requests; nil to serve
}

func newLockedServer(t *testing.T) *lockedServer {
	t.Helper()
	l := &lockedServer{}
	l.answer.Store((func(http.ResponseWriter))(nil))
	good, err := url.Parse(newGoodServer(t).url)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(&url.URL{Scheme: good.Scheme, Host: good.Host})
		r.Out.URL.Path = good.Path
	}}
	direct := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("WWW-Authenticate", `Bearer resource_metadata="https://mcp.example.org/meta", scope="read"`)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	broker := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, _ := l.answer.Load().(func(http.ResponseWriter))
		switch {
		case !strings.HasPrefix(r.URL.Path, "/egress/mcp-locked/"):
			http.NotFound(w, r)
		case r.Header.Get("X-Signalbox-Server") != l.url:
			http.Error(w, "for another server", http.StatusTeapot)
		case !l.signedIn.Load():
			w.Header().Set("X-Signalbox-Error", "no_credential")
			w.WriteHeader(http.StatusUnauthorized)
		case answer != nil && r.Method == http.MethodPost:
			_, _ = io.Copy(io.Discard, r.Body)
			answer(w)
		default:
			proxy.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(direct.Close)
	t.Cleanup(broker.Close)
	l.url, l.broker = direct.URL, broker.URL
	return l
}

func TestSignIn(t *testing.T) {
	t.Parallel()
	l := newLockedServer(t)
	w := newWorld(t, l.broker)
	s := w.create(t, "locked", l.url+"/mcp")
	if s.SignIn != mcp.SignInRequired || s.ResourceMetadata != "https://mcp.example.org/meta" || s.Scope != "read" || !strings.Contains(s.Failure, "sign in") {
		t.Errorf("after a 401: %+v, want what the challenge says", s)
	}
	l.signedIn.Store(true)
	s, err := w.servers.SignedIn(t.Context(), w.ws, "locked")
	if err != nil || s.SignIn != "" || s.Failure != "" || len(s.Tools) != 2 {
		t.Fatalf("SignedIn() = %+v, %v, want the tools", s, err)
	}
	echo := w.tools(t)["mcp__locked__echo"]
	if got := call(t, echo, `{"text":"a"}`); !strings.Contains(got, "result") {
		t.Errorf("echo = %s", got)
	}

	// The server wants more for a call, and goes on to work.
	l.answer.Store(func(w http.ResponseWriter) {
		w.Header().Set("WWW-Authenticate", `Bearer error="insufficient_scope", scope="read write"`)
		w.WriteHeader(http.StatusForbidden)
	})
	if got := call(t, echo, `{"text":"a"}`); !strings.Contains(got, "more permissions") || !strings.Contains(got, `"code":"NEEDS_SIGN_IN","server":"locked","reason":"it wants more`) {
		t.Errorf("echo = %s, want that it needs more permissions", got)
	}
	l.answer.Store((func(http.ResponseWriter))(nil))
	if s, err = w.servers.Test(t.Context(), w.ws, s.ID); err != nil || s.SignIn != mcp.SignInMore || s.Scope != "read write" || s.ResourceMetadata == "" || s.Failure != "" {
		t.Errorf("after a 403: %+v, %v, want that it works and wants more", s, err)
	}

	// The sign-in ends: the broker says so in one way, the server in another.
	for name, answer := range map[string]func(http.ResponseWriter){
		"broker": func(w http.ResponseWriter) {
			w.Header().Set("X-Signalbox-Error", "account_unavailable")
			w.WriteHeader(http.StatusConflict)
		},
		"server": func(w http.ResponseWriter) { w.WriteHeader(http.StatusUnauthorized) },
	} {
		if _, err := w.servers.SignedIn(t.Context(), w.ws, "locked"); err != nil {
			t.Fatal(err)
		}
		l.answer.Store(answer)
		if got := call(t, echo, `{"text":"a"}`); !strings.Contains(got, "has to sign in") {
			t.Errorf("%s: echo = %s, want that somebody has to sign in", name, got)
		}
		l.answer.Store((func(http.ResponseWriter))(nil))
		all, err := w.servers.List(t.Context(), w.ws)
		if err != nil || all[0].SignIn != mcp.SignInRequired {
			t.Errorf("%s: %+v, %v, want that a sign-in is required", name, all, err)
		}
	}
}

// The tools find out by themselves that somebody has signed in, if nobody tells them.
func TestSignInIsFound(t *testing.T) {
	t.Parallel()
	l := newLockedServer(t)
	w := newWorld(t, l.broker)
	s := w.create(t, "locked", l.url+"/mcp")
	l.signedIn.Store(true)
	s, err := w.servers.Test(t.Context(), w.ws, s.ID)
	if err != nil || !s.Credential || s.SignIn != "" || len(s.Tools) != 2 {
		t.Errorf("Test() = %+v, %v, want the tools by the broker", s, err)
	}
}

// An open server that answers 401 once works again later.
func TestOneUnauthorized(t *testing.T) {
	t.Parallel()
	good, err := url.Parse(newGoodServer(t).url)
	if err != nil {
		t.Fatal(err)
	}
	var locked atomic.Bool
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: good.Scheme, Host: good.Host})
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if locked.Load() {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	w := newWorld(t, newLockedServer(t).broker)
	s := w.create(t, "locked", front.URL+good.Path)
	locked.Store(true)
	if s, err = w.servers.Test(t.Context(), w.ws, s.ID); err != nil || s.SignIn != mcp.SignInRequired {
		t.Errorf("after a 401: %+v, %v, want that a sign-in is required", s, err)
	}
	locked.Store(false)
	if s, err = w.servers.Test(t.Context(), w.ws, s.ID); err != nil || s.Credential || s.SignIn != "" || s.Failure != "" {
		t.Errorf("later: %+v, %v, want it open again", s, err)
	}
}

// What the credential broker refuses for reasons of its own is not told as a sign-in.
func TestBrokerRefuses(t *testing.T) {
	t.Parallel()
	l := newLockedServer(t)
	w := newWorld(t, l.broker)
	s := w.create(t, "locked", l.url+"/mcp")
	l.signedIn.Store(true)
	if _, err := w.servers.SignedIn(t.Context(), w.ws, "locked"); err != nil {
		t.Fatal(err)
	}
	for code, status := range map[string]int{"no_identity": http.StatusUnauthorized, "busy": http.StatusServiceUnavailable, "account_unavailable": http.StatusServiceUnavailable} {
		l.answer.Store(func(w http.ResponseWriter) {
			w.Header().Set("X-Signalbox-Error", code)
			w.WriteHeader(status)
		})
		s, err := w.servers.Test(t.Context(), w.ws, s.ID)
		if err != nil || s.SignIn != "" || !strings.Contains(s.Failure, "credential broker") || !strings.Contains(s.Failure, code) {
			t.Errorf("%s: %q %q, %v, want that the credential broker refuses", code, s.SignIn, s.Failure, err)
		}
	}
}
