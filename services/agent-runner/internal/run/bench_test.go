package run_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/pgtest"
	toolv1 "signalbox.dev/proto/signalbox/tool/v1"
	"signalbox.dev/services/agent-runner/internal/outbox"
	"signalbox.dev/services/agent-runner/internal/run"
	"signalbox.dev/services/agent-runner/migrations"
)

// BenchmarkStep measures the database part of a step with a tool call: reading the inbox,
// committing the answer and committing the results.
func BenchmarkStep(b *testing.B) {
	migrated := pg.Migrations{Schema: "agent", Role: "signalbox_agent", FS: migrations.FS}
	db := pgtest.New(b, migrated).Open(b, migrated)
	s := run.NewStore(db, outbox.New(db, nil, slog.New(slog.DiscardHandler)), "r", run.Config{Lease: time.Hour, WallTime: time.Hour, Partitions: 4})
	var c *run.Claim
	step := 0
	b.ReportAllocs()
	for b.Loop() {
		if step%20 == 0 { // as long as runs are, or what they read grows
			b.StopTimer()
			c, step = claimed(b, db, s), 0
			b.StartTimer()
		}
		if _, err := s.ReadInbox(b.Context(), c, true); err != nil {
			b.Fatal(err)
		}
		key := id.Derive(c.Run.ID.UUID, fmt.Sprint(step))
		a := run.Answer{
			ID: id.New[id.Message](), Step: step, Content: json.RawMessage(`[{"type":"text","text":"hello"}]`), RawDialect: "anthropic", Raw: []byte(`[{"type":"text","text":"hello"}]`), Model: "m",
			FinishReason: "tool-calls", Usage: run.Usage{Input: 10, Output: 5},
			Calls: []run.Call{{Key: key, ID: "a", Name: "get", Args: json.RawMessage(`{}`), Effect: toolv1.Effect_EFFECT_PURE, Deadline: time.Now().Add(time.Minute)}},
		}
		if err := s.CommitAnswer(b.Context(), c, a, int64(step*4+2)); err != nil {
			b.Fatal(err)
		}
		o := &run.Outcome{State: toolv1.OutcomeState_OUTCOME_STATE_OK, Result: json.RawMessage(`{"result":1}`)}
		if _, err := s.CommitResults(b.Context(), c, run.Results{Step: step, Content: json.RawMessage(`[]`), Outcomes: map[id.Operation]*run.Outcome{key: o}}, int64(step*4+4)); err != nil {
			b.Fatal(err)
		}
		step++
	}
}
