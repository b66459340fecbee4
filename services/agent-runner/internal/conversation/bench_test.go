package conversation_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/identity"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/pgtest"
	agentv1 "signalbox.dev/proto/signalbox/agent/v1"
	"signalbox.dev/services/agent-runner/internal/conversation"
	"signalbox.dev/services/agent-runner/internal/outbox"
	"signalbox.dev/services/agent-runner/internal/preset"
	"signalbox.dev/services/agent-runner/internal/provider"
	"signalbox.dev/services/agent-runner/internal/run"
	"signalbox.dev/services/agent-runner/migrations"
)

// anyModel accepts every model.
type anyModel struct{}

func (anyModel) Choose(_ context.Context, w provider.Request) (name, model string, err error) {
	return w.Provider, w.Model, nil
}

// BenchmarkSubmit measures how long a person waits before the model is called: it stores the
// first message of a session, and with take also claims its run.
func BenchmarkSubmit(b *testing.B) {
	for name, take := range map[string]bool{"queued": false, "taken": true} {
		b.Run(name, func(b *testing.B) {
			migrated := pg.Migrations{Schema: "agent", Role: "signalbox_agent", FS: migrations.FS}
			db := pgtest.New(b, migrated).Open(b, migrated)
			out := outbox.New(db, nil, slog.New(slog.DiscardHandler))
			presets, err := preset.Builtin()
			if err != nil {
				b.Fatal(err)
			}
			people := conversation.NewStore(db, out, presets, conversation.Config{Models: anyModel{}, Partitions: 4, MaxBytes: 1 << 20, MaxQueued: 1})
			runs := run.NewStore(db, out, "r", run.Config{Lease: time.Hour, WallTime: time.Hour, Partitions: 4})
			a := identity.Actor{Workspace: id.New[id.Workspace](), Member: id.New[id.Member](), Role: identity.Editor}
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				s, err := people.Create(b.Context(), a, &agentv1.CreateSessionRequest{Provider: "p", Model: "m"})
				if err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
				n := conversation.NewMessage{Session: s.ID, Content: []byte(`"hello"`)}
				if take {
					n.PreClaim = runs.PreClaim(a.Workspace, s.ID)
				}
				if _, err := people.Submit(b.Context(), a, n); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
