package hashchain

import (
	"context"
	"fmt"
	"math"
	"strings"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
)

// Table is an audit in a database, which implements Audit. It has the columns workspace_id, id, at,
// sequence, prev and hash. The heads are in the table audit_heads beside it.
type Table struct {
	DB     *pg.DB
	Name   string
	Fields []string // the other columns in the order in which they are hashed; NULL counts as empty
}

const pageRows = 1000 // that are read at a time

// AuditChains implements Audit.
func (t Table) AuditChains(ctx context.Context) (all []id.Workspace, err error) {
	err = t.read(ctx, `SELECT workspace_id FROM audit_heads UNION SELECT DISTINCT workspace_id FROM `+t.Name+` ORDER BY workspace_id`, nil,
		func(rows pgx.Rows) error {
			all, err = pgx.CollectRows(rows, pgx.RowTo[id.Workspace])
			return err
		})
	return all, err
}

// VerifyAudit implements Audit.
func (t Table) VerifyAudit(ctx context.Context, ws id.Workspace, c *Chain) ([]Problem, *Head, error) {
	head, err := t.head(ctx, ws)
	if err != nil {
		return nil, nil, err
	}
	until := int64(math.MaxInt64)
	if head != nil {
		until = head.Sequence
	}
	for after := int64(math.MinInt64); ; {
		// A page ends between numbers: one may be there twice, if somebody has dropped the
		// constraint.
		page, err := t.rows(ctx, `workspace_id = @workspace AND sequence > @sequence AND sequence <= @until
			ORDER BY sequence FETCH FIRST @limit ROWS WITH TIES`, pg.Args{"workspace": ws, "sequence": after, "until": until, "limit": pageRows})
		if err != nil {
			return nil, nil, err
		}
		if len(page) == 0 {
			break
		}
		for _, r := range page {
			c.Add(r)
		}
		after = page[len(page)-1].Sequence
	}
	if head != nil {
		// Beyond the head as it is now: rows that were committed meanwhile are not.
		strange, err := t.rows(ctx, `workspace_id = @workspace
			AND sequence > (SELECT h.sequence FROM audit_heads h WHERE h.workspace_id = @workspace)
			ORDER BY sequence LIMIT @limit`, pg.Args{"workspace": ws, "limit": pageRows})
		if err != nil {
			return nil, nil, err
		}
		for _, r := range strange {
			c.Beyond(r)
		}
	}
	return c.End(head), head, nil
}

// rows returns the rows for which a condition holds.
func (t Table) rows(ctx context.Context, where string, args pg.Args) (page []Row, err error) {
	fields := make([]string, len(t.Fields))
	for i, f := range t.Fields {
		fields[i] = "coalesce(" + f + "::text, '')"
	}
	err = t.read(ctx, `
		SELECT workspace_id AS workspace, sequence, id, at, ARRAY[`+strings.Join(fields, ", ")+`] AS fields, prev, hash
		FROM `+t.Name+` WHERE `+where, args, pg.Collect(&page))
	return page, err
}

// head returns the head of a workspace's chain, nil if there is none.
func (t Table) head(ctx context.Context, ws id.Workspace) (*Head, error) {
	var all []Head
	err := t.read(ctx, `SELECT '' AS audit, workspace_id AS workspace, sequence, hash FROM audit_heads WHERE workspace_id = @workspace`,
		pg.Args{"workspace": ws}, pg.Collect(&all))
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return &all[0], nil
}

func (t Table) read(ctx context.Context, query string, args pg.Args, collect func(pgx.Rows) error) error {
	b := &pgx.Batch{}
	b.Queue(query, args).Query(collect)
	// AsSystem: the operator verifies the chains of all workspaces, and has one of their own.
	if err := t.DB.ReadAsSystem(ctx, b); err != nil {
		return fmt.Errorf("read the audit: %w", err)
	}
	return nil
}
