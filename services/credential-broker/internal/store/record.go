package store

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
)

// Record writes an event to the audit of a workspace in the transaction of what it is
// about, for packages that have tables of their own.
func Record(ctx context.Context, tx pgx.Tx, ws id.Workspace, ev Event) error {
	return record(ctx, tx, ws, ev)
}

func record(ctx context.Context, tx pgx.Tx, ws id.Workspace, ev Event) error {
	eventID, err := uuid.NewV7()
	if err != nil {
		return fmt.Errorf("name an audit row: %w", err)
	}
	_, err = tx.Exec(ctx, `
		INSERT INTO audit (workspace_id, id, action, account_id, provider, origin, member_id, service, address, session_id)
		VALUES (@workspace, @id, @action, @account, @provider, @origin, @member, @service, @address, @session)
		ON CONFLICT (workspace_id, account_id, session_id) WHERE action = 'used' DO NOTHING`, pg.Args{
		"workspace": ws, "id": eventID, "action": ev.Action, "account": ev.Account, "provider": ev.Provider, "origin": ev.Origin,
		"member": orNull(ev.Member), "service": ev.Service, "address": ev.Address, "session": ev.Session,
	})
	if err != nil {
		return fmt.Errorf("write the audit: %w", err)
	}
	return nil
}
