package oauth_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/services/credential-broker/internal/oauth"
	"signalbox.dev/services/simulator/authserver"
)

// fixed is an authorisation server that answers what a test says, by path.
type fixed struct {
	url     string
	answers map[string]string // with a status before it, if that is not 200

	mu    sync.Mutex // guards posts
	posts []url.Values
}

func answering(t *testing.T, answers map[string]string) *fixed {
	t.Helper()
	f := &fixed{answers: answers}
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	f.url = server.URL
	return f
}

func (f *fixed) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		http.Error(w, "no form", http.StatusBadRequest)
		return
	}
	f.mu.Lock()
	f.posts = append(f.posts, r.PostForm)
	f.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	body := f.answers[r.URL.Path]
	if page, ok := strings.CutPrefix(body, "404 "); ok {
		w.WriteHeader(http.StatusNotFound)
		body = page
	}
	_, _ = io.WriteString(w, body)
}

func (f *fixed) posted() []url.Values {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.posts
}

// Texts for people have no control characters; removing them loses no tokens.
func TestControlCharacters(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{}, rotating)
	f := answering(t, map[string]string{
		"/token":  `{"access_token":"a-1","refresh_token":"r-1","expires_in":3600,"token_type":"Bea\u0000rer","scope":"re\u0000ad\u001b[2J wri\u202ete"}`,
		"/device": `{"device_code":"d","user_code":"\u001b]0;title\u0007AB","verification_uri":"https://provider.example/device","interval":1,"expires_in":600}`,
	})
	k := w.keeper(func(c *oauth.Config) { c.Providers = loadProviders(t, f.url, rotating) })
	ref := w.grant(k)
	w.expire(ref, k)
	if got, err := k.Token(t.Context(), ref); err != nil || got.Secret.Reveal() != "a-1" {
		t.Errorf("Token() = version %d, %v", got.Version, err)
	}
	if got := w.status(ref).Scope; got != "read[2J write" {
		t.Errorf("the scope is %q", got)
	}
	_, err := k.Start(t.Context(), w.who, oauth.LoginRequest{Provider: "sim", Kind: oauth.Device})
	wantFault(t, "Start()", err, fault.Unavailable, "")
}

// A token whose life makes no sense is neither kept for ever nor thrown away, and one call
// renews it once, however short its life is.
func TestImplausibleLifetimes(t *testing.T) {
	t.Parallel()
	for _, life := range []string{`0`, `"0"`, `-5`, `0.0001`, `1`, `1e400`, `"1h"`, `[3600]`} {
		t.Run(life, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, authserver.Settings{}, rotating)
			f := answering(t, map[string]string{"/token": `{"access_token":"a-1","refresh_token":"r-1","expires_in":` + life + `}`})
			k := w.keeper(func(c *oauth.Config) { c.Providers = loadProviders(t, f.url, rotating) })
			ref := w.grant(k)
			w.expire(ref, k)
			for range 3 {
				if _, err := k.Token(t.Context(), ref); err != nil {
					t.Errorf("Token() = %v", err)
				}
			}
			if n := len(f.posted()); n != 1 {
				t.Errorf("the server was asked %d times, want once", n)
			}
			if s := w.status(ref); s.RefreshAt == nil || s.RefreshAt.Sub(s.IssuedAt) > 10*time.Minute+time.Second {
				t.Errorf("the grant is %+v, want it renewed before long", s)
			}
		})
	}
}

// Polls send the parameters that a provider wants with each request for tokens, and an
// answer that names no error ends nothing.
func TestPollWithoutACode(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authserver.Settings{}, rotating)
	f := answering(t, map[string]string{
		"/token":  `404 <html>`,
		"/device": `{"device_code":"d","user_code":"AB","verification_uri":"https://provider.example/device","interval":1,"expires_in":600}`,
	})
	k := w.keeper(func(c *oauth.Config) { c.Providers = loadProviders(t, f.url, "request: {token: {audience: x}}") })
	login, err := k.Start(t.Context(), w.who, oauth.LoginRequest{Provider: "sim", Kind: oauth.Device})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		w.change(`UPDATE credentials.logins SET poll_at = now()`)
		if got, err := k.Poll(t.Context(), w.who, login.ID); err != nil || got.Done || got.Wait < time.Second {
			t.Errorf("Poll() = %+v, %v, want to wait", got, err)
		}
	}
	for i, post := range f.posted()[1:] {
		if got := post.Get("audience"); got != "x" {
			t.Errorf("poll %d has the audience %q, want x", i+1, got)
		}
	}
	if n := len(f.posted()); n != 3 {
		t.Errorf("the server was asked %d times, want 3", n)
	}
}
