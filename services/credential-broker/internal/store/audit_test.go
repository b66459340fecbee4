package store_test

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/hashchain"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/pgtest"
	"signalbox.dev/services/credential-broker/internal/audit"
	"signalbox.dev/services/credential-broker/internal/store"
)

// verify returns what is wrong with a workspace's chain, and how many rows it has.
func verify(t *testing.T, s *store.Store, ws id.Workspace) (string, int) {
	t.Helper()
	c := hashchain.New(ws)
	problems, _, err := s.VerifyAudit(t.Context(), ws, c)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, p := range problems {
		out = append(out, fmt.Sprintf("%s %d", p.Kind, p.Sequence))
	}
	return strings.Join(out, ", "), c.Rows()
}

// TestAuditWriters has many write to the same chains at once, most of them the same
// first use, while somebody verifies.
func TestAuditWriters(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	mine := id.New[id.Workspace]()
	own, shared := w.add(mine, "openai", "own"), w.add(id.Workspace{}, "anthropic", "shared")
	const writers, uses = 8, 25
	sessions := make([]id.Session, uses)
	for i := range sessions {
		sessions[i] = id.New[id.Session]()
	}
	var wg sync.WaitGroup
	for n := range writers {
		wg.Go(func() {
			for _, session := range sessions {
				account, origin := own, "workspace"
				if n%2 == 0 {
					account, origin = shared, "shared"
				}
				use := store.Use{Workspace: mine, At: time.Now(), Event: store.Event{Account: account.ID, Provider: account.Provider, Origin: origin, Service: "agent-runner", Session: session}}
				if err := w.store.Used(t.Context(), []store.Use{use}); err != nil {
					t.Errorf("Used = %v", err)
				}
			}
			ev := store.Event{Origin: "workspace", Service: "gateway"}
			if err := w.store.SetEnabled(t.Context(), mine, own.ID, n%2 == 0, ev); err != nil {
				t.Errorf("SetEnabled = %v", err)
			}
		})
	}
	wg.Go(func() {
		for range 20 {
			c := hashchain.New(mine)
			if problems, _, err := w.store.VerifyAudit(t.Context(), mine, c); err != nil || len(problems) > 0 {
				t.Errorf("VerifyAudit meanwhile = %v, %v", problems, err)
			}
		}
	})
	wg.Wait()
	problems, rows := verify(t, w.store, mine)
	if problems != "" || rows < 1+2*uses || rows > 1+2*uses+writers {
		t.Errorf("the chain has %d rows and these problems: %q; want %d to %d and none", rows, problems, 1+2*uses, 1+2*uses+writers)
	}
}

// TestAuditFindsChanges changes rows as an attacker with the database could.
func TestAuditFindsChanges(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, do, want string }{
		{"changed", `UPDATE audit SET service = 'nobody' WHERE sequence = 3`, "changed 3"},
		{"removed", `DELETE FROM audit WHERE sequence IN (2, 3)`, "removed 2"},
		{"the last removed", `DELETE FROM audit WHERE sequence = 5`, "removed 5"},
		{"inserted beyond the end", `ALTER TABLE audit DISABLE TRIGGER chain;
			INSERT INTO audit SELECT workspace_id, gen_random_uuid(), at, action, account_id, provider, origin, member_id, service, address, session_id,
				detail, sequence + 1, hash, hash FROM audit WHERE sequence = 5`, "inserted 6"},
		{"two exchanged", `UPDATE audit SET sequence = CASE sequence WHEN 2 THEN 30 ELSE 20 END WHERE sequence IN (2, 3);
			UPDATE audit SET sequence = sequence / 10 WHERE sequence > 5`, "moved 2, moved 3"},
		{"a number twice", `ALTER TABLE audit DROP CONSTRAINT audit_sequence; ALTER TABLE audit DISABLE TRIGGER chain;
			INSERT INTO audit SELECT workspace_id, gen_random_uuid(), at, action, account_id, provider, origin, member_id, service, address, session_id,
				detail, sequence, prev, hash FROM audit WHERE sequence = 4`, "inserted 4"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			database := pgtest.New(t, schema())
			db := database.Open(t, schema())
			w := &world{t, db, store.New(db)}
			mine := id.New[id.Workspace]()
			a := w.add(mine, "openai", "own")
			for range 4 {
				if err := w.store.Reset(t.Context(), mine, a.ID, store.Event{Origin: "workspace", Service: "gateway"}); err != nil {
					t.Fatal(err)
				}
			}
			if problems, rows := verify(t, w.store, mine); problems != "" || rows != 5 {
				t.Fatalf("before: %q in %d rows, want none in 5", problems, rows)
			}
			admin := connect(t, database.AdminURL)
			if _, err := admin.Exec(t.Context(), `SET search_path TO credentials; `+tt.do); err != nil {
				t.Fatal(err)
			}
			if problems, _ := verify(t, w.store, mine); problems != tt.want {
				t.Errorf("problems %q, want %q", problems, tt.want)
			}
		})
	}
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	admin, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = admin.Close(context.WithoutCancel(t.Context())) })
	return admin
}

// TestAuditMigration chains existing rows, and those that the previous version still writes.
func TestAuditMigration(t *testing.T) {
	t.Parallel()
	before := schema()
	before.FS = upTo(t, schema().FS, "00003")
	database := pgtest.New(t, before)
	db := database.Open(t, before)
	mine, other := id.New[id.Workspace](), id.New[id.Workspace]()
	insert := func(ws id.Workspace, action string) {
		t.Helper()
		err := db.InWorkspace(t.Context(), ws, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `
				INSERT INTO audit (workspace_id, id, action, account_id, provider, origin, member_id, service, address, session_id)
				VALUES (@workspace, @id, @action, @account, 'openai', 'workspace', NULL, 'gateway', '', @session)
				ON CONFLICT (workspace_id, account_id, session_id) WHERE action = 'used' DO NOTHING`, pg.Args{
				"workspace": ws, "id": uuid.New(), "action": action, "account": uuid.Nil, "session": uuid.Nil,
			})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, ws := range []id.Workspace{mine, other} {
		insert(ws, "created")
		insert(ws, "used")
		insert(ws, "used")
		insert(ws, "changed")
	}
	if err := pg.Migrate(t.Context(), database.AdminURL, slog.New(slog.DiscardHandler), schema()); err != nil {
		t.Fatal(err)
	}
	s := store.New(db)
	for _, ws := range []id.Workspace{mine, other} {
		insert(ws, "used")
		insert(ws, "removed")
		if problems, rows := verify(t, s, ws); problems != "" || rows != 4 {
			t.Errorf("the chain has %d rows and these problems: %q; want 4 and none", rows, problems)
		}
	}
	page, err := s.Audit(t.Context(), mine, audit.Query{Limit: 2})
	if err != nil || len(page) != 2 || page[0].Sequence != 4 || page[0].Action != "removed" || page[1].Action != "changed" {
		t.Errorf("Audit = %+v, %v, want rows 4 and 3", page, err)
	}
	for text, want := range map[string]int{"REMOVED": 1, "openai": 4, "nothing": 0, "%": 0} {
		search, err := hashchain.NewSearch(text, nil)
		if err != nil {
			t.Fatal(err)
		}
		if page, err := s.Audit(t.Context(), mine, audit.Query{Limit: 10, Search: search}); err != nil || len(page) != want {
			t.Errorf("Audit of %q has %d rows (%v), want %d", text, len(page), err, want)
		}
	}
	chains, err := s.AuditChains(t.Context())
	if err != nil || len(chains) != 2 {
		t.Errorf("AuditChains = %v, %v, want two", chains, err)
	}
}

// upTo returns the migrations up to a number.
func upTo(t *testing.T, all fs.FS, last string) fs.FS {
	t.Helper()
	names, err := fs.Glob(all, "*.sql")
	if err != nil {
		t.Fatal(err)
	}
	some := fstest.MapFS{}
	for _, name := range names {
		if name[:5] <= last {
			text, err := fs.ReadFile(all, name)
			if err != nil {
				t.Fatal(err)
			}
			some[name] = &fstest.MapFile{Data: text}
		}
	}
	return some
}
