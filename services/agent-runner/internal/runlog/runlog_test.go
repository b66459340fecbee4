package runlog_test

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/natsd"
	"signalbox.dev/pkg/natsd/natstest"
	"signalbox.dev/pkg/subject"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
	"signalbox.dev/services/agent-runner/internal/run"
	"signalbox.dev/services/agent-runner/internal/runlog"
)

type world struct {
	t    testing.TB
	nats *natsd.Server
	run  run.Run
	// bus returns a new connection of a service.
	bus func(service string) *bus.Bus
}

func newWorld(t testing.TB) *world {
	w := newRun(t)
	w.nats = natstest.New(t)
	w.bus = func(service string) *bus.Bus { return natstest.Bus(t, w.nats, service) }
	return w
}

func newRun(t testing.TB) *world {
	return &world{t: t, run: run.Run{
		ID: id.New[id.Run](), Workspace: id.New[id.Workspace](), Session: id.New[id.Session](), Ordinal: 1,
	}}
}

// open opens the log for a claim with an epoch, by a new process.
func (w *world) open(epoch int64, opening func(runlog.Tail) runlog.Opening) *runlog.Writer {
	w.t.Helper()
	out, err := w.tryOpen(epoch, opening)
	if err != nil {
		w.t.Fatalf("Open: %v", err)
	}
	w.t.Cleanup(out.Close)
	return out
}

func (w *world) tryOpen(epoch int64, opening func(runlog.Tail) runlog.Opening) (*runlog.Writer, error) {
	r := w.run
	r.Epoch = epoch
	stream, subj := run.LogSubject(4, r.Workspace, r.Session)
	return runlog.Open(w.t.Context(), runlog.Config{
		Bus: w.bus(subject.AgentRunner), Log: slog.New(slog.DiscardHandler), Stream: stream, Subject: subj,
		Claim: &run.Claim{Run: r, First: epoch == 1},
	}, opening)
}

func start() *runv1.Event {
	return &runv1.Event{Body: &runv1.Event_RunStart{RunStart: &runv1.RunStart{}}}
}

func begin(runlog.Tail) runlog.Opening { return runlog.Opening{Events: []*runv1.Event{start()}} }

// again is an opening after the last event that the log holds.
func again(tail runlog.Tail) runlog.Opening {
	return runlog.Opening{From: tail.Number + 1, Events: []*runv1.Event{start()}}
}

// read returns what a reader accepts.
func (w *world) read() []*runv1.Event {
	w.t.Helper()
	stream, subj := run.LogSubject(4, w.run.Workspace, w.run.Session)
	var out []*runv1.Event
	var epoch int64
	next := int64(0)
	for m, err := range w.bus(subject.Gateway).Read(w.t.Context(), stream, subj, 0, math.MaxUint64) {
		if err != nil {
			w.t.Fatal(err)
		}
		ev, err := bus.Decode[*runv1.Event](&m.Message)
		if err != nil {
			w.t.Fatal(err)
		}
		if ev.GetEpoch() < epoch || ev.GetNumber() < next {
			continue
		}
		if ev.GetNumber() != next {
			w.t.Errorf("event %d where %d is due", ev.GetNumber(), next)
		}
		epoch, next = ev.GetEpoch(), ev.GetNumber()+1
		out = append(out, ev)
	}
	return out
}

func text(events []*runv1.Event) string {
	var b strings.Builder
	for _, ev := range events {
		b.WriteString(ev.GetTextDelta().GetDelta())
	}
	return b.String()
}

// A claim that opens the log after a newer one has written is lost.
func TestOlderClaim(t *testing.T) {
	t.Parallel()
	for _, older := range []int64{1, 2} {
		w := newWorld(t)
		newer := w.open(older+1, again)
		if err := newer.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if log, err := w.tryOpen(older, again); !errors.Is(err, run.ErrFenced) {
			t.Errorf("Open(epoch %d) after epoch %d = %v, %v, want %v", older, older+1, log, err, run.ErrFenced)
		}
	}
}

// Interleaved blocks are sent no more often than one block.
func TestMergeInterleaved(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	log := w.open(1, begin)
	begun := time.Now()
	want := map[int32]string{}
	for i := range int32(600) {
		block := i % 3
		want[block] += "abc "
		if err := log.Text(t.Context(), 0, block, "abc "); err != nil {
			t.Fatal(err)
		}
		if i%50 == 0 {
			<-time.After(5 * time.Millisecond)
		}
	}
	if err := log.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	events := w.read()[1:]
	got := map[int32]string{}
	for _, ev := range events {
		got[ev.GetTextDelta().GetBlock()] += ev.GetTextDelta().GetDelta()
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the blocks' texts (-want +got):\n%s", diff)
	}
	// The flush sends three.
	if most := int(time.Since(begun)/(20*time.Millisecond)) + 1 + 3; len(events) > most {
		t.Errorf("%d events in %s, want %d at most", len(events), time.Since(begun), most)
	}
}

// Deltas merge while one is in flight or the interval is not over. Their text stays complete
// and in order, and other events do not wait for the interval.
func TestMerge(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	log := w.open(1, begin)
	var want strings.Builder
	for range 500 {
		want.WriteString("abc ")
		if err := log.Text(t.Context(), 0, 0, "abc "); err != nil {
			t.Fatal(err)
		}
	}
	if err := log.Text(t.Context(), 0, 1, "other block"); err != nil {
		t.Fatal(err)
	}
	want.WriteString("other block")
	if err := log.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	events := w.read()
	if diff := cmp.Diff(want.String(), text(events)); diff != "" {
		t.Error(diff)
	}
	if len(events) > 100 {
		t.Errorf("500 deltas became %d events", len(events))
	}
	if log.Next() != int64(len(events)) {
		t.Errorf("Next = %d, want %d", log.Next(), len(events))
	}
}

// A newer claim takes over while the older one still writes. The numbers have no holes, and
// later events of the older one are ignored.
func TestTakeover(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	old := w.open(1, begin)
	writing, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		pace := time.NewTicker(5 * time.Millisecond) // four times as fast as a model is written
		defer pace.Stop()
		for writing.Err() == nil {
			<-pace.C
			if err := old.Append(writing, &runv1.Event{Body: &runv1.Event_TextDelta{TextDelta: &runv1.TextDelta{Delta: "x"}}}); err != nil {
				return
			}
		}
	}()
	heir := w.open(2, again)
	if err := heir.Text(t.Context(), 0, 0, "heir"); err != nil {
		t.Fatal(err)
	}
	if err := heir.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	stop()
	<-done
	events := w.read()
	if last := events[len(events)-1]; last.GetEpoch() != 2 || last.GetTextDelta().GetDelta() != "heir" {
		t.Errorf("the last event is %v", last)
	}
}

// behind is a bus whose first few reads come from a replica that lacks the newest messages.
type behind struct {
	*bus.Bus
	times int
}

func (b *behind) Read(ctx context.Context, stream, subj string, after, through uint64) iter.Seq2[*bus.Stored, error] {
	if b.times--; b.times >= 0 {
		through -= min(through, 2)
	}
	return b.Bus.Read(ctx, stream, subj, after, through)
}

// A replica that is behind hides events from the next claim, which must not reuse their numbers.
func TestReplicaBehind(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	old := w.open(1, begin)
	for range 5 {
		if err := old.Append(t.Context(), &runv1.Event{Body: &runv1.Event_TextDelta{TextDelta: &runv1.TextDelta{Delta: "x"}}}); err != nil {
			t.Fatal(err)
		}
		if err := old.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	r := w.run
	r.Epoch = 2
	stream, subj := run.LogSubject(4, r.Workspace, r.Session)
	heir, err := runlog.Open(t.Context(), runlog.Config{
		Bus: &behind{natstest.Bus(t, w.nats, subject.AgentRunner), 3}, Log: slog.New(slog.DiscardHandler), Stream: stream, Subject: subj,
		Claim: &run.Claim{Run: r},
	}, again)
	if err != nil {
		t.Fatal(err)
	}
	defer heir.Close()
	if got := heir.Next(); got != 7 {
		t.Errorf("Next after taking over a log of 6 events = %d, want 7", got)
	}
	if events := w.read(); len(events) != 7 {
		t.Errorf("readers accept %d events, want 7", len(events))
	}
}

// While the bus is unavailable the writer keeps its events and sends them afterwards.
func TestBusUnavailable(t *testing.T) {
	t.Parallel()
	top := natstest.Topology(t)
	w := newWorld(t)
	w.nats = natstest.Start(t, natsd.Config{Dir: t.TempDir(), Port: -1, Users: subject.Users(top)})
	natstest.Apply(t, w.nats, top)
	stream, subj := run.LogSubject(4, w.run.Workspace, w.run.Session)
	r := w.run
	r.Epoch = 1
	log, err := runlog.Open(t.Context(), runlog.Config{
		Bus: natstest.Dial(t, w.nats, subject.AgentRunner), Log: slog.New(slog.DiscardHandler), Stream: stream, Subject: subj,
		Claim: &run.Claim{Run: r, First: true},
	}, begin)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cfg := w.nats.Config()
	w.nats.Shutdown()
	for range 50 {
		if err := log.Text(t.Context(), 0, 0, "kept "); err != nil {
			t.Fatal(err)
		}
	}
	w.nats = natstest.Start(t, cfg)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := log.Flush(ctx); err != nil {
		t.Fatalf("Flush after the bus came back: %v", err)
	}
	if got := text(w.read()); got != strings.Repeat("kept ", 50) {
		t.Errorf("the log says %q", got)
	}
}

// The writer fails if the log accepts nothing for Config.Patience.
func TestPatience(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	stream, subj := run.LogSubject(4, w.run.Workspace, w.run.Session)
	log, err := runlog.Open(t.Context(), runlog.Config{
		Bus: w.bus(subject.AgentRunner), Log: slog.New(slog.DiscardHandler), Stream: stream, Subject: subj,
		Claim: &run.Claim{Run: w.run, First: true}, Patience: time.Millisecond,
	}, begin)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	w.nats.Shutdown()
	if err := log.Text(t.Context(), 0, 0, "lost"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := log.Flush(ctx); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("Flush = %v, want an unavailable fault", err)
	}
}

// A stream of three replicas loses its leader during a run. The writer keeps unacknowledged
// events, and the log has every event once and in order.
func TestLeaderChange(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("three servers")
	}
	c := natstest.NewCluster(t, 4)
	w := newRun(t)
	w.bus = c.Bus
	log := w.open(1, begin)
	stream, _ := run.LogSubject(4, w.run.Workspace, w.run.Session)
	var want strings.Builder
	pace := time.NewTicker(2 * time.Millisecond)
	defer pace.Stop()
	for i := range 400 {
		if i == 100 {
			c.StopLeader(stream)
		}
		<-pace.C
		word := strconv.Itoa(i) + " "
		want.WriteString(word)
		if err := log.Text(t.Context(), 0, int32(i/10), word); err != nil { // a new block is a new event
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := log.Flush(ctx); err != nil {
		t.Fatalf("Flush after a change of leader: %v", err)
	}
	// The replica that answers may be behind.
	events := w.read()
	for int64(len(events)) < log.Next() && ctx.Err() == nil {
		<-pace.C
		events = w.read()
	}
	if diff := cmp.Diff(want.String(), text(events)); diff != "" {
		t.Errorf("the log's text differs (-want +got):\n%s", diff)
	}
}

func BenchmarkText(b *testing.B) {
	w := newWorld(b)
	log := w.open(1, begin)
	b.ReportAllocs()
	for b.Loop() {
		if err := log.Text(b.Context(), 0, 0, "some words "); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkReplicated writes one event after the other to a stream of three replicas, each
// acknowledged before the next, as the writer does. A model's deltas are 20 ms apart.
func BenchmarkReplicated(b *testing.B) {
	c := natstest.NewCluster(b, 4)
	w := newRun(b)
	w.bus = c.Bus
	log := w.open(1, begin)
	b.ReportAllocs()
	for b.Loop() {
		if err := log.Append(b.Context(), start()); err != nil {
			b.Fatal(err)
		}
		if err := log.Flush(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
