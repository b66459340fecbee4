package feed_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/natsd/natstest"
	"signalbox.dev/pkg/subject"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	runv1 "signalbox.dev/proto/signalbox/run/v1"

	"signalbox.dev/services/gateway/internal/feed"
)

// begin starts the session's next run.
func (w *world) begin(ordinal int64) { w.ordinal, w.run, w.next = ordinal, id.New[id.Run](), 0 }

// whole publishes a run of n deltas and its end.
func (w *world) whole(ordinal int64, n int) {
	w.t.Helper()
	w.begin(ordinal)
	for i := range n {
		w.say(fmt.Sprint(i))
	}
	w.end()
}

// elsewhere publishes n events of another session in the same stream.
func (w *world) elsewhere(n int) {
	w.t.Helper()
	other := strings.TrimSuffix(w.subject, w.session.String()) + id.New[id.Session]().String()
	for i := range n {
		if _, err := w.writer.Publish(w.ctx, other, fmt.Sprint(other, i), &runv1.Event{RunOrdinal: 1, Epoch: 1, Number: int64(i)}); err != nil {
			w.t.Fatal(err)
		}
	}
}

// watchAll serves a viewer of the session; saw waits until it has received exactly the wanted events.
func (w *world) watchAll() (saw func(want []string)) {
	w.t.Helper()
	v, err := w.feed.Open(w.ctx, w.session)
	if err != nil {
		w.t.Fatal(err)
	}
	b := &buffer{}
	ctx, cancel := context.WithCancel(w.ctx)
	done := make(chan error, 1)
	go func() {
		defer v.Close()
		done <- v.Serve(ctx, b, nil)
	}()
	w.t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			w.t.Errorf("Serve() = %v, want it canceled", err)
		}
	})
	return func(want []string) {
		w.t.Helper()
		for deadline := time.Now().Add(20 * time.Second); len(b.ids(w.t)) < len(want) && time.Now().Before(deadline); {
			<-time.After(5 * time.Millisecond)
		}
		if diff := cmp.Diff(want, b.ids(w.t)); diff != "" {
			w.t.Errorf("viewer's events differ (-want +got):\n%s", diff)
		}
	}
}

// idsOf returns the ids of a complete run of n deltas.
func idsOf(ordinal, n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("text-delta %d-%d", ordinal, i))
	}
	return append(all, fmt.Sprintf("done %d-%d", ordinal, n))
}

// TestStreamRecreated checks that a viewer misses no event published after JetStream was lost,
// however soon the new sequences exceed the old ones.
func TestStreamRecreated(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		before  int // deltas of the first run
		watched bool
		lose    func(int) bool
		after   func(w *world)
		want    []string
	}{
		{"with a longer run", 3, false, nil, func(w *world) { w.whole(2, 30) }, idsOf(2, 30)},
		{"with a run of the same length", 3, false, nil, func(w *world) { w.whole(2, 3) }, idsOf(2, 3)},
		{"with many events of another session first", 8, false, nil, func(w *world) { w.elsewhere(30); w.whole(2, 5) }, idsOf(2, 5)},
		{"with a short run, and then one after the old end", 10, false, nil, func(w *world) { w.whole(2, 3); w.elsewhere(20); w.whole(3, 3) }, slices.Concat(idsOf(2, 3), idsOf(3, 3))},
		{"with a viewer from before", 10, true, nil, func(w *world) { w.whole(2, 3); w.elsewhere(20); w.whole(3, 3) }, slices.Concat(idsOf(1, 10), idsOf(2, 3), idsOf(3, 3))},
		{
			"with a viewer from before, and its first live events are lost", 10, true, func(n int) bool { return n > 10 && n < 15 },
			func(w *world) { w.whole(2, 3); w.elsewhere(20); w.whole(3, 3) }, slices.Concat(idsOf(1, 10), idsOf(2, 3), idsOf(3, 3)),
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, tt.lose)
			saw := func([]string) {}
			if tt.watched {
				saw = w.watchAll()
			}
			w.whole(1, tt.before)
			if !tt.watched {
				saw = w.watchAll()
			}
			w.wipe()
			tt.after(w)
			saw(tt.want)
		})
	}
}

// TestStreamRecreatedWhileDisconnected checks that a new stream is noticed after a reconnect, even if its first
// live event seems to follow the last one.
func TestStreamRecreatedWhileDisconnected(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil, func(c *feed.Config) { c.Silence, c.Idle = time.Hour, time.Hour })
	w.whole(1, 3)
	saw := w.watchAll()
	w.srv.Shutdown()
	cfg := w.srv.Config()
	cfg.Dir = t.TempDir()
	w.srv = natstest.Start(t, cfg)
	natstest.Apply(t, w.srv, natstest.Topology(t))
	w.created = w.created.Add(time.Hour)
	w.writer = w.connect(subject.AgentRunner)
	w.whole(2, 3) // as many events as before
	for deadline := time.Now().Add(timeout); !w.bus.Connected() && time.Now().Before(deadline); {
		<-time.After(time.Millisecond)
	}
	w.whole(3, 3)
	saw(slices.Concat(idsOf(2, 3), idsOf(3, 3)))
}

// TestQuietSession checks that a session continues after all of its old log has expired.
func TestQuietSession(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil, undisturbed)
	w.whole(1, 3)
	saw := w.watchAll()
	w.age(0)
	w.whole(2, 3)
	saw(idsOf(2, 3))
}

// TestLogLosesItsEnd checks that a viewer gets a snapshot and the following events when the server
// has lost the newest events.
func TestLogLosesItsEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil, undisturbed)
	w.rows.snap = feed.Snapshot{Data: []byte(`{"type":"snapshot"}`)}
	saw := w.watchAll()
	w.say("a", "b", "c")
	saw([]string{"text-delta 1-0", "text-delta 1-1", "text-delta 1-2"})
	w.admin(func(ctx context.Context, js jetstream.JetStream) error {
		s, err := js.Stream(ctx, w.stream())
		if err != nil {
			return err
		}
		last, err := s.GetLastMsgForSubject(ctx, w.subject)
		if err != nil {
			return err
		}
		return s.DeleteMsg(ctx, last.Sequence)
	})
	for number := range int64(3) { // the next claim did not find 1-2
		w.store(&runv1.Event{RunId: w.run.String(), RunOrdinal: 1, Epoch: 2, Number: 2 + number, Body: &runv1.Event_TextDelta{TextDelta: &runv1.TextDelta{Delta: "x"}}})
	}
	saw([]string{
		"text-delta 1-0", "text-delta 1-1", "text-delta 1-2",
		"snapshot 0-0", "text-delta 1-0", "text-delta 1-1", "text-delta 1-2", "text-delta 1-3", "text-delta 1-4",
	})
}

// TestRunIsGone checks that a viewer gets a snapshot for a run, or a run's end, that was lost before
// the next run began.
func TestRunIsGone(t *testing.T) {
	t.Parallel()
	for name, lost := range map[string]int{"all of it": 0, "its end": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, nil, undisturbed)
			w.rows.snap = feed.Snapshot{Data: []byte(`{"type":"snapshot"}`), Contents: feed.ContentsOf(&agentv1.EventPosition{RunOrdinal: 2, Number: 3}, nil)}
			saw := w.watchAll()
			w.whole(1, 3)
			w.begin(2)
			for range lost {
				w.say("x")
			}
			w.whole(3, 3)
			saw(slices.Concat(idsOf(1, 3), idsOf(2, math.MaxInt8)[:lost], []string{"snapshot 2-3"}, idsOf(3, 3)))
		})
	}
}
