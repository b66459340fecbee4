package backlog_test

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/pgtest"
	"signalbox.dev/services/agent-runner/internal/backlog"
	"signalbox.dev/services/agent-runner/migrations"
)

// TestCollector measures two workspaces: in one a run waits behind a running one, in the other
// one run waits for a runner, and a budget is nearly spent.
func TestCollector(t *testing.T) {
	t.Parallel()
	migrated := pg.Migrations{Schema: "agent", Role: "signalbox_agent", FS: migrations.FS}
	db := pgtest.New(t, migrated).Open(t, migrated)
	busy, waiting := id.New[id.Workspace](), id.New[id.Workspace]()
	b := &pgx.Batch{}
	session := func(ws id.Workspace, states ...string) {
		args := pg.Args{"ws": ws, "session": id.New[id.Session](), "member": id.New[id.Member]()}
		b.Queue(`
			INSERT INTO sessions (id, workspace_id, created_by, model, provider, preset, created_at, updated_at)
			VALUES (@session, @ws, @member, 'm', 'p', 'workspace', clock_timestamp(), clock_timestamp())`, args)
		for i, state := range states {
			runner, leased := "r", state == "running"
			if state == "resumed" {
				state, runner, leased = "running", "", true
			}
			b.Queue(`
				INSERT INTO runs (id, workspace_id, session_id, ordinal, state, runner, user_message_id, created_by, role, provider, model, created_at, lease_until)
				VALUES (@run, @ws, @session, @ordinal, @state, @runner, @run, @member, 'editor', 'p', 'm', now() - '1 hour'::interval, CASE WHEN @leased THEN now() - '1 minute'::interval END)`,
				pg.Args{"run": id.New[id.Run](), "ws": ws, "session": args["session"], "member": args["member"], "ordinal": i + 1, "state": state, "runner": runner, "leased": leased})
		}
	}
	session(busy, "done", "running", "queued", "queued")
	session(busy, "waiting")
	session(waiting, "queued")
	session(waiting, "resumed")
	b.Queue(`INSERT INTO outbox (workspace_id, subject, message_id, schema, payload, created_at) VALUES (@ws, 's', 'm', 'x', '', now() - '90 seconds'::interval)`, pg.Args{"ws": busy})
	for scope, used := range map[string]int{"workspace": 90, "session": 10} {
		b.Queue(`
			WITH b AS (INSERT INTO budgets (id, workspace_id, scope, tokens, created_by) VALUES (gen_random_uuid(), @ws, @scope, 100, @ws) RETURNING id)
			INSERT INTO budget_use (budget_id, subject, workspace_id, day, tokens, cost_micros, steps)
			SELECT id, @ws, @ws, CASE @scope WHEN 'workspace' THEN (now() AT TIME ZONE 'UTC')::date ELSE 'epoch' END, @used, 0, 0 FROM b`,
			pg.Args{"ws": waiting, "scope": scope, "used": used})
	}
	if err := db.WriteAsSystem(t.Context(), b); err != nil {
		t.Fatal(err)
	}

	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(backlog.New(db, slog.New(slog.DiscardHandler)))
	err := testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP signalbox_budget_used_ratio Used part of the 20 budgets that are used most, from a half on: 1 is all of it.
# TYPE signalbox_budget_used_ratio gauge
signalbox_budget_used_ratio{scope="workspace",workspace="`+waiting.String()+`"} 0.9
# HELP signalbox_queue_runs Queued runs of the 20 workspaces whose first one has waited longest.
# TYPE signalbox_queue_runs gauge
signalbox_queue_runs{workspace="`+busy.String()+`"} 2
signalbox_queue_runs{workspace="`+waiting.String()+`"} 2
# HELP signalbox_runs Runs by state: queued, running, waiting (for a person).
# TYPE signalbox_runs gauge
signalbox_runs{state="queued"} 4
signalbox_runs{state="running"} 1
signalbox_runs{state="waiting"} 1
`), "signalbox_budget_used_ratio", "signalbox_queue_runs", "signalbox_runs")
	if err != nil {
		t.Error(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	ages := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if strings.HasSuffix(f.GetName(), "_oldest_seconds") {
				ages[f.GetName()] += m.GetGauge().GetValue()
			}
		}
	}
	// The busy workspace's runs wait behind another one, and have no age.
	if age := ages["signalbox_queue_oldest_seconds"]; age < 3600 || age > 3700 {
		t.Errorf("the oldest queued run has waited for %v s, want an hour", age)
	}
	if age := ages["signalbox_outbox_oldest_seconds"]; age < 90 || age > 190 {
		t.Errorf("the oldest message is %v s old, want 90", age)
	}
}

// TestDatabaseThatIsDown gets no figures rather than old or wrong ones.
func TestDatabaseThatIsDown(t *testing.T) {
	t.Parallel()
	db, err := pg.Open(t.Context(), pg.Config{URL: "postgres://nobody:secret@127.0.0.1:1/nothing", Role: "signalbox_agent", Schema: "agent"})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if n := testutil.CollectAndCount(backlog.New(db, slog.New(slog.DiscardHandler))); n != 0 {
		t.Errorf("%d figures", n)
	}
}
