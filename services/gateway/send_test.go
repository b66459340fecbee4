package gateway_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	agentv1 "signalbox.dev/proto/signalbox/agent/v1"

	"signalbox.dev/services/gateway"
)

// TestAnswerBeginsAtOnce checks that a sender gets a complete answer that starts and ends before
// Submit returns, or before the feed is open.
func TestAnswerBeginsAtOnce(t *testing.T) {
	t.Parallel()
	withBothTransports(t, testAnswerBeginsAtOnce)
}

func testAnswerBeginsAtOnce(t *testing.T, w *world) {
	in := w.gateway(t)
	w.runner.script = func(r *fakeRun) { r.answer(t, "a", "b") }
	// Where this is set, Submit answers when the run has ended.
	finish := func() { w.runner.scripts.Wait() }
	for i := range 40 {
		w.runner.before = nil
		if i%2 == 0 {
			w.runner.before = finish
		}
		session := in.newSession(t, w.owner)
		for run := range 2 { // of a session that is watched nowhere yet, and of one that is
			want := []string{"text-delta %d-2", "text-delta %d-3", "step-complete %d-4", "done %d-5"}
			for j, id := range want {
				want[j] = fmt.Sprintf(id, run+1)
			}
			s := in.open(t, w.owner, "POST", messagesOf(session), `{"content":"hi"}`)
			if diff := cmp.Diff(want, ids(s.until(t, "done"))); diff != "" {
				t.Fatalf("events differ (-want +got):\n%s", diff)
			}
			if err := s.ended(t); err != nil {
				t.Errorf("stream ended with %v, want a clean end", err)
			}
		}
		got := call[object](t, in, w.owner, "POST", messagesOf(in.newSession(t, w.owner)), `{"content":"hi"}`, http.StatusOK, asJSON)
		if got["content"] != "ab" {
			t.Errorf("content = %q, want ab", got["content"])
		}
	}
}

// TestRefusedMessageLeavesNothing checks that the viewer for a refused message is closed.
func TestRefusedMessageLeavesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t, func(c *gateway.Config) { c.MemberStreams = 1 })
	session := in.newSession(t, w.owner)
	call[object](t, in, w.owner, "POST", messagesOf(session), `{"content":"one"}`, http.StatusAccepted, prefer)
	for range 3 {
		for want, path := range map[int]string{http.StatusNotFound: messagesOf(w.workspace.String()), http.StatusConflict: messagesOf(session)} {
			for _, change := range []func(*http.Request){nil, asJSON} {
				got := in.send(t, in.request(t, w.owner, "POST", path, `{"content":"two","mode":"reject"}`, change))
				if got.status != want {
					t.Errorf("POST %s = %d %s, want %d", path, got.status, got.body, want)
				}
			}
		}
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, in.ops+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := in.send(t, req).body; !strings.Contains(got, "\ngateway_feed_viewers 0\n") {
		t.Errorf("metrics = %s, want no viewers", got)
	}
}

// TestLongAnswer checks that a sender that waits gets a long answer completely, although the end
// event has it shortened.
func TestLongAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t)
	text := strings.Repeat("long ", 60<<10)
	w.runner.script = func(r *fakeRun) {
		r.begin(t)
		r.step(t, text)
		e := r.commitEnd(agentv1.RunState_RUN_STATE_DONE, "stop")
		e.GetDone().Text = text[:256<<10] + "… (shortened)"
		r.publish(t, e)
	}
	got := call[object](t, in, w.owner, "POST", messagesOf(in.newSession(t, w.owner)), `{"content":"hi"}`, http.StatusOK, asJSON)
	if got["content"] != text {
		content, _ := got["content"].(string)
		t.Errorf("content = %d bytes that end with %q, want all %d", len(content), content[max(0, len(content)-40):], len(text))
	}
}

// TestImpossibleCursors checks that they are answered without reading the log or its record.
func TestImpossibleCursors(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.gateway(t, func(c *gateway.Config) { c.Feed.Idle = time.Hour })
	session := in.newSession(t, w.owner)
	w.runner.script = func(r *fakeRun) { r.answer(t, "first") }
	for range 2 {
		if err := in.open(t, w.owner, "POST", messagesOf(session), `{"content":"hi"}`).ended(t); err != nil {
			t.Fatal(err)
		}
	}
	runs := func(ordinal int) string {
		return "/api/runs/" + w.runner.latest(t, session, ordinal).GetId() + "/events"
	}
	listed := func() int {
		w.runner.mu.Lock()
		defer w.runner.mu.Unlock()
		return w.runner.listed
	}
	for path, cursors := range map[string][]string{
		eventsOf(session): {"999-0", "3-5", "2-5", "2-999999", "0-1"},
		runs(1):           {"1-5", "1-999999", "3-0"},
		runs(2):           {"2-5", "2-999999", "3-0"},
	} {
		for _, cursor := range cursors {
			before := listed()
			s := w.gateway(t).open(t, w.owner, "GET", path, "", after(cursor))
			if e := s.next(t); e.name != "snapshot" || e.id != "2-4" {
				t.Errorf("first event of %s after %s = %v, want a snapshot at 2-4", path, cursor, e)
			}
			s.cancel()
			if n := listed() - before; n > 0 {
				t.Errorf("%d pages were read for %s after %s", n, path, cursor)
			}
		}
	}
}
