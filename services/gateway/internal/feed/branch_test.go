package feed_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/pkg/id"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
	"signalbox.dev/services/gateway/internal/feed"
)

// switchBranch publishes that another branch is the current one.
func (w *world) switchBranch(ordinal int64) {
	w.t.Helper()
	e := &runv1.Event{RunOrdinal: ordinal, Body: &runv1.Event_BranchSwitched{BranchSwitched: &runv1.BranchSwitched{}}}
	w.keep(e, w.store(e))
}

// A viewer of the session gets a snapshot in place of a switch to another branch, live and when it
// resumes, and one whose snapshot has the switch gets no other. A viewer of a run does not notice.
func TestSwitchedBranch(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.rows.behind = 0
	w.rows.snap = feed.Snapshot{Data: []byte(`{"type":"snapshot"}`), Contents: feed.ContentsOf(&agentv1.EventPosition{RunOrdinal: 2}, nil)}
	serve := func(place func(*feed.Viewer), want int) (ids func() []string) {
		v, err := w.feed.Open(w.ctx, w.session)
		if err != nil {
			t.Fatal(err)
		}
		place(v)
		b := &buffer{want: want, got: make(chan struct{})}
		ctx, cancel := context.WithCancel(w.ctx)
		done := make(chan struct{})
		go func() {
			defer close(done)
			defer v.Close()
			_ = v.Serve(ctx, b, nil)
		}()
		return func() []string {
			select {
			case <-b.got:
			case <-time.After(timeout):
				t.Errorf("the viewer got %v, want %d events", b.ids(t), want)
			}
			cancel()
			<-done
			return b.ids(t)
		}
	}
	next := id.New[id.Run]()
	ofSession := serve(func(*feed.Viewer) {}, 5)
	ofRun := serve(func(v *feed.Viewer) { v.FollowRun(&agentv1.Run{Id: next.String(), Ordinal: 3}, feed.Follow{}) }, 2)
	w.say("a")
	w.end()
	w.switchBranch(2)
	w.run, w.ordinal, w.next = next, 3, 0
	w.say("b")
	w.end()
	if diff := cmp.Diff([]string{"text-delta 1-0", "done 1-1", "snapshot 2-0", "text-delta 3-0", "done 3-1"}, ofSession()); diff != "" {
		t.Errorf("a viewer of the session (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"text-delta 3-0", "done 3-1"}, ofRun()); diff != "" {
		t.Errorf("a viewer of the new run (-want +got):\n%s", diff)
	}
	after := func(p feed.Position) func(*feed.Viewer) {
		return func(v *feed.Viewer) {
			if found, err := v.After(w.ctx, p); !found || err != nil {
				t.Errorf("After(%v) = %v, %v", p, found, err)
			}
		}
	}
	if diff := cmp.Diff([]string{"snapshot 2-0", "text-delta 3-0", "done 3-1"}, serve(after(feed.Position{Run: 1, Number: 1}), 3)()); diff != "" {
		t.Errorf("a viewer that resumes before the switch (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"text-delta 3-0", "done 3-1"}, serve(after(feed.Position{Run: 2}), 2)()); diff != "" {
		t.Errorf("a viewer that has read the session after the switch (-want +got):\n%s", diff)
	}
}
