package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/id"
	"signalbox.dev/services/credential-broker/internal/audit"
)

// AuditOf returns an account's rows in all chains, newest first, limit at most: the use of
// a shared account stands in the chains of the workspaces that used it. The account may
// have been removed.
func (s *Store) AuditOf(ctx context.Context, account id.Account, limit int) ([]audit.Row, error) {
	var all []audit.Row
	err := s.db.AsSystem(ctx, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			SELECT `+auditColumns+` FROM audit WHERE account_id = $1 ORDER BY at DESC, workspace_id, sequence DESC LIMIT $2`, account, limit)
		if err != nil {
			return err
		}
		all, err = pgx.CollectRows(rows, pgx.RowToStructByName[audit.Row])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the audit of an account: %w", err)
	}
	return all, nil
}

// AuditOf is Store.AuditOf.
func (s *File) AuditOf(ctx context.Context, account id.Account, limit int) ([]audit.Row, error) {
	return s.lastRows(ctx, limit, func(r *audit.Row) bool { return r.Account == account })
}
