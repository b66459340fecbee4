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
