package agentrunner_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
)

// Events are kept in the order in which viewers saw them and can be listed from any event on.
func TestEventsAreKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	w.start()
	w.model.then(says("Hel", "lo"), says("Good", "bye"))
	session := w.session(&agentv1.CreateSessionRequest{})
	v := w.watch(session)
	var seen []*runv1.Event
	for _, text := range []string{"hi", "bye"} {
		w.submit(session, text)
		seen = append(seen, v.until(isEnd)...)
	}
	list := func(from *runv1.Event) ([]*runv1.Event, error) {
		res, err := w.runs.ListEvents(w.as(identity.Viewer), &agentv1.ListEventsRequest{
			SessionId: session, RunOrdinal: from.GetRunOrdinal(), Number: from.GetNumber(),
		})
		var out []*runv1.Event
		for _, e := range res.GetEvents() {
			out = append(out, e.GetEvent())
		}
		return out, err
	}
	timeout := time.After(patient)
	for { // it is a moment behind
		if _, err := list(seen[len(seen)-1]); err == nil {
			break
		} else if fault.KindOf(err) != fault.NotFound {
			t.Fatal(err)
		}
		select {
		case <-timeout:
			t.Fatal("the end of the run is not kept")
		case <-time.After(10 * time.Millisecond):
		}
	}
	for i := range seen {
		got, err := list(seen[i])
		if diff := cmp.Diff(seen[i:], got, protocmp.Transform()); err != nil || diff != "" {
			t.Errorf("ListEvents from event %d: %v (-want +got)\n%s", i, err, diff)
		}
	}

	if got, want := w.trace(w.as(identity.Viewer), seen[0].GetRunId()), "step 0 of claim 1, complete"; got != want {
		t.Errorf("GetTrace = %q, want %q", got, want)
	}
	call := func(ctx context.Context, req *agentv1.ListEventsRequest) fault.Kind {
		_, err := w.runs.ListEvents(ctx, req)
		return fault.KindOf(err)
	}
	stranger := identity.With(t.Context(), identity.Actor{Workspace: id.New[id.Workspace](), Member: id.New[id.Member](), Role: identity.Owner})
	if got, want := w.trace(stranger, seen[0].GetRunId()), "there is no such run"; got != want {
		t.Errorf("GetTrace from another workspace = %q, want %q", got, want)
	}
	first := &agentv1.ListEventsRequest{SessionId: session, RunOrdinal: 1}
	for _, tc := range []struct {
		name string
		ctx  context.Context
		req  *agentv1.ListEventsRequest
		want fault.Kind
	}{
		{"another workspace", stranger, first, fault.NotFound},
		{"no session", w.as(identity.Viewer), &agentv1.ListEventsRequest{SessionId: "x", RunOrdinal: 1}, fault.NotFound},
		{"another session", w.as(identity.Viewer), &agentv1.ListEventsRequest{SessionId: id.New[id.Session]().String(), RunOrdinal: 1}, fault.NotFound},
		{"no run", w.as(identity.Viewer), &agentv1.ListEventsRequest{SessionId: session}, fault.Invalid},
		{"unknown token", w.as(identity.Viewer), &agentv1.ListEventsRequest{SessionId: session, PageToken: "x"}, fault.Invalid},
	} {
		if got := call(tc.ctx, tc.req); got != tc.want {
			t.Errorf("%s: ListEvents = %v, want %v", tc.name, got, tc.want)
		}
	}
	if _, err := w.conversations.DeleteSession(w.as(identity.Editor), &agentv1.DeleteSessionRequest{Id: session}); err != nil {
		t.Fatal(err)
	}
	if got := call(w.as(identity.Viewer), first); got != fault.NotFound {
		t.Errorf("ListEvents of a deleted session = %v, want not found", got)
	}
}

// trace returns the attempts of a run's trace in words.
func (w *world) trace(ctx context.Context, run string) string {
	res, err := w.runs.GetTrace(ctx, &agentv1.GetTraceRequest{Id: run})
	if err != nil {
		return err.Error()
	}
	var out []string
	for _, a := range res.GetAttempts() {
		in := a.GetFirstOutputAt().AsTime().Before(a.GetStartedAt().AsTime()) || a.GetEndedAt().AsTime().Before(a.GetFirstOutputAt().AsTime())
		how := map[bool]string{false: "complete", true: "void"}[a.GetVoidReason() != ""]
		if in || a.GetStartedAt() == nil {
			how += " at impossible times"
		}
		out = append(out, fmt.Sprintf("step %d of claim %d, %s", a.GetStepIndex(), a.GetEpoch(), how))
	}
	return strings.Join(out, "; ")
}

// The runs of all sessions are listed newest first, and each workspace sees only its own.
func TestListRuns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	w.model.then(says("one"), says("two"), says("three"))
	titled, other := w.session(&agentv1.CreateSessionRequest{Title: "Tea"}), w.session(&agentv1.CreateSessionRequest{})
	var want []string
	for _, session := range []string{titled, other, titled} {
		v := w.watch(session)
		want = append([]string{w.submit(session, "hi").GetRun().GetId()}, want...)
		v.until(isEnd)
	}
	list := func(ctx context.Context, req *agentv1.ListRunsRequest) (ids []string) {
		for {
			res, err := w.runs.ListRuns(ctx, req)
			if err != nil {
				t.Fatalf("ListRuns(%v): %v", req, err)
			}
			for _, r := range res.GetRuns() {
				ids = append(ids, r.GetId())
				if r.GetText() != "" || r.GetSessionId() == titled && r.GetSessionTitle() != "Tea" || r.CostMicros == nil {
					t.Errorf("run in the list: %v, want no text, the session's title and a cost", r)
				}
			}
			if req.PageToken = res.GetNextPageToken(); req.PageToken == "" {
				return ids
			}
		}
	}
	me := w.as(identity.Viewer)
	stranger := identity.With(t.Context(), identity.Actor{Workspace: id.New[id.Workspace](), Member: id.New[id.Member](), Role: identity.Owner})
	done, failed := agentv1.RunState_RUN_STATE_DONE, agentv1.RunState_RUN_STATE_FAILED
	for _, tc := range []struct {
		name string
		ctx  context.Context
		req  *agentv1.ListRunsRequest
		want []string
	}{
		{"in pages of one", me, &agentv1.ListRunsRequest{PageSize: 1}, want},
		{"of a session", me, &agentv1.ListRunsRequest{SessionId: titled}, []string{want[0], want[2]}},
		{"by state", me, &agentv1.ListRunsRequest{States: []agentv1.RunState{done, failed}}, want},
		{"by another state", me, &agentv1.ListRunsRequest{States: []agentv1.RunState{failed}}, nil},
		{"of another workspace", stranger, &agentv1.ListRunsRequest{}, nil},
		{"of another workspace's session", stranger, &agentv1.ListRunsRequest{SessionId: titled}, nil},
	} {
		if diff := cmp.Diff(tc.want, list(tc.ctx, tc.req)); diff != "" {
			t.Errorf("ListRuns, %s (-want +got):\n%s", tc.name, diff)
		}
	}
	for _, bad := range []*agentv1.ListRunsRequest{
		{PageToken: "x"}, {PageSize: 101}, {SessionId: "x"}, {States: []agentv1.RunState{99}}, {States: []agentv1.RunState{0}},
	} {
		if _, err := w.runs.ListRuns(me, bad); fault.KindOf(err) != fault.Invalid {
			t.Errorf("ListRuns(%v) = %v, want Invalid", bad, err)
		}
	}
}
