package archive_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go/jetstream"

	"signalbox.dev/pkg/conf"
	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/natsd/natstest"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/pgd"
	"signalbox.dev/pkg/pgtest"
	"signalbox.dev/pkg/subject"
	runv1 "signalbox.dev/proto/signalbox/run/v1"
	"signalbox.dev/services/agent-runner/internal/archive"
)

// For random events of several claims and random batches, the copy shows from each event on
// what a reader of the log sees. Replicas start and stop meanwhile.
func TestCopyShowsWhatReadersOfTheLogSee(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	w := newWorld(t)
	first, second := w.archive(), w.archive()
	stopFirst := w.start(first)
	w.start(second)

	said := map[id.Session][]*runv1.Event{}
	left := map[id.Session][]*runv1.Event{}
	total := 0
	for range 8 {
		s := w.session()
		said[s] = history(r, 4)
		left[s] = said[s]
		total += len(said[s])
	}
	for round := 0; len(left) > 0; round++ {
		for s, events := range left {
			n := min(len(events), 1+r.IntN(20))
			w.say(s, events[:n]...)
			if left[s] = events[n:]; len(left[s]) == 0 {
				delete(left, s)
			}
		}
		if round == 10 {
			stopFirst() // its streams go to the other one
			stopFirst = w.start(w.archive())
		}
	}
	w.awaitCopied()
	if _, n := w.count(id.Session{}); n != total {
		t.Errorf("%d events are copied, want each of %d once", n, total)
	}
	for s, events := range said {
		want := canonical(events)
		for i := 0; i < len(want); i += 1 + r.IntN(40) {
			w.wantList(second, s, want[i:])
		}
		w.wantList(second, s, want[len(want)-1:])
		last := want[len(want)-1]
		w.wantNotFound(second, s, last.GetRunOrdinal(), last.GetNumber()+1)
		w.wantNotFound(second, s, 100, 0)
	}
}

// Events that an older claim wrote after a newer one's first event are not listed, even if the
// newer claim has not reached their numbers yet.
func TestZombieEventsAreNotListed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.archive()
	w.start(a)
	s := w.session()
	said := slices.Concat(events(1, 1, 0, 10), events(1, 2, 11, 11), events(1, 1, 11, 13))
	w.say(s, said...)
	w.awaitCopied()
	w.wantList(a, s, canonical(said))
	w.wantList(a, s, said[11:12])
	w.wantNotFound(a, s, 1, 12)
	w.wantNotFound(a, s, 1, 13)
	more := events(1, 2, 12, 12)
	w.say(s, more...)
	w.awaitCopied()
	w.wantList(a, s, more)
	w.wantNotFound(a, s, 1, 13)
}

// Two active copiers copy every event once.
func TestTwoCopiers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.session()
	a := w.archive()
	one, two := a.Copier(stream(s)), w.archive().Copier(stream(s))
	next := func(c *archive.Copier, want int) {
		t.Helper()
		if n, err := c.Next(t.Context()); n != want || err != nil {
			t.Errorf("Next = %d, %v, want %d", n, err, want)
		}
	}
	said := events(1, 1, 0, 6)
	w.say(s, said[:3]...)
	next(one, 0) // looks
	next(two, 0)
	next(one, 3) // nothing moved: takes over
	next(two, 0) // it moved
	w.say(s, said[3:5]...)
	next(two, 0) // it stands, for the first time
	next(two, 2) // takes over
	w.say(s, said[5:]...)
	next(one, 0) // believes that it is its turn, and is too late
	next(two, 2)
	next(one, 0)
	next(two, 0)
	if _, n := w.count(s); n != 7 {
		t.Errorf("%d events are copied, want 7", n)
	}
	w.wantList(a, s, said)
}

func TestPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.archive()
	w.start(a)
	s := w.session()
	said := slices.Concat(events(1, 1, 0, 1199), []*runv1.Event{end(1, 1, 1200)}, events(2, 1, 0, 800))
	w.say(s, said...)
	w.awaitCopied()
	page, err := a.List(t.Context(), w.ws, archive.Query{Session: s, Run: 1, Number: 700})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(page.GetEvents()); n < 512-64 || n > 512 || page.GetNextPageToken() == "" {
		t.Errorf("List = %d events, token %q, want almost 512 and a token", n, page.GetNextPageToken())
	}
	w.wantList(a, s, said[700:])

	large := w.session()
	said = nil
	for n := range int64(12) {
		said = append(said, event(1, 1, n, strings.Repeat("x", 300<<10)))
	}
	w.say(large, said...)
	w.awaitCopied()
	page, err = a.List(t.Context(), w.ws, archive.Query{Session: large, Run: 1, Number: 0})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(page.GetEvents()); n != 3 {
		t.Errorf("List of events of 300 KiB = %d events, want 3", n)
	}
	w.wantList(a, large, said)
}

func TestBadQueries(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, s := w.archive(), w.session()
	for _, q := range []archive.Query{
		{Session: s},
		{Session: s, Run: 1, Number: -1},
		{Session: s, Token: "x"},
		{Session: s, Token: "1.1.1"},
		{Session: s, Token: "-1.1.1.1"},
		{Session: s, Token: "01.1.1.1"},
		{Session: s, Token: "1.1.1.99999999999999999999"},
	} {
		if _, err := a.List(t.Context(), w.ws, q); fault.KindOf(err) != fault.Invalid {
			t.Errorf("List(%+v) = %v, want invalid", q, err)
		}
	}
	if page, err := a.List(t.Context(), w.ws, archive.Query{Session: s, Token: "1.1.1.1"}); err != nil || len(page.GetEvents()) > 0 {
		t.Errorf("List of a page that is gone = %v, %v, want none", page, err)
	}
}

// A page ends before an event that does not follow from it.
func TestHoles(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.archive()
	w.start(a)
	for _, tc := range []struct {
		name   string
		said   []*runv1.Event
		before int // so many events come before the hole
		behind [2]int64
		dense  int // and so many from behind on
	}{
		{"a number is skipped", slices.Concat(events(1, 1, 0, 4), events(1, 1, 6, 9)), 5, [2]int64{1, 6}, 4},
		{"a takeover skips a number", slices.Concat(events(1, 1, 0, 4), events(1, 2, 6, 9)), 5, [2]int64{1, 6}, 4},
		{"a takeover goes back", slices.Concat(events(1, 1, 0, 9), events(1, 2, 5, 12)), 10, [2]int64{1, 10}, 3},
		{"a run lacks its beginning", slices.Concat(events(1, 1, 0, 3), []*runv1.Event{end(1, 1, 4)}, events(2, 1, 3, 5)), 5, [2]int64{2, 4}, 2},
		{"a run lacks its end", slices.Concat(events(1, 1, 0, 4), events(2, 1, 0, 5)), 5, [2]int64{2, 0}, 6},
		{"an empty run lacks its end", slices.Concat(events(1, 1, 0, 0), events(2, 1, 0, 5)), 1, [2]int64{2, 0}, 6},
	} {
		s := w.session()
		w.say(s, tc.said...)
		w.awaitCopied()
		w.wantList(a, s, tc.said[:tc.before])
		if got, err := w.list(a, s, tc.behind[0], tc.behind[1]); err != nil || len(got) != tc.dense {
			t.Errorf("%s: List(%v) = %d events, %v, want %d", tc.name, tc.behind, len(got), err, tc.dense)
		}
	}
}

// A stream that is lost and created again is copied from its beginning, and the copy of the old
// one stays.
func TestStreamIsMadeAnew(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.archive()
	w.start(a)
	s := w.session()
	old := slices.Concat(events(1, 1, 0, 5), []*runv1.Event{end(1, 1, 6)}, events(2, 1, 0, 20))
	w.say(s, old...)
	w.awaitCopied()
	before, err := w.bus.Stream(t.Context(), stream(s))
	if err != nil {
		t.Fatal(err)
	}
	js := w.jetStream(subject.Admin)
	if err := js.DeleteStream(t.Context(), stream(s)); err != nil {
		t.Fatal(err)
	}
	natstest.Apply(t, w.nats, natstest.Topology(t))
	// The next claim begins after the last committed event, before the last written one.
	again := slices.Concat(events(2, 2, 10, 30), []*runv1.Event{end(2, 2, 31)}, events(3, 1, 0, 3))
	w.say(s, again...)
	w.awaitCopied()

	w.wantList(a, s, old)        // up to where the old one is lost
	w.wantList(a, s, old[7:])    // 2-0
	w.wantList(a, s, again[11:]) // 2-21: only the new stream has it
	w.wantNotFound(a, s, 2, 15)  // there are two of this name
	got, err := w.list(a, s, 3, 0)
	if err != nil || len(got) != 4 {
		t.Fatalf("List(3-0) = %d events, %v, want 4", len(got), err)
	}
	after, err := w.bus.Stream(t.Context(), stream(s))
	if err != nil {
		t.Fatal(err)
	}
	if c := got[0].GetStreamCreated().AsTime(); !c.Equal(after.Created) || got[3].GetSequence() != after.Last {
		t.Errorf("the newest event is %d of the stream of %v, want %d of %v", got[3].GetSequence(), c, after.Last, after.Created)
	}
	if got, err = w.list(a, s, 1, 0); err != nil || !got[0].GetStreamCreated().AsTime().Equal(before.Created) || got[0].GetSequence() != 1 {
		t.Errorf("the oldest event is %v, %v, want 1 of the stream of %v", got[0], err, before.Created)
	}
}

// A stream that is shorter than its copy has lost its newest messages. It is copied again, and
// duplicates are listed once.
func TestStreamLosesItsEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.session()
	said := slices.Concat(events(1, 1, 0, 99), []*runv1.Event{end(1, 1, 100)}, events(2, 1, 0, 30))
	w.say(s, said...)
	a := w.archive()
	stop := w.start(a)
	w.awaitCopied()
	stop()
	w.exec(`UPDATE run_log_positions SET sequence = sequence + 1000 WHERE stream = $1`, stream(s))
	w.start(a)
	w.awaitCopied()
	if _, n := w.count(s); n != 2*len(said) {
		t.Errorf("%d events are copied, want each of %d twice", n, len(said))
	}
	for i := 0; i < len(said); i += 7 {
		w.wantList(a, s, said[i:])
	}
	more := events(2, 1, 31, 40)
	w.say(s, more...)
	w.awaitCopied()
	w.wantList(a, s, slices.Concat(said, more))
}

// Events that the stream drops before they are copied leave a hole.
func TestStreamDropsWhatIsNotCopied(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.session()
	a := w.archive()
	said := events(1, 1, 0, 19)
	w.say(s, said[:10]...)
	stop := w.start(a)
	w.awaitCopied()
	stop()
	w.say(s, said[10:]...)
	js := w.jetStream(subject.Admin)
	handle, err := js.Stream(t.Context(), stream(s))
	if err != nil {
		t.Fatal(err)
	}
	if err := handle.Purge(t.Context(), jetstream.WithPurgeSequence(16)); err != nil {
		t.Fatal(err)
	}
	w.start(a)
	w.awaitCopied()
	w.wantList(a, s, said[:10])
	w.wantList(a, s, said[15:])
	w.wantNotFound(a, s, 1, 12)
}

func TestMessagesThatAreNoEvents(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.session()
	said := events(1, 1, 0, 2)
	w.say(s, said[0])
	w.sayRaw(w.subject(s), "signalbox.run.v1.Event", []byte{0xff, 0xff})
	w.sayRaw(w.subject(s), "signalbox.run.v1.Work", nil)
	w.sayRaw(w.subject(s), "signalbox.run.v1.Event", nil) // of run 0
	w.sayRaw("ev.00.nobody.nowhere", "signalbox.run.v1.Event", []byte{0x10, 1})
	w.sayRaw(subject.Events(0, w.ws, id.New[id.Session]()), "signalbox.run.v1.Event", []byte{0x10, 1}) // a session that is not there
	w.say(s, said[1:]...)
	a := w.archive()
	w.start(a)
	w.awaitCopied()
	w.wantList(a, s, said)
	if _, n := w.count(id.Session{}); n != len(said) {
		t.Errorf("%d events are copied, want %d", n, len(said))
	}
}

func TestDeletedSession(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.archive()
	w.start(a)
	s, other := w.session(), w.session()
	w.say(s, events(1, 1, 0, 9)...)
	kept := events(1, 1, 0, 9)
	w.say(other, kept...)
	w.awaitCopied()
	if err := w.deleteSession(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if n, _ := w.count(s); n != 0 {
		t.Errorf("%d rows of a deleted session are left", n)
	}
	w.say(s, events(1, 1, 10, 19)...)
	w.awaitCopied()
	if n, _ := w.count(s); n != 0 {
		t.Errorf("%d rows of a deleted session were written", n)
	}
	w.wantNotFound(a, s, 1, 0)
	w.wantList(a, other, kept)
}

// The rows of a copy that is in flight when its session is deleted are deleted with it.
func TestDeletedSessionMeetsACopy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.session()
	a := w.archive()
	w.say(s, events(1, 1, 0, 9)...)
	stop := w.start(a)
	w.awaitCopied()
	stop()
	deleted := make(chan error, 1)
	// A transaction like a copier's: the position, then the rows.
	err := w.db.AsSystem(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE run_log_positions SET sequence = sequence + 1 WHERE stream = $1`, stream(s))
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `
			INSERT INTO run_log (session_id, workspace_id, run_ordinal, epoch, first_number, last_number, ends, stream_created, events)
			SELECT id, workspace_id, 1, 1, 10, 10, false, 1, '' FROM sessions WHERE id = $1`, s); err != nil {
			return err
		}
		go func() { deleted <- w.deleteSession(context.WithoutCancel(ctx), s) }()
		return awaitBlocked(ctx, tx)
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-deleted; err != nil {
		t.Fatal(err)
	}
	if n, _ := w.count(s); n != 0 {
		t.Errorf("%d rows of a deleted session are left", n)
	}
}

func TestExpire(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.archive()
	w.start(a)
	s := w.session()
	w.say(s, events(1, 1, 0, 9)...)
	w.awaitCopied()
	w.exec(`UPDATE run_log SET written_at = now() - interval '25 hours' WHERE session_id = $1`, s)
	more := events(1, 1, 10, 19)
	w.say(s, more...)
	w.awaitCopied()
	w.exec(`UPDATE run_log SET written_at = now() - interval '23 hours' WHERE session_id = $1 AND first_number >= 10`, s)
	if n, err := a.Expire(t.Context()); n == 0 || err != nil {
		t.Errorf("Expire = %d, %v, want the first rows", n, err)
	}
	if n, err := a.Expire(t.Context()); n != 0 || err != nil {
		t.Errorf("Expire again = %d, %v, want none", n, err)
	}
	w.wantNotFound(a, s, 1, 9)
	w.wantList(a, s, more)
}

// Run deletes old rows.
func TestRunExpires(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.session()
	w.say(s, events(1, 1, 0, 9)...)
	w.start(w.archive(func(c *archive.Config) { c.Keep = 100 * time.Millisecond }))
	w.awaitCopied()
	timeout := time.After(patient)
	for {
		if n, _ := w.count(s); n == 0 {
			return
		}
		select {
		case <-timeout:
			t.Fatal("old rows stay")
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// What was said before Run ends is copied, when it was copied there.
func TestRunFinishes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.archive()
	stop := w.start(a)
	s := w.session()
	w.say(s, events(1, 1, 0, 0)...)
	w.awaitCopied()
	w.say(s, events(1, 1, 1, 9000)...)
	stop()
	if !w.isCopied(stream(s)) {
		t.Error("the end of the log is not copied")
	}
}

// During outages of Postgres and the bus, no event is left out or copied twice.
func TestRestarts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	pgConfig := pgd.Config{Dir: pgtest.Folder(t) + "/pg", Fast: true}
	postgres := func() *pgd.Server {
		srv, err := pgd.Start(t.Context(), pgConfig)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = srv.Stop(context.WithoutCancel(t.Context())) })
		return srv
	}
	srv := postgres()
	if err := pg.Migrate(t.Context(), srv.URL("postgres"), natstest.Log(t), schema()); err != nil {
		t.Fatal(err)
	}
	var err error
	w.db, err = pg.Open(t.Context(), pg.Config{URL: conf.Secret(srv.URL("postgres")), Role: schema().Role, Schema: schema().Schema})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.db.Close)
	w.bus = natstest.Dial(t, w.nats, subject.AgentRunner)
	a := w.archive(func(c *archive.Config) { c.Bus = natstest.Dial(t, w.nats, subject.AgentRunner) })
	w.start(a)
	s := w.session()
	said := events(1, 1, 0, 999)
	w.say(s, said[:200]...)
	w.awaitCopied()
	if err := srv.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.say(s, said[200:400]...)
	postgres()
	w.say(s, said[400:600]...)
	w.awaitCopied()
	w.nats.Shutdown()
	w.nats = natstest.Start(t, w.nats.Config())
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	defer cancel()
	for i, e := range said[600:] {
		w.insist(ctx, s, fmt.Sprint("again", i), e)
	}
	w.awaitCopied()
	w.wantList(a, s, said)
	if _, n := w.count(s); n != len(said) {
		t.Errorf("%d events are copied, want %d", n, len(said))
	}
}
