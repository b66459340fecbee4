package bus_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/natsd"
	"signalbox.dev/pkg/natsd/natstest"
	"signalbox.dev/pkg/subject"
)

// consuming is a call of Consume in the background.
type consuming struct {
	cancel context.CancelFunc
	err    chan error
}

func consume(t *testing.T, b *bus.Bus, cfg bus.ConsumeConfig) *consuming {
	t.Helper()
	if cfg.Stream == "" {
		cfg.Stream, cfg.Consumer = subject.Runs, subject.Runners
	}
	if cfg.Slots == 0 {
		cfg.Slots = 4
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	c := &consuming{cancel: cancel, err: make(chan error, 1)}
	go func() { c.err <- b.Consume(ctx, cfg) }()
	t.Cleanup(func() { c.stop(t) })
	return c
}

// stop ends Consume, if it runs, and fails the test unless it returns nil in time.
func (c *consuming) stop(t *testing.T) {
	t.Helper()
	c.cancel()
	select {
	case err := <-c.err:
		if err != nil {
			t.Errorf("Consume = %v, want nil", err)
		}
		c.err <- nil
	case <-time.After(2 * patience):
		t.Error("Consume does not end")
	}
}

// long is an AckWait longer than any test: a lost message is not redelivered.
const long = 10 * patience

// queue is a server whose work queues have the given AckWait.
func queue(t *testing.T, ackWait time.Duration) *natsd.Server {
	t.Helper()
	srv, top := natstest.New(t), natstest.Topology(t)
	for _, s := range top.Streams {
		for i := range s.Consumers {
			s.Consumers[i].AckWait = ackWait
		}
	}
	natstest.Apply(t, srv, top)
	return srv
}

// waitEmpty returns when RUNS has no messages left: each was acked or dropped.
func waitEmpty(t *testing.T, srv *natsd.Server) {
	t.Helper()
	js := administer(t, srv)
	deadline := time.After(patience)
	for {
		s, err := js.Stream(t.Context(), subject.Runs)
		if err != nil {
			t.Fatal(err)
		}
		if s.CachedInfo().State.Msgs == 0 {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("stream RUNS is still %+v", s.CachedInfo().State)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func TestConsumeDelivers(t *testing.T) {
	t.Parallel()
	srv := natstest.New(t)
	b := natstest.Bus(t, srv, subject.AgentRunner)
	ctx, tid := traced(t)
	seq, err := b.Publish(ctx, subject.RunWork(3), "one", text("hello"))
	if err != nil {
		t.Fatal(err)
	}
	type got struct {
		text, id, subj string
		seq            uint64
		attempt        int
		trace          trace.TraceID
	}
	ch := make(chan got, 1)
	consume(t, b, bus.ConsumeConfig{Handler: func(ctx context.Context, d *bus.Delivery) error {
		ch <- got{content(t, &d.Message), d.ID, d.Subject, d.Seq, d.Attempt, trace.SpanContextFromContext(ctx).TraceID()}
		return nil
	}})
	if v, want := receive(t, ch), (got{"hello", "one", subject.RunWork(3), seq, 1, tid}); v != want {
		t.Errorf("delivery = %+v, want %+v", v, want)
	}
	waitEmpty(t, srv)
}

// Each decision, observed by when and how often the message is delivered.
func TestConsumeDecisions(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	for _, tc := range []struct {
		name     string
		decide   func(attempt int) error // nil ends it
		attempts int
		least    time.Duration // from the first delivery to the last
		metric   string
	}{
		{"ack", func(int) error { return nil }, 1, 0, "ack"},
		{"terminal", func(int) error { return bus.Terminal(boom) }, 1, 0, "terminal"},
		{"terminal within", func(int) error { return fmt.Errorf("handle: %w", bus.Terminal(nil)) }, 1, 0, "terminal"},
		{"retry after", func(n int) error {
			if n == 1 {
				return fmt.Errorf("handle: %w", bus.RetryAfter(700*time.Millisecond, boom))
			}
			return nil
		}, 2, 700 * time.Millisecond, "retry"},
		{"retry at once does not spin", func(n int) error {
			if n < 4 {
				return bus.RetryAfter(0, nil)
			}
			return nil
		}, 4, 45 * time.Millisecond, "retry"},
		{"backoff grows", func(n int) error {
			if n < 4 {
				return boom
			}
			return nil
		}, 4, (125 + 250 + 500) * time.Millisecond, "backoff"},
		{"panic", func(n int) error {
			if n == 1 {
				panic("as asked")
			}
			return nil
		}, 2, 125 * time.Millisecond, "panic"},
		{"another schema", func(int) error {
			_, err := bus.Decode[*wrapperspb.BoolValue](&bus.Message{Subject: "x"})
			return err
		}, 1, 0, "terminal"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			srv, reg := queue(t, long), prometheus.NewRegistry()
			b, err := bus.Connect(t.Context(), bus.Config{Service: subject.AgentRunner, Conn: srv.Options(subject.AgentRunner), Log: natstest.Log(t), Metrics: reg})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(b.Close)
			publish(t, b, subject.RunWork(0), "one")
			times := make(chan time.Time, 100)
			var attempts atomic.Int64
			c := consume(t, b, bus.ConsumeConfig{Handler: func(_ context.Context, d *bus.Delivery) error {
				times <- time.Now()
				n := int(attempts.Add(1))
				if d.Attempt != n {
					t.Errorf("attempt = %d, want %d", d.Attempt, n)
				}
				return tc.decide(n)
			}})
			first := receive(t, times)
			last := first
			for range tc.attempts - 1 {
				last = receive(t, times)
			}
			waitEmpty(t, srv)
			c.stop(t)
			if took := last.Sub(first); took < tc.least {
				t.Errorf("deliveries took %v, want at least %v", took, tc.least)
			}
			if got := int(attempts.Load()); got != tc.attempts {
				t.Errorf("deliveries = %d, want %d", got, tc.attempts)
			}
			if n := decisions(t, reg, tc.metric); n < 1 {
				t.Errorf("decisions %q counted = %v, want at least 1", tc.metric, n)
			}
			if n, err := testutil.GatherAndCount(reg, "signalbox_bus_deliveries_total"); err != nil || tc.metric == "ack" && n != 2 {
				t.Errorf("series of decisions = %d, %v, want 2: one of panics from the start", n, err)
			}
		})
	}
}

func decisions(t *testing.T, reg *prometheus.Registry, decision string) (n float64) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if f.GetName() == "signalbox_bus_deliveries_total" && l.GetName() == "decision" && l.GetValue() == decision {
					n += m.GetCounter().GetValue()
				}
			}
		}
	}
	return n
}

// A handler that runs longer than AckWait is not run again, because of the heartbeats.
func TestConsumeHeartbeat(t *testing.T) {
	t.Parallel()
	srv := queue(t, 2*time.Second)
	a, b := natstest.Bus(t, srv, subject.AgentRunner), natstest.Bus(t, srv, subject.AgentRunner)
	var runs atomic.Int64
	done := make(chan struct{}, 10)
	for _, replica := range []*bus.Bus{a, b} {
		consume(t, replica, bus.ConsumeConfig{InProgress: 150 * time.Millisecond, Handler: func(context.Context, *bus.Delivery) error {
			runs.Add(1)
			<-time.After(3 * time.Second)
			done <- struct{}{}
			return nil
		}})
	}
	publish(t, a, subject.RunWork(0), "long")
	receive(t, done)
	waitEmpty(t, srv)
	if got := runs.Load(); got != 1 {
		t.Errorf("the handler ran %d times, want 1", got)
	}
}

// A killed worker's message is redelivered to another worker after AckWait.
func TestConsumeTakesOver(t *testing.T) {
	t.Parallel()
	srv := queue(t, 300*time.Millisecond)
	js := administer(t, srv)
	b := natstest.Bus(t, srv, subject.AgentRunner)
	publish(t, b, subject.RunWork(0), "orphan")
	dead, err := js.Consumer(t.Context(), subject.Runs, subject.Runners)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dead.Next(); err != nil {
		t.Fatal(err)
	}
	got := make(chan int, 1)
	consume(t, b, bus.ConsumeConfig{Handler: func(_ context.Context, d *bus.Delivery) error {
		got <- d.Attempt
		return nil
	}})
	if attempt := receive(t, got); attempt != 2 {
		t.Errorf("attempt = %d, want 2", attempt)
	}
	waitEmpty(t, srv)
}

// A worker fetches no more messages than it has free slots: the rest stays for others.
func TestConsumeSlots(t *testing.T) {
	t.Parallel()
	srv := natstest.New(t)
	full, free := natstest.Bus(t, srv, subject.AgentRunner), natstest.Bus(t, srv, subject.AgentRunner)
	const slots, n = 3, 10
	var now, most atomic.Int64
	started, release := make(chan string, n), make(chan struct{})
	consume(t, full, bus.ConsumeConfig{Slots: slots, Handler: func(_ context.Context, d *bus.Delivery) error {
		most.Store(max(most.Load(), now.Add(1)))
		defer now.Add(-1)
		started <- d.ID
		<-release
		return nil
	}})
	for i := range n {
		publish(t, full, subject.RunWork(i%subject.Shards), fmt.Sprint(i))
	}
	for range slots {
		receive(t, started)
	}
	other := make(chan string, n)
	consume(t, free, bus.ConsumeConfig{Handler: func(_ context.Context, d *bus.Delivery) error {
		other <- d.ID
		return nil
	}})
	for range n - slots {
		receive(t, other)
	}
	close(release)
	waitEmpty(t, srv)
	if got := most.Load(); got > slots {
		t.Errorf("%d concurrent handlers, want at most %d", got, slots)
	}
}

func TestConsumeDrains(t *testing.T) {
	t.Parallel()
	t.Run("waits for running handlers", func(t *testing.T) {
		t.Parallel()
		srv := natstest.New(t)
		b := natstest.Bus(t, srv, subject.AgentRunner)
		publish(t, b, subject.RunWork(0), "one")
		started := make(chan struct{}, 1)
		var ended atomic.Bool
		c := consume(t, b, bus.ConsumeConfig{Handler: func(ctx context.Context, d *bus.Delivery) error {
			started <- struct{}{}
			<-d.Draining()
			select {
			case <-ctx.Done():
				t.Error("the context is done before the drain timeout")
			case <-time.After(300 * time.Millisecond):
			}
			ended.Store(true)
			return nil
		}})
		receive(t, started)
		c.stop(t)
		if !ended.Load() {
			t.Error("Consume returned before its handler")
		}
		waitEmpty(t, srv)
	})
	t.Run("cancels handlers, and another worker gets the message at once", func(t *testing.T) {
		t.Parallel()
		srv := queue(t, long)
		a, b := natstest.Bus(t, srv, subject.AgentRunner), natstest.Bus(t, srv, subject.AgentRunner)
		publish(t, a, subject.RunWork(0), "one")
		started, cause := make(chan struct{}, 1), make(chan error, 1)
		c := consume(t, a, bus.ConsumeConfig{DrainTimeout: 300 * time.Millisecond, Handler: func(ctx context.Context, _ *bus.Delivery) error {
			started <- struct{}{}
			<-ctx.Done()
			cause <- context.Cause(ctx)
			return ctx.Err()
		}})
		receive(t, started)
		c.stop(t)
		if err := receive(t, cause); !errors.Is(err, bus.ErrDraining) {
			t.Errorf("cause = %v, want %v", err, bus.ErrDraining)
		}
		moved := make(chan struct{}, 1)
		consume(t, b, bus.ConsumeConfig{Handler: func(context.Context, *bus.Delivery) error {
			moved <- struct{}{}
			return nil
		}})
		receive(t, moved)
		waitEmpty(t, srv)
	})
	t.Run("reports handlers that ignore the cancellation", func(t *testing.T) {
		t.Parallel()
		b := natstest.Bus(t, natstest.New(t), subject.AgentRunner)
		publish(t, b, subject.RunWork(0), "one")
		release, started := make(chan struct{}), make(chan struct{}, 1)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			ended <- b.Consume(ctx, bus.ConsumeConfig{Stream: subject.Runs, Consumer: subject.Runners, Slots: 1, DrainTimeout: time.Millisecond, Handler: func(context.Context, *bus.Delivery) error {
				started <- struct{}{}
				<-release
				return nil
			}})
		}()
		receive(t, started)
		cancel()
		if err := receive(t, ended); err == nil {
			t.Error("Consume = nil, want an error about the handler")
		}
		close(release)
	})
	t.Run("loses nothing when it stops under load", func(t *testing.T) {
		t.Parallel()
		srv := queue(t, long) // a message lost at the stop would not be redelivered
		b := natstest.Bus(t, srv, subject.AgentRunner)
		const n = 300
		var handled atomic.Int64
		handler := func(context.Context, *bus.Delivery) error {
			handled.Add(1)
			return nil
		}
		var publishing sync.WaitGroup
		publishing.Go(func() {
			for i := range n {
				publish(t, b, subject.RunWork(0), fmt.Sprint(i))
			}
		})
		for begin := time.Now(); handled.Load() < n && time.Since(begin) < patience; {
			c := consume(t, b, bus.ConsumeConfig{Handler: handler})
			<-time.After(20 * time.Millisecond)
			c.stop(t)
		}
		publishing.Wait()
		waitEmpty(t, srv)
		if handled.Load() != n {
			t.Errorf("handled %d of %d", handled.Load(), n)
		}
	})
}

func TestConsumeRejectsBadConfigs(t *testing.T) {
	t.Parallel()
	b := natstest.Bus(t, natstest.New(t), subject.AgentRunner)
	handler := func(context.Context, *bus.Delivery) error { return nil }
	for name, cfg := range map[string]bus.ConsumeConfig{
		"no slots":    {Stream: "RUNS", Consumer: "runners", Handler: handler},
		"no handler":  {Stream: "RUNS", Consumer: "runners", Slots: 1},
		"no stream":   {Consumer: "runners", Slots: 1, Handler: handler},
		"no consumer": {Stream: "RUNS", Slots: 1, Handler: handler},
	} {
		if err := b.Consume(t.Context(), cfg); err == nil {
			t.Errorf("%s: Consume = nil, want an error", name)
		}
	}
}

// Consume goes on after faults of its stream, its consumer and the server.
func TestConsumeSurvives(t *testing.T) {
	t.Parallel()
	type world struct {
		srv *natsd.Server
		bus *bus.Bus
	}
	for _, tc := range []struct {
		name string
		harm func(t *testing.T, w *world)
	}{
		{"the consumer is deleted", func(t *testing.T, w *world) {
			if err := administer(t, w.srv).DeleteConsumer(t.Context(), subject.Runs, subject.Runners); err != nil {
				t.Fatal(err)
			}
			natstest.Apply(t, w.srv, natstest.Topology(t))
		}},
		{"the stream is deleted", func(t *testing.T, w *world) {
			if err := administer(t, w.srv).DeleteStream(t.Context(), subject.Runs); err != nil {
				t.Fatal(err)
			}
			natstest.Apply(t, w.srv, natstest.Topology(t))
		}},
		{"the server restarts", func(t *testing.T, w *world) {
			w.srv.Shutdown()
			w.srv = natstest.Start(t, w.srv.Config())
		}},
		{"the server restarts without its folder", func(t *testing.T, w *world) {
			w.srv.Shutdown()
			cfg := w.srv.Config()
			cfg.Dir = t.TempDir()
			w.srv = natstest.Start(t, cfg)
			natstest.Apply(t, w.srv, natstest.Topology(t))
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			w := &world{srv: natstest.New(t)}
			w.bus = natstest.Dial(t, w.srv, subject.AgentRunner)
			got := make(chan string, 10)
			consume(t, w.bus, bus.ConsumeConfig{Handler: func(_ context.Context, d *bus.Delivery) error {
				got <- d.ID
				return nil
			}})
			publish(t, w.bus, subject.RunWork(0), "before")
			receive(t, got)
			tc.harm(t, w)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			if _, err := w.bus.Publish(ctx, subject.RunWork(0), "after", text("after")); err != nil {
				t.Fatal(err)
			}
			for receive(t, got) != "after" {
			}
			waitEmpty(t, w.srv)
		})
	}
}

// A worker that starts before its stream waits for it.
func TestConsumeBeforeTheStream(t *testing.T) {
	t.Parallel()
	top := natstest.Topology(t)
	srv := natstest.Start(t, natsd.Config{Dir: t.TempDir(), Users: subject.Users(top)})
	b := natstest.Bus(t, srv, subject.AgentRunner)
	got := make(chan string, 1)
	consume(t, b, bus.ConsumeConfig{Handler: func(_ context.Context, d *bus.Delivery) error {
		got <- d.ID
		return nil
	}})
	natstest.Apply(t, srv, top)
	publish(t, b, subject.RunWork(0), "one")
	if got := receive(t, got); got != "one" {
		t.Errorf("delivered %q, want one", got)
	}
}

// A decision made while the server is down reaches it afterwards.
func TestConsumeAcksAfterAReconnect(t *testing.T) {
	t.Parallel()
	srv := natstest.New(t)
	b := natstest.Dial(t, srv, subject.AgentRunner)
	started, release := make(chan struct{}, 10), make(chan struct{})
	var runs atomic.Int64
	consume(t, b, bus.ConsumeConfig{Handler: func(context.Context, *bus.Delivery) error {
		runs.Add(1)
		started <- struct{}{}
		<-release
		return nil
	}})
	publish(t, b, subject.RunWork(0), "one")
	receive(t, started)
	cfg := srv.Config()
	srv.Shutdown()
	close(release)
	srv = natstest.Start(t, cfg)
	waitEmpty(t, srv)
	if got := runs.Load(); got != 1 {
		t.Errorf("the handler ran %d times, want 1", got)
	}
}
