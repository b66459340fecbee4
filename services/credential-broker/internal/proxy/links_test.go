package proxy_test

import (
	"cmp"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"signalbox.dev/services/credential-broker/internal/pool"
	"signalbox.dev/services/credential-broker/internal/proxy"
)

// URLs at the provider in an answer lead through the proxy; others stay as they are.
func TestLinks(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, provider, path string
		header               string
		sent, want           string // ° is the provider's host, ^ the proxy's
	}{
		{"paging", "github", "/user/repos?page=1", "Link", `<°/user/repos?page=2&q=a%2Fb>; rel="next", <°/user/repos?page=9>; rel="last"`, `<^/github/user/repos?page=2&q=a%2Fb>; rel="next", <^/github/user/repos?page=9>; rel="last"`},
		{"the provider's own name", "github", "/user/repos", "Link", `<https://api.github.com/user/repos?page=2>; rel="next"`, `<^/github/user/repos?page=2>; rel="next"`},
		{"its port", "github", "/x", "Link", `<https://API.github.com:443/x>`, `<^/github/x>`},
		{"another port", "github", "/x", "Link", `<https://api.github.com:444/x>`, `<https://api.github.com:444/x>`},
		{"another host", "github", "/x", "Link", `<https://uploads.github.com/x>; rel="next"; title="<°/y>, \"<°/z>"`, `<https://uploads.github.com/x>; rel="next"; title="<°/y>, \"<°/z>"`},
		{"half a link", "github", "/x", "Link", `<°/x`, `<°/x`},
		{"relative", "github", "/user/repos", "Link", `<repos?page=2>, </a#b%20c>`, `<^/github/user/repos?page=2>, <^/github/a#b%20c>`},
		{"upload", "google", "/upload/drive/v3/files", "Location", "https://www.googleapis.com/upload/drive/v3/files?upload_id=X", "^/google/upload/drive/v3/files?upload_id=X"},
		{"behind a mount", "openai", "/v1/realtime/calls", "Location", "/v1/realtime/calls/x", "^/openai/v1/realtime/calls/x"},
		{"without the mount", "openai", "/realtime/calls", "Location", "/v1/realtime/calls/x", "^/openai/realtime/calls/x"},
		{"beside the base", "openai", "/v1/x", "Location", "°/v10/x", "°/v10/x"},
		{"below the base", "openai", "/v1/x", "Content-Location", "°/v1", "^/openai/v1"},
		{"up and down", "openai", "/v1/x", "Location", "°/v1/../v2", "°/v1/../v2"},
		{"with a user", "github", "/x", "Location", "https://me@api.github.com/x", "https://me@api.github.com/x"},
		{"no URL", "github", "/x", "Location", ":%zz", ":%zz"},
		{"the credential", "github", "/x", "Location", "°/x?t=" + long, ""},
		{"the credential, escaped", "github", "/x", "Link", "<°/x?t=%73" + long[1:] + ">", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, &loopback{}, nil)
			var base string
			r.upstream(tt.provider, func(w http.ResponseWriter, req *http.Request) {
				answer(201, `{}`, tt.header, strings.ReplaceAll(tt.sent, "°", base))(w, req)
			}, long)
			base = "http://" + r.pool.all[0].Base.Host
			want := strings.NewReplacer("°", base, "^", r.url+"/egress").Replace(tt.want)
			if got := r.post("/egress/"+tt.provider+tt.path, asking); got.status != 201 || got.header.Get(tt.header) != want {
				t.Errorf("got %d, %s: %q, want %q", got.status, tt.header, got.header.Get(tt.header), want)
			}
		})
	}
}

// If a proxy in front terminated the caller's TLS, URLs have the caller's scheme.
func TestLinksBehindTLS(t *testing.T) {
	t.Parallel()
	r := newRig(t, &loopback{}, nil)
	r.upstream("github", answer(200, `{}`, "Link", `<https://api.github.com/x>; rel="next"`))
	req := r.request(t.Context(), "/egress/github/x", "")
	req.Host = "broker.example"
	req.Header.Set("X-Forwarded-Proto", "https")
	if got := r.do(req).header.Get("Link"); got != `<https://broker.example/egress/github/x>; rel="next"` {
		t.Errorf("got %q", got)
	}
}

// A redirect below the base URL, or without a place, is handed on; one elsewhere is refused,
// because a stranger would get the caller's token.
func TestRedirects(t *testing.T) {
	t.Parallel()
	const moved = "the provider github answered with a redirect, which is not followed: moved to "
	tests := []struct {
		name     string
		status   int
		location string // § is the credential
		own      bool   // the account has a base URL of its own
		want     string // the Location that the caller gets, or what the error says
	}{
		{"renamed", 301, "https://api.github.com/repositories/1", false, "^/egress/github/repositories/1"},
		{"relative", 307, "/x?y", false, "^/egress/github/x?y"},
		{"below its own base", 308, "/base/y", true, "^/egress/github/y"},
		{"archive", 302, "https://codeload.github.com/o/r?token=t", false, moved + `https://codeload.github.com"`},
		{"beside its own base", 302, "/login", true, moved + "http://up.test; check the account's base URL"},
		{"to TLS", 301, "https://up.test/base", true, moved + "https://up.test; check the account's base URL"},
		{"to where it should have been asked", 301, "https://api.github.com/repos/o/r", true, moved + "https://api.github.com; check the account's base URL"},
		{"to itself", 302, "/repos/o/r", false, moved + `https://api.github.com"`},
		{"no URL", 302, ":%zz", false, `which is not followed"`},
		{"another scheme", 302, "ftp://api.github.com/x", false, `which is not followed"`},
		{"the credential", 302, "/x?a=%73" + long[1:], false, moved + `https://api.github.com"`},
		{"the credential as a host", 302, "https://§/x", false, moved + `https://[redacted]"`},
		{"resume incomplete", 308, "", false, ""},
		{"choices", 300, "", false, ""},
		{"not modified", 304, "https://elsewhere.example/", false, "https://elsewhere.example/"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			secret := strings.ToLower(long)
			source := &redirector{status: tt.status, location: strings.ReplaceAll(tt.location, "§", secret)}
			r := newRig(t, &loopback{}, source.in)
			account := r.account("github", "https://api.github.com", secret)
			if tt.name == "the credential" {
				account = r.account("github", "https://api.github.com", long)
			}
			if tt.own {
				account.Base = &url.URL{Scheme: "http", Host: "up.test", Path: "/base"}
			}
			r.pool.all = []pool.Account{account}
			r.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
			got := r.post("/egress/github/repos/o/r", "")
			if strings.Contains(tt.want, "redirect") || strings.Contains(tt.want, "followed") {
				if got.status != 502 || !strings.Contains(got.body, tt.want) || got.header.Get("Location") != "" || got.header.Get("X-Should-Retry") != "false" {
					t.Errorf("got %d %s %v, want 502 with %s", got.status, got.body, got.header, tt.want)
				}
				return
			}
			if want := strings.ReplaceAll(tt.want, "^", r.url); got.status != tt.status || got.header.Get("Location") != want || got.header.Get("Range") != "bytes=0-262143" {
				t.Errorf("got %d %s %v, want %d to %q", got.status, got.body, got.header, tt.status, want)
			}
		})
	}
}

// redirector is a transport that answers with a redirect.
type redirector struct {
	status   int
	location string
}

func (s *redirector) in(c *proxy.Config) { c.Open = s }

func (s *redirector) RoundTrip(req *http.Request) (*http.Response, error) {
	h := http.Header{"Range": {"bytes=0-262143"}}
	if s.location != "" {
		h.Set("Location", s.location)
	}
	return &http.Response{StatusCode: s.status, Header: h, Body: http.NoBody, Request: req}, nil
}

// The URL of a batch's results, which the SDK requests next, leads through the proxy, in a
// batch and in a list; nothing else of the answer changes.
func TestResultsURL(t *testing.T) {
	t.Parallel()
	const api, batches = "https://api.anthropic.com", "/v1/messages/batches"
	huge := `{"x":"` + strings.Repeat("x", 1<<20) + `","results_url":"` + api + `/v1/y"}`
	tests := []struct {
		name, path, kind string
		sent, want       string // ^ is the proxy
	}{
		{"one", batches + "/b1", "application/json", `{ "id":9007199254740993, "results_url": "` + api + batches + `/b1/results" }`, `{ "id":9007199254740993, "results_url": "^/v1/messages/batches/b1/results" }`},
		{"the account's own base", batches + "/b1", "application/json", `{"results_url":"°/v1/x?a=1&b=\"2"}`, `{"results_url":"^/v1/x?a=1&b=\"2"}`},
		{"escaped", batches + "/b1", "application/json; charset=utf-8", `{"results\u005furl":"https:\/\/api.anthropic.com\/v1\/x"}`, `{"results\u005furl":"^/v1/x"}`},
		{"list", batches, "application/json", `{"data":[{"results_url":null},{"a":{"results_url":"` + api + `/no"},"results_url":"` + api + `/v1/y"}, 1],"has_more":false}`, `{"data":[{"results_url":null},{"a":{"results_url":"` + api + `/no"},"results_url":"^/v1/y"}, 1],"has_more":false}`},
		{"elsewhere", batches + "/b1", "application/json", `{"results_url":"https://files.example/x","data":{"results_url":""}}`, ""},
		{"no JSON", batches + "/b1", "application/json", `{"results_url":"` + api + `/v1/y","data":[`, ""},
		{"the results", batches + "/b1/results", "application/x-jsonl", `{"results_url":"` + api + `/v1/y"}`, ""},
		{"another route", "/v1/files", "application/json", `{"results_url":"` + api + `/v1/y"}`, ""},
		{"large", batches, "application/json", huge, huge},
	}
	for _, tt := range tests {
		for _, sized := range []bool{true, false} {
			r := newRig(t, &loopback{}, nil)
			var base string
			r.upstream("anthropic", func(w http.ResponseWriter, _ *http.Request) {
				body := strings.ReplaceAll(tt.sent, "°", base)
				w.Header().Set("Content-Type", tt.kind)
				if sized {
					w.Header().Set("Content-Length", strconv.Itoa(len(body)))
				}
				_, _ = io.WriteString(w, body)
			})
			base = r.pool.all[0].Base.String()
			req := r.request(t.Context(), "/egress/anthropic"+tt.path, "")
			req.Method = http.MethodGet
			want := strings.ReplaceAll(cmp.Or(tt.want, tt.sent), "^", r.url+"/egress/anthropic")
			if got := r.do(req); got.status != 200 || got.err != nil || got.body != want {
				t.Errorf("%s: got %d %.300s, %v, want %.300s", tt.name, got.status, got.body, got.err, want)
			}
			if got := r.pool.got(); len(got) != 1 || got[0].Reason != pool.OK {
				t.Errorf("%s: reports %v", tt.name, got)
			}
		}
	}
}
