package proxy_test

import (
	"encoding/json"
	"flag"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/price"
	"signalbox.dev/services/credential-broker/internal/pool"
	"signalbox.dev/services/credential-broker/internal/profile"
	"signalbox.dev/services/credential-broker/internal/proxy"
	"signalbox.dev/services/credential-broker/internal/vault"
)

var (
	wantEvents = flag.Int("events", 20_000, "events that TestTranslatedStreams sends through")
	wantSeed   = flag.Uint64("seed", 1, "where TestTranslatedStreams begins")
)

// profiled returns an account with a shipped profile, or one in the given text.
func (r *rig) profiled(name, text, base, secret string) pool.Account {
	r.t.Helper()
	own := fstest.MapFS{}
	if text != "" {
		own["own.yaml"] = &fstest.MapFile{Data: []byte(text)}
	}
	set, err := profile.Load("1.2.3", profile.Shipped(), own)
	if err != nil {
		r.t.Fatal(err)
	}
	p, ok := set.Get(name)
	if !ok {
		r.t.Fatalf("no profile %s", name)
	}
	u, err := url.Parse(base)
	if err != nil {
		r.t.Fatal(err)
	}
	return pool.Account{ID: id.New[id.Account](), Provider: "anthropic", Origin: pool.Workspace, Profile: p, Base: u, Secret: vault.NewSecret(secret)}
}

// recorder is a provider that records what it was sent.
type recorder struct {
	uri    string
	header http.Header
	body   string
	length int64
	calls  int
}

func (f *recorder) then(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		f.uri, f.header, f.body, f.length = r.RequestURI, r.Header.Clone(), string(b), r.ContentLength
		f.calls++
		h(w, r)
	}
}

const (
	withTools = `{"model":"m","stream":true,"max_tokens":9007199254740993,"tools":[{"name":"doc_create"},{"type":"web_search_20250305","name":"web_search"}],"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"doc_create","input":{}}]}]}`
	toolsSent = `{"model":"m","stream":true,"max_tokens":9007199254740993,"tools":[{"name":"mcp_doc_create"},{"type":"web_search_20250305","name":"web_search"}],"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"mcp_doc_create","input":{}}]}]}`
)

func toolStart(name string) string {
	return "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"tool_use\",\"id\":\"t\",\"name\":\"" + name + "\",\"input\":{}}}\n\n"
}

// An unmodified SDK through anthropic-oauth: what the provider gets, and what the caller gets,
// streamed and not.
func TestAnthropicOAuth(t *testing.T) {
	t.Parallel()
	var f recorder
	r := newRig(t, &loopback{}, nil)
	base := r.serve(f.then(func(w http.ResponseWriter, req *http.Request) {
		switch {
		case !strings.Contains(f.body, `"stream":true`):
			answer(200, `{"type":"message","content":[{"type":"text","text":"mcp_doc_create"},{"type":"tool_use","id":"t","name":"mcp_doc_create","input":{"n":9007199254740993}}],"usage":{"input_tokens":3,"cache_read_input_tokens":4,"output_tokens":5}}`, "Request-Id", "r1")(w, req)
		default:
			stream(msgStart, toolStart("mcp_doc_create")+toolStart("mcp_mcp_x"), msgDelta, "event: message_delta\ndata: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":9}}\n\n", msgStop)(w, req)
		}
	}))
	r.pool.all = []pool.Account{r.profiled("anthropic-oauth", "", base, "tok-"+canary)}
	req := r.request(t.Context(), messages, withTools)
	for k, v := range map[string]string{"X-Stainless-Lang": "js", "X-Stainless-Retry-Count": "1", "Anthropic-Beta": "one", "User-Agent": "sdk", "Anthropic-Version": "2023-06-01"} {
		req.Header.Set(k, v)
	}
	got := r.do(req)
	if want := msgStart + toolStart("doc_create") + toolStart("mcp_x") + msgDelta + "event: message_delta\ndata: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":9}}\n\n" + msgStop; got.err != nil || got.body != want {
		t.Errorf("streamed (-want +got), end %v:\n%s", got.err, cmp.Diff(want, got.body))
	}
	want := http.Header{
		"Authorization": {"Bearer tok-" + canary}, "Accept-Encoding": {"identity"}, "Anthropic-Beta": {"one,oauth-2025-04-20,interleaved-thinking-2025-05-14"}, "User-Agent": {"signalbox/1.2.3"},
		"Anthropic-Version": {"2023-06-01"}, "Content-Type": {"application/json"}, "Content-Length": {strconv.Itoa(len(toolsSent))},
	}
	if diff := cmp.Diff(want, f.header); diff != "" {
		t.Errorf("headers at the provider (-want +got):\n%s", diff)
	}
	if f.body != toolsSent || f.uri != "/v1/messages?beta=true" || f.length != int64(len(toolsSent)) {
		t.Errorf("the provider got %s with %d bytes: %s", f.uri, f.length, f.body)
	}
	plain := r.post(messages+"?beta=true", strings.Replace(withTools, `"stream":true,`, "", 1))
	if want := `{"type":"message","content":[{"type":"text","text":"mcp_doc_create"},{"type":"tool_use","id":"t","name":"doc_create","input":{"n":9007199254740993}}],"usage":{"input_tokens":3,"cache_read_input_tokens":4,"output_tokens":5}}`; plain.err != nil || plain.body != want || plain.header.Get("Content-Length") != strconv.Itoa(len(want)) || plain.header.Get("Request-Id") != "r1" {
		t.Errorf("got %s %v, %v, want %s", plain.body, plain.header, plain.err, want)
	}
	if f.uri != "/v1/messages?beta=true" {
		t.Errorf("the provider was asked for %s", f.uri)
	}
	wantTold := []pool.Outcome{
		{Reason: pool.OK, Status: 200, Model: "m", Tokens: price.Tokens{Input: 1, Output: 9}},
		{Reason: pool.OK, Status: 200, Model: "m", Tokens: price.Tokens{Input: 7, CacheRead: 4, Output: 5}},
	}
	if diff := cmp.Diff(wantTold, r.pool.outcomes()); diff != "" {
		t.Errorf("what the pool heard (-want +got):\n%s", diff)
	}
}

// The next account's profile edits the caller's original body.
func TestEachAccountItsProfile(t *testing.T) {
	t.Parallel()
	var first, second recorder
	r := newRig(t, &loopback{}, nil)
	refusing := r.serve(first.then(answer(429, rateLimited)))
	serving := r.serve(second.then(stream(msgStart, toolStart("mcp_doc_create"), msgStop)))
	r.pool.all = []pool.Account{r.profiled("anthropic-oauth", "", refusing, "one"), r.profiled("anthropic-api-key", "", serving, "two")}
	got := r.post(messages, withTools)
	if got.body != msgStart+toolStart("mcp_doc_create")+msgStop || got.err != nil {
		t.Errorf("got %s, %v, want the second account's answer as it came", got.body, got.err)
	}
	if first.body != toolsSent || second.body != withTools || second.uri != "/v1/messages" {
		t.Errorf("the accounts got\n%s\n%s %s", first.body, second.uri, second.body)
	}
}

const ownProfile = `
name: own
dialect: anthropic
auth: {header: x-api-key}
tool_prefix: mcp_
system:
  first: [First.]
  words: [{from: Example, to: Signalbox}]
routes:
  - path: /v1/messages
    body: messages
    wait: 1m
    stream: {events: typed, terminal: [message_stop]}
`

func TestSystemPrompt(t *testing.T) {
	t.Parallel()
	var f recorder
	r := newRig(t, &loopback{}, nil)
	base := r.serve(f.then(answer(200, `{}`)))
	r.pool.all = []pool.Account{r.profiled("own", ownProfile, base, "k")}
	if got := r.post(messages, `{"system":"You are Example.","x":1}`); got.status != 200 || got.body != `{}` {
		t.Fatalf("got %d %s", got.status, got.body)
	}
	if want := `{"system":[{"type":"text","text":"First."},{"type":"text","text":"You are Signalbox."}],"x":1}`; f.body != want {
		t.Errorf("the provider got %s, want %s", f.body, want)
	}
	// A large body is sent in pieces, and a body on another path as it is.
	large := `{"system":"Example","pad":"` + strings.Repeat("x", 300<<10) + `"}`
	r.post(messages, large)
	if want := strings.Replace(large, `"Example"`, `[{"type":"text","text":"First."},{"type":"text","text":"Signalbox"}]`, 1); f.body != want {
		t.Errorf("the provider got %d bytes, want %d", len(f.body), len(want))
	}
	r.post("/egress/anthropic/v1/other", `{"system":"Example"}`)
	if f.body != `{"system":"Example"}` {
		t.Errorf("the provider got %s at another path", f.body)
	}
	calls := f.calls
	got := r.post(messages, `{"tools":[`+strings.Repeat(`{"name":"a"},`, 70_000)+`{}]}`)
	if got.status != 400 || !strings.Contains(got.body, "more tools") || f.calls != calls {
		t.Errorf("a request with too many tools got %d %.200s", got.status, got.body)
	}
}

// An answer whose tool names cannot be translated is never shown with the wrong ones.
func TestUntranslatable(t *testing.T) {
	t.Parallel()
	long := `{"content":[{"type":"text","text":"` + strings.Repeat("x", 9<<20) + `"}]}`
	tests := []struct {
		name   string
		h      http.HandlerFunc
		status int
		body   string
	}{
		{"compressed", answer(200, "\x1f\x8b", "Content-Encoding", "gzip"), 502, "compressed"},
		{"compressed stream", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = io.WriteString(w, "\x1f\x8b")
		}, 502, "compressed"},
		{"too large", answer(200, long), 502, "more than 8 MiB"},
		{"torn", func(w http.ResponseWriter, req *http.Request) {
			w.Header().Set("Content-Length", "100")
			answer(200, `{"content":[`)(w, req)
			cut()
		}, 502, "closed the connection before the answer ended"},
		{"an error", answer(400, `{"type":"error","error":{"type":"invalid_request_error","message":"tools.0.name: mcp_a"}}`), 400, "mcp_a"},
		{"no JSON", answer(200, `mcp_a`), 502, "neither whole JSON"},
		{"half a JSON", answer(200, `{"content":[{"type":"tool_use","name":"mcp_a`), 502, "neither whole JSON"},
		{"no JSON type", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			_, _ = io.WriteString(w, "mcp_a")
		}, 502, "neither whole JSON nor an event stream"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, &loopback{}, nil)
			base := r.serve(tt.h)
			r.pool.all = []pool.Account{r.profiled("anthropic-oauth", "", base, "k-"+canary)}
			got := r.post(messages, `{}`)
			if got.status != tt.status || !strings.Contains(got.body, tt.body) || got.err != nil {
				t.Errorf("got %d %.200s, %v, want %d with %q", got.status, got.body, got.err, tt.status, tt.body)
			}
			if n := len(r.pool.got()); n != 1 {
				t.Errorf("%d reports, want one", n)
			}
		})
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	const counts = `"usage":{"prompt_tokens":11,"completion_tokens":7}`
	chat := func(extra string) string {
		return "data: {\"id\":\"c\",\"choices\":[]," + extra + "}\n\n"
	}
	tests := []struct {
		name, provider, path string
		h                    http.HandlerFunc
		in, out              int64
		cached               int64
		model                string
	}{
		{"chat", "openai", chats, stream(chatRole, chatDelta, chatFinish, chat(counts), chatDone), 11, 7, 0, ""},
		{"chat, with the finish", "openrouter", "/egress/openrouter/api/v1/chat/completions", stream(chatRole, strings.Replace(chatFinish, `"choices"`, counts+`,"choices"`, 1), chatDone), 11, 7, 0, ""},
		{"chat, not asked for", "openai", chats, stream(chatRole, chatDelta, chatFinish, chatDone), 0, 0, 0, ""},
		{"responses", "openai", "/egress/openai/v1/responses", stream("event: response.output_text.delta\ndata: {}\n\n", "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"usage\":{\"input_tokens\":3,\"output_tokens\":2}}}\n\n"), 3, 2, 0, ""},
		{"messages without names", "anthropic", messages, stream("data: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":5,\"output_tokens\":1}}}\n\n", "data: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":6}}\n\n", "data: {\"type\":\"message_stop\"}\n\n"), 5, 6, 0, ""},
		{"broken off", "anthropic", messages, stream("event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":5,\"output_tokens\":1}}}\n\n", msgDelta), 5, 1, 0, ""},
		{"whole", "openai", chats, answer(200, `{"choices":[{"message":{"content":"x"}}],`+counts+`}`), 11, 7, 0, ""},
		{"whole and large", "openai", chats, answer(200, `{"x":"`+strings.Repeat("x", 100<<10)+`",`+counts+`}`), 11, 7, 0, ""},
		{"whole and too large to hold", "openai", chats, answer(200, `{"x":"`+strings.Repeat("x", 9<<20)+`",`+counts+`}`), 11, 7, 0, ""},
		{"whole, large, and quoted only", "openai", chats, answer(200, `{"x":"`+strings.Repeat(`\"},\"usage\":{\"prompt_tokens\":9},\"a\":{\"`, 9000)+`","y":{`+counts+`}}`), 0, 0, 0, ""},
		{"cut behind the counts", "openai", chats, answer(200, `{"x":[`+strings.Repeat("1,", 200<<10)+`1],`+counts), 0, 0, 0, ""},
		{"an error", "openai", chats, answer(400, `{"error":{},`+counts+`}`), 0, 0, 0, ""},
		{"cached", "openai", chats, answer(200, `{"choices":[],"usage":{"prompt_tokens":11,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":5}}}`), 11, 7, 5, "gpt-5"},
		{"embeddings", "openai", "/egress/openai/v1/embeddings", answer(200, `{"object":"list","data":[`+strings.Repeat(`{"index":0,"embedding":[-0.25,1e-3]},`, 30<<10)+`{}],"model":"m","usage":{"prompt_tokens":8,"total_tokens":8}}`), 8, 0, 0, ""},
		{"images", "openai", "/egress/openai/v1/images/generations", answer(200, `{"created":1,"data":[{"b64_json":"`+strings.Repeat("QUJD", 1<<20)+`"}],"usage":{"input_tokens":50,"output_tokens":1056,"total_tokens":1106}}`), 50, 1056, 0, ""},
		{"made before", "openai", "/egress/openai/v1/chat/completions/chatcmpl-1", answer(200, `{"id":"chatcmpl-1",`+counts+`}`), 0, 0, 0, ""},
		{"by another name", "openai", "/egress/openai/v1/chat/completions/chatcmpl-1", answer(200, `{"id":"chatcmpl-12",`+counts+`}`), 11, 7, 0, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, &loopback{}, nil)
			r.upstream(tt.provider, tt.h)
			r.post(tt.path, `{"model":"`+tt.model+`","stream":true}`)
			told := r.pool.outcomes()
			if len(told) != 1 || told[0].Tokens != (price.Tokens{Input: tt.in, CacheRead: tt.cached, Output: tt.out}) || told[0].Model != tt.model {
				t.Errorf("the pool heard %+v, want of %q %d tokens in, %d of them cached, and %d out", told, tt.model, tt.in, tt.cached, tt.out)
			}
		})
	}
}

// Limit headers count if there is no Retry-After.
func TestLimitHeaders(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, provider, path string
		h                    http.HandlerFunc
		reason               pool.Reason
		wait                 time.Duration
	}{
		{"reset", "openai", chats, answer(429, `{}`, "X-Ratelimit-Remaining-Requests", "0", "X-Ratelimit-Reset-Requests", "1m30s", "X-Ratelimit-Remaining-Tokens", "5", "X-Ratelimit-Reset-Tokens", "9m0s"), pool.RateLimited, 90 * time.Second},
		{"Retry-After counts first", "openai", chats, answer(429, `{}`, "Retry-After", "7", "X-Ratelimit-Remaining-Requests", "0", "X-Ratelimit-Reset-Requests", "1m30s"), pool.RateLimited, 7 * time.Second},
		{"an answer that is no limit", "openai", chats, answer(200, `{}`, "X-Ratelimit-Remaining-Requests", "0", "X-Ratelimit-Reset-Requests", "1m30s"), pool.OK, 0},
		{"403 with nothing left", "github", "/egress/github/user", answer(403, `{"message":"API rate limit exceeded"}`, "X-Ratelimit-Remaining", "0", "X-Ratelimit-Reset", "45"), pool.RateLimited, 45 * time.Second},
		{"403 with something left", "github", "/egress/github/user", answer(403, `{"message":"Resource not accessible"}`, "X-Ratelimit-Remaining", "10", "X-Ratelimit-Reset", "45"), pool.Caller, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, &loopback{}, nil)
			r.upstream(tt.provider, tt.h)
			r.post(tt.path, asking)
			told := r.pool.outcomes()
			if len(told) != 1 || told[0].Reason != tt.reason || told[0].RetryAfter != tt.wait {
				t.Errorf("the pool heard %+v, want %s and %v", told, tt.reason, tt.wait)
			}
		})
	}
}

// generator writes a stream twice: as the caller should see it, and as the provider sends it, with
// prefixes.
type generator struct {
	rand       *rand.Rand
	want, sent strings.Builder
	events     int
}

func (s *generator) pick(list ...string) string { return list[s.rand.IntN(len(list))] }

// event writes one event. A § in data is the prefix in the provider's and nothing in the
// caller's.
func (s *generator) event(name, data string) {
	s.events++
	end := s.pick("\n", "\n", "\n", "\r\n", "\r")
	var lines []string
	if name != "" && s.rand.IntN(10) > 0 {
		lines = append(lines, s.pick("event: ", "event:")+name)
	}
	if s.rand.IntN(20) == 0 {
		lines = append(lines, s.pick(": comment mcp_", "id: 7", "retry: 5", "other"))
	}
	for part := range strings.SplitSeq(data, "\n") {
		lines = append(lines, s.pick("data: ", "data:")+part)
	}
	if s.rand.IntN(20) == 0 && strings.HasPrefix(lines[0], "event") { // the name may also follow the data
		lines = append(lines[1:], lines[0])
	}
	frame := strings.Join(lines, end) + end + end
	s.want.WriteString(strings.ReplaceAll(frame, "§", ""))
	s.sent.WriteString(strings.ReplaceAll(frame, "§", s.pick("mcp_", "mcp_", "mcp_", `\u006dcp_`, `mcp\u005f`)))
}

// between puts white space between the members of an object, including line ends, which make
// several data lines of it.
func (s *generator) between(members ...string) string {
	s.rand.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	gap := s.pick("", "", "", " ", "  ", "\n", "\t")
	return "{" + gap + strings.Join(members, ","+gap) + gap + "}"
}

func (s *generator) name() string {
	return s.pick("a", "doc_create", "mcp_a", "mcp_mcp_", "mcp_", "m", "mcp", `\u0061b`, `é`, `q\"q`, strings.Repeat("n", 100))
}

func (s *generator) input() string {
	return s.pick(`{}`, `{"name":"mcp_a","type":"tool_use"}`, `{"n":9007199254740993,"x":[{"name":"mcp_"}]}`, `{"s":"\"name\":\"mcp_a\""}`)
}

// block returns the beginning of a block.
func (s *generator) block() string {
	id := `"id":"t` + strconv.Itoa(s.events) + `"`
	switch s.rand.IntN(8) {
	case 0:
		return s.between(`"type":"text"`, `"text":"mcp_ \"name\":\"mcp_a\""`, `"name":"mcp_a"`)
	case 1:
		return s.between(`"type":"server_tool_use"`, id, `"name":"mcp_web"`, `"input":{}`)
	case 2:
		return s.between(`"type":"mcp_tool_use"`, id, `"name":"mcp_far"`, `"server_name":"mcp_s"`)
	case 3: // the provider's own tools keep their names
		return s.between(`"type":"tool_use"`, id, `"name":"`+s.pick("bash", "mcp_native", `mcp_nativ\u0065`)+`"`, `"input":{}`)
	case 4: // of a kind that nobody knows
		return s.between(`"type":"new_thing"`, `"name":"mcp_x"`, `"more":{"type":"tool_use","name":"mcp_y"}`)
	}
	return s.between(`"type":"`+s.pick("tool_use", `tool\u005fuse`)+`"`, id, `"name":"§`+s.name()+`"`, `"input":`+s.input(), `"caller":{"type":"direct","name":"mcp_z"}`)
}

// message writes a whole answer with blocks open at the same time.
func (s *generator) message() {
	s.event("message_start", `{"type":"message_start","message":{"id":"m","content":[],"usage":{"input_tokens":1}}}`)
	for i := range 2 + s.rand.IntN(6) {
		index := `"index":` + strconv.Itoa(i)
		s.event("content_block_start", s.between(`"type":"content_block_start"`, index, `"content_block":`+s.block()))
		for range s.rand.IntN(12) {
			delta := s.pick(`{"type":"text_delta","text":"mcp_a \"type\":\"tool_use\",\"name\":\"mcp_b\""}`, `{"type":"input_json_delta","partial_json":"{\"name\":\"mcp_"}`, `{"type":"thinking_delta","thinking":"`+strings.Repeat("hm ", s.rand.IntN(400))+`"}`)
			s.event("content_block_delta", `{"type":"content_block_delta",`+index+`,"delta":`+delta+`}`+strings.Repeat(" ", s.rand.IntN(30)))
		}
		if s.rand.IntN(4) == 0 {
			s.event(s.pick("ping", "vendor_event"), s.pick(`{"type": "ping"}`, `{"type":"vendor","content_block":{"type":"tool_use","name":"mcp_a"}}`, `no JSON mcp_`))
		}
		if s.rand.IntN(400) == 0 { // larger than any buffer
			s.event("content_block_start", `{"type":"content_block_start",`+index+`,"content_block":{"type":"tool_use","name":"§big","input":{"x":"`+strings.Repeat("mcp_", 400<<10)+`"}}}`)
		}
		s.event("content_block_stop", `{"type":"content_block_stop",`+index+`}`)
	}
	s.event("message_delta", `{"type":"message_delta","delta":{"stop_reason":"tool_use"},"usage":{"output_tokens":2}}`)
	s.event("message_stop", `{"type":"message_stop"}`)
}

// pieces reads in pieces of all sizes.
type pieces struct {
	rest string
	rand *rand.Rand
	most int
}

func (p *pieces) Read(b []byte) (int, error) {
	if p.rest == "" {
		return 0, io.EOF
	}
	n := copy(b, p.rest[:min(len(p.rest), 1+p.rand.IntN(p.most))])
	p.rest = p.rest[n:]
	return n, nil
}

// Generated streams with prefixed tool names come out as the same streams without the prefix,
// however reads split them. `make translated` runs this for longer.
func TestTranslatedStreams(t *testing.T) {
	t.Parallel()
	source := &canned{}
	r := newRig(t, &loopback{}, func(c *proxy.Config) { c.Open = source })
	r.pool.all = []pool.Account{r.profiled("anthropic-oauth", "", "http://up.test", long)}
	const request = `{"stream":true,"tools":[{"name":"a"},{"type":"bash_20250124","name":"bash"},{"name":"mcp_native","type":"native_1"}]}`
	events, streams := 0, 0
	for seed := *wantSeed; events < *wantEvents; seed++ {
		s := &generator{rand: rand.New(rand.NewPCG(seed, 1))}
		s.message()
		most := []int{1, 3, 50, 1000, 100_000}[s.rand.IntN(5)]
		if s.sent.Len() > 1<<20 {
			most = 100_000
		}
		source.body = func() io.Reader { return &pieces{s.sent.String(), s.rand, most} }
		req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, messages, strings.NewReader(request))
		req.Header.Set("X-Api-Key", r.token())
		w := httptest.NewRecorder()
		if clean := direct(r.proxy, w, req); !clean || w.Body.String() != s.want.String() {
			got, want := w.Body.String(), s.want.String()
			i := 0
			for i < min(len(got), len(want)) && got[i] == want[i] {
				i++
			}
			t.Fatalf("seed %d, reads of up to %d bytes, clean %v: differs at %d of %d:\n%q\nwant\n%q", seed, most, clean, i, len(want), around(got, i), around(want, i))
		}
		events += s.events
		streams++
	}
	t.Logf("%d events in %d streams, no difference", events, streams)
}

func around(s string, i int) string { return s[max(0, i-100):min(len(s), i+100)] }

// The generator writes what the API could send: every event is JSON, and at least one in fifty
// has a prefix.
func TestGenerator(t *testing.T) {
	t.Parallel()
	s := &generator{rand: rand.New(rand.NewPCG(1, 1))}
	for range 50 {
		var v any
		if b := s.block(); json.Unmarshal([]byte(strings.ReplaceAll(b, "§", "")), &v) != nil {
			t.Fatalf("a block is no JSON: %s", b)
		}
		s.message()
	}
	if n := strings.Count(s.sent.String(), "mcp_") - strings.Count(s.want.String(), "mcp_"); n < s.events/50 {
		t.Errorf("%d prefixes in %d events", n, s.events)
	}
}

// BenchmarkTranslate is BenchmarkStream with a prefix to remove.
func BenchmarkTranslate(b *testing.B) {
	in := []byte(msgStart + toolStart("mcp_a") + strings.Repeat(msgDelta, chunks-3) + msgStop)
	source := &canned{body: func() io.Reader { return &steps{in, len(msgDelta)} }}
	r := newRig(b, &loopback{}, func(c *proxy.Config) { c.Open = source })
	r.pool.all = []pool.Account{r.profiled("anthropic-oauth", "", "http://up.test", long)}
	b.ReportAllocs()
	for b.Loop() {
		req := r.request(b.Context(), messages, withTools)
		req.RequestURI = messages
		w := &sink{header: http.Header{}}
		if !direct(r.proxy, w, req) || w.bytes != len(in)-len("mcp_") {
			b.Fatalf("%d of %d bytes", w.bytes, len(in))
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*chunks), "ns/chunk")
}
