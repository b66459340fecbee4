package natsd_test

import (
	"context"
	"errors"
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
