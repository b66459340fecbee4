package archive_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/bus"
	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/natsd/natstest"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/pgd"
	"signalbox.dev/pkg/subject"
	"signalbox.dev/services/agent-runner/internal/archive"
)

// benchSessions is how many sessions speak at once.
const benchSessions = 2000

// newBench is a world whose Postgres syncs, with sessions.
func newBench(b *testing.B) (*world, []id.Session) {
	b.Helper()
	srv, err := pgd.Start(b.Context(), pgd.Config{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = srv.Stop(context.WithoutCancel(b.Context())) })
	if err := pg.Migrate(b.Context(), srv.URL("postgres"), natstest.Log(b), schema()); err != nil {
		b.Fatal(err)
	}
	w := &world{t: b, nats: natstest.New(b), ws: id.New[id.Workspace]()}
	w.bus = natstest.Bus(b, w.nats, subject.AgentRunner)
	if w.db, err = pg.Open(b.Context(), pg.Config{URL: conf.Secret(srv.URL("postgres")), Role: schema().Role, Schema: schema().Schema}); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(w.db.Close)
	var sessions []id.Session
	err = w.db.InWorkspace(b.Context(), w.ws, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			INSERT INTO sessions (id, workspace_id, created_by, model, provider, preset, created_at, updated_at)
			SELECT gen_random_uuid(), $1, $1, 'm', 'p', 'workspace', now() + n * interval '1 us', now() FROM generate_series(1, $2::int) n
			RETURNING id`, w.ws, benchSessions)
		if err != nil {
			return err
		}
		sessions, err = pgx.CollectRows(rows, pgx.RowTo[id.Session])
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	return w, sessions
}

// round lets each session say the events from first to last, in turns.
func (w *world) round(sessions []id.Session, first, last int64) {
	w.t.Helper()
	var acks []bus.Ack
	for n := first; n <= last; n++ {
		for _, s := range sessions {
			ack, err := w.bus.PublishAsync(w.t.Context(), w.subject(s), fmt.Sprint(s, n), event(1, 1, n, "of what it says, a few words"))
			if err != nil {
				w.t.Fatal(err)
			}
			acks = append(acks, ack)
		}
		if len(acks) > 8*benchSessions || n == last {
			for _, a := range acks {
				<-a.Done()
				if a.Err() != nil {
					w.t.Fatal(a.Err())
				}
			}
			acks = acks[:0]
		}
	}
}

// copyAll copies all streams to their end.
func copyAll(b *testing.B, copiers []*archive.Copier) (events int) {
	var all sync.WaitGroup
	count := make([]int, len(copiers))
	for i, c := range copiers {
		all.Go(func() {
			for idle := 0; idle < 2; {
				n, err := c.Next(b.Context())
				if err != nil {
					b.Error(err)
					return
				}
				if count[i] += n; n == 0 {
					idle++
				}
			}
		})
	}
	all.Wait()
	for _, n := range count {
		events += n
	}
	return events
}

// BenchmarkCopy copies what 2,000 sessions say, ten events each at a time, to a
// Postgres that syncs.
func BenchmarkCopy(b *testing.B) {
	w, sessions := newBench(b)
	a := w.archive()
	var copiers []*archive.Copier
	for p := range partitions {
		copiers = append(copiers, a.Copier(subject.EventStream(p)))
	}
	copyAll(b, copiers) // these become who copies
	const each = 10
	events, next := 0, int64(0)
	for b.Loop() {
		b.StopTimer()
		w.round(sessions, next, next+each-1)
		next += each
		b.StartTimer()
		n := copyAll(b, copiers)
		if n != each*benchSessions {
			b.Fatalf("%d events were copied, want %d", n, each*benchSessions)
		}
		events += n
	}
	b.ReportMetric(float64(events)/b.Elapsed().Seconds(), "events/s")
	rows, _ := w.count(id.Session{})
	b.ReportMetric(float64(events)/float64(rows), "events/row")
}

// BenchmarkList reads the last 200 events of one of 2,000 sessions.
func BenchmarkList(b *testing.B) {
	w, sessions := newBench(b)
	a := w.archive()
	var copiers []*archive.Copier
	for p := range partitions {
		copiers = append(copiers, a.Copier(subject.EventStream(p)))
	}
	const each, batches = 240, 20
	for n := range int64(batches) { // in rows of twelve
		w.round(sessions, n*each/batches, (n+1)*each/batches-1)
		copyAll(b, copiers)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		page, err := a.List(b.Context(), w.ws, archive.Query{Session: sessions[i*7919%len(sessions)], Run: 1, Number: each - 200})
		if err != nil || len(page.GetEvents()) != 200 {
			b.Fatalf("List = %d events, %v, want 200", len(page.GetEvents()), err)
		}
	}
}
