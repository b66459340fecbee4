package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
)

// A run that waits for approval ends with an interrupt, which only a person of its workspace answers.
func TestAGUIApproval(t *testing.T) {
	t.Parallel()
	withBothTransports(t, testAGUIApproval)
}

func testAGUIApproval(t *testing.T, w *world) {
	in := w.gateway(t)
	body := func(run, messages, more string) string {
		return fmt.Sprintf(`{"threadId":"t","runId":%q,"protocolVersion":"1.0","state":{},"context":[{"description":"Mood","value":"good"}],"messages":[%s]%s}`, run, messages, more)
	}
	asked := body("r1", `{"id":"a","role":"user","content":"hello"},{"id":"b","role":"assistant","content":"Hi."},{"id":"c","role":"user","content":"send it"}`, "")
	sent := in.open(t, w.owner, "POST", "/api/ag-ui", asked)
	session := sent.header.Get("X-Session-Id")
	run := w.runner.latest(t, session, 1)
	if got := w.runner.imported(session); got != `Mood: good user "hello" assistant [{"type":"text","text":"Hi."}]` {
		t.Errorf("the session is created with %s", got)
	}
	run.begin(t)
	waitForApproval(t, run)
	if err := sent.ended(t); err != nil || !strings.Contains(sent.text(), `"outcome":{"type":"interrupt","interrupts":[{"id":"c1","reason":"confirmation","toolCallId":"c1"`) {
		t.Fatalf("stream = %v\n%s\nwant one that ends with an interrupt", err, sent.text())
	}
	// The same request again is the same run.
	again := in.open(t, w.owner, "POST", "/api/ag-ui", asked)
	if err := again.ended(t); err != nil || again.text() != sent.text() {
		t.Errorf("the request sent again = %v\n%s\nwant\n%s", err, again.text(), sent.text())
	}
	key, _ := call[object](t, in, w.owner, "POST", "/api/keys", `{"name":"k","role":"editor"}`, http.StatusCreated)["secret"].(string)
	yes := `,"resume":[{"interruptId":"c1","status":"resolved","payload":{"approved":true}}]`
	for name, tt := range map[string]struct {
		who  person
		body string
		want int
	}{
		"a program":         {person{token: key, workspace: w.workspace}, body("r2", "", yes), http.StatusForbidden},
		"another workspace": {w.join(t, id.New[id.Workspace](), identity.Owner), strings.Replace(body("r2", "", yes), `"t"`, `"`+session+`"`, 1), http.StatusNotFound},
		"a viewer":          {w.join(t, w.workspace, identity.Viewer), body("r2", "", yes), http.StatusForbidden},
		"no answer":         {w.owner, body("r2", "", `,"resume":[{"interruptId":"c2","status":"cancelled"}]`), http.StatusBadRequest},
		"half an answer":    {w.owner, body("r2", "", `,"resume":[{"interruptId":"c1","status":"resolved"}]`), http.StatusBadRequest},
		"no message":        {w.owner, body("r2", "", ""), http.StatusBadRequest},
		"no run":            {w.owner, `{"threadId":"t","messages":[]}`, http.StatusBadRequest},
		"a picture's id":    {w.owner, body("r2", `{"id":"d","role":"user","content":[{"type":"image","source":{"type":"file","value":"x"}}]}`, ""), http.StatusBadRequest},
	} {
		if got := in.send(t, in.request(t, tt.who, "POST", "/api/ag-ui", tt.body, nil)); got.status != tt.want {
			t.Errorf("%s: %d %s, want %d", name, got.status, got.body, tt.want)
		}
	}
	run.set(func() { run.State = agentv1.RunState_RUN_STATE_RUNNING }) // as Decide does
	on := in.open(t, w.owner, "POST", "/api/ag-ui", body("r2", "", yes))
	run.publish(t, run.event(&runv1.Event{Body: &runv1.Event_ToolResult{ToolResult: &runv1.ToolResult{ToolCallId: "c1", ToolName: "send", ResultJson: `{"ok":1}`}}}))
	run.step(t, "")
	run.end(t)
	if err := on.ended(t); err != nil || !strings.Contains(on.text(), `"RUN_STARTED","threadId":"t","runId":"r2"`) || !strings.Contains(on.text(), `"TOOL_CALL_RESULT"`) || strings.Contains(on.text(), "TOOL_CALL_START") {
		t.Errorf("the continuation = %v\n%s", err, on.text())
	}
	// The answers again, whose response was lost, are the same response; other answers are refused.
	again = in.open(t, w.owner, "POST", "/api/ag-ui", body("r2", "", yes))
	if err := again.ended(t); err != nil || again.text() != on.text() {
		t.Errorf("the repeated answers = %v\n%s\nwant\n%s", err, again.text(), on.text())
	}
	for name, resume := range map[string]string{
		"another answer":   `,"resume":[{"interruptId":"c1","status":"cancelled"}]`,
		"another question": `,"resume":[{"interruptId":"c1~1","status":"cancelled"}]`,
	} {
		if got := in.send(t, in.request(t, w.owner, "POST", "/api/ag-ui", body("r2", "", resume), nil)); got.status != http.StatusConflict {
			t.Errorf("%s = %d %s, want 409", name, got.status, got.body)
		}
	}
	// What somebody else has answered does not keep the other answers from being heard.
	both := in.open(t, w.owner, "POST", "/api/ag-ui", body("r2a", `{"id":"c","role":"user","content":"send two"}`, ""))
	two := w.runner.latest(t, session, 2)
	two.begin(t)
	waitForApproval(t, two)
	if err := both.ended(t); err != nil {
		t.Fatal(err)
	}
	two.set(func() {
		two.State = agentv1.RunState_RUN_STATE_RUNNING
		two.calls = append([]*agentv1.ToolCall{{ToolCallId: "c0", ToolName: "send", Approval: &agentv1.Approval{Decision: agentv1.Decision_DECISION_REFUSED}}}, two.calls...)
	})
	answered := strings.Replace(yes, `[`, `[{"interruptId":"c0","status":"resolved","payload":{"approved":true}},`, 1)
	both = in.open(t, w.owner, "POST", "/api/ag-ui", body("r2b", "", answered))
	two.step(t, "")
	two.end(t)
	if err := both.ended(t); err != nil || !strings.Contains(both.text(), "RUN_FINISHED") {
		t.Errorf("an answer beside one that came too late = %v\n%s", err, both.text())
	}
	// A client that leaves stops the run, unless it says otherwise.
	left := in.open(t, w.owner, "POST", "/api/ag-ui", body("r3", `{"id":"e","role":"user","content":"more"}`, ""))
	next := w.runner.latest(t, session, 3)
	next.begin(t)
	left.next(t)
	left.cancel()
	eventually(t, "the run is stopped", func() bool { return w.runner.wasStopped(next.GetId()) })
	// So does one that leaves before its stream has begun.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	next.set(func() {
		w.runner.before = func() {
			cancel()
			<-time.After(200 * time.Millisecond) // the gateway notices meanwhile; if not, it will later
		}
	})
	early := in.request(t, w.owner, "POST", "/api/ag-ui", body("r4", `{"id":"f","role":"user","content":"more"}`, ""), nil).WithContext(ctx)
	if res, err := in.http.Do(early); err == nil {
		res.Body.Close()
		t.Error("a client that has left gets an answer")
	}
	unseen := w.runner.latest(t, session, 4)
	eventually(t, "the run is stopped", func() bool { return w.runner.wasStopped(unseen.GetId()) })
	// So does a gateway that shuts down, which is the same to these clients.
	next.set(func() { w.runner.before = nil })
	begin := func(thread, onDisconnect string) (*stream, *fakeRun) {
		more := `,"forwardedProps":{"on_disconnect":"` + onDisconnect + `"}`
		stream := in.open(t, w.owner, "POST", "/api/ag-ui", strings.Replace(body("r5", `{"id":"g","role":"user","content":"hi"}`, more), `"t"`, `"`+thread+`"`, 1))
		run := w.runner.latest(t, stream.header.Get("X-Session-Id"), 1)
		run.begin(t)
		stream.next(t)
		return stream, run
	}
	cut, stops := begin("u", "stop")
	_, goesOn := begin("v", "continue")
	interrupted, resumed := begin("w", "stop")
	waitForApproval(t, resumed)
	if err := interrupted.ended(t); err != nil {
		t.Fatal(err)
	}
	in.open(t, w.owner, "POST", "/api/ag-ui", strings.Replace(body("r6", "", yes), `"t"`, `"w"`, 1))
	// But not one that streams, to the same request sent again, what another gateway streams.
	second := w.gateway(t)
	again = second.open(t, w.owner, "POST", "/api/ag-ui", strings.Replace(body("r5", `{"id":"g","role":"user","content":"hi"}`, `,"forwardedProps":{"on_disconnect":"stop"}`), `"t"`, `"u"`, 1))
	again.next(t)
	second.stop()
	if err := again.ended(t); err == nil || w.runner.wasStopped(stops.GetId()) {
		t.Errorf("a repeated request's stream = %v, its run is stopped: %t, want it cut and the run going on", err, w.runner.wasStopped(stops.GetId()))
	}
	in.stop()
	if err := cut.ended(t); err == nil {
		t.Error("the stream ends cleanly, want it cut")
	}
	eventually(t, "the run is stopped", func() bool { return w.runner.wasStopped(stops.GetId()) })
	eventually(t, "the run that was answered is stopped", func() bool { return w.runner.wasStopped(resumed.GetId()) })
	if w.runner.wasStopped(goesOn.GetId()) {
		t.Error("a run that is to continue is stopped")
	}
}

// The result of a client's tool that is sent again, because its response was lost, gets the response.
func TestAGUIRepeatedResult(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	const tools = `,"tools":[{"name":"locate","description":"","parameters":{"type":"object"}}]`
	sent := in.open(t, w.owner, "POST", "/api/ag-ui", `{"threadId":"t","runId":"r1","messages":[{"id":"a","role":"user","content":"where?"}]`+tools+`}`)
	run := w.runner.latest(t, sent.header.Get("X-Session-Id"), 1)
	run.begin(t)
	run.publish(t, run.event(&runv1.Event{Body: &runv1.Event_ToolClientRequest{ToolClientRequest: &runv1.ToolClientRequest{ToolCallId: "c1", ToolName: "locate", ArgsJson: `{}`}}}))
	parked := run.event(&runv1.Event{Body: &runv1.Event_Waiting{Waiting: &runv1.Waiting{ForClient: true}}})
	run.set(func() {
		run.State, run.LastEvent = agentv1.RunState_RUN_STATE_WAITING, new(parked.GetNumber())
		run.calls = []*agentv1.ToolCall{{ToolCallId: "c1", ToolName: "locate", ArgsJson: `{}`, ClientUntil: timestamppb.Now()}}
	})
	run.publish(t, parked)
	if err := sent.ended(t); err != nil {
		t.Fatal(err)
	}
	result := fmt.Sprintf(`{"threadId":"t","runId":"r2","messages":[{"id":"%s-0-1","role":"assistant"},{"id":"b","role":"tool","toolCallId":"c1","content":"Paris"}]%s}`, run.GetId(), tools)
	run.set(func() { run.State = agentv1.RunState_RUN_STATE_RUNNING })
	first := in.open(t, w.owner, "POST", "/api/ag-ui", result)
	run.set(func() { run.calls = []*agentv1.ToolCall{{ToolCallId: "c1", ToolName: "locate", ArgsJson: `{}`}} })
	run.publish(t, run.event(&runv1.Event{Body: &runv1.Event_ToolResult{ToolResult: &runv1.ToolResult{ToolCallId: "c1", ToolName: "locate", ResultJson: `{"output":"Paris"}`}}}))
	run.step(t, "")
	run.end(t)
	again := in.open(t, w.owner, "POST", "/api/ag-ui", result)
	if err := errors.Join(first.ended(t), again.ended(t)); err != nil || !strings.Contains(first.text(), "RUN_FINISHED") || again.text() != first.text() {
		t.Errorf("the repeated result = %v\n%s\nwant\n%s", err, again.text(), first.text())
	}
	if got := w.runner.sent(); strings.Count(got, `c1 "Paris" `+run.GetId()+" step 0") != 2 {
		t.Errorf("the results sent are %q", got)
	}
}

// waitForApproval has a run wait for a person's answer to the call c1.
func waitForApproval(t *testing.T, run *fakeRun) {
	t.Helper()
	waitForAnswer(t, run, &runv1.ToolApprovalRequest{ToolCallId: "c1", ToolName: "send", ArgsJson: `{}`}, &agentv1.Approval{})
}

// waitForAnswer has a run wait for a person's answer to a question about the call c1.
func waitForAnswer(t *testing.T, run *fakeRun, asked *runv1.ToolApprovalRequest, approval *agentv1.Approval) {
	t.Helper()
	run.publish(t, run.event(&runv1.Event{Body: &runv1.Event_ToolApprovalRequest{ToolApprovalRequest: asked}}))
	parked := run.event(&runv1.Event{Body: &runv1.Event_Waiting{Waiting: &runv1.Waiting{ForPerson: true}}})
	run.set(func() {
		run.State, run.LastEvent = agentv1.RunState_RUN_STATE_WAITING, new(parked.GetNumber())
		run.calls = []*agentv1.ToolCall{{ToolCallId: "c1", ToolName: "send", ArgsJson: `{}`, Phase: "planned", Approval: approval}}
	})
	run.publish(t, parked)
}
