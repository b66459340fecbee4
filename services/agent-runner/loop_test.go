package agentrunner_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/subject"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	agentrunner "signalbox.dev/services/agent-runner"
)

func TestAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.model.then(says("Hello", " there."))
	w.start()
	session := w.session(&agentv1.CreateSessionRequest{})
	v := w.watch(session)
	sub := w.submit(session, "Hi, who are you?")
	events := v.until(isEnd)
	want := []string{`1 user "Hi, who are you?"`, "1 start", "1 text Hello there.", "1 step 0 stop 10/5", `1 done stop "Hello there." 1`}
	if diff := cmp.Diff(want, lines(events)); diff != "" {
		t.Error(diff)
	}
	checkDense(t, events)

	got := w.look(session)
	if got.GetSession().GetTitle() != "Hi, who are you?" {
		t.Errorf("title = %q, want the first message", got.GetSession().GetTitle())
	}
	var messages []string
	for _, m := range got.GetMessages() {
		messages = append(messages, m.GetRole()+" "+m.GetContentJson())
	}
	want = []string{`user "Hi, who are you?"`, `assistant [{"type":"text","text":"Hello there."}]`}
	if diff := cmp.Diff(want, messages); diff != "" {
		t.Error(diff)
	}
	if got.GetActiveRun() != nil || got.GetLastEvent().GetNumber() != events[len(events)-1].GetNumber() {
		t.Errorf("active run %v, last event %v; want none, and the terminal event's number %d", got.GetActiveRun(), got.GetLastEvent(), events[len(events)-1].GetNumber())
	}
	r := w.run(sub.GetRun().GetId())
	if r.GetRun().GetState() != agentv1.RunState_RUN_STATE_DONE || r.GetRun().GetUsage().GetInputTokens() != 10 || r.GetRun().GetUsage().GetOutputTokens() != 5 || len(r.GetSteps()) != 1 {
		t.Errorf("GetRun = %v", r)
	}
	// The list price of ten input tokens and five output tokens of the default model.
	var cost *int64
	err := w.db.Open(t, agentrunner.Migrations()).AsSystem(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, `SELECT cost_micros FROM usage WHERE run_id = $1`, sub.GetRun().GetId()).Scan(&cost)
	})
	if err != nil || cost == nil || *cost != 10*3+5*15 {
		t.Errorf("the run cost %v millionths of a dollar, %v, want 105", cost, err)
	}
}

// A citation follows the text that relies on it, and quotes a part of a long source.
func TestCitations(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.model.then(func(a *answer) {
		a.begin()
		a.event("content_block_start", `{"type":"content_block_start","index":0,"content_block":{"type":"text","text":"","citations":[]}}`)
		a.event("content_block_delta", `{"type":"content_block_delta","index":0,"delta":{"type":"citations_delta","citation":{"type":"web_search_result_location","url":"https://a","title":"A","cited_text":"%s"}}}`, strings.Repeat("é", 600))
		a.event("content_block_delta", `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"It is so"}}`)
		a.event("content_block_stop", `{"type":"content_block_stop","index":0}`)
		a.blocks++
		a.text(".")
		a.end()
	})
	w.start()
	session := w.session(&agentv1.CreateSessionRequest{})
	v := w.watch(session)
	w.submit(session, "Is it?")
	want := []string{"1 source https://a A", "1 text It is so", `1 citation https://a "` + strings.Repeat("é", 500) + `" 0`, "1 text ."}
	got := slices.DeleteFunc(lines(v.until(isEnd)), func(l string) bool { return !slices.Contains(want, l) })
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// TestLongestPause checks the metric of the longest pause in a model's answer.
func TestLongestPause(t *testing.T) {
	t.Parallel()
	const pause, least = 200 * time.Millisecond, 50 * time.Millisecond // the runner may get the beginning late
	w := newWorld(t)
	w.model.then(func(a *answer) {
		a.begin()
		time.Sleep(pause) //nolint:forbidigo // what is measured
		a.text("Hello.")
		a.end()
	})
	r := w.start()
	session := w.session(&agentv1.CreateSessionRequest{})
	v := w.watch(session)
	began := time.Now()
	w.submit(session, "Hi")
	v.until(isEnd)
	families, err := r.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "signalbox_model_pause_seconds" {
			continue
		}
		h, most := f.GetMetric()[0].GetHistogram(), time.Since(began).Seconds()
		if h.GetSampleCount() != 1 || h.GetSampleSum() < least.Seconds() || h.GetSampleSum() > most {
			t.Errorf("%d answers paused for %v s, want one for %v to %v s", h.GetSampleCount(), h.GetSampleSum(), least.Seconds(), most)
		}
		return
	}
	t.Error("there is no signalbox_model_pause_seconds")
}

func TestTools(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	progressed := make(chan struct{})
	w.tools.add("one", func(ctx context.Context, c *toolv1.Call) string {
		for _, key := range []string{id.New[id.Operation]().String(), c.GetKey()} { // the first is nobody's
			m := &toolv1.Progress{Key: key, RunId: c.GetRunId(), Message: "half of " + c.GetToolCallId(), Percent: new(int32(50))}
			if err := w.tools.bus.Nudge(ctx, subject.ToolDone(id.Must[id.Run](c.GetRunId())), m); err != nil {
				t.Error(err)
			}
		}
		select {
		case <-progressed:
		case <-ctx.Done():
		}
		return `{"result":"1"}`
	})
	w.tools.add("two", func(_ context.Context, c *toolv1.Call) string {
		if c.GetArgsJson() != `{"n":2}` {
			t.Errorf("args = %s", c.GetArgsJson())
		}
		return `{"image":{"type":"file","mediaType":"image/png","data":"AAAA"},"result":"2"}`
	})
	w.tools.specs["two"] = &toolv1.Tool{MayReturnImage: true}
	w.model.then(calls([3]string{"a", "one", "{}"}, [3]string{"b", "two", `{"n":2}`}, [3]string{"c", "nope", "{}"}, [3]string{"d", "one", `{"broken`}), says("Done."))
	w.start()
	session := w.session(&agentv1.CreateSessionRequest{})
	v := w.watch(session)
	sub := w.submit(session, "go")
	events := v.until(func(ev *runv1.Event) bool { return ev.GetToolProgress() != nil })
	close(progressed)
	want := &runv1.ToolProgress{ToolCallId: "a", ToolName: "one", Message: "half of a", Percent: new(int32(50))}
	if diff := cmp.Diff(want, events[len(events)-1].GetToolProgress(), protocmp.Transform()); diff != "" {
		t.Errorf("progress (-want +got):\n%s", diff)
	}
	events = append(events, v.until(isEnd)...)
	checkDense(t, events)

	var tool, last string
	for _, m := range w.look(session).GetMessages() {
		if m.GetRole() == "tool" {
			tool = m.GetContentJson()
		}
		last = m.GetContentJson()
	}
	var parts []struct {
		ToolCallID string
		Output     struct{ Type string }
	}
	if err := json.Unmarshal([]byte(tool), &parts); err != nil {
		t.Fatalf("tool message %q: %v", tool, err)
	}
	var order []string
	for _, p := range parts {
		order = append(order, p.ToolCallID+" "+p.Output.Type)
	}
	if diff := cmp.Diff([]string{"a json", "b content", "c error-json", "d error-json"}, order); diff != "" {
		t.Errorf("the tool message has the results in call order:\n%s", diff)
	}
	if last != `[{"type":"text","text":"Done."}]` {
		t.Errorf("last message = %s", last)
	}
	if end := events[len(events)-1].GetDone(); end.GetFinalText() != "Done." {
		t.Errorf("the last step's text is %q", end.GetFinalText())
	}
	if got := lines(events); got[len(got)-1] != `1 done stop "Done." 2` {
		t.Errorf("events:\n%s", strings.Join(got, "\n"))
	}
	r := w.run(sub.GetRun().GetId())
	if len(r.GetToolCalls()) != 4 || len(r.GetSteps()) != 2 || r.GetRun().GetUsage().GetInputTokens() != 20 {
		t.Errorf("GetRun = %v", r)
	}
	for _, c := range []string{"a", "b"} {
		if n := w.tools.timesRan(c); n != 1 {
			t.Errorf("call %s ran %d times, want once", c, n)
		}
	}
	// How long the tools ran is in the log and beside the messages; the other two calls did not run.
	var ran []*agentv1.CallFigures
	for _, ev := range events {
		if r := ev.GetToolResult(); r.GetDurationMs() > 0 {
			ran = append(ran, &agentv1.CallFigures{ToolCallId: r.GetToolCallId(), DurationMs: r.GetDurationMs()})
		}
	}
	slices.SortFunc(ran, func(a, b *agentv1.CallFigures) int { return strings.Compare(a.GetToolCallId(), b.GetToolCallId()) })
	durations := []*agentv1.CallFigures{{ToolCallId: "a", DurationMs: 1}, {ToolCallId: "b", DurationMs: 1}}
	if diff := cmp.Diff(durations, ran, protocmp.Transform()); diff != "" {
		t.Errorf("durations of the events (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(durations, w.look(session).GetRuns()[0].GetCalls(), protocmp.Transform()); diff != "" {
		t.Errorf("durations beside the messages (-want +got):\n%s", diff)
	}
	// The second request has the first answer's blocks and all four results.
	second := string(w.model.asked()[1])
	for _, want := range []string{`"tool_use_id":"a"`, `"tool_use_id":"d"`, `"is_error":true`, `"media_type":"image/png"`} {
		if !strings.Contains(second, want) {
			t.Errorf("the second request lacks %s: %s", want, second)
		}
	}
}

// An outcome whose announcement is lost is polled from the executor.
func TestToolAnnouncementLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.tools.silent = true
	w.tools.add("one", func(context.Context, *toolv1.Call) string { return `{"result":"1"}` })
	w.model.then(calls([3]string{"a", "one", "{}"}), says("Done."))
	w.start()
	session := w.session(&agentv1.CreateSessionRequest{})
	v := w.watch(session)
	w.submit(session, "go")
	v.until(isEnd)
	if n := w.tools.timesRan("a"); n != 1 {
		t.Errorf("the tool ran %d times", n)
	}
}

// A call whose message is lost before an executor claims it is dispatched again.
func TestToolMessageLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.tools.lose = 1
	w.tools.add("one", func(context.Context, *toolv1.Call) string { return `{"result":"1"}` })
	w.model.then(calls([3]string{"a", "one", "{}"}), says("Done."))
	w.start()
	session := w.session(&agentv1.CreateSessionRequest{})
	v := w.watch(session)
	w.submit(session, "go")
	v.until(isEnd)
	if n := w.tools.timesRan("a"); n != 1 {
		t.Errorf("the call ran %d times, want once", n)
	}
}

func TestQueue(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	release := make(chan struct{})
	w.model.then(func(a *answer) { a.begin(); await(a.r.Context(), release); a.text("First."); a.end() }, says("Second."), says("Third."))
	w.start()
	session := w.session(&agentv1.CreateSessionRequest{})
	v := w.watch(session)
	w.submit(session, "one")
	v.until(func(ev *runv1.Event) bool { return ev.GetRunStart() != nil })
	second := w.submit(session, "two")
	if got := second.GetRun().GetState(); got != agentv1.RunState_RUN_STATE_QUEUED {
		t.Errorf("state = %v, want queued", got)
	}
	w.submit(session, "three")
	if _, err := w.conversations.Submit(w.as(identity.Editor), &agentv1.SubmitRequest{SessionId: session, ContentJson: `"no"`, Mode: agentv1.SubmitMode_SUBMIT_MODE_REJECT}); err == nil || !strings.Contains(err.Error(), "active") {
		t.Errorf("Submit with reject = %v, want a conflict", err)
	}
	close(release)
	ends := 0
	events := v.until(func(ev *runv1.Event) bool {
		if isEnd(ev) {
			ends++
		}
		return ends == 3
	})
	want := []string{
		"1 text First.", "1 step 0 stop 10/5", `1 done stop "First." 1`,
		`2 user "two"`, "2 start", "2 text Second.", "2 step 0 stop 10/5", `2 done stop "Second." 1`,
		`3 user "three"`, "3 start", "3 text Third.", "3 step 0 stop 10/5", `3 done stop "Third." 1`,
	}
	if diff := cmp.Diff(want, lines(events)); diff != "" {
		t.Error(diff)
	}
	var order []string
	for _, m := range w.look(session).GetMessages() {
		order = append(order, m.GetRole())
	}
	if diff := cmp.Diff([]string{"user", "assistant", "user", "assistant", "user", "assistant"}, order); diff != "" {
		t.Errorf("a queued message joins when its run begins:\n%s", diff)
	}
}

func TestCancel(t *testing.T) {
	t.Parallel()
	t.Run("while the model speaks, with one queued", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		cut := make(chan struct{})
		w.model.then(func(a *answer) {
			a.begin()
			a.event("content_block_start", `{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`)
			a.event("content_block_delta", `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":%q}}`, "So far"+strings.Repeat(" so good", 120))
			<-a.r.Context().Done()
			close(cut)
		})
		w.start()
		session := w.session(&agentv1.CreateSessionRequest{})
		v := w.watch(session)
		one := w.submit(session, "one").GetRun().GetId()
		v.until(func(ev *runv1.Event) bool { return ev.GetTextDelta() != nil })
		w.submit(session, "two")
		if _, err := w.conversations.Cancel(w.as(identity.Editor), &agentv1.CancelRequest{SessionId: session, All: true}); err != nil {
			t.Fatal(err)
		}
		select {
		case <-cut:
		case <-time.After(patient):
			t.Fatal("the model call was not cut")
		}
		ended := map[int64]string{}
		v.until(func(ev *runv1.Event) bool {
			if ev.GetDone() != nil {
				ended[ev.GetRunOrdinal()] = ev.GetDone().GetFinishReason()
			}
			return len(ended) == 2
		})
		if diff := cmp.Diff(map[int64]string{1: "cancelled", 2: "cancelled"}, ended); diff != "" {
			t.Error(diff)
		}
		var kept bool
		res := w.look(session)
		for _, m := range res.GetMessages() {
			kept = kept || m.GetRole() == "assistant" && strings.Contains(m.GetContentJson(), "So far") && m.GetInterrupted()
		}
		if s := res.GetStoppedRuns(); len(s) != 2 || s[0].GetId() != one || s[0].GetFinishReason() != "cancelled" || s[1].GetFinishReason() != "cancelled" {
			t.Errorf("stopped runs: %v, want both", s)
		}
		if !kept {
			t.Error("what was said so far is not kept")
		}
		// The provider reported 1 at the start of its answer; 966 bytes have come since.
		r := w.run(one)
		want := &agentv1.Usage{InputTokens: 10, OutputTokens: 242, Estimated: true}
		if diff := cmp.Diff([]*agentv1.Usage{want, want, {}}, []*agentv1.Usage{r.GetRun().GetUsage(), r.GetSteps()[0].GetUsage(), r.GetSteps()[0].GetWasted()}, protocmp.Transform()); diff != "" {
			t.Errorf("usage (-want +got):\n%s", diff)
		}
		if got := w.spent(one); got != "wasted false: 10 in 242 out, estimated true, costs 3660" {
			t.Errorf("spent: %s", got)
		}
		w.model.then(says("Again."))
		w.submit(session, "three")
		events := v.until(isEnd)
		if got := lines(events); got[len(got)-1] != `3 done stop "Again." 1` {
			t.Errorf("the session does not go on: %v", got)
		}
		if n := len(w.look(session).GetStoppedRuns()); n != 2 {
			t.Errorf("%d stopped runs, want 2: the third gave its answer", n)
		}
	})
	t.Run("while the model writes a tool call", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.model.then(func(a *answer) {
			a.begin()
			a.event("content_block_start", `{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"toolu_1","name":"echo","input":{}}}`)
			a.event("content_block_delta", `{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":%q}}`, `{"q":"`+strings.Repeat("a", 394))
			<-a.r.Context().Done()
		})
		w.start()
		session := w.session(&agentv1.CreateSessionRequest{})
		v := w.watch(session)
		run := w.submit(session, "one").GetRun().GetId()
		v.until(func(ev *runv1.Event) bool { return ev.GetToolCallDelta() != nil })
		if _, err := w.conversations.Cancel(w.as(identity.Editor), &agentv1.CancelRequest{SessionId: session}); err != nil {
			t.Fatal(err)
		}
		v.until(isEnd)
		// Nothing of it is kept.
		r := w.run(run)
		if len(r.GetSteps()) != 1 {
			t.Fatalf("GetRun = %v, want a step", r)
		}
		want := []*agentv1.Usage{{}, {InputTokens: 10, OutputTokens: 100, Estimated: true}}
		if diff := cmp.Diff(want, []*agentv1.Usage{r.GetRun().GetUsage(), r.GetSteps()[0].GetWasted()}, protocmp.Transform()); diff != "" {
			t.Errorf("usage (-want +got):\n%s", diff)
		}
		if got := w.spent(run); got != "wasted true: 10 in 100 out, estimated true, costs 1530" {
			t.Errorf("spent: %s", got)
		}
	})
	t.Run("while a tool runs", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		started := make(chan struct{})
		w.tools.add("slow", func(ctx context.Context, _ *toolv1.Call) string {
			close(started)
			<-w.tools.cancelled
			return `{"error":"cancelled"}`
		})
		w.model.then(calls([3]string{"a", "slow", "{}"}))
		w.start()
		session := w.session(&agentv1.CreateSessionRequest{})
		v := w.watch(session)
		w.submit(session, "one")
		<-started
		if _, err := w.conversations.Cancel(w.as(identity.Editor), &agentv1.CancelRequest{SessionId: session}); err != nil {
			t.Fatal(err)
		}
		events := v.until(isEnd)
		if got := lines(events); !strings.HasPrefix(got[len(got)-1], "1 done cancelled") {
			t.Errorf("events: %v", got)
		}
		checkDense(t, events)
		msgs := w.look(session).GetMessages()
		if last := msgs[len(msgs)-1]; last.GetRole() != "tool" || !strings.Contains(last.GetContentJson(), "error-json") {
			t.Errorf("last message = %v, want the tool message with an error", last)
		}
	})
	t.Run("while a tool runs and a steering message waits", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		started := make(chan struct{})
		w.tools.add("slow", func(context.Context, *toolv1.Call) string {
			close(started)
			<-w.tools.cancelled
			return `{"error":"cancelled"}`
		})
		w.model.then(calls([3]string{"a", "slow", "{}"}))
		w.start()
		session := w.session(&agentv1.CreateSessionRequest{})
		v := w.watch(session)
		w.submit(session, "one")
		<-started
		if _, err := w.conversations.Submit(w.as(identity.Editor), &agentv1.SubmitRequest{SessionId: session, ContentJson: `"two"`, Mode: agentv1.SubmitMode_SUBMIT_MODE_STEER}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.conversations.Cancel(w.as(identity.Editor), &agentv1.CancelRequest{SessionId: session}); err != nil {
			t.Fatal(err)
		}
		checkDense(t, v.until(isEnd))
		var order []string
		for _, m := range w.look(session).GetMessages() {
			order = append(order, m.GetRole())
		}
		if diff := cmp.Diff([]string{"user", "assistant", "tool", "user"}, order); diff != "" {
			t.Errorf("results follow their calls, whatever joins:\n%s", diff)
		}
	})
}

func TestRetry(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	broken := func(a *answer) {
		a.begin()
		a.text("Lost words")
		panic(http.ErrAbortHandler)
	}
	silent := func(a *answer) {
		a.begin()
		panic(http.ErrAbortHandler)
	}
	w.model.then(fails(529, overloaded), broken, silent, says("Whole."))
	w.start()
	session := w.session(&agentv1.CreateSessionRequest{})
	v := w.watch(session)
	run := w.submit(session, "go").GetRun().GetId()
	events := v.until(isEnd)
	checkDense(t, events)
	want := []string{`1 user "go"`, "1 start", "1 text Lost words", "1 retry 0", "1 text Whole.", "1 step 0 stop 10/5", `1 done stop "Whole." 1`}
	if diff := cmp.Diff(want, lines(events)); diff != "" {
		t.Error(diff)
	}
	r := w.run(run)
	used := []*agentv1.Usage{{InputTokens: 10, OutputTokens: 5}, {InputTokens: 20, OutputTokens: 3 + 1, Estimated: true}}
	if diff := cmp.Diff(used, []*agentv1.Usage{r.GetRun().GetUsage(), r.GetSteps()[0].GetWasted()}, protocmp.Transform()); diff != "" {
		t.Errorf("usage (-want +got):\n%s", diff)
	}
	if got := w.spent(run); got != "wasted false: 10 in 5 out, estimated false, costs 105; wasted true: 20 in 4 out, estimated true, costs 120" {
		t.Errorf("spent: %s", got)
	}
}

// Viewers are told once, in advance, of a wait that a provider requests, but not of a very
// short one or one that ends the run.
func TestWaiting(t *testing.T) {
	t.Parallel()
	limited := func(status int, retryAfter string) func(*answer) {
		return func(a *answer) {
			a.w.Header().Set("Retry-After", retryAfter)
			fails(status, `{"type":"error","error":{"type":"rate_limit_error","message":"all 2 accounts are limited","code":"accounts_exhausted"}}`)(a)
		}
	}
	for name, tc := range map[string]struct {
		answers []func(*answer)
		want    []string
	}{
		"429":      {[]func(*answer){limited(429, "1"), says("Hi")}, []string{"1 waiting 0 All 2 accounts are limited.", "1 text Hi", "1 step 0 stop 10/5", `1 done stop "Hi" 1`}},
		"503":      {[]func(*answer){limited(503, "1"), says("Hi")}, []string{"1 waiting 0 All 2 accounts are limited.", "1 text Hi", "1 step 0 stop 10/5", `1 done stop "Hi" 1`}},
		"short":    {[]func(*answer){limited(429, "0.01"), says("Hi")}, []string{"1 text Hi", "1 step 0 stop 10/5", `1 done stop "Hi" 1`}},
		"too long": {[]func(*answer){limited(429, "31")}, []string{"1 error MODEL_RATE_LIMIT"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.model.then(tc.answers...)
			w.start()
			session := w.session(&agentv1.CreateSessionRequest{})
			v := w.watch(session)
			begun := time.Now()
			sub := w.submit(session, "go")
			events := v.until(isEnd)
			checkDense(t, events)
			if diff := cmp.Diff(append([]string{`1 user "go"`, "1 start"}, tc.want...), lines(events)); diff != "" {
				t.Error(diff)
			}
			end := events[len(events)-1]
			told, stored := end.GetError().GetRetryAt(), w.run(sub.GetRun().GetId()).GetRun().GetErrorRetryAt()
			if !told.AsTime().Equal(stored.AsTime()) || end.GetError() != nil && told.AsTime().Before(begun.Add(31*time.Second)) {
				t.Errorf("the run may be tried again at %v, after %v, and its row says %v", told, told.AsTime().Sub(begun), stored)
			}
			for i, ev := range events {
				if ev.GetWaiting() == nil {
					continue
				}
				until, said, next := ev.GetWaiting().GetUntil().AsTime(), ev.GetTime().AsTime(), events[i+1].GetTime().AsTime()
				if !said.Before(until) || next.Before(until) {
					t.Errorf("waiting until %s was said at %s, and the next event at %s", until, said, next)
				}
			}
		})
	}
}

func TestModelFailure(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		answers []func(*answer)
		code    string
	}{
		"overloaded each time": {[]func(*answer){fails(529, overloaded), fails(529, overloaded), fails(529, overloaded)}, "MODEL_OVERLOADED"},
		"invalid request":      {[]func(*answer){fails(400, `{"type":"error","error":{"type":"invalid_request_error","message":"bad"}}`)}, "MODEL_INVALID_REQUEST"},
		"ends without its end": {[]func(*answer){
			func(a *answer) { a.begin(); a.text("x") }, func(a *answer) { a.begin(); a.text("x") }, func(a *answer) { a.begin(); a.text("x") },
		}, "MODEL_TRUNCATED"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.model.then(tc.answers...)
			w.start()
			session := w.session(&agentv1.CreateSessionRequest{})
			v := w.watch(session)
			sub := w.submit(session, "go")
			events := v.until(isEnd)
			checkDense(t, events)
			if got := lines(events); got[len(got)-1] != "1 error "+tc.code {
				t.Errorf("events: %v, want the error %s", got, tc.code)
			}
			r := w.run(sub.GetRun().GetId()).GetRun()
			if r.GetState() != agentv1.RunState_RUN_STATE_FAILED || r.GetErrorCode() != tc.code || r.GetErrorMessage() == "" {
				t.Errorf("GetRun = %v", r)
			}
		})
	}
}

func TestStepLimit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.tools.add("one", func(context.Context, *toolv1.Call) string { return `{"result":"1"}` })
	w.model.then(calls([3]string{"a", "one", "{}"}), calls([3]string{"b", "one", "{}"}))
	w.start()
	session := w.session(&agentv1.CreateSessionRequest{MaxSteps: 2})
	v := w.watch(session)
	w.submit(session, "go")
	events := v.until(isEnd)
	checkDense(t, events)
	if got := lines(events); got[len(got)-1] != `1 done max-steps "" 2` {
		t.Errorf("events: %v", got)
	}
}

// An answer that does not satisfy the schema is given back to the model once, also in the last
// step that the session allows.
func TestResponseFormat(t *testing.T) {
	t.Parallel()
	const schema = `{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}`
	for name, tt := range map[string]struct {
		answers []string
		want    string // the end
	}{
		"at once":        {[]string{`{"city":"Rome"}`}, `1 done stop "{\"city\":\"Rome\"}" 1`},
		"in a fence":     {[]string{"```json\n{\"city\":\"Rome\"}\n```"}, "1 done stop \"```json\\n{\\\"city\\\":\\\"Rome\\\"}\\n```\" 1"},
		"after a repair": {[]string{"It is Rome.", `{"city":"Rome"}`}, `1 done stop "It is Rome.\n\n{\"city\":\"Rome\"}" 2`},
		"never":          {[]string{"Rome.", `{"town":"Rome"}`}, "1 error RESPONSE_FORMAT"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			for _, text := range tt.answers {
				w.model.then(says(text))
			}
			w.start()
			session := w.session(&agentv1.CreateSessionRequest{MaxSteps: 1})
			v := w.watch(session)
			sub := w.submit(session, "Where?", func(r *agentv1.SubmitRequest) { r.ResponseSchemaJson = schema })
			events := v.until(isEnd)
			checkDense(t, events)
			if got := lines(events); got[len(got)-1] != tt.want {
				t.Errorf("the run ends with %s, want %s", got[len(got)-1], tt.want)
			}
			r := w.run(sub.GetRun().GetId()).GetRun()
			if done := events[len(events)-1].GetDone(); done != nil && (done.GetFinalText() != `{"city":"Rome"}` || r.GetText() != done.GetFinalText()) {
				t.Errorf("the final text is %q in the event and %q in the run, want the JSON alone", done.GetFinalText(), r.GetText())
			}
			asked := w.model.asked()
			if !strings.Contains(string(asked[0]), `satisfies this JSON Schema`) {
				t.Errorf("the request does not ask for the schema: %s", asked[0])
			}
			if len(asked) > 1 && !strings.Contains(string(asked[1]), "does not satisfy the JSON Schema: it is not one JSON value") {
				t.Errorf("the second request does not say what is wrong: %s", asked[1])
			}
		})
	}
	w := newWorld(t)
	w.start()
	_, err := w.conversations.Submit(w.as(identity.Editor), &agentv1.SubmitRequest{
		SessionId: w.session(&agentv1.CreateSessionRequest{}), ContentJson: `"hi"`, ResponseSchemaJson: `{"type":"colour"}`,
	})
	if fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), "response_format.schema") {
		t.Errorf("Submit with a bad schema = %v, want it refused", err)
	}
}

// The provider enforces a schema that it can, until it refuses to.
func TestEnforcedFormat(t *testing.T) {
	t.Parallel()
	const schema = `{"type":"object","properties":{"city":{"type":"string"}},"required":["city"],"additionalProperties":false}`
	w := newWorld(t)
	w.model.then(
		fails(http.StatusBadRequest, `{"type":"error","error":{"type":"invalid_request_error","message":"Schema is too complex."}}`),
		says("Rome."), says(`{"city":"Rome"}`), says(`{"city":"Oslo"}`),
	)
	w.start()
	session := w.session(&agentv1.CreateSessionRequest{})
	v := w.watch(session)
	for _, want := range []string{`1 done stop "Rome.\n\n{\"city\":\"Rome\"}" 2`, `2 done stop "{\"city\":\"Oslo\"}" 1`} {
		w.submit(session, "Where?", func(r *agentv1.SubmitRequest) { r.ResponseSchemaJson = schema })
		if got := lines(v.until(isEnd)); got[len(got)-1] != want {
			t.Errorf("the run ends with %s, want %s", got[len(got)-1], want)
		}
	}
	for i, want := range []bool{true, false, false, true} {
		if asked := string(w.model.asked()[i]); strings.Contains(asked, `"output_config":{"format":`) != want {
			t.Errorf("request %d has a format: %v, want %v: %s", i, !want, want, asked)
		}
	}
}

// A workspace's preset takes the place of a shipped one, for sessions that exist too, until it
// is deleted.
func TestOwnPreset(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.tools.add("one", func(context.Context, *toolv1.Call) string { return `{"result":"1"}` })
	w.model.then(calls([3]string{"a", "one", "{}"}), says("Done."), says("Shipped."))
	w.start()
	session := w.session(&agentv1.CreateSessionRequest{Tools: &agentv1.ToolSelection{Names: []string{"one"}}})
	put := func(p *agentv1.Preset, role identity.Role) error {
		_, err := w.presets.PutPreset(w.as(role), &agentv1.PutPresetRequest{Preset: p})
		return err
	}
	mine := &agentv1.Preset{Name: "workspace", Prompt: []string{"Speak Latin."}, MaxSteps: 1, Tools: []string{"one", "two_*"}}
	if err := put(mine, identity.Editor); fault.KindOf(err) != fault.Forbidden {
		t.Errorf("PutPreset by an editor = %v, want it forbidden", err)
	}
	for name, bad := range map[string]*agentv1.Preset{
		"name":       {Name: "Mine!", MaxSteps: 1},
		"max_steps":  {Name: "mine", MaxSteps: 51},
		"tools[0]":   {Name: "mine", MaxSteps: 1, Tools: []string{"a b"}},
		"max_output": {Name: "mine", MaxSteps: 1, MaxOutputTokens: -1},
	} {
		if err := put(bad, identity.Owner); fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), name) {
			t.Errorf("PutPreset(%v) = %v, want it to name %s", bad, err, name)
		}
	}
	if err := put(mine, identity.Owner); err != nil {
		t.Fatal(err)
	}
	v := w.watch(session)
	w.submit(session, "go")
	if got := lines(v.until(isEnd)); got[len(got)-1] != `1 done max-steps "" 1` {
		t.Errorf("events: %v, want the preset's step limit", got)
	}
	if got := string(w.model.asked()[0]); !strings.Contains(got, "Speak Latin.") {
		t.Errorf("the request has not the preset's prompt: %s", got)
	}
	all, err := w.presets.ListPresets(w.as(identity.Viewer), &agentv1.ListPresetsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	want := &agentv1.Preset{
		Name: "workspace", Prompt: mine.GetPrompt(), MaxSteps: 1, Tools: mine.GetTools(), Own: true,
		UnavailableTools: []*agentv1.UnavailableTool{{Name: "two_*", Reason: "no tool has this name: it is misspelt, or its server was removed"}},
	}
	if got := all.GetPresets(); len(got) != 4 {
		t.Errorf("ListPresets = %v, want four", got)
	} else if diff := cmp.Diff(want, got[3], protocmp.Transform()); diff != "" {
		t.Errorf("the workspace's preset (-want +got):\n%s", diff)
	}
	if _, err := w.presets.DeletePreset(w.as(identity.Owner), &agentv1.DeletePresetRequest{Name: "workspace"}); err != nil {
		t.Fatal(err)
	}
	w.submit(session, "again")
	if got := lines(v.until(isEnd)); got[len(got)-1] != `2 done stop "Done." 1` {
		t.Errorf("events: %v, want the shipped preset again", got)
	}
}

// A session shows which of its tools cannot be used: those that do not exist, and those that the
// provider of its model would have to run.
func TestUnavailableTools(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.tools.add("one", nil)
	w.tools.add("web_search", nil)
	w.accounts.setProviders(gpt, simulatorOnly)
	w.start()
	const missing = "no tool has this name: it is misspelt, or its server was removed"
	for name, tt := range map[string]struct {
		session *agentv1.CreateSessionRequest
		want    map[string]string
	}{
		"a preset":              {&agentv1.CreateSessionRequest{Preset: "explorer"}, map[string]string{"web_search": "the provider of the model gpt-5.1 has none", "read_research": missing, "get_current_datetime": missing}},
		"a selection":           {&agentv1.CreateSessionRequest{Preset: "explorer", Tools: &agentv1.ToolSelection{Names: []string{"one"}}}, map[string]string{}},
		"all but some":          {&agentv1.CreateSessionRequest{Preset: "explorer", Tools: &agentv1.ToolSelection{Names: []string{"*", "-web_*"}}}, map[string]string{}},
		"the preset's but some": {&agentv1.CreateSessionRequest{Preset: "explorer", Tools: &agentv1.ToolSelection{Names: []string{"-web_search"}}}, map[string]string{"read_research": missing, "get_current_datetime": missing}},
	} {
		res, err := w.conversations.GetSession(w.as(identity.Viewer), &agentv1.GetSessionRequest{Id: w.session(tt.session)})
		if err != nil {
			t.Fatal(err)
		}
		got := res.GetUnavailableTools()
		if len(got) != len(tt.want) {
			t.Errorf("%s: unavailable are %v, want %v", name, got, tt.want)
		}
		for _, u := range got {
			if want, ok := tt.want[u.GetName()]; !ok || !strings.HasPrefix(u.GetReason(), want) {
				t.Errorf("%s: %s is unavailable because %q, want %q", name, u.GetName(), u.GetReason(), want)
			}
		}
	}
}

// A spent budget ends the run before the next step, with what a person needs to know.
func TestBudget(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.tools.add("one", func(context.Context, *toolv1.Call) string { return `{"result":"1"}` })
	w.model.then(calls([3]string{"a", "one", "{}"}))
	w.start()
	if _, err := w.usage.SetBudget(w.as(identity.Editor), &agentv1.SetBudgetRequest{Scope: "run", Steps: new(int64(1))}); fault.KindOf(err) != fault.Forbidden {
		t.Errorf("SetBudget by an editor = %v, want it forbidden", err)
	}
	if _, err := w.usage.SetBudget(w.as(identity.Owner), &agentv1.SetBudgetRequest{Scope: "run", Steps: new(int64(1))}); err != nil {
		t.Fatal(err)
	}
	session := w.session(&agentv1.CreateSessionRequest{})
	v := w.watch(session)
	sub := w.submit(session, "go")
	events := v.until(isEnd)
	checkDense(t, events)
	if got := lines(events); got[len(got)-1] != `1 done budget-steps "" 1` {
		t.Errorf("events: %v", got)
	}
	const detail = "The budget of this run, 1 step, is spent. An owner can raise it."
	if r := w.run(sub.GetRun().GetId()).GetRun(); r.GetFinishDetail() != detail || events[len(events)-1].GetDone().GetFinishDetail() != detail {
		t.Errorf("the run says %q, the event %q, want %q", r.GetFinishDetail(), events[len(events)-1].GetDone().GetFinishDetail(), detail)
	}
	res, err := w.usage.GetUsage(w.as(identity.Viewer), &agentv1.GetUsageRequest{
		By: "tool", From: timestamppb.New(time.Now().Add(-time.Hour)), To: timestamppb.New(time.Now().Add(time.Hour)),
	})
	if err != nil || len(res.GetGroups()) != 1 || res.GetGroups()[0].GetKey() != "one" || res.GetGroups()[0].GetCalls() != 1 {
		t.Errorf("usage by tool: %v, %v, want one call of the tool one", res, err)
	}
}

// The running time of a call that a person has approved is counted. What was counted for a
// session is deleted with it.
func TestRunningTime(t *testing.T) {
	t.Parallel()
	w := asking(t)
	const took = 50 * time.Millisecond
	w.tools.add("send", func(ctx context.Context, _ *toolv1.Call) string {
		limited, cancel := context.WithTimeout(ctx, took)
		defer cancel()
		<-limited.Done()
		return `{"result":"sent"}`
	})
	w.model.then(calls([3]string{"a", "send", "{}"}), says("Sent."))
	w.start()
	for _, scope := range []string{"session", "run", "workspace"} {
		if _, err := w.usage.SetBudget(w.as(identity.Owner), &agentv1.SetBudgetRequest{Scope: scope, Seconds: new(int64(600))}); err != nil {
			t.Fatal(err)
		}
	}
	session := w.session(&agentv1.CreateSessionRequest{})
	v := w.watch(session)
	w.submit(session, "go")
	v.until(parked)
	before := w.counted()
	if err := w.decide(session, "a", agentv1.Decision_DECISION_APPROVED); err != nil {
		t.Fatal(err)
	}
	v.until(isEnd)
	after := w.counted()
	for scope, ms := range after {
		if len(before) != 3 || ms-before[scope] < took.Milliseconds() {
			t.Errorf("%s: %d ms were counted, and %d ms before the approval, want at least %s more", scope, ms, before[scope], took)
		}
	}
	if _, err := w.conversations.DeleteSession(w.as(identity.Owner), &agentv1.DeleteSessionRequest{Id: session}); err != nil {
		t.Fatal(err)
	}
	if left := w.counted(); len(left) != 1 || left["workspace"] != after["workspace"] {
		t.Errorf("counted after the session was deleted: %v, want that of the workspace", left)
	}
}

// The running time of a step that fails or is stopped is counted, though there is no answer.
func TestRunningTimeWithoutAnswer(t *testing.T) {
	t.Parallel()
	const took = 50 * time.Millisecond
	slowly := func(then func(*answer)) func(*answer) {
		return func(a *answer) {
			limited, cancel := context.WithTimeout(a.r.Context(), took)
			defer cancel()
			<-limited.Done()
			then(a)
		}
	}
	w := newWorld(t)
	asked := make(chan struct{})
	w.model.then(
		slowly(fails(400, `{"type":"error","error":{"type":"invalid_request_error","message":"no"}}`)),
		slowly(func(a *answer) { a.begin(); close(asked); <-a.r.Context().Done() }),
	)
	w.start()
	if _, err := w.usage.SetBudget(w.as(identity.Owner), &agentv1.SetBudgetRequest{Scope: "workspace", Seconds: new(int64(600))}); err != nil {
		t.Fatal(err)
	}
	session := w.session(&agentv1.CreateSessionRequest{})
	v := w.watch(session)
	w.submit(session, "go")
	v.until(isEnd)
	failed := w.counted()["workspace"]
	if failed < took.Milliseconds() {
		t.Errorf("%d ms were counted for a failed step, want at least %s", failed, took)
	}
	w.submit(session, "go on")
	<-asked
	if _, err := w.conversations.Cancel(w.as(identity.Editor), &agentv1.CancelRequest{SessionId: session}); err != nil {
		t.Fatal(err)
	}
	v.until(isEnd)
	if stopped := w.counted()["workspace"] - failed; stopped < took.Milliseconds() {
		t.Errorf("%d ms were counted for a stopped step, want at least %s", stopped, took)
	}
}

// counted returns the running time that is counted for budgets, by scope.
func (w *world) counted() map[string]int64 {
	w.t.Helper()
	out := map[string]int64{}
	err := w.db.Open(w.t, agentrunner.Migrations()).InWorkspace(w.t.Context(), w.workspace, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT b.scope, u.milliseconds FROM budget_use u JOIN budgets b ON b.id = u.budget_id`)
		if err != nil {
			return err
		}
		var scope string
		var ms int64
		_, err = pgx.ForEachRow(rows, []any{&scope, &ms}, func() error { out[scope] = ms; return nil })
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

// waitsForBudget starts a run whose model call uses up a budget, and a second one that waits
// for its end. It returns the second run's session and viewer.
func waitsForBudget(w *world, began, release chan struct{}) (session string, v *viewer) {
	w.t.Helper()
	w.model.then(func(a *answer) { a.begin(); close(began); await(a.r.Context(), release); a.text("First."); a.end() }, says("Second."))
	if _, err := w.usage.SetBudget(w.as(identity.Owner), &agentv1.SetBudgetRequest{Scope: "workspace", Tokens: new(int64(100))}); err != nil {
		w.t.Fatal(err)
	}
	w.submit(w.session(&agentv1.CreateSessionRequest{}), "first")
	<-began
	session = w.session(&agentv1.CreateSessionRequest{})
	v = w.watch(session)
	w.submit(session, "second")
	v.until(func(ev *runv1.Event) bool { return ev.GetWaiting() != nil })
	return session, v
}

// A run that waits for a budget can be stopped, and goes on when something is left.
func TestWaitForBudget(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	began, release := make(chan struct{}), make(chan struct{})
	session, v := waitsForBudget(w, began, release)
	if _, err := w.conversations.Cancel(w.as(identity.Editor), &agentv1.CancelRequest{SessionId: session}); err != nil {
		t.Fatal(err)
	}
	if got := lines(v.until(isEnd)); got[len(got)-1] != `1 done cancelled "" 0` {
		t.Errorf("events: %v, want the waiting run cancelled", got)
	}
	w.submit(session, "third")
	v.until(func(ev *runv1.Event) bool { return ev.GetWaiting() != nil })
	close(release)
	if got := lines(v.until(isEnd)); got[len(got)-1] != `2 done stop "Second." 1` {
		t.Errorf("events: %v, want the run to go on", got)
	}
}

// A run that waits for a budget does not keep its runner from shutting down.
func TestDrainWhileWaitingForBudget(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.start(func(c *agentrunner.Config) { c.Drain = time.Minute })
	began, release := make(chan struct{}), make(chan struct{})
	_, v := waitsForBudget(w, began, release)
	first.stop()
	w.start()
	v.until(func(ev *runv1.Event) bool { return ev.GetRunStart() != nil }) // the second runner has it
	close(release)
	if got := lines(v.until(isEnd)); got[len(got)-1] != `1 done stop "Second." 1` {
		t.Errorf("events: %v, want the run to go on", got)
	}
}

func TestSteer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	started, release := make(chan struct{}), make(chan struct{})
	w.model.then(func(a *answer) { a.begin(); close(started); await(a.r.Context(), release); a.text("First."); a.end() }, says("Steered."))
	w.start()
	session := w.session(&agentv1.CreateSessionRequest{})
	v := w.watch(session)
	first := w.submit(session, "one")
	<-started
	// Another person steers.
	bob := identity.Actor{Workspace: w.workspace, Member: id.New[id.Member](), Role: identity.Editor}
	second, err := w.conversations.Submit(identity.With(t.Context(), bob), &agentv1.SubmitRequest{
		SessionId: session, ContentJson: `"rather two"`, Mode: agentv1.SubmitMode_SUBMIT_MODE_STEER, IdempotencyKey: "k",
	})
	if err != nil {
		t.Fatal(err)
	}
	if first.GetRun().GetId() != second.GetRun().GetId() {
		t.Error("a steering message belongs to the active run")
	}
	again := w.submit(session, "rather two", func(r *agentv1.SubmitRequest) {
		r.Mode, r.IdempotencyKey = agentv1.SubmitMode_SUBMIT_MODE_STEER, "k"
	})
	if again.GetCreated() || again.GetMessageId() != second.GetMessageId() {
		t.Errorf("the same key again = %v, want the message of the first time", again)
	}
	close(release)
	events := v.until(isEnd)
	checkDense(t, events)
	var said []string
	for _, ev := range events {
		if m := ev.GetUserMessage(); m != nil {
			said = append(said, m.GetCreatedBy())
		}
	}
	if diff := cmp.Diff([]string{"0198a000-0000-7000-8000-000000000001", bob.Member.String()}, said); diff != "" {
		t.Errorf("who said it (-want +got):\n%s", diff)
	}
	var stored []string
	for _, m := range w.look(session).GetMessages() {
		if m.GetRole() == "user" || m.GetCreatedBy() != "" {
			stored = append(stored, m.GetCreatedBy())
		}
	}
	if diff := cmp.Diff(said, stored); diff != "" {
		t.Errorf("who said it as stored (-events +rows):\n%s", diff)
	}
	want := []string{
		`1 user "one"`, "1 start", "1 text First.", "1 step 0 stop 10/5", `1 user "rather two"`, "1 text Steered.", "1 step 1 stop 10/5", `1 done stop "First.\n\nSteered." 2`,
	}
	if diff := cmp.Diff(want, lines(events)); diff != "" {
		t.Error(diff)
	}
}

// A steering message that came too late for an answer is still emitted and stored.
func TestSteerThenCancel(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	began := make(chan struct{})
	w.model.then(func(a *answer) { a.begin(); close(began); <-a.r.Context().Done() })
	w.start()
	session := w.session(&agentv1.CreateSessionRequest{})
	v := w.watch(session)
	w.submit(session, "one")
	<-began
	w.submit(session, "rather two", func(r *agentv1.SubmitRequest) { r.Mode = agentv1.SubmitMode_SUBMIT_MODE_STEER })
	if _, err := w.conversations.Cancel(w.as(identity.Editor), &agentv1.CancelRequest{SessionId: session}); err != nil {
		t.Fatal(err)
	}
	events := v.until(isEnd)
	checkDense(t, events)
	want := []string{`1 user "one"`, "1 start", `1 user "rather two"`, `1 done cancelled "" 0`}
	if diff := cmp.Diff(want, lines(events)); diff != "" {
		t.Error(diff)
	}
	if n := len(w.look(session).GetMessages()); n != 2 {
		t.Errorf("%d messages, want both", n)
	}
}

// A provider that pauses in the middle of its own tools is asked to continue.
func TestPauseTurn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.model.then(func(a *answer) { a.begin(); a.text("Looking."); a.stop = "pause_turn"; a.end() }, says("Found."))
	w.start()
	session := w.session(&agentv1.CreateSessionRequest{})
	v := w.watch(session)
	w.submit(session, "search")
	events := v.until(isEnd)
	checkDense(t, events)
	want := []string{
		`1 user "search"`, "1 start", "1 text Looking.", "1 step 0 other 10/5", "1 text Found.", "1 step 1 stop 10/5", `1 done stop "Looking.\n\nFound." 2`,
	}
	if diff := cmp.Diff(want, lines(events)); diff != "" {
		t.Error(diff)
	}
	if second := string(w.model.asked()[1]); !strings.Contains(second, `"Looking."`) {
		t.Errorf("the second request lacks the paused answer: %s", second)
	}
}

func TestIdempotentSubmit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.model.then(says("Once."))
	w.start()
	session := w.session(&agentv1.CreateSessionRequest{})
	v := w.watch(session)
	key := func(r *agentv1.SubmitRequest) { r.IdempotencyKey = "k" }
	first := w.submit(session, "go", key)
	again := w.submit(session, "go", key)
	v.until(isEnd)
	late := w.submit(session, "go", key)
	if first.GetRun().GetId() != again.GetRun().GetId() || first.GetRun().GetId() != late.GetRun().GetId() || again.GetCreated() || !first.GetCreated() {
		t.Errorf("the same key gives the same run: %v, %v, %v", first, again, late)
	}
	if n := len(w.model.asked()); n != 1 {
		t.Errorf("the model was called %d times", n)
	}
	_, err := w.conversations.Submit(w.as(identity.Editor), &agentv1.SubmitRequest{SessionId: session, ContentJson: `"other"`, IdempotencyKey: "k"})
	if err == nil || !strings.Contains(err.Error(), "idempotency key") {
		t.Errorf("the same key with another message: %v, want a conflict", err)
	}
}

// A stop ends the active run and leaves the queued ones; a stop of all ends those too.
func TestCancelKeepsQueuedRuns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	began := make(chan struct{}, 2)
	hangs := func(a *answer) { a.begin(); began <- struct{}{}; <-a.r.Context().Done() }
	w.model.then(hangs, hangs)
	w.start()
	session := w.session(&agentv1.CreateSessionRequest{})
	v := w.watch(session)
	w.submit(session, "one")
	<-began
	w.submit(session, "two")
	w.submit(session, "three")
	cancel := func(all bool, want int) {
		t.Helper()
		res, err := w.conversations.Cancel(w.as(identity.Editor), &agentv1.CancelRequest{SessionId: session, All: all})
		if err != nil || len(res.GetRunIds()) != want {
			t.Errorf("Cancel(all %t) = %v, %v, want %d runs", all, res, err, want)
		}
	}
	cancel(false, 1)
	<-began // the second one's turn
	cancel(true, 2)
	ends := 0
	events := v.until(func(ev *runv1.Event) bool {
		if isEnd(ev) {
			ends++
		}
		return ends == 3
	})
	for _, ev := range events {
		if isEnd(ev) && ev.GetDone().GetFinishReason() != "cancelled" {
			t.Errorf("run %d ended as %v, want cancelled", ev.GetRunOrdinal(), ev.GetBody())
		}
	}
}

// A message that waits can be removed: of it only the end of its run is published, and the next
// message has its turn. One that has begun stays.
func TestWithdraw(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	release := make(chan struct{})
	w.model.then(func(a *answer) { a.begin(); await(a.r.Context(), release); a.text("First."); a.end() }, says("Third."))
	w.start()
	session := w.session(&agentv1.CreateSessionRequest{})
	v := w.watch(session)
	withdraw := func(role identity.Role, message string) error {
		_, err := w.conversations.Withdraw(w.as(role), &agentv1.WithdrawRequest{SessionId: session, MessageId: message})
		return err
	}
	first := w.submit(session, "one")
	v.until(func(ev *runv1.Event) bool { return ev.GetRunStart() != nil })
	second := w.submit(session, "two")
	third := w.submit(session, "three")
	if err := withdraw(identity.Viewer, second.GetMessageId()); fault.KindOf(err) != fault.Forbidden {
		t.Errorf("Withdraw by a viewer = %v, want Forbidden", err)
	}
	if err := withdraw(identity.Editor, first.GetMessageId()); fault.KindOf(err) != fault.Conflict {
		t.Errorf("Withdraw of a message that is answered = %v, want Conflict", err)
	}
	if err := withdraw(identity.Editor, second.GetMessageId()); err != nil {
		t.Errorf("Withdraw of a message that waits = %v", err)
	}
	if err := withdraw(identity.Editor, second.GetMessageId()); fault.KindOf(err) != fault.NotFound {
		t.Errorf("Withdraw of a removed message = %v, want NotFound", err)
	}
	close(release)
	events := v.until(func(ev *runv1.Event) bool { return isEnd(ev) && ev.GetRunOrdinal() == third.GetRun().GetOrdinal() })
	removed := slices.DeleteFunc(events, func(ev *runv1.Event) bool { return ev.GetRunOrdinal() != second.GetRun().GetOrdinal() })
	if diff := cmp.Diff([]string{`2 done cancelled "" 0`}, lines(removed)); diff != "" {
		t.Error(diff)
	}
	var said []string
	for _, m := range w.look(session).GetMessages() {
		if m.GetRole() == "user" {
			said = append(said, m.GetContentJson())
		}
	}
	if diff := cmp.Diff([]string{`"one"`, `"three"`}, said); diff != "" {
		t.Error(diff)
	}
}

// TestMove moves messages that wait: one to the end of the queue, and one into the active run.
func TestMove(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	release := make(chan struct{})
	w.model.then(func(a *answer) { a.begin(); await(a.r.Context(), release); a.text("First."); a.end() }, says("Steered."), says("Fourth."), says("Second."))
	w.start()
	session := w.session(&agentv1.CreateSessionRequest{})
	v := w.watch(session)
	move := func(message string, mode agentv1.SubmitMode) (*agentv1.MoveResponse, error) {
		return w.conversations.Move(w.as(identity.Editor), &agentv1.MoveRequest{SessionId: session, MessageId: message, Mode: mode})
	}
	first := w.submit(session, "one")
	v.until(func(ev *runv1.Event) bool { return ev.GetRunStart() != nil })
	second, third := w.submit(session, "two", func(r *agentv1.SubmitRequest) { r.IdempotencyKey = "k" }), w.submit(session, "three")
	fourth := w.submit(session, "four")
	if _, err := move(first.GetMessageId(), agentv1.SubmitMode_SUBMIT_MODE_QUEUE); fault.KindOf(err) != fault.Conflict {
		t.Errorf("Move of a message that is answered = %v, want Conflict", err)
	}
	queued, err := move(second.GetMessageId(), agentv1.SubmitMode_SUBMIT_MODE_QUEUE)
	if err != nil || queued.GetRun().GetOrdinal() != 5 || queued.GetRun().GetState() != agentv1.RunState_RUN_STATE_QUEUED {
		t.Errorf("Move to the end = %v, %v, want a queued run with the ordinal 5", queued, err)
	}
	steered, err := move(third.GetMessageId(), agentv1.SubmitMode_SUBMIT_MODE_STEER)
	if err != nil || steered.GetRun().GetId() != first.GetRun().GetId() {
		t.Errorf("Move into the run = %v, %v, want the active run", steered, err)
	}
	again := w.submit(session, "two", func(r *agentv1.SubmitRequest) { r.IdempotencyKey = "k" })
	if again.GetCreated() || again.GetRun().GetId() != queued.GetRun().GetId() {
		t.Errorf("the key of a moved message again = %v, want its new run", again)
	}
	var listed []string
	for _, m := range w.look(session).GetMessages() {
		listed = append(listed, m.GetId())
	}
	if want := []string{first.GetMessageId(), third.GetMessageId(), fourth.GetMessageId(), second.GetMessageId()}; !slices.Equal(listed, want) {
		t.Errorf("the messages are %v, want %v", listed, want)
	}
	close(release)
	v.until(func(ev *runv1.Event) bool { return isEnd(ev) && ev.GetRunOrdinal() == 5 })
	w.wantPath(session, "one", "text First.", "three", "text Steered.", "four", "text Fourth.", "two", "text Second.")
	for _, r := range w.look(session).GetStoppedRuns() {
		t.Errorf("the run %d is shown as stopped", r.GetOrdinal())
	}
	if _, err := move(second.GetMessageId(), agentv1.SubmitMode_SUBMIT_MODE_QUEUE); fault.KindOf(err) != fault.Conflict {
		t.Errorf("Move of a message that was answered = %v, want Conflict", err)
	}
}

// TestPages reads the messages in pages, which begin with a person's message.
func TestPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, name := range []string{"a", "b", "c"} {
		w.model.then(calls([3]string{name, "one", "{}"}), says("Done "+name+"."))
	}
	w.start()
	session := w.session(&agentv1.CreateSessionRequest{})
	v := w.watch(session)
	for range 3 {
		w.submit(session, "go")
		v.until(isEnd)
	}
	all := w.look(session)
	if len(all.GetMessages()) != 12 || all.GetEarlier() != 0 {
		t.Fatalf("without a limit there are %d messages, and earlier ones at %d; want all 12", len(all.GetMessages()), all.GetEarlier())
	}
	var pages []string
	before, joined := int64(0), []*agentv1.Message(nil)
	for range 4 {
		page, err := w.conversations.GetSession(w.as(identity.Viewer), &agentv1.GetSessionRequest{Id: session, Limit: 3, Before: before})
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, fmt.Sprint(len(page.GetMessages()), page.GetMessages()[0].GetRole(), len(page.GetRuns()), page.GetEarlier()))
		joined = append(page.GetMessages(), joined...)
		if before = page.GetEarlier(); before == 0 {
			break
		}
	}
	if diff := cmp.Diff([]string{"4user1 9", "4user1 5", "4user1 0"}, pages); diff != "" {
		t.Errorf("pages of at least 3 (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(all.GetMessages(), joined, protocmp.Transform()); diff != "" {
		t.Errorf("the pages and the whole (-whole +pages):\n%s", diff)
	}
	for _, r := range all.GetRuns() {
		if r.GetUsage().GetInputTokens() == 0 || r.GetStartedAt() == nil || r.GetEndedAt() == nil {
			t.Errorf("what a run took = %v, want tokens and times", r)
		}
	}
	_, err := w.conversations.GetSession(w.as(identity.Viewer), &agentv1.GetSessionRequest{Id: session, Limit: 1001})
	if fault.KindOf(err) != fault.Invalid {
		t.Errorf("a limit of 1001 = %v, want Invalid", err)
	}
}

// An owner can stop all runs of a member who leaves the workspace.
func TestCancelMember(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	began := make(chan struct{})
	w.model.then(func(a *answer) { a.begin(); close(began); <-a.r.Context().Done() })
	w.start()
	session := w.session(&agentv1.CreateSessionRequest{})
	v := w.watch(session)
	first := w.submit(session, "one")
	<-began
	second := w.submit(session, "two")
	actor, _ := identity.From(w.as(identity.Editor))
	req := &agentv1.CancelRequest{MemberId: actor.Member.String()}
	other := actor
	other.Member = id.New[id.Member]()
	if _, err := w.conversations.Cancel(identity.With(t.Context(), other), req); fault.KindOf(err) != fault.Forbidden {
		t.Errorf("Cancel by another editor = %v, want forbidden", err)
	}
	other.Role = identity.Owner
	res, err := w.conversations.Cancel(identity.With(t.Context(), other), req)
	if err != nil || len(res.GetRunIds()) != 2 {
		t.Fatalf("Cancel by an owner = %v, %v, want both runs", res, err)
	}
	ends := 0
	v.until(func(ev *runv1.Event) bool {
		if ev.GetDone() != nil {
			ends++
		}
		return ends == 2
	})
	for _, r := range []string{first.GetRun().GetId(), second.GetRun().GetId()} {
		if got := w.run(r).GetRun().GetState(); got != agentv1.RunState_RUN_STATE_CANCELLED {
			t.Errorf("state = %v, want cancelled", got)
		}
	}
}

// A draining runner parks its run at the next step border, and another one continues it.
func TestDrain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	started, release := make(chan struct{}), make(chan struct{})
	w.tools.add("one", func(context.Context, *toolv1.Call) string { return `{"result":"1"}` })
	w.model.then(func(a *answer) {
		a.begin()
		close(started)
		await(a.r.Context(), release)
		a.call("a", "one", "{}")
		a.end()
	}, says("Done elsewhere."))
	first := w.start()
	session := w.session(&agentv1.CreateSessionRequest{})
	v := w.watch(session)
	w.submit(session, "go")
	<-started
	first.stop()
	second := w.start()
	close(release)
	events := v.until(isEnd)
	checkDense(t, events)
	want := []string{
		`1 user "go"`, "1 start", "1 tool-start one", "1 tool-delta {}", "1 call a one {}", `1 result a {"result":"1"} false`, "1 step 0 tool-calls 10/5",
		"1 waiting 1 this runner shuts down, as in a deploy; another one continues",
		"1 start", "1 text Done elsewhere.", "1 step 1 stop 10/5", `1 done stop "Done elsewhere." 2`,
	}
	if diff := cmp.Diff(want, lines(events)); diff != "" {
		t.Error(diff)
	}
	w.connect(second)
	if n := w.tools.timesRan("a"); n != 1 {
		t.Errorf("the tool ran %d times", n)
	}
}

// A runner releases its run in the middle of a model call. Another one emits step-retry and
// calls again; the numbers of the events have no holes and the answer is complete.
func TestTakeover(t *testing.T) {
	t.Parallel()
	for name, story := range map[string]struct {
		first []func(*answer)
		then  []func(*answer)
		want  []string
	}{
		"in the middle of an answer": {
			first: []func(*answer){func(a *answer) {
				a.begin()
				a.event("content_block_start", `{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`)
				a.event("content_block_delta", `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Half"}}`)
				<-a.r.Context().Done()
			}},
			then: []func(*answer){says("Whole.")},
			want: []string{`1 user "go"`, "1 start", "1 text Half", "1 start", "1 retry 0", "1 text Whole.", "1 step 0 stop 10/5", `1 done stop "Whole." 1`},
		},
		"before the first word": {
			first: []func(*answer){func(a *answer) { a.begin(); <-a.r.Context().Done() }},
			then:  []func(*answer){says("Whole.")},
			want:  []string{`1 user "go"`, "1 start", "1 start", "1 text Whole.", "1 step 0 stop 10/5", `1 done stop "Whole." 1`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			began := make(chan struct{})
			w.model.then(func(a *answer) { close(began); story.first[0](a) })
			// It releases its runs at once when it is stopped, as if it were killed.
			killed := w.start(func(c *agentrunner.Config) { c.Drain = 500 * time.Millisecond })
			session := w.session(&agentv1.CreateSessionRequest{})
			v := w.watch(session)
			w.submit(session, "go")
			<-began
			head := v.until(func(ev *runv1.Event) bool {
				return ev.GetTextDelta() != nil || name != "in the middle of an answer" && ev.GetRunStart() != nil
			})
			w.model.then(story.then...)
			killed.stop()
			w.start()
			events := append(head, v.until(isEnd)...)
			checkDense(t, events)
			if diff := cmp.Diff(story.want, lines(events)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestDeleteWhileRunning(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	began, cut := make(chan struct{}), make(chan struct{})
	w.model.then(func(a *answer) { a.begin(); close(began); <-a.r.Context().Done(); close(cut) }, says("Fine."))
	w.start()
	session := w.session(&agentv1.CreateSessionRequest{})
	w.submit(session, "go")
	<-began
	if _, err := w.conversations.DeleteSession(w.as(identity.Editor), &agentv1.DeleteSessionRequest{Id: session}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-cut:
	case <-time.After(patient):
		t.Fatal("the model call of a deleted session goes on")
	}
	if _, err := w.conversations.GetSession(w.as(identity.Viewer), &agentv1.GetSessionRequest{Id: session}); err == nil {
		t.Error("the session is still there")
	}
	other := w.session(&agentv1.CreateSessionRequest{})
	v := w.watch(other)
	w.submit(other, "go")
	v.until(isEnd)
}
