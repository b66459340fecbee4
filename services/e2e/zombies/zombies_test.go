package zombies_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/subject"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/e2e/editing"
	"signalbox.dev/services/e2e/farend"
	"signalbox.dev/services/e2e/world"
)

// handled is the metric of handled messages of work queues.
const handled = "signalbox_bus_deliveries_total"

// TestZombies runs all tests on one cluster, one after the other.
//
//nolint:paralleltest // see above
func TestZombies(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it builds and starts a whole cluster")
	}
	r := newRig(t)
	r.reader = r.bus(t, subject.Gateway)
	t.Run("runner", r.runner)
	t.Run("tool call of a zombie", r.zombieToolCall)
	t.Run("contended log", r.contendedLog)
	t.Run("run order", r.runOrder)
	t.Run("stop", r.stop)
	t.Run("executor", r.executor)
	t.Run("duplicate call", r.duplicateCall)
	t.Run("duplicate events", r.duplicateEvents)
	t.Run("resume", r.resume)
	t.Run("uncommitted", r.uncommitted)
	t.Run("outbox", r.outbox)
}

// runner lets a runner whose lease has expired unnoticed answer first: its answer reaches neither
// the viewers nor the conversation, and the new runner's answer is complete.
func (r *rig) runner(t *testing.T) {
	var viewers []func() []viewed
	session, run, first, second := r.takenOver(t, func(run string, first *call) {
		first.say("The zombie's")
		viewers = []func() []viewed{r.watch(t, 0, run, ""), r.watch(t, 1, run, "")}
	})
	second.say("The successor's")

	first.more(" answer.")
	first.end()
	eventually(t, "the zombie is done", func() bool { return r.metric(t, subject.AgentRunner, "signalbox_runs_in_hand") <= 1 })
	if got := value[string](t, r, `select state from agent.runs where id = $1`, run); got != "running" {
		t.Errorf("the zombie made the run %s", got)
	}
	second.more(" answer.")
	second.end()

	ended := r.ended(t, run)
	if ended.State != "done" || ended.Text != "The successor's answer." {
		t.Errorf("the run ended %s with %q, want the successor's answer", ended.State, ended.Text)
	}
	for i, v := range viewers {
		where := fmt.Sprintf("viewer at gateway %d", i+1)
		events := v()
		check(t, where, events)
		if got := text(t, events); got != "The successor's answer." {
			t.Errorf("%s got %q, and %q is stored", where, got, ended.Text)
		}
	}
	messages, err := r.Client(1, r.who).Messages(r.ctx, session)
	if err != nil {
		t.Fatal(err)
	}
	var said []string
	for _, m := range messages {
		said = append(said, m.Role+": "+m.Text())
	}
	if diff := cmp.Diff([]string{"user: go", "assistant: The successor's answer."}, said); diff != "" {
		t.Errorf("the conversation (-want +got):\n%s", diff)
	}
	if n := value[int](t, r, `select count(*)::int from agent.usage where run_id = $1 and not wasted`, run); n != 1 {
		t.Errorf("%d steps were counted, want 1", n)
	}
	if n := value[int](t, r, `select epoch::int from agent.runs where id = $1`, run); n != 2 {
		t.Errorf("the run's epoch is %d, want 2: each claim has its own", n)
	}
}

// zombieToolCall lets a runner whose lease has expired unnoticed request a tool call: the call is
// not executed, and the conversation does not contain it.
func (r *rig) zombieToolCall(t *testing.T) {
	_, run, first, second := r.takenOver(t, func(string, *call) {}, "test_unsafe")
	first.use("test_unsafe")
	eventually(t, "the zombie is done", func() bool {
		return r.metric(t, subject.AgentRunner, "signalbox_runs_in_hand") <= 1 || len(r.model.calls) > 0
	})
	if len(r.model.calls) > 0 {
		t.Fatal("the zombie's tool call was executed, and the model got its result")
	}
	second.say("The successor's answer.")
	second.end()
	if ended := r.ended(t, run); ended.State != "done" || ended.Text != "The successor's answer." || len(ended.ToolCalls) > 0 {
		t.Errorf("the run ended %s with %q and the calls %+v, want the successor's answer and no call", ended.State, ended.Text, ended.ToolCalls)
	}
}

// takenOver submits a message and lets the other replica take over its run during the first one's
// model call; begun is called before that. If the same replica claims the run again, it ends its
// former work and there is no zombie; takenOver then tries another run.
func (r *rig) takenOver(t *testing.T, begun func(run string, first *call), tools ...string) (session, run string, first, second *call) {
	t.Helper()
	const holder = `select runner from agent.runs where id = $1`
	for range 20 {
		session = r.session(t, tools...)
		run = r.submit(t, session, "go")
		first = r.model.next(t)
		begun(run, first)
		before := value[string](t, r, holder, run)
		r.expire(t, run)()
		r.claimedAgain(t, run)
		second = r.model.next(t)
		if value[string](t, r, holder, run) != before {
			return session, run, first, second
		}
		second.say("Again.")
		second.end()
		r.ended(t, run)
	}
	t.Fatal("the other replica never took over a run")
	return "", "", nil, nil
}

// expire lets the lease of a run expire. No runner can claim it before the lock is released.
func (r *rig) expire(t *testing.T, run string) (release func()) {
	t.Helper()
	// The lock on the row prevents a renewal of the lease.
	release = r.lock(t, `select from agent.runs where id = $1 for update`, run)
	eventually(t, "the lease runs out", func() bool {
		return value[bool](t, r, `select lease_until < clock_timestamp() from agent.runs where id = $1`, run)
	})
	return release
}

// claimedAgain waits until a runner has claimed a run whose lease has expired. Its former runner may
// renew the lease first, which then has to expire again.
func (r *rig) claimedAgain(t *testing.T, run string) {
	t.Helper()
	claimed := func() bool { return value[int](t, r, `select epoch::int from agent.runs where id = $1`, run) >= 2 }
	begun, expired := time.Now(), time.Now()
	for !claimed() {
		switch {
		case time.Since(begun) > timeout:
			t.Fatalf("no runner claimed the run again within %s", timeout)
		case time.Since(expired) > lease:
			r.expire(t, run)()
			expired = time.Now()
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-t.Context().Done():
		}
	}
}

// contendedLog lets a zombie write while its successor begins. Viewers still see the events in
// order: the successor begins after the last event that it has read.
func (r *rig) contendedLog(t *testing.T) {
	session := r.session(t)
	run := r.submit(t, session, "go")
	first := r.model.next(t)
	first.say("The zombie's")
	events := r.logged(t, session, "zombie's")
	viewers := []func() []viewed{r.watch(t, 0, run, ""), r.watch(t, 1, run, "")}
	release := r.expire(t, run)

	stop := make(chan struct{})
	writer := r.bus(t, subject.AgentRunner)
	_, subj := r.log(session)
	began, written := make(chan struct{}), make(chan error, 1)
	go func() { // as fast as the server takes them
		var err error
		for ev := events[len(events)-1]; !closed(stop) && err == nil; {
			ev = proto.CloneOf(ev)
			ev.Number++
			ev.Body = &runv1.Event_TextDelta{TextDelta: &runv1.TextDelta{Delta: "."}}
			_, err = writer.Publish(r.ctx, subj, run+":zombie:"+fmt.Sprint(ev.Number), ev)
			if ev.Number == 20 {
				close(began)
			}
		}
		written <- err
	}()
	select {
	case <-began:
	case err := <-written:
		t.Fatal(err)
	}
	release()
	r.claimedAgain(t, run)
	from := r.head(t, session)
	eventually(t, "the successor or the zombie has written more", func() bool { return r.head(t, session) > from+200 })
	close(stop)
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	second := r.model.next(t)
	second.say("The successor's answer.")
	second.end()
	first.end()
	if ended := r.ended(t, run); ended.Text != "The successor's answer." {
		t.Errorf("the run ended %s with %q", ended.State, ended.Text)
	}
	for i, v := range append(viewers, r.watch(t, 0, run, ""), r.watch(t, 1, run, "")) {
		where, events := fmt.Sprintf("viewer %d", i+1), v()
		check(t, where, events)
		if got := text(t, events); got != "The successor's answer." {
			t.Errorf("%s got %q", where, got)
		}
	}
}

// wake announces a run repeatedly, so that each runner receives a wake-up, and waits until they
// have handled it or the model is called.
func (r *rig) wake(t *testing.T, session, run string) {
	t.Helper()
	const times = 8
	writer := r.bus(t, subject.AgentRunner)
	before := r.metric(t, subject.AgentRunner, handled)
	work := &runv1.Work{RunId: run, WorkspaceId: r.who.Workspace, SessionId: session}
	for i := range times {
		if _, err := writer.Publish(r.ctx, subject.RunWork(subject.Shard(id.Must[id.Session](session))), fmt.Sprintf("%s-again-%d", run, i), work); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the wake-ups are dealt with", func() bool {
		return r.metric(t, subject.AgentRunner, handled) >= before+times || len(r.model.calls) > 0
	})
}

// runOrder checks that the runs of a session follow each other even if a runner is told to begin
// one early.
func (r *rig) runOrder(t *testing.T) {
	session := r.session(t)
	first := r.submit(t, session, "one")
	c := r.model.next(t)
	c.say("First.")
	second := r.submit(t, session, "two")
	r.wake(t, session, second)
	if len(r.model.calls) > 0 {
		t.Fatal("the second run began during the first one")
	}
	c.end()
	after := r.model.next(t)
	after.say("Second.")
	after.end()
	for run, want := range map[string]string{first: "First.", second: "Second."} {
		if end := r.ended(t, run); end.Text != want {
			t.Errorf("a run ended %s with %q, want %q", end.State, end.Text, want)
		}
	}
}

// stop checks that a stop reaches a model call in the middle of its answer.
func (r *rig) stop(t *testing.T) {
	session := r.session(t)
	run := r.submit(t, session, "go")
	c := r.model.next(t)
	c.say("One")
	if err := r.Client(1, r.who).Call(r.ctx, world.Request{Method: http.MethodPost, Path: "/api/sessions/" + session + "/cancel"}, nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the model call is left", func() bool { return closed(c.gone) })
	if end := r.ended(t, run); end.State != "cancelled" {
		t.Errorf("the run ended as %s, want cancelled", end.State)
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// head returns the sequence of the last event in a session's log.
func (r *rig) head(t *testing.T, session string) uint64 {
	t.Helper()
	stream, subj := r.log(session)
	last, err := r.reader.Last(r.ctx, stream, subj)
	if err != nil {
		t.Fatal(err)
	}
	return last.Seq
}

// executor suspends an executor during a call until another one has recorded that the outcome is
// unknown: when it resumes, it cannot change that any more.
func (r *rig) executor(t *testing.T) {
	hold := r.far.Hold(farend.Received)
	session := r.session(t, "test_unsafe")
	run := r.submit(t, session, "go")
	r.model.next(t).use("test_unsafe")
	select {
	case <-hold.Reached():
	case <-r.ctx.Done():
		t.Fatal("the call did not reach the far end")
	}
	var zombie *world.Proc
	for n := 1; n <= 2; n++ {
		if p := r.Replica(subject.ToolExecutor, n); r.metricOf(t, p, "signalbox_bus_in_hand{") > 0 {
			zombie = p
		}
	}
	if zombie == nil {
		t.Fatal("no executor works on the call")
	}
	r.signal(t, zombie, syscall.SIGSTOP)
	t.Cleanup(func() { _ = zombie.Signal(syscall.SIGCONT) })
	after := r.model.next(t) // the run continues without it
	after.say("done")
	after.end()
	outcome := func() int { return value[int](t, r, `select outcome::int from tools.outcomes where run_id = $1`, run) }
	unknown := outcome()
	r.signal(t, zombie, syscall.SIGCONT)
	hold.Release()
	eventually(t, "the zombie is done", func() bool {
		return r.far.Report().Operations[0].Effects == 1 && r.metricOf(t, zombie, "signalbox_bus_in_hand{") == 0
	})
	if got := outcome(); got != unknown {
		t.Errorf("the recorded outcome was %d, and is %d after the zombie's report", unknown, got)
	}
	end := r.ended(t, run)
	if end.State != "done" || len(end.ToolCalls) != 1 || *end.ToolCalls[0].State != "unknown" {
		t.Errorf("the run ended %s with the calls %+v, want one whose outcome is unknown", end.State, end.ToolCalls)
	}
}

func (r *rig) signal(t *testing.T, p *world.Proc, sig syscall.Signal) {
	t.Helper()
	if err := p.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

// duplicateCall delivers a call again while an executor works on it: no other executor runs it.
func (r *rig) duplicateCall(t *testing.T) {
	hold := r.far.Hold(farend.Received)
	session := r.session(t, "test_unsafe")
	run := r.submit(t, session, "go")
	r.model.next(t).use("test_unsafe")
	var key string
	select {
	case key = <-hold.Reached():
	case <-r.ctx.Done():
		t.Fatal("the call did not reach the far end")
	}
	var call toolv1.Call
	if err := proto.Unmarshal(value[[]byte](t, r, `select work from tools.outcomes where run_id = $1`, run), &call); err != nil {
		t.Fatal(err)
	}
	b := r.bus(t, subject.AgentRunner)
	for i := range 3 {
		before := r.metric(t, subject.ToolExecutor, handled)
		if _, err := b.Publish(r.ctx, subject.ToolWork(call.GetToolName()), fmt.Sprintf("again-%d", i), &call); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the call that came again is dealt with", func() bool {
			return r.metric(t, subject.ToolExecutor, handled) > before || len(hold.Reached()) > 0
		})
	}
	hold.Release()
	after := r.model.next(t)
	after.say("done")
	after.end()
	if got := r.far.Get(key); got.Operation != key || got.Kind != "blind" || got.Requests != 1 || got.Effects != 1 {
		t.Errorf("the far end: %+v, want one request and one effect of %s", got, key)
	}
	if end := r.ended(t, run); end.State != "done" || len(end.ToolCalls) != 1 || *end.ToolCalls[0].State != "ok" {
		t.Errorf("the run ended as %+v", end)
	}
}

// duplicateEvents checks that duplicate events in the log and events of an expired claim are shown
// neither to viewers nor to later readers, and that a second wake-up for a running run has no
// effect.
func (r *rig) duplicateEvents(t *testing.T) {
	session := r.session(t)
	run := r.submit(t, session, "go")
	c := r.model.next(t)
	c.say("One")
	viewers := []func() []viewed{r.watch(t, 0, run, ""), r.watch(t, 1, run, "")}
	c.more(" two")
	events := r.logged(t, session, "two")
	_, subj := r.log(session)
	writer := r.bus(t, subject.AgentRunner)
	for i, ev := range events {
		if _, err := writer.Publish(r.ctx, subj, fmt.Sprintf("%s-again-%d", run, i), ev); err != nil {
			t.Fatal(err)
		}
	}
	late := proto.CloneOf(events[len(events)-1])
	late.Epoch--
	late.Number++
	late.Body = &runv1.Event_TextDelta{TextDelta: &runv1.TextDelta{Delta: " zombie"}}
	if _, err := writer.Publish(r.ctx, subj, run+"-zombie", late); err != nil {
		t.Fatal(err)
	}
	r.wake(t, session, run)
	if len(r.model.calls) > 0 {
		t.Error("a second runner started the run")
	}
	c.more(" three.")
	c.end()
	if end := r.ended(t, run); end.Text != "One two three." {
		t.Errorf("the run ended with %q", end.Text)
	}
	for i, v := range append(viewers, r.watch(t, 0, run, ""), r.watch(t, 1, run, "")) {
		where, events := fmt.Sprintf("viewer %d", i+1), v()
		check(t, where, events)
		if got := text(t, events); got != "One two three." {
			t.Errorf("%s got %q", where, got)
		}
	}
}

// resume checks that a stream that resumes after any event gets exactly the events that follow, on
// either gateway.
func (r *rig) resume(t *testing.T) {
	session := r.session(t)
	run := r.submit(t, session, "go")
	c := r.model.next(t)
	c.say("One")
	for _, word := range []string{" two", " three", " four", " five."} {
		c.more(word)
		r.logged(t, session, word) // so that each is a separate event
	}
	c.end()
	r.ended(t, run)
	all := r.watch(t, 0, run, "")()
	check(t, "from the beginning", all)
	for i, ev := range all[:len(all)-1] {
		for gateway := range 2 {
			if diff := cmp.Diff(all[i+1:], r.watch(t, gateway, run, ev.ID)()); diff != "" {
				t.Errorf("after %s at gateway %d (-want +got):\n%s", ev.ID, gateway+1, diff)
			}
		}
	}
	if _, err := r.Client(1, r.who).Watch(r.ctx, world.RunEvents(run), all[len(all)-1].ID); err != world.ErrNothingMore { //nolint:errorlint // it is returned as it is
		t.Errorf("after the last event: %v, want nothing more", err)
	}
}

// uncommitted blocks updates of documents in Postgres: nobody sees another editor's typing, even
// after requesting the document again. Afterwards everybody does.
func (r *rig) uncommitted(t *testing.T) {
	var made struct{ Document struct{ ID string } }
	if err := r.Client(0, r.who).Call(r.ctx, world.Request{Method: http.MethodPost, Path: "/api/documents", Body: map[string]any{"name": "tea", "content": "Tea."}}, &made); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	open := func(name string, gateway int) *editing.Editor {
		e := editing.NewEditor(name, uint64(gateway), func() string { return editing.Place(r.World, gateway, r.who, made.Document.ID) })
		go func() { _ = e.Run(ctx) }() // after an error it is never synced
		eventually(t, name+" is synced", e.Synced)
		return e
	}
	writer, neighbour, reader := open("writer", 0), open("neighbour", 0), open("reader", 1)
	const came = `signalbox_document_socket_messages_total{direction="in"`
	release := r.lock(t, `lock table documents.updates in exclusive mode`)
	before := r.metric(t, subject.DocumentSync, came)
	for writer.Seen()[writer.ClientID()] == 0 {
		if err := writer.Edit(); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the update came", func() bool { return r.metric(t, subject.DocumentSync, came) > before })
	for range 3 {
		reader.Cut(true)
		eventually(t, "the reader is away", func() bool { return !reader.Synced() })
		reader.Cut(false)
		eventually(t, "the reader is synced again", reader.Synced)
		if n := reader.Seen()[writer.ClientID()]; n > 0 {
			t.Fatalf("a new reader has %d pieces of uncommitted text", n)
		}
	}
	if n := neighbour.Seen()[writer.ClientID()]; n > 0 {
		t.Fatalf("an editor on the same instance has %d pieces of uncommitted text", n)
	}
	release()
	eventually(t, "all have it", func() bool {
		n := writer.Seen()[writer.ClientID()]
		return reader.Seen()[writer.ClientID()] == n && neighbour.Seen()[writer.ClientID()] == n
	})
}

// log returns the stream and the subject of a session's events.
func (r *rig) log(session string) (stream, subj string) {
	s := id.Must[id.Session](session)
	p := subject.Partition(s, partitions)
	return subject.EventStream(p), subject.Events(p, id.Must[id.Workspace](r.who.Workspace), s)
}

// logged waits until a session's log contains a text, and returns all of its events.
func (r *rig) logged(t *testing.T, session, text string) (events []*runv1.Event) {
	t.Helper()
	stream, subj := r.log(session)
	eventually(t, fmt.Sprintf("%q is on the log", text), func() bool {
		events = nil
		found := false
		last, err := r.reader.Last(r.ctx, stream, subj)
		if errors.Is(err, bus.ErrNotFound) {
			return false
		}
		if err != nil {
			t.Fatal(err)
		}
		for st, err := range r.reader.Read(r.ctx, stream, subj, 0, last.Seq) {
			if err != nil {
				t.Fatal(err)
			}
			ev, err := bus.Decode[*runv1.Event](&st.Message)
			if err != nil {
				t.Fatal(err)
			}
			events = append(events, ev)
			found = found || strings.Contains(ev.GetTextDelta().GetDelta(), text)
		}
		return found
	})
	return events
}

// outbox checks that events committed during an outage of NATS are published after it, even by a
// runner that knows them only from the database: here the message and the end of a run that was
// stopped in the queue.
func (r *rig) outbox(t *testing.T) {
	session := r.session(t)
	r.submit(t, session, "one")
	c := r.model.next(t)
	c.say("First.")
	r.logged(t, session, "First.")
	queued := r.submit(t, session, "two")
	nats := r.Proc(world.NATSName)
	if err := nats.Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the queued run is stopped", func() bool {
		_ = r.Client(0, r.who).Call(r.ctx, world.Request{ // it may be refused during the outage
			Method: http.MethodPost, Path: "/api/sessions/" + session + "/cancel", Body: map[string]any{"run_id": queued},
		}, nil)
		return value[string](t, r, `select state from agent.runs where id = $1`, queued) == "cancelled"
	})
	eventually(t, "a runner has tried to announce that", func() bool {
		return r.logs(t, subject.AgentRunner, `"msg":"outbox waits"`, `"stream":"ev.`)
	})
	one, two := r.Replica(subject.AgentRunner, 1), r.Replica(subject.AgentRunner, 2)
	if err := errors.Join(one.Kill(), two.Kill(), nats.Restart(), nats.Ready(r.ctx), one.Restart(), two.Restart()); err != nil {
		t.Fatal(err)
	}
	c = r.model.next(t)
	c.say("First.")
	c.end()
	eventually(t, "the queued run's message and its end are on the log", func() bool {
		stream, subj := r.log(session)
		asked, ended := false, false
		for st, err := range r.reader.Read(r.ctx, stream, subj, 0, math.MaxUint64) {
			if err != nil {
				return false // the connection is not back yet
			}
			if ev, err := bus.Decode[*runv1.Event](&st.Message); err == nil && ev.GetRunId() == queued {
				asked = asked || ev.GetUserMessage() != nil
				ended = ended || asked && ev.GetDone() != nil
			}
		}
		return ended
	})
}

// logs reports whether a replica of a service has logged a line with all of these texts.
func (r *rig) logs(t *testing.T, service string, texts ...string) bool {
	t.Helper()
	for n := 1; n <= 2; n++ {
		b, err := os.ReadFile(r.Replica(service, n).LogFile())
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			if !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(line, text) }) {
				return true
			}
		}
	}
	return false
}

// bus connects with the rights of a service.
func (r *rig) bus(t *testing.T, service string) *bus.Bus {
	t.Helper()
	b, err := r.Bus(r.ctx, service)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	if err := b.Ready(r.ctx); err != nil {
		t.Fatal(err)
	}
	return b
}
