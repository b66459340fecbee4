package run_test

import (
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/pgtest"
	"signalbox.dev/services/agent-runner/internal/outbox"
	"signalbox.dev/services/agent-runner/internal/run"
	"signalbox.dev/services/agent-runner/migrations"
)

// turnWorld has runs of several workspaces, which have letters as names.
type turnWorld struct {
	t     *testing.T
	db    *pg.DB
	s     *run.Store
	ws    map[rune]id.Workspace
	taken map[rune][]*run.Claim
}

func newTurnWorld(t *testing.T, perWorkspace int) *turnWorld {
	t.Helper()
	migrated := pg.Migrations{Schema: "agent", Role: "signalbox_agent", FS: migrations.FS}
	db := pgtest.New(t, migrated).Open(t, migrated)
	s := run.NewStore(db, outbox.New(db, nil, slog.New(slog.DiscardHandler)), "r", run.Config{
		Lease: time.Hour, WallTime: time.Hour, Partitions: 4, PerWorkspace: perWorkspace,
	})
	return &turnWorld{t, db, s, map[rune]id.Workspace{}, map[rune][]*run.Claim{}}
}

// wait creates a waiting run for each letter.
func (w *turnWorld) wait(letters string) {
	w.t.Helper()
	for _, l := range letters {
		if id.IsZero(w.ws[l]) {
			w.ws[l] = id.New[id.Workspace]()
		}
		queuedIn(w.t, w.db, w.ws[l])
	}
}

// next claims the run that Next returns, and returns its workspace's letter, or "-".
func (w *turnWorld) next() string {
	w.t.Helper()
	found, err := w.s.Next(w.t.Context())
	if errors.Is(err, run.ErrNotClaimable) {
		return "-"
	}
	if err != nil {
		w.t.Fatal(err)
	}
	c, err := w.s.Claim(w.t.Context(), found[0].Workspace, found[0].Session, found[0].Run)
	if err != nil {
		w.t.Fatal(err)
	}
	for l, ws := range w.ws {
		if ws == c.Run.Workspace {
			w.taken[l] = append(w.taken[l], c)
			return string(l)
		}
	}
	w.t.Fatalf("a run of workspace %s, which has none", c.Run.Workspace)
	return ""
}

// end ends one running run of each letter.
func (w *turnWorld) end(letters string) {
	w.t.Helper()
	for _, l := range letters {
		c := w.taken[l][0]
		w.taken[l] = w.taken[l][1:]
		b := &pgx.Batch{}
		b.Queue(`UPDATE runs SET state = 'done', lease_until = NULL WHERE workspace_id = $1 AND id = $2`, c.Run.Workspace, c.Run.ID)
		if err := w.db.WriteInWorkspace(w.t.Context(), c.Run.Workspace, b); err != nil {
			w.t.Fatal(err)
		}
	}
}

func TestNextIsFair(t *testing.T) {
	t.Parallel()
	w := newTurnWorld(t, 3)
	w.wait("aaaaaa")
	got := ""
	take := func(n int) {
		for range n {
			got += w.next()
		}
		got += " "
	}
	take(2)
	w.wait("b")
	take(2) // b, though a came first
	w.end("ab")
	take(1) // a has two, and is alone
	w.wait("bc")
	take(4) // c was never served, b has none; then a is at its limit
	w.end("a")
	take(1)
	if want := "aa ba a cb-- a "; got != want {
		t.Errorf("the runs went to %q, want %q", got, want)
	}
}

// With one slot the workspaces take turns, however many runs of the others wait.
func TestNextAlternates(t *testing.T) {
	t.Parallel()
	w := newTurnWorld(t, 0)
	w.wait("aaaaabbc")
	var got strings.Builder
	for range 8 {
		l := w.next()
		got.WriteString(l)
		w.end(l)
	}
	if s := got.String(); strings.Count(s[:3], "a") != 1 || strings.Count(s[:3], "b") != 1 || strings.Count(s[:5], "b") != 2 || !strings.HasSuffix(s, "aaa") {
		t.Errorf("the runs went to %q, want each workspace in turn", s)
	}
}

// A run whose session has events in the outbox delays no other run.
func TestNextSkipsUnpublishedEnds(t *testing.T) {
	t.Parallel()
	w := newTurnWorld(t, 0)
	ws, session, _ := queued(t, w.db)
	w.ws['a'] = ws
	_, subj := run.LogSubject(4, ws, session)
	b := &pgx.Batch{}
	b.Queue(`INSERT INTO outbox (workspace_id, subject, message_id, schema, payload) VALUES ($1, $2, 'x', 'x', '')`, ws, subj)
	if err := w.db.WriteInWorkspace(t.Context(), ws, b); err != nil {
		t.Fatal(err)
	}
	if found, err := w.s.Next(t.Context()); !errors.Is(err, run.ErrTooEarly) {
		t.Errorf("Next() = %v, %v, want %v", found, err, run.ErrTooEarly)
	}
	w.wait("b")
	if got := w.next(); got != "b" {
		t.Errorf("the run went to %q, want b", got)
	}
}

// A run that lost its runner comes before the queued runs of its workspace, and the limit does
// not apply to it.
func TestNextPrefersLostRuns(t *testing.T) {
	t.Parallel()
	w := newTurnWorld(t, 1)
	w.wait("aa")
	w.next()
	lost := w.taken['a'][0]
	if err := w.s.Release(t.Context(), lost, 0); err != nil {
		t.Fatal(err)
	}
	w.wait("a")
	if w.next(); w.taken['a'][1].Run.ID != lost.Run.ID {
		t.Errorf("run %s was taken, want %s, which lost its runner", w.taken['a'][1].Run.ID, lost.Run.ID)
	}
	if got := w.next(); got != "-" {
		t.Errorf("a run of %q was taken beyond the limit", got)
	}
}

// Concurrent claims do not exceed the limit of a workspace.
func TestWorkspaceLimitHolds(t *testing.T) {
	t.Parallel()
	const most, waiting = 3, 24
	w := newTurnWorld(t, most)
	w.wait(strings.Repeat("a", waiting))
	found := make(chan run.Claimable, waiting)
	all, err := w.s.Sweep(t.Context(), 0, waiting)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range all {
		found <- r
	}
	close(found)
	var mu sync.Mutex
	claimed := 0
	var work sync.WaitGroup
	for range 8 {
		work.Go(func() {
			for r := range found {
				if _, err := w.s.Claim(t.Context(), r.Workspace, r.Session, r.Run); err == nil {
					mu.Lock()
					claimed++
					mu.Unlock()
				}
			}
		})
	}
	work.Wait()
	if claimed != most {
		t.Errorf("%d runs of one workspace were claimed, want %d", claimed, most)
	}
}

// A workspace that has all slots must yield as many as another one waits for.
func TestRenewYields(t *testing.T) {
	t.Parallel()
	w := newTurnWorld(t, 0)
	w.wait("aaaa")
	var leases []run.Lease
	for range 4 {
		w.next()
	}
	for _, c := range w.taken['a'] {
		leases = append(leases, c.Lease())
	}
	yields := func() (n int) {
		beats, err := w.s.Renew(t.Context(), leases)
		if err != nil || len(beats) != len(leases) {
			t.Fatalf("Renew() = %v, %v", beats, err)
		}
		for _, b := range beats {
			if b.Yield {
				n++
			}
		}
		return n
	}
	w.wait("ab")
	if n := yields(); n != 0 {
		t.Errorf("%d runs are to be given back, want none for who waits since this moment", n)
	}
	b := &pgx.Batch{}
	b.Queue(`UPDATE runs SET created_at = created_at - interval '1 minute'`)
	if err := w.db.WriteAsSystem(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if n := yields(); n != 1 {
		t.Errorf("%d runs are to be given back, want one for the one of b that waits", n)
	}
	if got := w.next(); got != "b" {
		t.Fatalf("the run went to %q, want b", got)
	}
	if n := yields(); n != 0 {
		t.Errorf("%d runs are to be given back, want none: only a's own wait", n)
	}
}
