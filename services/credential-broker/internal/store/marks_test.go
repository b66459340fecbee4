package store_test

import (
	"context"
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pgtest"
	"signalbox.dev/services/credential-broker/internal/store"
)

// A change that matters to a reader of the pool gives it another mark, and nothing else does.
func TestMarks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx, mine, ev := t.Context(), id.New[id.Workspace](), store.Event{Origin: "workspace", Service: "test"}
	a := w.add(mine, "openai", "a")
	w.add(mine, "anthropic", "b")
	off := w.add(mine, "openai", "off")
	if err := w.store.SetEnabled(ctx, mine, off.ID, false, ev); err != nil {
		t.Fatal(err)
	}
	w.add(id.Workspace{}, "openai", "shared")
	keys := []store.PoolKey{
		{Workspace: mine, Provider: "openai"}, {Workspace: mine, Provider: "anthropic"}, {Provider: "openai"}, {Workspace: id.New[id.Workspace](), Provider: "openai"},
	}
	marks := func() map[store.PoolKey]store.Mark {
		t.Helper()
		m, err := w.store.Marks(ctx, keys)
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range keys {
			p, err := w.store.Pool(ctx, k.Workspace, k.Provider)
			if err != nil || p.Mark != m[k] {
				t.Errorf("Pool(%+v) has the mark %q, %v, want %q", k, p.Mark, err, m[k])
			}
		}
		return m
	}
	learn := func(l store.Learned) func() error {
		return func() error { return w.store.Learn(ctx, l) }
	}
	limit := store.Limit{
		Workspace: mine, Provider: "openai", Account: a.ID,
		At: time.Now().Add(-time.Hour), Until: time.Now(), Soon: time.Now(), Reason: "RATE_LIMIT_EXCEEDED",
	}
	for _, tt := range []struct {
		name     string
		do       func() error
		matters  bool
		accounts bool // themselves
	}{
		{"nothing", func() error { return nil }, false, false},
		{"use", func() error {
			use := store.Use{Workspace: mine, At: time.Now(), Event: store.Event{Account: a.ID, Provider: "openai", Origin: "workspace", Service: "agent-runner"}}
			return w.store.Used(ctx, []store.Use{use})
		}, false, false},
		{"health", learn(store.Learned{Health: []store.Health{{Workspace: mine, Provider: "openai", Account: a.ID, Health: 50, At: time.Now()}}}), false, false},
		{"limit", learn(store.Learned{Limits: []store.Limit{limit}}), true, false},
		{"disabled", func() error { return w.store.SetEnabled(ctx, mine, a.ID, false, ev) }, true, true},
		{"enabled", func() error { return w.store.SetEnabled(ctx, mine, a.ID, true, ev) }, true, true},
		// Between two looks: what one has lost the other has.
		{"one for the other", func() error {
			return errors.Join(w.store.SetEnabled(ctx, mine, a.ID, false, ev), w.store.SetEnabled(ctx, mine, off.ID, true, ev))
		}, true, true},
		{"back again", func() error {
			return errors.Join(w.store.SetEnabled(ctx, mine, a.ID, true, ev), w.store.SetEnabled(ctx, mine, off.ID, false, ev))
		}, true, true},
		{"flat rate", func() error { return w.store.SetFlatRate(ctx, mine, a.ID, true, ev) }, true, true},
		{"switch", func() error { return w.store.Switch(ctx, mine, a.ID, ev) }, true, false},
		{"settings", func() error {
			return w.store.ChangeSettings(ctx, mine, "openai", ev, func([]byte) ([]byte, string, error) { return []byte(`{"strategy": "hybrid"}`), "x", nil })
		}, true, false},
		{"reset", func() error { return w.store.Reset(ctx, mine, a.ID, ev) }, true, false},
		{"added", func() error { w.add(mine, "openai", "c"); return nil }, true, true},
		{"sealed anew", func() error {
			return w.db.InWorkspace(ctx, mine, func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `UPDATE accounts SET sealed = '\x0405' WHERE workspace_id = $1 AND id = $2`, mine, a.ID)
				return err
			})
		}, true, true},
		{"removed", func() error { return w.store.Remove(ctx, mine, a.ID, ev) }, true, true},
	} {
		before := marks()
		if err := tt.do(); err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		after := marks()
		if changed := before[keys[0]] != after[keys[0]]; changed != tt.matters {
			t.Errorf("%s changes the mark: %v, want %v", tt.name, changed, tt.matters)
		}
		if changed := before[keys[0]].Accounts != after[keys[0]].Accounts; changed != tt.accounts {
			t.Errorf("%s changes the mark of accounts: %v, want %v", tt.name, changed, tt.accounts)
		}
		before[keys[0]] = after[keys[0]]
		if !maps.Equal(before, after) {
			t.Errorf("%s changes the marks of other pools", tt.name)
		}
	}
}

// BenchmarkMarks looks after the operator's thousand accounts and those of two hundred
// workspaces.
func BenchmarkMarks(b *testing.B) {
	db := pgtest.New(b, schema()).Open(b, schema())
	err := db.AsSystem(b.Context(), func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			WITH w AS (SELECT '00000000-0000-0000-0000-000000000000'::uuid AS id, 1000 AS n UNION ALL SELECT gen_random_uuid(), 2 FROM generate_series(1, 200)),
				k AS (INSERT INTO data_keys (workspace_id, version, kek, wrapped) SELECT id, 1, 'k', 'w' FROM w)
			INSERT INTO accounts (workspace_id, id, provider, profile, key_version, sealed)
			SELECT w.id, gen_random_uuid(), 'openai', 'openai', 1, decode(repeat('ab', 100), 'hex') FROM w, generate_series(1, w.n)`)
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	s := store.New(db)
	all, err := s.ListAll(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	seen := map[store.PoolKey]bool{}
	var keys []store.PoolKey
	for i := range all {
		if k := (store.PoolKey{Workspace: all[i].WorkspaceID, Provider: "openai"}); !seen[k] {
			seen[k] = true
			keys = append(keys, k)
		}
	}
	for b.Loop() {
		if m, err := s.Marks(b.Context(), keys); err != nil || len(m) != 201 {
			b.Fatalf("%d marks, %v", len(m), err)
		}
	}
}
