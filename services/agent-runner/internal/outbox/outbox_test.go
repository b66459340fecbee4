package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/proto"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/pgtest"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
	"signalbox.dev/services/agent-runner/internal/outbox"
	"signalbox.dev/services/agent-runner/migrations"
)

// table is rows in memory.
type table struct {
	mu   sync.Mutex // guards rows
	rows []outbox.Row
	page atomic.Int64 // how many were read
}

// add adds a row for a session's wake-up on any subject.
func (t *table) add(id int64, subject, session string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	payload, err := proto.Marshal(&runv1.Work{SessionId: session, RunId: fmt.Sprint(id)})
	if err != nil {
		panic(err) // it is a test's own
	}
	t.rows = append(t.rows, outbox.Row{ID: id, Subject: subject, MessageID: fmt.Sprint(id), Schema: "signalbox.run.v1.Work", Payload: payload})
}

func (t *table) len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.rows)
}

// Page implements outbox.Rows.
func (t *table) Page(ctx context.Context, after int64, limit int, publish func(context.Context, []outbox.Row) []int64) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.page.Add(1)
	var page []outbox.Row
	for _, r := range t.rows {
		if r.ID > after && len(page) < limit {
			page = append(page, r)
		}
	}
	published := publish(ctx, page)
	t.rows = slices.DeleteFunc(t.rows, func(r outbox.Row) bool { return slices.Contains(published, r.ID) })
	return len(page), nil
}

// fakeBus is a bus with one silent stream.
type fakeBus struct {
	silent string
	takes  time.Duration          // to answer
	each   func(published string) // nil: nothing

	mu        sync.Mutex // guards said
	published []string
}

// Publish implements outbox.Publisher.
func (l *fakeBus) Publish(ctx context.Context, subj, id string, m proto.Message) (uint64, error) {
	if _, ok := m.(*runv1.Work); !ok {
		return 0, errors.New("not what was written")
	}
	if len(subj) > 5 && subj[:5] == l.silent {
		<-ctx.Done()
		return 0, ctx.Err()
	}
	<-time.After(l.takes)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.published = append(l.published, id+" "+subj)
	if l.each != nil {
		l.each(subj)
	}
	return 1, nil
}

// run runs an outbox for a while of the bubble's time and returns what it published.
func run(t *testing.T, rows *table, bus *fakeBus, d time.Duration) []string {
	t.Helper()
	out := outbox.NewWithRows(rows, bus, slog.New(slog.DiscardHandler))
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- out.Run(ctx) }()
	out.Poke()
	<-time.After(d)
	bus.mu.Lock()
	published := slices.Clone(bus.published)
	bus.mu.Unlock()
	stop()
	if err := <-done; err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
	return published
}

// A silent stream delays its own rows, and those of other streams only briefly.
func TestSilentStream(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rows, bus := &table{}, &fakeBus{silent: "ev.02"}
		for i, subj := range []string{"ev.02.w.a", "ev.02.w.b", "ev.02.w.c", "ev.02.w.d", "ev.02.w.e", "work.run.1", "ev.01.w.a", "ev.02.w.f", "ev.01.w.b"} {
			rows.add(int64(i+1), subj, "")
		}
		published := run(t, rows, bus, 5*time.Second)
		slices.Sort(published)
		if diff := cmp.Diff([]string{"6 work.run.1", "7 ev.01.w.a", "9 ev.01.w.b"}, published); diff != "" {
			t.Errorf("said within 5 s, while ev.02 is silent:\n%s", diff)
		}
		if n := rows.len(); n != 6 {
			t.Errorf("%d rows are left, want the 6 that nobody took", n)
		}
	})
}

// Rows of different sessions do not wait for each other's acknowledgements. Rows of one session
// stay in order.
func TestSessionsArePublishedConcurrently(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rows, bus := &table{}, &fakeBus{takes: 10 * time.Millisecond}
		for i := range int64(60) {
			rows.add(i+1, fmt.Sprintf("ev.%02d.w.s%d", i%2, i%20), "")
		}
		published := run(t, rows, bus, 31*time.Millisecond) // three each, one after the other
		if len(published) != 60 {
			t.Fatalf("%d of 60 rows are said after three answers' time", len(published))
		}
		last := map[string]int{}
		for _, s := range published {
			var n int
			var subj string
			if _, err := fmt.Sscan(s, &n, &subj); err != nil {
				t.Fatal(err)
			}
			if n < last[subj] {
				t.Errorf("on %s row %d was said after row %d", subj, n, last[subj])
			}
			last[subj] = n
		}
	})
}

// When the wake-up of a session's next run is published, the rows of the previous end are
// deleted.
func TestWakeUpAfterTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rows, bus := &table{}, &fakeBus{takes: time.Millisecond}
		rows.add(1, "ev.01.w.a", "")
		rows.add(2, "ev.01.w.a", "")
		rows.add(3, "work.run.1", "a")
		rows.add(4, "work.run.1", "b")
		pages := map[string][]int64{}
		bus.each = func(published string) { pages[published] = append(pages[published], rows.page.Load()) }
		run(t, rows, bus, 100*time.Millisecond)
		if diff := cmp.Diff(map[string][]int64{"ev.01.w.a": {1, 1}, "work.run.1": {1, 2}}, pages); diff != "" {
			t.Errorf("the pages in which was said (-want +got):\n%s", diff)
		}
		if n := rows.len(); n > 0 {
			t.Errorf("%d rows are left", n)
		}
	})
}

// The ids of two transactions interleave, and the one that began first commits between two pages.
// Its rows stay in order.
func TestLateCommit(t *testing.T) {
	t.Parallel()
	migrated := pg.Migrations{Schema: "agent", Role: "signalbox_agent", FS: migrations.FS}
	db := pgtest.New(t, migrated).Open(t, migrated)
	commit := func(rows ...outbox.Row) {
		err := db.AsSystem(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
			for _, r := range rows {
				payload, err := proto.Marshal(&runv1.Work{SessionId: r.MessageID})
				if err != nil {
					return err
				}
				if _, err := tx.Exec(ctx, `
					INSERT INTO outbox (id, workspace_id, subject, message_id, schema, payload) OVERRIDING SYSTEM VALUE
					VALUES (@id, @workspace, @subject, @message, 'signalbox.run.v1.Work', @payload)`,
					pg.Args{"id": r.ID, "workspace": id.New[id.Workspace](), "subject": r.Subject, "message": r.MessageID, "payload": payload}); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	// The wake-up of a session that has events on its page comes with the next page.
	commit(outbox.Row{ID: 2, Subject: "ev.01.w.ends", MessageID: "end"}, outbox.Row{ID: 3, Subject: "work.run.1", MessageID: "ends"})
	bus := &fakeBus{}
	out := outbox.NewWithRows(outbox.InPostgres(db), bus, slog.New(slog.DiscardHandler))
	all := make(chan struct{})
	bus.each = func(published string) {
		switch {
		case published == "ev.01.w.ends":
			commit(outbox.Row{ID: 1, Subject: "ev.01.w.late", MessageID: "first"}, outbox.Row{ID: 4, Subject: "ev.01.w.late", MessageID: "second"})
			out.Poke()
		case len(bus.published) == 4:
			close(all)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- out.Run(ctx) }()
	out.Poke()
	select {
	case <-all:
	case <-time.After(time.Minute):
		t.Error("not all rows are published after a minute")
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
	want := []string{"end ev.01.w.ends", "ends work.run.1", "first ev.01.w.late", "second ev.01.w.late"}
	got := bus.published // what was published but not deleted yet comes again
	if diff := cmp.Diff(want, got[:min(len(want), len(got))]); diff != "" {
		t.Errorf("published (-want +got):\n%s", diff)
	}
}
