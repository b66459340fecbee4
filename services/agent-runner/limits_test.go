package agentrunner_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/identity"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	agentrunner "signalbox.dev/services/agent-runner"
)

// A model call that takes too long ends the run with the text so far and is not repeated.
func TestStepTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.model.then(func(a *answer) {
		a.begin()
		a.event("content_block_start", `{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`)
		a.event("content_block_delta", `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"So far"}}`)
		<-a.r.Context().Done()
	})
	w.start(func(c *agentrunner.Config) { c.StepTime = 3 * time.Second })
	session := w.session(&agentv1.CreateSessionRequest{})
	v := w.watch(session)
	w.submit(session, "go")
	events := v.until(isEnd)
	checkDense(t, events)
	if got := lines(events); got[len(got)-1] != `1 done max-step-time "So far" 0` {
		t.Errorf("events: %q", got)
	}
	if n := len(w.model.asked()); n != 1 {
		t.Errorf("the model was called %d times", n)
	}
}

// Content that does not fit into a message of the bus does not stop a run: long texts are
// split, and long arguments are refused.
func TestHugeAnswers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.tools.add("one", func(context.Context, *toolv1.Call) string { return `{"result":"1"}` })
	long := strings.Repeat("é", 600_000)
	w.model.then(calls([3]string{"a", "one", `{"text":"` + strings.Repeat("x", 1_200_000) + `"}`}), says(long))
	w.start()
	session := w.session(&agentv1.CreateSessionRequest{})
	v := w.watch(session)
	sub := w.submit(session, "go")
	events := v.until(isEnd)
	checkDense(t, events)
	var text strings.Builder
	for _, ev := range events {
		text.WriteString(ev.GetTextDelta().GetDelta())
	}
	if text.String() != long {
		t.Errorf("viewers saw %d bytes of text, want %d", text.Len(), len(long))
	}
	if n := w.tools.timesRan("a"); n != 0 {
		t.Errorf("the call ran %d times", n)
	}
	if r := w.run(sub.GetRun().GetId()); r.GetRun().GetState() != agentv1.RunState_RUN_STATE_DONE || r.GetToolCalls()[0].GetOutcome().GetErrorType() != "too_large" {
		t.Errorf("GetRun = %v, %s", r.GetRun().GetState(), r.GetToolCalls()[0].GetOutcome().GetErrorType())
	}
}

// A session does not grow beyond what can be read in one response.
func TestSessionFull(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.model.then(says("Seen."), says("Seen."))
	// Under the race detector, reading a session near the limit takes seconds.
	w.start(func(c *agentrunner.Config) { c.Lease = time.Minute })
	session := w.session(&agentv1.CreateSessionRequest{})
	content := fmt.Sprintf(`[{"type":"file","mediaType":"application/pdf","data":%q}]`, strings.Repeat("JVBERi0x", 1_400_000))
	for i := range 3 {
		_, err := w.conversations.Submit(w.as(identity.Editor), &agentv1.SubmitRequest{SessionId: session, ContentJson: content})
		if full := fault.KindOf(err) == fault.TooLarge; full != (i == 2) {
			t.Fatalf("message %d: %v", i, err)
		}
	}
	if n := len(w.look(session).GetMessages()); n < 2 {
		t.Errorf("%d messages, want at least the two that were taken", n)
	}
}

// A run waits for a tool executor that is unavailable and keeps its claim.
func TestExecutorUnavailable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.tools.away = 30
	w.model.then(says("Back."))
	w.start()
	session := w.session(&agentv1.CreateSessionRequest{})
	v := w.watch(session)
	w.submit(session, "go")
	events := v.until(isEnd)
	want := []string{`1 user "go"`, "1 start", "1 text Back.", "1 step 0 stop 10/5", `1 done stop "Back." 1`}
	if diff := cmp.Diff(want, lines(events)); diff != "" {
		t.Error(diff)
	}
}

// A run does not wait as long as its calls may take for an executor that is gone.
func TestExecutorGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.tools.gone, w.tools.lose = true, 1000
	w.tools.add("look", func(context.Context, *toolv1.Call) string { return `{}` })
	w.tools.add("change", func(context.Context, *toolv1.Call) string { return `{}` })
	w.tools.specs["look"] = &toolv1.Tool{DeadlineMs: time.Hour.Milliseconds()}
	w.tools.specs["change"] = &toolv1.Tool{DeadlineMs: time.Hour.Milliseconds(), Effect: toolv1.Effect_EFFECT_UNSAFE}
	w.model.then(calls([3]string{"a", "look", "{}"}, [3]string{"b", "change", "{}"}), says("They are down."))
	w.start(func(c *agentrunner.Config) { c.ToolQueueing = time.Second })
	session := w.session(&agentv1.CreateSessionRequest{})
	v := w.watch(session)
	w.submit(session, "go")
	got := map[string]string{}
	for _, e := range v.until(isEnd) {
		if r := e.GetToolResult(); r != nil {
			got[r.GetToolName()] = r.GetResultJson()
		}
	}
	if !strings.Contains(got["look"], "cannot be run at the moment: continue") || !strings.Contains(got["change"], "unknown whether this call took effect") {
		t.Errorf("results = %v, want that tools cannot be run, and that the effect is unknown", got)
	}
}

// A run survives a short outage of the broker.
func TestBrokerUnavailable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	session := w.session(&agentv1.CreateSessionRequest{})
	addr := w.broker.Listener.Addr().String()
	w.broker.Close()
	v := w.watch(session)
	w.submit(session, "go")
	w.model.then(says("Back."))
	back := &http.Server{Addr: addr, Handler: w.model, ReadHeaderTimeout: time.Second}
	time.AfterFunc(time.Second, func() { _ = back.ListenAndServe() }) // ends with Close
	t.Cleanup(func() { _ = back.Close() })
	events := v.until(isEnd)
	if got := lines(events); got[len(got)-1] != `1 done stop "Back." 1` {
		t.Errorf("events: %q", got)
	}
}
