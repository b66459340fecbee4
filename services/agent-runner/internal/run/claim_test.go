package run_test

import (
	"context"
	"errors"
	"log/slog"
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

// claimed is a claimed run.
func claimed(t testing.TB, db *pg.DB, s *run.Store) *run.Claim {
	t.Helper()
	ws, session, r := queued(t, db)
	c, err := s.Claim(t.Context(), ws, session, r)
	if err != nil {
		t.Fatalf("Claim() = %v, want the run", err)
	}
	return c
}

// queued returns a queued run that can be claimed.
func queued(t testing.TB, db *pg.DB) (ws id.Workspace, session id.Session, r id.Run) {
	t.Helper()
	ws = id.New[id.Workspace]()
	session, r = queuedIn(t, db, ws)
	return ws, session, r
}

// queuedIn returns a queued run in a workspace.
func queuedIn(t testing.TB, db *pg.DB, ws id.Workspace) (session id.Session, r id.Run) {
	t.Helper()
	session, r = id.New[id.Session](), id.New[id.Run]()
	args := pgx.NamedArgs{"ws": ws, "session": session, "run": r, "message": id.New[id.Message](), "member": id.New[id.Member]()}
	err := db.InWorkspace(t.Context(), ws, func(ctx context.Context, tx pgx.Tx) error {
		batch := &pgx.Batch{}
		batch.Queue(`
			INSERT INTO sessions (id, workspace_id, created_by, model, provider, preset, created_at, updated_at)
			VALUES (@session, @ws, @member, 'm', 'p', 'workspace', now(), now())`, args)
		batch.Queue(`
			INSERT INTO runs (id, workspace_id, session_id, ordinal, state, user_message_id, created_by, role, provider, model, created_at)
			VALUES (@run, @ws, @session, 1, 'queued', @message, @member, 'editor', 'p', 'm', now())`, args)
		return tx.SendBatch(ctx, batch).Close()
	})
	if err != nil {
		t.Fatal(err)
	}
	return session, r
}

// A claim that races with the outbox's deletion of the previous run's end is too early or
// succeeds. With any other result the wake-up would be acked and lost.
func TestClaimDuringTheOutbox(t *testing.T) {
	t.Parallel()
	migrated := pg.Migrations{Schema: "agent", Role: "signalbox_agent", FS: migrations.FS}
	db := pgtest.New(t, migrated).Open(t, migrated)
	s := run.NewStore(db, outbox.New(db, nil, slog.New(slog.DiscardHandler)), "r", run.Config{Lease: time.Hour, WallTime: time.Hour, Partitions: 4})
	early, taken := 0, 0
	for i := range 1000 {
		ws, session, r := queued(t, db)
		_, subj := run.LogSubject(4, ws, session)
		b := &pgx.Batch{}
		b.Queue(`INSERT INTO outbox (workspace_id, subject, message_id, schema, payload) VALUES ($1, $2, 'x', 'x', '')`, ws, subj)
		if err := db.WriteInWorkspace(t.Context(), ws, b); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			b := &pgx.Batch{}
			b.Queue(`DELETE FROM outbox`)
			done <- db.WriteInWorkspace(t.Context(), ws, b)
		}()
		for range i % 50 * 1000 { // it meets the deletion at another moment each time
		}
		switch _, err := s.Claim(t.Context(), ws, session, r); {
		case err == nil:
			taken++
		case errors.Is(err, run.ErrTooEarly):
			early++
		default:
			t.Fatalf("Claim() = %v, want the run or %v", err, run.ErrTooEarly)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d claims were too early, %d took their run", early, taken)
}

// Sweep finds runs that lost their runner, however many queued runs there are.
func TestSweepPrefersLostRuns(t *testing.T) {
	t.Parallel()
	migrated := pg.Migrations{Schema: "agent", Role: "signalbox_agent", FS: migrations.FS}
	db := pgtest.New(t, migrated).Open(t, migrated)
	s := run.NewStore(db, outbox.New(db, nil, slog.New(slog.DiscardHandler)), "r", run.Config{Lease: time.Hour, WallTime: time.Hour, Partitions: 4})
	for range 5 {
		queued(t, db)
	}
	lost := claimed(t, db, s)
	if err := s.Release(t.Context(), lost, 0); err != nil {
		t.Fatal(err)
	}
	found, err := s.Sweep(t.Context(), 0, 3)
	if err != nil || len(found) != 3 || found[0].Run != lost.Run.ID || !found[1].Queued {
		t.Errorf("Sweep() = %v, %v, want three, and first the run %s", found, err, lost.Run.ID)
	}
}

// Ready finds queued runs, however many runs lost their runner.
func TestReady(t *testing.T) {
	t.Parallel()
	migrated := pg.Migrations{Schema: "agent", Role: "signalbox_agent", FS: migrations.FS}
	db := pgtest.New(t, migrated).Open(t, migrated)
	s := run.NewStore(db, outbox.New(db, nil, slog.New(slog.DiscardHandler)), "r", run.Config{Lease: time.Hour, WallTime: time.Hour, Partitions: 4})
	for range 3 {
		if err := s.Release(t.Context(), claimed(t, db, s), 0); err != nil {
			t.Fatal(err)
		}
	}
	_, _, waits := queued(t, db)
	found, err := s.Ready(t.Context(), 2)
	if err != nil || len(found) != 1 || found[0].Run != waits || !found[0].Queued {
		t.Errorf("Ready() = %v, %v, want run %s alone", found, err, waits)
	}
}

// Renew skips a locked row, and no other run waits for it.
func TestRenewSkipsLockedRows(t *testing.T) {
	t.Parallel()
	migrated := pg.Migrations{Schema: "agent", Role: "signalbox_agent", FS: migrations.FS}
	db := pgtest.New(t, migrated).Open(t, migrated)
	s := run.NewStore(db, outbox.New(db, nil, slog.New(slog.DiscardHandler)), "r", run.Config{Lease: time.Hour, WallTime: time.Hour, Partitions: 4})
	locked, free := claimed(t, db, s), claimed(t, db, s)
	lease := func(c *run.Claim) (until time.Time) {
		t.Helper()
		err := db.AsSystem(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
			return tx.QueryRow(ctx, "SELECT lease_until FROM runs WHERE id = $1", c.Run.ID).Scan(&until)
		})
		if err != nil {
			t.Fatal(err)
		}
		return until
	}
	before := []time.Time{lease(locked), lease(free)}
	var renewals []run.Renewal
	err := db.AsSystem(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT FROM runs WHERE id = $1 FOR UPDATE", locked.Run.ID); err != nil {
			return err
		}
		var err error
		renewals, err = s.Renew(ctx, []run.Lease{locked.Lease(), free.Lease(), {Run: free.Run.ID, Epoch: 7}})
		return err
	})
	if err != nil || len(renewals) != 2 {
		t.Fatalf("Renew() = %v, %v, want both runs", renewals, err)
	}
	if !lease(locked).Equal(before[0]) || !lease(free).After(before[1]) {
		t.Errorf("leases until %s and %s, before %s: want the second renewed, alone", lease(locked), lease(free), before)
	}
}

// ReleaseUnconfirmed ends the lease of this runner and of no other.
func TestReleaseUnconfirmed(t *testing.T) {
	t.Parallel()
	migrated := pg.Migrations{Schema: "agent", Role: "signalbox_agent", FS: migrations.FS}
	db := pgtest.New(t, migrated).Open(t, migrated)
	store := func(runner string) *run.Store {
		return run.NewStore(db, outbox.New(db, nil, slog.New(slog.DiscardHandler)), runner, run.Config{Lease: time.Hour, WallTime: time.Hour, Partitions: 4})
	}
	mine, other := store("mine"), store("other")
	c := claimed(t, db, mine)
	for _, tc := range []struct {
		s    *run.Store
		free int
	}{{other, 0}, {mine, 1}} {
		if held, err := tc.s.ReleaseUnconfirmed(t.Context(), c.Run.Workspace, c.Run.ID); err != nil || held != (tc.free > 0) {
			t.Fatalf("Disown() = %v, %v", held, err)
		}
		if found, err := other.Sweep(t.Context(), 0, 10); err != nil || len(found) != tc.free {
			t.Errorf("Sweep() = %v, %v, want %d runs", found, err, tc.free)
		}
	}
}

// The runs of a dead runner can be claimed before their leases expire. Those of a live one
// cannot, nor those of one that has just renewed them.
func TestExpireAbsent(t *testing.T) {
	t.Parallel()
	migrated := pg.Migrations{Schema: "agent", Role: "signalbox_agent", FS: migrations.FS}
	db := pgtest.New(t, migrated).Open(t, migrated)
	log := slog.New(slog.DiscardHandler)
	store := func(runner string) *run.Store {
		return run.NewStore(db, outbox.New(db, nil, log), runner, run.Config{Lease: time.Hour, WallTime: time.Hour, Partitions: 4})
	}
	dead, alive, sweeper := store("dead"), store("alive"), store("sweeper")
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	presence, done := pg.NewPresence(db, "alive", log), make(chan error, 1)
	go func() { done <- presence.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	for presence.Steady() == 0 {
		select {
		case err := <-done:
			t.Fatal(err)
		case <-time.After(5 * time.Millisecond):
		}
	}
	lost, kept := claimed(t, db, dead), claimed(t, db, alive)

	expire := func(quiet time.Duration, want int) {
		t.Helper()
		if got, err := sweeper.ExpireAbsent(t.Context(), quiet); err != nil || len(got) != want || want > 0 && got[0].Run != lost.Run.ID {
			t.Errorf("ExpireAbsent(%s) = %v, %v, want %d", quiet, got, err, want)
		}
	}
	expire(30*time.Minute, 0) // it gave a sign of life just now
	expire(0, 1)
	expire(0, 0)
	found, err := sweeper.Sweep(t.Context(), 0, 10)
	if err != nil || len(found) != 1 || found[0].Run != lost.Run.ID {
		t.Fatalf("Sweep() = %v, %v, want run %s alone", found, err, lost.Run.ID)
	}
	if c, err := sweeper.Claim(t.Context(), lost.Run.Workspace, lost.Run.Session, lost.Run.ID); err != nil || c.Run.Epoch != 2 || !c.TakenOver {
		t.Errorf("Claim() of the dead runner's run = %v, %v, want epoch 2, taken over", c, err)
	}
	if _, err := sweeper.Claim(t.Context(), kept.Run.Workspace, kept.Run.Session, kept.Run.ID); err == nil {
		t.Error("Claim() of the living runner's run = nil, want an error")
	}
}
