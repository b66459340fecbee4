package proxy_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/services/credential-broker/internal/pool"
)

// bySecret gives each account its own handler.
func bySecret(answers map[string]http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		key := r.Header.Get("X-Api-Key") + strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		answers[key](w, r)
	}
}

// then runs handlers one after the other.
func then(all ...http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		for _, h := range all {
			h(w, r)
		}
	}
}

func flush(w http.ResponseWriter, _ *http.Request) { _ = http.NewResponseController(w).Flush() }

func cutting(http.ResponseWriter, *http.Request) { cut() }

const (
	rateLimited = `{"type":"error","error":{"type":"rate_limit_error","message":"slow down"}}`
	noQuota     = `{"error":{"message":"You exceeded your current quota","type":"insufficient_quota","code":"insufficient_quota"}}`
	goodAnswer  = msgStart + msgBlock + msgDelta + msgStop
	goodChat    = chatRole + chatDelta + chatFinish + chatDone
)

func TestNextAccount(t *testing.T) {
	t.Parallel()
	event := func(kind string) string {
		return "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"" + kind + "\",\"message\":\"m\"}}\n\n"
	}
	tests := []struct {
		name, provider, path string
		first                http.HandlerFunc
		reason               pool.Reason
		status               int
	}{
		{"429", "anthropic", messages, answer(429, rateLimited), pool.RateLimited, 429},
		{"429 quota", "openai", chats, answer(429, noQuota), pool.QuotaExhausted, 429},
		{"401", "anthropic", messages, answer(401, `{"type":"error","error":{"type":"authentication_error","message":"invalid x-api-key"}}`), pool.AuthFailed, 401},
		{"402", "openai", chats, answer(402, `{"error":{"code":402,"message":"Insufficient credits"}}`), pool.QuotaExhausted, 402},
		{"403 permissions", "openai", chats, answer(403, `{"error":{"code":"insufficient_permissions","message":"m"}}`), pool.QuotaExhausted, 403},
		{"403 permission", "anthropic", messages, answer(403, `{"type":"error","error":{"type":"permission_error","message":"m"}}`), pool.QuotaExhausted, 403},
		{"400 credit", "anthropic", messages, answer(400, `{"type":"error","error":{"type":"invalid_request_error","message":"Your credit balance is too low to access the Anthropic API."}}`), pool.QuotaExhausted, 400},
		{"400 rate limit", "openai", chats, answer(400, `{"error":{"message":"m","code":"rate_limit_exceeded"}}`), pool.RateLimited, 400},
		{"overloaded in a 200", "anthropic", messages, stream(msgError), pool.Overloaded, 200},
		{"overloaded after the preamble", "anthropic", messages, stream(msgStart, msgPing, ": c\n\n", msgError), pool.Overloaded, 200},
		{"rate limit in a 200, torn", "anthropic", messages, stream(strings.SplitAfter(msgStart+event("rate_limit_error"), "e")...), pool.RateLimited, 200},
		{"auth in a 200", "anthropic", messages, stream(event("authentication_error")), pool.AuthFailed, 200},
		{"chat error in a 200", "openai", chats, stream(chatRole, "data: {\"error\":{\"message\":\"m\",\"code\":429}}\n\n"), pool.RateLimited, 200},
		{"responses failed at once", "openai", "/egress/openai/v1/responses", stream("event: response.created\ndata: {\"type\":\"response.created\"}\n\nevent: response.failed\ndata: {\"type\":\"response.failed\",\"response\":{\"error\":{\"code\":\"rate_limit_exceeded\",\"message\":\"m\"}}}\n\n"), pool.RateLimited, 200},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, &loopback{}, nil)
			good := goodAnswer
			switch tt.path {
			case chats:
				good = goodChat
			case "/egress/openai/v1/responses":
				good = "event: response.completed\ndata: {}\n\n"
			}
			r.upstream(tt.provider, bySecret(map[string]http.HandlerFunc{"first-account": tt.first, "second-account": stream(good)}), "first-account", "second-account")
			got := r.post(tt.path, asking)
			if got.err != nil || got.status != 200 || got.body != good {
				t.Errorf("got %d %q, %v, want the second account's answer", got.status, got.body, got.err)
			}
			want := []report{{"first-account", tt.reason, tt.status}, {"second-account", pool.OK, 200}}
			if diff := cmp.Diff(want, r.pool.got()); diff != "" {
				t.Errorf("reports (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNotSwitched(t *testing.T) {
	t.Parallel()
	internal := strings.Replace(msgError, "overloaded_error", "api_error", 1)
	invalid := strings.Replace(msgError, "overloaded_error", "invalid_request_error", 1)
	tests := []struct {
		name   string
		first  http.HandlerFunc
		status int
		body   string
		reason pool.Reason
	}{
		{"500", answer(500, rateLimited), 500, rateLimited, pool.Service},
		{"503", answer(503, `{}`), 503, `{}`, pool.Service},
		{"529", answer(529, `{}`), 529, `{}`, pool.Service},
		{"400 that only says so in its message", answer(400, `{"error":{"message":"why is it insufficient_quota or rate limited?"}}`), 400, `{"error":{"message":"why is it insufficient_quota or rate limited?"}}`, pool.Caller},
		{"404", answer(404, `{}`), 404, `{}`, pool.Caller},
		{"internal error in a 200", stream(msgStart, internal), 200, msgStart + internal, pool.Service},
		{"invalid request in a 200", stream(invalid), 200, invalid, pool.Caller},
		{"error after the gate", stream(msgStart, msgBlock, msgError), 200, msgStart + msgBlock + msgError, pool.Overloaded},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, &loopback{}, nil)
			r.upstream("anthropic", bySecret(map[string]http.HandlerFunc{"first-account": tt.first}), "first-account", "second-account")
			got := r.post(messages, asking)
			if got.status != tt.status || got.body != tt.body || got.err != nil {
				t.Errorf("got %d %q, end %v, want %d %q and a clean end, as the provider's", got.status, got.body, got.err, tt.status, tt.body)
			}
			if diff := cmp.Diff([]report{{"first-account", tt.reason, tt.status}}, r.pool.got()); diff != "" {
				t.Errorf("reports (-want +got):\n%s", diff)
			}
		})
	}
}

// A failure of the account's own that a stream reports after the gate is counted against the
// account, although the caller gets the answer as it is and nothing is retried.
func TestFailureAfterTheGate(t *testing.T) {
	t.Parallel()
	const (
		responses = "/egress/openai/v1/responses"
		created   = "event: response.created\ndata: {\"type\":\"response.created\"}\n\nevent: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"x\"}\n\n"
	)
	begun := msgStart + msgBlock + msgDelta
	failed := func(kind string) string { return strings.Replace(msgError, "overloaded_error", kind, 1) }
	respFailed := func(code string) string {
		return "event: response.failed\ndata: {\"type\":\"response.failed\",\"response\":{\"error\":{\"code\":\"" + code + "\",\"message\":\"m\"}}}\n\n"
	}
	chatFailed := "data: {\"error\":{\"message\":\"m\",\"code\":\"rate_limit_exceeded\"}}\n\n"
	tests := []struct {
		name, provider, path, body string
		reason                     pool.Reason
		denied                     bool
	}{
		{"rate limit", "anthropic", messages, begun + failed("rate_limit_error"), pool.RateLimited, false},
		{"overload", "anthropic", messages, begun + msgError, pool.Overloaded, false},
		{"credential", "anthropic", messages, begun + failed("authentication_error"), pool.AuthFailed, false},
		{"permission", "anthropic", messages, begun + failed("permission_error"), pool.QuotaExhausted, true},
		{"the caller's", "anthropic", messages, begun + failed("invalid_request_error"), pool.Caller, false},
		{"the service's", "anthropic", messages, begun + failed("api_error"), pool.Service, false},
		{"the first of two", "anthropic", messages, begun + failed("rate_limit_error") + failed("api_error"), pool.RateLimited, false},
		{"behind the end", "anthropic", messages, begun + msgStop + failed("rate_limit_error"), pool.OK, false},
		{"a response's quota", "openai", responses, created + respFailed("insufficient_quota"), pool.QuotaExhausted, false},
		{"a response's server", "openai", responses, created + respFailed("server_error"), pool.Service, false},
		{"a chunk", "openai", chats, chatRole + chatDelta + chatFailed + chatDone, pool.RateLimited, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, &memory{}, nil)
			r.upstream(tt.provider, stream(tt.body), "first-account", "second-account")
			got := r.post(tt.path, asking)
			if got.status != 200 || got.body != tt.body || got.err != nil {
				t.Errorf("got %d %q, end %v, want %q and a clean end, as the provider's", got.status, got.body, got.err, tt.body)
			}
			if diff := cmp.Diff([]report{{"first-account", tt.reason, 200}}, r.pool.got()); diff != "" {
				t.Errorf("reports (-want +got):\n%s", diff)
			}
			if denied := r.pool.outcomes()[0].Denied; denied != tt.denied {
				t.Errorf("denied is %v, want %v", denied, tt.denied)
			}
		})
	}
}

// An error event without its blank line gets one, and says whose failure it is.
func TestFailureAtTheVeryEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t, &memory{}, nil)
	begun := msgStart + msgBlock + msgDelta
	r.upstream("anthropic", stream(begun+strings.TrimSpace(strings.Replace(msgError, "overloaded_error", "rate_limit_error", 1))))
	got := r.post(messages, asking)
	if rest, ok := strings.CutPrefix(got.body, begun+"event: error\ndata: "); !ok || got.err == nil || !strings.HasSuffix(rest, "\n\n") {
		t.Errorf("got %q, end %v, want what came, an error event and no clean end", got.body, got.err)
	}
	if diff := cmp.Diff([]report{{"sk-" + canary, pool.RateLimited, 200}}, r.pool.got()); diff != "" {
		t.Errorf("reports (-want +got):\n%s", diff)
	}
}

// A stream that is cut behind an error event does not end cleanly.
func TestCutAfterAFailure(t *testing.T) {
	t.Parallel()
	for name, upstream := range map[string]http.HandlerFunc{
		"in an event": stream(msgStart+msgBlock+msgError, msgDelta[:40]), "a reset": then(stream(msgStart+msgBlock+msgError), cutting),
	} {
		r := newRig(t, &loopback{}, nil)
		r.upstream("anthropic", upstream)
		if got := r.post(messages, asking); !strings.HasPrefix(got.body, msgStart+msgBlock+msgError) || got.err == nil {
			t.Errorf("%s: got %q, end %v, want the error event and a broken end", name, got.body, got.err)
		}
	}
}

// When every account was tried, each once, the last answer goes back as it came.
func TestAllAccountsTried(t *testing.T) {
	t.Parallel()
	r := newRig(t, &loopback{}, nil)
	calls := make(chan string, 10)
	answers := map[string]http.HandlerFunc{}
	for i, a := range []http.HandlerFunc{answer(401, `{}`), stream(msgStart, msgError), answer(429, rateLimited, "Retry-After", "17", "Request-Id", "last")} {
		name := fmt.Sprintf("account-%d", i)
		answers[name] = then(func(http.ResponseWriter, *http.Request) { calls <- name }, a)
	}
	r.upstream("anthropic", bySecret(answers), "account-0", "account-1", "account-2")
	got := r.post(messages, asking)
	if got.status != 429 || got.body != rateLimited || got.err != nil || got.header.Get("Retry-After") != "17" || got.header.Get("Request-Id") != "last" {
		t.Errorf("got %d %s %v, %v", got.status, got.body, got.header, got.err)
	}
	close(calls)
	var order []string
	for c := range calls {
		order = append(order, c)
	}
	if diff := cmp.Diff([]string{"account-0", "account-1", "account-2"}, order); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// An overload inside a 200, with no other account to try, goes back as the same bytes with the
// provider's clean end, which clients take for the end of the error and not for a lost
// connection.
func TestOverloadHandedBack(t *testing.T) {
	t.Parallel()
	r := newRig(t, &loopback{}, nil)
	r.upstream("anthropic", stream(msgStart, msgPing, msgError))
	got := r.post(messages, asking)
	if got.status != 200 || got.body != msgStart+msgPing+msgError || got.err != nil {
		t.Errorf("got %d %q, end %v, want all events and a clean end", got.status, got.body, got.err)
	}
}

// A stream never ends cleanly without its terminal event, and all whole events of it arrive.
func TestTruncationIsNeverClean(t *testing.T) {
	t.Parallel()
	anthropicError := "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"the provider anthropic closed the connection before the answer ended\",\"code\":\"provider_broke_off\",\"details\":{\"error_code\":\"provider_broke_off\"}}}\n\n"
	chatError := "data: {\"error\":{\"message\":\"the provider openai closed the connection before the answer ended\",\"type\":\"server_error\",\"param\":null,\"code\":\"provider_broke_off\"}}\n\n"
	tests := []struct {
		name, provider, path string
		upstream             http.HandlerFunc
		want                 string
	}{
		{"clean cut", "anthropic", messages, stream(msgStart, msgBlock, msgDelta), msgStart + msgBlock + msgDelta + anthropicError},
		{"reset", "anthropic", messages, then(stream(msgStart, msgBlock), cutting), msgStart + msgBlock + anthropicError},
		{"clean cut in an event", "anthropic", messages, stream(msgBlock, msgDelta[:40]), msgBlock + anthropicError},
		{"reset in an event", "anthropic", messages, then(stream(msgBlock, msgDelta[:40]), cutting), msgBlock + anthropicError},
		{"cut in the terminal event", "anthropic", messages, stream(msgBlock, msgStop[:len(msgStop)-6]), msgBlock + anthropicError},
		{"chat, clean cut", "openai", chats, stream(chatRole, chatDelta), chatRole + chatDelta + chatError},
		{"chat, reset after the finish", "openai", chats, then(stream(chatDelta, chatFinish), cutting), chatDelta + chatFinish + chatError},
		{"chat, cut in the finish", "openai", chats, stream(chatDelta, chatFinish[:len(chatFinish)-5]), chatDelta + chatError},
		{"chat of two, clean cut in the second", "openai", chats, stream(chatDelta, chatSecond, chatFinish), chatDelta + chatSecond + chatFinish + chatError},
		{"chat of two, clean cut before the second", "openai", chats, stream(chatDelta, chatFinish), chatDelta + chatFinish + chatError},
		{"another route's events, reset", "anthropic", "/egress/anthropic/v1/other", then(stream("data: 1\n\n"), cutting), "data: 1\n\n" + anthropicError},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, &loopback{}, nil)
			r.upstream(tt.provider, tt.upstream)
			body := asking
			if strings.Contains(tt.name, "of two") {
				body = `{"model":"m","stream":true,"messages":[{"role":"user","content":"\"n\":1"}],"n" : 2}`
			}
			got := r.post(tt.path, body)
			if got.err == nil {
				t.Error("the stream ends cleanly")
			}
			if diff := cmp.Diff(tt.want, got.body); diff != "" {
				t.Errorf("body (-want +got):\n%s", diff)
			}
		})
	}
}

// A request that an account lacks permission for goes to other accounts, five at most; when two
// have refused it and none is left, the refusal goes back.
func TestDenials(t *testing.T) {
	t.Parallel()
	denial := `{"type":"error","error":{"type":"permission_error","message":"not this model"}}`
	denied, limited, good := answer(403, denial), answer(429, rateLimited), stream(goodAnswer)
	for _, tt := range []struct {
		name    string
		answers []http.HandlerFunc
		asked   int
		status  int
	}{
		{"two of four", []http.HandlerFunc{denied, limited, denied, good}, 4, 200},
		{"four of five", []http.HandlerFunc{denied, denied, denied, denied, good}, 5, 200},
		{"too many", []http.HandlerFunc{denied, denied, denied, denied, denied, good}, 5, 403},
		{"all", []http.HandlerFunc{denied, denied}, 2, 403},
		{"all there are now", []http.HandlerFunc{denied, limited, denied}, 3, 403},
		{"one, and nobody is left", []http.HandlerFunc{limited, denied}, 2, 429},
		{"the only one", []http.HandlerFunc{denied}, 1, 403},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, c := newOrderedPool(t)
			c.exhausted = &pool.Exhausted{Back: time.Now().Add(time.Minute), Reason: pool.RateLimited, Members: len(tt.answers)}
			for i, a := range tt.answers {
				c.all = append(c.all, r.account("anthropic", r.serve(a), fmt.Sprint("account-", i)))
			}
			got := r.post(messages, asking)
			if got.status != tt.status || tt.status == 403 && got.body != denial || got.err != nil {
				t.Errorf("got %d %s, %v, want %d", got.status, got.body, got.err, tt.status)
			}
			outcomes := c.outcomes()
			if len(outcomes) != tt.asked {
				t.Errorf("%d accounts were asked, want %d", len(outcomes), tt.asked)
			}
			for i, out := range outcomes {
				if out.Denied != (out.Status == 403) {
					t.Errorf("report %d says denied: %v", i, out.Denied)
				}
			}
		})
	}
}

// A successful answer that says when a quota ends is reported with that time.
func TestQuotaEndIsReported(t *testing.T) {
	t.Parallel()
	header := func(name string, in time.Duration) http.HandlerFunc {
		return then(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set(name, fmt.Sprint(time.Now().Add(in).Unix()))
		}, stream(goodAnswer))
	}
	for _, tt := range []struct {
		profile string
		answer  http.HandlerFunc
		want    time.Duration
	}{
		{"anthropic-oauth", header("Anthropic-Ratelimit-Unified-Reset", 2*time.Hour), 2 * time.Hour},
		{"anthropic-oauth", header("Anthropic-Ratelimit-Unified-Reset", -2*time.Hour), 0},
		{"anthropic-oauth", header("Anthropic-Ratelimit-Requests-Reset", 2*time.Hour), 0},
		{"anthropic-api-key", header("Anthropic-Ratelimit-Unified-Reset", 2*time.Hour), 0},
	} {
		r := newRig(t, &loopback{}, nil)
		r.pool.all = []pool.Account{r.profiled(tt.profile, "", r.serve(tt.answer), "k-"+canary)}
		if got := r.post(messages, asking); got.status != 200 || got.err != nil {
			t.Fatalf("got %d, %v", got.status, got.err)
		}
		if got := r.pool.outcomes()[0].Ends; got.Round(time.Hour) != tt.want {
			t.Errorf("%s: the quota ends in %v, want %v", tt.profile, got, tt.want)
		}
	}
}

// The end of a quota is a time to wait only if the quota is used up: all answers of a
// subscription say when its window ends.
func TestQuotaEndIsNotAWait(t *testing.T) {
	t.Parallel()
	const (
		limited = `{"type":"error","error":{"type":"rate_limit_error","message":"m"}}`
		refused = `{"type":"error","error":{"type":"authentication_error","message":"m"}}`
		unpaid  = `{"type":"error","error":{"type":"invalid_request_error","message":"Your credit balance is too low to access the Anthropic API."}}`
	)
	for _, tt := range []struct {
		name, says string
		status     int
		body       string
		reason     pool.Reason
		want       time.Duration
	}{
		{"used up", "rejected", 429, limited, pool.RateLimited, 4 * time.Hour},
		{"nearly used up", "allowed_warning", 429, limited, pool.RateLimited, 0},
		{"too many at once", "allowed", 429, limited, pool.RateLimited, 0},
		{"says nothing", "", 429, limited, pool.RateLimited, 0},
		{"a rate limit of another status", "allowed", 400, limited, pool.RateLimited, 0},
		{"refused", "allowed", 403, refused, pool.QuotaExhausted, 0},
		{"refused, and used up", "rejected", 403, refused, pool.QuotaExhausted, 0},
		{"unpaid, and used up", "rejected", 400, unpaid, pool.QuotaExhausted, 0},
	} {
		r := newRig(t, &memory{}, nil)
		end := fmt.Sprint(time.Now().Add(4 * time.Hour).Unix())
		upstream := r.serve(answer(tt.status, tt.body, "Anthropic-Ratelimit-Unified-Status", tt.says, "Anthropic-Ratelimit-Unified-Reset", end))
		r.pool.all = []pool.Account{r.profiled("anthropic-oauth", "", upstream, "k-"+canary)}
		r.post(messages, asking)
		if o := r.pool.outcomes()[0]; o.Reason != tt.reason || o.RetryAfter.Round(time.Minute) != tt.want {
			t.Errorf("%s: %s, to wait %v, want %s, %v", tt.name, o.Reason, o.RetryAfter, tt.reason, tt.want)
		}
	}
}

// A plain answer that breaks off is not reported as successful.
func TestBrokenPlainAnswer(t *testing.T) {
	t.Parallel()
	r := newRig(t, &loopback{}, nil)
	r.upstream("anthropic", then(answer(200, `{"id":"m1","content":[`, "Content-Length", "1000"), flush, cutting))
	if got := r.post(messages, `{"model":"m","messages":[]}`); got.err == nil {
		t.Errorf("got %d %q with a clean end", got.status, got.body)
	}
	if diff := cmp.Diff([]report{{"sk-" + canary, pool.Unreachable, 200}}, r.pool.got()); diff != "" {
		t.Errorf("reports (-want +got):\n%s", diff)
	}
}

// Whatever follows the terminal event, a whole answer stays whole.
func TestResetAfterTheEnd(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ provider, path, body string }{{"anthropic", messages, goodAnswer}, {"openai", chats, goodChat}} {
		r := newRig(t, &loopback{}, nil)
		r.upstream(tt.provider, then(stream(tt.body, ": x"), cutting))
		if got := r.post(tt.path, asking); got.err != nil || !strings.HasPrefix(got.body, tt.body) {
			t.Errorf("%s: got %q, %v, want a clean end", tt.provider, got.body, got.err)
		}
	}
}

// A stream that ends before the gate opened has shown nothing: the caller gets an error with a
// status.
func TestEndBeforeTheGateOpens(t *testing.T) {
	t.Parallel()
	for name, upstream := range map[string]http.HandlerFunc{
		"nothing":        stream(""),
		"preamble":       stream(msgStart, msgPing),
		"preamble, torn": stream(msgStart, msgBlock[:30]),
		"torn in data":   stream(msgStart, msgBlock[:60]),
		"reset":          then(stream(msgStart), cutting),
		"no headers":     cutting,
	} {
		r := newRig(t, &loopback{}, nil)
		r.upstream("anthropic", upstream, "first-account", "second-account")
		got := r.post(messages, asking)
		if got.status != 502 || got.err != nil || !strings.Contains(got.body, `"api_error"`) || got.header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: got %d %q, %v", name, got.status, got.body, got.err)
		}
		if reports := r.pool.got(); len(reports) != 1 || reports[0].Reason != pool.Unreachable {
			t.Errorf("%s: reports %v, want one of an unreachable provider", name, reports)
		}
	}
}

// At most 64 KiB are held back: a longer preamble opens the gate.
func TestGateSize(t *testing.T) {
	t.Parallel()
	r := newRig(t, &loopback{}, nil)
	pings := strings.Repeat(msgPing, 3000)
	r.upstream("anthropic", stream(msgStart, pings, msgError), "first-account", "second-account")
	got := r.post(messages, asking)
	if got.status != 200 || got.body != msgStart+pings+msgError || got.err != nil {
		t.Errorf("got %d with %d bytes, end %v, want all %d bytes", got.status, len(got.body), got.err, len(msgStart+pings+msgError))
	}
}

// Events larger than the buffer pass in pieces, and count when they are whole.
func TestOverlongEvents(t *testing.T) {
	t.Parallel()
	const responses = "/egress/openai/v1/responses"
	huge := strings.Repeat("x", 5<<20)
	long := "event: response.output\ndata: {\"type\":\"response.output\",\"x\":\"" + huge + "\"}\n\n"
	last := "event: response.completed\ndata: {\"type\":\"response.completed\",\"x\":\"" + huge + "\"}\n\n"
	for name, tt := range map[string]struct {
		body  string
		clean bool
	}{
		"in the middle": {long + "event: response.completed\ndata: {}\n\n", true},
		"at the end":    {last, true},
		"broken inside": {last[:4<<20], false},
		"without end":   {long, false},
	} {
		r := newRig(t, &loopback{}, nil)
		r.upstream("openai", stream(tt.body))
		got := r.post(responses, asking)
		if (got.err == nil) != tt.clean || !strings.HasPrefix(got.body, tt.body) || tt.clean && len(got.body) != len(tt.body) {
			t.Errorf("%s: got %d bytes of %d, end %v", name, len(got.body), len(tt.body), got.err)
		}
	}
}
