package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
)

// Connection says who connected an account for the tools of a workspace.
type Connection struct {
	Provider string // of the sign-in providers
	Account  id.Account
	Member   id.Member
	// Subject is whom the provider says that it belongs to; empty where it does not say.
	Subject     string
	ConnectedAt time.Time
}

const connectionColumns = `provider, account_id AS account, member_id AS member, subject, connected_at`

// Connections returns what the members of a workspace connected, by provider.
func (s *Store) Connections(ctx context.Context, ws id.Workspace) (map[string]Connection, error) {
	all := map[string]Connection{}
	err := s.in(ctx, ws, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT `+connectionColumns+` FROM connections WHERE workspace_id = $1`, ws)
		if err != nil {
			return err
		}
		found, err := pgx.CollectRows(rows, pgx.RowToStructByName[Connection])
		for _, c := range found {
			all[c.Provider] = c
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read connections: %w", err)
	}
	return all, nil
}

// Connect notes who connected an account. It reports false, and changes nothing, where
// another account is connected to the provider already.
func (s *Store) Connect(ctx context.Context, ws id.Workspace, c Connection) (bool, error) {
	var done bool
	err := s.in(ctx, ws, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `
			INSERT INTO connections (workspace_id, provider, account_id, member_id, subject)
			VALUES (@workspace, @provider, @account, @member, @subject)
			ON CONFLICT (workspace_id, provider) DO UPDATE SET
				member_id = EXCLUDED.member_id, subject = EXCLUDED.subject, connected_at = EXCLUDED.connected_at
			WHERE connections.account_id = EXCLUDED.account_id`, pg.Args{
			"workspace": ws, "provider": c.Provider, "account": c.Account, "member": c.Member, "subject": c.Subject,
		})
		done = tag.RowsAffected() == 1
		return err
	})
	if err != nil {
		return false, fmt.Errorf("note who connected account %s: %w", c.Account, err)
	}
	return done, nil
}
