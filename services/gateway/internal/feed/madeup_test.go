package feed

import (
	"log/slog"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/pkg/id"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	"signalbox.dev/services/gateway/internal/dialect"
)

// Ends that are made up together come in the order of their runs, on every gateway:
// a viewer goes from one to the other with the last of them as its cursor.
func TestEndsAreMadeUpInOrder(t *testing.T) {
	t.Parallel()
	f := New(Config{Dialect: dialect.Plain{}, Log: slog.New(slog.DiscardHandler)})
	top := newTopic(f.shards[0], "live", "log", "stream", id.New[id.Session]())
	top.phase = flowing
	n := news{begun: time.Now(), runs: map[int64]*agentv1.Run{}}
	var want []Position
	for ordinal := int64(1); ordinal <= 8; ordinal++ {
		run := &agentv1.Run{Id: id.New[id.Run]().String(), Ordinal: ordinal, State: agentv1.RunState_RUN_STATE_CANCELLED}
		n.runs[ordinal] = run
		top.pending[ordinal] = &pendingRun{id: run.GetId(), ended: time.Now().Add(-time.Hour)}
		want = append(want, Position{ordinal, 0})
	}
	top.learnNews(&n)
	var got []Position
	for _, f := range top.ring.frames {
		if f.kind == runEnd {
			got = append(got, f.pos)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("made up (-want +got):\n%s", diff)
	}
}

// An end that is on its way is waited for longer than one of which nobody knows.
func TestEndThatWaitsIsNotMadeUpSoon(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		waits bool
		ago   time.Duration
		want  bool
	}{
		{"lost", false, 5 * time.Second, true},
		{"in the outbox", true, 5 * time.Second, false},
		{"in the outbox for too long", true, outboxPatience + time.Second, true},
	} {
		f := New(Config{Dialect: dialect.Plain{}, Log: slog.New(slog.DiscardHandler), Silence: time.Second})
		top := newTopic(f.shards[0], "live", "log", "stream", id.New[id.Session]())
		run := &agentv1.Run{Id: id.New[id.Run]().String(), Ordinal: 1, State: agentv1.RunState_RUN_STATE_DONE, EndWaits: c.waits}
		top.pending[1] = &pendingRun{id: run.GetId(), ended: time.Now().Add(-c.ago)}
		top.learnRun(1, run, time.Second)
		if got := len(top.ring.frames) == 1; got != c.want {
			t.Errorf("made up the end of a run whose end is %s for %v = %t, want %t", c.name, c.ago, got, c.want)
		}
		if p := top.pending[1]; !c.want && !p.nextAsk.After(time.Now()) {
			t.Errorf("a run whose end is %s is asked for again at once", c.name)
		}
	}
}
