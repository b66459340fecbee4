package proxy_test

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"signalbox.dev/services/credential-broker/internal/pool"
	"signalbox.dev/services/credential-broker/internal/proxy"
)

// long is a credential like those that providers issue.
const long = "sk-ant-api03-Qx7" + canary + "-0000"

// redacted returns what replaces a credential in an answer.
func redacted(secret string) string {
	const text = "[redacted]"
	return text + strings.Repeat("*", len(secret)-len(text))
}

// Wherever a provider quotes the credential that it was sent, the caller gets everything else
// of the answer.
func TestQuotedCredential(t *testing.T) {
	t.Parallel()
	padding := strings.Repeat("x", 70<<10)
	message := func(text string) string { return `{"error":{"message":"` + text + `","type":"invalid_request_error"}}` }
	tests := []struct {
		name, provider, path string
		status               int    // of an answer that is not streamed
		body                 string // § is the credential
	}{
		{"the first event", "anthropic", messages, 0, "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"authentication_error\",\"message\":\"invalid x-api-key: §\"}}\n\n"},
		{"an error after text", "anthropic", messages, 0, msgStart + msgBlock + msgDelta + "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"§ and §§\"}}\n\n"},
		{"text", "anthropic", messages, 0, msgStart + strings.Replace(msgDelta, "Hello", "§", 1) + msgStop},
		{"a comment", "anthropic", messages, 0, msgStart + ": §\n\n" + msgBlock + msgStop},
		{"behind the end", "anthropic", messages, 0, goodAnswer + ": §"},
		{"a chunk", "openai", chats, 0, chatRole + "data: " + message("§") + "\n\n"},
		{"a route whose events nobody knows", "anthropic", "/egress/anthropic/v1/other", 0, "data: §\n\n"},
		{"events in front of the gate", "anthropic", messages, 0, strings.Repeat(": §\n\n", 2000) + goodAnswer},
		{"JSON", "anthropic", messages, 200, message("§")},
		{"large JSON", "openai", chats, 200, message(padding + "§" + padding + "§")},
		{"an error", "openai", chats, 401, message("§")},
		{"a large error", "anthropic", messages, 401, message(padding + "§")},
		{"an error, across what is read first", "openai", chats, 400, strings.Repeat("y", 64<<10-7) + "§" + padding},
		{"a page", "openai", chats, 502, "<html>§</html>"},
		{"only that", "openai", chats, 200, "§"},
		{"nearly that", "openai", chats, 200, long[:len(long)-1]},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, &loopback{}, nil)
			sent := strings.ReplaceAll(tt.body, "§", long)
			if tt.status == 0 {
				r.upstream(tt.provider, stream(sent), long)
			} else {
				r.upstream(tt.provider, answer(tt.status, sent, "Content-Length", fmt.Sprint(len(sent))), long)
			}
			got := r.post(tt.path, asking)
			want := strings.ReplaceAll(tt.body, "§", redacted(long))
			if got.body != want || got.err != nil {
				t.Errorf("got %d with %.300q, end %v; want %.300q", got.status, got.body, got.err, want)
			}
			if strings.Contains(got.body, long) || strings.Contains(r.logs.String(), long) {
				t.Error("the credential shows")
			}
		})
	}
}

// No part of the credential appears in what operators see of a limit, which is truncated.
func TestQuotedCredentialInAWait(t *testing.T) {
	t.Parallel()
	const limited = `{"type":"error","error":{"type":"rate_limit_error","message":"m"}}`
	for _, at := range []int{0, 28, 40, 50} {
		r := newRig(t, &memory{}, nil)
		r.upstream("anthropic", answer(429, limited, "Retry-After", "7", "X-Ratelimit-Reset-For", strings.Repeat("-", at)+long), long)
		r.post(messages, asking)
		for _, o := range r.pool.outcomes() {
			if !strings.HasPrefix(o.Raw, "retry-after: 7; x-ratelimit-reset-for: ") || strings.Contains(o.Raw, long[:6]) {
				t.Errorf("with the credential at %d operators are shown %q", at, o.Raw)
			}
		}
	}
}

// A short key may be an ordinary word in an answer, but not in an error.
func TestShortCredential(t *testing.T) {
	t.Parallel()
	const short = "lm-studio"
	failed := strings.Replace(msgError, "Overloaded", short, 1)
	text := strings.Replace(msgDelta, "Hello", short, 1)
	r := newRig(t, &loopback{}, nil)
	r.upstream("anthropic", func(w http.ResponseWriter, req *http.Request) {
		switch req.Header.Get("X-Case") {
		case "text":
			stream(msgStart, text, msgStop)(w, req)
		case "event":
			stream(msgStart, text, failed)(w, req)
		case "JSON":
			answer(200, `{"content":"`+short+`"}`)(w, req)
		case "error":
			answer(401, `{"error":"`+short+`"}`)(w, req)
		}
	}, short)
	stars := strings.Repeat("*", len(short))
	for name, want := range map[string]string{
		"text":  msgStart + text + msgStop,
		"event": msgStart + text + strings.Replace(msgError, "Overloaded", stars, 1),
		"JSON":  `{"content":"` + short + `"}`,
		"error": `{"error":"` + stars + `"}`,
	} {
		req := r.request(t.Context(), messages, asking)
		req.Header.Set("X-Case", name)
		if got := r.do(req); got.body != want {
			t.Errorf("%s: got %q, want %q", name, got.body, want)
		}
	}
}

// The credential is found as JSON encoders write it: plainly, and as those of PHP, Go and .NET
// do.
func TestEscapedCredential(t *testing.T) {
	t.Parallel()
	const secret = `sk/one"two\three/<four>&five+'six'` + "`"
	plain := strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(secret)
	slashes := strings.ReplaceAll(plain, `/`, `\/`)
	golang := strings.NewReplacer(`<`, `\u003c`, `>`, `\u003e`, `&`, `\u0026`).Replace(plain)
	dotnet := strings.NewReplacer(`\"`, `\u0022`, `<`, `\u003C`, `>`, `\u003E`, `&`, `\u0026`, `+`, `\u002B`, `'`, `\u0027`, "`", `\u0060`).Replace(plain)
	r := newRig(t, &loopback{}, nil)
	r.upstream("openai", answer(401, `["`+strings.Join([]string{slashes, plain, golang, dotnet}, `","`)+`"]`), secret)
	want := `["` + strings.Join([]string{redacted(slashes), redacted(plain), redacted(golang), redacted(dotnet)}, `","`) + `"]`
	if got := r.post(chats, asking).body; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// Malformed HTTP is logged as Go quotes it, without the credential.
func TestCredentialInMalformedHTTP(t *testing.T) {
	t.Parallel()
	const secret = `sk/one"two\three/<four>&five+'six'` + "`"
	r := newRig(t, &loopback{}, nil)
	r.upstream("openai", func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = io.WriteString(conn, "who:"+secret+"\r\n\r\n") // the proxy may have seen enough
		_ = conn.Close()
	}, secret)
	if got := r.post(chats, asking); got.status != http.StatusBadGateway {
		t.Errorf("got %d %s, want 502", got.status, got.body)
	}
	r.proxy.Wait()
	if got := r.logs.String(); !strings.Contains(got, "who:[redacted]") {
		t.Errorf("the log has %s", got)
	}
}

// An answer that may be the beginning of a credential of many kilobytes ends all the same.
func TestLongCredential(t *testing.T) {
	t.Parallel()
	r := newRig(t, &loopback{}, nil)
	begin := strings.Repeat(`\u002B`, 7990)
	r.upstream("openai", answer(200, begin+"z"), strings.Repeat("+", 8000))
	if got := r.post(chats, asking); got.body != begin+"z" || got.err != nil {
		t.Errorf("%d bytes came, %v, want %d", len(got.body), got.err, len(begin)+1)
	}
}

// However reads split an answer, in events, in an overlong event and outside events, the
// credential is not shown and everything else arrives.
func TestCredentialAtEverySplit(t *testing.T) {
	t.Parallel()
	const periodic = "Qa-Qa-Qa-Qa-Qa-Qa-Qa-Qa-" // begins anew within itself
	for _, tt := range []struct{ name, kind, secret, body string }{
		{"events", "", long, msgStart + strings.Replace(msgDelta, "Hello", "§§ §", 1) + msgStop},
		{"no events", "application/json", long, "§§ §" + long[:7] + "§" + long[:len(long)-1]},
		{"itself again", "application/json", periodic, "§Qa-§a-§§Qa"},
	} {
		sent := strings.ReplaceAll(tt.body, "§", tt.secret)
		echoed(t, tt.kind, tt.secret, sent, func(i int) io.Reader {
			if i > len(sent) {
				return nil
			}
			return io.MultiReader(strings.NewReader(sent[:i]), strings.NewReader(sent[i:]))
		})
	}
	// The 1 MiB buffer is full behind that many bytes of the credential.
	for n := range len(long) + 1 {
		const begin = "event: content_block_delta\ndata: {\"x\":\""
		huge := strings.Repeat("z", 1<<20-len(begin)-n)
		echoed(t, "", long, msgStart+begin+huge+long+"\"}\n\n"+msgStop, nil)
	}
}

// echoed sends a body through the proxy, in one piece or as read returns the pieces until there
// are none.
func echoed(t *testing.T, kind, secret, sent string, read func(i int) io.Reader) {
	t.Helper()
	want := strings.ReplaceAll(sent, secret, redacted(secret))
	source := &canned{kind: kind}
	r := newRig(t, &loopback{}, func(c *proxy.Config) { c.Open = source })
	r.pool.all = []pool.Account{r.account("anthropic", "http://up.test", secret)}
	token := r.token()
	for i := 0; ; i++ {
		var body io.Reader
		if read == nil && i == 0 {
			body = strings.NewReader(sent)
		} else if read != nil {
			body = read(i)
		}
		if body == nil {
			return
		}
		source.body = func() io.Reader { return body }
		req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, messages, strings.NewReader(asking))
		req.Header.Set("X-Api-Key", token)
		w := httptest.NewRecorder()
		if clean := direct(r.proxy, w, req); !clean || w.Body.String() != want {
			t.Fatalf("%q, split behind %d: clean %v, got %.500q, want %.500q", kind, i, clean, w.Body.String(), want)
		}
	}
}

// The same holds for random pieces with text that resembles the credential.
func TestCredentialInRandomPieces(t *testing.T) {
	t.Parallel()
	source := &canned{}
	r := newRig(t, &loopback{}, func(c *proxy.Config) { c.Open = source })
	r.pool.all = []pool.Account{r.account("anthropic", "http://up.test", long)}
	token := r.token()
	random := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		var b strings.Builder
		for range 1 + random.IntN(2000) {
			switch random.IntN(8) {
			case 0:
				b.WriteString(long)
			case 1:
				b.WriteString(long[:random.IntN(len(long))])
			case 2:
				b.WriteString(long[random.IntN(len(long)):])
			case 3:
				b.WriteString("Q")
			default:
				b.WriteString("some text ")
			}
		}
		sent := b.String()
		source.kind = "application/json"
		if random.IntN(2) == 0 {
			source.kind, sent = "", msgStart+"event: x\ndata: "+sent+"\n\n"+msgStop
		}
		source.body = func() io.Reader { return &pieces{sent, random, 1 + random.IntN(100)} }
		req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, messages, strings.NewReader(asking))
		req.Header.Set("X-Api-Key", token)
		w := httptest.NewRecorder()
		if want := strings.ReplaceAll(sent, long, redacted(long)); !direct(r.proxy, w, req) || w.Body.String() != want {
			t.Fatalf("%q comes out as %q", sent, w.Body.String())
		}
	}
}

// Methods that tools use arrive at the provider.
func TestMethods(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ method, provider, path string }{
		{http.MethodPatch, "notion", "/v1/pages/p1"},
		{http.MethodPatch, "github", "/repos/o/r/issues/1"},
		{http.MethodPut, "github", "/repos/o/r/contents/a.txt"},
		{http.MethodPatch, "google", "/calendar/v3/calendars/primary/events/e1"},
		{http.MethodPut, "google", "/calendar/v3/calendars/primary/events/e1"},
		{http.MethodPut, "openai", "/v1/x"},
		{http.MethodPatch, "anthropic", "/v1/x"},
	} {
		var f recorder
		r := newRig(t, &loopback{}, nil)
		method := ""
		r.upstream(tt.provider, f.then(func(w http.ResponseWriter, req *http.Request) {
			method = req.Method
			answer(200, `{"object":"page"}`)(w, req)
		}), long)
		req := r.request(t.Context(), "/egress/"+tt.provider+tt.path, `{"archived":true}`)
		req.Method = tt.method
		got := r.do(req)
		if got.status != 200 || got.body != `{"object":"page"}` || method != tt.method || f.uri != tt.path || f.body != `{"archived":true}` {
			t.Errorf("%s %s at %s: got %d %s; the provider got %s %s %s", tt.method, tt.path, tt.provider, got.status, got.body, method, f.uri, f.body)
		}
	}
}

// An error that is compressed although that was declined is decompressed and shown without the
// credential; one that cannot be decompressed is not shown.
func TestCompressedError(t *testing.T) {
	t.Parallel()
	pack := func(w io.WriteCloser, b *bytes.Buffer, text string) string {
		_, _ = io.WriteString(w, text) // into memory
		_ = w.Close()
		return b.String()
	}
	gzipped := func(text string) string { var b bytes.Buffer; return pack(gzip.NewWriter(&b), &b, text) }
	zlibbed := func(text string) string { var b bytes.Buffer; return pack(zlib.NewWriter(&b), &b, text) }
	const limited = `{"error":{"type":"rate_limit_error","message":"slow down, §"}}`
	const unusable = `"message":"the provider anthropic answered with status 400 and a compressed body, which was not requested"`
	plain := strings.ReplaceAll(limited, "§", long)
	shown := strings.ReplaceAll(limited, "§", redacted(long))
	noise := func(n int) string {
		random := rand.New(rand.NewPCG(1, 2))
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(random.Uint32())
		}
		return string(b)
	}
	for _, tt := range []struct {
		name, encoding, body string
		want                 string
		whole                bool // want is all of the body
		reason               pool.Reason
	}{
		{"gzip", "gzip", gzipped(plain), shown, true, pool.RateLimited},
		{"x-gzip", "X-Gzip", gzipped(plain), shown, true, pool.RateLimited},
		{"deflate", "deflate", zlibbed(plain), shown, true, pool.RateLimited},
		{"none", "identity", plain, shown, true, pool.RateLimited},
		{"nothing", "gzip", "", "", true, pool.Caller},
		{"broken", "gzip", gzipped(plain)[:60], unusable, false, pool.Caller},
		{"no gzip", "gzip", plain, unusable, false, pool.Caller},
		{"another", "br", plain, unusable, false, pool.Caller},
		{"twice", "gzip, gzip", gzipped(gzipped(plain)), unusable, false, pool.Caller},
		{"a bomb", "gzip", gzipped(strings.Repeat(plain, 2000)), unusable, false, pool.Caller},
		{"large as it came", "gzip", gzipped(noise(70 << 10)), unusable, false, pool.Caller},
	} {
		for _, sized := range []bool{true, false} {
			r := newRig(t, &loopback{}, nil)
			r.upstream("anthropic", func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				w.Header().Set("Content-Encoding", tt.encoding)
				if sized {
					w.Header().Set("Content-Length", fmt.Sprint(len(tt.body)))
				}
				w.WriteHeader(400)
				_, _ = io.WriteString(w, tt.body)
			}, long)
			got := r.post(messages, asking)
			if got.status != 400 || got.err != nil || !strings.Contains(got.body, tt.want) || tt.whole && got.body != tt.want || got.header["Content-Encoding"] != nil && tt.encoding != "identity" {
				t.Errorf("%s: got %d %.300q %v, %v, want %q", tt.name, got.status, got.body, got.header, got.err, tt.want)
			}
			if reports := r.pool.got(); len(reports) != 1 || reports[0].Reason != tt.reason {
				t.Errorf("%s: reports %v, want %s", tt.name, reports, tt.reason)
			}
		}
	}
}
