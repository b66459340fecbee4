package pgtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/pg"
)

// CheckCatalogue returns a sentence for each way in which the services of migrations could
// read another workspace's rows, sorted. shared lists the tables ("schema.table") that may
// lack a workspace_id; a listed table that has one, or that does not exist, is reported too.
func CheckCatalogue(ctx context.Context, adminURL string, shared []string, migrations ...pg.Migrations) (problems []string, err error) {
	err = do(ctx, adminURL, func(c *pgx.Conn) error {
		missing := slices.Clone(shared)
		for _, m := range migrations {
			found, tables, err := checkSchema(ctx, c, shared, m)
			if err != nil {
				return fmt.Errorf("schema %s: %w", m.Schema, err)
			}
			problems = append(problems, found...)
			missing = slices.DeleteFunc(missing, func(name string) bool {
				schema, _, _ := strings.Cut(name, ".")
				return slices.Contains(tables, name) || !slices.ContainsFunc(migrations, func(m pg.Migrations) bool { return m.Schema == schema })
			})
		}
		for _, name := range missing {
			problems = append(problems, fmt.Sprintf("table %s is on the list of shared tables and does not exist", name))
		}
		return nil
	})
	slices.Sort(problems)
	return problems, err
}

// relation describes a table or view.
type relation struct {
	Name            string
	Kind            string // pg_class.relkind
	Owner           string
	Tenant          bool // has a column workspace_id
	Enabled, Forced bool // row-level security
	Policies        int
	Open            int  // policies that are true for all rows
	Invoker         bool // a view with security_invoker
	Truncate        bool // the role may truncate it
}

func checkSchema(ctx context.Context, db *pgx.Conn, shared []string, m pg.Migrations) (problems, tables []string, err error) {
	report := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	var super, bypass bool
	err = db.QueryRow(ctx, `SELECT rolsuper, rolbypassrls FROM pg_roles WHERE rolname = $1`, m.Role).Scan(&super, &bypass)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		report("role %s does not exist", m.Role)
		return problems, nil, nil
	case err != nil:
		return nil, nil, err
	}
	if super {
		report("role %s is a superuser: no policy applies to it", m.Role)
	}
	if bypass {
		report("role %s has BYPASSRLS: no policy applies to it", m.Role)
	}
	relations, err := relationsOf(ctx, db, m)
	if err != nil {
		return nil, nil, err
	}
	for _, r := range relations {
		name := m.Schema + "." + r.Name
		tables = append(tables, name)
		if r.Owner == m.Role {
			report("%s is owned by role %s, which can switch its policies off", name, m.Role)
		}
		for _, p := range r.problems(slices.Contains(shared, name)) {
			report("%s %s", name, p)
		}
	}
	definers, err := definersOf(ctx, db, m)
	for _, f := range definers {
		report("function %s.%s is SECURITY DEFINER: it reads with its owner's rights", m.Schema, f)
	}
	return problems, tables, err
}

func (r relation) problems(shared bool) []string {
	var out []string
	switch r.Kind {
	case "v":
		if !r.Invoker {
			out = append(out, "is a view without security_invoker: it reads with its owner's rights")
		}
		return out
	case "m", "f":
		return []string{"is a materialized view or foreign table, to which policies do not apply"}
	}
	if r.Truncate {
		out = append(out, "may be truncated by the role: TRUNCATE ignores policies")
	}
	if !r.Tenant {
		if !shared {
			out = append(out, "has no workspace_id and is not on the list of shared tables")
		}
		return out
	}
	if shared {
		out = append(out, "has a workspace_id and is on the list of shared tables")
	}
	if !r.Enabled {
		out = append(out, "does not have row-level security enabled")
	}
	if !r.Forced {
		out = append(out, "does not have row-level security forced")
	}
	if r.Policies == 0 {
		out = append(out, "has no policy")
	}
	if r.Open > 0 {
		out = append(out, "has a permissive policy that is true for all rows")
	}
	return out
}

func relationsOf(ctx context.Context, db *pgx.Conn, m pg.Migrations) ([]relation, error) {
	rows, err := db.Query(ctx, `
		SELECT c.relname AS name, c.relkind::text AS kind, pg_get_userbyid(c.relowner) AS owner,
			EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'workspace_id' AND NOT a.attisdropped) AS tenant,
			c.relrowsecurity AS enabled, c.relforcerowsecurity AS forced,
			(SELECT count(*) FROM pg_policy p WHERE p.polrelid = c.oid) AS policies,
			(SELECT count(*) FROM pg_policy p WHERE p.polrelid = c.oid AND p.polpermissive
				AND 'true' IN (pg_get_expr(p.polqual, c.oid), pg_get_expr(p.polwithcheck, c.oid))) AS open,
			coalesce(c.reloptions && ARRAY['security_invoker=true', 'security_invoker=on', 'security_invoker=1'], false) AS invoker,
			has_table_privilege(@role, c.oid, 'truncate') AS truncate
		FROM pg_class c
		WHERE c.relnamespace = to_regnamespace(@schema) AND c.relkind IN ('r', 'p', 'v', 'm', 'f') AND c.relname <> @goose
		ORDER BY c.relname`,
		pgx.NamedArgs{"schema": m.Schema, "role": m.Role, "goose": "goose_db_version"})
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByName[relation])
}

func definersOf(ctx context.Context, db *pgx.Conn, m pg.Migrations) ([]string, error) {
	rows, err := db.Query(ctx, `
		SELECT proname::text FROM pg_proc
		WHERE pronamespace = to_regnamespace(@schema) AND prosecdef AND has_function_privilege(@role, oid, 'execute')
		ORDER BY proname`,
		pgx.NamedArgs{"schema": m.Schema, "role": m.Role})
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}
