package run_test

import (
	"context"
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

// claimed is a run in the hands of a runner.
func claimed(t *testing.T, db *pg.DB, s *run.Store) *run.Claim {
	t.Helper()
	ws, session, r := id.New[id.Workspace](), id.New[id.Session](), id.New[id.Run]()
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
	c, err := s.Claim(t.Context(), ws, session, r)
	if err != nil {
		t.Fatalf("Claim() = %v, want the run", err)
	}
	return c
}

// The runs of a runner that died are free before their leases run out; those of
// one that lives are not, nor those of one that has just given a sign of life.
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
		if got, err := sweeper.ExpireAbsent(t.Context(), quiet); err != nil || got != want {
			t.Errorf("ExpireAbsent(%s) = %d, %v, want %d", quiet, got, err, want)
		}
	}
	expire(30*time.Minute, 0) // it gave a sign of life just now
	expire(0, 1)
	expire(0, 0)
	found, err := sweeper.Sweep(t.Context(), 0, 10)
	if err != nil || len(found) != 1 || found[0].Run != lost.Run.ID {
		t.Fatalf("Sweep() = %v, %v, want run %s alone", found, err, lost.Run.ID)
	}
	if c, err := sweeper.Claim(t.Context(), lost.Run.Workspace, lost.Run.Session, lost.Run.ID); err != nil || c.Run.Epoch != 2 {
		t.Errorf("Claim() of the dead runner's run = %v, %v, want epoch 2", c, err)
	}
	if _, err := sweeper.Claim(t.Context(), kept.Run.Workspace, kept.Run.Session, kept.Run.ID); err == nil {
		t.Error("Claim() of the living runner's run = nil, want an error")
	}
}
