package conversation_test

import (
	"context"
	"log/slog"
	"testing"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/pgtest"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	"signalbox.dev/services/agent-runner/internal/conversation"
	"signalbox.dev/services/agent-runner/internal/outbox"
	"signalbox.dev/services/agent-runner/internal/preset"
	"signalbox.dev/services/agent-runner/migrations"
)

// TestEndWaits checks that EndWaits is set while the last events of an ended run are in the
// outbox.
func TestEndWaits(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	migrated := pg.Migrations{Schema: "agent", Role: "signalbox_agent", FS: migrations.FS}
	db := pgtest.New(t, migrated).Open(t, migrated)
	presets, err := preset.Builtin()
	if err != nil {
		t.Fatal(err)
	}
	// This outbox has no publisher.
	s := conversation.NewStore(db, outbox.New(db, nil, slog.New(slog.DiscardHandler)), presets,
		conversation.Config{Models: anyModel{}, Partitions: 4, MaxBytes: 1 << 20, MaxQueued: 1})
	a := identity.Actor{Workspace: id.New[id.Workspace](), Member: id.New[id.Member](), Role: identity.Editor}
	session, err := s.Create(ctx, a, &agentv1.CreateSessionRequest{Provider: "p", Model: "m"})
	if err != nil {
		t.Fatal(err)
	}
	sent, err := s.Submit(ctx, a, conversation.NewMessage{Session: session.ID, Content: []byte(`"hello"`)})
	if err != nil {
		t.Fatal(err)
	}
	waits := func(when string, want bool) {
		t.Helper()
		v, err := s.Run(ctx, a, sent.Run.ID)
		if err != nil {
			t.Fatal(err)
		}
		if v.EndWaits != want {
			t.Errorf("EndWaits of a run %s = %t, want %t", when, v.EndWaits, want)
		}
	}
	waits("that is queued", false)
	if _, _, err := s.Cancel(ctx, a, session.ID, conversation.Target{}); err != nil {
		t.Fatal(err)
	}
	waits("whose end is in the outbox", true)
	err = db.AsSystem(ctx, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `DELETE FROM outbox`)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	waits("whose end is in the log", false)
}
