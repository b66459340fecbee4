package store

import (
	"context"
	"fmt"

	"github.com/google/uuid"

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

const selectAudit = `SELECT workspace_id AS workspace, sequence, id, at, action, account_id AS account, provider, origin, member_id AS member,
		service, address, session_id AS session, detail, prev, hash FROM audit WHERE `

func (s postgres) Audit(ctx context.Context, ws id.Workspace, q audit.Query) ([]audit.Row, error) {
	args := pg.Args{"workspace": ws, "sequence": q.Before, "limit": q.Limit}
	return s.auditRows(ctx, ws, `workspace_id = @workspace AND (@sequence = 0 OR sequence < @sequence)
		AND `+q.Search.Where(args, "action, provider, account_id, service, address, session_id, detail")+` ORDER BY sequence DESC LIMIT @limit`, args)
}

func (s postgres) auditRows(ctx context.Context, ws id.Workspace, where string, args pg.Args) ([]audit.Row, error) {
	return query[audit.Row](ctx, s, ws, "the audit", selectAudit+where, args)
}

func (s postgres) AuditOf(ctx context.Context, account id.Account, limit int) ([]audit.Row, error) {
	return s.auditRows(ctx, id.Workspace{}, `account_id = @account ORDER BY at DESC, workspace_id, sequence DESC LIMIT @limit`,
		pg.Args{"account": account, "limit": limit})
}
