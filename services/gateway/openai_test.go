package gateway_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	runv1 "signalbox.dev/proto/signalbox/run/v1"

	"signalbox.dev/services/gateway"
)

// eventChunks splits a stream without its first comment.
func eventChunks(t *testing.T, s *stream) []string {
	t.Helper()
	if err := s.ended(t); err != nil {
		t.Fatalf("the stream ends with %v:\n%s", err, s.text())
	}
	return strings.SplitAfter(strings.TrimSuffix(chunkText(t, s), "\n\n"), "\n\n")
}

func TestResponsesResumeAtEveryEvent(t *testing.T) {
	t.Parallel()
	withBothTransports(t, testResponsesResumeAtEveryEvent)
}

func testResponsesResumeAtEveryEvent(t *testing.T, w *world) {
	a, b := w.gateway(t), w.gateway(t, func(c *gateway.Config) { c.Feed.RingFrames = 3 })
	sent := a.open(t, w.owner, "POST", "/v1/responses", `{"model":"mine","input":"hi","stream":true,"background":true,"top_p":1,"temp":1}`)
	run := w.runner.latest(t, sent.header.Get("X-Session-Id"), 1)
	run.begin(t)
	run.say(t, "a", "b", "c")
	for range 7 {
		sent.next(t)
	}
	path := "/v1/responses/resp_" + strings.ReplaceAll(run.GetId(), "-", "")
	if got := call[object](t, b, w.owner, "GET", path, "", http.StatusOK); got["status"] != "in_progress" {
		t.Errorf("the response is %v, want it in progress", got)
	}
	watching := b.open(t, w.owner, "GET", path+"?stream=true", "")
	for range 7 {
		watching.next(t)
	}
	run.say(t, "d")
	run.step(t, "abcd")
	run.end(t)
	chunks := eventChunks(t, sent)
	if diff := cmp.Diff(chunks, eventChunks(t, watching)); diff != "" {
		t.Errorf("another viewer gets other chunks (-sender +viewer):\n%s", diff)
	}
	if first, last := chunks[0], chunks[len(chunks)-1]; !strings.HasPrefix(first, "event: response.created\ndata: {\"type\":\"response.created\",\"sequence_number\":0,") || !strings.Contains(last, `"output":[{"type":"message"`) {
		t.Errorf("the response is %s … %s", first, last)
	}
	for k := range chunks {
		for name, in := range map[string]*instance{"same gateway": a, "other gateway": b} {
			s := in.open(t, w.owner, "GET", fmt.Sprintf("%s?stream=true&starting_after=%d", path, k-1), "")
			if diff := cmp.Diff(chunks[k:], eventChunks(t, s)); diff != "" {
				t.Errorf("%s, after event %d (-want +got):\n%s", name, k-1, diff)
			}
		}
	}
	for name, in := range map[string]*instance{"same gateway": a, "other gateway": b} {
		got := call[object](t, in, w.owner, "GET", path, "", http.StatusOK)
		if got["status"] != "completed" || !strings.Contains(fmt.Sprint(got["output"]), "text:abcd") {
			t.Errorf("%s: the response is %v", name, got)
		}
	}
	stranger := w.join(t, id.New[id.Workspace](), identity.Owner)
	for name, tt := range map[string]struct {
		method, path, body string
		who                person
		want               int
	}{
		"another workspace reads":     {"GET", path, "", stranger, http.StatusNotFound},
		"another workspace watches":   {"GET", path + "?stream=true", "", stranger, http.StatusNotFound},
		"another workspace cancels":   {"POST", path + "/cancel", "", stranger, http.StatusNotFound},
		"another workspace continues": {"POST", "/v1/responses", `{"input":"x","previous_response_id":"` + strings.TrimPrefix(path, "/v1/responses/") + `"}`, stranger, http.StatusNotFound},
		"a part that is not there":    {"GET", path + "_2", "", w.owner, http.StatusNotFound},
		"no id":                       {"GET", "/v1/responses/resp_1", "", w.owner, http.StatusNotFound},
		"a viewer creates":            {"POST", "/v1/responses", `{"model":"mine","input":"hi"}`, w.join(t, w.workspace, identity.Viewer), http.StatusForbidden},
		"no token":                    {"GET", path, "", person{}, http.StatusUnauthorized},
		"an unknown path":             {"DELETE", "/v1/files", "", w.owner, http.StatusNotFound},
		"no input":                    {"POST", "/v1/responses", `{"model":"mine"}`, w.owner, http.StatusBadRequest},
		"a wrong type":                {"POST", "/v1/responses", `{"model":7}`, w.owner, http.StatusBadRequest},
		"an unknown tool":             {"POST", "/v1/responses", `{"model":"mine","input":"hi","tools":[{"type":"web_search"}]}`, w.owner, http.StatusBadRequest},
	} {
		got := call[object](t, a, tt.who, tt.method, tt.path, tt.body, tt.want)
		problem, _ := got["error"].(object)
		if problem["message"] == "" || problem["type"] == nil {
			t.Errorf("%s: %v, want an error in OpenAI's form", name, got)
		}
	}
}

// A call of a client's tool ends the completion, and its result begins the next one.
func TestChatCompletionClientTool(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	ask := `{"role":"system","content":"Be brief."},{"role":"user","content":"hello"},{"role":"assistant","content":"Hi."},{"role":"user","content":"where am I?"}`
	tools := `"tools":[{"type":"function","function":{"name":"locate","parameters":{"type":"object"}}}]`
	sent := in.open(t, w.owner, "POST", "/v1/chat/completions", `{"model":"mine","stream":true,"messages":[`+ask+`],`+tools+`}`)
	session := sent.header.Get("X-Session-Id")
	run := w.runner.latest(t, session, 1)
	if got := w.runner.imported(session); got != "Be brief. user \"hello\" assistant [{\"type\":\"text\",\"text\":\"Hi.\"}] archived" {
		t.Errorf("the session is created with %s", got)
	}
	run.begin(t)
	run.publish(t, run.event(&runv1.Event{Body: &runv1.Event_ToolClientRequest{ToolClientRequest: &runv1.ToolClientRequest{ToolCallId: "c1", ToolName: "locate", ArgsJson: `{}`}}}))
	parked := run.event(&runv1.Event{Body: &runv1.Event_Waiting{Waiting: &runv1.Waiting{ForClient: true}}})
	run.set(func() { run.State, run.LastEvent = agentv1.RunState_RUN_STATE_WAITING, new(parked.GetNumber()) })
	run.publish(t, parked)
	ref := "call_" + strings.ReplaceAll(run.GetId(), "-", "") + "_2-0_c1"
	if err := sent.ended(t); err != nil || !strings.Contains(sent.text(), `"id":"`+ref+`"`) || !strings.Contains(sent.text(), `"finish_reason":"tool_calls"`) || !strings.HasSuffix(sent.text(), "data: [DONE]\n\n") {
		t.Fatalf("stream = %v\n%s\nwant one that ends at the call", err, sent.text())
	}
	results := func(refs ...string) string {
		body := `{"model":"mine","stream":true,"messages":[` + ask + `,{"role":"assistant","tool_calls":[`
		for i, r := range refs {
			body += strings.Repeat(",", min(i, 1)) + `{"id":"` + r + `","type":"function","function":{"name":"locate","arguments":"{}"}}`
		}
		body += `]}`
		for _, r := range refs {
			body += `,{"role":"tool","tool_call_id":"` + r + `","content":"Paris"}`
		}
		return body + `]}`
	}
	stranger := w.join(t, id.New[id.Workspace](), identity.Owner)
	for name, tt := range map[string]struct {
		who  person
		body string
		want int
	}{
		"another workspace":         {stranger, results(ref), http.StatusNotFound},
		"an unknown call":           {w.owner, results("call_1"), http.StatusBadRequest},
		"another answer's call too": {w.owner, results(ref, strings.Replace(ref, "_2-", "_3-", 1)), http.StatusBadRequest},
	} {
		if got := in.send(t, in.request(t, tt.who, "POST", "/v1/chat/completions", tt.body, nil)); got.status != tt.want {
			t.Errorf("%s: %d %s, want %d", name, got.status, got.body, tt.want)
		}
	}
	run.set(func() { run.State = agentv1.RunState_RUN_STATE_RUNNING })
	on := in.open(t, w.owner, "POST", "/v1/chat/completions", results(ref))
	run.publish(t, run.event(&runv1.Event{Body: &runv1.Event_ToolResult{ToolResult: &runv1.ToolResult{ToolCallId: "c1", ToolName: "locate", ResultJson: `{"output":"Paris"}`}}}))
	run.say(t, "In Paris.")
	run.step(t, "In Paris.")
	run.end(t)
	if err := on.ended(t); err != nil || strings.Contains(on.text(), "tool_calls") || !strings.Contains(on.text(), `"content":"In Paris."`) || !strings.Contains(on.text(), `"finish_reason":"stop"`) {
		t.Errorf("the continuation = %v\n%s", err, on.text())
	}
	if got := w.runner.sent(); got != `c1 "Paris" `+run.GetId()+" step 0" {
		t.Errorf("the results sent are %q", got)
	}
}

// A client that leaves stops the run, whether it streams or waits, but not one in the background.
func TestOpenAIStopsWhenTheClientLeaves(t *testing.T) {
	t.Parallel()
	withBothTransports(t, func(t *testing.T, w *world) {
		in := w.gateway(t)
		for _, path := range []string{"/v1/chat/completions", "/v1/responses"} {
			body := `{"model":"mine","input":"hi","messages":[{"role":"user","content":"hi"}],"stream":true}`
			s := in.open(t, w.owner, "POST", path, body)
			run := w.runner.latest(t, s.header.Get("X-Session-Id"), 1)
			run.begin(t)
			s.next(t)
			s.cancel()
			eventually(t, "the run is stopped", func() bool { return w.runner.wasStopped(run.GetId()) })
		}
		ctx, cancel := context.WithCancel(t.Context())
		waiting := in.request(t, w.owner, "POST", "/v1/chat/completions", `{"model":"mine","messages":[{"role":"user","content":"hi"}]}`, nil).WithContext(ctx)
		left := make(chan error, 1)
		go func() {
			res, err := in.http.Do(waiting)
			if err == nil {
				err = res.Body.Close()
			}
			left <- err
		}()
		var waited string
		eventually(t, "the run is submitted", func() bool { waited = w.runner.newest(); return waited != "" && !w.runner.wasStopped(waited) })
		cancel()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("the request that waits ends with %v", err)
		}
		eventually(t, "the run is stopped", func() bool { return w.runner.wasStopped(waited) })
		kept := in.open(t, w.owner, "POST", "/v1/responses", `{"model":"mine","input":"hi","stream":true,"background":true}`)
		run := w.runner.latest(t, kept.header.Get("X-Session-Id"), 1)
		run.begin(t)
		kept.next(t)
		kept.cancel()
		run.say(t, "still there")
		run.step(t, "still there")
		run.end(t)
		got := in.open(t, w.owner, "GET", "/v1/responses/resp_"+strings.ReplaceAll(run.GetId(), "-", "")+"?stream=true", "")
		if chunks := eventChunks(t, got); !strings.Contains(chunks[len(chunks)-1], "still there") {
			t.Errorf("the response in the background ends with %s", chunks[len(chunks)-1])
		}
		if w.runner.wasStopped(run.GetId()) {
			t.Error("a response in the background was stopped")
		}
	})
}

// A gateway that drains stops the runs whose answers nobody can ask for again, so that a client that
// repeats its request does not have the agent work twice.
func TestOpenAIWhenTheGatewayDrains(t *testing.T) {
	t.Parallel()
	withBothTransports(t, func(t *testing.T, w *world) {
		ask := `{"model":"mine","messages":[{"role":"user","content":"hi"}]}`
		in := w.gateway(t)
		stream := in.open(t, w.owner, "POST", "/v1/chat/completions", strings.Replace(ask, `{`, `{"stream":true,`, 1))
		streamed := w.runner.latest(t, stream.header.Get("X-Session-Id"), 1)
		streamed.begin(t)
		stream.next(t)
		// waitFor sends a request that waits for its answer.
		waitFor := func(in *instance, key string) (run string, got chan answer) {
			before, got := w.runner.newest(), make(chan answer, 1)
			req := in.request(t, w.owner, "POST", "/v1/chat/completions", ask, func(r *http.Request) { r.Header.Set("Idempotency-Key", key) })
			go func() { got <- in.send(t, req) }()
			eventually(t, "the run is submitted", func() bool { run = w.runner.newest(); return run != before })
			return run, got
		}
		once, gotOnce := waitFor(in, "")
		again, gotAgain := waitFor(in, "k")
		in.stop()
		if err := stream.ended(t); err == nil {
			t.Error("the stream ends cleanly, want it cut")
		}
		if got := <-gotOnce; got.status != http.StatusServiceUnavailable || got.header.Get("X-Should-Retry") != "false" || !strings.Contains(got.body, `"draining"`) {
			t.Errorf("without a key: %d %v %s, want 503 that is not to be repeated", got.status, got.header, got.body)
		}
		if got := <-gotAgain; got.status != http.StatusServiceUnavailable || got.header.Get("X-Should-Retry") != "" || got.header.Get("Retry-After") == "" {
			t.Errorf("with a key: %d %v %s, want 503 that is to be repeated", got.status, got.header, got.body)
		}
		for name, tt := range map[string]struct {
			run  string
			want bool
		}{"the stream's": {streamed.GetId(), true}, "that without a key": {once, true}, "that with a key": {again, false}} {
			if w.runner.wasStopped(tt.run) != tt.want {
				t.Errorf("the run of %s is stopped: %t, want %t", name, !tt.want, tt.want)
			}
		}

		// An answer that is there before the end of the drain window arrives.
		slow := w.gateway(t, func(c *gateway.Config) { c.DrainWindow, c.DrainLimit = patience, 2*patience })
		short, got := waitFor(slow, "")
		go slow.stop()
		eventually(t, "the gateway drains", func() bool {
			conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimPrefix(slow.url, "http://"))
			if err == nil {
				conn.Close()
			}
			return err != nil
		})
		w.runner.run(short).answer(t, "Hello.")
		if got := <-got; got.status != http.StatusOK || !strings.Contains(got.body, "Hello.") {
			t.Errorf("an answer during the drain is %d %s, want it whole", got.status, got.body)
		}
	})
}

// A developer's messages stay in the conversation, while instructions are those of one response.
func TestResponsesDeveloperMessages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	w.runner.script = func(r *fakeRun) { r.answer(t, "a") }
	developer := func(text string) string {
		return `[{"role":"developer","content":"` + text + `"},{"role":"user","content":"hi"}]`
	}
	var session, response string
	for _, tt := range []struct{ body, want string }{
		{`{"model":"mine","instructions":"Be brief.","input":` + developer("Rhyme.") + `}`, "Be brief.\n\n<developer_messages>\nRhyme.\n</developer_messages>"},
		{`{"previous_response_id":"RESPONSE","input":"hi"}`, "<developer_messages>\nRhyme.\n</developer_messages>"},
		{`{"previous_response_id":"RESPONSE","input":"hi"}`, "SAME"},
		{`{"previous_response_id":"RESPONSE","instructions":"Be long.","input":` + developer("Sing.") + `}`, "Be long.\n\n<developer_messages>\nRhyme.\n\nSing.\n</developer_messages>"},
		{`{"conversation":"SESSION","input":"hi"}`, "SAME"},
		{`{"conversation":"SESSION","instructions":"Be brief.","input":"hi"}`, "REFUSED"},
		{`{"conversation":"SESSION","input":` + developer("Shout.") + `}`, "REFUSED"},
		{`{"previous_response_id":"RESPONSE","input":[{"role":"developer","content":[{"type":"input_image","image_url":"data:image/png;base64,aGk="}]},{"role":"user","content":"hi"}]}`, "REFUSED"},
	} {
		body := strings.NewReplacer("RESPONSE", response, "SESSION", session).Replace(tt.body)
		got := in.send(t, in.request(t, w.owner, "POST", "/v1/responses", body, nil))
		if tt.want == "REFUSED" {
			if got.status != http.StatusBadRequest {
				t.Errorf("%s = %d %s, want 400", tt.body, got.status, got.body)
			}
			continue
		}
		var made struct{ ID string }
		if err := json.Unmarshal([]byte(got.body), &made); err != nil || got.status != http.StatusOK {
			t.Fatalf("%s = %d %s %v", tt.body, got.status, got.body, err)
		}
		before := session
		session, response = got.header.Get("X-Session-Id"), made.ID
		details, _ := call[object](t, in, w.owner, "GET", "/api/sessions/"+session, "", http.StatusOK)["session"].(object)
		prompt := details["system_prompt"]
		switch {
		case tt.want == "SAME" && session != before:
			t.Errorf("%s goes to another session", tt.body)
		case tt.want != "SAME" && prompt != tt.want:
			t.Errorf("%s: the session's instructions are %q, want %q", tt.body, prompt, tt.want)
		case tt.want != "SAME" && session == before:
			t.Errorf("%s changes the instructions of a session", tt.body)
		}
	}
}

// Without its log a response can still be read, but not be resumed after an event.
func TestResponsesOfALostLog(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	sent := in.open(t, w.owner, "POST", "/v1/responses", `{"model":"mine","input":"hi","stream":true}`)
	session := sent.header.Get("X-Session-Id")
	run := w.runner.latest(t, session, 1)
	run.begin(t)
	run.say(t, "a", "b")
	run.step(t, "ab")
	run.end(t)
	eventChunks(t, sent)
	w.wipe(t)
	w.runner.forget(session)
	late := w.gateway(t)
	path := "/v1/responses/resp_" + strings.ReplaceAll(run.GetId(), "-", "")
	got := call[object](t, late, w.owner, "GET", path, "", http.StatusOK)
	if created, _ := got["created_at"].(float64); got["status"] != "completed" || !strings.Contains(fmt.Sprint(got["output"]), "text:ab") || created == 0 {
		t.Errorf("the response is %v", got)
	}
	all := eventChunks(t, late.open(t, w.owner, "GET", path+"?stream=true", ""))
	if !strings.Contains(all[len(all)-1], `"status":"completed"`) {
		t.Errorf("the stream ends with %s", all[len(all)-1])
	}
	second := call[object](t, late, w.owner, "GET", path+"_2", "", http.StatusGone)
	if problem, _ := second["error"].(object); !strings.Contains(fmt.Sprint(problem["message"]), "GET /api/sessions/"+session) {
		t.Errorf("what follows results of tool calls: %v", second)
	}
	gone := call[object](t, late, w.owner, "GET", path+"?stream=true&starting_after=2", "", http.StatusGone)
	if problem, _ := gone["error"].(object); problem["code"] != "stream_gone" {
		t.Errorf("after an event: %v", gone)
	}
}
