package simulator_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"signalbox.dev/services/simulator"
)

func (s *server) send(t testing.TB, method, path, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// TestScriptsOverHTTP puts, lists, plays and removes scripts.
func TestScriptsOverHTTP(t *testing.T) {
	t.Parallel()
	s := start(t, simulator.Config{})
	p := providers()[0]
	if status, body := s.send(t, http.MethodPut, "/simulator/scripts/mine", "rules: [{then: [{say: mine}]}]"); status != http.StatusOK || !strings.Contains(body, `"model":"sim/mine"`) {
		t.Fatalf("PUT = %d %s, want 200 and the model id", status, body)
	}
	if status, body := s.send(t, http.MethodPut, "/simulator/scripts/mine", "rules:\n  - then: [{sing: x}]\n"); status != http.StatusBadRequest || !strings.Contains(body, "mine.yaml:2:13: rules[0].then[0].sing") {
		t.Errorf("PUT of a bad script = %d %s, want 400 with the place", status, body)
	}
	if status, body := s.send(t, http.MethodPut, "/simulator/scripts/mine", strings.Repeat("#", 300<<10)); status != http.StatusRequestEntityTooLarge {
		t.Errorf("PUT of a long script = %d %s, want 413", status, body)
	}
	for _, model := range []string{"sim/mine", "sim/mine/claude-x"} {
		if _, _, body := s.ask(t, p, request(p, model, "hi", true)); !strings.Contains(body, `"text":"mine"`) || !strings.Contains(body, `"model":"`+model+`"`) {
			t.Errorf("%s was answered with %s", model, body)
		}
	}
	if _, body := get(t, s, "/simulator/scripts", nil); !strings.Contains(body, `"name":"builtin"`) || !strings.Contains(body, `"name":"mine"`) {
		t.Errorf("the list is %s", body)
	}
	if status, _ := s.send(t, http.MethodDelete, "/simulator/scripts/mine", ""); status != http.StatusNoContent {
		t.Errorf("DELETE = %d, want 204", status)
	}
	if status, _ := s.send(t, http.MethodDelete, "/simulator/scripts/mine", ""); status != http.StatusNotFound {
		t.Errorf("second DELETE = %d, want 404", status)
	}
	for _, p := range providers() {
		status, _, body := s.ask(t, p, request(p, "sim/mine", "hi", true))
		if want := map[string]int{"anthropic": 404, "openai": 404, "openrouter": 400}[p.name]; status != want || !strings.Contains(body, "sim/mine") {
			t.Errorf("%s: an unknown script = %d %s, want %d", p.name, status, body, want)
		}
	}
}

// TestRequests checks what the journal keeps, and that no credential is in it.
func TestRequests(t *testing.T) {
	t.Parallel()
	s := start(t, simulator.Config{Requests: 3}, "mine", "rules: [{name: only, then: [{say: mine}]}]")
	p := providers()[0]
	p.header["X-Api-Key"] = "canary-secret"
	for i := range 5 {
		s.ask(t, p, request(p, "sim/mine", fmt.Sprint("message ", i), true))
	}
	_, body := get(t, s, "/simulator/requests?script=mine&limit=2", nil)
	var got struct {
		Requests []simulator.Received `json:"requests"`
	}
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Requests) != 2 {
		t.Fatalf("%d requests, want the last 2 of 3 kept: %s", len(got.Requests), body)
	}
	last := got.Requests[1]
	if last.Seq != 5 || last.Rule != "only" || last.Model != "sim/mine" || last.Ended != "complete" || last.Status != 200 || !last.Stream || last.Bytes == 0 {
		t.Errorf("the last request is %+v", last)
	}
	if !strings.Contains(string(last.Body), "message 4") {
		t.Errorf("its body is %s", last.Body)
	}
	if strings.Contains(body, "canary-secret") || !strings.HasPrefix(last.Header["X-Api-Key"][0], "sha256:") {
		t.Errorf("the credential is in the journal: %s", body)
	}
	if len(s.Requests("")) != 3 || len(s.Requests("other")) != 0 {
		t.Errorf("kept %d requests, want 3", len(s.Requests("")))
	}
	if status, _ := s.send(t, http.MethodPost, "/simulator/reset?script=mine", ""); status != http.StatusNoContent || len(s.Requests("")) != 0 {
		t.Errorf("reset of the script = %d and left %d requests", status, len(s.Requests("")))
	}
	if status, _, body := s.ask(t, p, request(p, "sim/mine", "hi", true)); status != http.StatusOK {
		t.Errorf("after a reset by script it is gone: %d %s", status, body)
	}
	s.Reset()
	if status, _, _ := s.ask(t, p, request(p, "sim/mine", "hi", true)); status != http.StatusNotFound {
		t.Errorf("after a whole reset the script answered with %d, want 404", status)
	}
	for _, path := range []string{"/simulator/requests?limit=x", "/simulator/streams?since=-1", "/simulator/streams?wait=2h"} {
		if status, body := get(t, s, path, nil); status != http.StatusBadRequest {
			t.Errorf("GET %s = %d %s, want 400", path, status, body)
		}
	}
}

// TestStreamsWait checks that a waiting request for the counts is woken by a change.
func TestStreamsWait(t *testing.T) {
	t.Parallel()
	s := start(t, simulator.Config{})
	p := providers()[0]
	s.ask(t, p, request(p, "m", "hello", true))
	now := s.Streams(t.Context(), 0)
	if now.Requests != 1 || now.Complete != 1 || now.Streams != 1 || now.Open != 0 {
		t.Fatalf("counts = %+v, want one complete stream", now)
	}
	woken := make(chan string, 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		_, body := get(t, s, fmt.Sprint("/simulator/streams?wait=30s&since=", now.Version), nil)
		woken <- body
	})
	s.ask(t, p, request(p, "m", "hello", true))
	if body := <-woken; !strings.Contains(body, `"requests":2`) {
		t.Errorf("woken with %s, want the second request counted", body)
	}
	wg.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if got := s.Streams(ctx, 1<<40); got.Version > 1<<40 {
		t.Errorf("after the wait: %+v", got)
	}
}

// TestDoors checks the paths that are not the two that make answers.
func TestDoors(t *testing.T) {
	t.Parallel()
	s := start(t, simulator.Config{MaxBody: 10_000}, "small", "models: [gpt-sim, sim/small]\nrules: [{then: [{say: a}]}]")
	anthropicAPI := map[string]string{"X-Api-Key": "k", "Anthropic-Version": "2023-06-01"}
	openaiAPI := map[string]string{"Authorization": "Bearer k"}
	cases := []struct {
		path   string
		header map[string]string
		status int
		want   string
	}{
		{"/anthropic/v1/models", anthropicAPI, 200, `{"data":[{"type":"model","id":"sim/builtin","display_name":"Simulated (sim/builtin)","created_at":"2026-01-01T00:00:00Z"}`},
		{"/v1/models", anthropicAPI, 200, `"has_more":false,"first_id":"sim/builtin","last_id":"sim/small"`},
		{"/v1/models", openaiAPI, 200, `{"object":"list","data":[{"id":"sim/builtin","object":"model","created":1767225600,"owned_by":"signalbox"}`},
		{"/openai/v1/models", openaiAPI, 200, `"id":"gpt-sim"`},
		{"/openrouter/api/v1/models", openaiAPI, 200, `{"data":[{"id":"sim/builtin","name":"Simulated (sim/builtin)","created":1767225600,"context_length":200000,"pricing":{"prompt":"0","completion":"0"}}`},
		{"/anthropic/v1/models/sim/builtin", anthropicAPI, 200, `{"type":"model","id":"sim/builtin"`},
		{"/openai/v1/models/sim/none", openaiAPI, 404, `model_not_found`},
		{"/anthropic/v1/models", nil, 401, `authentication_error`},
		{"/openai/v1/models", nil, 401, `"type": "invalid_request_error"`},
		{"/anthropic/v1/nothing", anthropicAPI, 404, `not_found_error`},
		{"/openai/v1/nothing", openaiAPI, 404, `"message": "Nothing here: GET /openai/v1/nothing"`},
		{"/openrouter/api/v1/nothing", openaiAPI, 404, `"code":404`},
		{"/anthropic/v1/messages", anthropicAPI, 404, `not_found_error`},
	}
	for _, c := range cases {
		if status, body := get(t, s, c.path, c.header); status != c.status || !strings.Contains(body, c.want) {
			t.Errorf("GET %s = %d %s, want %d with %s", c.path, status, body, c.status, c.want)
		}
	}
	p := providers()[0]
	p.path = "/anthropic/v1/messages/count_tokens"
	if status, _, body := s.ask(t, p, `{"model":"m","system":"12345678","messages":[{"role":"user","content":"123456789"}]}`); status != 200 || body != `{"input_tokens":5}` {
		t.Errorf("count_tokens = %d %s, want 5 tokens", status, body)
	}
	p = providers()[0]
	if status, _, body := s.ask(t, p, request(p, "m", strings.Repeat("x", 10_000), true)); status != http.StatusRequestEntityTooLarge || !strings.Contains(body, "request_too_large") {
		t.Errorf("a long body = %d %s, want 413", status, body)
	}
	p.header = openaiAPI
	if status, _, body := s.ask(t, p, request(p, "m", "hi", true)); status != 400 || !strings.Contains(body, "anthropic-version") {
		t.Errorf("without a version = %d %s, want 400", status, body)
	}
	p.header = map[string]string{"Authorization": "Bearer bad-1", "Anthropic-Version": "2023-06-01"}
	if status, _, body := s.ask(t, p, request(p, "m", "hi", true)); status != 401 {
		t.Errorf("with a bad key = %d %s, want 401", status, body)
	}
	for _, path := range []string{"/v1/messages", "/v1/chat/completions"} {
		p := provider{"anthropic", path, map[string]string{"Authorization": "Bearer k", "Anthropic-Version": "2023-06-01"}}
		if path != "/v1/messages" {
			p.name = "openai"
		}
		if status, _, body := s.ask(t, p, request(p, "m", "hello", false)); status != 200 {
			t.Errorf("POST %s = %d %s, want 200", path, status, body)
		}
	}
}

// TestCaching checks that usage tells of the cache in both dialects.
func TestCaching(t *testing.T) {
	t.Parallel()
	s := start(t, simulator.Config{})
	anthropicAPI, openaiAPI := providers()[0], providers()[1]
	long := strings.Repeat("word ", 1000) // 1,250 tokens
	marked := `{"model":"m","max_tokens":100,"system":[{"type":"text","text":"` + long + `","cache_control":{"type":"ephemeral"}}],"messages":[{"role":"user","content":"hello"}]}`
	for i, want := range []string{`"cache_creation_input_tokens":1250,"cache_read_input_tokens":0`, `"cache_creation_input_tokens":0,"cache_read_input_tokens":1250`} {
		if _, _, body := s.ask(t, anthropicAPI, marked); !strings.Contains(body, want) {
			t.Errorf("request %d: %s, want %s", i, body, want)
		}
	}
	plain := `{"model":"m","messages":[{"role":"system","content":"` + long + `"},{"role":"user","content":"hello"}]}`
	for i, want := range []string{`"cached_tokens": 0`, `"cached_tokens": 1152`} {
		if _, _, body := s.ask(t, openaiAPI, plain); !strings.Contains(body, want) {
			t.Errorf("request %d: %s, want %s", i, body, want)
		}
	}
}

// TestConcurrency lets many clients talk at once, some of which leave, while
// scripts are replaced; each gets its own script's answer.
func TestConcurrency(t *testing.T) {
	t.Parallel()
	s := start(t, simulator.Config{Requests: 20})
	var wg sync.WaitGroup
	for n := range 12 {
		wg.Go(func() {
			name := fmt.Sprint("script-", n)
			for i := range 8 {
				word := fmt.Sprint("word-", n, "-", i)
				if err := s.PutScript(name, "rules: [{then: [{fail: {kind: overloaded, times: 1}}, {say: "+word+"}, {say: '{{story 200}}'}]}]"); err != nil {
					t.Error(err)
					return
				}
				p := providers()[n%3]
				body := request(p, "sim/"+name, "hi", true)
				if status, _, _ := s.ask(t, p, body); status < 500 {
					t.Errorf("%s: first status %d, want an overload", name, status)
				}
				if i%3 == 0 {
					ctx, cancel := context.WithCancel(t.Context())
					resp := s.post(ctx, t, p, body)
					cancel()
					_ = resp.Body.Close()
					continue
				}
				status, _, got := s.ask(t, p, body)
				if status != http.StatusOK || !strings.Contains(got, `"`+word+`"`) || strings.Count(got, `"word-`) != 1 {
					t.Errorf("%s: %d %s, want %s", name, status, got, word)
				}
			}
		})
	}
	wg.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for {
		c := s.Streams(ctx, 0)
		if c.Open == 0 {
			break
		}
		if s.Streams(ctx, c.Version); ctx.Err() != nil {
			t.Fatalf("answers stay open: %+v", c)
		}
	}
}
