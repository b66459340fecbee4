package agentrunner_test

import (
	"context"
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

	call := func(ctx context.Context, req *agentv1.ListEventsRequest) fault.Kind {
		_, err := w.runs.ListEvents(ctx, req)
		return fault.KindOf(err)
	}
	stranger := identity.With(t.Context(), identity.Actor{Workspace: id.New[id.Workspace](), Member: id.New[id.Member](), Role: identity.Owner})
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
