package feed_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/pkg/id"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	runv1 "signalbox.dev/proto/signalbox/run/v1"

	"signalbox.dev/services/gateway/internal/feed"
)

// TestRunBeginsWhileItsViewerJoins checks that a viewer who joined before the run was created gets all
// of it, however much of it the log has when the feed is opened.
func TestRunBeginsWhileItsViewerJoins(t *testing.T) {
	t.Parallel()
	const n = 3
	waited := func(w *world, ordinal int64) { // a run that is cancelled in the queue
		for number := range int64(2) {
			e := &runv1.Event{RunId: id.New[id.Run]().String(), RunOrdinal: ordinal, Number: number, Body: &runv1.Event_Done{Done: &runv1.Done{}}}
			if number == 0 {
				e.Body = &runv1.Event_UserMessage{UserMessage: &runv1.UserMessage{}}
			}
			w.keep(e, w.store(e))
		}
	}
	rest := func(from int) func(w *world) {
		return func(w *world) {
			for i := from; i < n; i++ {
				w.say(fmt.Sprint(i))
			}
			w.end()
		}
	}
	for _, tt := range []struct {
		name          string
		before, after func(w *world) // before and after the read of the log's newest event
		overtook      bool
	}{
		{"nothing is there", func(*world) {}, rest(0), false},
		{"its first event is there", func(w *world) { w.say("0") }, rest(1), true},
		{"some are there", func(w *world) { w.say("0", "1") }, rest(2), true},
		{"all is there", rest(0), func(*world) {}, true},
		{"one that waited was cancelled meanwhile", func(w *world) { w.say("0"); waited(w, 3) }, rest(1), true},
		{"the next one has begun", func(w *world) { rest(0)(w); w.begin(3); w.say("0") }, func(*world) {}, true},
	} {
		for name, behind := range map[string]int{"": 0, ", and nothing is recorded": 1000} {
			t.Run(tt.name+name, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, nil, undisturbed)
				w.rows.behind = behind
				w.whole(1, n)
				head := make(chan struct{})
				w.bus.lasting = func(ctx context.Context) {
					select {
					case <-head:
					case <-ctx.Done():
					}
				}
				v, err := w.feed.Join(w.ctx, w.session)
				if err != nil {
					t.Fatal(err)
				}
				defer v.Close()
				w.begin(2)
				run := &agentv1.Run{Id: w.run.String(), Ordinal: 2}
				tt.before(w)
				close(head)
				if err := v.Ready(w.ctx); err != nil {
					t.Fatal(err)
				}
				if got := v.Overtook(2); got != tt.overtook {
					t.Errorf("Overtook(2) = %v, want %v", got, tt.overtook)
				}
				if found, err := v.FromStartOfNew(w.ctx, 2); err != nil || !found {
					t.Fatalf("FromStartOfNew(2) = %v, %v, want it found", found, err)
				}
				v.FollowRun(run, feed.Follow{})
				b := &buffer{}
				done := make(chan error, 1)
				go func() { done <- v.Serve(w.ctx, b, nil) }()
				tt.after(w)
				if err := <-done; err != nil {
					t.Errorf("Serve() = %v, want nil", err)
				}
				if diff := cmp.Diff(idsOf(2, n), b.ids(t)); diff != "" {
					t.Errorf("events differ (-want +got):\n%s", diff)
				}
			})
		}
	}
}

// TestCancelledBeforeTheHead checks that a viewer gets the end of a run that never had a runner, even
// if it precedes the event at which the feed was opened.
func TestCancelledBeforeTheHead(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.say("a")
	cancelled := id.New[id.Run]()
	w.rows.runs[cancelled.String()] = &agentv1.Run{Id: cancelled.String(), Ordinal: 2, State: agentv1.RunState_RUN_STATE_CANCELLED, LastEvent: new(int64(1)), FinishReason: "cancelled"}
	w.store(&runv1.Event{RunId: cancelled.String(), RunOrdinal: 2, Body: &runv1.Event_UserMessage{UserMessage: &runv1.UserMessage{}}})
	w.store(&runv1.Event{RunId: cancelled.String(), RunOrdinal: 2, Number: 1, Body: &runv1.Event_Done{Done: &runv1.Done{FinishReason: "cancelled"}}})
	w.say("b")
	v, err := w.feed.Open(w.ctx, w.session)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	if found, err := v.FromStartOfNew(w.ctx, 2); err != nil || !found {
		t.Fatalf("FromStartOfNew(2) = %v, %v, want it found", found, err)
	}
	v.FollowRun(&agentv1.Run{Id: cancelled.String(), Ordinal: 2}, feed.Follow{})
	if end, err := v.End(w.ctx); err != nil || end.GetDone().GetFinishReason() != "cancelled" {
		t.Errorf("End() = %v, %v, want a cancelled run", end, err)
	}
}

// TestLeaveBeforeReady checks that nothing is left of a viewer that leaves at once.
func TestLeaveBeforeReady(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(*feed.Viewer){"closes": (*feed.Viewer).Close, "forgets": (*feed.Viewer).Forget} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, nil, func(c *feed.Config) { c.Linger = time.Millisecond })
			var once sync.Once
			asked, head := make(chan struct{}), make(chan struct{})
			w.bus.lasting = func(context.Context) { once.Do(func() { close(asked) }); <-head }
			v, err := w.feed.Join(w.ctx, w.session)
			if err != nil {
				t.Fatal(err)
			}
			<-asked
			leave(v)
			ctx, cancel := context.WithCancel(w.ctx)
			cancel()
			if err := v.Ready(ctx); err == nil && name == "closes" {
				t.Error("Ready() = nil before the log was read")
			}
			close(head)
			saw := w.watchAll()
			w.whole(1, 3)
			saw(idsOf(1, 3))
		})
	}
}

// TestBacklogs checks that resuming viewers get all that they missed, without a copy in memory for
// each of them.
func TestBacklogs(t *testing.T) { //nolint:paralleltest // it measures the heap
	const n, viewers, size = 1500, 60, 2 << 10
	for name, change := range map[string]func(c *feed.Config){ //nolint:paralleltest // as above
		"of one viewer":  func(c *feed.Config) { c.BehindBytes = 256 << 10 },
		"of all viewers": func(c *feed.Config) { c.BacklogBytes = 1 << 20 },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil, undisturbed, change, func(c *feed.Config) { c.RingFrames = 64 })
			w.rows.page, w.rows.behind = 500, 0
			w.say(slices.Repeat([]string{strings.Repeat("x", size)}, n)...)
			all := make([]*feed.Viewer, viewers)
			before := heap()
			for i := range all {
				v, err := w.feed.Open(w.ctx, w.session)
				if err != nil {
					t.Fatal(err)
				}
				defer v.Close()
				if found, err := v.After(w.ctx, feed.Position{Run: 1, Number: int64(i)}); !found || err != nil {
					t.Fatalf("After(1-%d) = %v, %v, want it found", i, found, err)
				}
				all[i] = v
			}
			whole := viewers * n * size
			if grown := heap() - before; grown > whole/5 {
				t.Errorf("%d viewers use %d MiB, and the missed events have %d MiB", viewers, grown>>20, whole>>20)
			}
			w.end()
			for _, i := range []int{0, 1, viewers - 1} {
				b := &buffer{}
				all[i].FollowRun(&agentv1.Run{Id: w.run.String(), Ordinal: 1}, feed.Follow{})
				if err := all[i].Serve(w.ctx, b, nil); err != nil {
					t.Errorf("Serve() = %v, want nil", err)
				}
				if diff := cmp.Diff(wantIDs(n)[i+1:], b.ids(t)); diff != "" {
					t.Errorf("events of viewer %d differ (-want +got):\n%s", i, diff)
				}
			}
		})
	}
}
