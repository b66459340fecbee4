package agentrunner_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/identity"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	agentrunner "signalbox.dev/services/agent-runner"
)

// locate is a tool that a client runs.
var locate = &agentv1.ClientTool{
	Name: "locate", Description: "Where the user is.",
	InputSchemaJson: `{"type":"object","properties":{"exact":{"type":"boolean"}},"additionalProperties":false}`,
}

func declares(tools ...*agentv1.ClientTool) func(*agentv1.SubmitRequest) {
	return func(r *agentv1.SubmitRequest) { r.ClientTools = &agentv1.ClientTools{Tools: tools} }
}

func waitsForClient(ev *runv1.Event) bool { return ev.GetWaiting().GetForClient() }

// send posts the result of a call: an output, or with "!" an error.
func (w *world) send(session, call, result string) (*agentv1.SendToolResultResponse, error) {
	req := &agentv1.SendToolResultRequest{SessionId: session, ToolCallId: call, Result: &agentv1.SendToolResultRequest_OutputJson{OutputJson: result}}
	if message, ok := strings.CutPrefix(result, "!"); ok {
		req.Result = &agentv1.SendToolResultRequest_Error{Error: message}
	}
	return w.conversations.SendToolResult(w.as(identity.Editor), req)
}

// expire ends the time of the calls that wait, as if they had waited for a minute.
func (w *world) expire() {
	w.t.Helper()
	err := w.db.Open(w.t, agentrunner.Migrations()).InWorkspace(w.t.Context(), w.workspace, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			UPDATE tool_calls SET asked_at = asked_at - interval '1 minute', expires_at = clock_timestamp() - interval '1 second'
			WHERE workspace_id = $1 AND phase = 'planned'`, w.workspace)
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// A call of a client's tool waits for its result together with a call that needs approval, while
// a third one runs. The run is parked, survives its runner, and goes on when all are there.
func TestClientTool(t *testing.T) {
	t.Parallel()
	w := asking(t)
	w.model.then(calls([3]string{"a", "read", "{}"}, [3]string{"b", "locate", `{"exact":true}`}, [3]string{"c", "send", "{}"}, [3]string{"d", "locate", "{}"}), says("In Paris."))
	first := w.start()
	session := w.session(&agentv1.CreateSessionRequest{})
	v := w.watch(session)
	sub := w.submit(session, "where?", declares(locate))
	events := v.until(parked)
	if first := string(w.model.asked()[0]); !strings.Contains(first, `"locate"`) || !strings.Contains(first, "Where the user is.") {
		t.Errorf("the model is not told of the tool: %s", first)
	}
	r := w.run(sub.GetRun().GetId())
	if c := r.GetToolCalls()[1]; r.GetRun().GetState() != agentv1.RunState_RUN_STATE_WAITING || c.GetPhase() != "planned" || c.GetClientUntil() == nil || c.GetApproval() != nil {
		t.Errorf("the run is %v with the call %v, want it to wait for a client", r.GetRun(), c)
	}
	if list, err := w.approvals.ListApprovals(w.as(identity.Viewer), &agentv1.ListApprovalsRequest{}); err != nil || len(list.GetApprovals()) != 1 {
		t.Errorf("ListApprovals = %v, %v, want only the call that needs one", list, err)
	}
	first.stop()
	first.ended <- <-first.ended // for the cleanup too
	w.connect(w.start())

	for range 2 { // the second time changes nothing
		res, err := w.send(session, "b", `{ "lat": 48.85, "by": "\u00e9" }`)
		if got, want := res.GetToolCall().GetOutcome().GetResultJson(), `{"output":{"lat":48.85,"by":"\u00e9"}}`; err != nil || got != want || res.GetRunId() != sub.GetRun().GetId() {
			t.Fatalf("SendToolResult() = %v, %v, want %s", res, err, want)
		}
	}
	events = append(events, v.until(parked)...)
	_, viewer := w.conversations.SendToolResult(w.as(identity.Viewer), &agentv1.SendToolResultRequest{SessionId: session, ToolCallId: "d", Result: &agentv1.SendToolResultRequest_Error{Error: "x"}})
	for what, tt := range map[string]struct {
		err  error
		want fault.Kind
	}{
		"another result": {second(w.send(session, "b", `{}`)), fault.Conflict}, "an unknown call": {second(w.send(session, "z", `{}`)), fault.NotFound},
		"a server's call": {second(w.send(session, "c", `{}`)), fault.NotFound}, "no JSON": {second(w.send(session, "d", `{`)), fault.Invalid},
		"nothing": {second(w.send(session, "d", ``)), fault.Invalid}, "a large one": {second(w.send(session, "d", `"`+strings.Repeat("x", 64<<10)+`"`)), fault.TooLarge},
		"a deep one": {second(w.send(session, "d", strings.Repeat("[", 66)+strings.Repeat("]", 66))), fault.Invalid}, "a viewer": {viewer, fault.Forbidden},
		"an approval": {w.decide(session, "d", agentv1.Decision_DECISION_APPROVED), fault.NotFound},
	} {
		if fault.KindOf(tt.err) != tt.want {
			t.Errorf("SendToolResult with %s = %v, want %v", what, tt.err, tt.want)
		}
	}
	other := &agentv1.SendToolResultRequest{SessionId: session, ToolCallId: "d", RunId: session, Result: &agentv1.SendToolResultRequest_OutputJson{OutputJson: "1"}}
	if _, err := w.conversations.SendToolResult(w.as(identity.Editor), other); fault.KindOf(err) != fault.NotFound {
		t.Errorf("a result for another run's call = %v, want %v", err, fault.NotFound)
	}
	other.RunId, other.StepIndex = "", new(int32(1))
	if _, err := w.conversations.SendToolResult(w.as(identity.Editor), other); fault.KindOf(err) != fault.NotFound {
		t.Errorf("a result for another step's call = %v, want %v", err, fault.NotFound)
	}
	// A front end that repeats its message has the error as viewers saw it.
	for _, message := range []string{"!no sensor", "!no sensor", "!the client reports: no sensor"} {
		if _, err := w.send(session, "d", message); err != nil {
			t.Fatalf("SendToolResult(%q) = %v", message, err)
		}
	}
	events = append(events, v.until(parked)...)
	if err := w.decide(session, "c", agentv1.Decision_DECISION_APPROVED); err != nil {
		t.Fatal(err)
	}
	events = append(events, v.until(isEnd)...)
	checkDense(t, events)
	var got []string
	for _, l := range lines(events) {
		if !strings.HasPrefix(l, "1 tool-") && l != "1 start" {
			got = append(got, l)
		}
	}
	want := []string{
		`1 user "where?"`, "1 call a read {}", `1 call b locate {"exact":true}`, "1 call c send {}", "1 call d locate {}",
		`1 client b {"exact":true} `, "1 ask c {} false", "1 client d {} ", `1 result a {"result":"text"} false`,
		"1 waiting 0 tool calls wait for a person's approval and for a client's result",
		`1 result b {"output":{"lat":48.85,"by":"\u00e9"}} false`, "1 waiting 0 tool calls wait for a person's approval and for a client's result",
		`1 result d {"error":"the client reports: no sensor"} true`, "1 waiting 0 a tool call waits for a person's approval",
		"1 answer c approved ", `1 result c {"result":"sent"} false`, "1 step 0 tool-calls 10/5", "1 text In Paris.", "1 step 1 stop 10/5", `1 done stop "In Paris." 2`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if told := string(w.model.asked()[1]); !strings.Contains(told, "48.85") || !strings.Contains(told, "no sensor") || !strings.Contains(told, "Where the user is.") {
		t.Errorf("the model is not told the results, or of the tool: %s", told)
	}
}

func second[T any](_ T, err error) error { return err }

// A result that comes while the step's other calls run is found before the run parks, and one
// that was never sent becomes an error for the model. A stop ends a run that waits.
func TestClientToolInTimeLateAndStopped(t *testing.T) {
	t.Parallel()
	w := asking(t)
	began, sent := make(chan struct{}), make(chan struct{})
	w.tools.add("read", func(ctx context.Context, _ *toolv1.Call) string {
		close(began)
		await(ctx, sent)
		return `{"result":"text"}`
	})
	w.model.then(
		calls([3]string{"a", "read", "{}"}, [3]string{"b", "locate", "{}"}), calls([3]string{"c", "locate", "{}"}), says("Done."),
		calls([3]string{"d", "locate", "{}"}),
	)
	w.start()
	session := w.session(&agentv1.CreateSessionRequest{ClientTools: &agentv1.ClientTools{Tools: []*agentv1.ClientTool{locate}}})
	v := w.watch(session)
	w.submit(session, "go")
	<-began
	if _, err := w.send(session, "b", "null"); err != nil {
		t.Fatal(err)
	}
	close(sent)
	events := v.until(waitsForClient)
	w.expire()
	events = append(events, v.until(isEnd)...)
	for _, ev := range events {
		if r := ev.GetToolResult(); r.GetToolCallId() == "c" && r.GetDurationMs() != 0 {
			t.Errorf("the call that no client ran took %d ms", r.GetDurationMs())
		}
	}
	got := strings.Join(lines(events), "\n")
	if !strings.Contains(got, `result b {"output":null} false`) || !strings.Contains(got, `result c {"error":"no client has sent the result`) {
		t.Errorf("want the result of b, and none of c; events:\n%s", got)
	}
	if _, err := w.send(session, "c", "1"); fault.From(err).Code != "RESULT_EXPIRED" {
		t.Errorf("a late result = %v, want RESULT_EXPIRED", err)
	}
	w.submit(session, "again")
	v.until(waitsForClient)
	if _, err := w.conversations.Cancel(w.as(identity.Editor), &agentv1.CancelRequest{SessionId: session}); err != nil {
		t.Fatal(err)
	}
	got = strings.Join(lines(v.until(isEnd)), "\n")
	if !strings.Contains(got, "2 result d") || !strings.Contains(got, "the run was stopped before a client had sent") || !strings.Contains(got, "2 done cancelled") {
		t.Errorf("events of the stopped run:\n%s", got)
	}
	if _, err := w.send(session, "d", "1"); fault.From(err).Code != "RUN_ENDED" {
		t.Errorf("a result after the end = %v, want RUN_ENDED", err)
	}
}

// A result that was accepted counts, although the run is stopped before its step has ended.
func TestStopKeepsClientResult(t *testing.T) {
	t.Parallel()
	w := asking(t)
	began := make(chan struct{})
	w.tools.add("read", func(ctx context.Context, _ *toolv1.Call) string {
		close(began)
		<-ctx.Done()
		return `{"result":"late"}`
	})
	w.model.then(calls([3]string{"a", "read", "{}"}, [3]string{"b", "locate", "{}"}, [3]string{"c", "locate", "{}"}))
	w.start()
	session := w.session(&agentv1.CreateSessionRequest{})
	v := w.watch(session)
	w.submit(session, "go", declares(locate))
	<-began
	if _, err := w.send(session, "b", `"Paris"`); err != nil {
		t.Fatal(err)
	}
	if _, err := w.conversations.Cancel(w.as(identity.Editor), &agentv1.CancelRequest{SessionId: session}); err != nil {
		t.Fatal(err)
	}
	got := strings.Join(lines(v.until(isEnd)), "\n")
	if !strings.Contains(got, `result b {"output":"Paris"} false`) || !strings.Contains(got, "result c {\"error\":\"the run was stopped before a client") || !strings.Contains(got, "done cancelled") {
		t.Errorf("want the result of b, which was accepted, and none of c:\n%s", got)
	}
	var told string
	for _, m := range w.look(session).GetMessages() {
		if m.GetRole() == "tool" {
			told = m.GetContentJson()
		}
	}
	if !strings.Contains(told, "Paris") {
		t.Errorf("the next model call is told %s, want the result", told)
	}
}

// Arguments are checked before anybody is asked, a rule may forbid the calls, and what a client
// says counts as private text by a stranger, even if it reports an error and the tool has gone.
func TestClientToolRules(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.tools.add("post", func(context.Context, *toolv1.Call) string { return `{"result":"ok"}` })
	w.tools.specs["post"] = &toolv1.Tool{ActsOutside: true}
	forbidden := &agentv1.ClientTool{Name: "wipe", InputSchemaJson: `{"type":"object"}`}
	w.model.then(
		calls([3]string{"a", "locate", `{"exact":"yes"}`}, [3]string{"b", "wipe", "{}"}, [3]string{"c", "post", "{}"}),
		calls([3]string{"d", "locate", `{}`}), calls([3]string{"e", "post", `{}`}), says("Done."), calls([3]string{"f", "post", `{}`}),
	)
	w.start()
	session := w.session(&agentv1.CreateSessionRequest{})
	if _, err := w.approvals.CreateRule(w.as(identity.Owner), &agentv1.CreateRuleRequest{ToolName: "wipe", Effect: agentv1.RuleEffect_RULE_EFFECT_DENY}); err != nil {
		t.Fatal(err)
	}
	v := w.watch(session)
	w.submit(session, "go", declares(locate, forbidden))
	got := strings.Join(lines(v.until(waitsForClient)), "\n")
	for _, want := range []string{
		`result a {"error":"the arguments do not satisfy the schema of locate: - at '/exact': got string, want boolean"} true`,
		`result b {"error":"a rule of this workspace forbids this call: go on without it"} true`, `result c {"result":"ok"} false`, "client d {} ",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no event %q in\n%s", want, got)
		}
	}
	if _, err := w.send(session, "d", "!there is no tool"); err != nil {
		t.Fatal(err)
	}
	v.until(parked)
	if err := w.decide(session, "e", agentv1.Decision_DECISION_REFUSED); err != nil {
		t.Fatal(err)
	}
	v.until(isEnd)
	w.submit(session, "again")
	v.until(parked)
	if n := w.tools.timesRan("e") + w.tools.timesRan("f"); n != 0 {
		t.Errorf("calls that act outside ran %d times without a yes", n)
	}
}

// Declarations come with a message or a session, and are bounded.
func TestClientToolDeclarations(t *testing.T) {
	t.Parallel()
	w := asking(t)
	w.start()
	session := w.session(&agentv1.CreateSessionRequest{})
	tool := func(name, schema string) *agentv1.ClientTool {
		return &agentv1.ClientTool{Name: name, InputSchemaJson: schema}
	}
	const object = `{"type":"object"}`
	many := make([]*agentv1.ClientTool, 65)
	large := make([]*agentv1.ClientTool, 5)
	for i := range many {
		many[i] = tool(fmt.Sprint("t", i), object)
	}
	for i := range large {
		large[i] = tool(fmt.Sprint("t", i), `{"type":"object","description":"`+strings.Repeat("x", 60<<10)+`"}`)
	}
	for says, tools := range map[string][]*agentv1.ClientTool{
		"client_tools has 65 tools":            many,
		"client_tools has more than 256 KiB":   large,
		"client_tools[0].name: want":           {tool("where am I", object)},
		"[0].name: names that begin with":      {tool("mcp__x__y", object)},
		"[1].name: there is another":           {tool("a", object), tool("a", object)},
		`the workspace has a tool "send"`:      {tool("send", object)},
		"[0].input_schema: want":               {tool("a", `{}`)},
		"[0].input_schema is not JSON":         {tool("a", `{"type":"object",}`)},
		"references outside":                   {tool("a", `{"type":"object","$ref":"https://example.com/s"}`)},
		"is nested more than 32":               {tool("a", `{"type":"object","x":`+strings.Repeat("[", 40)+strings.Repeat("]", 40)+`}`)},
		"[0].description: at most 4000":        {{Name: "a", InputSchemaJson: object, Description: strings.Repeat("x", 4001)}},
		"[0].input_schema has 70034 bytes; at": {tool("a", `{"type":"object","description":"`+strings.Repeat("x", 70_000)+`"}`)},
	} {
		_, err := w.conversations.UpdateSession(w.as(identity.Editor), &agentv1.UpdateSessionRequest{Id: session, ClientTools: &agentv1.ClientTools{Tools: tools}})
		if fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), says) {
			t.Errorf("UpdateSession() = %v, want it refused with %q", err, says)
		}
	}
	update := func(tools ...*agentv1.ClientTool) []string {
		t.Helper()
		res, err := w.conversations.UpdateSession(w.as(identity.Editor), &agentv1.UpdateSessionRequest{Id: session, ClientTools: &agentv1.ClientTools{Tools: tools}})
		if err != nil {
			t.Fatal(err)
		}
		return res.GetSession().GetClientTools()
	}
	if diff := cmp.Diff([]string{"locate"}, update(locate)); diff != "" {
		t.Errorf("the session's tools (-want +got):\n%s", diff)
	}
	w.model.then(says("1"), says("2"), says("3"))
	v := w.watch(session)
	for i, change := range []func(*agentv1.SubmitRequest){declares(), declares(many[0]), func(*agentv1.SubmitRequest) {}} {
		w.submit(session, "go", change)
		v.until(isEnd)
		asked := string(w.model.asked()[i])
		if got, want := strings.Contains(asked, `"locate"`), i == 2; got != want {
			t.Errorf("message %d: the model is told of the session's tool: %v, want %v", i, got, want)
		}
		if got, want := strings.Contains(asked, `"t0"`), i == 1; got != want {
			t.Errorf("message %d: the model is told of the message's tool: %v, want %v", i, got, want)
		}
	}
	if got := update(); len(got) != 0 {
		t.Errorf("the session's tools are %v, want none", got)
	}
}
