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

// A row's number and hash are the database's (migration 00004).
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
		"member": orNull(ev.Member, id.IsZero(ev.Member)), "service": ev.Service, "address": ev.Address, "session": ev.Session, "detail": ev.detail(),
	}, nil
}

func (t pgTx) Record(ctx context.Context, ev Event) error {
	args, err := auditArgs(t.ws, ev)
	if err != nil {
		return err
	}
	return t.exec(ctx, "write the audit", insertAudit, args)
}

const (
	selectAudit = `SELECT workspace_id AS workspace, sequence, id, at, action, account_id AS account, provider, origin, member_id AS member,
		service, address, session_id AS session, detail, prev, hash FROM audit WHERE `
	auditPage = 1000 // rows that are read at a time
)

func (s postgres) Audit(ctx context.Context, ws id.Workspace, before int64, limit int) ([]audit.Row, error) {
	return s.auditRows(ctx, ws, `workspace_id = @workspace AND (@sequence = 0 OR sequence < @sequence) ORDER BY sequence DESC LIMIT @limit`,
		pg.Args{"workspace": ws, "sequence": before, "limit": limit})
}

func (s postgres) auditRows(ctx context.Context, ws id.Workspace, where string, args pg.Args) ([]audit.Row, error) {
	return query[audit.Row](ctx, s, ws, "the audit", selectAudit+where, args)
}

func (s postgres) AuditOf(ctx context.Context, account id.Account, limit int) ([]audit.Row, error) {
	return s.auditRows(ctx, id.Workspace{}, `account_id = @account ORDER BY at DESC, workspace_id, sequence DESC LIMIT @limit`,
		pg.Args{"account": account, "limit": limit})
}

func (s postgres) VerifyAudit(ctx context.Context, ws id.Workspace, c *audit.Chain) ([]audit.Problem, *audit.Head, error) {
	head, err := s.head(ctx, ws)
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
		page, err := s.auditRows(ctx, ws, `workspace_id = @workspace AND sequence > @sequence AND sequence <= @until
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
		// Beyond the head as it is now: rows that were committed meanwhile are not.
		strange, err := s.auditRows(ctx, ws, `workspace_id = @workspace
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

func (s postgres) AuditChains(ctx context.Context) ([]id.Workspace, error) {
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
		return nil, fmt.Errorf("read the audit's chains: %w", err)
	}
	return all, nil
}

// head returns the head of a workspace's chain, nil if there is none.
func (s postgres) head(ctx context.Context, ws id.Workspace) (*audit.Head, error) {
	all, err := query[audit.Head](ctx, s, ws, "the head of the audit", `
		SELECT workspace_id AS workspace, sequence, hash FROM audit_heads WHERE workspace_id = @workspace`, pg.Args{"workspace": ws})
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return &all[0], nil
}
