package bus_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/freeport"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/natsd"
	"signalbox.dev/pkg/natsd/natstest"
	"signalbox.dev/pkg/subject"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait of a test.
const patience = 20 * time.Second

func text(s string) *wrapperspb.StringValue { return wrapperspb.String(s) }

func content(t testing.TB, m *bus.Message) string {
	t.Helper()
	v, err := bus.Decode[*wrapperspb.StringValue](m)
	if err != nil {
		t.Fatal(err)
	}
	return v.GetValue()
}

func receive[T any](t testing.TB, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(patience):
		t.Fatal("nothing came in time")
		panic("not reached")
	}
}

// session is the run log of one session: its stream, subject and live subject.
func session() (stream, subj, live string) {
	s, ws := id.New[id.Session](), id.New[id.Workspace]()
	p := subject.Partition(s, 4)
	return subject.EventStream(p), subject.Events(p, ws, s), subject.Live(p, ws, s)
}

func publish(t testing.TB, b *bus.Bus, subj, msgID string) uint64 {
	t.Helper()
	seq, err := b.Publish(t.Context(), subj, msgID, text(msgID))
	if err != nil {
		t.Fatal(err)
	}
	return seq
}

// administer returns a JetStream client with the admin's rights.
func administer(t testing.TB, srv *natsd.Server) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect("", append(srv.Options(subject.Admin), nats.CustomInboxPrefix(subject.InboxPrefix(subject.Admin)))...)
	if err != nil {
		t.Fatal(err)
	}
	closed := nc.StatusChanged(nats.CLOSED)
	t.Cleanup(func() {
		nc.Close()
		<-closed
	})
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

func TestConnectRejectsBadConfigs(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]bus.Config{
		"no service": {URL: "nats://127.0.0.1:1", Log: natstest.Log(t)},
		"no address": {Service: "gateway", Log: natstest.Log(t)},
		"no logger":  {Service: "gateway", URL: "nats://127.0.0.1:1"},
		"bad url":    {Service: "gateway", URL: "nats://%zz", Log: natstest.Log(t)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if b, err := bus.Connect(t.Context(), cfg); err == nil {
				b.Close()
				t.Error("Connect = nil error, want one")
			}
		})
	}
}

// Errors are logged, so they must not contain passwords, whatever characters those have.
func TestConnectHidesPasswords(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"nats://u:hunter2%zz@127.0.0.1", "nats://u:hunter2#@127.0.0.1", "nats://u:hunter2 /@127.0.0.1", "nats://127.0.0.1:1,nats://u:hunter2@127.0.0.1:port"} {
		b, err := bus.Connect(t.Context(), bus.Config{Service: subject.Gateway, URL: address, Log: natstest.Log(t)})
		if err == nil {
			b.Close()
		}
		if err == nil || !strings.Contains(err.Error(), "percent-encoded") || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("Connect(%q) = %v, want an error without the password", address, err)
		}
	}
}

// An error about an unreachable server has its address and the cause, and no password.
func TestApplyNamesTheServer(t *testing.T) {
	t.Parallel()
	b, err := bus.Connect(t.Context(), bus.Config{Service: subject.Admin, URL: "nats://u:hunter2@127.0.0.1:1, 127.0.0.1:2", Log: natstest.Log(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for !strings.Contains(b.Ready(t.Context()).Error(), "refused") {
		<-again.C
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	err = bus.Apply(ctx, b, subject.Topology{})
	if err == nil || !strings.Contains(err.Error(), "127.0.0.1:1, 127.0.0.1:2: ") || !strings.Contains(err.Error(), "refused") || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("Apply = %v, want an error with both addresses, the reason, and no password", err)
	}
}

// A service may start before the server: its calls wait, and then work.
func TestConnectBeforeTheServer(t *testing.T) {
	t.Parallel()
	addr, err := freeport.Addr()
	if err != nil {
		t.Fatal(err)
	}
	b, err := bus.Connect(t.Context(), bus.Config{Service: subject.AgentRunner, URL: "nats://" + addr, Log: natstest.Log(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	if err := b.Ready(t.Context()); err == nil {
		t.Error("Ready without a server = nil, want an error")
	}
	if _, err := b.PublishAsync(t.Context(), subject.RunWork(0), "a", text("a")); !errors.Is(err, bus.ErrDisconnected) {
		t.Errorf("PublishAsync without a server = %v, want %v", err, bus.ErrDisconnected)
	}
	got := make(chan string, 1)
	if _, err := b.Subscribe(subject.AllCtlRuns, func(_ context.Context, m *bus.Message) { got <- m.Subject }); err != nil {
		t.Fatal(err)
	}
	published := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		_, err := b.Publish(ctx, subject.RunWork(0), "one", text("one"))
		published <- err
	}()
	srv := natstest.Start(t, natsd.Config{Dir: t.TempDir(), Port: int(netip.MustParseAddrPort(addr).Port())})
	natstest.Apply(t, srv, natstest.Topology(t))
	if err := receive(t, published); err != nil && !errors.Is(err, bus.ErrNoStream) {
		t.Errorf("Publish = %v, want nil, or ErrNoStream if the topology came later", err)
	}
	if err := b.Ready(t.Context()); err != nil {
		t.Errorf("Ready = %v, want nil", err)
	}
	if err := b.Nudge(t.Context(), "ctl.run.x", text("x")); err != nil {
		t.Error(err)
	}
	if subj := receive(t, got); subj != "ctl.run.x" {
		t.Errorf("subscription made before the connection got %q, want ctl.run.x", subj)
	}
}

// A bus without echo receives everything but its own messages.
func TestWithoutEcho(t *testing.T) {
	t.Parallel()
	loud := natstest.Bus(t, natstest.New(t), subject.DocumentSync)
	quiet, err := loud.WithoutEcho(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(quiet.Close)
	subj := subject.DocUpdates(id.New[id.Workspace](), id.New[id.Document]())
	heard := map[*bus.Bus]chan string{}
	for _, b := range []*bus.Bus{loud, quiet} {
		ch := make(chan string, 8)
		heard[b] = ch
		if _, err := b.Subscribe(subj, func(_ context.Context, m *bus.Message) { ch <- content(t, m) }); err != nil {
			t.Fatal(err)
		}
	}
	for _, b := range []*bus.Bus{loud, quiet} {
		if err := b.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	say := func(b *bus.Bus, s string) {
		t.Helper()
		if err := b.Nudge(t.Context(), subj, text(s)); err != nil {
			t.Fatal(err)
		}
		if got := receive(t, heard[loud]); got != s { // messages come in order, so quiet's own would have come by now
			t.Fatalf("heard %q, want %q", got, s)
		}
	}
	say(quiet, "of quiet")
	say(loud, "of loud")
	if got := receive(t, heard[quiet]); got != "of loud" {
		t.Errorf("quiet heard %q, want the other bus's message", got)
	}
}

func TestReadySaysWhy(t *testing.T) {
	t.Parallel()
	srv := natstest.New(t)
	b, err := bus.Connect(t.Context(), bus.Config{Service: subject.Gateway, URL: srv.ClientURL(), Password: "wrong", Log: natstest.Log(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	deadline := time.After(patience)
	for {
		err := b.Ready(t.Context())
		if err == nil {
			t.Fatal("Ready with a wrong password = nil, want an error")
		}
		if strings.Contains(strings.ToLower(err.Error()), "authorization") {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("Ready = %v, want it to name the authorization", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func TestCloseTwiceAndUseAfter(t *testing.T) {
	t.Parallel()
	b := natstest.Bus(t, natstest.New(t), subject.AgentRunner)
	b.Close()
	b.Close()
	if _, err := b.Publish(t.Context(), subject.RunWork(0), "a", text("a")); !errors.Is(err, bus.ErrClosed) {
		t.Errorf("Publish = %v, want %v", err, bus.ErrClosed)
	}
	if err := b.Ready(t.Context()); err == nil {
		t.Error("Ready = nil, want an error")
	}
	err := b.Consume(t.Context(), bus.ConsumeConfig{Stream: subject.Runs, Consumer: subject.Runners, Slots: 1, Handler: func(context.Context, *bus.Delivery) error { return nil }})
	if !errors.Is(err, bus.ErrClosed) {
		t.Errorf("Consume = %v, want %v", err, bus.ErrClosed)
	}
}

func TestDecode(t *testing.T) {
	t.Parallel()
	good, err := proto.Marshal(text("hello"))
	if err != nil {
		t.Fatal(err)
	}
	header := func(schema string) nats.Header { return nats.Header{bus.SchemaHeader: {schema}} }
	for _, tc := range []struct {
		name string
		in   bus.Message
		want string
		err  bool
	}{
		{"right", bus.Message{Header: header("google.protobuf.StringValue"), Data: good}, "hello", false},
		{"another schema", bus.Message{Header: header("google.protobuf.BytesValue"), Data: good}, "", true},
		{"no schema", bus.Message{Data: good}, "", true},
		{"not protobuf", bus.Message{Header: header("google.protobuf.StringValue"), Data: []byte{0xff}}, "", true},
		{"empty", bus.Message{Header: header("google.protobuf.StringValue")}, "", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got, err := bus.Decode[*wrapperspb.StringValue](&tc.in)
			if (err != nil) != tc.err || got.GetValue() != tc.want {
				t.Errorf("Decode = %q, %v, want %q, error %v", got.GetValue(), err, tc.want, tc.err)
			}
		})
	}
	if _, err := bus.Decode[proto.Message](&bus.Message{}); err == nil {
		t.Error("Decode into an interface = nil error, want one")
	}
}

// Two services of one process may share a registry.
func TestMetricsShareARegistry(t *testing.T) {
	t.Parallel()
	srv, reg := natstest.New(t), prometheus.NewRegistry()
	for _, service := range []string{subject.AgentRunner, subject.ToolExecutor} {
		b, err := bus.Connect(t.Context(), bus.Config{Service: service, Conn: srv.Options(service), Log: natstest.Log(t), Metrics: reg})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(b.Close)
		if err := b.Nudge(t.Context(), "ctl.tool.x", text("x")); err != nil {
			t.Fatal(err)
		}
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	services := map[string]int{}
	for _, f := range families {
		if f.GetName() != "signalbox_bus_publish_seconds" {
			continue
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "service" {
					services[l.GetValue()]++
				}
			}
		}
	}
	if diff := cmp.Diff(map[string]int{subject.AgentRunner: 1, subject.ToolExecutor: 1}, services); diff != "" {
		t.Errorf("publications by service (-want +got)\n%s", diff)
	}
}

// traced returns a context within a remote trace.
func traced(t *testing.T) (context.Context, trace.TraceID) {
	t.Helper()
	tid := trace.TraceID{1, 2, 3}
	sc := trace.NewSpanContext(trace.SpanContextConfig{TraceID: tid, SpanID: trace.SpanID{4}, TraceFlags: trace.FlagsSampled, Remote: true})
	return trace.ContextWithSpanContext(t.Context(), sc), tid
}

func TestApply(t *testing.T) {
	t.Parallel()
	t.Run("twice, at once, and with other settings", func(t *testing.T) {
		t.Parallel()
		srv := natstest.New(t)
		admin, top := natstest.Bus(t, srv, subject.Admin), natstest.Topology(t)
		errs := make(chan error, 2)
		for range 2 {
			go func() { errs <- bus.Apply(t.Context(), admin, top) }()
		}
		for range 2 {
			if err := receive(t, errs); err != nil {
				t.Errorf("Apply again = %v, want nil", err)
			}
		}
		publish(t, natstest.Bus(t, srv, subject.AgentRunner), subject.RunWork(0), "kept")
		top.Streams[0].Config.MaxMsgs = 7
		top.Streams[0].Consumers[0].MaxAckPending = 8
		if err := bus.Apply(t.Context(), admin, top); err != nil {
			t.Fatalf("Apply with other settings = %v, want nil", err)
		}
		js := administer(t, srv)
		stream, err := js.Stream(t.Context(), subject.Runs)
		if err != nil {
			t.Fatal(err)
		}
		if info := stream.CachedInfo(); info.Config.MaxMsgs != 7 || info.State.Msgs != 1 {
			t.Errorf("MaxMsgs = %d, messages = %d, want 7 and 1", info.Config.MaxMsgs, info.State.Msgs)
		}
		c, err := js.Consumer(t.Context(), subject.Runs, subject.Runners)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.CachedInfo().Config.MaxAckPending; got != 8 {
			t.Errorf("MaxAckPending = %d, want 8", got)
		}
	})
	t.Run("fewer partitions delete nothing", func(t *testing.T) {
		t.Parallel()
		srv := natstest.New(t)
		top, err := subject.NewTopology(subject.Options{Partitions: 1})
		if err != nil {
			t.Fatal(err)
		}
		natstest.Apply(t, srv, top)
		if _, err := administer(t, srv).Stream(t.Context(), subject.EventStream(3)); err != nil {
			t.Errorf("Stream(EV_03) = %v, want it to be kept", err)
		}
	})
	for _, tc := range []struct {
		name   string
		change func(*subject.Topology)
		want   string
	}{
		{"retention cannot change", func(top *subject.Topology) { top.Streams[0].Config.Retention = jetstream.LimitsPolicy }, "stop the services, delete it"},
		{"deliver policy cannot change", func(top *subject.Topology) { top.Streams[0].Consumers[0].DeliverPolicy = jetstream.DeliverNewPolicy }, "stop the services, delete it"},
		{"replicas on a single server", func(top *subject.Topology) { top.Streams[2].Config.Replicas = 3 }, "set the replicas to 1"},
		{"more than the disk", func(top *subject.Topology) { top.Streams[2].Config.MaxBytes = 1 << 50 }, "max_file_store"},
		{"subjects of another stream", func(top *subject.Topology) { top.Streams[2].Config.Name = "OTHER" }, "another stream has these subjects"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			srv := natstest.New(t)
			top := natstest.Topology(t)
			tc.change(&top)
			err := bus.Apply(t.Context(), natstest.Bus(t, srv, subject.Admin), top)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Apply = %v, want it to say %q", err, tc.want)
			}
		})
	}
	t.Run("not the admin", func(t *testing.T) {
		t.Parallel()
		srv := natstest.New(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := bus.Apply(ctx, natstest.Bus(t, srv, subject.Gateway), natstest.Topology(t))
		if err == nil || !strings.Contains(err.Error(), "that the user is the admin") {
			t.Errorf("Apply = %v, want it to name the admin", err)
		}
	})
}

func TestReadLog(t *testing.T) {
	t.Parallel()
	srv := natstest.New(t)
	runner, gateway := natstest.Bus(t, srv, subject.AgentRunner), natstest.Bus(t, srv, subject.Gateway)
	ws := id.New[id.Workspace]()
	stream := subject.EventStream(0)
	mine, other := subject.Events(0, ws, id.New[id.Session]()), subject.Events(0, ws, id.New[id.Session]())

	if _, err := gateway.Last(t.Context(), stream, mine); !errors.Is(err, bus.ErrNotFound) {
		t.Errorf("Last of an empty log = %v, want %v", err, bus.ErrNotFound)
	}
	for m, err := range gateway.Read(t.Context(), stream, mine, 0, math.MaxUint64) {
		t.Errorf("Read of an empty log yields %v, %v", m, err)
	}
	const n = 600 // more than two requests' worth
	acks := make([]bus.Ack, 0, 2*n)
	for i := range n {
		for _, subj := range []string{mine, other} {
			ack, err := runner.PublishAsync(t.Context(), subj, fmt.Sprintf("%s-%d", subj[len(subj)-4:], i), text(fmt.Sprint(i)))
			if err != nil {
				t.Fatal(err)
			}
			acks = append(acks, ack)
		}
	}
	for _, a := range acks {
		receive(t, a.Done())
		if err := a.Err(); err != nil {
			t.Fatal(err)
		}
	}
	last, err := gateway.Last(t.Context(), stream, mine)
	if err != nil {
		t.Fatal(err)
	}
	if want := uint64(2*n - 1); last.Seq != want || content(t, &last.Message) != fmt.Sprint(n-1) || last.Subject != mine || last.ID == "" || time.Since(last.Time) > time.Minute {
		t.Errorf("Last = %+v, want sequence %d", last, want)
	}
	read := func(after, through uint64, stop int) (seqs []uint64) {
		for m, err := range gateway.Read(t.Context(), stream, mine, after, through) {
			if err != nil {
				t.Fatal(err)
			}
			if m.Subject != mine || content(t, &m.Message) != fmt.Sprint(m.Seq/2) {
				t.Errorf("Read yields %s %q at %d", m.Subject, content(t, &m.Message), m.Seq)
			}
			if seqs = append(seqs, m.Seq); len(seqs) == stop {
				break
			}
		}
		return seqs
	}
	odd := func(from, to uint64) (seqs []uint64) {
		for s := from; s <= to; s += 2 {
			seqs = append(seqs, s)
		}
		return seqs
	}
	for _, tc := range []struct {
		name           string
		after, through uint64
		stop           int
		want           []uint64
	}{
		{"all", 0, math.MaxUint64, -1, odd(1, 2*n-1)},
		{"through the last", 0, 2*n - 1, -1, odd(1, 2*n-1)},
		{"a piece", 10, 21, -1, odd(11, 21)},
		{"through one of another subject", 10, 22, -1, odd(11, 21)},
		{"after one of ours", 11, 15, -1, odd(13, 15)},
		{"one", 0, 1, -1, odd(1, 1)},
		{"nothing between", 10, 10, -1, nil},
		{"upside down", 11, 10, -1, nil},
		{"past the end", 2*n - 1, math.MaxUint64, -1, nil},
		{"far past the end", 10 * n, math.MaxUint64, -1, nil},
		{"the loop ends early", 0, math.MaxUint64, 3, odd(1, 5)},
		{"exactly one request", 0, 511, -1, odd(1, 511)},
		{"one more than a request", 0, 513, -1, odd(1, 513)},
	} {
		if diff := cmp.Diff(tc.want, read(tc.after, tc.through, tc.stop)); diff != "" {
			t.Errorf("%s: Read(%d, %d) (-want +got)\n%s", tc.name, tc.after, tc.through, diff)
		}
	}
	if _, err := runner.Last(t.Context(), "EV_03", "ev.00.no.such"); !errors.Is(err, bus.ErrNotFound) {
		t.Errorf("Last in another stream = %v, want %v", err, bus.ErrNotFound)
	}
}

func TestReadAll(t *testing.T) {
	t.Parallel()
	srv := natstest.New(t)
	runner, js := natstest.Bus(t, srv, subject.AgentRunner), administer(t, srv)
	stream, ws := subject.EventStream(0), id.New[id.Workspace]()
	state := func() bus.StreamState {
		t.Helper()
		s, err := runner.Stream(t.Context(), stream)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	empty := state()
	if empty.First != 0 || empty.Last != 0 || time.Since(empty.Created) > time.Minute {
		t.Errorf("Stream of a new stream = %+v, want zeros and just now", empty)
	}
	const n = 300 // more than two requests' worth
	for i := range n {
		publish(t, runner, subject.Events(0, ws, id.New[id.Session]()), fmt.Sprint(i))
	}
	handle, err := js.Stream(t.Context(), stream)
	if err != nil {
		t.Fatal(err)
	}
	for _, gone := range []uint64{1, 2, 7, 200} {
		if err := handle.DeleteMsg(t.Context(), gone); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := state(), (bus.StreamState{Created: empty.Created, First: 3, Last: n}); got != want {
		t.Errorf("Stream = %+v, want %+v", got, want)
	}
	for _, tc := range []struct {
		name           string
		after, through uint64
		first, last    uint64
		count          int
	}{
		{"all", 0, math.MaxUint64, 3, n, n - 4},
		{"from one that is gone", 6, math.MaxUint64, 8, n, n - 8},
		{"to one that is gone", 150, 200, 151, 199, 49},
		{"a piece over a border", 100, 260, 101, 260, 159},
		{"past the end", n, math.MaxUint64, 0, 0, 0},
		{"nothing", 5, 5, 0, 0, 0},
		{"after the end of numbers", math.MaxUint64, math.MaxUint64, 0, 0, 0},
	} {
		var seqs []uint64
		for m, err := range runner.ReadAll(t.Context(), stream, tc.after, tc.through) {
			if err != nil {
				t.Fatal(err)
			}
			if len(seqs) > 0 && m.Seq <= seqs[len(seqs)-1] {
				t.Errorf("%s: message %d came after %d", tc.name, m.Seq, seqs[len(seqs)-1])
			}
			seqs = append(seqs, m.Seq)
		}
		if len(seqs) != tc.count || tc.count > 0 && (seqs[0] != tc.first || seqs[len(seqs)-1] != tc.last) {
			t.Errorf("%s: ReadAll(%d, %d) yields %d: %v, want %d from %d to %d", tc.name, tc.after, tc.through, len(seqs), seqs, tc.count, tc.first, tc.last)
		}
	}
	if err := js.DeleteStream(t.Context(), stream); err != nil {
		t.Fatal(err)
	}
	if _, err := runner.Stream(t.Context(), stream); !errors.Is(err, bus.ErrNoStream) {
		t.Errorf("Stream of a missing stream = %v, want %v", err, bus.ErrNoStream)
	}
	natstest.Apply(t, srv, natstest.Topology(t))
	if got := state(); !got.Created.After(empty.Created) || got.Last != 0 {
		t.Errorf("recreated stream = %+v, want it empty and created after %v", got, empty.Created)
	}
}

func TestReadErrors(t *testing.T) {
	t.Parallel()
	srv := natstest.Start(t, natsd.Config{Dir: t.TempDir()})
	b := natstest.Bus(t, srv, "anybody")
	if _, err := b.Last(t.Context(), "EV_00", "ev.00.x"); !errors.Is(err, bus.ErrNoStream) {
		t.Errorf("Last without a stream = %v, want %v", err, bus.ErrNoStream)
	}
	var got error
	for _, err := range b.Read(t.Context(), "EV_00", "ev.00.x", 0, 9) {
		got = err
	}
	if !errors.Is(got, bus.ErrNoStream) {
		t.Errorf("Read without a stream = %v, want %v", got, bus.ErrNoStream)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, err := range b.Read(ctx, "EV_00", "ev.00.x", 0, 9) {
		got = err
	}
	if !errors.Is(got, context.Canceled) {
		t.Errorf("Read with a cancelled context = %v, want %v", got, context.Canceled)
	}
}

// Large messages come in several requests, bounded by bytes.
func TestReadLargeMessages(t *testing.T) {
	t.Parallel()
	srv := natstest.New(t)
	b := natstest.Bus(t, srv, subject.AgentRunner)
	stream, subj, _ := session()
	for i := range 5 {
		if _, err := b.Publish(t.Context(), subj, fmt.Sprint(i), text(strings.Repeat("x", 700<<10))); err != nil {
			t.Fatal(err)
		}
	}
	n := 0
	for _, err := range b.Read(t.Context(), stream, subj, 0, math.MaxUint64) {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if n != 5 {
		t.Errorf("Read yields %d messages, want 5", n)
	}
}
