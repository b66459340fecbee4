package bus_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/natsd"
	"signalbox.dev/pkg/natsd/natstest"
	"signalbox.dev/pkg/subject"
)

func TestPublish(t *testing.T) {
	t.Parallel()
	b := natstest.Bus(t, natstest.New(t), subject.AgentRunner)
	_, subj, _ := session()
	first := publish(t, b, subj, "one")
	if second := publish(t, b, subj, "two"); second != first+1 {
		t.Errorf("second sequence = %d, want %d", second, first+1)
	}
	if again := publish(t, b, subj, "one"); again != first {
		t.Errorf("sequence of a repeated id = %d, want %d", again, first)
	}
	if _, err := b.Publish(t.Context(), subj, "large", text(strings.Repeat("x", subject.MaxPayload-8))); err != nil {
		t.Errorf("Publish of the largest message = %v, want nil", err)
	}
	if _, err := b.Publish(t.Context(), subj, "larger", text(strings.Repeat("x", subject.MaxPayload))); !errors.Is(err, bus.ErrTooLarge) {
		t.Errorf("Publish of a larger message = %v, want %v", err, bus.ErrTooLarge)
	}
	if _, err := b.Publish(t.Context(), subj, "", text("x")); err == nil {
		t.Error("Publish without an id = nil, want an error")
	}
	if _, err := b.PublishAsync(t.Context(), subj, "", text("x")); err == nil {
		t.Error("PublishAsync without an id = nil, want an error")
	}
}

func TestPublishWithoutAStream(t *testing.T) {
	t.Parallel()
	b := natstest.Bus(t, natstest.Start(t, natsd.Config{Dir: t.TempDir()}), "anybody")
	if _, err := b.Publish(t.Context(), subject.RunWork(0), "a", text("a")); !errors.Is(err, bus.ErrNoStream) {
		t.Errorf("Publish = %v, want %v", err, bus.ErrNoStream)
	}
	ack, err := b.PublishAsync(t.Context(), subject.RunWork(0), "a", text("a"))
	if err != nil {
		t.Fatal(err)
	}
	receive(t, ack.Done())
	if err := ack.Err(); !errors.Is(err, bus.ErrNoStream) {
		t.Errorf("Ack = %v, want %v", err, bus.ErrNoStream)
	}
}

func TestPublishToAFullQueue(t *testing.T) {
	t.Parallel()
	srv, top := natstest.New(t), natstest.Topology(t)
	top.Streams[0].Config.MaxMsgs = 2
	natstest.Apply(t, srv, top)
	b := natstest.Bus(t, srv, subject.AgentRunner)
	publish(t, b, subject.RunWork(0), "1")
	publish(t, b, subject.RunWork(1), "2")
	if _, err := b.Publish(t.Context(), subject.RunWork(0), "3", text("3")); !errors.Is(err, bus.ErrFull) {
		t.Errorf("Publish = %v, want %v", err, bus.ErrFull)
	}
}

func TestPublishFenced(t *testing.T) {
	t.Parallel()
	b := natstest.Bus(t, natstest.New(t), subject.AgentRunner)
	stream, subj, _ := session()
	fenced := func(last uint64, id string) (uint64, error) {
		return b.PublishFenced(t.Context(), subj, id, last, text(id))
	}
	first, err := fenced(0, "run:1:0")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fenced(0, "other:1:0"); !errors.Is(err, bus.ErrFenced) {
		t.Errorf("PublishFenced after another message = %v, want %v", err, bus.ErrFenced)
	}
	second, err := fenced(first, "run:2:1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fenced(first, "run:3:1"); !errors.Is(err, bus.ErrFenced) {
		t.Errorf("PublishFenced with the wrong sequence = %v, want %v", err, bus.ErrFenced)
	}
	// A retry after a lost ack: stored once, whatever it returns.
	if seq, err := fenced(first, "run:2:1"); err == nil && seq != second || err != nil && !errors.Is(err, bus.ErrFenced) {
		t.Errorf("PublishFenced again = %d, %v, want %d or %v", seq, err, second, bus.ErrFenced)
	}
	last, err := b.Last(t.Context(), stream, subj)
	if err != nil || last.ID != "run:2:1" || last.Seq != second {
		t.Errorf("Last = %+v, %v, want id run:2:1 at %d", last, err, second)
	}
}

func TestPublishAsync(t *testing.T) {
	t.Parallel()
	b := natstest.Bus(t, natstest.New(t), subject.AgentRunner)
	stream, subj, _ := session()
	const n = 500
	acks := make([]bus.Ack, n)
	for i := range n {
		var err error
		if acks[i], err = b.PublishAsync(t.Context(), subj, fmt.Sprint("id", i), text(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	for _, a := range acks {
		receive(t, a.Done())
		if err := a.Err(); err != nil {
			t.Fatal(err)
		}
	}
	checkLog(t, b, stream, subj, n)
}

// checkLog fails the test unless the log has the numbers below n, each once and in order.
func checkLog(t *testing.T, b *bus.Bus, stream, subj string, n int) {
	t.Helper()
	i := 0
	for m, err := range b.Read(t.Context(), stream, subj, 0, math.MaxUint64) {
		if err != nil {
			t.Fatal(err)
		}
		if got := content(t, &m.Message); got != fmt.Sprint(i) {
			t.Fatalf("message %d of the log is %s", i, got)
		}
		i++
	}
	if i != n {
		t.Errorf("the log has %d messages, want %d", i, n)
	}
}

// Messages published one after the other are stored once and in order, although the server
// restarts again and again.
func TestRunLogSurvivesRestarts(t *testing.T) {
	t.Parallel()
	srv := natstest.New(t)
	b := natstest.Dial(t, srv, subject.AgentRunner)
	stream, subj, _ := session()
	const n, restarts = 400, 3
	cfg := srv.Config()
	at, down, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	go func() {
		for i := range n {
			if i%(n/(restarts+1)) == n/(restarts+1)-1 && i < n-1 {
				at <- struct{}{}
				<-down
			}
			for {
				_, err := b.Publish(ctx, subj, fmt.Sprint("id", i), text(fmt.Sprint(i)))
				if err == nil {
					break
				}
				if ctx.Err() != nil {
					done <- fmt.Errorf("message %d: %w", i, err)
					return
				}
			}
		}
		done <- nil
	}()
	for range restarts {
		receive(t, at)
		srv.Shutdown()
		down <- struct{}{}
		srv = natstest.Start(t, cfg)
	}
	if err := receive(t, done); err != nil {
		t.Fatal(err)
	}
	checkLog(t, b, stream, subj, n)
}

func TestNudge(t *testing.T) {
	t.Parallel()
	srv := natstest.New(t)
	runner, executor := natstest.Bus(t, srv, subject.AgentRunner), natstest.Bus(t, srv, subject.ToolExecutor)
	type got struct {
		text, subj string
		trace      trace.TraceID
	}
	ch := make(chan got, 10)
	sub, err := executor.Subscribe(subject.AllToolCancels, func(ctx context.Context, m *bus.Message) {
		v := got{content(t, m), m.Subject, trace.SpanContextFromContext(ctx).TraceID()}
		ch <- v
		if v.text == "panic" {
			panic("as asked")
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := executor.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, tid := traced(t)
	for _, s := range []string{"panic", "after"} {
		if err := runner.Nudge(ctx, "ctl.cancel.r", text(s)); err != nil {
			t.Fatal(err)
		}
		if v := receive(t, ch); v != (got{s, "ctl.cancel.r", tid}) {
			t.Errorf("subscriber got %+v, want %q on ctl.cancel.r in trace %s", v, s, tid)
		}
	}
	if err := sub.Unsubscribe(); err != nil {
		t.Error(err)
	}
	if err := runner.Nudge(t.Context(), "ctl.cancel.r", text(strings.Repeat("x", subject.MaxPayload+1))); !errors.Is(err, bus.ErrTooLarge) {
		t.Errorf("Nudge = %v, want %v", err, bus.ErrTooLarge)
	}
}

// The headers of republished messages reveal exactly which messages were missed.
func TestRepublished(t *testing.T) {
	t.Parallel()
	srv := natstest.New(t)
	runner, gateway := natstest.Bus(t, srv, subject.AgentRunner), natstest.Bus(t, srv, subject.Gateway)
	_, one, liveOne := session()
	_, two, liveTwo := session()
	ch := make(chan *nats.Msg, 64)
	for _, live := range []string{liveOne, liveTwo} {
		if _, err := gateway.SubscribeChan(live, ch); err != nil {
			t.Fatal(err)
		}
	}
	if err := gateway.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	last := map[string]uint64{}
	for i := range 20 {
		subj := []string{one, one, two}[i%3]
		seq := publish(t, runner, subj, fmt.Sprint(subj, i))
		m, err := bus.Republished(receive(t, ch))
		if err != nil {
			t.Fatal(err)
		}
		if m.Subject != subj || m.Seq != seq || m.Prev != last[subj] || m.ID == "" {
			t.Errorf("Republished = %s, seq %d, prev %d, want %s, %d, %d", m.Subject, m.Seq, m.Prev, subj, seq, last[subj])
		}
		content(t, &m.Message)
		last[subj] = seq
	}
	// A repeated id is not republished.
	publish(t, runner, one, fmt.Sprint(one, 0))
	publish(t, runner, one, "next")
	if m, err := bus.Republished(receive(t, ch)); err != nil || m.ID != "next" {
		t.Errorf("after a repeated id came %+v, %v, want next", m, err)
	}
	if _, err := bus.Republished(nats.NewMsg("live.x")); err == nil {
		t.Error("Republished of a message from no stream = nil error, want one")
	}
}

func FuzzRepublished(f *testing.F) {
	f.Add("ev.00.w.s", "7", "3", "2026-11-21T18:49:24.166Z", "google.protobuf.StringValue", []byte{10, 1, 120})
	f.Add("", "", "-1", "yesterday", "", []byte{0xff})
	f.Fuzz(func(t *testing.T, subj, seq, prev, at, schema string, data []byte) {
		m := &nats.Msg{Subject: "live.x", Data: data, Header: nats.Header{
			"Nats-Subject": {subj}, "Nats-Sequence": {seq}, "Nats-Last-Sequence": {prev}, "Nats-Time-Stamp": {at}, bus.SchemaHeader: {schema},
		}}
		s, err := bus.Republished(m)
		if err != nil {
			return
		}
		if s.Subject == "" || s.Time.IsZero() && at == "" {
			t.Errorf("Republished(%v) = %+v, want a subject and a time", m.Header, s)
		}
		if v, err := bus.Decode[*wrapperspb.StringValue](&s.Message); err == nil && schema != "google.protobuf.StringValue" {
			t.Errorf("Decode of schema %q = %v, want an error", schema, v)
		}
	})
}
