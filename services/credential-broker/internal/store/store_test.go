package store_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/pgtest"
	"signalbox.dev/services/credential-broker/internal/store"
	"signalbox.dev/services/credential-broker/internal/vault"
	"signalbox.dev/services/credential-broker/migrations"
)

func schema() pg.Migrations {
	return pg.Migrations{Schema: "credentials", Role: "signalbox_credentials", FS: migrations.FS, AppendOnly: migrations.AppendOnly()}
}

func TestCatalogue(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, schema())
	problems, err := pgtest.CheckCatalogue(t.Context(), db.AdminURL, nil, schema())
	if err != nil || len(problems) > 0 {
		t.Errorf("CheckCatalogue = %q, %v", problems, err)
	}
}

type world struct {
	t     *testing.T
	db    *pg.DB
	store *store.Store
}

func newWorld(t *testing.T) *world {
	t.Helper()
	db := pgtest.New(t, schema()).Open(t, schema())
	return &world{t, db, store.New(db)}
}

// add stores an account of a workspace, the zero one for shared.
func (w *world) add(ws id.Workspace, provider, label string) store.Account {
	w.t.Helper()
	if err := w.store.AddDataKey(w.t.Context(), ws, vault.WrappedKey{Version: 1, KEK: "k", Wrapped: []byte("w")}); err != nil {
		w.t.Fatal(err)
	}
	origin := "workspace"
	if id.IsZero(ws) {
		origin = "shared"
	}
	a := store.Account{
		WorkspaceID: ws, ID: id.New[id.Account](), Provider: provider, Profile: "openai", Label: label,
		Hint: "abcd", BaseURL: "https://x.example", Sealed: vault.Sealed{KeyVersion: 1, Bytes: []byte{1, 2, 3}},
	}
	got, err := w.store.Add(w.t.Context(), a, store.Event{Action: "created", Account: a.ID, Provider: provider, Origin: origin, Member: id.New[id.Member](), Service: "gateway"})
	if err != nil {
		w.t.Fatal(err)
	}
	if !got.Enabled || got.CreatedAt.IsZero() || got.LastUsedAt != nil {
		w.t.Errorf("Add = %+v, want it enabled, created and never used", got)
	}
	a.Enabled, a.CreatedAt = true, got.CreatedAt
	if diff := cmp.Diff(a, got); diff != "" {
		w.t.Errorf("Add (-want +got):\n%s", diff)
	}
	return got
}

func labels(all []store.Account) string {
	var out []string
	for _, a := range all {
		out = append(out, a.Label)
	}
	return strings.Join(out, " ")
}

func TestAccounts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := t.Context()
	mine, other := id.New[id.Workspace](), id.New[id.Workspace]()
	w.add(id.Workspace{}, "openai", "shared1")
	w.add(id.Workspace{}, "anthropic", "shared2")
	a := w.add(mine, "openai", "mine1")
	w.add(mine, "openai", "mine2")
	w.add(other, "openai", "other")

	for _, tt := range []struct {
		name string
		list func() ([]store.Account, error)
		want string
	}{
		{"List", func() ([]store.Account, error) { return w.store.List(ctx, mine) }, "mine1 mine2 shared1 shared2"},
		{"ListAll", func() ([]store.Account, error) { return w.store.ListAll(ctx) }, ""},
		{"Pool, own", func() ([]store.Account, error) { p, err := w.store.Pool(ctx, mine, "openai"); return p.Accounts, err }, "mine1 mine2"},
		{"Pool, shared", func() ([]store.Account, error) {
			p, err := w.store.Pool(ctx, id.Workspace{}, "anthropic")
			return p.Accounts, err
		}, "shared2"},
		{"Pool, none", func() ([]store.Account, error) {
			p, err := w.store.Pool(ctx, mine, "anthropic")
			if len(p.Accounts) > 0 {
				err = errors.New("a pool of somebody else")
			}
			return p.Accounts, err
		}, ""},
	} {
		all, err := tt.list()
		if got := labels(all); err != nil || (got != tt.want && tt.want != "") || tt.name == "ListAll" && len(all) != 5 {
			t.Errorf("%s = %q, %v, want %q", tt.name, got, err, tt.want)
		}
	}
	if err := w.store.Remove(ctx, other, a.ID, store.Event{Origin: "workspace", Service: "gateway"}); fault.KindOf(err) != fault.NotFound {
		t.Errorf("Remove of another workspace's account = %v, want NotFound", err)
	}
	if err := w.store.Remove(ctx, mine, a.ID, store.Event{Origin: "workspace", Service: "gateway"}); err != nil {
		t.Errorf("Remove = %v", err)
	}
	if err := w.store.Remove(ctx, mine, a.ID, store.Event{Origin: "workspace", Service: "gateway"}); fault.KindOf(err) != fault.NotFound {
		t.Errorf("Remove again = %v, want NotFound", err)
	}
}

type row struct {
	Action, Provider, Origin, Service string
	Session                           bool
}

func (w *world) audit(ws id.Workspace) []row {
	w.t.Helper()
	var out []row
	err := w.db.InWorkspace(w.t.Context(), ws, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT action, provider, origin, service, session_id <> '00000000-0000-0000-0000-000000000000' AS session FROM audit ORDER BY at, id`)
		if err != nil {
			return err
		}
		out, err = pgx.CollectRows(rows, pgx.RowToStructByPos[row])
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

func TestAudit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := t.Context()
	ws := id.New[id.Workspace]()
	shared, mine := w.add(id.Workspace{}, "openai", "shared"), w.add(ws, "anthropic", "mine")
	session := id.New[id.Session]()
	for range 3 {
		for _, s := range []id.Session{session, {}} {
			ev := store.Event{Account: shared.ID, Provider: "openai", Origin: "shared", Member: id.New[id.Member](), Service: "agent-runner", Address: "127.0.0.1:1", Session: s}
			if err := w.store.Used(ctx, []store.Use{{Workspace: ws, At: time.Now(), Event: ev}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.store.Remove(ctx, ws, mine.ID, store.Event{Origin: "workspace", Service: "gateway"}); err != nil {
		t.Fatal(err)
	}
	want := []row{
		{"created", "anthropic", "workspace", "gateway", false},
		{"used", "openai", "shared", "agent-runner", true},
		{"used", "openai", "shared", "agent-runner", false},
		{"removed", "anthropic", "workspace", "gateway", false},
	}
	if diff := cmp.Diff(want, w.audit(ws)); diff != "" {
		t.Errorf("audit (-want +got):\n%s", diff)
	}
	all, err := w.store.List(ctx, ws)
	if err != nil || len(all) != 1 || all[0].LastUsedAt == nil || time.Since(*all[0].LastUsedAt) > time.Minute {
		t.Errorf("List after Used = %+v, %v, want the shared account with a last use", all, err)
	}
	// Nobody changes the audit, not even with the system's claim.
	for _, sql := range []string{`UPDATE audit SET provider = 'x'`, `DELETE FROM audit`, `TRUNCATE audit`} {
		err := w.db.AsSystem(ctx, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, sql)
			return err
		})
		if e, ok := errors.AsType[*pgconn.PgError](err); !ok || e.Code != "42501" {
			t.Errorf("%s = %v, want that it is not permitted", sql, err)
		}
	}
}

// A workspace's claim sees its own rows and reads the shared accounts; it writes
// neither those nor another's.
func TestTenants(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	mine, other := id.New[id.Workspace](), id.New[id.Workspace]()
	w.add(id.Workspace{}, "openai", "shared")
	w.add(mine, "openai", "mine")
	w.add(other, "openai", "other")
	err := w.db.InWorkspace(t.Context(), mine, func(ctx context.Context, tx pgx.Tx) error {
		for _, q := range []struct {
			sql  string
			want int
		}{
			{`SELECT count(*) FROM accounts`, 2},
			{`SELECT count(*) FROM data_keys`, 1},
			{`SELECT count(*) FROM audit`, 1},
			{`WITH x AS (UPDATE accounts SET enabled = false RETURNING 1) SELECT count(*) FROM x`, 1},
			{`WITH x AS (DELETE FROM accounts RETURNING 1) SELECT count(*) FROM x`, 1},
		} {
			var n int
			if err := tx.QueryRow(ctx, q.sql).Scan(&n); err != nil || n != q.want {
				return fmt.Errorf("%s = %d, %w, want %d", q.sql, n, err, q.want)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	for _, ws := range []id.Workspace{{}, other} {
		err := w.db.InWorkspace(t.Context(), mine, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `INSERT INTO data_keys (workspace_id, version, kek, wrapped) VALUES ($1, 9, 'k', '')`, ws)
			return err
		})
		if err == nil || !strings.Contains(err.Error(), "row-level security") {
			t.Errorf("writing into workspace %s = %v, want a refusal", ws, err)
		}
	}
}

func TestDataKeys(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ws := id.New[id.Workspace]()
	for _, k := range []vault.WrappedKey{{Version: 1, KEK: "a", Wrapped: []byte("1")}, {Version: 1, KEK: "b", Wrapped: []byte("2")}, {Version: 2, KEK: "b", Wrapped: []byte("3")}} {
		if err := w.store.AddDataKey(t.Context(), ws, k); err != nil {
			t.Fatal(err)
		}
	}
	got, err := w.store.DataKeys(t.Context(), ws)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]vault.WrappedKey{{Version: 1, KEK: "a", Wrapped: []byte("1")}, {Version: 2, KEK: "b", Wrapped: []byte("3")}}, got); diff != "" {
		t.Errorf("DataKeys (-want +got):\n%s", diff)
	}
}

// TestRoom: of concurrent calls that add the last account that there is room for one succeeds.
func TestRoom(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	mine := id.New[id.Workspace]()
	w.add(mine, "openai", "first")
	err := w.db.InWorkspace(t.Context(), mine, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			INSERT INTO accounts (workspace_id, id, provider, profile, key_version, sealed)
			SELECT workspace_id, gen_random_uuid(), provider, profile, key_version, sealed FROM accounts, generate_series(3, 1000) WHERE workspace_id = $1`, mine)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var added atomic.Int32
	add := func() {
		wg.Go(func() {
			a := store.Account{WorkspaceID: mine, ID: id.New[id.Account](), Provider: "openai", Profile: "openai", Sealed: vault.Sealed{KeyVersion: 1, Bytes: []byte{1}}}
			_, err := w.store.Add(t.Context(), a, store.Event{Action: "created", Account: a.ID, Provider: "openai", Origin: "workspace", Service: "gateway"})
			switch {
			case err == nil:
				added.Add(1)
			case fault.KindOf(err) != fault.Conflict:
				t.Errorf("Add = %v, want a fault Conflict", err)
			}
		})
	}
	err = w.db.AsSystem(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `LOCK TABLE accounts IN SHARE MODE`); err != nil { // they can count, and not add
			return err
		}
		add()
		add()
		for waiting := 0; waiting < 2; {
			err := tx.QueryRow(ctx, `SELECT count(*) FROM pg_locks WHERE NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`).Scan(&waiting)
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if n := added.Load(); n != 1 {
		t.Errorf("%d were added at once where there was room for 1", n)
	}
}

// TestRoomOfPools: each provider has its thousand accounts, and all together have a bound.
func TestRoomOfPools(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	mine := id.New[id.Workspace]()
	w.add(mine, "openai", "first")
	fill := func(provider string, n int) {
		t.Helper()
		err := w.db.InWorkspace(t.Context(), mine, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `
				INSERT INTO accounts (workspace_id, id, provider, profile, key_version, sealed)
				SELECT workspace_id, gen_random_uuid(), $2, profile, key_version, sealed FROM accounts, generate_series(1, $3) WHERE workspace_id = $1 AND label = 'first'`, mine, provider, n)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	refuses := func(provider, why string) {
		t.Helper()
		a := store.Account{WorkspaceID: mine, ID: id.New[id.Account](), Provider: provider, Profile: "openai", Sealed: vault.Sealed{KeyVersion: 1, Bytes: []byte{1}}}
		_, err := w.store.Add(t.Context(), a, store.Event{Action: "created", Account: a.ID, Provider: provider, Origin: "workspace", Service: "gateway"})
		if fault.KindOf(err) != fault.Conflict || !strings.Contains(err.Error(), why) {
			t.Errorf("Add of an account for %s = %v, want a fault Conflict: %s", provider, err, why)
		}
	}
	fill("openai", 999)
	refuses("openai", "there are already 1000 accounts for openai, the maximum for one provider")
	w.add(mine, "anthropic", "of another provider")
	w.add(id.Workspace{}, "openai", "of another workspace")
	for i := range 8 {
		fill(fmt.Sprintf("p%d", i), 1000)
	}
	fill("anthropic", 998)
	w.add(mine, "anthropic", "the last")
	refuses("one-more", "there are already 10000 accounts, the maximum for all providers together")
	refuses("openai", "the maximum for one provider")
}
