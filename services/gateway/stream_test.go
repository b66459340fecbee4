package gateway_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	runv1 "signalbox.dev/proto/signalbox/run/v1"

	"signalbox.dev/services/gateway"
)

func messagesOf(session string) string { return "/api/sessions/" + session + "/messages" }
func eventsOf(session string) string   { return "/api/sessions/" + session + "/events" }

func after(cursor string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set("Last-Event-ID", cursor) }
}

// frames returns the events of a stream's bytes.
func frames(s *stream) string {
	_, rest, _ := strings.Cut(s.text(), "retry: 1000\n:\n")
	return rest
}

func TestSendStreamsByteExact(t *testing.T) {
	t.Parallel()
	withBothTransports(t, testSendStreamsByteExact)
}

func testSendStreamsByteExact(t *testing.T, w *world) {
	in := w.gateway(t, func(c *gateway.Config) { c.CORSOrigins = []string{"http://page.example"} })
	session := in.newSession(t, w.owner)
	w.runner.script = func(r *fakeRun) { r.answer(t, "Hel", "lo\nyou") }
	s := in.open(t, w.owner, "POST", messagesOf(session), `{"content":"hi"}`, func(r *http.Request) { r.Header.Set("Origin", "http://page.example") })
	if err := s.ended(t); err != nil {
		t.Fatalf("stream ended with %v, want a clean end", err)
	}
	run := w.runner.latest(t, session, 1)
	want := strings.ReplaceAll(`retry: 1000
:
event: text-delta
data: {"type":"text-delta","delta":"Hel"}
id: 1-2

event: text-delta
data: {"type":"text-delta","delta":"lo\nyou"}
id: 1-3

event: step-complete
data: {"type":"step-complete","stepIndex":0,"tokensIn":10,"tokensOut":5,"finishReason":"stop"}
id: 1-4

event: done
data: {"type":"done","text":"Hello\nyou","final_text":"Hello\nyou","totalTokensIn":10,"totalTokensOut":5,"steps":1,"finishReason":"stop","runId":"RUN","simulated":false}
id: 1-5

`, "RUN", run.GetId())
	if diff := cmp.Diff(want, s.text()); diff != "" {
		t.Errorf("stream differs (-want +got):\n%s", diff)
	}
	for k, v := range map[string]string{
		"Content-Type": "text/event-stream", "Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no",
		"Content-Encoding": "", "X-Run-Id": run.GetId(), "X-Content-Type-Options": "nosniff",
		"Access-Control-Allow-Origin": "http://page.example", "Content-Length": "",
	} {
		if got := s.header.Get(k); got != v {
			t.Errorf("header %s = %q, want %q", k, got, v)
		}
	}
	// The client can send its next request, on this or another connection.
	if got := in.send(t, in.request(t, w.owner, "GET", "/api/sessions/"+session, "", nil)); got.status != http.StatusOK {
		t.Errorf("next request = %d %s, want 200", got.status, got.body)
	}
	counted := `gateway_http_requests_total{route="POST /api/sessions/{id}/messages",status="200"} 1`
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, in.ops+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, counted, func() bool { return strings.Contains(in.send(t, req).body, counted) })
}

// TestStreamsAreCounted checks that a stream counts until its client has left.
func TestStreamsAreCounted(t *testing.T) {
	t.Parallel()
	withBothTransports(t, testStreamsAreCounted)
}

func testStreamsAreCounted(t *testing.T, w *world) {
	in := w.gateway(t, func(c *gateway.Config) { c.MemberStreams, c.WorkspaceStreams = 1, 2 })
	session := in.newSession(t, w.owner)
	first := in.open(t, w.owner, "GET", eventsOf(session), "")
	in.open(t, w.join(t, w.workspace, identity.Viewer), "GET", eventsOf(session), "")
	for name, p := range map[string]person{"their second": w.owner, "the workspace's third": w.join(t, w.workspace, identity.Viewer)} {
		got := in.send(t, in.request(t, p, "GET", eventsOf(session), "", nil))
		if got.status != http.StatusTooManyRequests || got.header.Get("Retry-After") == "" || !strings.Contains(got.body, "TOO_MANY_STREAMS") || !strings.Contains(got.body, "close one") {
			t.Errorf("%s stream = %d %v %s, want 429 that says what to do", name, got.status, got.header, got.body)
		}
	}
	first.cancel()
	eventually(t, "room for another stream", func() bool {
		// HEAD gets the headers of a stream and ends at once.
		return in.send(t, in.request(t, w.owner, "HEAD", eventsOf(session), "", nil)).status == http.StatusOK
	})
}

func TestViewersSeeTheSameBytes(t *testing.T) {
	t.Parallel()
	withBothTransports(t, testViewersSeeTheSameBytes)
}

func testViewersSeeTheSameBytes(t *testing.T, w *world) {
	a, b := w.gateway(t), w.gateway(t)
	session := a.newSession(t, w.owner)
	viewer := w.join(t, w.workspace, identity.Viewer)
	one := a.open(t, viewer, "GET", eventsOf(session), "")
	two := b.open(t, viewer, "GET", eventsOf(session)+"?workspace_id="+w.workspace.String()+"&token="+viewer.token, "", func(r *http.Request) {
		r.Header.Del("Authorization")
		r.Header.Del("X-Workspace-Id")
	})
	w.runner.script = func(r *fakeRun) { r.answer(t, "a", "b", "c") }
	sender := a.open(t, w.owner, "POST", messagesOf(session), `{"content":"hi"}`)
	if err := sender.ended(t); err != nil {
		t.Fatal(err)
	}
	got := one.until(t, "done")
	two.until(t, "done")
	want := []string{"user-message 1-0", "run-start 1-1", "text-delta 1-2", "text-delta 1-3", "text-delta 1-4", "step-complete 1-5", "done 1-6"}
	if diff := cmp.Diff(want, ids(got)); diff != "" {
		t.Errorf("viewer's events differ (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(frames(one), frames(two)); diff != "" {
		t.Errorf("viewers' bytes differ (-one +two):\n%s", diff)
	}
	if !strings.HasSuffix(frames(one), frames(sender)) {
		t.Errorf("sender's bytes are not the end of the viewer's:\n%s\n---\n%s", frames(sender), frames(one))
	}
	for _, secret := range []string{viewer.token, "token="} {
		if strings.Contains(b.log.String(), secret) {
			t.Errorf("log of the gateway holds %q", secret)
		}
	}
}

func TestResumeAtEveryEvent(t *testing.T) {
	t.Parallel()
	withBothTransports(t, testResumeAtEveryEvent)
}

func testResumeAtEveryEvent(t *testing.T, w *world) {
	a, b := w.gateway(t), w.gateway(t)
	session := a.newSession(t, w.owner)
	whole := a.open(t, w.owner, "GET", eventsOf(session), "")
	for range 2 {
		w.runner.script = func(r *fakeRun) { r.answer(t, "x", "y", "z") }
		if err := a.open(t, w.owner, "POST", messagesOf(session), `{"content":"hi"}`).ended(t); err != nil {
			t.Fatal(err)
		}
	}
	want := slices.Concat(whole.until(t, "done"), whole.until(t, "done"))
	text := frames(whole)
	for i, e := range want {
		// The bytes of the stream after this event.
		_, rest, ok := strings.Cut(text, "id: "+e.id+"\n\n")
		if !ok {
			t.Fatalf("no event %s in\n%s", e.id, text)
		}
		for name, in := range map[string]*instance{"same gateway": a, "other gateway": b} {
			s := in.open(t, w.owner, "GET", eventsOf(session), "", after(e.id))
			if got := s.header.Get("X-Missed-Events"); got != strconv.Itoa(len(want)-i-1) {
				t.Errorf("%s after %s: missed %s events, want %d", name, e.id, got, len(want)-i-1)
			}
			for range want[i+1:] {
				s.next(t)
			}
			if got := frames(s); got != rest {
				t.Errorf("%s after %s = %q, want %q", name, e.id, got, rest)
			}
			s.cancel()
		}
	}
}

func TestResumeSendsMissedAndLive(t *testing.T) {
	t.Parallel()
	withBothTransports(t, testResumeSendsMissedAndLive)
}

func testResumeSendsMissedAndLive(t *testing.T, w *world) {
	a, b := w.gateway(t), w.gateway(t)
	session := a.newSession(t, w.owner)
	s := a.open(t, w.owner, "POST", messagesOf(session), `{"content":"hi"}`)
	run := w.runner.latest(t, session, 1)
	run.begin(t)
	run.say(t, "one ", "two ")
	s.next(t)
	last := s.next(t).id
	s.cancel()
	run.say(t, "three ")
	// With ?after=, and with a header that takes precedence.
	resumed := b.open(t, w.owner, "GET", "/api/runs/"+run.GetId()+"/events?after=1-0", "", after(last))
	if e := resumed.next(t); e.data != `{"type":"text-delta","delta":"three "}` {
		t.Errorf("first event after %s = %v, want the missed one", last, e)
	}
	run.say(t, "four")
	run.step(t, "one two three four")
	run.end(t)
	if diff := cmp.Diff([]string{"text-delta 1-5", "step-complete 1-6", "done 1-7"}, ids(resumed.until(t, "done"))); diff != "" {
		t.Errorf("live events differ (-want +got):\n%s", diff)
	}
	if err := resumed.ended(t); err != nil {
		t.Errorf("stream of a run ended with %v, want a clean end", err)
	}
}

func TestDuplicatesAndZombiesAreDropped(t *testing.T) {
	t.Parallel()
	withBothTransports(t, testDuplicatesAndZombiesAreDropped)
}

func testDuplicatesAndZombiesAreDropped(t *testing.T, w *world) {
	in := w.gateway(t)
	session := in.newSession(t, w.owner)
	s := in.open(t, w.owner, "GET", eventsOf(session), "")
	call[object](t, in, w.owner, "POST", messagesOf(session), `{"content":"hi"}`, http.StatusAccepted, prefer)
	run := w.runner.latest(t, session, 1)
	run.begin(t)
	twice := run.event(textDelta("once"))
	run.publish(t, twice)
	run.publish(t, twice)
	zombie := run.event(textDelta("zombie"))
	run.set(func() { run.epoch, run.next = 2, run.next-1 })
	run.say(t, "taken over")
	run.publish(t, zombie) // the same number of an older claim
	grave := textDelta("from the grave")
	grave.RunId, grave.RunOrdinal, grave.Epoch, grave.Number = run.GetId(), 1, 1, 4 // a newer number
	run.publish(t, grave)
	run.publish(t, run.event(&runv1.Event{})) // of a newer version, with an unknown body
	run.say(t, "and on")
	run.step(t, "x")
	end := run.commitEnd(agentv1.RunState_RUN_STATE_DONE, "stop")
	run.publish(t, end)
	run.publish(t, end) // again, through the outbox
	w.runner.script = func(r *fakeRun) { r.answer(t, "next") }
	call[object](t, in, w.owner, "POST", messagesOf(session), `{"content":"hi"}`, http.StatusAccepted, prefer)
	want := []string{
		"user-message 1-0", "run-start 1-1", "text-delta 1-2", "text-delta 1-3", "text-delta 1-5", "step-complete 1-6", "done 1-7",
		"user-message 2-0", "run-start 2-1", "text-delta 2-2", "step-complete 2-3", "done 2-4",
	}
	got := slices.Concat(s.until(t, "done"), s.until(t, "done"))
	if diff := cmp.Diff(want, ids(got)); diff != "" {
		t.Errorf("events differ (-want +got):\n%s", diff)
	}
	if !strings.Contains(got[3].data, "taken over") {
		t.Errorf("event 1-3 = %s, want the newer claim's", got[3].data)
	}
	// Another gateway, which reads the log, sees the same.
	other := w.gateway(t).open(t, w.owner, "GET", eventsOf(session), "", after("1-0"))
	if diff := cmp.Diff(want[1:], ids(slices.Concat(other.until(t, "done"), other.until(t, "done")))); diff != "" {
		t.Errorf("events out of the log differ (-want +got):\n%s", diff)
	}
}

func prefer(r *http.Request) { r.Header.Set("Prefer", "respond-async") }

func TestSnapshot(t *testing.T) {
	t.Parallel()
	withBothTransports(t, testSnapshot)
}

func testSnapshot(t *testing.T, w *world) {
	in := w.gateway(t)
	session := in.newSession(t, w.owner)
	w.runner.script = func(r *fakeRun) { r.answer(t, "first") }
	if err := in.open(t, w.owner, "POST", messagesOf(session), `{"content":"hi"}`).ended(t); err != nil {
		t.Fatal(err)
	}
	w.runner.script = nil
	call[object](t, in, w.owner, "POST", messagesOf(session), `{"content":"more"}`, http.StatusAccepted, prefer)
	run := w.runner.latest(t, session, 2)
	run.begin(t)
	run.say(t, "committed")
	run.step(t, "committed")
	run.say(t, "open")
	for _, cursor := range []string{"0-1", "7-3", "2-99", "1-99", "nonsense", "-1", "1-", "01-1", "1-1-1", "99999999999999999999-1", "2_3", "1-+2"} {
		t.Run(cursor, func(t *testing.T) {
			t.Parallel()
			s := in.open(t, w.owner, "GET", eventsOf(session), "", after(cursor))
			e := s.next(t)
			if e.name != "snapshot" || e.id != "2-3" {
				t.Fatalf("first event after %q = %v, want a snapshot with the id of the last commit, 2-3", cursor, e)
			}
			var snap struct {
				Type     string   `json:"type"`
				Session  object   `json:"session"`
				Messages []object `json:"messages"`
				Active   object   `json:"active_run"`
				Last     string   `json:"last_event_id"`
			}
			if err := json.Unmarshal([]byte(e.data), &snap); err != nil {
				t.Fatal(err)
			}
			if snap.Type != "snapshot" || snap.Session["id"] != session || len(snap.Messages) != 4 || snap.Active["state"] != "running" || snap.Last != "2-3" {
				t.Errorf("snapshot = %s, want the session as it is", e.data)
			}
			// The open step, which the snapshot does not contain, follows.
			if e := s.next(t); e.id != "2-4" {
				t.Errorf("event after the snapshot = %v, want 2-4", e)
			}
		})
	}
	t.Run("REST returns the position to resume from", func(t *testing.T) {
		t.Parallel()
		got := call[object](t, in, w.owner, "GET", "/api/sessions/"+session, "", http.StatusOK)
		if got["last_event_id"] != "2-3" {
			t.Errorf("last_event_id = %v, want 2-3", got["last_event_id"])
		}
		s := in.open(t, w.owner, "GET", eventsOf(session)+"?after=2-3", "")
		if e := s.next(t); e.id != "2-4" {
			t.Errorf("first event = %v, want 2-4 without a snapshot", e)
		}
	})
	t.Run("a session without a run", func(t *testing.T) {
		t.Parallel()
		fresh := in.newSession(t, w.owner)
		got := call[object](t, in, w.owner, "GET", "/api/sessions/"+fresh, "", http.StatusOK)
		if got["last_event_id"] != "0-0" || got["active_run"] != nil {
			t.Errorf("session = %v, want last_event_id 0-0 and no run", got)
		}
		s := in.open(t, w.owner, "GET", eventsOf(fresh), "", after("0-0"))
		call[object](t, in, w.owner, "POST", messagesOf(fresh), `{"content":"x"}`, http.StatusAccepted, prefer)
		w.runner.latest(t, fresh, 1).begin(t)
		if e := s.next(t); e.name != "user-message" {
			t.Errorf("first event = %v, want the first message without a snapshot", e)
		}
	})
}

func TestQueuedRun(t *testing.T) {
	t.Parallel()
	withBothTransports(t, testQueuedRun)
}

func testQueuedRun(t *testing.T, w *world) {
	in := w.gateway(t, func(c *gateway.Config) { c.Feed.Heartbeat = 20 * time.Millisecond })
	session := in.newSession(t, w.owner)
	first := in.open(t, w.owner, "POST", messagesOf(session), `{"content":"one"}`)
	one := w.runner.latest(t, session, 1)
	one.begin(t)
	one.say(t, "a")
	second := in.open(t, w.owner, "POST", messagesOf(session), `{"content":"two","mode":"queue"}`)
	two := w.runner.latest(t, session, 2)
	third := in.open(t, w.owner, "POST", messagesOf(session), `{"content":"three"}`)
	three := w.runner.latest(t, session, 3)

	// The third run is cancelled while it is queued and the first one is active.
	three.set(func() { three.epoch = 0 })
	three.publish(t, three.event(&runv1.Event{Body: &runv1.Event_UserMessage{UserMessage: &runv1.UserMessage{MessageId: three.message.GetId(), ContentJson: `"three"`}}}))
	three.publish(t, three.commitEnd(agentv1.RunState_RUN_STATE_CANCELLED, "cancelled"))
	if got := third.until(t, "done"); len(got) != 1 || !strings.Contains(got[0].data, `"finishReason":"cancelled"`) {
		t.Errorf("cancelled run's events = %v, want done alone", got)
	}
	if err := third.ended(t); err != nil {
		t.Errorf("cancelled run's stream ended with %v, want a clean end", err)
	}
	eventually(t, "heartbeats while the run waits", func() bool { return strings.Contains(second.text(), "retry: 1000\n:\n:\n:\n") })
	one.say(t, "b")
	one.step(t, "ab")
	one.end(t)
	if diff := cmp.Diff([]string{"text-delta 1-2", "text-delta 1-3", "step-complete 1-4", "done 1-5"}, ids(first.until(t, "done"))); diff != "" {
		t.Errorf("first run's events differ (-want +got):\n%s", diff)
	}
	two.answer(t, "c")
	if diff := cmp.Diff([]string{"text-delta 2-2", "step-complete 2-3", "done 2-4"}, ids(second.until(t, "done"))); diff != "" {
		t.Errorf("queued run's events differ (-want +got):\n%s", diff)
	}
	// Resumed in the middle, in the order of the stream: 3-0 and 3-1 come between 1-2 and 1-3.
	s := in.open(t, w.owner, "GET", eventsOf(session), "", after("1-2"))
	want := []string{"user-message 3-0", "done 3-1", "text-delta 1-3", "step-complete 1-4", "done 1-5", "user-message 2-0", "run-start 2-1", "text-delta 2-2", "step-complete 2-3", "done 2-4"}
	var got []event
	for range want {
		got = append(got, s.next(t))
	}
	if diff := cmp.Diff(want, ids(got)); diff != "" {
		t.Errorf("resumed events differ (-want +got):\n%s", diff)
	}
}

func TestModes(t *testing.T) {
	t.Parallel()
	withBothTransports(t, testModes)
}

func testModes(t *testing.T, w *world) {
	in := w.gateway(t)
	session := in.newSession(t, w.owner)
	in.open(t, w.owner, "POST", messagesOf(session), `{"content":"one"}`)
	run := w.runner.latest(t, session, 1)
	run.begin(t)
	run.say(t, "a")
	got := in.send(t, in.request(t, w.owner, "POST", messagesOf(session), `{"content":"two","mode":"reject"}`, nil))
	if got.status != http.StatusConflict || got.body != `{"error":"a run of this session is active","code":"RUN_ACTIVE"}`+"\n" {
		t.Errorf("reject = %d %s, want 409 with the reason", got.status, got.body)
	}
	// A steering message joins the run: its sender sees the run from now on.
	steered := in.open(t, w.owner, "POST", messagesOf(session), `{"content":"no, three","mode":"steer"}`)
	run.say(t, "b")
	run.step(t, "ab")
	run.end(t)
	if diff := cmp.Diff([]string{"text-delta 1-3", "step-complete 1-4", "done 1-5"}, ids(steered.until(t, "done"))); diff != "" {
		t.Errorf("steering sender's events differ (-want +got):\n%s", diff)
	}
}

func TestIdempotentReplay(t *testing.T) {
	t.Parallel()
	withBothTransports(t, testIdempotentReplay)
}

func testIdempotentReplay(t *testing.T, w *world) {
	a, b := w.gateway(t), w.gateway(t)
	session := a.newSession(t, w.owner)
	key := func(r *http.Request) { r.Header.Set("Idempotency-Key", "k1") }
	first := a.open(t, w.owner, "POST", messagesOf(session), `{"content":"one"}`, key)
	run := w.runner.latest(t, session, 1)
	run.begin(t)
	run.say(t, "a")
	// While it runs, on the other gateway, with the key in the body.
	second := b.open(t, w.owner, "POST", messagesOf(session), `{"content":"one","idempotency_key":"k1"}`)
	if e := second.next(t); e.id != "1-2" {
		t.Errorf("replay's first event = %v, want 1-2", e)
	}
	run.step(t, "a")
	run.end(t)
	if err := first.ended(t); err != nil {
		t.Fatal(err)
	}
	if err := second.ended(t); err != nil {
		t.Fatal(err)
	}
	third := b.open(t, w.owner, "POST", messagesOf(session), `{"content":"one"}`, key) // after it has ended
	if err := third.ended(t); err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]*stream{"second": second, "third": third} {
		if diff := cmp.Diff(frames(first), frames(s)); diff != "" {
			t.Errorf("%s's bytes differ (-first +%s):\n%s", name, name, diff)
		}
	}
	res := call[object](t, a, w.owner, "POST", messagesOf(session), `{"content":"one"}`, http.StatusOK, func(r *http.Request) { key(r); r.Header.Set("Accept", "application/json") })
	_ = res
	// From the record, after the log has expired.
	w.wipe(t)
	w.runner.mu.Lock()
	w.runner.behind = 0
	w.runner.mu.Unlock()
	recorded := w.gateway(t).open(t, w.owner, "POST", messagesOf(session), `{"content":"one"}`, key)
	if err := recorded.ended(t); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(frames(first), frames(recorded)); diff != "" {
		t.Errorf("recorded bytes differ (-first +recorded):\n%s", diff)
	}
	// After both have expired: a snapshot, then the end.
	w.runner.forget(session)
	fresh := w.gateway(t)
	fourth := fresh.open(t, w.owner, "POST", messagesOf(session), `{"content":"one"}`, key)
	if diff := cmp.Diff([]string{"snapshot 1-4", "done 1-4"}, ids(fourth.until(t, "done"))); diff != "" {
		t.Errorf("replay from rows differs (-want +got):\n%s", diff)
	}
	if err := fourth.ended(t); err != nil {
		t.Errorf("replay from rows ended with %v, want a clean end", err)
	}
	if n := len(w.runner.sessions[session].runs); n != 1 {
		t.Errorf("%d runs, want 1", n)
	}
}

func asJSON(r *http.Request) { r.Header.Set("Accept", "application/json, text/plain, */*") }

func TestWaitForTheEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	t.Run("done", func(t *testing.T) {
		t.Parallel()
		session := in.newSession(t, w.owner)
		go w.runner.latestOf(t, session, func(r *fakeRun) { r.answer(t, "Hello") })
		got := call[object](t, in, w.owner, "POST", messagesOf(session), `{"content":"hi","collect_tool_stats":true,"idempotency_key":"k"}`, http.StatusOK, asJSON)
		want := object{
			"content": "Hello", "inputTokens": 10.0, "outputTokens": 5.0, "steps": 1.0, "finishReason": "stop", "runId": w.runner.latest(t, session, 1).GetId(),
			"toolCalls": []any{object{"name": "doc_read", "input": "x", "durationMs": 12.0, "ok": true, "bytes": 10.0}},
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("answer differs (-want +got):\n%s", diff)
		}
		again := call[object](t, in, w.owner, "POST", messagesOf(session), `{"content":"hi","collect_tool_stats":true,"idempotency_key":"k"}`, http.StatusOK, asJSON)
		if diff := cmp.Diff(want, again); diff != "" {
			t.Errorf("replayed answer differs (-want +got):\n%s", diff)
		}
	})
	t.Run("error", func(t *testing.T) {
		t.Parallel()
		session := in.newSession(t, w.owner)
		go w.runner.latestOf(t, session, func(r *fakeRun) {
			r.begin(t)
			r.publish(t, r.commitEnd(agentv1.RunState_RUN_STATE_FAILED, ""))
		})
		got := in.send(t, in.request(t, w.owner, "POST", messagesOf(session), `{"content":"hi"}`, asJSON))
		if got.status != http.StatusServiceUnavailable || got.body != `{"error":"the model is overloaded","code":"PROVIDER_OVERLOADED"}`+"\n" {
			t.Errorf("answer of a failed run = %d %s, want 503 with its error", got.status, got.body)
		}
	})
	t.Run("as one stream too many", func(t *testing.T) {
		t.Parallel()
		narrow := w.gateway(t, func(c *gateway.Config) { c.MemberStreams = 1 })
		session := narrow.newSession(t, w.owner)
		narrow.open(t, w.owner, "GET", eventsOf(session), "")
		got := narrow.send(t, narrow.request(t, w.owner, "POST", messagesOf(session), `{"content":"hi"}`, asJSON))
		if got.status != http.StatusTooManyRequests || !strings.Contains(got.body, "TOO_MANY_STREAMS") {
			t.Errorf("answer = %d %s, want 429", got.status, got.body)
		}
	})
	t.Run("respond-async in a second line", func(t *testing.T) {
		t.Parallel()
		got := in.send(t, in.request(t, w.owner, "POST", messagesOf(in.newSession(t, w.owner)), `{"content":"hi"}`, func(r *http.Request) {
			r.Header["Prefer"] = []string{"wait=10", "respond-async"}
		}))
		if got.status != http.StatusAccepted {
			t.Errorf("answer = %d %s, want 202", got.status, got.body)
		}
	})
	t.Run("respond-async", func(t *testing.T) {
		t.Parallel()
		session := in.newSession(t, w.owner)
		got := in.send(t, in.request(t, w.owner, "POST", messagesOf(session), `{"content":[{"type":"text","text":"hi"},{"type":"file","mediaType":"image/png","data":"aGk=","filename":null}]}`, prefer))
		run := w.runner.latest(t, session, 1)
		if got.status != http.StatusAccepted || got.header.Get("Preference-Applied") != "respond-async" || !strings.Contains(got.body, `"id":"`+run.GetId()+`"`) || !strings.Contains(got.body, `"state":"queued"`) {
			t.Errorf("answer = %d %v %s, want 202 with the run", got.status, got.header, got.body)
		}
		steered := call[object](t, in, w.owner, "POST", messagesOf(session), `{"content":"stop","mode":"steer"}`, http.StatusAccepted, prefer)
		details := call[object](t, in, w.owner, "GET", "/api/sessions/"+session, "", http.StatusOK)
		messages, _ := details["messages"].([]any)
		if last, _ := messages[len(messages)-1].(object); steered["message_id"] != last["id"] || steered["message_id"] == run.GetUserMessageId() {
			t.Errorf("message_id of a message that steers = %v, want %v, its own", steered["message_id"], last["id"])
		}
	})
}

// latestOf calls fn with a session's first run once it exists.
func (r *fakeRunner) latestOf(t testing.TB, session string, fn func(*fakeRun)) {
	r.scripts.Go(func() { fn(r.latest(t, session, 1)) })
}

// TestRunHasJustStarted checks that a viewer from the beginning gets no snapshot if the row of the
// run is ahead of its first event.
func TestRunHasJustStarted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	for name, path := range map[string]func(session string, run *fakeRun) string{
		"the session": func(session string, _ *fakeRun) string { return eventsOf(session) + "?after=0-0" },
		"the run":     func(_ string, run *fakeRun) string { return "/api/runs/" + run.GetId() + "/events" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			session := in.newSession(t, w.owner)
			call[object](t, in, w.owner, "POST", messagesOf(session), `{"content":"one"}`, http.StatusAccepted, prefer)
			run := w.runner.latest(t, session, 1)
			run.set(func() { run.State, run.LastEvent = agentv1.RunState_RUN_STATE_RUNNING, new(int64(1)) })
			w.runner.scripts.Go(func() {
				<-time.After(50 * time.Millisecond)
				run.answer(t, "a")
			})
			want := []string{"user-message 1-0", "run-start 1-1", "text-delta 1-2", "step-complete 1-3", "done 1-4"}
			if diff := cmp.Diff(want, ids(in.open(t, w.owner, "GET", path(session, run), "").until(t, "done"))); diff != "" {
				t.Errorf("events differ (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWatchRun(t *testing.T) {
	t.Parallel()
	withBothTransports(t, testWatchRun)
}

func testWatchRun(t *testing.T, w *world) {
	a, b := w.gateway(t), w.gateway(t)
	session := a.newSession(t, w.owner)
	call[object](t, a, w.owner, "POST", messagesOf(session), `{"content":"one"}`, http.StatusAccepted, prefer)
	run := w.runner.latest(t, session, 1)
	events := "/api/runs/" + run.GetId() + "/events"
	queued := b.open(t, w.owner, "GET", events, "") // no events yet
	run.answer(t, "a")
	want := []string{"user-message 1-0", "run-start 1-1", "text-delta 1-2", "step-complete 1-3", "done 1-4"}
	if diff := cmp.Diff(want, ids(queued.until(t, "done"))); diff != "" {
		t.Errorf("queued run's events differ (-want +got):\n%s", diff)
	}
	if err := queued.ended(t); err != nil {
		t.Errorf("stream ended with %v, want a clean end", err)
	}
	from := a.open(t, w.owner, "GET", events, "")
	if diff := cmp.Diff(want, ids(from.until(t, "done"))); diff != "" {
		t.Errorf("ended run's events differ (-want +got):\n%s", diff)
	}
	middle := b.open(t, w.owner, "GET", events+"?after=1-2", "")
	if diff := cmp.Diff(want[3:], ids(middle.until(t, "done"))); diff != "" {
		t.Errorf("events after 1-2 differ (-want +got):\n%s", diff)
	}
	if err := middle.ended(t); err != nil {
		t.Errorf("stream ended with %v, want a clean end", err)
	}
	if got := a.send(t, a.request(t, w.owner, "GET", events, "", after("1-4"))); got.status != http.StatusNoContent || got.body != "" {
		t.Errorf("watch after the last event = %d %q, want 204", got.status, got.body)
	}
	unknown := a.open(t, w.owner, "GET", events, "", after("9-9"))
	if diff := cmp.Diff([]string{"snapshot 1-4", "done 1-4"}, ids(unknown.until(t, "done"))); diff != "" {
		t.Errorf("events after an unknown id differ (-want +got):\n%s", diff)
	}
	details := call[object](t, a, w.owner, "GET", "/api/runs/"+run.GetId(), "", http.StatusOK)
	if got, _ := details["run"].(object); got["state"] != "done" || got["finish_reason"] != "stop" || got["last_event_id"] != "1-4" {
		t.Errorf("run = %v, want it done", details)
	}
	used := func(in, out float64, estimated bool) object {
		return object{
			"input_tokens": in, "cache_read_tokens": 0.0, "cache_write_tokens": 0.0, "output_tokens": out, "reasoning_tokens": 0.0, "estimated": estimated,
		}
	}
	list := call[object](t, a, w.owner, "GET", "/api/runs?state=done,failed&session_id="+session, "", http.StatusOK)
	if got, _ := list["runs"].([]any); len(got) != 1 || got[0].(object)["id"] != run.GetId() || list["next_cursor"] != nil {
		t.Errorf("list of runs = %v, want the run alone", list)
	}
	trace := call[object](t, a, w.owner, "GET", "/api/runs/"+run.GetId()+"/trace", "", http.StatusOK)
	if moments, _ := trace["moments"].([]any); len(moments) != 1 || moments[0].(object)["kind"] != "run-start" {
		t.Errorf("trace = %v, want the moment of the fake", trace)
	}
	steps := []any{object{
		"index": 0.0, "finish_reason": "stop", "usage": used(10, 5, false), "wasted": used(20, 4, true), "committed_at": nil,
		"cost_micros": nil, "wasted_cost_micros": nil,
	}}
	if diff := cmp.Diff(steps, details["steps"]); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
}

func TestStreamsEndWithThePermission(t *testing.T) {
	t.Parallel()
	withBothTransports(t, testStreamsEndWithThePermission)
}

func testStreamsEndWithThePermission(t *testing.T, w *world) {
	in := w.gateway(t)
	session := in.newSession(t, w.owner)
	t.Run("token expires", func(t *testing.T) {
		t.Parallel()
		p := w.join(t, w.workspace, identity.Viewer)
		p.token = devToken(t, p.member, -28*time.Second) // accepted for another 30 s, because clocks differ
		s := in.open(t, p, "GET", eventsOf(session), "")
		if err := s.ended(t); err == nil {
			t.Error("stream ended cleanly, want it cut")
		}
	})
	t.Run("token expires while its sender waits", func(t *testing.T) {
		t.Parallel()
		p := w.join(t, w.workspace, identity.Editor)
		p.token = devToken(t, p.member, -28*time.Second)
		got := in.send(t, in.request(t, p, "POST", messagesOf(in.newSession(t, w.owner)), `{"content":"hi"}`, asJSON))
		if got.status != http.StatusUnauthorized || !strings.Contains(got.body, "INVALID_TOKEN") {
			t.Errorf("answer = %d %s, want 401", got.status, got.body)
		}
	})
	t.Run("member is removed while they wait", func(t *testing.T) {
		t.Parallel()
		p := w.join(t, w.workspace, identity.Editor)
		theirs := in.newSession(t, w.owner)
		w.runner.scripts.Go(func() {
			w.runner.latest(t, theirs, 1)
			call[object](t, in, w.owner, "DELETE", fmt.Sprintf("/api/workspaces/%s/members/%s", w.workspace, p.member), "", http.StatusOK)
		})
		got := in.send(t, in.request(t, p, "POST", messagesOf(theirs), `{"content":"hi"}`, asJSON))
		if got.status != http.StatusForbidden || !strings.Contains(got.body, "NOT_A_MEMBER") {
			t.Errorf("answer = %d %s, want 403", got.status, got.body)
		}
	})
	t.Run("member is removed", func(t *testing.T) {
		t.Parallel()
		p := w.join(t, w.workspace, identity.Viewer)
		s := in.open(t, p, "GET", eventsOf(session), "")
		call[object](t, in, w.owner, "DELETE", fmt.Sprintf("/api/workspaces/%s/members/%s", w.workspace, p.member), "", http.StatusOK)
		if err := s.ended(t); err == nil {
			t.Error("stream ended cleanly, want it cut")
		}
		if got := in.send(t, in.request(t, p, "GET", eventsOf(session), "", nil)); got.status != http.StatusForbidden {
			t.Errorf("watch of a former member = %d, want 403", got.status)
		}
	})
	t.Run("key is revoked", func(t *testing.T) {
		t.Parallel()
		made := call[object](t, in, w.owner, "POST", "/api/keys", `{"name":"k","role":"viewer"}`, http.StatusCreated)
		secret, _ := made["secret"].(string)
		key, _ := made["key"].(object)
		s := in.open(t, person{token: secret}, "GET", eventsOf(session), "") // the key implies its workspace
		call[object](t, in, w.owner, "DELETE", fmt.Sprintf("/api/keys/%s", key["id"]), "", http.StatusOK)
		if err := s.ended(t); err == nil {
			t.Error("stream ended cleanly, want it cut")
		}
	})
	t.Run("session is deleted", func(t *testing.T) {
		t.Parallel()
		doomed := in.newSession(t, w.owner)
		s := in.open(t, w.owner, "POST", messagesOf(doomed), `{"content":"one"}`)
		call[object](t, in, w.owner, "DELETE", "/api/sessions/"+doomed, "", http.StatusOK)
		if err := s.ended(t); err == nil {
			t.Error("stream ended cleanly, want it cut")
		}
	})
}

func TestDrainCutsStreams(t *testing.T) {
	t.Parallel()
	withBothTransports(t, testDrainCutsStreams)
}

func testDrainCutsStreams(t *testing.T, w *world) {
	a, b := w.gateway(t), w.gateway(t)
	session := a.newSession(t, w.owner)
	var streams []*stream
	for range 5 {
		streams = append(streams, a.open(t, w.owner, "GET", eventsOf(session), ""))
	}
	sender := a.open(t, w.owner, "POST", messagesOf(session), `{"content":"one"}`)
	run := w.runner.latest(t, session, 1)
	run.begin(t)
	run.say(t, "a")
	last := sender.next(t).id
	waiting := make(chan answer, 1)
	req := a.request(t, w.owner, "POST", messagesOf(session), `{"content":"one","idempotency_key":"w"}`, func(r *http.Request) { r.Header.Set("Accept", "application/json") })
	go func() { waiting <- a.send(t, req) }()
	w.runner.latest(t, session, 2)
	a.stop()
	for _, s := range append(streams, sender) {
		if err := s.ended(t); err == nil {
			t.Error("stream ended cleanly, want it cut")
		}
	}
	if got := <-waiting; got.status != http.StatusServiceUnavailable || got.header.Get("Retry-After") == "" || !strings.Contains(got.body, "DRAINING") {
		t.Errorf("answer to who waited = %d %v %s, want 503 with Retry-After", got.status, got.header, got.body)
	}
	run.step(t, "a")
	run.end(t)
	resumed := b.open(t, w.owner, "GET", "/api/runs/"+run.GetId()+"/events", "", after(last))
	if diff := cmp.Diff([]string{"step-complete 1-3", "done 1-4"}, ids(resumed.until(t, "done"))); diff != "" {
		t.Errorf("events on the other gateway differ (-want +got):\n%s", diff)
	}
}

func TestStreamOfAnotherWorkspace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	session := in.newSession(t, w.owner)
	w.runner.script = func(r *fakeRun) { r.answer(t, "secret") }
	if err := in.open(t, w.owner, "POST", messagesOf(session), `{"content":"hi"}`).ended(t); err != nil {
		t.Fatal(err)
	}
	run := w.runner.latest(t, session, 1)
	stranger := w.join(t, id.New[id.Workspace](), identity.Owner)
	for _, tt := range []struct{ method, path, body string }{
		{"GET", "/api/sessions/" + session, ""},
		{"PATCH", "/api/sessions/" + session, `{"title":"mine"}`},
		{"DELETE", "/api/sessions/" + session, ""},
		{"GET", eventsOf(session), ""},
		{"GET", eventsOf(session) + "?after=1-1", ""},
		{"POST", messagesOf(session), `{"content":"hi"}`},
		{"POST", "/api/sessions/" + session + "/cancel", ""},
		{"GET", "/api/runs/" + run.GetId(), ""},
		{"GET", "/api/runs/" + run.GetId() + "/events", ""},
		{"GET", "/api/runs/" + run.GetId() + "/trace", ""},
	} {
		got := in.send(t, in.request(t, stranger, tt.method, tt.path, tt.body, nil))
		if got.status != http.StatusNotFound || got.header.Get("Content-Type") != "application/json" || strings.Contains(got.body, "secret") {
			t.Errorf("%s %s by a stranger = %d %s, want 404", tt.method, tt.path, got.status, got.body)
		}
	}
}
