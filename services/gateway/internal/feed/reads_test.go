package feed_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/subject"
	runv1 "signalbox.dev/proto/signalbox/run/v1"

	"signalbox.dev/services/gateway/internal/feed"
)

// TestReadsOfOneWorkspace checks that many reads of the log for one workspace delay neither resuming
// viewers of others nor live streams.
func TestReadsOfOneWorkspace(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(n int) bool { return n == 1 })
	w.rows.behind = 1000
	theirs := identity.Actor{Workspace: id.New[id.Workspace](), Member: id.New[id.Member](), Role: identity.Viewer}
	var all sync.WaitGroup
	defer all.Wait()
	held, stop := make(chan struct{}, 64), make(chan struct{})
	defer close(stop)
	w.bus.reading = func(ctx context.Context, subj string) {
		if !strings.Contains(subj, theirs.Workspace.String()) {
			return
		}
		held <- struct{}{}
		select {
		case <-stop:
		case <-ctx.Done():
		}
	}
	const sessions = 24
	ctx := identity.With(t.Context(), theirs)
	for range sessions {
		s := id.New[id.Session]()
		v, err := w.feed.Open(ctx, s)
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			defer v.Close()
			_, _ = v.After(ctx, feed.Position{Run: 999})
		})
	}
	<-held
	saw := w.watchAll()
	w.say("a", "b", "c") // the second one is lost in transit and read from the log
	saw(wantIDs(3)[:3])

	ours, _ := identity.From(w.ctx)
	w.session = id.New[id.Session]()
	w.begin(1)
	w.subject = subject.Events(subject.Partition(w.session, partitions), ours.Workspace, w.session)
	w.say("a", "b")
	found, wait := w.resume(feed.Position{Run: 1})
	if !found {
		t.Fatal("After(1-0) = false, want it found")
	}
	w.publish(&runv1.Event{Body: &runv1.Event_Done{Done: &runv1.Done{}}})
	if diff := cmp.Diff(wantIDs(2)[1:], wait()); diff != "" {
		t.Errorf("events differ (-want +got):\n%s", diff)
	}
	if n := len(held); n >= sessions-1 {
		t.Errorf("%d reads for one workspace at once, want a few", n+1)
	}
}
