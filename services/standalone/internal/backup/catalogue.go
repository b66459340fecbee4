package backup

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/pg"
)

// table is a table of the database.
type table struct {
	Schema  string
	Name    string
	Columns []string
	// References are the other tables of the schema that its foreign keys refer to.
	References []string
	Forced     bool // row-level security, for its owner too
	Hidden     bool // it hides rows from the session
	derivedBy  string
}

func (t *table) qualified() string { return pgx.Identifier{t.Schema, t.Name}.Sanitize() }

func (t *table) columns() string {
	quoted := make([]string, len(t.Columns))
	for i, c := range t.Columns {
		quoted[i] = pgx.Identifier{c}.Sanitize()
	}
	return strings.Join(quoted, ", ")
}

// version returns the number of a schema's last migration.
func version(ctx context.Context, tx pgx.Tx, schema string) (n int64, err error) {
	err = tx.QueryRow(ctx, "SELECT coalesce(max(version_id), 0) FROM "+pgx.Identifier{schema, pg.VersionTable}.Sanitize()).Scan(&n)
	if pg.HasCode(err, "42P01") || pg.HasCode(err, "3F000") {
		return 0, errors.New("the database does not have it: run signalbox migrate")
	}
	if err != nil {
		return 0, fmt.Errorf("read its version: %w", err)
	}
	return n, nil
}

// tablesOf returns a service's tables, each one after those that it refers to.
func tablesOf(ctx context.Context, tx pgx.Tx, service pg.Migrations) ([]table, error) {
	rows, err := tx.Query(ctx, `
		SELECT @schema AS schema, c.relname AS name, c.relforcerowsecurity AS forced,
			ARRAY(SELECT attname::text FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped AND attgenerated = '' ORDER BY attname) AS columns,
			ARRAY(SELECT DISTINCT r.relname::text FROM pg_constraint k JOIN pg_class r ON r.oid = k.confrelid
				WHERE k.conrelid = c.oid AND k.contype = 'f' AND k.confrelid <> c.oid) AS "references",
			row_security_active(c.oid) AND NOT EXISTS (SELECT FROM pg_policy WHERE polrelid = c.oid AND polpermissive AND polcmd IN ('r', '*')
				AND pg_get_expr(polqual, polrelid) LIKE '%claim_system()%') AS hidden
		FROM pg_class c WHERE c.relnamespace = to_regnamespace(@schema) AND c.relkind = 'r' AND c.relname <> @version
		ORDER BY c.relname`, pg.Args{"schema": service.Schema, "version": pg.VersionTable})
	if err != nil {
		return nil, fmt.Errorf("list the tables: %w", err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByNameLax[table])
	if err != nil {
		return nil, fmt.Errorf("list the tables: %w", err)
	}
	return inOrder(all, service.Derived)
}

// inOrder sorts tables so that each one comes after those that it refers to.
func inOrder(all []table, derived map[string]string) (sorted []table, err error) {
	placed := map[string]bool{}
	for len(sorted) < len(all) {
		before := len(sorted)
	next:
		for _, t := range all {
			for _, r := range append(t.References, t.Name) {
				if placed[r] == (r == t.Name) { // not yet there, or it is itself there already
					continue next
				}
			}
			t.derivedBy = derived[t.Name]
			sorted, placed[t.Name] = append(sorted, t), true
		}
		if len(sorted) == before {
			return nil, errors.New("the foreign keys of its tables form a circle")
		}
	}
	return sorted, nil
}

// sequencesOf returns the positions of a schema's sequences. They may be ahead of the snapshot,
// never behind.
func sequencesOf(ctx context.Context, tx pgx.Tx, schema string) ([]Sequence, error) {
	rows, err := tx.Query(ctx, `
		SELECT relname::text FROM pg_class WHERE relnamespace = to_regnamespace(@schema) AND relkind = 'S' AND relname NOT LIKE @version ORDER BY relname`,
		pg.Args{"schema": schema, "version": pg.VersionTable + "%"})
	if err != nil {
		return nil, fmt.Errorf("list the sequences: %w", err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("list the sequences: %w", err)
	}
	all := make([]Sequence, len(names))
	for i, name := range names {
		all[i].Name = name
		err := tx.QueryRow(ctx, "SELECT last_value, is_called FROM "+pgx.Identifier{schema, name}.Sanitize()).Scan(&all[i].Last, &all[i].Called)
		if err != nil {
			return nil, fmt.Errorf("read sequence %s: %w", name, err)
		}
	}
	return all, nil
}
