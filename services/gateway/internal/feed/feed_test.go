package feed_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/natsd"
	"signalbox.dev/pkg/natsd/natstest"
	"signalbox.dev/pkg/sse"
	"signalbox.dev/pkg/subject"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	runv1 "signalbox.dev/proto/signalbox/run/v1"

	"signalbox.dev/services/gateway/internal/dialect"
	"signalbox.dev/services/gateway/internal/feed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	partitions = 4
	timeout    = time.Minute // of waits that take milliseconds on an idle machine
)

// lossy is a bus that drops live messages for which lose returns true.
type lossy struct {
	*bus.Bus
	lose func(n int) bool // the n-th live message, from 0

	lasting func(ctx context.Context)              // if not nil, called before the log's last message is read
	reading func(ctx context.Context, subj string) // if not nil, called before the log is read

	mu   sync.Mutex // guards the rest
	seen int
	done []func()
	last chan *nats.Msg // of the last subscription

	reads  int  // messages of the log
	behind bool // reads lack the last message
}

// channel returns the channel of the last subscription.
func (l *lossy) channel() chan *nats.Msg {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

func (l *lossy) SubscribeChan(subj string, ch chan *nats.Msg) (*bus.Subscription, error) {
	l.mu.Lock()
	l.last = ch
	l.mu.Unlock()
	if l.lose == nil {
		return l.Bus.SubscribeChan(subj, ch)
	}
	in, stop := make(chan *nats.Msg, 1024), make(chan struct{})
	var work sync.WaitGroup
	work.Go(func() {
		for {
			select {
			case <-stop:
				return
			case m := <-in:
				l.mu.Lock()
				lost := l.lose(l.seen)
				l.seen++
				l.mu.Unlock()
				if !lost {
					ch <- m
				}
			}
		}
	})
	l.mu.Lock()
	l.done = append(l.done, func() { close(stop); work.Wait() })
	l.mu.Unlock()
	return l.Bus.SubscribeChan(subj, in)
}

// Last calls lasting first.
func (l *lossy) Last(ctx context.Context, stream, subj string) (*bus.Stored, error) {
	if l.lasting != nil {
		l.lasting(ctx)
	}
	return l.Bus.Last(ctx, stream, subj)
}

func (l *lossy) close() {
	for _, f := range l.done {
		f()
	}
}

// rows is a source in memory.
type rows struct {
	mu      sync.Mutex // guards the rest
	runs    map[string]*agentv1.Run
	snap    feed.Snapshot
	asks    int
	kept    []*agentv1.LoggedEvent // the record, including events that it does not have yet
	behind  int                    // the number of those events
	records error                  // the error of the record, if any
	pages   int                    // the number of pages read
	page    int                    // events per page
	before  func()                 // called before a page is read
}

func (r *rows) Run(_ context.Context, run id.Run) (*agentv1.Run, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if v := r.runs[run.String()]; v != nil {
		return v, nil
	}
	return nil, fault.New(fault.Unavailable, "not known")
}

func (r *rows) Snapshot(context.Context, id.Session) (feed.Snapshot, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asks++
	return r.snap, nil
}

// pageSize is small, so that most reads take several pages.
const pageSize = 7

// Events implements the contract of RunService.ListEvents.
func (r *rows) Events(_ context.Context, _ id.Session, from feed.Position, page string) ([]*agentv1.LoggedEvent, string, error) {
	if r.before != nil {
		r.before()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pages++
	if r.records != nil {
		return nil, "", r.records
	}
	kept := r.kept[:max(0, len(r.kept)-r.behind)]
	begin, err := strconv.Atoi(page)
	if page == "" {
		begin = slices.IndexFunc(kept, func(e *agentv1.LoggedEvent) bool {
			return e.GetEvent().GetRunOrdinal() == from.Run && e.GetEvent().GetNumber() == from.Number
		})
		if begin < 0 {
			return nil, "", fault.New(fault.NotFound, "no such event")
		}
	} else if err != nil {
		return nil, "", err
	}
	end := min(len(kept), begin+r.page)
	if end == len(kept) {
		return kept[begin:end], "", nil
	}
	return kept[begin:end], strconv.Itoa(end), nil
}

// world is a feed over a real bus, and a writer of one session's log.
type world struct {
	t       testing.TB
	srv     *natsd.Server
	writer  *bus.Bus
	bus     *lossy
	rows    *rows
	feed    *feed.Feed
	ctx     context.Context
	session id.Session
	subject string
	next    int64
	ordinal int64 // of the run
	run     id.Run
	created time.Time // of the stream
	stop    func()    // ends the feed
}

func newWorld(t testing.TB, lose func(int) bool, change ...func(*feed.Config)) *world {
	t.Helper()
	w := &world{t: t, ctx: t.Context(), srv: natstest.New(t), rows: &rows{runs: map[string]*agentv1.Run{}, behind: 3, page: pageSize}, session: id.New[id.Session](), ordinal: 1, run: id.New[id.Run](), created: time.Unix(1000, 0)}
	w.writer = w.connect(subject.AgentRunner)
	w.bus = &lossy{Bus: w.connect(subject.Gateway), lose: lose}
	cfg := feed.Config{
		Bus: w.bus, Source: w.rows, Dialect: dialect.Plain{}, Log: slog.New(slog.DiscardHandler), Partitions: partitions,
		Silence: 60 * time.Millisecond, Pace: 100 * time.Millisecond, Idle: 200 * time.Millisecond,
		MaxBehind: time.Hour, // however slow the machine is
	}
	for _, c := range change {
		c(&cfg)
	}
	w.feed = feed.New(cfg)
	actor := identity.Actor{Workspace: id.New[id.Workspace](), Member: id.New[id.Member](), Role: identity.Viewer}
	w.ctx = identity.With(t.Context(), actor)
	w.subject = subject.Events(subject.Partition(w.session, partitions), actor.Workspace, w.session)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- w.feed.Run(ctx) }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
		w.bus.close()
	})
	t.Cleanup(w.stop)
	return w
}

// connect connects over TCP, so that it reconnects to a restarted server.
func (w *world) connect(service string) *bus.Bus {
	w.t.Helper()
	b, err := bus.Connect(w.ctx, bus.Config{URL: w.srv.ClientURL(), Service: service, Password: w.srv.Password(service), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(b.Close)
	if err := b.Ready(w.ctx); err != nil {
		w.t.Fatal(err)
	}
	return b
}

func (w *world) publish(e *runv1.Event) {
	w.t.Helper()
	e.RunId, e.RunOrdinal, e.Epoch, e.Number = w.run.String(), w.ordinal, 1, w.next
	w.next++
	w.keep(e, w.store(e))
}

// store publishes an event unchanged.
func (w *world) store(e *runv1.Event) uint64 {
	w.t.Helper()
	seq, err := w.writer.Publish(w.ctx, w.subject, fmt.Sprintf("%s:%d:%d:%v", e.GetRunId(), e.GetEpoch(), e.GetNumber(), w.created), e)
	if err != nil {
		w.t.Error(err)
	}
	return seq
}

// keep adds an event to the record.
func (w *world) keep(e *runv1.Event, seq uint64) {
	w.rows.mu.Lock()
	defer w.rows.mu.Unlock()
	w.rows.kept = append(w.rows.kept, &agentv1.LoggedEvent{Event: e, Sequence: seq, StreamCreated: timestamppb.New(w.created)})
}

func (w *world) say(words ...string) {
	w.t.Helper()
	for _, word := range words {
		w.publish(&runv1.Event{Body: &runv1.Event_TextDelta{TextDelta: &runv1.TextDelta{Delta: word}}})
	}
}

func (w *world) end() {
	w.t.Helper()
	w.publish(&runv1.Event{Body: &runv1.Event_Done{Done: &runv1.Done{FinishReason: "stop"}}})
}

// buffer is a sink in memory.
type buffer struct {
	mu   sync.Mutex // guards the rest
	text bytes.Buffer
	gate chan struct{} // if not nil, each write waits for it
	want int
	got  chan struct{} // closed when want events have arrived
}

func (b *buffer) Write(p []byte) error {
	if b.gate != nil {
		<-b.gate
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.text.Write(p)
	if b.want > 0 && bytes.Count(b.text.Bytes(), []byte("\n\n")) >= b.want {
		close(b.got)
		b.want = 0
	}
	return nil
}

func (b *buffer) ids(t testing.TB) []string {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []string
	r := sse.NewReader(strings.NewReader(b.text.String()), 0)
	for {
		e, err := r.Next()
		if err != nil {
			return out
		}
		out = append(out, e.Type+" "+string(e.ID))
	}
}

// watch serves a viewer until its run has ended.
func (w *world) watch(b *buffer) (wait func() error) {
	w.t.Helper()
	v, err := w.feed.Open(w.ctx, w.session)
	if err != nil {
		w.t.Fatal(err)
	}
	v.FollowRun(&agentv1.Run{Id: w.run.String(), Ordinal: 1}, feed.Follow{})
	done := make(chan error, 1)
	go func() {
		defer v.Close()
		done <- v.Serve(w.ctx, b, nil)
	}()
	return func() error {
		w.t.Helper()
		select {
		case err := <-done:
			return err
		case <-time.After(timeout):
			w.t.Fatalf("stream did not end; so far %v", b.ids(w.t))
			return nil
		}
	}
}

func wantIDs(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("text-delta 1-%d", i))
	}
	return append(all, fmt.Sprintf("done 1-%d", n))
}

func TestGapsAreRepaired(t *testing.T) {
	t.Parallel()
	const n = 12
	for name, lose := range map[string]func(int) bool{
		"nothing":        func(int) bool { return false },
		"every other":    func(i int) bool { return i%2 == 1 },
		"the first five": func(i int) bool { return i < 5 },
		"the middle":     func(i int) bool { return i > 3 && i < 9 },
		"the last":       func(i int) bool { return i == n },
		"the last five":  func(i int) bool { return i > n-5 },
		"everything":     func(int) bool { return true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, lose)
			var b buffer
			wait := w.watch(&b)
			for i := range n {
				w.say(fmt.Sprint(i))
			}
			w.end()
			if err := wait(); err != nil {
				t.Fatalf("Serve() = %v, want nil", err)
			}
			if diff := cmp.Diff(wantIDs(n), b.ids(t)); diff != "" {
				t.Errorf("events differ (-want +got):\n%s", diff)
			}
		})
	}
}

func TestReconnect(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil, func(c *feed.Config) { c.Silence = time.Hour; c.Idle = time.Hour }) // only the reconnect shows it
	var b buffer
	wait := w.watch(&b)
	w.say("a")
	cfg := w.srv.Config()
	w.srv.Shutdown()
	again, err := natsd.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(again.Shutdown)
	// Usually published before the gateway reconnects, which it does after a short wait.
	w.srv = again
	w.writer = w.connect(subject.AgentRunner)
	w.say("b", "c")
	w.end()
	if err := wait(); err != nil {
		t.Fatalf("Serve() = %v, want nil", err)
	}
	if diff := cmp.Diff(wantIDs(3), b.ids(t)); diff != "" {
		t.Errorf("events differ (-want +got):\n%s", diff)
	}
}

func TestCatchUpFromTheLog(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil, func(c *feed.Config) { c.RingFrames = 64 })
	slow := &buffer{gate: make(chan struct{})}
	quick := &buffer{}
	waitSlow, waitQuick := w.watch(slow), w.watch(quick)
	const n = 300
	for i := range n {
		w.say(fmt.Sprint(i))
		if i == 3 {
			slow.gate <- struct{}{} // one write
		}
	}
	w.end()
	if err := waitQuick(); err != nil {
		t.Fatal(err)
	}
	close(slow.gate) // the ring has evicted its frames
	if err := waitSlow(); err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string]*buffer{"quick": quick, "slow": slow} {
		if diff := cmp.Diff(wantIDs(n), b.ids(t)); diff != "" {
			t.Errorf("%s viewer's events differ (-want +got):\n%s", name, diff)
		}
	}
}

func TestTooFarBehind(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil, func(c *feed.Config) { c.BehindBytes, c.MaxBehind = 64_000, 3*time.Second })
	w.rows.snap = feed.Snapshot{Data: []byte(`{"type":"snapshot"}`)}
	slow := &buffer{gate: make(chan struct{})}
	wait, waitQuick := w.watch(slow), w.watch(&buffer{})
	w.say("a")
	slow.gate <- struct{}{} // the opening
	for range 200 {
		w.say(strings.Repeat("x", 1000))
	}
	w.end()
	if err := waitQuick(); err != nil {
		t.Fatal(err)
	}
	<-time.After(250 * time.Millisecond) // time to continue reading, which it does not use
	close(slow.gate)
	if err := wait(); !errors.Is(err, feed.ErrSlow) {
		t.Errorf("Serve() = %v, want ErrSlow", err)
	}
	got := slow.ids(t)
	if len(got) == 0 || got[len(got)-1] != "snapshot 0-0" {
		t.Errorf("slow viewer's events = %v, want a snapshot at the end", got)
	}
}

func TestSnapshotsAreShared(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.rows.snap = feed.Snapshot{Data: []byte(`{"type":"snapshot"}`)}
	const n = 20
	buffers := make([]buffer, n)
	var waits []func() error
	for i := range buffers {
		waits = append(waits, w.watch(&buffers[i]))
	}
	w.say("a")
	w.next += 3 // lost
	w.say("b")
	w.end()
	for i, wait := range waits {
		if err := wait(); err != nil {
			t.Fatal(err)
		}
		if got := buffers[i].ids(t); !slices.Contains(got, "snapshot 0-0") || got[len(got)-1] != "done 1-5" {
			t.Errorf("viewer %d got %v, want a snapshot and the end", i, got)
		}
	}
	if w.rows.asks >= n {
		t.Errorf("%d snapshots were fetched for %d viewers, want them shared", w.rows.asks, n)
	}
}

func TestUnusedTopicsAreClosed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil, func(c *feed.Config) { c.Linger = 50 * time.Millisecond })
	v, err := w.feed.Open(w.ctx, w.session)
	if err != nil {
		t.Fatal(err)
	}
	w.say("a")
	v.Close()
	v.Close() // harmless
	// Also after the topic was closed.
	for range 5 {
		v, err := w.feed.Open(w.ctx, w.session)
		if err != nil {
			t.Fatal(err)
		}
		found, err := v.After(w.ctx, feed.Position{Run: 1, Number: 0})
		v.Close()
		if err != nil || !found {
			t.Fatalf("After(1-0) = %v, %v, want it found", found, err)
		}
		<-time.After(80 * time.Millisecond)
	}
}

func TestOpenNeedsIdentity(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	if _, err := w.feed.Open(t.Context(), w.session); fault.KindOf(err) != fault.Unauthenticated {
		t.Errorf("Open without identity = %v, want Unauthenticated", err)
	}
	w.feed.Drain()
	if _, err := w.feed.Open(w.ctx, w.session); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("Open while draining = %v, want Unavailable", err)
	}
}
