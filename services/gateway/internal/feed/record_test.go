package feed_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/natsd/natstest"
	"signalbox.dev/pkg/subject"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	runv1 "signalbox.dev/proto/signalbox/run/v1"

	"signalbox.dev/services/gateway/internal/feed"
)

// Read counts the messages read, and calls reading first.
func (l *lossy) Read(ctx context.Context, stream, subj string, after, through uint64) iter.Seq2[*bus.Stored, error] {
	return func(yield func(*bus.Stored, error) bool) {
		if l.reading != nil {
			l.reading(ctx, subj)
		}
		for st, err := range l.Bus.Read(ctx, stream, subj, after, through) {
			l.mu.Lock()
			l.reads++
			behind := l.behind && st != nil && st.Seq == through
			l.mu.Unlock()
			if behind || !yield(st, err) {
				return
			}
		}
	}
}

// count returns the numbers of messages and pages read since the last call.
func (w *world) count() (messages, pages int) {
	w.bus.mu.Lock()
	w.rows.mu.Lock()
	defer w.bus.mu.Unlock()
	defer w.rows.mu.Unlock()
	messages, pages = w.bus.reads, w.rows.pages
	w.bus.reads, w.rows.pages = 0, 0
	return messages, pages
}

// undisturbed disables reads of the log that are not for viewers.
func undisturbed(c *feed.Config) { c.Silence, c.Idle = time.Hour, time.Hour }

// resume watches the run after an event; the second result waits for the run's end.
func (w *world) resume(p feed.Position) (found bool, wait func() []string) {
	w.t.Helper()
	v, err := w.feed.Open(w.ctx, w.session)
	if err != nil {
		w.t.Fatal(err)
	}
	if found, err = v.After(w.ctx, p); err != nil {
		w.t.Fatalf("After(%s) = %v", p, err)
	}
	if !found {
		v.Close()
		return false, nil
	}
	return true, w.serve(v)
}

// serve sends the run's events to a viewer, and closes it; the result waits for the run's end.
func (w *world) serve(v *feed.Viewer) (wait func() []string) {
	v.FollowRun(&agentv1.Run{Id: w.run.String(), Ordinal: w.ordinal}, feed.Follow{})
	b := &buffer{}
	done := make(chan error, 1)
	go func() {
		defer v.Close()
		done <- v.Serve(w.ctx, b, nil)
	}()
	return func() []string {
		w.t.Helper()
		select {
		case err := <-done:
			if err != nil {
				w.t.Errorf("Serve() = %v, want nil", err)
			}
		case <-time.After(timeout):
			w.t.Errorf("a stream did not end; so far %v", b.ids(w.t))
		}
		return b.ids(w.t)
	}
}

// admin runs fn with the rights to change streams.
func (w *world) admin(fn func(ctx context.Context, js jetstream.JetStream) error) {
	w.t.Helper()
	nc, err := nats.Connect("", append(w.srv.Options(subject.Admin), nats.CustomInboxPrefix(subject.InboxPrefix(subject.Admin)))...)
	if err != nil {
		w.t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err == nil {
		err = fn(w.t.Context(), js)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) stream() string { return subject.EventStream(subject.Partition(w.session, partitions)) }

// wipe replaces the log with an empty one.
func (w *world) wipe() {
	w.t.Helper()
	w.admin(func(ctx context.Context, js jetstream.JetStream) error { return js.DeleteStream(ctx, w.stream()) })
	natstest.Apply(w.t, w.srv, natstest.Topology(w.t))
	w.created = w.created.Add(time.Hour)
}

// age removes all but the newest keep events of the session from the log.
func (w *world) age(keep uint64) {
	w.t.Helper()
	w.admin(func(ctx context.Context, js jetstream.JetStream) error {
		s, err := js.Stream(ctx, w.stream())
		if err != nil {
			return err
		}
		return s.Purge(ctx, jetstream.WithPurgeSubject(w.subject), jetstream.WithPurgeKeep(keep))
	})
}

func TestResumeFromTheRecord(t *testing.T) {
	t.Parallel()
	const n = 60 // before the viewers come
	for _, tt := range []struct {
		name   string
		change func(w *world)
		cursor int64
		reads  int  // maximum number of messages read from the log
		lost   bool // a snapshot is expected
	}{
		{"all but the newest", func(w *world) { w.rows.behind = 5 }, 10, 6, false},
		{"all", func(w *world) { w.rows.behind = 0 }, 10, 1, false},
		{"the first event", func(w *world) { w.rows.behind = 5 }, 0, 6, false},
		{"the last event of the record", func(w *world) { w.rows.behind = 5 }, n - 6, 6, false},
		{"not the cursor yet", func(w *world) { w.rows.behind = 5 }, n - 3, 6, false},
		{"only the run's beginning", func(w *world) { w.rows.behind = n - 2 }, n - 3, n, false},
		{"nothing", func(w *world) { w.rows.behind = n }, 10, n, false},
		{"an error", func(w *world) { w.rows.records = errors.New("Postgres is down") }, 10, n, false},
		{"more than the log", func(w *world) { w.age(7); w.rows.behind = 5 }, 10, 7, false},
		{"all that the log lacks", func(w *world) { w.age(5); w.rows.behind = 5 }, 10, 10, false},
		{"less than the log has lost", func(w *world) { w.age(3); w.rows.behind = 5 }, 10, 6, true},
		{"events that the log no longer has", func(w *world) { w.rows.behind = 0; w.wipe() }, 10, 0, false},
	} {
		for name, ring := range map[string]int{"": 512, " with a small ring": 4} {
			t.Run(tt.name+name, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, nil, undisturbed, func(c *feed.Config) { c.RingFrames = ring })
				w.rows.snap = feed.Snapshot{Data: []byte(`{"type":"snapshot"}`)}
				for i := range n {
					w.say(fmt.Sprint(i))
				}
				tt.change(w)
				found, wait := w.resume(feed.Position{Run: 1, Number: tt.cursor})
				messages, pages := w.count()
				if messages > tt.reads {
					t.Errorf("%d messages of the log were read, want %d at most", messages, tt.reads)
				}
				if pages == 0 {
					t.Error("the record was not read")
				}
				if tt.lost && !found {
					return
				}
				if !found {
					t.Fatalf("After(1-%d) = false, want it found", tt.cursor)
				}
				if _, _ = w.resume(feed.Position{Run: 1, Number: tt.cursor}); ring > n && !tt.lost {
					if messages, pages := w.count(); messages+pages > 0 {
						t.Errorf("%d messages and %d pages were read again, want them in the ring", messages, pages)
					}
				}
				w.say("live")
				w.end()
				got := wait()
				if tt.lost {
					if !strings.Contains(strings.Join(got, " "), "snapshot") {
						t.Errorf("events = %v, want a snapshot in place of missing ones", got)
					}
					return
				}
				if diff := cmp.Diff(wantIDs(n + 1)[tt.cursor+1:], got); diff != "" {
					t.Errorf("events differ (-want +got):\n%s", diff)
				}
			})
		}
	}
}

// TestRestartWithoutTheRecord checks that a viewer does not continue after a snapshot if the log has
// lost the events that follow it and the record, which has them, cannot be read.
func TestRestartWithoutTheRecord(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		number int64 // of the newest event in the snapshot
		record error
		ok     bool
	}{
		{"the log has the event", 16, errors.New("agent-runner cannot be reached"), true},
		{"only the record has the event", 9, nil, true},
		{"the record cannot be read", 9, errors.New("agent-runner cannot be reached"), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, nil, undisturbed)
			for i := range 20 {
				w.say(fmt.Sprint(i))
			}
			w.age(5)
			w.rows.records = tt.record
			w.rows.snap = feed.Snapshot{Data: []byte(`{"type":"snapshot"}`), Contents: feed.ContentsOf(&agentv1.EventPosition{RunOrdinal: 1, Number: tt.number}, nil)}
			v, err := w.feed.Open(w.ctx, w.session)
			if err != nil {
				t.Fatal(err)
			}
			defer v.Close()
			snap, err := v.Snapshot(w.ctx)
			if err != nil {
				t.Fatal(err)
			}
			if err := v.Restart(w.ctx, snap); (err == nil) != tt.ok || err != nil && fault.KindOf(err) != fault.Unavailable {
				t.Errorf("Restart() = %v, want success: %t, otherwise %v", err, tt.ok, fault.Unavailable)
			}
		})
	}
}

// TestRestartWhileRecorded checks that a viewer that has nothing yet misses no event if the first ones
// are recorded between two reads of the record.
func TestRestartWhileRecorded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil, undisturbed)
	w.say("a")
	w.say("b")
	w.rows.behind = 2
	reads := 0
	w.rows.before = func() {
		if reads++; reads == 2 {
			w.rows.mu.Lock()
			defer w.rows.mu.Unlock()
			w.rows.behind = 0
		}
	}
	v, err := w.feed.Open(w.ctx, w.session)
	if err != nil {
		t.Fatal(err)
	}
	if err := v.Restart(w.ctx, feed.Snapshot{}); err != nil {
		t.Fatal(err)
	}
	wait := w.serve(v)
	w.end()
	if diff := cmp.Diff(idsOf(1, 2), wait()); diff != "" {
		t.Errorf("events differ (-want +got):\n%s", diff)
	}
}

// TestRestartBesideAnother checks that a viewer that has nothing yet misses no event when another one,
// which knows the first event, reads the log at the same time: that read may begin after the event.
func TestRestartBesideAnother(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil, undisturbed)
	w.say("a")
	w.say("b")
	w.rows.behind = 2
	var viewers [2]*feed.Viewer
	for i := range viewers {
		var err error
		if viewers[i], err = w.feed.Open(w.ctx, w.session); err != nil {
			t.Fatal(err)
		}
	}
	knows, empty := viewers[0], viewers[1]
	loading, restarted := make(chan struct{}), make(chan error, 1)
	reads := 0
	w.rows.before = func() {
		switch reads++; reads {
		case 1: // for the one that knows the event; the other one waits for it
			go func() {
				restarted <- empty.Restart(&noticed{w.ctx, sync.OnceFunc(func() { close(loading) })}, feed.Snapshot{})
			}()
			select {
			case <-loading:
			case err := <-restarted: // at once
				restarted <- err
			}
		case 2: // the first events are recorded between its two reads
			w.rows.mu.Lock()
			defer w.rows.mu.Unlock()
			w.rows.behind = 0
		}
	}
	if err := knows.Restart(w.ctx, feed.Snapshot{Contents: feed.ContentsOf(&agentv1.EventPosition{RunOrdinal: 1}, nil)}); err != nil {
		t.Fatal(err)
	}
	if err := <-restarted; err != nil {
		t.Fatal(err)
	}
	waits := [...]func() []string{w.serve(knows), w.serve(empty)}
	w.end()
	all := idsOf(1, 2)
	for i, want := range [][]string{all[1:], all} {
		if diff := cmp.Diff(want, waits[i]()); diff != "" {
			t.Errorf("events of viewer %d differ (-want +got):\n%s", i, diff)
		}
	}
}

// noticed is a context that says when somebody begins to wait for its end.
type noticed struct {
	context.Context

	waits func()
}

func (c *noticed) Done() <-chan struct{} {
	c.waits()
	return c.Context.Done()
}

// TestReplicaIsBehind checks that a tail without its last event is not considered complete.
func TestReplicaIsBehind(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil, undisturbed, func(c *feed.Config) { c.RingFrames = 4 })
	w.rows.behind = 5
	for i := range 20 {
		w.say(fmt.Sprint(i))
	}
	w.bus.behind = true
	v, err := w.feed.Open(w.ctx, w.session)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	if _, err := v.After(w.ctx, feed.Position{Run: 1, Number: 10}); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("After(1-10) from a replica that is behind = %v, want it unavailable", err)
	}
	w.bus.mu.Lock()
	w.bus.behind = false
	w.bus.mu.Unlock()
	found, wait := w.resume(feed.Position{Run: 1, Number: 10})
	w.end()
	if got := wait(); !found || len(got) != 10 {
		t.Errorf("then After(1-10) = %v and events %v, want the ten missing ones", found, got)
	}
}

// TestResumeFromNoEvent checks that nothing is read for events that cannot exist.
func TestResumeFromNoEvent(t *testing.T) {
	t.Parallel()
	for _, p := range []feed.Position{{Run: 0, Number: 1}, {Run: 1, Number: 1}, {Run: 1, Number: 999_999}} {
		t.Run(p.String(), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, nil, undisturbed)
			w.say("a")
			found, _ := w.resume(p)
			if messages, pages := w.count(); found || messages+pages > 0 {
				t.Errorf("After(%s) = %v with %d messages and %d pages, want nothing read", p, found, messages, pages)
			}
		})
	}
}

// TestResumeOfQuietSession checks that nothing is read for a viewer that has all events, and that it
// gets the next ones.
func TestResumeOfQuietSession(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil, undisturbed)
	w.whole(1, 3)
	w.begin(2)
	for _, before := range []int{0, 3} { // events since the session was opened
		for range before {
			w.say("x")
		}
		found, wait := w.resume(feed.Position{Run: 1, Number: 3})
		if messages, pages := w.count(); !found || messages+pages > 0 {
			t.Errorf("After(1-3) = %v with %d messages and %d pages, want it found without reading", found, messages, pages)
		}
		defer func() {
			if diff := cmp.Diff(idsOf(2, 3), wait()); diff != "" {
				t.Errorf("events differ (-want +got):\n%s", diff)
			}
		}()
	}
	w.end()
}

// TestResumeAtAZombiesEvent checks that no event is missing if the log's newest event is a zombie's
// when the session is opened.
func TestResumeAtAZombiesEvent(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil, undisturbed)
	w.rows.behind = 1000
	w.say("a", "b")
	w.store(&runv1.Event{
		RunId: w.run.String(), RunOrdinal: 1, Number: 5, // epoch 0; the claim of the others is 1
		Body: &runv1.Event_TextDelta{TextDelta: &runv1.TextDelta{Delta: "zombie"}},
	})
	found, wait := w.resume(feed.Position{Run: 1})
	if !found {
		t.Fatal("After(1-0) = false, want it found in the log")
	}
	w.say("c")
	w.end()
	if diff := cmp.Diff([]string{"text-delta 1-1", "text-delta 1-2", "done 1-3"}, wait()); diff != "" {
		t.Errorf("events differ (-want +got):\n%s", diff)
	}
}

// TestResumeJoinsTheRing checks that the log is not read if the ring continues the record.
func TestResumeJoinsTheRing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil, undisturbed, func(c *feed.Config) { c.RingFrames = 10 })
	b := &buffer{want: 50, got: make(chan struct{})}
	wait := w.watch(b)
	const n = 50
	for i := range n {
		w.say(fmt.Sprint(i))
	}
	<-b.got
	w.count()
	found, rest := w.resume(feed.Position{Run: 1, Number: 4})
	// The ring begins with 1-40, and the sixth page ends with 1-45.
	if messages, pages := w.count(); !found || messages != 0 || pages != 6 {
		t.Errorf("After(1-4) = %v with %d messages of the log and %d pages of the record, want none and 6", found, messages, pages)
	}
	w.end()
	if err := wait(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(wantIDs(n)[5:], rest()); diff != "" {
		t.Errorf("events differ (-want +got):\n%s", diff)
	}
}

// TestResumeTogether checks that viewers that resume at once share the reads.
func TestResumeTogether(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil, undisturbed)
	const n, viewers = 40, 50
	for i := range n {
		w.say(fmt.Sprint(i))
	}
	var together sync.WaitGroup
	waits := make([]func() []string, viewers)
	for i := range viewers {
		together.Go(func() {
			var found bool
			if found, waits[i] = w.resume(feed.Position{Run: 1, Number: int64(i % 8)}); !found {
				t.Errorf("After(1-%d) = false", i%8)
			}
		})
	}
	together.Wait()
	// One reads everything, others the part before it: a page or two for each cursor.
	if _, pages := w.count(); pages > n/pageSize+1+2*7 {
		t.Errorf("%d pages were read for %d viewers, want them shared", pages, viewers)
	}
	w.end()
	for i, wait := range waits {
		if diff := cmp.Diff(wantIDs(n)[i%8+1:], wait()); diff != "" {
			t.Errorf("events of viewer %d differ (-want +got):\n%s", i, diff)
		}
	}
}

// TestResumeWhileEventsFlow checks that no event is missing or duplicated where the record, the log,
// the ring and live events meet.
func TestResumeWhileEventsFlow(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil, func(c *feed.Config) { c.RingFrames, c.GroupSize = 16, 2 })
	d := w.open(t, 10*time.Second, nil)
	const n, clients = 200, 60
	published := make(chan struct{})
	var mu sync.Mutex
	last := int64(-1)
	go func() {
		defer close(published)
		for i := range int64(n) {
			w.say(fmt.Sprint(i))
			w.rows.mu.Lock()
			w.rows.behind = rand.IntN(12)
			w.rows.mu.Unlock()
			mu.Lock()
			last = i
			mu.Unlock()
		}
		w.end()
	}()
	var all sync.WaitGroup
	for i := range clients {
		var cursor int64
		for { // spread over the events
			mu.Lock()
			newest := last
			mu.Unlock()
			if newest >= int64(i*n/clients) {
				cursor = max(0, newest-rand.Int64N(40))
				break
			}
			<-time.After(time.Millisecond)
		}
		c := d.get(t, fmt.Sprintf("?after=1-%d", cursor))
		all.Go(func() {
			got, err := events(c.answer())
			if err != nil {
				t.Errorf("stream after 1-%d ended with %v, want a clean end", cursor, err)
			}
			if diff := cmp.Diff(wantIDs(n)[cursor+1:], got); diff != "" {
				t.Errorf("events after 1-%d differ (-want +got):\n%s", cursor, diff)
			}
		})
	}
	all.Wait()
	<-published
}

// TestSequencesOfAnEarlierStream checks that a sequence of an earlier stream is not looked up in its
// successor.
func TestSequencesOfAnEarlierStream(t *testing.T) {
	t.Parallel()
	for _, recorded := range []bool{false, true} {
		t.Run(fmt.Sprintf("recorded %v", recorded), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, nil)
			const n = 10
			for i := range n {
				w.say(fmt.Sprint(i))
			}
			w.wipe()
			w.rows.behind = 0
			for i := range 2 * n { // the sequences of the first stream are used again
				if !recorded {
					w.rows.behind++
				}
				w.say(fmt.Sprint(i))
			}
			found, wait := w.resume(feed.Position{Run: 1, Number: 3})
			if !found {
				t.Fatal("After(1-3) = false, want it found")
			}
			w.end()
			if diff := cmp.Diff(wantIDs(3 * n)[4:], wait()); diff != "" {
				t.Errorf("events differ (-want +got):\n%s", diff)
			}
		})
	}
}

// TestRecordTooLong checks that a viewer that was away for very long gets a snapshot, without a useless
// read of the log.
func TestRecordTooLong(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	e := &runv1.Event{RunId: w.run.String(), RunOrdinal: 1, Epoch: 1, Body: &runv1.Event_TextDelta{TextDelta: &runv1.TextDelta{Delta: strings.Repeat("x", 1<<20)}}}
	for i := range 20 {
		w.rows.kept = append(w.rows.kept, &agentv1.LoggedEvent{Event: e, Sequence: uint64(i + 1)})
	}
	if found, _ := w.resume(feed.Position{Run: 1}); found {
		t.Error("After(1-0) = true, want false: there is too much after it")
	}
	if messages, _ := w.count(); messages != 0 {
		t.Errorf("%d messages of the log were read, want none", messages)
	}
}

// TestRecordIsAhead checks that events that are recorded, but had not arrived here when the log was
// compared, are delivered once.
func TestRecordIsAhead(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(n int) bool { return n < 8 }) // late events are read from the log
	w.rows.behind = 0
	w.say("a", "b", "c")
	delta := &runv1.Event_TextDelta{TextDelta: &runv1.TextDelta{Delta: "x"}}
	var late sync.Once
	w.rows.before = func() {
		late.Do(func() {
			second := id.New[id.Run]().String()
			for i := range int64(4) { // of a run, and of one that never had a runner
				one := &runv1.Event{RunId: w.run.String(), RunOrdinal: 1, Epoch: 1, Number: 3 + i, Body: delta}
				two := &runv1.Event{RunId: second, RunOrdinal: 2, Number: i, Body: delta}
				w.keep(one, w.store(one))
				w.keep(two, w.store(two))
			}
		})
	}
	v, err := w.feed.Open(w.ctx, w.session)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	if found, err := v.After(w.ctx, feed.Position{Run: 1}); err != nil || !found {
		t.Fatalf("After(1-0) = %v, %v, want it found", found, err)
	}
	b := &buffer{want: 10, got: make(chan struct{})}
	ctx, cancel := context.WithCancel(w.ctx)
	done := make(chan error, 1)
	go func() { done <- v.Serve(ctx, b, nil) }()
	<-b.got
	w.next = 7
	w.say("last")
	for deadline := time.Now().Add(timeout); len(b.ids(t)) < 11 && time.Now().Before(deadline); {
		<-time.After(5 * time.Millisecond)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Serve() = %v, want it canceled", err)
	}
	want := []string{"text-delta 1-1", "text-delta 1-2"}
	for i := range 4 {
		want = append(want, fmt.Sprintf("text-delta 1-%d", 3+i), fmt.Sprintf("text-delta 2-%d", i))
	}
	if diff := cmp.Diff(append(want, "text-delta 1-7"), b.ids(t)); diff != "" {
		t.Errorf("events differ (-want +got):\n%s", diff)
	}
}

// TestResumeWithoutTheBus checks that a viewer that needs the log gets an Unavailable fault if the bus
// is down.
func TestResumeWithoutTheBus(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil, func(c *feed.Config) { c.RingFrames = 4 })
	for i := range 20 {
		w.say(fmt.Sprint(i))
	}
	first, err := w.feed.Open(w.ctx, w.session)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	if found, err := first.After(w.ctx, feed.Position{Run: 1, Number: 2}); err != nil || !found {
		t.Errorf("After(1-2) = %v, %v, want it found", found, err)
	}
	w.srv.Shutdown()
	// Opened afterwards: without a comparison with the log since then, there is no answer.
	second, err := w.feed.Open(w.ctx, w.session)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if found, err := second.After(w.ctx, feed.Position{Run: 1, Number: 2}); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("After(1-2) without the bus = %v, %v, want %v", found, err, fault.Unavailable)
	}
}
