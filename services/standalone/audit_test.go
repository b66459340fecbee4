package standalone_test

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/hashchain"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/pkg/pgtest"
	agentrunner "signalbox.dev/services/agent-runner"
	"signalbox.dev/services/gateway"
	toolexecutor "signalbox.dev/services/tool-executor"
)

// TestAudits chains rows that are there already, and those of concurrent writers, as the previous
// version writes them, with an administrator who is no superuser. Then it changes rows as an attacker
// with the database could.
func TestAudits(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		m      pg.Migrations
		before string // the last migration without a chain
		table  func(*pg.DB) hashchain.Table
		insert string
	}{
		{gateway.Migrations(), "00006", gateway.AuditTable, `
			INSERT INTO audit (workspace_id, member_id, action, subject, detail) VALUES (@workspace, gen_random_uuid(), 'key-created', 'k', 'über')`},
		{agentrunner.Migrations(), "00021", agentrunner.AuditTable, `
			INSERT INTO audit (id, workspace_id, action, subject) VALUES (gen_random_uuid(), @workspace, 'call-expired', 'c1')`},
		{toolexecutor.Migrations(), "00007", toolexecutor.AuditTable, `
			INSERT INTO mcp_audit (id, workspace_id, member_id, action, server_id, server_name)
			VALUES (gen_random_uuid(), @workspace, gen_random_uuid(), 'server-added', gen_random_uuid(), 'wiki')`},
	} {
		t.Run(tt.m.Schema, func(t *testing.T) {
			t.Parallel()
			root, admin, role := withoutSuperuser(t)
			tt.m.Role = role
			after := tt.m
			tt.m.FS = upTo(t, after.FS, tt.before)
			migrate := func(m pg.Migrations) {
				t.Helper()
				if err := pg.Migrate(t.Context(), admin, slog.New(slog.DiscardHandler), m); err != nil {
					t.Fatal(err)
				}
			}
			migrate(tt.m)
			db := (&pgtest.Database{AdminURL: admin}).Open(t, tt.m)
			insert := func(ws id.Workspace) {
				t.Helper()
				err := db.InWorkspace(t.Context(), ws, func(ctx context.Context, tx pgx.Tx) error {
					_, err := tx.Exec(ctx, tt.insert, pg.Args{"workspace": ws})
					return err
				})
				if err != nil {
					t.Error(err)
				}
			}
			one, two := id.New[id.Workspace](), id.New[id.Workspace]()
			for range 3 {
				insert(one)
				insert(two)
			}
			migrate(after)
			table := tt.table(db)
			v, err := hashchain.Verify(t.Context(), "", table, nil)
			if err != nil || v.Rows != 6 || len(v.Heads) != 2 || len(v.Problems) > 0 {
				t.Fatalf("after the migration: %+v, %v, want 6 rows in 2 chains", v, err)
			}
			var writers sync.WaitGroup
			for range 20 {
				writers.Go(func() {
					for range 5 {
						insert(one)
					}
				})
			}
			writers.Wait()
			v, err = hashchain.Verify(t.Context(), "", table, v.Heads)
			if err != nil || v.Rows != 106 || len(v.Problems) > 0 {
				t.Errorf("after concurrent writes: %d rows, %+v, %v, want 106", v.Rows, v.Problems, err)
			}

			attacker, err := pgx.Connect(t.Context(), root)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = attacker.Close(context.WithoutCancel(t.Context())) }()
			name := tt.m.Schema + "." + table.Name
			for _, attack := range []struct{ do, want string }{
				{`UPDATE %[1]s SET action = 'x' WHERE workspace_id = $1 AND sequence = 3`, "changed 3"},
				{`DELETE FROM %[1]s WHERE workspace_id = $1 AND sequence = 2`, "removed 2"},
				{`DELETE FROM %[1]s WHERE workspace_id = $1 AND sequence = 5`, "removed 5"},
				{`INSERT INTO %[1]s SELECT (jsonb_populate_record(a, jsonb_build_object('id', gen_random_uuid(), 'sequence', 6, 'prev', hash))).*
					FROM %[1]s a WHERE workspace_id = $1 AND sequence = 5`, "inserted 6"},
				{`UPDATE %[1]s SET sequence = 10 + sequence WHERE workspace_id = $1 AND sequence IN (2, 3);
					UPDATE %[1]s SET sequence = CASE sequence WHEN 12 THEN 3 ELSE 2 END WHERE workspace_id = $1 AND sequence > 10`, "moved 2, moved 3"},
			} {
				ws := id.New[id.Workspace]()
				for range 5 {
					insert(ws)
				}
				sql := fmt.Sprintf("ALTER TABLE %[1]s DISABLE TRIGGER chain; "+attack.do+"; ALTER TABLE %[1]s ENABLE TRIGGER chain", name)
				if _, err := attacker.Exec(t.Context(), strings.ReplaceAll(sql, "$1", "'"+ws.String()+"'")); err != nil {
					t.Fatal(err)
				}
				problems, _, err := table.VerifyAudit(t.Context(), ws, hashchain.New(ws))
				if err != nil {
					t.Fatal(err)
				}
				var got []string
				for _, p := range problems {
					got = append(got, fmt.Sprintf("%s %d", p.Kind, p.Sequence))
					var row uuid.UUID
					err := attacker.QueryRow(t.Context(), "SELECT id FROM "+name+" WHERE workspace_id = $1 AND sequence = $2", ws.UUID, p.Sequence).Scan(&row)
					if err == nil && row != p.ID || err != nil && !pg.NoRows(err) {
						t.Errorf("%s: the problem names row %s (%v), want %s", attack.want, p.ID, err, row)
					}
				}
				if strings.Join(got, ", ") != attack.want {
					t.Errorf("problems %q, want %q, after %s", got, attack.want, attack.do)
				}
			}
		})
	}
}

// withoutSuperuser returns a database, as a superuser and as an administrator who is none, and the
// name for a role that this administrator creates.
func withoutSuperuser(t *testing.T) (root, admin, role string) {
	t.Helper()
	name := "audit_" + uuid.NewString()[:8]
	exec := func(url, sql string) {
		c, err := pgx.Connect(context.WithoutCancel(t.Context()), url)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close(context.WithoutCancel(t.Context())) }()
		if _, err := c.Exec(context.WithoutCancel(t.Context()), sql); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { // after the database has been dropped
		u, err := url.Parse(root)
		if err != nil {
			t.Fatal(err)
		}
		u.Path = "/postgres"
		exec(u.String(), fmt.Sprintf("DROP ROLE IF EXISTS %[1]s_plain, %[1]s", name))
	})
	root = pgtest.New(t).AdminURL
	exec(root, fmt.Sprintf(`
		CREATE ROLE %[1]s LOGIN CREATEROLE;
		DO $$ BEGIN EXECUTE format('GRANT CREATE ON DATABASE %%I TO %[1]s', current_database()); END $$`, name))
	return root, strings.Replace(root, "postgres@", name+"@", 1), name + "_plain"
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
