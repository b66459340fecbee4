package store

import (
	"context"
	"fmt"
	"math"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/services/credential-broker/internal/audit"
)

// Record writes an event to the audit of a workspace in the transaction of what it is
// about, for packages that have tables of their own. From then on the transaction
// holds the end of the workspace's chain: it commits soon, and takes no lock any more
// that somebody can hold who waits for this one.
func Record(ctx context.Context, tx pgx.Tx, ws id.Workspace, ev Event) error {
	return record(ctx, tx, ws, ev)
}

// Record writes an event to the operator's audit that is about more than one account.
func (s *Store) Record(ctx context.Context, ev Event) error {
	return s.in(ctx, id.Workspace{}, func(ctx context.Context, tx pgx.Tx) error {
		return record(ctx, tx, id.Workspace{}, ev)
	})
}

// record adds a row. Its number and hash are the database's (migration 00004).
func record(ctx context.Context, tx pgx.Tx, ws id.Workspace, ev Event) error {
	args, err := auditArgs(ws, ev)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, insertAudit, args); err != nil {
		return fmt.Errorf("write the audit: %w", err)
	}
	return nil
}

const insertAudit = `
	INSERT INTO audit (workspace_id, id, action, account_id, provider, origin, member_id, service, address, session_id, detail)
	VALUES (@workspace, @id, @action, @account, @provider, @origin, @member, @service, @address, @session, @detail)
	ON CONFLICT (workspace_id, account_id, session_id) WHERE action = 'used' DO NOTHING`

func auditArgs(ws id.Workspace, ev Event) (pg.Args, error) {
	eventID, err := uuid.NewV7()
	if err != nil {
		return nil, fmt.Errorf("name an audit row: %w", err)
	}
	return pg.Args{
		"workspace": ws, "id": eventID, "action": ev.Action, "account": ev.Account, "provider": ev.Provider, "origin": ev.Origin,
		"member": orNull(ev.Member), "service": ev.Service, "address": ev.Address, "session": ev.Session, "detail": ev.detail(),
	}, nil
}

const auditColumns = `workspace_id AS workspace, sequence, id, at, action, account_id AS account, provider, origin, member_id AS member,
	service, address, session_id AS session, detail, prev, hash`

// Audit returns a workspace's rows before a number, 0 for the end, newest first, limit
// at most; with the zero workspace the operator's.
func (s *Store) Audit(ctx context.Context, ws id.Workspace, before int64, limit int) ([]audit.Row, error) {
	return s.auditRows(ctx, ws, `
		SELECT `+auditColumns+` FROM audit WHERE workspace_id = @workspace AND (@sequence = 0 OR sequence < @sequence)
		ORDER BY sequence DESC LIMIT @limit`, pg.Args{"workspace": ws, "sequence": before, "limit": limit})
}

func (s *Store) auditRows(ctx context.Context, ws id.Workspace, sql string, args pg.Args) ([]audit.Row, error) {
	var all []audit.Row
	err := s.in(ctx, ws, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, sql, args)
		if err != nil {
			return err
		}
		all, err = pgx.CollectRows(rows, pgx.RowToStructByName[audit.Row])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the audit: %w", err)
	}
	return all, nil
}

const auditPage = 1000 // rows that are read at a time

// VerifyAudit gives a workspace's rows to a chain, and returns what is wrong and where
// the chain ends, nil where there is no end. What is written meanwhile is not looked at.
func (s *Store) VerifyAudit(ctx context.Context, ws id.Workspace, c *audit.Chain) ([]audit.Problem, *audit.Head, error) {
	head, err := s.head(ctx, ws)
	if err != nil {
		return nil, nil, err
	}
	until := int64(math.MaxInt64)
	if head != nil {
		until = head.Sequence
	}
	for after := int64(math.MinInt64); ; {
		// A number may be there twice, if somebody has taken the constraint away: a page
		// ends between numbers.
		page, err := s.auditRows(ctx, ws, `
			SELECT `+auditColumns+` FROM audit WHERE workspace_id = @workspace AND sequence > @sequence AND sequence <= @until
			ORDER BY sequence FETCH FIRST @limit ROWS WITH TIES`, pg.Args{"workspace": ws, "sequence": after, "until": until, "limit": auditPage})
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
		// Beyond the end as it is now: what was committed meanwhile is not.
		strange, err := s.auditRows(ctx, ws, `
			SELECT `+auditColumns+` FROM audit WHERE workspace_id = @workspace
				AND sequence > (SELECT h.sequence FROM audit_heads h WHERE h.workspace_id = @workspace)
			ORDER BY sequence LIMIT @limit`, pg.Args{"workspace": ws, "limit": auditPage})
		if err != nil {
			return nil, nil, err
		}
		for _, r := range strange {
			c.Beyond(r)
		}
	}
	return c.End(head), head, nil
}

// AuditChains returns the workspaces that have rows, or a head, the operator's first. It
// is for the operator's command line, which is why it needs the system's claim.
func (s *Store) AuditChains(ctx context.Context) ([]id.Workspace, error) {
	var all []id.Workspace
	err := s.db.AsSystem(ctx, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT workspace_id FROM audit_heads UNION SELECT DISTINCT workspace_id FROM audit ORDER BY workspace_id`)
		if err != nil {
			return err
		}
		all, err = pgx.CollectRows(rows, pgx.RowTo[id.Workspace])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look for the audit's chains: %w", err)
	}
	return all, nil
}

// head returns where a workspace's chain ends, nil where there is no end.
func (s *Store) head(ctx context.Context, ws id.Workspace) (*audit.Head, error) {
	h := audit.Head{Workspace: ws}
	err := s.in(ctx, ws, func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, `SELECT sequence, hash FROM audit_heads WHERE workspace_id = $1`, ws).Scan(&h.Sequence, &h.Hash)
	})
	if pg.NoRows(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the end of the audit's chain: %w", err)
	}
	return &h, nil
}
