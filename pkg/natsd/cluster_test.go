package natsd_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/natsd/natstest"
	"signalbox.dev/pkg/subject"
)

// The topology works with three replicas as with one, even after the loss of a leader.
func TestCluster(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("three servers")
	}
	c := natstest.NewCluster(t, 1)
	b := c.Bus("anybody")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	first, err := b.PublishFenced(ctx, "ev.00.w.s", "1", 0, wrapperspb.String("1"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.PublishFenced(ctx, "ev.00.w.s", "2", 0, wrapperspb.String("2")); !errors.Is(err, bus.ErrFenced) {
		t.Errorf("PublishFenced after another message = %v, want %v", err, bus.ErrFenced)
	}
	c.StopLeader(subject.EventStream(0))
	begin := time.Now()
	seq, err := b.Publish(ctx, "ev.00.w.s", "3", wrapperspb.String("3"))
	for ; errors.Is(err, bus.ErrNoStream) && ctx.Err() == nil; seq, err = b.Publish(ctx, "ev.00.w.s", "3", wrapperspb.String("3")) {
		<-time.After(50 * time.Millisecond)
	}
	if err != nil || seq != first+1 {
		t.Fatalf("Publish after the leader was lost = %d, %v, want %d", seq, err, first+1)
	}
	t.Logf("a new leader took a message after %v", time.Since(begin))
	if last, err := b.Last(ctx, subject.EventStream(0), "ev.00.w.s"); err != nil || last.ID != "3" {
		t.Errorf("Last = %+v, %v, want id 3", last, err)
	}
}

// From one replica to three, as `signalbox migrate` does it with EVENT_REPLICAS=3: the leader, which
// had everything, is lost afterwards, and nothing else is.
func TestReplicasFromOneToThree(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("three servers")
	}
	c := natstest.NewClusterWith(t, subject.Options{Partitions: 1, Replicas: 1})
	b := c.Bus("anybody")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	const events = 50
	for i := range events {
		if _, err := b.Publish(ctx, "ev.00.w.s", fmt.Sprint(i), wrapperspb.String(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.Publish(ctx, "work.run.0", "run", wrapperspb.String("run")); err != nil {
		t.Fatal(err)
	}
	c.Apply(subject.Options{Partitions: 1, Replicas: 3})
	c.AwaitReplicas(subject.EventStream(0))
	c.AwaitReplicas(subject.Runs)
	c.StopLeader(subject.EventStream(0))
	for _, want := range []struct {
		stream string
		last   uint64
	}{{subject.EventStream(0), events}, {subject.Runs, 1}} {
		state, err := streamOf(ctx, b, want.stream)
		for ; err != nil && ctx.Err() == nil; state, err = streamOf(ctx, b, want.stream) { // no leader yet
			<-time.After(50 * time.Millisecond)
		}
		if err != nil || state.Last != want.last {
			t.Errorf("stream %s after the loss = %+v, %v, want %d messages", want.stream, state, err, want.last)
		}
	}
}

// streamOf asks once. A stream without a leader does not answer.
func streamOf(ctx context.Context, b *bus.Bus, stream string) (bus.StreamState, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return b.Stream(ctx, stream)
}
