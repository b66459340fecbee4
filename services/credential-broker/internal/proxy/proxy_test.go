package proxy_test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/services/credential-broker/internal/pool"
	"signalbox.dev/services/credential-broker/internal/proxy"
)

func TestStreamPassesUnchanged(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, provider, path string
		pieces               []string
	}{
		{"anthropic", "anthropic", messages, []string{msgStart, msgPing, msgBlock, msgDelta, ": comment\n\n", "event: new_thing\ndata: {}\n\n", msgDelta, msgStop}},
		{"anthropic, CRLF and torn", "anthropic", messages, strings.SplitAfter(strings.ReplaceAll(msgStart+msgBlock+msgDelta+msgStop, "\n", "\r\n"), "\r")},
		{"chat", "openai", chats, []string{chatRole, chatDelta, chatDelta + chatFinish, chatUsage, chatDone}},
		{"chat without DONE", "openai", chats, []string{chatRole, chatDelta, chatFinish, chatUsage}},
		{"chat without the last blank line", "openai", chats, []string{chatRole, chatDelta, "data: [DONE]"}},
		{"anthropic without the last blank line", "anthropic", messages, []string{msgBlock, strings.TrimRight(msgStop, "\n")}},
		{"nothing but the end", "openai", chats, []string{chatRole, chatDone}},
		{"unknown events of an unknown route", "anthropic", "/egress/anthropic/v1/other", []string{"data: 1\n\n", "rest"}},
		{"text after the end", "anthropic", messages, []string{msgBlock, msgStop, ": bye\n"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, &loopback{}, nil)
			r.upstream(tt.provider, func(w http.ResponseWriter, req *http.Request) {
				for k, v := range map[string]string{"Request-Id": "req_1", "Anthropic-Ratelimit-Requests-Remaining": "4", "X-New": "a, b", "Cache-Control": "no-cache"} {
					w.Header().Set(k, v)
				}
				stream(tt.pieces...)(w, req)
			})
			got := r.post(tt.path, asking)
			if got.err != nil || got.status != http.StatusOK {
				t.Fatalf("status %d, end %v, want 200 and a clean end", got.status, got.err)
			}
			if diff := cmp.Diff(strings.Join(tt.pieces, ""), got.body); diff != "" {
				t.Errorf("body (-want +got):\n%s", diff)
			}
			want := http.Header{
				"Content-Type": {"text/event-stream; charset=utf-8"}, "Request-Id": {"req_1"}, "X-New": {"a, b"},
				"Anthropic-Ratelimit-Requests-Remaining": {"4"}, "Cache-Control": {"no-cache"}, "Date": got.header["Date"],
			}
			if diff := cmp.Diff(want, got.header); diff != "" {
				t.Errorf("headers (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]report{{"sk-" + canary, pool.OK, 200}}, r.pool.got()); diff != "" {
				t.Errorf("reports (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPlainAnswersPass(t *testing.T) {
	t.Parallel()
	big := strings.Repeat(`{"a":9007199254740993}`, 50_000)
	tests := []struct {
		name, method, path string
		status             int
		body               string
	}{
		{"JSON", "POST", messages, 200, `{ "id" : 9007199254740993 }`},
		{"large", "POST", messages, 200, big},
		{"list", "GET", "/egress/anthropic/v1/models?limit=2&after=a%2Fb", 200, `[]`},
		{"delete", "DELETE", "/egress/openai/v1/files/f%2F1", 200, `{}`},
		{"head", "HEAD", "/egress/openai/v1/models", 200, ""},
		{"no content", "DELETE", "/egress/openai/v1/x", 204, ""},
		{"caller's error", "POST", messages, 400, `{"type":"error","error":{"type":"invalid_request_error","message":"rate_limit_error said the user"}}`},
		{"not found", "POST", chats, 404, `{"error":"no such model"}`},
		{"large error", "POST", messages, 422, big},
		{"teapot", "POST", messages, 418, "plain"},
		{"server error", "POST", messages, 500, `{}`},
		{"unavailable", "POST", messages, 503, `<html>`},
		{"overloaded", "POST", messages, 529, `{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, &loopback{}, nil)
			provider := strings.Split(tt.path, "/")[2]
			calls := 0
			r.upstream(provider, func(w http.ResponseWriter, req *http.Request) {
				calls++
				if want := strings.TrimPrefix(tt.path, "/egress/"+provider); req.RequestURI != want || req.Method != tt.method {
					t.Errorf("upstream got %s %s, want %s %s", req.Method, req.RequestURI, tt.method, want)
				}
				answer(tt.status, tt.body, "Request-Id", "r", "Retry-After", "7", "X-Should-Retry", "true")(w, req)
			}, "first-secret", "second-secret")
			req := r.request(t.Context(), tt.path, "")
			req.Method = tt.method
			got := r.do(req)
			if got.err != nil || got.status != tt.status || got.body != tt.body {
				t.Errorf("got %d with %d bytes, %v; want %d with %d bytes", got.status, len(got.body), got.err, tt.status, len(tt.body))
			}
			for k, want := range map[string]string{"Request-Id": "r", "Retry-After": "7", "X-Should-Retry": "true", "Content-Type": "application/json"} {
				if got.header.Get(k) != want {
					t.Errorf("header %s = %q, want %q", k, got.header.Get(k), want)
				}
			}
			if calls != 1 {
				t.Errorf("upstream was called %d times, want once", calls)
			}
		})
	}
}

func TestRequestHeaders(t *testing.T) {
	t.Parallel()
	r := newRig(t, &loopback{}, nil)
	var got http.Header
	var gotURI, gotBody string
	r.upstream("anthropic", func(w http.ResponseWriter, req *http.Request) {
		b, _ := io.ReadAll(req.Body)
		got, gotURI, gotBody = req.Header.Clone(), req.RequestURI, string(b)
		w.Header().Set("Set-Cookie", "provider=1")
		w.Header().Set("Connection", "X-Hop")
		w.Header().Set("X-Hop", "1")
		answer(200, `{}`)(w, req)
	})
	req := r.request(t.Context(), messages+"?beta=true&key=k&api_key=x&a=%20b&access_token="+r.token(), asking)
	for k, v := range map[string]string{
		"Authorization": "Bearer " + r.token(), "User-Agent": "Anthropic/JS 1.0", "Anthropic-Version": "2023-06-01", "X-Stainless-Lang": "js",
		"Anthropic-Beta": "a,b", "Cookie": "session=1", "X-Forwarded-For": "10.0.0.1", "Forwarded": "for=10.0.0.1", "Referer": "http://inside.example/x", "Origin": "http://inside.example", "Traceparent": "00-1-2-01", "X-Signalbox-Session": "0193a1b2",
		"Accept-Encoding": "gzip, br", "Connection": "X-Private", "X-Private": "1", "Proxy-Authorization": "x", "Te": "trailers",
		"Idempotency-Key": "i1", "X-Copy": "my token is " + req.Header.Get("X-Api-Key"), identity.Header: r.token(), "Accept": "application/json",
	} {
		req.Header.Set(k, v)
	}
	res := r.do(req)
	if res.status != 200 || res.err != nil {
		t.Fatalf("got %d %s, %v", res.status, res.body, res.err)
	}
	want := http.Header{
		"Accept": {"application/json"}, "Accept-Encoding": {"identity"}, "Anthropic-Beta": {"a,b"}, "Anthropic-Version": {"2023-06-01"}, "Content-Length": {"41"},
		"Content-Type": {"application/json"}, "Idempotency-Key": {"i1"}, "User-Agent": {"signalbox/1.2.3"}, "X-Api-Key": {"sk-" + canary}, "X-Stainless-Lang": {"js"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("headers at the provider (-want +got):\n%s", diff)
	}
	if gotURI != "/v1/messages?beta=true&key=k&api_key=x&a=%20b" {
		t.Errorf("the provider was asked for %q", gotURI)
	}
	if gotBody != asking {
		t.Errorf("the provider got the body %q", gotBody)
	}
	for _, k := range []string{"Set-Cookie", "X-Hop"} {
		if v := res.header.Get(k); v != "" {
			t.Errorf("the caller got %s: %q", k, v)
		}
	}
}

// The caller's query is forwarded, except for parameters that hold the caller's token.
func TestQuery(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ provider, query, want string }{
		{"github", "key=npm-linux", "key=npm-linux"},
		{"github", "token=tok_1&x=1&access_token=a", "token=tok_1&x=1&access_token=a"},
		{"github", "q=100%&%zz=1&a=%20b&&c", "q=100%&%zz=1&a=%20b&&c"},
		{"github", "key=§&x=1", "x=1"},
		{"github", "x=1&%zz=§", "x=1"},
		{"github", "§&a=Bearer+§&b=2", "b=2"},
		{"google", "pageToken=t&fields=key", "pageToken=t&fields=key"},
		{"google", "key=§&x=1", "x=1"},
	} {
		var f recorder
		r := newRig(t, &loopback{}, nil)
		r.upstream(tt.provider, f.then(answer(200, `{}`)))
		token := r.token()
		req := r.request(t.Context(), "/egress/"+tt.provider+"/x?"+strings.ReplaceAll(tt.query, "§", token), "")
		req.Header.Set("X-Api-Key", token)
		if got := r.do(req); got.status != 200 || f.uri != "/x?"+tt.want {
			t.Errorf("%s is asked with %q: got %d %s, the provider %q, want %q", tt.provider, tt.query, got.status, got.body, f.uri, tt.want)
		}
	}
}

// A key of the caller's own in a query parameter that the provider accepts is refused.
func TestKeyInQuery(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"key", "access_token", "%6bey"} {
		r := newRig(t, &loopback{}, nil)
		r.upstream("google", func(_ http.ResponseWriter, req *http.Request) { t.Errorf("the provider got %s", req.RequestURI) })
		got := r.post("/egress/google/x?a=b&"+name+"=AIza-mine", "")
		if got.status != 400 || !strings.Contains(got.body, "token of your own, in ") || strings.Contains(got.body, "AIza") || got.header.Get("X-Should-Retry") != "false" {
			t.Errorf("%s: got %d %s %v", name, got.status, got.body, got.header)
		}
		if reports := r.pool.got(); len(reports) != 1 || reports[0].Reason != pool.Caller {
			t.Errorf("%s: reports %v", name, reports)
		}
	}
}

func TestTokenPlaces(t *testing.T) {
	t.Parallel()
	r := newRig(t, &loopback{}, nil)
	r.upstream("openai", func(w http.ResponseWriter, req *http.Request) {
		if got := req.Header.Get("Authorization"); got != "Bearer sk-"+canary {
			t.Errorf("the provider got Authorization %q", got)
		}
		answer(200, `{}`)(w, req)
	})
	for name, value := range map[string]string{
		"X-Api-Key": r.token(), "Api-Key": r.token(), "X-Goog-Api-Key": r.token(), identity.Header: r.token(),
		"Authorization": "Bearer " + r.token(), "authorization": "bearer  " + r.token(), "AUTHORIZATION": "Token " + r.token(),
	} {
		req := r.request(t.Context(), chats, asking)
		req.Header.Del("X-Api-Key")
		req.Header.Set(name, value)
		if got := r.do(req); got.status != 200 {
			t.Errorf("with the token in %s: %d %s", name, got.status, got.body)
		}
	}
}

// A key of the caller's own beside the token is not forwarded.
func TestTokenBesideKey(t *testing.T) {
	t.Parallel()
	const mine = "sk-mine-0123456789"
	r := newRig(t, &loopback{}, nil)
	r.upstream("openai", func(w http.ResponseWriter, req *http.Request) {
		for name, values := range req.Header {
			if all := strings.Join(values, " "); strings.Contains(all, mine) || strings.Contains(all, "eyJ") {
				t.Errorf("the provider got %s: %s", name, all)
			}
		}
		answer(200, `{}`)(w, req)
	})
	for _, tt := range []struct {
		key, authorization string
		want               int
	}{
		{mine, "Bearer " + r.token(), 200},
		{r.token(), "Bearer " + mine, 200},
		{r.token(), "Basic " + mine, 200},
		{mine, "Bearer " + mine, 401},
		{mine, "Basic " + r.token(), 401},
	} {
		for _, name := range []string{"X-Api-Key", "Api-Key", "X-Goog-Api-Key"} {
			req := r.request(t.Context(), chats, asking)
			req.Header.Del("X-Api-Key")
			req.Header.Set(name, tt.key)
			req.Header.Set("Authorization", tt.authorization)
			if got := r.do(req); got.status != tt.want {
				t.Errorf("with %s %.12s… and Authorization %.12s…: %d %s, want %d", name, tt.key, tt.authorization, got.status, got.body, tt.want)
			}
		}
	}
	if logs := r.logs.String(); strings.Contains(logs, mine) || strings.Contains(logs, "eyJ") {
		t.Errorf("it is logged: %s", logs)
	}
}

// A path means the same however it is escaped: its route is recognised, and the provider gets
// the usual form. Characters that need an escape stay escaped.
func TestEscapedPath(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"/egress/anthropic/v1/%6dess%61ges":                      "/v1/messages",
		"/egress/anthropic/v1/messages%7E":                       "/v1/messages~",
		"/egress/anthropic/v1/a%2Fb%2fc%25":                      "/v1/a%2Fb%2fc%25",
		"/egress/anthropic/v1/f%C3%BCr":                          "/v1/f%C3%BCr",
		"/egress/anthropic/sites/https%3A%2F%2Fexample.com%2F/x": "/sites/https%3A%2F%2Fexample.com%2F/x",
		"/egress/anthropic/heads/a%2f%2Fb/":                      "/heads/a%2f%2Fb/",
	} {
		r := newRig(t, &loopback{}, nil)
		var uri string
		r.upstream("anthropic", func(w http.ResponseWriter, req *http.Request) {
			uri = req.RequestURI
			stream(msgStart, msgDelta)(w, req)
		})
		got := r.post(path, asking)
		if uri != want {
			t.Errorf("%s: the provider got %s, want %s", path, uri, want)
		}
		if known := want == "/v1/messages"; (got.err != nil) != known {
			t.Errorf("%s: the end is %v, want the rules of its route: %v", path, got.err, known)
		}
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		path   string
		change func(*rig, *http.Request)
		status int
		want   string // part of the body
		retry  string // X-Should-Retry
	}{
		{"no token", messages, func(_ *rig, r *http.Request) { r.Header.Del("X-Api-Key") }, 401, `{"type":"error","error":{"type":"authentication_error","message":"no workspace token`, "false"},
		{"no token, openai", chats, func(_ *rig, r *http.Request) { r.Header.Del("X-Api-Key") }, 401, `{"error":{"message":"no workspace token: send one where the API key goes","type":"invalid_request_error","param":null,"code":"no_identity"}}`, "false"},
		{"a real key", messages, func(_ *rig, r *http.Request) { r.Header.Set("X-Api-Key", "sk-ant-api03-xyz") }, 401, "was not accepted", "false"},
		{"another audience", messages, func(x *rig, r *http.Request) {
			token, _ := x.signer.Sign(x.actor, "gateway")
			r.Header.Set("X-Api-Key", token)
		}, 401, "was not accepted", "false"},
		{"viewer", messages, func(x *rig, r *http.Request) {
			a := x.actor
			a.Role = identity.Viewer
			token, _ := x.signer.Sign(a, "credential-broker")
			r.Header.Set("X-Api-Key", token)
		}, 403, "permission_error", "false"},
		{"unknown provider", "/egress/nobody/v1/x", nil, 401, "there is no credential for the provider nobody: add one with `signalbox accounts add nobody` or POST /api/accounts, or", "false"},
		{"not connected", "/egress/google/x", nil, 401, "there is no credential for the provider google: connect it with POST /api/connections, or", "false"},
		{"no provider", "/egress/", nil, 404, "unknown_provider", "false"},
		{"odd provider", "/egress/A%2Fb/x", nil, 404, "unknown_provider", "false"},
		{"method", messages, func(_ *rig, r *http.Request) { r.Method = "OPTIONS" }, 405, "the method OPTIONS is not forwarded", "false"},
		{"websocket", "/egress/openai/v1/realtime", func(_ *rig, r *http.Request) {
			r.Method = "GET"
			r.Header.Set("Connection", "Upgrade")
			r.Header.Set("Upgrade", "WebSocket")
		}, 501, `{"error":{"message":"websockets are not forwarded: use the provider's HTTP API","type":"server_error"`, "false"},
		{"dots", "/egress/anthropic/v1/../x", nil, 400, "segment", "false"},
		{"encoded dots", "/egress/anthropic/v1/%2e%2E/x", nil, 400, "segment", "false"},
		{"encoded slash", "/egress/anthropic/v1/..%2fx", nil, 400, "segment", "false"},
		{"empty segment", "/egress/anthropic//v1", nil, 400, "segment", "false"},
		{"no segment at first", "/egress/anthropic//", nil, 400, "segment", "false"},
		{"encoded dots between encoded slashes", "/egress/anthropic/v1/a%2F%2e%2e%2Fb", nil, 400, "segment", "false"},
		{"control character", "/egress/anthropic/v1%0d%0ax", nil, 400, "control character", "false"},
		{"query in letters of its own", "/egress/anthropic/v1/models?q=für", nil, 400, "bad_query", "false"},
		{"backslash", "/egress/anthropic/v1%5c..", nil, 400, "segment", "false"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, &loopback{}, nil)
			req := r.request(t.Context(), tt.path, asking)
			if tt.change != nil {
				tt.change(r, req)
			}
			got := r.do(req)
			if got.status != tt.status || !strings.Contains(got.body, tt.want) || got.header.Get("X-Should-Retry") != tt.retry {
				t.Errorf("got %d %s retry %q, want %d with %q, retry %q", got.status, got.body, got.header.Get("X-Should-Retry"), tt.status, tt.want, tt.retry)
			}
			if ct := got.header.Get("Content-Type"); ct != "application/json" {
				t.Errorf("Content-Type = %q", ct)
			}
		})
	}
}

func TestPoolErrors(t *testing.T) {
	t.Parallel()
	tests := []struct {
		err                  error
		status               int
		want, retry, waiting string
	}{
		{pool.ErrNone, 401, "there is no credential for the provider anthropic", "false", ""},
		{fault.New(fault.Unavailable, "the database is not available at the moment; try again"), 503, "the database is not available", "", "1"},
		{fault.New(fault.Conflict, "the stored account cannot be used"), 409, "the stored account cannot be used", "false", ""},
		{errors.New("secret inner " + canary), 500, "internal error of the credential broker: see its log", "false", ""},
	}
	for _, tt := range tests {
		r := newRig(t, &loopback{}, nil)
		r.pool.err = tt.err
		got := r.post(messages, asking)
		if got.status != tt.status || !strings.Contains(got.body, tt.want) || got.header.Get("X-Should-Retry") != tt.retry || got.header.Get("Retry-After") != tt.waiting {
			t.Errorf("Select fails with %v: got %d %s %v", tt.err, got.status, got.body, got.header)
		}
	}
}

func TestRedirectIsNotFollowed(t *testing.T) {
	t.Parallel()
	r := newRig(t, &loopback{}, nil)
	r.upstream("anthropic", func(w http.ResponseWriter, req *http.Request) {
		http.Redirect(w, req, "https://evil.example/", http.StatusTemporaryRedirect)
	})
	got := r.post(messages, asking)
	if got.status != 502 || got.header.Get("Location") != "" || got.header.Get("X-Should-Retry") != "false" || !strings.Contains(got.body, "redirect") {
		t.Errorf("got %d %s %v", got.status, got.body, got.header)
	}
}

// A compressed stream, whose end cannot be seen, is an error; other compressed answers pass
// unread.
func TestCompressed(t *testing.T) {
	t.Parallel()
	const packed = "\x1f\x8b not really"
	compressed := func(kind string) http.HandlerFunc {
		return func(w http.ResponseWriter, req *http.Request) {
			if e := req.Header.Get("Accept-Encoding"); e != "identity" {
				t.Errorf("the provider was asked for %q", e)
			}
			w.Header().Set("Content-Encoding", "gzip")
			w.Header().Set("Content-Type", kind)
			_, _ = io.WriteString(w, packed)
		}
	}
	for _, tt := range []struct {
		path, kind string
		status     int
	}{
		{"/v1/messages", "text/event-stream", 502},
		{"/v1/messages", "text/plain", 502},
		{"/v1/messages", "application/json", 200},
		{"/v1/elsewhere", "text/event-stream", 200},
	} {
		r := newRig(t, &loopback{}, nil)
		r.upstream("anthropic", compressed(tt.kind))
		got := r.post("/egress/anthropic"+tt.path, asking)
		switch {
		case got.status != tt.status || got.err != nil:
			t.Errorf("%s as %s: got %d %q, %v, want %d", tt.path, tt.kind, got.status, got.body, got.err, tt.status)
		case tt.status == 200 && (got.body != packed || got.header.Get("Content-Encoding") != "gzip"):
			t.Errorf("%s as %s: got %q", tt.path, tt.kind, got.body)
		case tt.status == 502 && !strings.Contains(got.body, "answered with a compressed body"):
			t.Errorf("%s as %s: got %q", tt.path, tt.kind, got.body)
		}
	}
}

func TestSecretsStayInside(t *testing.T) {
	t.Parallel()
	r := newRig(t, &loopback{}, nil)
	r.upstream("openai", func(w http.ResponseWriter, req *http.Request) {
		echo := req.Header.Get("Authorization")
		w.Header().Set("X-Echo", echo)
		switch req.Header.Get("X-Case") {
		case "error":
			answer(401, `{"error":{"message":"Incorrect API key provided: `+strings.TrimPrefix(echo, "Bearer ")+`"}}`)(w, req)
		case "cut":
			stream(chatDelta)(w, req)
			cut()
		case "hang up":
			cut()
		default:
			stream(chatDelta, chatDone)(w, req)
		}
	})
	token := r.token()
	var shown strings.Builder
	for _, c := range []string{"good", "error", "cut", "hang up"} {
		req := r.request(t.Context(), chats+"?key="+token, asking)
		req.Header.Set("X-Case", c)
		req.Header.Set("X-Api-Key", token)
		got := r.do(req)
		shown.WriteString(got.body)
		for k, v := range got.header {
			shown.WriteString(k + strings.Join(v, " "))
		}
	}
	bad := r.request(t.Context(), chats, asking)
	bad.Header.Set("X-Api-Key", token+canary)
	shown.WriteString(r.do(bad).body)
	all := shown.String() + r.logs.String()
	for _, secret := range []string{canary, token} {
		if strings.Contains(all, secret) {
			t.Errorf("%q shows in:\n%s", secret, all)
		}
	}
	if !strings.Contains(shown.String(), "Incorrect API key provided: [redacted]") {
		t.Errorf("the provider's error is not there: %s", shown.String())
	}
	if !strings.Contains(r.logs.String(), `"outcome":"broken"`) {
		t.Errorf("the log says nothing of the broken stream:\n%s", r.logs)
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	r := newRig(t, &loopback{}, func(c *proxy.Config) { c.Limits.Body = 1 << 20 })
	r.upstream("anthropic", func(w http.ResponseWriter, req *http.Request) {
		b, err := io.ReadAll(req.Body)
		if err != nil || req.ContentLength != int64(len(b)) {
			t.Errorf("the provider read %d of %d bytes, %v", len(b), req.ContentLength, err)
		}
		answer(200, strings.Repeat("x", len(b)%1000))(w, req)
	})
	tests := []struct {
		name   string
		size   int
		length bool // announce it
		status int
	}{
		{"empty", 0, true, 200},
		{"at the limit", 1 << 20, true, 200},
		{"at the limit, unannounced", 1 << 20, false, 200},
		{"over", 1<<20 + 1, true, 413},
		{"over, unannounced", 1<<20 + 1, false, 413},
		{"twice over", 2 << 20, true, 413},
		{"far over, unannounced", 3 << 20, false, 413},
	}
	for _, tt := range tests {
		req := r.request(t.Context(), messages, "")
		req.Body = io.NopCloser(strings.NewReader(strings.Repeat("x", tt.size)))
		req.ContentLength = -1
		if tt.length {
			req.ContentLength = int64(tt.size)
		}
		got := r.do(req)
		if got.status != tt.status || got.err != nil {
			t.Errorf("%s: got %d, %v, want %d", tt.name, got.status, got.err, tt.status)
		}
		if tt.status == 413 && (!strings.Contains(got.body, `"request_too_large"`) || got.header.Get("X-Should-Retry") != "false" || !strings.Contains(got.body, "limit of 1 MiB")) {
			t.Errorf("%s: got %s %v", tt.name, got.body, got.header)
		}
	}
}

// The answer of a provider that does not read the request arrives whole.
func TestUnreadRequestBody(t *testing.T) {
	t.Parallel()
	r := newRig(t, &loopback{}, nil)
	reply := strings.Repeat(msgDelta, 2000)
	r.upstream("anthropic", func(w http.ResponseWriter, req *http.Request) {
		stream(reply, msgStop)(w, req)
	})
	body := `{"stream":true,"x":"` + strings.Repeat("x", 200<<10) + `"}`
	for range 20 {
		if got := r.post(messages, body); got.err != nil || got.body != reply+msgStop {
			t.Fatalf("got %d bytes of %d, %v", len(got.body), len(reply+msgStop), got.err)
		}
	}
}

// What a mount stands for depends on the account's base URL; a route's rules apply with it and
// without.
func TestMounts(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ base, path, want string }{
		{"/v1", "/v1/chat/completions", "/v1/chat/completions"},
		{"/v1", "/chat/completions", "/v1/chat/completions"},
		{"", "/v1/chat/completions", "/v1/chat/completions"},
		{"/x/v4", "/v1/chat/completions", "/x/v4/chat/completions"},
	} {
		var f recorder
		r := newRig(t, &loopback{}, nil)
		r.upstream("openai", f.then(stream(chatDelta)))
		r.pool.all[0].Base.Path = tt.base
		got := r.post("/egress/openai"+tt.path, asking)
		if f.uri != tt.want || got.err == nil {
			t.Errorf("%s at the base %q: the provider got %s, want %s; an answer without end ends with %v", tt.path, tt.base, f.uri, tt.want, got.err)
		}
	}
}

// An answer has the content type that the provider sent, or none.
func TestNoContentType(t *testing.T) {
	t.Parallel()
	for _, status := range []int{200, 206, 404} {
		r := newRig(t, &loopback{}, nil)
		r.upstream("openai", func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Type"] = nil
			w.WriteHeader(status)
			_, _ = io.WriteString(w, "<html><script>x</script>")
		})
		got := r.post("/egress/openai/v1/files/f/content", "")
		if values, ok := got.header["Content-Type"]; got.status != status || ok {
			t.Errorf("got %d with Content-Type %q", got.status, values)
		}
	}
}
