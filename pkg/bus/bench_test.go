package bus_test

import (
	"context"
	"fmt"
	"math"
	"testing"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/natsd/natstest"
	"signalbox.dev/pkg/subject"
)

func BenchmarkPublish(b *testing.B) {
	c := natstest.Bus(b, natstest.New(b), subject.AgentRunner)
	_, subj, _ := session()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		publish(b, c, subj, fmt.Sprint("id", i))
	}
}

func BenchmarkPublishAsync(b *testing.B) {
	c := natstest.Bus(b, natstest.New(b), subject.AgentRunner)
	_, subj, _ := session()
	const window = 256
	acks := make([]bus.Ack, 0, window)
	flush := func() {
		for _, a := range acks {
			<-a.Done()
			if a.Err() != nil {
				b.Fatal(a.Err())
			}
		}
		acks = acks[:0]
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		ack, err := c.PublishAsync(b.Context(), subj, fmt.Sprint("id", i), text("hello"))
		if err != nil {
			b.Fatal(err)
		}
		if acks = append(acks, ack); len(acks) == window {
			flush()
		}
	}
	flush()
}

// BenchmarkConsume is one message through the queue: published, fetched,
// handled, acked with confirmation.
func BenchmarkConsume(b *testing.B) {
	c := natstest.Bus(b, natstest.New(b), subject.AgentRunner)
	ctx, cancel := context.WithCancel(b.Context())
	handled, ended := make(chan struct{}, 1024), make(chan error, 1)
	go func() {
		ended <- c.Consume(ctx, bus.ConsumeConfig{Stream: subject.Runs, Consumer: subject.Runners, Slots: 64, Handler: func(context.Context, *bus.Delivery) error {
			handled <- struct{}{}
			return nil
		}})
	}()
	const window = 64
	inFlight := 0
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if _, err := c.PublishAsync(b.Context(), subject.RunWork(i%subject.Shards), fmt.Sprint("id", i), text("hello")); err != nil {
			b.Fatal(err)
		}
		if inFlight++; inFlight == window {
			<-handled
			inFlight--
		}
	}
	for range inFlight {
		<-handled
	}
	b.StopTimer()
	cancel()
	if err := <-ended; err != nil {
		b.Fatal(err)
	}
}

// BenchmarkRead200 repairs a gap of 200 events of one session among 50.
func BenchmarkRead200(b *testing.B) {
	c := natstest.Bus(b, natstest.New(b), subject.AgentRunner)
	const sessions, events = 50, 200
	var acks []bus.Ack
	for i := range events {
		for s := range sessions {
			ack, err := c.PublishAsync(b.Context(), fmt.Sprintf("ev.00.w.%d", s), fmt.Sprintf("%d-%d", s, i), text("a delta of the usual size, about so"))
			if err != nil {
				b.Fatal(err)
			}
			acks = append(acks, ack)
		}
	}
	for _, a := range acks {
		<-a.Done()
		if a.Err() != nil {
			b.Fatal(a.Err())
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		n := 0
		for _, err := range c.Read(b.Context(), subject.EventStream(0), "ev.00.w.7", 0, math.MaxUint64) {
			if err != nil {
				b.Fatal(err)
			}
			n++
		}
		if n != events {
			b.Fatalf("Read yields %d, want %d", n, events)
		}
	}
}
