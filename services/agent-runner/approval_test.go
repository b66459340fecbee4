package agentrunner_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/identity"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	agentrunner "signalbox.dev/services/agent-runner"
)

// asking returns a world with the tool read and the tool send, which needs approval.
func asking(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.tools.add("read", func(context.Context, *toolv1.Call) string { return `{"result":"text"}` })
	w.tools.add("send", func(context.Context, *toolv1.Call) string { return `{"result":"sent"}` })
	w.tools.specs["send"] = &toolv1.Tool{NeedsApproval: true, Effect: toolv1.Effect_EFFECT_UNSAFE}
	return w
}

func parked(ev *runv1.Event) bool { return ev.GetWaiting().GetForPerson() }

func (w *world) decide(session, call string, d agentv1.Decision, change ...func(*agentv1.DecideRequest)) error {
	req := &agentv1.DecideRequest{SessionId: session, ToolCallId: call, Decision: d}
	for _, c := range change {
		c(req)
	}
	_, err := w.approvals.Decide(w.as(identity.Owner), req)
	return err
}

// A call that needs approval waits while the others run. The run is parked, survives its
// runner, and goes on with the call once it is approved, on any runner, exactly once.
func TestApproval(t *testing.T) {
	t.Parallel()
	w := asking(t)
	w.model.then(calls([3]string{"a", "read", "{}"}, [3]string{"b", "send", `{"to":"x"}`}), says("Sent."), says("Next."))
	first := w.start()
	session := w.session(&agentv1.CreateSessionRequest{})
	v := w.watch(session)
	sub := w.submit(session, "go")
	events := v.until(parked)
	w.submit(session, "and then")

	r := w.run(sub.GetRun().GetId())
	if r.GetRun().GetState() != agentv1.RunState_RUN_STATE_WAITING || w.look(session).GetActiveRun().GetState() != agentv1.RunState_RUN_STATE_WAITING {
		t.Errorf("the run is %v, want it to wait", r.GetRun())
	}
	if c := r.GetToolCalls()[1]; c.GetPhase() != "planned" || c.GetApproval().GetQuestion() != agentv1.Question_QUESTION_APPROVAL {
		t.Errorf("the call is %v, want it to be planned with a question", c)
	}
	list, err := w.approvals.ListApprovals(w.as(identity.Viewer), &agentv1.ListApprovalsRequest{})
	if err != nil || len(list.GetApprovals()) != 1 || list.GetApprovals()[0].GetToolCallId() != "b" || list.GetApprovals()[0].GetArgsJson() != `{"to":"x"}` {
		t.Errorf("ListApprovals = %v, %v, want call b", list, err)
	}
	first.stop()
	first.ended <- <-first.ended // for the cleanup too
	w.connect(w.start())

	_, err = w.approvals.Decide(w.as(identity.Viewer), &agentv1.DecideRequest{SessionId: session, ToolCallId: "b", Decision: agentv1.Decision_DECISION_APPROVED})
	for what, tt := range map[string]struct {
		err  error
		want fault.Kind
	}{
		"a viewer":         {err, fault.Forbidden},
		"an unknown call":  {w.decide(session, "zzz", agentv1.Decision_DECISION_APPROVED), fault.NotFound},
		"another call":     {w.decide(session, "a", agentv1.Decision_DECISION_APPROVED), fault.NotFound},
		"another question": {w.decide(session, "b", agentv1.Decision_DECISION_HAPPENED), fault.Invalid},
	} {
		if fault.KindOf(tt.err) != tt.want {
			t.Errorf("Decide for %s = %v, want %v", what, tt.err, tt.want)
		}
	}
	if n := w.tools.timesRan("b"); n != 0 {
		t.Fatalf("call b ran %d times without an approval", n)
	}
	for range 2 { // the second time changes nothing
		if err := w.decide(session, "b", agentv1.Decision_DECISION_APPROVED); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.decide(session, "b", agentv1.Decision_DECISION_REFUSED); fault.KindOf(err) != fault.Conflict {
		t.Errorf("another answer = %v, want a conflict", err)
	}
	events = append(events, v.until(isEnd)...)
	checkDense(t, events)
	want := []string{
		`1 user "go"`, "1 start", "1 tool-start read", "1 tool-delta {}", "1 tool-start send", `1 tool-delta {"to":"x"}`, "1 call a read {}", `1 call b send {"to":"x"}`,
		`1 ask b {"to":"x"} false`, `1 result a {"result":"text"} false`, "1 waiting 0 a tool call waits for a person's approval",
		"1 start", "1 answer b approved ", `1 result b {"result":"sent"} false`, "1 step 0 tool-calls 10/5", "1 text Sent.", "1 step 1 stop 10/5", `1 done stop "Sent." 2`,
	}
	if diff := cmp.Diff(want, lines(events)); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if n := w.tools.timesRan("b"); n != 1 {
		t.Errorf("call b ran %d times, want once", n)
	}
	v.until(isEnd) // the queued run
}

// An approval that is sent again does not approve a later call to which the model gave the same
// id.
func TestApprovalIsForOneQuestion(t *testing.T) {
	t.Parallel()
	w := asking(t)
	w.model.then(calls([3]string{"call_0", "send", `{"to":"x"}`}), calls([3]string{"call_0", "send", `{"to":"y"}`}), says("Both."))
	w.start()
	session := w.session(&agentv1.CreateSessionRequest{})
	v := w.watch(session)
	w.submit(session, "go")
	question := func() func(*agentv1.DecideRequest) {
		v.until(parked)
		list, err := w.approvals.ListApprovals(w.as(identity.Viewer), &agentv1.ListApprovalsRequest{})
		if err != nil || len(list.GetApprovals()) != 1 {
			t.Fatalf("ListApprovals = %v, %v, want one", list, err)
		}
		return func(r *agentv1.DecideRequest) { r.AskedAt = list.GetApprovals()[0].GetAskedAt() }
	}
	const yes, no = agentv1.Decision_DECISION_APPROVED, agentv1.Decision_DECISION_REFUSED
	first := question()
	if err := w.decide(session, "call_0", yes, first); err != nil {
		t.Fatal(err)
	}
	second := question()
	if err := w.decide(session, "call_0", yes, first); err != nil {
		t.Errorf("the same answer again = %v, want no error", err)
	}
	if err := w.decide(session, "call_0", no, first); fault.KindOf(err) != fault.Conflict {
		t.Errorf("another answer to the first question = %v, want a conflict", err)
	}
	if err := w.decide(session, "call_0", yes, func(r *agentv1.DecideRequest) { r.AskedAt = timestamppb.Now() }); fault.From(err).Code != "APPROVAL_CHANGED" {
		t.Errorf("an answer to no question = %v, want APPROVAL_CHANGED", err)
	}
	if err := w.decide(session, "call_0", yes, func(r *agentv1.DecideRequest) { r.RunId = session }); fault.KindOf(err) != fault.NotFound {
		t.Errorf("an answer about another run's call = %v, want %v", err, fault.NotFound)
	}
	if n := w.tools.timesRan("call_0"); n != 1 {
		t.Errorf("the calls ran %d times, want the first one only", n)
	}
	if err := w.decide(session, "call_0", yes, second); err != nil {
		t.Fatal(err)
	}
	v.until(isEnd)
}

// A refusal is an error result for the model, and a run that waits is stopped at once.
func TestRefusalAndStop(t *testing.T) {
	t.Parallel()
	w := asking(t)
	w.model.then(calls([3]string{"a", "send", "{}"}), calls([3]string{"b", "send", "{}"}))
	w.start()
	session := w.session(&agentv1.CreateSessionRequest{})
	v := w.watch(session)
	w.submit(session, "go")
	v.until(parked)
	if err := w.decide(session, "a", agentv1.Decision_DECISION_REFUSED, func(r *agentv1.DecideRequest) { r.Reason = "wrong list" }); err != nil {
		t.Fatal(err)
	}
	v.until(parked)
	if second := string(w.model.asked()[1]); !strings.Contains(second, "a person refused this call, so it was not made: wrong list") {
		t.Errorf("the model is not told of the refusal: %s", second)
	}
	if _, err := w.conversations.Cancel(w.as(identity.Owner), &agentv1.CancelRequest{SessionId: session}); err != nil {
		t.Fatal(err)
	}
	events := v.until(isEnd)
	if got := events[len(events)-1].GetDone().GetFinishReason(); got != "cancelled" {
		t.Errorf("the run ends with %s, want cancelled", got)
	}
	if err := w.decide(session, "b", agentv1.Decision_DECISION_APPROVED); fault.KindOf(err) != fault.Conflict {
		t.Errorf("an approval after the end = %v, want a conflict", err)
	}
	if n := w.tools.timesRan("a") + w.tools.timesRan("b"); n != 0 {
		t.Errorf("refused and stopped calls ran %d times", n)
	}
	// The answer stands beside the messages: who gave it, when and why. Nobody has answered about the other call.
	want := []*agentv1.CallFigures{{ToolCallId: "a", Decision: agentv1.Decision_DECISION_REFUSED, DecisionReason: "wrong list", DecidedBy: "0198a000-0000-7000-8000-000000000001"}}
	got := w.look(session).GetRuns()[0].GetCalls()
	if diff := cmp.Diff(want, got, protocmp.Transform(), protocmp.IgnoreFields(&agentv1.CallFigures{}, "decided_at")); diff != "" {
		t.Errorf("answers beside the messages (-want +got):\n%s", diff)
	}
	if len(got) > 0 && time.Since(got[0].GetDecidedAt().AsTime()) > time.Hour {
		t.Errorf("the answer was given at %v, want now", got[0].GetDecidedAt())
	}
}

// A question that cannot be expired does not keep the others.
func TestApprovalsExpireOneByOne(t *testing.T) {
	t.Parallel()
	w := asking(t)
	w.model.then(calls([3]string{"a", "send", "{}"}), calls([3]string{"b", "send", "{}"}), says("Not sent."))
	w.start()
	ask := func() (string, *viewer) {
		session := w.session(&agentv1.CreateSessionRequest{})
		v := w.watch(session)
		w.submit(session, "go")
		v.until(parked)
		return session, v
	}
	broken, _ := ask()
	_, v := ask()
	err := w.db.Open(t, agentrunner.Migrations()).InWorkspace(t.Context(), w.workspace, func(ctx context.Context, tx pgx.Tx) error {
		// The claim that this run needs has no number.
		if _, err := tx.Exec(ctx, `UPDATE runs SET epoch = 9223372036854775807 WHERE workspace_id = $1 AND session_id = $2`, w.workspace, broken); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `
			UPDATE tool_calls SET expires_at = clock_timestamp() - CASE session_id WHEN $2 THEN interval '2 seconds' ELSE interval '1 second' END
			WHERE workspace_id = $1`, w.workspace, broken)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	v.until(isEnd)
}

// Nobody's answer is a refusal.
func TestApprovalExpires(t *testing.T) {
	t.Parallel()
	w := asking(t)
	w.model.then(calls([3]string{"a", "send", "{}"}), says("Not sent."))
	w.start(func(c *agentrunner.Config) { c.ApprovalTime = time.Second })
	session := w.session(&agentv1.CreateSessionRequest{})
	v := w.watch(session)
	w.submit(session, "go")
	got := lines(v.until(isEnd))
	if !strings.Contains(strings.Join(got, "\n"), "1 answer a expired ") || w.tools.timesRan("a") != 0 {
		t.Errorf("the call ran %d times; events:\n%s", w.tools.timesRan("a"), strings.Join(got, "\n"))
	}
	if err := w.decide(session, "a", agentv1.Decision_DECISION_APPROVED); fault.From(err).Code != "APPROVAL_EXPIRED" {
		t.Errorf("a late approval = %v, want APPROVAL_EXPIRED", err)
	}
}

// A person is asked about an unknown outcome of a call that they have approved, and may let it
// run again.
func TestUnknownOutcome(t *testing.T) {
	t.Parallel()
	w := asking(t)
	w.tools.unknown = 2
	w.model.then(calls([3]string{"a", "send", "{}"}), says("Done."))
	w.start()
	session := w.session(&agentv1.CreateSessionRequest{})
	v := w.watch(session)
	w.submit(session, "go")
	var got []string
	for _, d := range []agentv1.Decision{agentv1.Decision_DECISION_APPROVED, agentv1.Decision_DECISION_REPEAT, agentv1.Decision_DECISION_HAPPENED} {
		got = append(got, lines(v.until(parked))...)
		if err := w.decide(session, "a", d); err != nil {
			t.Fatal(err)
		}
	}
	got = append(got, lines(v.until(isEnd))...)
	var asked []string
	for _, l := range got {
		if strings.HasPrefix(l, "1 ask") || strings.HasPrefix(l, "1 answer") || strings.HasPrefix(l, "1 result") {
			asked = append(asked, l)
		}
	}
	want := []string{
		"1 ask a {} false", "1 answer a approved ", "1 ask a {} true", "1 answer a repeat ", "1 ask a {} true", "1 answer a happened ",
		`1 result a {"result":"a person has checked that this call took effect"} false`,
	}
	if diff := cmp.Diff(want, asked); diff != "" {
		t.Errorf("questions and answers (-want +got):\n%s", diff)
	}
	if n := w.tools.timesRan("a"); n != 2 {
		t.Errorf("the call ran %d times, want twice", n)
	}
}

// An answer may be remembered, a rule may deny or ask, and rules of the workspace are for owners.
func TestRules(t *testing.T) {
	t.Parallel()
	w := asking(t)
	w.model.then(calls([3]string{"a", "send", `{"n":1}`}), calls([3]string{"b", "send", `{"n": 1}`}), calls([3]string{"c", "send", `{"n":2}`}),
		calls([3]string{"d", "read", `{}`}), calls([3]string{"e", "send", `{"to":"x","n":3}`}), says("Done."))
	w.start()
	session := w.session(&agentv1.CreateSessionRequest{})
	rule := func(role identity.Role, r *agentv1.CreateRuleRequest) error {
		_, err := w.approvals.CreateRule(w.as(role), r)
		return err
	}
	ask := &agentv1.CreateRuleRequest{ToolName: "read", Effect: agentv1.RuleEffect_RULE_EFFECT_ASK}
	if err := rule(identity.Editor, ask); fault.KindOf(err) != fault.Forbidden {
		t.Errorf("an editor's rule for the workspace = %v, want Forbidden", err)
	}
	if err := rule(identity.Owner, ask); err != nil {
		t.Fatal(err)
	}
	for _, pattern := range []string{"*", "read*", "mcp__x__*", " read", "re\nad"} {
		if err := rule(identity.Owner, &agentv1.CreateRuleRequest{ToolName: pattern, Effect: agentv1.RuleEffect_RULE_EFFECT_DENY}); fault.KindOf(err) != fault.Invalid {
			t.Errorf("a rule for %q = %v, want Invalid: it would never match", pattern, err)
		}
	}
	v := w.watch(session)
	w.submit(session, "go")
	remember := func(r agentv1.Remember) func(*agentv1.DecideRequest) {
		return func(d *agentv1.DecideRequest) { d.Remember = r }
	}
	until := func(call string) {
		t.Helper()
		var asked []string
		for _, ev := range v.until(parked) {
			if a := ev.GetToolApprovalRequest(); a != nil {
				asked = append(asked, a.GetToolCallId())
			}
		}
		if diff := cmp.Diff([]string{call}, asked); diff != "" {
			t.Fatalf("asked about (-want +got):\n%s", diff)
		}
	}
	for _, d := range []struct {
		call     string
		remember agentv1.Remember
	}{
		{"a", agentv1.Remember_REMEMBER_ARGUMENTS}, // and so b runs
		{"c", agentv1.Remember_REMEMBER_SESSION},   // and so would e
		{"d", agentv1.Remember_REMEMBER_UNSPECIFIED},
	} {
		until(d.call)
		if d.call == "d" {
			if err := rule(identity.Editor, &agentv1.CreateRuleRequest{SessionId: session, ToolName: "send", ArgsJson: `{"n":3,"to":"x"}`, Effect: agentv1.RuleEffect_RULE_EFFECT_DENY}); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.decide(session, d.call, agentv1.Decision_DECISION_APPROVED, remember(d.remember)); err != nil {
			t.Fatal(err)
		}
	}
	got := strings.Join(lines(v.until(isEnd)), "\n")
	if !strings.Contains(got, "a rule of this workspace forbids this call") || w.tools.timesRan("b") != 1 || w.tools.timesRan("e") != 0 {
		t.Errorf("b ran %d times, e %d; events:\n%s", w.tools.timesRan("b"), w.tools.timesRan("e"), got)
	}
	list, err := w.approvals.ListRules(w.as(identity.Viewer), &agentv1.ListRulesRequest{Limit: 3})
	if err != nil || len(list.GetRules()) != 3 || list.GetNextPageToken() == "" {
		t.Fatalf("ListRules = %v, %v, want three of four", list, err)
	}
	rest, err := w.approvals.ListRules(w.as(identity.Viewer), &agentv1.ListRulesRequest{PageToken: list.GetNextPageToken()})
	if err != nil || len(rest.GetRules()) != 1 || rest.GetRules()[0].GetToolName() != "read" {
		t.Fatalf("the rest of the rules = %v, %v, want the workspace's", rest, err)
	}
	remove := func(role identity.Role) error {
		_, err := w.approvals.DeleteRule(w.as(role), &agentv1.DeleteRuleRequest{Id: rest.GetRules()[0].GetId()})
		return err
	}
	for _, tt := range []struct {
		role identity.Role
		want fault.Kind
	}{{identity.Editor, fault.Forbidden}, {identity.Owner, fault.Kind(0)}, {identity.Owner, fault.NotFound}} {
		if err := remove(tt.role); (err != nil || tt.want != 0) && fault.KindOf(err) != tt.want {
			t.Errorf("DeleteRule as %v = %v, want %v", tt.role, err, tt.want)
		}
	}
}

// After a stranger's text and private data were read, a call that acts outside asks, even if a
// rule allows the tool. A rule that names the arguments still holds.
func TestTaint(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, spec := range map[string]*toolv1.Tool{"web": {ReadsUntrusted: true}, "docs": {ReadsPrivate: true}, "post": {ActsOutside: true}} {
		w.tools.add(name, func(context.Context, *toolv1.Call) string { return `{"result":"ok"}` })
		w.tools.specs[name] = spec
	}
	w.model.then(
		calls([3]string{"a", "docs", "{}"}, [3]string{"b", "post", `{"n":1}`}), calls([3]string{"c", "web", "{}"}, [3]string{"d", "post", `{"n":2}`}),
		calls([3]string{"e", "post", `{"n":3}`}, [3]string{"f", "post", `{"n":4}`}, [3]string{"g", "docs", "{}"}), says("Done."),
		calls([3]string{"h", "post", "{}"}), says("Done."),
	)
	w.start()
	session := w.session(&agentv1.CreateSessionRequest{})
	for _, args := range []string{"", `{"n":4}`} {
		req := &agentv1.CreateRuleRequest{ToolName: "post", ArgsJson: args, Effect: agentv1.RuleEffect_RULE_EFFECT_ALLOW}
		if _, err := w.approvals.CreateRule(w.as(identity.Owner), req); err != nil {
			t.Fatal(err)
		}
	}
	v := w.watch(session)
	w.submit(session, "go")
	v.until(parked)
	for call, want := range map[string]int{"b": 1, "d": 1, "e": 0, "f": 1, "g": 1} {
		if n := w.tools.timesRan(call); n != want {
			t.Errorf("call %s ran %d times, want %d", call, n, want)
		}
	}
	if err := w.decide(session, "e", agentv1.Decision_DECISION_APPROVED); err != nil {
		t.Fatal(err)
	}
	v.until(isEnd)
	w.submit(session, "again") // another run of the same conversation
	v.until(parked)
}

// What the provider's search finds counts for the calls that the model makes in the same answer.
func TestTaintOfOneAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, spec := range map[string]*toolv1.Tool{"docs": {ReadsPrivate: true}, "post": {ActsOutside: true}} {
		w.tools.add(name, func(context.Context, *toolv1.Call) string { return `{"result":"ok"}` })
		w.tools.specs[name] = spec
	}
	w.model.then(calls([3]string{"a", "docs", "{}"}), func(a *answer) {
		a.begin()
		a.event("content_block_start", `{"type":"content_block_start","index":0,"content_block":{"type":"server_tool_use","id":"srvtoolu_1","name":"web_search","input":{}}}`)
		a.event("content_block_stop", `{"type":"content_block_stop","index":0}`)
		a.event("content_block_start", `{"type":"content_block_start","index":1,"content_block":{"type":"web_search_tool_result","tool_use_id":"srvtoolu_1","content":[]}}`)
		a.event("content_block_stop", `{"type":"content_block_stop","index":1}`)
		a.blocks = 2
		a.call("b", "post", "{}")
		a.end()
	})
	w.start()
	session := w.session(&agentv1.CreateSessionRequest{})
	v := w.watch(session)
	w.submit(session, "go")
	v.until(parked)
	if n := w.tools.timesRan("b"); n != 0 {
		t.Errorf("call b ran %d times, want that it waits", n)
	}
}

// An answer that comes while the step's other calls run is found before the run parks.
func TestApprovalWhileOthersRun(t *testing.T) {
	t.Parallel()
	w := asking(t)
	began, approved := make(chan struct{}), make(chan struct{})
	w.tools.add("read", func(context.Context, *toolv1.Call) string { close(began); <-approved; return `{"result":"text"}` })
	w.model.then(calls([3]string{"a", "read", "{}"}, [3]string{"b", "send", "{}"}), says("Done."))
	w.start()
	session := w.session(&agentv1.CreateSessionRequest{})
	v := w.watch(session)
	w.submit(session, "go")
	<-began
	if err := w.decide(session, "b", agentv1.Decision_DECISION_APPROVED); err != nil {
		t.Fatal(err)
	}
	close(approved)
	events := v.until(isEnd)
	checkDense(t, events)
	if n := w.tools.timesRan("b"); n != 1 {
		t.Errorf("call b ran %d times, want once; events:\n%s", n, strings.Join(lines(events), "\n"))
	}
}
