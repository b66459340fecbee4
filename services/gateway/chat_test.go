package gateway_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox.dev/pkg/identity"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	runv1 "signalbox.dev/proto/signalbox/run/v1"

	"signalbox.dev/services/gateway"
)

// userMessage is the body that useChat sends for a message of the user.
func userMessage(chat, message, text string) string {
	return fmt.Sprintf(`{"id":%q,"messages":[{"id":"x","role":"user","parts":[]},{"id":%q,"role":"user","parts":[{"type":"text","text":%q}]}],"trigger":"submit-message"}`, chat, message, text)
}

func resumeOf(chat string) string { return "/api/chat/" + chat + "/stream" }

// chunkText returns a stream's bytes after the first comment.
func chunkText(t *testing.T, s *stream) string {
	t.Helper()
	rest, ok := strings.CutPrefix(s.text(), ":\n")
	if !ok {
		t.Errorf("the stream begins with %q", s.text())
	}
	return rest
}

func TestChatStreamsByteExact(t *testing.T) {
	t.Parallel()
	withBothTransports(t, testChatStreamsByteExact)
}

func testChatStreamsByteExact(t *testing.T, w *world) {
	in := w.gateway(t, func(c *gateway.Config) { c.CORSOrigins = []string{"http://page.example"} })
	w.runner.script = func(r *fakeRun) { r.answer(t, "Hel", "lo\nyou") }
	page := func(r *http.Request) {
		r.Header.Set("Origin", "http://page.example")
		r.Header.Set("Content-Type", "text/plain;charset=UTF-8") // as WorkflowChatTransport does
	}
	s := in.open(t, w.owner, "POST", "/api/chat", userMessage("chat~1", "m1", "hi"), page)
	if err := s.ended(t); err != nil {
		t.Fatalf("stream ended with %v, want a clean end", err)
	}
	session := s.header.Get("X-Session-Id")
	run := w.runner.latest(t, session, 1)
	want := strings.NewReplacer("RUN", run.GetId(), "MESSAGE", run.message.GetId()).Replace(`data: {"type":"start","messageId":"RUN","messageMetadata":{"runId":"RUN"}}

data: {"type":"data-user-message","data":{"messageId":"MESSAGE","content":"hi","createdBy":"u"},"transient":true}

data: {"type":"message-metadata","messageMetadata":{"model":"simulated","provider":"anthropic"}}

data: {"type":"start-step"}

data: {"type":"text-start","id":"part-1"}

data: {"type":"text-delta","id":"part-1","delta":"Hel"}

data: {"type":"text-delta","id":"part-1","delta":"lo\nyou"}

data: {"type":"text-end","id":"part-1"}

data: {"type":"finish-step"}

data: {"type":"finish","finishReason":"stop","messageMetadata":{"usage":{"inputTokens":10,"outputTokens":5,"totalTokens":15},"steps":1,"finishReason":"stop"}}

data: [DONE]

`)
	if diff := cmp.Diff(want, chunkText(t, s)); diff != "" {
		t.Errorf("stream differs (-want +got):\n%s", diff)
	}
	for k, v := range map[string]string{
		"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "X-Accel-Buffering": "no", "X-Vercel-Ai-Ui-Message-Stream": "v1",
		"X-Workflow-Run-Id": "run_" + run.GetId(), "X-Run-Id": run.GetId(), "Access-Control-Allow-Origin": "http://page.example",
	} {
		if got := s.header.Get(k); got != v {
			t.Errorf("header %s = %q, want %q", k, got, v)
		}
	}
	for _, name := range []string{"X-Workflow-Run-Id", "X-Workflow-Stream-Tail-Index", "X-Session-Id"} {
		if !strings.Contains(s.header.Get("Access-Control-Expose-Headers"), name) {
			t.Errorf("pages may not read %s", name)
		}
	}
	// The same message again is the same run.
	again := in.open(t, w.owner, "POST", "/api/chat", userMessage("chat~1", "m1", "hi"))
	if err := again.ended(t); err != nil || chunkText(t, again) != want {
		t.Errorf("the message sent again = %v\n%s\nwant the same run", err, again.text())
	}
	// By its id, the session is the same chat.
	if err := in.open(t, w.owner, "POST", "/api/chat", userMessage(session, "m2", "more")).ended(t); err != nil {
		t.Fatal(err)
	}
	w.runner.latest(t, session, 2)
	// Nothing runs.
	for _, chat := range []string{"chat~1", session, "new", noone} {
		if got := in.send(t, in.request(t, w.owner, "GET", resumeOf(chat), "", nil)); got.status != http.StatusNoContent {
			t.Errorf("stream of %s = %d %s, want 204", chat, got.status, got.body)
		}
	}
	// Another member's chat of this name is another one.
	other := in.open(t, w.join(t, w.workspace, identity.Editor), "POST", "/api/chat?ui=7", userMessage("chat~1", "m1", "hi"))
	if err := other.ended(t); err != nil {
		t.Fatal(err)
	}
}

func TestChatResumesAtEveryChunk(t *testing.T) {
	t.Parallel()
	withBothTransports(t, testChatResumesAtEveryChunk)
}

func testChatResumesAtEveryChunk(t *testing.T, w *world) {
	a, b := w.gateway(t), w.gateway(t, func(c *gateway.Config) { c.Feed.RingFrames = 3 })
	sent := a.open(t, w.owner, "POST", "/api/chat?ui=7", userMessage("c", "m1", "hi"))
	run := w.runner.latest(t, sent.header.Get("X-Session-Id"), 1)
	run.begin(t)
	run.say(t, "a", "b", "c")
	for range 6 {
		sent.next(t)
	}
	// A replay begins with what has been said and goes on with what follows.
	replay := b.open(t, w.owner, "GET", resumeOf("c")+"?ui=7", "")
	for range 6 {
		replay.next(t)
	}
	tail := b.open(t, w.owner, "GET", resumeOf("c")+"?ui=7&startIndex=-2", "")
	at, err := strconv.Atoi(tail.header.Get("X-Workflow-Stream-Tail-Index"))
	if err != nil || at < 5 || at > 7 {
		t.Errorf("tail index = %q, want 5 to 7", tail.header.Get("X-Workflow-Stream-Tail-Index"))
	}
	run.say(t, "d")
	run.step(t, "abcd")
	run.end(t)
	for name, s := range map[string]*stream{"sender": sent, "replay": replay, "tail": tail} {
		if err := s.ended(t); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	whole := chunkText(t, sent)
	if diff := cmp.Diff(whole, chunkText(t, replay)); diff != "" {
		t.Errorf("the replay differs (-sender +replay):\n%s", diff)
	}
	chunks := strings.SplitAfter(strings.TrimSuffix(whole, "\n\n"), "\n\n")
	if got, want := chunkText(t, tail), strings.Join(chunks[at-1:], "")+"\n\n"; got != want {
		t.Errorf("tail from %d = %s, want %s", at-1, got, want)
	}
	for k := range chunks {
		for name, in := range map[string]*instance{"same gateway": a, "other gateway": b} {
			s := in.open(t, w.owner, "GET", fmt.Sprintf("%s?ui=7&startIndex=%d", resumeOf(sent.header.Get("X-Workflow-Run-Id")), k), "")
			if err := s.ended(t); err != nil {
				t.Fatal(err)
			}
			if got, want := chunkText(t, s), strings.Join(chunks[k:], "")+"\n\n"; got != want {
				t.Errorf("%s from chunk %d = %s, want %s", name, k, got, want)
			}
		}
	}
}

func TestChatApproval(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	sent := in.open(t, w.owner, "POST", "/api/chat?ui=6", userMessage("c", "m1", "send"))
	session := sent.header.Get("X-Session-Id")
	run := w.runner.latest(t, session, 1)
	run.begin(t)
	run.publish(t, run.event(&runv1.Event{Body: &runv1.Event_ToolCallComplete{ToolCallComplete: &runv1.ToolCallComplete{ToolCallId: "c1", ToolName: "send", ArgsJson: `{}`}}}))
	until := timestamppb.New(time.UnixMilli(1700000000123))
	run.publish(t, run.event(&runv1.Event{Body: &runv1.Event_ToolApprovalRequest{ToolApprovalRequest: &runv1.ToolApprovalRequest{ToolCallId: "c1", ToolName: "send", ArgsJson: `{}`, ExpiresAt: until}}}))
	run.set(func() { run.asked = waitingCall(session); run.asked.ExpiresAt = until })
	parked := run.event(&runv1.Event{Body: &runv1.Event_Waiting{Waiting: &runv1.Waiting{ForPerson: true}}})
	run.set(func() { run.State, run.LastEvent = agentv1.RunState_RUN_STATE_WAITING, new(parked.GetNumber()) })
	run.publish(t, parked)
	if err := sent.ended(t); err != nil || !strings.Contains(sent.text(), `"approvalId":"c1~1700000000123"`) || !strings.HasSuffix(sent.text(), "data: {\"type\":\"finish\",\"finishReason\":\"tool-calls\"}\n\ndata: [DONE]\n\n") {
		t.Fatalf("stream = %v\n%s\nwant one that ends at the question", err, sent.text())
	}
	// A client that comes now sees the question.
	late := in.open(t, w.owner, "GET", resumeOf("c")+"?ui=6", "")
	if err := late.ended(t); err != nil || chunkText(t, late) != chunkText(t, sent) {
		t.Errorf("a late viewer gets %v\n%s\nwant\n%s", err, late.text(), sent.text())
	}
	about := func(id, answer string) string {
		return fmt.Sprintf(`{"id":"c","messageId":%[1]q,"messages":[{"id":%[1]q,"role":"assistant","parts":[{"type":"step-start"},
			{"type":"tool-send","toolCallId":"c1","state":"approval-responded","input":{"forged":true},"approval":{"id":%q%s}}]}]}`, run.GetId(), id, answer)
	}
	body := func(answer string) string { return about("c1~1700000000123", answer) }
	key, _ := call[object](t, in, w.owner, "POST", "/api/keys", `{"name":"k","role":"editor"}`, http.StatusCreated)["secret"].(string)
	byKey := person{token: key, workspace: w.workspace}
	for name, tt := range map[string]struct {
		who    person
		url    string
		answer string
		want   int
		says   string
	}{
		"a program":       {byKey, "/api/chat?ui=6", `,"approved":true`, http.StatusForbidden, "PERSON_NEEDED"},
		"version 5":       {w.owner, "/api/chat", `,"approved":true`, http.StatusBadRequest, "?ui=7"},
		"no answer":       {w.owner, "/api/chat?ui=6", ``, http.StatusBadRequest, "approval.approved"},
		"an other's chat": {w.join(t, w.workspace, identity.Editor), "/api/chat?ui=6", `,"approved":true`, http.StatusNotFound, ""},
	} {
		if got := in.send(t, in.request(t, tt.who, "POST", tt.url, body(tt.answer), nil)); got.status != tt.want || !strings.Contains(got.body, tt.says) {
			t.Errorf("%s: %d %s, want %d with %q", name, got.status, got.body, tt.want, tt.says)
		}
	}
	// An old tab answers an earlier question about a call with this id.
	for _, earlier := range []string{"c1~1600000000000", "c1", "c1~1700000000123~outcome"} {
		if got := in.send(t, in.request(t, w.owner, "POST", "/api/chat?ui=6", about(earlier, `,"approved":true,"reason":"repeat"`), nil)); got.status != http.StatusConflict || !strings.Contains(got.body, "APPROVAL_CHANGED") {
			t.Errorf("the answer to the question %s = %d %s, want 409", earlier, got.status, got.body)
		}
	}
	run.set(func() { run.State = agentv1.RunState_RUN_STATE_RUNNING }) // as Decide does
	on := in.open(t, w.owner, "POST", "/api/chat?ui=6", body(`,"approved":true,"reason":"ok"`))
	run.publish(t, run.event(&runv1.Event{Body: &runv1.Event_ToolApprovalResponse{ToolApprovalResponse: &runv1.ToolApprovalResponse{ToolCallId: "c1", Decision: "approved"}}}))
	run.publish(t, run.event(&runv1.Event{Body: &runv1.Event_ToolResult{ToolResult: &runv1.ToolResult{ToolCallId: "c1", ToolName: "send", ResultJson: `{"ok":1}`}}}))
	run.step(t, "")
	run.end(t)
	if err := on.ended(t); err != nil {
		t.Fatal(err)
	}
	want := strings.ReplaceAll(`data: {"type":"start","messageId":"RUN"}

data: {"type":"tool-output-available","toolCallId":"c1","output":{"ok":1}}

data: {"type":"start-step"}

data: {"type":"finish-step"}

data: {"type":"finish","finishReason":"stop","messageMetadata":{"usage":{"inputTokens":10,"outputTokens":5,"totalTokens":15},"steps":1,"finishReason":"stop"}}

data: [DONE]

`, "RUN", run.GetId())
	if diff := cmp.Diff(want, chunkText(t, on)); diff != "" {
		t.Errorf("the continuation differs (-want +got):\n%s", diff)
	}
	if got := on.header.Get("X-Workflow-Run-Id"); got != "run_"+run.GetId()+".c1" {
		t.Errorf("X-Workflow-Run-Id = %q", got)
	}
	chunks := strings.SplitAfter(strings.TrimSuffix(want, "\n\n"), "\n\n")
	for k := range chunks {
		s := in.open(t, w.owner, "GET", fmt.Sprintf("%s?ui=6&startIndex=%d", resumeOf(on.header.Get("X-Workflow-Run-Id")), k), "")
		if err := s.ended(t); err != nil {
			t.Fatal(err)
		}
		if got, want := chunkText(t, s), strings.Join(chunks[k:], "")+"\n\n"; got != want {
			t.Errorf("the continuation from chunk %d = %s, want %s", k, got, want)
		}
	}
}

// The question whether a call took effect has choices of its own: neither dialect takes an approval
// or a refusal for one of them.
func TestOutcomeQuestion(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	ask := func(session string) *fakeRun {
		run := w.runner.latest(t, session, 1)
		run.begin(t)
		waitForAnswer(t, run, &runv1.ToolApprovalRequest{ToolCallId: "c1", ToolName: "send", ArgsJson: `{}`, OutcomeUnknown: true},
			&agentv1.Approval{Question: agentv1.Question_QUESTION_OUTCOME})
		return run
	}
	decision := func(run *fakeRun) (d agentv1.Decision) {
		run.set(func() { d = run.question().GetDecision() })
		return d
	}
	chat := in.open(t, w.owner, "POST", "/api/chat?ui=7", userMessage("c", "m1", "send"))
	run := ask(chat.header.Get("X-Session-Id"))
	if err := chat.ended(t); err != nil || !strings.Contains(chat.text(), `"approvalDescriptor":{"question":"outcome","choices":["happened","repeat"]}`) {
		t.Errorf("the chat's stream = %v\n%s\nwant one that ends at a question with its choices", err, chat.text())
	}
	byChat := func(answer string) (path, body string) {
		return "/api/chat?ui=7", fmt.Sprintf(`{"id":"c","messages":[{"id":%q,"role":"assistant","parts":[
			{"type":"tool-send","toolCallId":"c1","state":"approval-responded","approval":{"id":"c1~outcome",%s}}]}]}`, run.GetId(), answer)
	}
	agui := in.open(t, w.owner, "POST", "/api/ag-ui", `{"threadId":"t","runId":"r1","messages":[{"id":"a","role":"user","content":"send"}]}`)
	second := ask(agui.header.Get("X-Session-Id"))
	if err := agui.ended(t); err != nil || !strings.Contains(agui.text(), `"properties":{"outcome":{"enum":["happened","repeat"]}`) {
		t.Errorf("the AG-UI stream = %v\n%s\nwant an interrupt with the choices", err, agui.text())
	}
	byAGUI := func(answer string) (path, body string) {
		return "/api/ag-ui", `{"threadId":"t","runId":"r2","messages":[],"resume":[{"interruptId":"c1~outcome",` + answer + `}]}`
	}
	for _, tt := range []struct {
		run     *fakeRun
		send    func(answer string) (path, body string)
		refused []string
		answer  string
		want    agentv1.Decision
	}{
		{run, byChat, []string{`"approved":false`, `"approved":true`, `"approved":false,"reason":"repeat"`, `"approved":true,"reason":"happened"`}, `"approved":false,"reason":"happened"`, agentv1.Decision_DECISION_HAPPENED},
		{second, byAGUI, []string{`"status":"cancelled"`, `"status":"resolved"`, `"status":"resolved","payload":{"approved":true}`}, `"status":"resolved","payload":{"outcome":"repeat"}`, agentv1.Decision_DECISION_REPEAT},
	} {
		for _, answer := range tt.refused {
			path, body := tt.send(answer)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // an accepted answer has a stream that does not end
			got := in.send(t, in.request(t, w.owner, "POST", path, body, nil).WithContext(ctx))
			cancel()
			if got.status != http.StatusBadRequest || !strings.Contains(got.body, "OUTCOME_NEEDED") || decision(tt.run) != 0 {
				t.Errorf("%s = %d %s and the decision %v, want 400 and none", answer, got.status, got.body, decision(tt.run))
			}
		}
		path, body := tt.send(tt.answer)
		on := in.open(t, w.owner, "POST", path, body)
		tt.run.end(t)
		if err := on.ended(t); err != nil || decision(tt.run) != tt.want {
			t.Errorf("%s = %v and the decision %v, want %v", tt.answer, err, decision(tt.run), tt.want)
		}
	}
}

func TestChatClientTool(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	body := strings.Replace(userMessage("c", "m1", "where am I?"), `"trigger"`, `"client_tools":[{"name":"locate","input_schema":{"type":"object"}}],"trigger"`, 1)
	sent := in.open(t, w.owner, "POST", "/api/chat", body)
	run := w.runner.latest(t, sent.header.Get("X-Session-Id"), 1)
	run.begin(t)
	run.publish(t, run.event(&runv1.Event{Body: &runv1.Event_ToolClientRequest{ToolClientRequest: &runv1.ToolClientRequest{ToolCallId: "c1", ToolName: "locate", ArgsJson: `{}`}}}))
	parked := run.event(&runv1.Event{Body: &runv1.Event_Waiting{Waiting: &runv1.Waiting{ForClient: true}}})
	run.set(func() { run.State, run.LastEvent = agentv1.RunState_RUN_STATE_WAITING, new(parked.GetNumber()) })
	run.publish(t, parked)
	if err := sent.ended(t); err != nil || !strings.HasSuffix(sent.text(), "data: {\"type\":\"finish\",\"finishReason\":\"tool-calls\"}\n\ndata: [DONE]\n\n") {
		t.Fatalf("stream = %v\n%s\nwant one that ends at the call", err, sent.text())
	}
	answer := func(tools, part string) string {
		return fmt.Sprintf(`{"id":"c",%s"messages":[{"id":%q,"role":"assistant","parts":[{"type":"tool-locate","toolCallId":"older","state":"output-available","output":1},{"type":"step-start"},%s]}]}`, tools, run.GetId(), part)
	}
	result := `{"type":"tool-locate","toolCallId":"c1","state":"output-available","output":{"city":"Paris"},"callProviderMetadata":{"other":1,"signalbox":{"stepIndex":0}}}`
	if !strings.Contains(sent.text(), `"providerMetadata":{"signalbox":{"stepIndex":0}}`) {
		t.Errorf("the call does not say of which step it is:\n%s", sent.text())
	}
	if got := in.send(t, in.request(t, w.owner, "POST", "/api/chat", answer("", result), nil)); got.status != http.StatusBadRequest || !strings.Contains(got.body, "answers nothing") {
		t.Errorf("the result of another tool = %d %s, want 400", got.status, got.body)
	}
	const locate = `"client_tools":[{"name":"locate","input_schema":{}}],`
	late := strings.Replace(result, `{"city":"Paris"}`, `"late"`, 1)
	if got := in.send(t, in.request(t, w.owner, "POST", "/api/chat", answer(locate, late), nil)); got.status != http.StatusConflict || !strings.Contains(got.body, "RESULT_EXPIRED") {
		t.Errorf("a late result = %d %s, want 409", got.status, got.body)
	}
	run.set(func() { run.State = agentv1.RunState_RUN_STATE_RUNNING })
	on := in.open(t, w.owner, "POST", "/api/chat", answer(locate, late+","+result)) // the late one does not keep the other from being heard
	run.publish(t, run.event(&runv1.Event{Body: &runv1.Event_ToolResult{ToolResult: &runv1.ToolResult{ToolCallId: "c1", ToolName: "locate", ResultJson: `{"output":{"city":"Paris"}}`}}}))
	run.step(t, "")
	run.end(t)
	if err := on.ended(t); err != nil || !strings.Contains(on.text(), `"tool-output-available","toolCallId":"c1","output":{"city":"Paris"}`) || strings.Contains(on.text(), "tool-input") {
		t.Errorf("the continuation = %v\n%s", err, on.text())
	}
	if got := w.runner.sent(); got != `c1 {"city":"Paris"} `+run.GetId()+" step 0" {
		t.Errorf("the results sent are %q", got)
	}
}

func TestChatOfALostLog(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	session := in.newSession(t, w.owner)
	sent := in.open(t, w.owner, "POST", "/api/chat", userMessage(session, "m1", "hi"))
	run := w.runner.latest(t, session, 1)
	run.begin(t)
	run.say(t, "a", "b")
	run.step(t, "ab")
	for range 8 {
		sent.next(t)
	}
	w.wipe(t)
	w.runner.forget(session)
	late := w.gateway(t).open(t, w.owner, "GET", resumeOf(session), "")
	run.say(t, "c")
	run.step(t, "c")
	run.end(t)
	if err := late.ended(t); err != nil {
		t.Fatal(err)
	}
	var text []string
	for line := range strings.SplitSeq(chunkText(t, late), "\n") {
		var chunk struct{ Type, Delta string }
		if json.Unmarshal([]byte(strings.TrimPrefix(line, "data: ")), &chunk) == nil && chunk.Type != "data-user-message" && chunk.Type != "message-metadata" {
			text = append(text, chunk.Type+chunk.Delta)
		}
	}
	want := []string{"start", "start-step", "text-start", "text-deltaab", "text-end", "finish-step", "start-step", "text-start", "text-deltac", "text-end", "finish-step", "finish"}
	if diff := cmp.Diff(want, text); diff != "" {
		t.Errorf("chunks differ (-want +got):\n%s\n%s", diff, late.text())
	}
	third := w.gateway(t)
	got := third.send(t, third.request(t, w.owner, "GET", resumeOf("run_"+run.GetId())+"?startIndex=3", "", nil))
	if got.status != http.StatusGone || !strings.Contains(got.body, "STREAM_GONE") {
		t.Errorf("chunk 3 = %d %s, want 410", got.status, got.body)
	}
}

func TestWatchSessionAsChunks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	session := in.newSession(t, w.owner)
	first := in.open(t, w.owner, "POST", "/api/chat", userMessage(session, "m1", "hi"))
	run := w.runner.latest(t, session, 1)
	run.begin(t)
	run.say(t, "a")
	for range 6 {
		first.next(t)
	}
	viewer := w.join(t, w.workspace, identity.Viewer)
	watching := in.open(t, viewer, "GET", eventsOf(session)+"?format=ui", "")
	run.step(t, "a")
	run.end(t)
	w.runner.script = func(r *fakeRun) { r.answer(t, "b") }
	second := in.open(t, w.owner, "POST", "/api/chat", userMessage(session, "m2", "more"))
	want := ""
	for _, s := range []*stream{first, second} {
		if err := s.ended(t); err != nil {
			t.Fatal(err)
		}
		want += strings.TrimSuffix(chunkText(t, s), "data: [DONE]\n\n")
	}
	eventually(t, "the viewer has both runs", func() bool { return chunkText(t, watching) == want })
	if got := in.send(t, in.request(t, viewer, "POST", "/api/chat", userMessage(session, "m3", "more"), nil)); got.status != http.StatusForbidden {
		t.Errorf("a viewer's message = %d %s, want 403", got.status, got.body)
	}
}

func TestChatSteersAndStops(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	sent := in.open(t, w.owner, "POST", "/api/chat", userMessage("c", "m1", "hi"))
	run := w.runner.latest(t, sent.header.Get("X-Session-Id"), 1)
	run.begin(t)
	steering := in.open(t, w.owner, "POST", "/api/chat", strings.Replace(userMessage("c", "m2", "shorter"), `"trigger"`, `"mode":"steer","trigger"`, 1))
	if err := steering.ended(t); err != nil || chunkText(t, steering) != "data: {\"type\":\"finish\"}\n\ndata: [DONE]\n\n" {
		t.Errorf("the steering message = %v\n%s\nwant an answer without a message", err, steering.text())
	}
	for chat, want := range map[string]int{"c": 1, "new": 0} {
		got := call[struct {
			RunIDs []string `json:"run_ids"`
		}](t, in, w.owner, "DELETE", resumeOf(chat), "", http.StatusOK)
		if len(got.RunIDs) != want {
			t.Errorf("stopping %s stops %v, want %d runs", chat, got.RunIDs, want)
		}
	}
	run.end(t)
	if err := sent.ended(t); err != nil {
		t.Fatal(err)
	}
}

func TestChatStopsOnDisconnect(t *testing.T) {
	t.Parallel()
	withBothTransports(t, testChatStopsOnDisconnect)
}

func testChatStopsOnDisconnect(t *testing.T, w *world) {
	in := w.gateway(t)
	stops := func(chat string) string {
		return strings.Replace(userMessage(chat, "m1", "hi"), `"trigger"`, `"on_disconnect":"stop","trigger"`, 1)
	}
	whole := in.open(t, w.owner, "POST", "/api/chat", stops("a"))
	w.runner.latest(t, whole.header.Get("X-Session-Id"), 1).answer(t, "a")
	if err := whole.ended(t); err != nil {
		t.Fatal(err)
	}
	left := in.open(t, w.owner, "POST", "/api/chat", stops("b"))
	run := w.runner.latest(t, left.header.Get("X-Session-Id"), 1)
	run.begin(t)
	left.next(t)
	left.cancel()
	var stopped []string
	eventually(t, "the run is stopped", func() bool {
		run.set(func() { stopped = w.runner.stopped })
		return len(stopped) > 0
	})
	if len(stopped) != 1 || stopped[0] != run.GetId() {
		t.Errorf("stopped are %v, want %s: the other client had everything", stopped, run.GetId())
	}

	// A client that answers has a connection of its own.
	asks := in.open(t, w.owner, "POST", "/api/chat", strings.Replace(userMessage("c", "m1", "hi"), `"trigger"`, `"client_tools":[{"name":"locate","input_schema":{"type":"object"}}],"trigger"`, 1))
	run = w.runner.latest(t, asks.header.Get("X-Session-Id"), 1)
	run.begin(t)
	run.publish(t, run.event(&runv1.Event{Body: &runv1.Event_ToolClientRequest{ToolClientRequest: &runv1.ToolClientRequest{ToolCallId: "c1", ToolName: "locate", ArgsJson: `{}`}}}))
	run.publish(t, run.event(&runv1.Event{Body: &runv1.Event_Waiting{Waiting: &runv1.Waiting{ForClient: true}}}))
	if err := asks.ended(t); err != nil {
		t.Fatal(err)
	}
	on := in.open(t, w.owner, "POST", "/api/chat", fmt.Sprintf(`{"id":"c","on_disconnect":"stop","client_tools":[{"name":"locate","input_schema":{}}],"messages":[{"id":%q,"role":"assistant","parts":[
		{"type":"tool-locate","toolCallId":"c1","state":"output-available","output":1}]}]}`, run.GetId()))
	run.say(t, "So")
	on.next(t)
	on.cancel()
	eventually(t, "the run of the answer is stopped", func() bool {
		run.set(func() { stopped = w.runner.stopped })
		return len(stopped) > 1
	})
	if stopped[1] != run.GetId() {
		t.Errorf("stopped are %v, want %s", stopped, run.GetId())
	}
}

// A chat of any length goes on although useChat sends all its messages, with their attachments, each
// time: only the last one counts.
func TestChatOfManyMessages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	w.runner.script = func(r *fakeRun) { r.answer(t, "a") }
	picture := `{"id":"x","role":"user","parts":[{"type":"file","mediaType":"image/png","url":"data:image/png;base64,` + strings.Repeat("aGk=", 3<<20/4) + `"}]}`
	body := func(before int, last string) string {
		return `{"id":"c","messages":[` + strings.Repeat(picture+",", before) + `{"id":"m","role":"user","parts":[{"type":"text","text":"` + last + `"}]}],"trigger":"submit-message","timezone":"Europe/Paris"}`
	}
	if err := in.open(t, w.owner, "POST", "/api/chat", body(8, "hi")).ended(t); err != nil {
		t.Fatal(err)
	}
	if got := w.runner.submitted[0]; got.GetContentJson() != `"hi"` || got.GetTimezone() != "Europe/Paris" || got.GetIdempotencyKey() != "chat:m" {
		t.Errorf("submitted is %v, want the last message and the fields around the messages", got)
	}
	for name, tt := range map[string]struct {
		body string
		want int
		says string
	}{
		"a long message":          {body(1, strings.Repeat("x", 20<<20)), http.StatusRequestEntityTooLarge, "prepareSendMessagesRequest"},
		"very many messages":      {body(36, "hi"), http.StatusRequestEntityTooLarge, "prepareSendMessagesRequest"},
		"many fields":             {strings.TrimSuffix(body(4, "hi"), "}") + `,"a":"` + strings.Repeat("x", 11<<20) + `","b":"` + strings.Repeat("x", 11<<20) + `"}`, http.StatusRequestEntityTooLarge, "prepareSendMessagesRequest"},
		"HTML":                    {strings.TrimSuffix(body(8, "hi"), "}") + `,"a":"` + strings.Repeat("<", 11<<20) + `"}`, http.StatusOK, ""},
		"many messages, cut":      {strings.TrimSuffix(body(8, "hi"), "}"), http.StatusBadRequest, "not valid JSON"},
		"many messages, no array": {strings.Replace(body(8, "hi"), "[", "{", 1), http.StatusBadRequest, "not valid JSON"},
	} {
		if got := in.send(t, in.request(t, w.owner, "POST", "/api/chat", tt.body, nil)); got.status != tt.want || !strings.Contains(got.body, tt.says) {
			t.Errorf("%s: %d %.300s, want %d with %q", name, got.status, got.body, tt.want, tt.says)
		}
	}
}

func TestChatRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	for name, tt := range map[string]struct{ body, says string }{
		"no chat":            {`{"messages":[{"role":"user","parts":[{"type":"text","text":"x"}]}]}`, "prepareSendMessagesRequest"},
		"no message":         {`{"id":"c"}`, "messages is required"},
		"a message id":       {`{"id":"c","trigger":"regenerate-message","messageId":"π"}`, "messageId"},
		"system":             {`{"id":"c","message":{"role":"system","parts":[]}}`, "system"},
		"nothing said":       {`{"id":"c","message":{"role":"user","parts":[]}}`, "content"},
		"no answer":          {`{"id":"c","message":{"role":"assistant","parts":[{"type":"text","text":"x"}]}}`, "the id of the last one"},
		"unknown part":       {`{"id":"c","message":{"role":"user","parts":[{"type":"zebra"}]}}`, "zebra"},
		"not a message":      {`{"id":"c","message":[]}`, "UIMessage"},
		"a long chat id":     {`{"id":"` + strings.Repeat("x", 201) + `","message":{"role":"user","parts":[{"type":"text","text":"x"}]}}`, "id"},
		"a chat id in Greek": {`{"id":"π","message":{"role":"user","parts":[{"type":"text","text":"x"}]}}`, "ASCII"},
		"a disconnect":       {`{"id":"c","on_disconnect":"hope","message":{"role":"user","parts":[{"type":"text","text":"x"}]}}`, "on_disconnect"},
		"a mode":             {`{"id":"c","mode":"hope","message":{"role":"user","parts":[{"type":"text","text":"x"}]}}`, "mode"},
		"a file":             {`{"id":"c","message":{"role":"user","parts":[{"type":"file","url":"https://x"}]}}`, "mediaType"},
	} {
		got := in.send(t, in.request(t, w.owner, "POST", "/api/chat", tt.body, nil))
		if got.status != http.StatusBadRequest || !strings.Contains(got.body, tt.says) {
			t.Errorf("%s: %d %s, want 400 with %q", name, got.status, got.body, tt.says)
		}
	}
	// A picture alone, as useChat sends it.
	w.runner.script = func(r *fakeRun) { r.answer(t, "a") }
	picture := `{"id":"c","message":{"role":"user","parts":[{"type":"file","mediaType":"image/png","url":"data:image/png;base64,aGk="},{"type":"text","text":""}]}}`
	if err := in.open(t, w.owner, "POST", "/api/chat", picture).ended(t); err != nil {
		t.Fatal(err)
	}
	if got, want := w.runner.submitted[0].GetContentJson(), `[{"type":"file","mediaType":"image/png","data":"data:image/png;base64,aGk="},{"type":"text","text":""}]`; got != want {
		t.Errorf("a picture alone is submitted as %s, want %s", got, want)
	}
	for path, want := range map[string]int{
		resumeOf("run_" + noone): http.StatusNotFound, resumeOf("c") + "?ui=4": http.StatusBadRequest, resumeOf("c") + "?startIndex=x": http.StatusBadRequest,
	} {
		if got := in.send(t, in.request(t, w.owner, "GET", path, "", nil)); got.status != want {
			t.Errorf("GET %s = %d %s, want %d", path, got.status, got.body, want)
		}
	}
}
