package discover_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/services/credential-broker/internal/discover"
	"signalbox.dev/services/credential-broker/internal/store"
	"signalbox.dev/services/credential-broker/internal/target"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// web answers requests by their path; $URL in an answer is its own URL.
type web map[string]string

const (
	resource = `{"resource": "$URL/mcp", "authorization_servers": ["$URL/as"], "scopes_supported": ["a", "b"]}`
	server   = `{"issuer": "$URL/as", "authorization_endpoint": "$URL/a", "token_endpoint": "$URL/t", "registration_endpoint": "$URL/r", "code_challenge_methods_supported": ["S256"]}`
	client   = `{"client_id": "c"}`
)

// good returns a web on which a server can be found, with some answers replaced.
func good(change ...string) web {
	w := web{
		"/.well-known/oauth-protected-resource/mcp":  resource,
		"/.well-known/oauth-authorization-server/as": server,
		"/r": client,
	}
	for i := 0; i < len(change); i += 2 {
		w[change[i]] = change[i+1]
	}
	return w
}

func (w web) start(t *testing.T) string {
	t.Helper()
	var front *httptest.Server
	front = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		text, ok := w[r.URL.Path]
		text = strings.ReplaceAll(text, "$URL", front.URL)
		to, redirects := strings.CutPrefix(text, "=> ")
		status, fails := strings.CutPrefix(text, "status ")
		switch {
		case !ok:
			http.NotFound(rw, r)
		case redirects:
			http.Redirect(rw, r, to, http.StatusFound)
		case fails:
			var code int
			_, _ = fmt.Sscan(status, &code)
			rw.WriteHeader(code)
		default:
			rw.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(rw, text)
		}
	}))
	t.Cleanup(front.Close)
	return front.URL
}

func config(p target.Policy) discover.Config {
	transport := &http.Transport{DialContext: (&net.Dialer{Control: p.Control}).DialContext, DisableKeepAlives: true}
	return discover.Config{
		HTTP:  &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
		Check: p.CheckEndpoint, UserAgent: "test", Document: "https://signalbox.example/client.json",
	}
}

var private = target.Policy{AllowPrivate: true}

func TestFind(t *testing.T) {
	t.Parallel()
	want := store.Server{URL: "$URL/mcp", Resource: "$URL/mcp", Issuer: "$URL/as", Authorize: "$URL/a", Token: "$URL/t", ClientID: "c", Auth: "none", Scopes: []string{"a", "b"}}
	change := func(fn func(*store.Server)) store.Server {
		s := want
		fn(&s)
		return s
	}
	for name, tc := range map[string]struct {
		web    web
		req    discover.Request
		want   store.Server
		secret string
	}{
		"well-known at the path": {web: good(), want: want},
		"well-known at the root": {
			web:  web{"/.well-known/oauth-protected-resource": strings.Replace(resource, "/mcp", "", 1), "/.well-known/oauth-authorization-server/as": server, "/r": client},
			want: change(func(s *store.Server) { s.Resource = "$URL" }),
		},
		"by the challenge": {
			web:  good("/.well-known/oauth-protected-resource/mcp", "status 404", "/meta", resource),
			req:  discover.Request{Metadata: "$URL/meta", Scope: "c d"},
			want: change(func(s *store.Server) { s.Scopes = []string{"c", "d"} }),
		},
		"a challenge of long ago, of a page that is gone": {web: good(), req: discover.Request{Metadata: "$URL/gone"}, want: want},
		"of another resource": {
			web:  good("/old", strings.Replace(resource, "/mcp", "/other", 1)),
			req:  discover.Request{Metadata: "$URL/old"},
			want: want,
		},
		"of a server that fails": {web: good("/old", "status 503"), req: discover.Request{Metadata: "$URL/old"}, want: want},
		"of what is no URL":      {web: good(), req: discover.Request{Metadata: "nowhere"}, want: want},
		"OpenID Connect, path inserted": {
			web:  good("/.well-known/oauth-authorization-server/as", "status 404", "/.well-known/openid-configuration/as", server),
			want: want,
		},
		"OpenID Connect, path in front": {
			web:  good("/.well-known/oauth-authorization-server/as", "status 404", "/as/.well-known/openid-configuration", server),
			want: want,
		},
		"redirected on the same server": {
			web:  good("/.well-known/oauth-protected-resource/mcp", "=> /meta", "/meta", resource),
			want: want,
		},
		"2025-03-26, with metadata": {
			web:  web{"/.well-known/oauth-authorization-server": strings.Replace(server, "/as", "", 1), "/r": client},
			want: change(func(s *store.Server) { s.Issuer, s.Scopes = "$URL", []string{} }),
		},
		"2025-03-26, without": {
			web: web{"/register": client},
			want: change(func(s *store.Server) {
				s.Issuer, s.Authorize, s.Token, s.Scopes = "$URL", "$URL/authorize", "$URL/token", []string{}
			}),
		},
		"a page for every path": {
			web:  good("/.well-known/oauth-authorization-server/as", "status 200", "/.well-known/openid-configuration/as", server),
			want: want,
		},
		"client with a secret": {
			web:    good("/r", `{"client_id": "c", "client_secret": "s", "token_endpoint_auth_method": "client_secret_post"}`),
			want:   change(func(s *store.Server) { s.Auth = "body" }),
			secret: "s",
		},
		"client registered by hand": {
			web:    good("/r", "status 400"),
			req:    discover.Request{ClientID: "mine", Secret: vault.NewSecret("s")},
			want:   change(func(s *store.Server) { s.ClientID, s.Auth = "mine", "basic" }),
			secret: "s",
		},
		"client document": {
			web: good("/.well-known/oauth-authorization-server/as", strings.Replace(server, "{", `{"client_id_metadata_document_supported": true, "authorization_response_iss_parameter_supported": true, `, 1)),
			want: change(func(s *store.Server) {
				s.ClientID, s.NamesItself, s.Document = "https://signalbox.example/client.json", true, true
			}),
		},
		"no client document for a server that does not name itself": {
			web:  good("/.well-known/oauth-authorization-server/as", strings.Replace(server, "{", `{"client_id_metadata_document_supported": true, `, 1)),
			want: want,
		},
		"refresh tokens by scope": {
			web:  good("/.well-known/oauth-authorization-server/as", strings.Replace(server, "{", `{"scopes_supported": ["offline_access"], `, 1)),
			want: change(func(s *store.Server) { s.Scopes = []string{"a", "b", "offline_access"} }),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := tc.web.start(t)
			tc.req.URL, tc.req.Metadata = url+"/mcp", strings.ReplaceAll(tc.req.Metadata, "$URL", url)
			got, secret, err := discover.Find(t.Context(), config(private), tc.req)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range []*string{&got.URL, &got.Resource, &got.Issuer, &got.Authorize, &got.Token} {
				*s = strings.ReplaceAll(*s, url, "$URL")
			}
			if diff := cmp.Diff(tc.want, got); diff != "" || secret.Reveal() != tc.secret {
				t.Errorf("secret %q, want %q; (-want +got):\n%s", secret.Reveal(), tc.secret, diff)
			}
		})
	}
}

func TestFindRefuses(t *testing.T) {
	t.Parallel()
	const place, as = "/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-authorization-server/as"
	replace := func(from, to string) web { return good(as, strings.Replace(server, from, to, 1)) }
	for name, tc := range map[string]struct {
		web      web
		metadata string
		want     string // in the message
	}{
		"resource of another server":    {web: good(place, strings.Replace(resource, "$URL/mcp", "https://other.example/mcp", 1)), want: "another resource"},
		"resource of another path":      {web: good(place, strings.Replace(resource, "$URL/mcp", "$URL/mc", 1)), want: "another resource"},
		"no authorization server":       {web: good(place, strings.Replace(resource, `"$URL/as"`, "", 1)), want: "names no authorization server"},
		"not JSON":                      {web: good(place, `{"resource": `), want: "is not valid"},
		"wrong types":                   {web: good(place, `{"resource": 1}`), want: "is not valid"},
		"deep":                          {web: good(place, strings.Repeat("[", 20_000)), want: "is not valid"},
		"huge":                          {web: good(place, `{"resource": "`+strings.Repeat("x", 300_000)+`"}`), want: "larger than"},
		"endless redirects":             {web: good(place, "=> "+place), want: "redirects more than"},
		"redirect elsewhere":            {web: good(place, "=> https://other.example/"), want: "redirects to another server"},
		"redirect inwards":              {web: good(place, "=> http://169.254.169.254/latest"), want: "redirects to another server"},
		"challenge inwards":             {web: web{"/r": client}, metadata: "http://169.254.169.254/latest", want: "not a public address"},
		"challenge by file":             {web: web{"/r": client}, metadata: "file:///etc/passwd", want: "is not a URL"},
		"challenge with a password":     {web: web{"/r": client}, metadata: "https://user:pass@other.example/", want: "holds a user"},
		"plain authorization server":    {web: good(place, strings.Replace(resource, "$URL/as", "http://other.example", 1)), want: "does not begin with https"},
		"authorization server inwards":  {web: good(place, strings.Replace(resource, "$URL/as", "https://169.254.169.254/", 1)), want: "not a public address"},
		"authorization server by query": {web: good(place, strings.Replace(resource, "$URL/as", "$URL/as?x=y", 1)), want: "has a query"},
		"no metadata":                   {web: good(as, "status 404"), want: "publishes no metadata"},
		"another issuer":                {web: replace("$URL/as", "https://other.example"), want: "another authorization server"},
		"no issuer":                     {web: replace("$URL/as", ""), want: "another authorization server"},
		"no token endpoint":             {web: replace("$URL/t", ""), want: "no token endpoint"},
		"plain token endpoint":          {web: replace("$URL/t", "http://other.example/t"), want: "does not begin with https"},
		"plain authorization endpoint":  {web: replace(`"$URL/a"`, `"http://other.example/t"`), want: "does not begin with https"},
		"script for an endpoint":        {web: replace(`"$URL/a"`, `"javascript:alert(1)"`), want: "is not a URL"},
		"metadata service as endpoint":  {web: replace("$URL/t", "http://169.254.169.254/t"), want: "not a public address"},
		"plain registration":            {web: replace("$URL/r", "http://other.example/r"), want: "does not begin with https"},
		"no PKCE":                       {web: replace("S256", "plain"), want: "PKCE"},
		"no registration":               {web: replace("$URL/r", ""), want: "registers no clients"},
		"registration refused":          {web: good("/r", "status 403"), want: "answers 403"},
		"registration redirected":       {web: good("/r", "=> /elsewhere"), want: "redirects"},
		"no client":                     {web: good("/r", `{}`), want: "no valid client id"},
		"client with a line break":      {web: good("/r", `{"client_id": "a\r\nb"}`), want: "cannot be used"},
		"huge client":                   {web: good("/r", `{"client_id": "`+strings.Repeat("x", 3000)+`"}`), want: "no valid client id"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, _, err := discover.Find(t.Context(), config(private), discover.Request{URL: tc.web.start(t) + "/mcp", Metadata: tc.metadata, Redirect: "https://signalbox.example/back"})
			if f := fault.From(err); f.Code != "OAUTH_DISCOVERY" || !strings.Contains(f.Message, tc.want) {
				t.Errorf("Find() = %v, want OAUTH_DISCOVERY: …%s…", err, tc.want)
			}
		})
	}
}

// A name that leads to a private address is found out when it is dialled.
func TestFindDials(t *testing.T) {
	t.Parallel()
	public := target.Policy{AnyPort: true}
	dialed := ""
	cfg := config(public)
	cfg.HTTP.Transport = &http.Transport{DialContext: (&net.Dialer{Control: func(network, _ string, c syscall.RawConn) error {
		dialed = "10.0.0.1:443" // what the name leads to
		return public.Control(network, dialed, c)
	}}).DialContext}
	cfg.Check = private.CheckEndpoint // the names alone look public
	_, _, err := discover.Find(t.Context(), cfg, discover.Request{URL: "https://127.0.0.1/mcp"})
	if f := fault.From(err); dialed == "" || f.Code != "OAUTH_DISCOVERY" || !strings.Contains(f.Message, "not public") {
		t.Errorf("Find() = %v, want the address refused", err)
	}
}

// slow is a transport that never answers.
type slow struct{}

// RoundTrip implements http.RoundTripper.
func (slow) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

func TestFindSlow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := config(private)
		cfg.HTTP = &http.Client{Transport: slow{}}
		began := time.Now()
		_, _, err := discover.Find(t.Context(), cfg, discover.Request{URL: "https://slow.example/mcp"})
		if took := time.Since(began); fault.KindOf(err) != fault.Unavailable || took > 30*time.Second {
			t.Errorf("Find() = %v after %s, want Unavailable within 30 s", err, took)
		}
	})
}
