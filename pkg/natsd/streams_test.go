package natsd_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/natsd"
	"signalbox.dev/pkg/natsd/natstest"
	"signalbox.dev/pkg/subject"
)

// A client of an isolated server notices it and switches to another server.
func TestIsolatedServerIsLeft(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("three servers")
	}
	c := natstest.NewCluster(t, 2)
	top, err := subject.NewTopology(subject.Options{Partitions: 2, Replicas: 3})
	if err != nil {
		t.Fatal(err)
	}
	at, moved := make(chan string, 1), make(chan string, 1)
	b := c.BusWith(subject.Gateway,
		nats.ConnectHandler(func(nc *nats.Conn) { at <- nc.ConnectedUrl() }),
		nats.ReconnectHandler(func(nc *nats.Conn) { moved <- nc.ConnectedUrl() }))
	streams := b.Reads(top.Streams)
	watch(t, streams)
	ready(t, streams, true)
	from := receive(t, at)
	c.Isolate(from)
	begin := time.Now()
	if to := receive(t, moved); to == from {
		t.Errorf("switched from %s to %s, want another server", from, to)
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("left the isolated server after %v, want 5s at most", took)
	}
	ready(t, streams, true)
}

// The owners create lost streams again, and Ready reports the loss until then.
func TestLostStreamsAreRecreated(t *testing.T) {
	t.Parallel()
	srv := natstest.New(t)
	top := natstest.Topology(t)
	runner, executor, gateway := natstest.Dial(t, srv, subject.AgentRunner), natstest.Dial(t, srv, subject.ToolExecutor), natstest.Dial(t, srv, subject.Gateway)
	reads := gateway.Reads(top.Log())
	ready(t, reads, true)

	cfg := srv.Config()
	srv.Shutdown()
	if err := os.RemoveAll(filepath.Join(cfg.Dir, "jetstream")); err != nil {
		t.Fatal(err)
	}
	cfg.Log = natstest.Log(t)
	again, err := natsd.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(again.Shutdown)
	flush(t, gateway)
	ready(t, reads, false)

	begin := time.Now()
	watch(t, runner.Owns(append(top.Queue(subject.Runs), top.Log()...)))
	watch(t, executor.Owns(top.Queue(subject.Tools)))
	for _, s := range []*bus.Streams{reads, runner.Reads(top.Queue(subject.Runs)), executor.Reads(top.Queue(subject.Tools))} {
		ready(t, s, true)
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("recreated after %v, want 5s at most", took)
	}
	// They are as Apply would have created them.
	admin := natstest.Dial(t, again, subject.Admin)
	for _, want := range top.Streams {
		if _, err := admin.Stream(t.Context(), want.Config.Name); err != nil {
			t.Errorf("stream %s: %v", want.Config.Name, err)
		}
	}
	if err := bus.Apply(t.Context(), admin, top); err != nil {
		t.Errorf("Apply afterwards = %v, want nil", err)
	}
}

// flush returns when b is connected again.
func flush(t *testing.T, b *bus.Bus) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for b.Ready(ctx) != nil {
		select {
		case <-ctx.Done():
			t.Fatal("not reconnected")
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func watch(t *testing.T, s *bus.Streams) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
	})
}

// ready waits until Ready returns nil, or checks that it returns an error at once.
func ready(t *testing.T, s *bus.Streams, want bool) {
	t.Helper()
	if err := s.Ready(t.Context()); !want {
		if err == nil {
			t.Error("Ready = nil, want an error")
		}
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // elections take long on a busy machine
	defer cancel()
	for {
		attempt, done := context.WithTimeout(ctx, 2*time.Second)
		err := s.Ready(attempt)
		done()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("Ready = %v, want nil", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func receive[T any](t *testing.T, from <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(20 * time.Second):
		t.Fatal("nothing came in time")
	}
	return v
}
