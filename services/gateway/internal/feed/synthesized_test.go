package feed

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
	"signalbox.dev/services/gateway/internal/dialect"
)

// TestSynthesizedEndsAreInOrder checks that ends synthesized together have the order of their runs, on
// every gateway: a viewer may resume at another one with the last of them as its cursor.
func TestSynthesizedEndsAreInOrder(t *testing.T) {
	t.Parallel()
	f := New(Config{Dialect: dialect.Plain{}, Log: slog.New(slog.DiscardHandler)})
	top := newTopic(f.shards[0], "live", "log", "stream", id.New[id.Session]())
	top.phase = flowing
	n := comparison{begun: time.Now(), runs: map[int64]*agentv1.Run{}}
	var want []Position
	for ordinal := int64(1); ordinal <= 8; ordinal++ {
		run := &agentv1.Run{Id: id.New[id.Run]().String(), Ordinal: ordinal, State: agentv1.RunState_RUN_STATE_CANCELLED}
		n.runs[ordinal] = run
		top.pending[ordinal] = &pendingRun{id: run.GetId(), ended: time.Now().Add(-time.Hour)}
		want = append(want, Position{ordinal, 0})
	}
	top.applyComparison(&n)
	var got []Position
	for _, f := range top.ring.frames {
		if f.kind == runEnd {
			got = append(got, f.pos)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("synthesized ends (-want +got):\n%s", diff)
	}
}

// TestSynthesizedEndAfterAnotherRun checks that all viewers get the synthesized end of an active run,
// even if a queued run was cancelled in the middle. Once a later run has begun, only viewers of the
// run get it.
func TestSynthesizedEndAfterAnotherRun(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		epoch int64 // of the other run
		want  bool
	}{{"cancelled while queued", 0, true}, {"begun", 1, false}} {
		top := newBareTopic()
		run := &agentv1.Run{Id: id.New[id.Run]().String(), Ordinal: 3, State: agentv1.RunState_RUN_STATE_DONE, LastEvent: new(int64(2))}
		top.pushEvent(delta(3, 1, 0), 1, false)
		top.pushEvent(delta(3, 1, 1), 2, false)
		top.pushEvent(delta(4, c.epoch, 0), 3, false)
		top.pending[3] = &pendingRun{id: run.GetId(), ended: time.Now().Add(-time.Hour)}
		top.applyRun(3, run, time.Second)
		end := top.ring.frames[len(top.ring.frames)-1]
		if end.kind != runEnd || !end.synthetic {
			t.Fatalf("the last frame is %s, want the end of run 3", end.pos)
		}
		if got := (&Viewer{}).wants(end); got != c.want {
			t.Errorf("run 4 %s: wants(end of run 3) = %t, want %t", c.name, got, c.want)
		}
		if !(&Viewer{follow: Follow{Run: 3}}).wants(end) {
			t.Errorf("run 4 %s: a viewer of run 3 does not want its end", c.name)
		}
		// The log's newest event is that of run 4: a tail up to it is complete.
		if top.newest.Run != 4 || top.newest.Last != 0 {
			t.Errorf("run 4 %s: the newest event is %d-%d, want 4-0", c.name, top.newest.Run, top.newest.Last)
		}
	}
}

// TestHoleBeforeTheFirstEvent checks that a first event in the middle of a run shows a hole only if the log was empty before.
func TestHoleBeforeTheFirstEvent(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		head *runv1.Event // none if nil
		want bool
	}{{"empty log", nil, true}, {"queued run cancelled", delta(4, 0, 1), false}} {
		top := newBareTopic()
		if c.head != nil {
			top.applyHead(c.head, time.Now())
		}
		top.pushEvent(delta(3, 1, 8), 2, false)
		if got := top.ring.frames[0].kind == hole; got != c.want {
			t.Errorf("%s: hole before 3-8: %t, want %t", c.name, got, c.want)
		}
	}
}

// TestHoleAfterLoss checks that a hole stands for events that were published and lost with the log
// while this gateway was disconnected.
func TestHoleAfterLoss(t *testing.T) {
	t.Parallel()
	end := delta(3, 1, 1)
	end.Body = &runv1.Event_Done{Done: &runv1.Done{}}
	for _, c := range []struct {
		name        string
		head, first *runv1.Event // the last event before the loss, and the first one of the new log
		want        bool
	}{
		{"the next run", end, delta(4, 1, 0), false},
		{"a later run", end, delta(5, 1, 0), true},
		{"the next event, of a newer claim", delta(3, 1, 7), delta(3, 2, 8), false},
		{"a later event, of a newer claim", delta(3, 1, 7), delta(3, 2, 9), true},
	} {
		top := newBareTopic()
		top.applyHead(c.head, time.Now())
		data, err := proto.Marshal(c.first)
		if err != nil {
			t.Fatal(err)
		}
		top.applyChanges(&comparison{recreated: true, msgs: []*bus.Stored{{
			Message: bus.Message{Header: nats.Header{bus.SchemaHeader: {"signalbox.run.v1.Event"}}, Data: data}, Seq: 1, Time: time.Now(),
		}}})
		if got := top.ring.frames[0].kind == hole; got != c.want {
			t.Errorf("%s: hole before it: %t, want %t", c.name, got, c.want)
		}
	}
}

// unreachable is a source that does not answer.
type unreachable struct{ Source }

func (unreachable) Run(context.Context, id.Run) (*agentv1.Run, error) {
	return nil, fault.New(fault.Unavailable, "agent-runner cannot be reached")
}

// TestRestartAtEndInRing checks that a viewer gets the end of its run after a snapshot from the ring,
// without calls to other services.
func TestRestartAtEndInRing(t *testing.T) {
	t.Parallel()
	top := newBareTopic()
	top.shard.feed.cfg.Source = unreachable{}
	end := delta(3, 1, 2)
	end.Body = &runv1.Event_Done{Done: &runv1.Done{}}
	top.pushEvent(delta(3, 1, 0), 1, false)
	top.pushEvent(end, 2, false)
	v := &Viewer{feed: top.shard.feed, topic: top, follow: Follow{Run: 3}, followed: id.New[id.Run]().String()}
	if err := v.Restart(t.Context(), Snapshot{Contents: Contents{last: Position{3, 2}}}); err != nil {
		t.Fatalf("Restart() = %v, want nil", err)
	}
	if buf, what := v.nextBatch(nil); what != over || len(buf) == 0 {
		t.Errorf("nextBatch() = %q, %d, want the run's end", buf, what)
	}
}

// newBareTopic returns a flowing topic of a feed that is not running.
func newBareTopic() *topic {
	f := New(Config{Dialect: dialect.Plain{}, Log: slog.New(slog.DiscardHandler)})
	top := newTopic(f.shards[0], "live", "log", "stream", id.New[id.Session]())
	top.phase = flowing
	return top
}

func delta(run, epoch, number int64) *runv1.Event {
	return &runv1.Event{RunOrdinal: run, Epoch: epoch, Number: number, Body: &runv1.Event_TextDelta{TextDelta: &runv1.TextDelta{Delta: "x"}}}
}

// TestEndInOutbox checks that the feed waits longer for an end in the outbox than for a lost one.
func TestEndInOutbox(t *testing.T) {
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
		top.applyRun(1, run, time.Second)
		if got := len(top.ring.frames) == 1; got != c.want {
			t.Errorf("end %s for %v: synthesized: %t, want %t", c.name, c.ago, got, c.want)
		}
		if p := top.pending[1]; !c.want && !p.nextAsk.After(time.Now()) {
			t.Errorf("end %s: the run is looked up again at once", c.name)
		}
	}
}
