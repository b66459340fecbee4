package gateway_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"signalbox.dev/pkg/identity"

	"signalbox.dev/services/gateway"
)

// signIn exchanges a token or a key for a cookie.
func (in *instance) signIn(t testing.TB, body string, change func(*http.Request)) *http.Cookie {
	t.Helper()
	got := in.send(t, in.request(t, person{}, "POST", "/api/sign-in", body, change))
	if got.status != http.StatusOK {
		t.Fatalf("sign in = %d %s, want 200", got.status, got.body)
	}
	c, err := http.ParseSetCookie(got.header.Get("Set-Cookie"))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// withCookie sends a cookie as a browser does: without its attributes.
func withCookie(c *http.Cookie, headers ...string) func(*http.Request) {
	return func(r *http.Request) {
		r.AddCookie(&http.Cookie{Name: c.Name, Value: c.Value})
		for i := 0; i < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
	}
}

func token(p person) string { return fmt.Sprintf(`{"token":%q}`, p.token) }

func TestBrowserSession(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	p := w.join(t, w.workspace, identity.Editor)
	c := in.signIn(t, token(p), nil)
	if c.Name != "signalbox_session" || !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Path != "/" || c.Domain != "" || c.Secure {
		t.Errorf("cookie over HTTP = %v", c)
	}
	https := in.signIn(t, token(p), func(r *http.Request) {
		r.Header.Set("Origin", "https://signalbox.example")
		r.Host = "signalbox.example"
	})
	if https.Name != "__Host-signalbox_session" || !https.Secure || https.Domain != "" || https.Path != "/" {
		t.Errorf("cookie over HTTPS = %v", https)
	}
	here := person{workspace: w.workspace} // without a token
	// Over HTTPS another host of the domain may have set the cookie without the prefix.
	if got := in.send(t, in.request(t, here, "GET", "/api/me", "", withCookie(c, "X-Forwarded-Proto", "https"))); got.status != http.StatusUnauthorized {
		t.Errorf("the cookie without its prefix over HTTPS = %d, want 401", got.status)
	}
	for name, headers := range map[string][]string{
		"our page":      {"Sec-Fetch-Site", "same-origin", "Origin", in.url},
		"no page":       {"Sec-Fetch-Site", "none"},
		"old browser":   {"Origin", in.url},
		"not a browser": nil,
	} {
		if got := in.send(t, in.request(t, here, "POST", "/api/sessions", "", withCookie(c, headers...))); got.status != http.StatusCreated {
			t.Errorf("%s: %d %s, want 201", name, got.status, got.body)
		}
	}
	for name, headers := range map[string][]string{
		"another site":              {"Sec-Fetch-Site", "cross-site"},
		"another host of our site":  {"Sec-Fetch-Site", "same-site"},
		"another origin":            {"Origin", "https://evil.example"},
		"a page without an origin":  {"Origin", "null"},
		"our host at another port":  {"Origin", "http://127.0.0.1:1"},
		"another site, our origin":  {"Sec-Fetch-Site", "cross-site", "Origin", in.url},
		"what the standard may add": {"Sec-Fetch-Site", "unheard-of"},
	} {
		if got := in.send(t, in.request(t, here, "POST", "/api/sessions", "", withCookie(c, headers...))); got.status != http.StatusUnauthorized {
			t.Errorf("%s: %d %s, want 401", name, got.status, got.body)
		}
	}
	// A token of the request's own counts, and not the cookie.
	if got := in.send(t, in.request(t, person{token: "wrong", workspace: w.workspace}, "GET", "/api/sessions", "", withCookie(c))); got.status != http.StatusUnauthorized {
		t.Errorf("a wrong token beside a cookie = %d, want 401", got.status)
	}
	me := call[object](t, in, here, "GET", "/api/me", "", http.StatusOK, withCookie(c))
	if me["member_id"] != p.member.String() || me["browser"] != true {
		t.Errorf("me = %v", me)
	}
}

func TestSignOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	session := in.newSession(t, w.owner)
	p, other := w.join(t, w.workspace, identity.Viewer), w.join(t, w.workspace, identity.Viewer)
	here := person{workspace: w.workspace}
	first, second := in.signIn(t, token(p), nil), in.signIn(t, token(p), nil)
	theirs := in.signIn(t, token(other), nil)

	s := in.open(t, here, "GET", eventsOf(session), "", withCookie(first))
	got := in.send(t, in.request(t, here, "POST", "/api/sign-out", "", withCookie(first)))
	if c, err := http.ParseSetCookie(got.header.Get("Set-Cookie")); got.status != http.StatusOK || err != nil || c.MaxAge >= 0 || c.Name != first.Name {
		t.Errorf("sign out = %d, cookie %v, %v", got.status, c, err)
	}
	if err := s.ended(t); err == nil {
		t.Error("the stream of a browser that signed out ended cleanly, want it cut")
	}
	if got := in.send(t, in.request(t, here, "GET", "/api/me", "", withCookie(first))); got.status != http.StatusUnauthorized || !strings.Contains(got.body, "SIGNED_OUT") {
		t.Errorf("after the sign-out: %d %s, want 401", got.status, got.body)
	}

	list := call[map[string][]object](t, in, here, "GET", "/api/browser-sessions", "", http.StatusOK, withCookie(second))["sessions"]
	if len(list) != 1 || list[0]["current"] != true {
		t.Fatalf("browsers = %v, want the one that asks", list)
	}
	// Somebody else's session cannot be ended.
	path := fmt.Sprintf("/api/browser-sessions/%s", list[0]["id"])
	if got := in.send(t, in.request(t, here, "DELETE", path, "", withCookie(theirs))); got.status != http.StatusNotFound {
		t.Errorf("ending another person's session = %d, want 404", got.status)
	}
	s = in.open(t, here, "GET", eventsOf(session), "", withCookie(second))
	call[object](t, in, p, "DELETE", path, "", http.StatusOK)
	if err := s.ended(t); err == nil {
		t.Error("the stream of a browser that was signed out ended cleanly, want it cut")
	}
}

func TestSignInRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	key, _ := call[object](t, in, w.owner, "POST", "/api/keys", `{"name":"k"}`, http.StatusCreated)["secret"].(string)
	for name, tc := range map[string]struct {
		body string
		want int
		code string
	}{
		"nothing":     {`{}`, http.StatusBadRequest, "send a token or a key"},
		"both":        {`{"token":"a","key":"b"}`, http.StatusBadRequest, "send a token or a key"},
		"no token":    {`{"token":"nonsense"}`, http.StatusUnauthorized, "INVALID_TOKEN"},
		"API key":     {fmt.Sprintf(`{"token":%q}`, key), http.StatusForbidden, "PERSON_NEEDED"},
		"unknown key": {`{"key":"nonsense"}`, http.StatusUnauthorized, "LINK_USED"},
		"NUL":         {`{"key":"\u0000"}`, http.StatusUnauthorized, "LINK_USED"},
	} {
		if got := in.send(t, in.request(t, person{}, "POST", "/api/sign-in", tc.body, nil)); got.status != tc.want || !strings.Contains(got.body, tc.code) {
			t.Errorf("%s: %d %s, want %d %s", name, got.status, got.body, tc.want, tc.code)
		}
	}
}

func TestSignInLink(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	p := w.join(t, w.workspace, identity.Editor)
	link := func(lifetime time.Duration) string {
		key, err := gateway.SignInLink(t.Context(), w.db, p.member, time.Now().Add(lifetime))
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf(`{"key":%q}`, key.Reveal())
	}
	good, old := link(time.Hour), link(-time.Second)
	c := in.signIn(t, good, nil)
	if me := call[object](t, in, person{}, "GET", "/api/me", "", http.StatusOK, withCookie(c)); me["member_id"] != p.member.String() {
		t.Errorf("me = %v, want %s", me, p.member)
	}
	for name, body := range map[string]string{"used": good, "expired": old} {
		if got := in.send(t, in.request(t, person{}, "POST", "/api/sign-in", body, nil)); got.status != http.StatusUnauthorized || !strings.Contains(got.body, "LINK_USED") {
			t.Errorf("%s link: %d %s, want 401", name, got.status, got.body)
		}
	}
	// A page of another site cannot sign its visitors in, such as with a form.
	for name, headers := range map[string][2]string{"site": {"Sec-Fetch-Site", "cross-site"}, "origin": {"Origin", "https://evil.example"}} {
		got := in.send(t, in.request(t, person{}, "POST", "/api/sign-in", token(p), func(r *http.Request) {
			r.Header.Set("Content-Type", "text/plain")
			r.Header.Set(headers[0], headers[1])
		}))
		if got.status != http.StatusForbidden || !strings.Contains(got.body, "OTHER_ORIGIN") || got.header.Get("Set-Cookie") != "" {
			t.Errorf("sign-in from another %s = %d %s, want 403", name, got.status, got.body)
		}
	}
	// A session's secret is not a token.
	if got := in.send(t, in.request(t, person{}, "POST", "/api/sign-in", fmt.Sprintf(`{"token":%q}`, c.Value), nil)); got.status != http.StatusForbidden {
		t.Errorf("sign-in with a session = %d, want 403", got.status)
	}
	// Guesses are counted by address.
	var last answer
	for range 30 {
		last = in.send(t, in.request(t, person{}, "POST", "/api/sign-in", `{"key":"guess"}`, nil))
	}
	if last.status != http.StatusTooManyRequests {
		t.Errorf("the 30th guess = %d, want 429", last.status)
	}
}
