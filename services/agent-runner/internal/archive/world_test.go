package archive_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/natsd"
	"signalbox.dev/pkg/natsd/natstest"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/pgtest"
	"signalbox.dev/pkg/subject"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
	"signalbox.dev/services/agent-runner/internal/archive"
	"signalbox.dev/services/agent-runner/migrations"
)

const (
	patient    = 20 * time.Second
	partitions = 4
)

func schema() pg.Migrations {
	return pg.Migrations{Schema: "agent", Role: "signalbox_agent", FS: migrations.FS}
}

// world is a bus and a database, and one workspace.
type world struct {
	t    testing.TB
	nats *natsd.Server
	pg   *pgtest.Database
	db   *pg.DB
	bus  *bus.Bus
	ws   id.Workspace
	said atomic.Int64 // events, for message ids
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, nats: natstest.New(t), pg: pgtest.New(t, schema()), ws: id.New[id.Workspace]()}
	w.db, w.bus = w.pg.Open(t, schema()), natstest.Bus(t, w.nats, subject.AgentRunner)
	return w
}

// archive returns one that works for the world, with a bus of its own.
func (w *world) archive(change ...func(*archive.Config)) *archive.Archive {
	w.t.Helper()
	cfg := archive.Config{
		DB: w.db, Bus: natstest.Bus(w.t, w.nats, subject.AgentRunner), Log: natstest.Log(w.t), Registerer: prometheus.NewRegistry(),
		Partitions: partitions, Delay: 5 * time.Millisecond, Keep: 24 * time.Hour,
	}
	for _, c := range change {
		c(&cfg)
	}
	a, err := archive.New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	return a
}

// start runs a replica until stop, which may be called twice.
func (w *world) start(a *archive.Archive) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context()))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := a.Run(ctx); err != nil {
			w.t.Errorf("Run = %v, want nil", err)
		}
	}()
	stop = func() {
		cancel()
		select {
		case <-ended:
		case <-time.After(patient):
			w.t.Error("Run does not end")
		}
	}
	w.t.Cleanup(stop)
	return stop
}

// session makes a session.
func (w *world) session() id.Session {
	w.t.Helper()
	s := id.New[id.Session]()
	err := w.db.InWorkspace(w.t.Context(), w.ws, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			INSERT INTO sessions (id, workspace_id, created_by, model, provider, preset, created_at, updated_at)
			VALUES ($1, $2, $3, 'm', 'p', 'workspace', clock_timestamp(), clock_timestamp())`, s, w.ws, id.New[id.Member]())
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

func (w *world) deleteSession(ctx context.Context, s id.Session) error {
	return w.db.InWorkspace(ctx, w.ws, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `DELETE FROM sessions WHERE workspace_id = $1 AND id = $2`, w.ws, s)
		return err
	})
}

func stream(s id.Session) string { return subject.EventStream(subject.Partition(s, partitions)) }

func (w *world) subject(s id.Session) string {
	return subject.Events(subject.Partition(s, partitions), w.ws, s)
}

// say publishes events on a session's subject, each as a message of its own, and
// waits until they are stored.
func (w *world) say(s id.Session, events ...*runv1.Event) {
	w.t.Helper()
	for piece := range slices.Chunk(events, 500) { // so that each is acknowledged in time on a busy machine
		acks := make([]bus.Ack, len(piece))
		for i, e := range piece {
			var err error
			if acks[i], err = w.bus.PublishAsync(w.t.Context(), w.subject(s), fmt.Sprint(w.said.Add(1)), e); err != nil {
				w.t.Fatal(err)
			}
		}
		for _, a := range acks {
			<-a.Done()
			if err := a.Err(); err != nil {
				w.t.Fatal(err)
			}
		}
	}
}

// insist publishes an event however long the bus is away.
func (w *world) insist(ctx context.Context, s id.Session, msgID string, e *runv1.Event) {
	w.t.Helper()
	for {
		_, err := w.bus.Publish(ctx, w.subject(s), msgID, e)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			w.t.Fatal(err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// jetStream is a user's connection of its own.
func (w *world) jetStream(user string) jetstream.JetStream {
	w.t.Helper()
	nc, err := nats.Connect("", append(w.nats.Options(user), nats.CustomInboxPrefix(subject.InboxPrefix(user)))...)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		w.t.Fatal(err)
	}
	return js
}

// sayRaw publishes anything.
func (w *world) sayRaw(subj, schema string, data []byte) {
	w.t.Helper()
	m := &nats.Msg{Subject: subj, Header: nats.Header{bus.SchemaHeader: {schema}}, Data: data}
	if _, err := w.jetStream(subject.AgentRunner).PublishMsg(w.t.Context(), m); err != nil {
		w.t.Fatal(err)
	}
}

// exec runs a statement as the administrator.
func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	c, err := pgx.Connect(w.t.Context(), w.pg.AdminURL)
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = c.Close(context.WithoutCancel(w.t.Context())) }()
	if _, err := c.Exec(w.t.Context(), "SET search_path = agent"); err != nil {
		w.t.Fatal(err)
	}
	if _, err := c.Exec(w.t.Context(), sql, args...); err != nil {
		w.t.Fatal(err)
	}
}

// awaitBlocked returns when somebody waits for a lock of tx.
func awaitBlocked(ctx context.Context, tx pgx.Tx) error {
	ctx, cancel := context.WithTimeout(ctx, patient)
	defer cancel()
	for ctx.Err() == nil {
		var blocked bool
		err := tx.QueryRow(ctx, `
			SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY (pg_blocking_pids(pid)))`).Scan(&blocked)
		if err != nil || blocked {
			return err
		}
	}
	return ctx.Err()
}

// event is an event of a run.
func event(run, epoch, number int64, text string) *runv1.Event {
	return &runv1.Event{
		RunId: fmt.Sprintf("01890000-0000-7000-8000-%012d", run), RunOrdinal: run, Epoch: epoch, Number: number, Time: timestamppb.Now(),
		Body: &runv1.Event_TextDelta{TextDelta: &runv1.TextDelta{Delta: text}},
	}
}

func end(run, epoch, number int64) *runv1.Event {
	e := event(run, epoch, number, "")
	e.Body = &runv1.Event_Done{Done: &runv1.Done{Text: "done", FinishReason: "stop"}}
	return e
}

// events are numbered from first to last.
func events(run, epoch, first, last int64) []*runv1.Event {
	var out []*runv1.Event
	for n := first; n <= last; n++ {
		out = append(out, event(run, epoch, n, fmt.Sprintf("%d under %d", n, epoch)))
	}
	return out
}

// awaitCopied returns when all streams are copied to their end.
func (w *world) awaitCopied() {
	w.t.Helper()
	timeout := time.After(patient)
	for p := range partitions {
		for !w.isCopied(subject.EventStream(p)) {
			select {
			case <-timeout:
				w.t.Fatalf("stream %s is not copied", subject.EventStream(p))
			case <-time.After(2 * time.Millisecond):
			}
		}
	}
}

func (w *world) isCopied(stream string) bool {
	w.t.Helper()
	state, err := w.bus.Stream(w.t.Context(), stream)
	if err != nil {
		w.t.Fatal(err)
	}
	if state.Last == 0 {
		return true
	}
	var created int64
	var sequence uint64
	err = w.db.AsSystem(w.t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, `SELECT stream_created, sequence FROM run_log_positions WHERE stream = $1`, stream).Scan(&created, &sequence)
	})
	return err == nil && created == state.Created.UnixNano() && sequence == state.Last
}

// count returns the number of rows and of events of a session; of all when it is zero.
func (w *world) count(s id.Session) (rows, events int) {
	w.t.Helper()
	err := w.db.AsSystem(w.t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, `
			SELECT count(*), coalesce(sum(last_number - first_number + 1), 0) FROM run_log WHERE session_id = $1 OR $2`,
			s, id.IsZero(s)).Scan(&rows, &events)
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return rows, events
}

// list returns all events from one on, page by page.
func (w *world) list(a *archive.Archive, s id.Session, run, number int64) ([]*agentv1.LoggedEvent, error) {
	w.t.Helper()
	var all []*agentv1.LoggedEvent
	q := archive.Query{Session: s, Run: run, Number: number}
	for {
		page, err := a.List(w.t.Context(), w.ws, q)
		if err != nil {
			return all, err
		}
		if len(page.GetEvents()) == 0 {
			w.t.Errorf("List(%d-%d, %q) = an empty page", run, number, q.Token)
		}
		all = append(all, page.GetEvents()...)
		if page.GetNextPageToken() == "" {
			return all, nil
		}
		q = archive.Query{Session: s, Token: page.GetNextPageToken()}
	}
}

// wantList fails unless the copy has these events from the first of them on.
func (w *world) wantList(a *archive.Archive, s id.Session, want []*runv1.Event) {
	w.t.Helper()
	got, err := w.list(a, s, want[0].GetRunOrdinal(), want[0].GetNumber())
	if err != nil {
		w.t.Errorf("List(%d-%d) = %v", want[0].GetRunOrdinal(), want[0].GetNumber(), err)
		return
	}
	var have []*runv1.Event
	for _, e := range got {
		have = append(have, e.GetEvent())
	}
	if diff := cmp.Diff(names(want), names(have)); diff != "" {
		w.t.Errorf("List(%d-%d) (-want +got)\n%s", want[0].GetRunOrdinal(), want[0].GetNumber(), diff)
	}
	for i := range min(len(want), len(have)) {
		if !proto.Equal(want[i], have[i]) {
			w.t.Errorf("List(%d-%d)[%d] (-want +got)\n%s", want[0].GetRunOrdinal(), want[0].GetNumber(), i, cmp.Diff(want[i], have[i], protocmp.Transform()))
		}
	}
}

func (w *world) wantNotFound(a *archive.Archive, s id.Session, run, number int64) {
	w.t.Helper()
	if got, err := w.list(a, s, run, number); fault.KindOf(err) != fault.NotFound {
		w.t.Errorf("List(%d-%d) = %d events, %v, want not found", run, number, len(got), err)
	}
}

// names says which events these are.
func names(events []*runv1.Event) []string {
	var out []string
	for _, e := range events {
		out = append(out, fmt.Sprintf("%d-%d under %d", e.GetRunOrdinal(), e.GetNumber(), e.GetEpoch()))
	}
	return out
}

// canonical is the order that readers of the log see: see runv1.Event.
func canonical(events []*runv1.Event) []*runv1.Event {
	type progress struct{ epoch, number int64 }
	runs := map[int64]progress{}
	var out []*runv1.Event
	for _, e := range events {
		p, known := runs[e.GetRunOrdinal()]
		if known && (e.GetEpoch() < p.epoch || e.GetNumber() <= p.number) {
			continue
		}
		runs[e.GetRunOrdinal()] = progress{e.GetEpoch(), e.GetNumber()}
		out = append(out, e)
	}
	return out
}

// history makes up what is said in a session over some runs: takeovers with older
// claims that keep writing for a while, messages that are stored twice, runs that
// are cancelled while another one is at work.
func history(r *rand.Rand, runs int) []*runv1.Event {
	var out []*runv1.Event
	ordinal := int64(0)
	for range runs {
		ordinal++
		active, cancelled := ordinal, false
		epoch, number := int64(1), int64(0)
		zombies := map[int64]int64{} // the next number by epoch
		for n := range 10 + r.IntN(150) {
			switch k := r.IntN(40); {
			case k == 0 && n > 3: // a takeover
				zombies[epoch] = number
				epoch += 1 + r.Int64N(2)
				out = append(out, event(active, epoch, number, "taken over"))
				number++
			case k < 6 && len(zombies) > 0:
				for old, next := range zombies {
					out = append(out, event(active, old, next, "zombie"))
					zombies[old]++
					break
				}
			case k == 6 && len(out) > 0: // stored twice
				out = append(out, proto.CloneOf(out[max(0, len(out)-1-r.IntN(30))]))
			case k == 7 && !cancelled:
				cancelled = true
				ordinal++
				out = append(out, event(ordinal, 0, 0, "never mind"), end(ordinal, 0, 1))
			default:
				out = append(out, event(active, epoch, number, fmt.Sprint("n", number)))
				number++
			}
		}
		out = append(out, end(active, epoch, number))
		for old, next := range zombies {
			if r.IntN(2) == 0 {
				out = append(out, event(active, old, next, "zombie at the end"))
			}
		}
	}
	return out
}
