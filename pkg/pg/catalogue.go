package pg

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// CheckCatalogue reads the database's catalogue and returns what would let a
// service see rows that are not its own, a sentence each, sorted; none when all
// is well. shared lists the tables ("schema.table") that are allowed to have no
// workspace_id; a table on it that has one, or is not there, is reported too, so
// that the list stays true.
func CheckCatalogue(ctx context.Context, adminURL string, shared []string, all ...Migrations) ([]string, error) {
	cfg, err := parseAdmin(adminURL)
	if err != nil {
		return nil, fmt.Errorf("check the catalogue: %w", err)
	}
	db, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("check the catalogue: %w", err)
	}
	defer func() { _ = db.Close(context.WithoutCancel(ctx)) }()
	var problems []string
	missing := slices.Clone(shared)
	for _, m := range all {
		found, tables, err := checkSchema(ctx, db, shared, m)
		if err != nil {
			return nil, fmt.Errorf("check the catalogue of schema %s: %w", m.Schema, err)
		}
		problems = append(problems, found...)
		missing = slices.DeleteFunc(missing, func(name string) bool {
			schema, _, _ := strings.Cut(name, ".")
			return slices.Contains(tables, name) || !slices.ContainsFunc(all, func(m Migrations) bool { return m.Schema == schema })
		})
	}
	for _, name := range missing {
		problems = append(problems, fmt.Sprintf("table %s is on the list of shared tables and does not exist", name))
	}
	slices.Sort(problems)
	return problems, nil
}

// relation is what the catalogue says about one table, view or the like.
type relation struct {
	Name            string
	Kind            string // pg_class.relkind
	Owner           string
	Tenant          bool // has a column workspace_id
	Enabled, Forced bool // row-level security
	Policies        int
	Open            int  // policies that let everything through
	Invoker         bool // a view that reads with its caller's rights
	Truncate        bool // the role may
}

func checkSchema(ctx context.Context, db *pgx.Conn, shared []string, m Migrations) (problems, tables []string, err error) {
	report := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	var super, bypass bool
	err = db.QueryRow(ctx, `select rolsuper, rolbypassrls from pg_roles where rolname = $1`, m.Role).Scan(&super, &bypass)
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

func relationsOf(ctx context.Context, db *pgx.Conn, m Migrations) ([]relation, error) {
	rows, err := db.Query(ctx, `
		select c.relname as name, c.relkind::text as kind, pg_get_userbyid(c.relowner) as owner,
			exists (select from pg_attribute a where a.attrelid = c.oid and a.attname = 'workspace_id' and not a.attisdropped) as tenant,
			c.relrowsecurity as enabled, c.relforcerowsecurity as forced,
			(select count(*) from pg_policy p where p.polrelid = c.oid) as policies,
			(select count(*) from pg_policy p where p.polrelid = c.oid and p.polpermissive
				and 'true' in (pg_get_expr(p.polqual, c.oid), pg_get_expr(p.polwithcheck, c.oid))) as open,
			coalesce(c.reloptions && array['security_invoker=true', 'security_invoker=on', 'security_invoker=1'], false) as invoker,
			has_table_privilege(@role, c.oid, 'truncate') as truncate
		from pg_class c
		where c.relnamespace = to_regnamespace(@schema) and c.relkind in ('r', 'p', 'v', 'm', 'f') and c.relname <> @goose
		order by c.relname`,
		Args{"schema": m.Schema, "role": m.Role, "goose": versionTable})
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByName[relation])
}

func definersOf(ctx context.Context, db *pgx.Conn, m Migrations) ([]string, error) {
	rows, err := db.Query(ctx, `
		select proname::text from pg_proc
		where pronamespace = to_regnamespace(@schema) and prosecdef and has_function_privilege(@role, oid, 'execute')
		order by proname`,
		Args{"schema": m.Schema, "role": m.Role})
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}
