package proxy_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/pkg/price"
	"signalbox.dev/services/credential-broker/internal/pool"
)

// A chat whose chunks all have an empty finish_reason, "" in place of null, is not whole when
// it is cut off.
func TestEmptyFinishReason(t *testing.T) {
	t.Parallel()
	const (
		role = `data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":""}]}` + "\n\n"
		text = `data: {"choices":[{"index":0,"delta":{"content":"Hi, the answer is not"},"finish_reason": ""}]}` + "\n\n"
		end  = `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	)
	for _, body := range []string{asking, `{"stream":true,"n":1,"prompt":["a"]}`} {
		r := newRig(t, &loopback{}, nil)
		r.upstream("openai", stream(role, text))
		if got := r.post(chats, body); got.err == nil || !strings.Contains(got.body, `"code":"provider_broke_off"`) {
			t.Errorf("cut off: got %q, end %v, want an error and a broken end", got.body, got.err)
		}
		if diff := cmp.Diff([]report{{"sk-" + canary, pool.Unreachable, 200}}, r.pool.got()); diff != "" {
			t.Errorf("reports (-want +got):\n%s", diff)
		}
		r = newRig(t, &loopback{}, nil)
		r.upstream("openai", stream(role, text, end))
		if got := r.post(chats, body); got.err != nil || got.body != role+text+end {
			t.Errorf("whole: got %q, end %v, want a clean end", got.body, got.err)
		}
	}
}

// An error event without its blank line is shown with one, wherever in the stream it is.
func TestErrorEventWithoutBlankLine(t *testing.T) {
	t.Parallel()
	chatError := "data: {\"error\":{\"message\":\"boom\",\"type\":\"server_error\"}}\n\n"
	for _, tt := range []struct {
		name, provider, path string
		before, event        string
	}{
		{"first", "anthropic", messages, "", msgError},
		{"behind the preamble", "anthropic", messages, msgStart, msgError},
		{"midway", "anthropic", messages, msgStart + msgBlock + msgDelta, msgError},
		{"a chat's first", "openai", chats, chatRole, chatError},
		{"a chat's", "openai", chats, chatRole + chatDelta, chatError},
	} {
		for _, end := range []string{"", "\n", "\r", "\r\n"} {
			t.Run(tt.name+strings.NewReplacer("\r", " CR", "\n", " LF").Replace(end), func(t *testing.T) {
				t.Parallel()
				r := newRig(t, &loopback{}, nil)
				event := strings.TrimSuffix(tt.event, "\n\n") + end
				r.upstream(tt.provider, stream(tt.before+event))
				got := r.post(tt.path, asking)
				if want := tt.before + event + "\n\n"; got.status != http.StatusOK || got.body != want || got.err == nil {
					t.Errorf("got %d %q, end %v, want %q and a broken end", got.status, got.body, got.err, want)
				}
			})
		}
	}
	t.Run("another account", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, &loopback{}, nil)
		r.upstream("anthropic", bySecret(map[string]http.HandlerFunc{
			"first-account": stream(msgStart + strings.TrimSuffix(msgError, "\n")), "second-account": stream(goodAnswer),
		}), "first-account", "second-account")
		if got := r.post(messages, asking); got.err != nil || got.body != goodAnswer {
			t.Errorf("got %d %q, %v, want the second account's answer", got.status, got.body, got.err)
		}
		want := []report{{"first-account", pool.Overloaded, 200}, {"second-account", pool.OK, 200}}
		if diff := cmp.Diff(want, r.pool.got()); diff != "" {
			t.Errorf("reports (-want +got):\n%s", diff)
		}
	})
}

// An answer is treated as what was asked for, whatever its content type: a stream is followed
// to its end, and tool names in it are the caller's, or there is an error.
func TestContentTypes(t *testing.T) {
	t.Parallel()
	const (
		tool   = "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"tool_use\",\"id\":\"t\",\"name\":\"mcp_doc\",\"input\":{}}}\n\n"
		whole  = `{"content":[{"type":"tool_use","id":"t","name":"mcp_doc","input":{}}]}`
		stream = `{"model":"m","stream":true,"tools":[{"name":"doc"}],"messages":[]}`
		plain  = `{"model":"m","tools":[{"name":"doc","input_schema":{"stream":true}}],"messages":[]}`
	)
	large := whole[:len(whole)-1] + strings.Repeat(" ", 100<<10) + "}"
	for _, tt := range []struct {
		kind, asked, body string
		status            int
		broken            bool
	}{
		{"text/event-stream", stream, msgStart + tool, 200, true},
		{"text/event-stream", stream, msgStart + tool + msgStop, 200, false},
		{"text/event-stream; charset", stream, msgStart + tool, 200, true},
		{"text/event-stream;charset=utf-8;charset=utf-8", stream, msgStart + tool, 200, true},
		{"text/event-stream, text/event-stream", stream, msgStart + tool, 200, true},
		{"Text/Event-Stream", stream, msgStart + tool, 200, true},
		{"text/plain", stream, msgStart + tool, 200, true},
		{"text/plain", stream, msgStart + tool + msgStop, 200, false},
		{"", stream, msgStart + tool, 200, true},
		{"application/json", stream, whole, 200, false},
		{"text/plain", stream, whole, 200, false},
		{"", stream, "\n\n" + whole + "\n", 200, false},
		{"", stream, large, 200, false},
		{"", stream, "{\n\n" + whole[1:], 200, false},
		{"text/event-stream", stream, whole, 502, false},
		{"text/plain", stream, msgStart + whole, 502, false},
		{"text/plain", stream, whole[:40], 502, false},
		{"", stream, "", 502, false},
		{"application/json", plain, whole, 200, false},
		{"application/problem+json", plain, whole, 200, false},
		{"text/plain", plain, whole, 200, false},
		{"", plain, whole, 200, false},
		{"text/plain", plain, msgStart + tool + msgStop, 502, false},
		{"", plain, "", 200, false},
	} {
		t.Run(tt.kind, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, &loopback{}, nil)
			upstream := r.serve(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header()["Content-Type"] = []string{tt.kind}
				if tt.kind == "" {
					w.Header()["Content-Type"] = nil
				}
				_, _ = io.WriteString(w, tt.body)
			}))
			r.pool.all = []pool.Account{r.profiled("anthropic-oauth", "", upstream, "k-"+canary)}
			got := r.post(messages, tt.asked)
			if got.status != tt.status || (got.err != nil) != tt.broken {
				t.Errorf("got %d %q, end %v, want %d, broken %v", got.status, got.body, got.err, tt.status, tt.broken)
			}
			if strings.Contains(got.body, "mcp_doc") {
				t.Errorf("a name with its prefix is shown: %q", got.body)
			}
			if want := strings.Replace(tt.body, "mcp_doc", "doc", 1); json.Valid([]byte(want)) && got.status == 200 && got.body != want {
				t.Errorf("got %q, want %q", got.body, want)
			}
		})
	}
}

// JSON in place of a stream arrives, whatever its content type, even if it takes longer than
// the gate is shut.
func TestSlowJSON(t *testing.T) {
	t.Parallel()
	const body = `{"choices":[]}`
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, &memory{}, nil)
		r.upstream("openai", func(w http.ResponseWriter, req *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			_, _ = io.WriteString(w, body[:5])
			flush(w, req)
			pause(time.Minute)(w, req)
			_, _ = io.WriteString(w, body[5:])
		})
		if got := r.post(chats, asking); got.status != 200 || got.body != body || got.err != nil {
			t.Errorf("got %d %q, %v", got.status, got.body, got.err)
		}
		if diff := cmp.Diff([]report{{"sk-" + canary, pool.OK, 200}}, r.pool.got()); diff != "" {
			t.Errorf("reports (-want +got):\n%s", diff)
		}
	})
}

// A Content-Encoding that changes nothing is not compression.
func TestEncodingsWithoutEffect(t *testing.T) {
	t.Parallel()
	for name, status := range map[string]int{"": 200, "none": 200, "UTF-8": 200, "identity, identity": 200, "identity, gzip": 502, "br": 502} {
		r := newRig(t, &memory{}, nil)
		r.upstream("openai", func(w http.ResponseWriter, req *http.Request) {
			w.Header()["Content-Encoding"] = []string{name}
			stream(goodChat)(w, req)
		})
		if got := r.post(chats, asking); got.status != status || status == 200 && got.body != goodChat || got.err != nil {
			t.Errorf("%q: got %d %q, %v", name, got.status, got.body, got.err)
		}
	}
}

// A chat that has finished and is cut inside a later event does not end cleanly.
func TestCutBehindTheFinish(t *testing.T) {
	t.Parallel()
	const torn = `data: {"id":"c","choices":[],"usage":{"total_`
	for _, tt := range []struct {
		name, rest string
		broken     bool
	}{
		{"an event", torn, true},
		{"an overlong event", torn + strings.Repeat("x", 3<<20), true},
		{"a name", "event: us", true},
		{"a field's name", "da", true},
		{"an event without its blank line", strings.TrimSpace(chatUsage), false},
		{"a blank line too many", "\n", false},
		{"a comment", ": keep-alive", false},
		{"comments", ": a\n\n: b\n", false},
		{"an overlong event and more", "data: \"" + strings.Repeat("x", 3<<20) + "\"\n\n", false},
		{"behind the last event", chatDone + torn, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, &loopback{}, nil)
			r.upstream("openai", stream(chatDelta, chatFinish, tt.rest))
			got := r.post(chats, asking)
			if (got.err != nil) != tt.broken {
				t.Errorf("the end is %v, want broken %v", got.err, tt.broken)
			}
			if whole := chatDelta + chatFinish; !tt.broken && got.body != whole+tt.rest || tt.broken && len(tt.rest) < 100 && !strings.HasPrefix(got.body, whole+"data: {\"error\"") {
				t.Errorf("got %.600q", got.body)
			}
		})
	}
}

// A response that is streamed again by its id is as whole as its end.
func TestResumedResponse(t *testing.T) {
	t.Parallel()
	const piece = "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"sequence_number\":4}\n\n"
	const last = "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"usage\":{\"input_tokens\":3,\"output_tokens\":2}}}\n\n"
	for _, tt := range []struct {
		name   string
		events []string
		broken bool
	}{{"whole", []string{piece, last}, false}, {"cut", []string{piece}, true}} {
		r := newRig(t, &loopback{}, nil)
		r.upstream("openai", stream(tt.events...))
		req := r.request(t.Context(), "/egress/openai/v1/responses/resp_1?stream=true&starting_after=3", "")
		req.Method = http.MethodGet
		if got := r.do(req); (got.err != nil) != tt.broken {
			t.Errorf("%s: the end is %v, want broken %v", tt.name, got.err, tt.broken)
		}
		if told := r.pool.outcomes(); len(told) != 1 || told[0].Tokens != (price.Tokens{}) {
			t.Errorf("%s: the pool heard %+v, want no tokens: they were counted when the response was made", tt.name, told)
		}
	}
}

// Several choices are whole only at [DONE]: one for each prompt, or as many as n says.
func TestSeveralChoices(t *testing.T) {
	t.Parallel()
	second := strings.Replace(chatFinish, `"index":0`, `"index":1`, 1)
	for body, several := range map[string]bool{
		`{"stream":true,"messages":[]}`:                      false,
		`{"stream":true,"n":1,"messages":[]}`:                false,
		`{"stream":true,"n":0,"messages":[]}`:                false,
		`{"stream":true,"n":1.0,"messages":[]}`:              false,
		`{"stream":true,"messages":[{"n":3}]}`:               false,
		`{"stream":true,"prompt":"a","n":null,"x":1}`:        false,
		`{"stream":true,"prompt":["a"]}`:                     false,
		`{"stream":true,"prompt":[1,2,3]}`:                   false,
		`{"stream":true,"prompt":[[1,2]]}`:                   false,
		`{"stream":true,"prompt":[]}`:                        false,
		`{"stream":true,"n":2,"messages":[],"x":true}`:       true,
		`{"stream":true,"prompt":["a,b","]"],"x":"y"}`:       true,
		`{"stream":true,"prompt":[[1,2],[3],[4,5,6]],"n":1}`: true,
	} {
		for _, end := range []string{"", chatDone} {
			r := newRig(t, &loopback{}, nil)
			chunks := chatDelta + chatFinish + second + chatUsage + end
			r.upstream("openai", stream(chunks))
			got := r.post(chats, body)
			if broken := several && end == ""; (got.err != nil) != broken || !broken && got.body != chunks {
				t.Errorf("%s: got %q, the end is %v, want broken %v", body, got.body, got.err, broken)
			}
		}
	}
}
