package store

import (
	"context"
	"errors"
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

// NameConnection writes whom the provider says that a connection belongs to, if it is still
// of that account and that member.
func (s *Store) NameConnection(ctx context.Context, ws id.Workspace, c Connection) error {
	err := s.in(ctx, ws, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			UPDATE connections SET subject = @subject
			WHERE workspace_id = @workspace AND provider = @provider AND account_id = @account AND member_id = @member`, c.args(ws))
		return err
	})
	if err != nil {
		return fmt.Errorf("write whose the connection to %s is: %w", c.Provider, err)
	}
	return nil
}

func (c *Connection) args(ws id.Workspace) pg.Args {
	return pg.Args{"workspace": ws, "provider": c.Provider, "account": c.Account, "member": c.Member, "subject": c.Subject}
}

// ErrConnected says that another account is connected to the provider.
var ErrConnected = errors.New("another account is connected")

// Connect writes who connected an account, in the transaction in which they have signed in
// to it. Where another account is connected to the provider it changes nothing, and
// returns ErrConnected and who did that.
func Connect(ctx context.Context, tx pgx.Tx, ws id.Workspace, c Connection) (by id.Member, err error) {
	tag, err := tx.Exec(ctx, `
		INSERT INTO connections (workspace_id, provider, account_id, member_id, subject)
		VALUES (@workspace, @provider, @account, @member, @subject)
		ON CONFLICT (workspace_id, provider) DO UPDATE SET
			member_id = EXCLUDED.member_id, subject = EXCLUDED.subject, connected_at = EXCLUDED.connected_at
		WHERE connections.account_id = EXCLUDED.account_id`, c.args(ws))
	if err == nil && tag.RowsAffected() == 1 {
		return c.Member, nil
	}
	if err == nil {
		err = tx.QueryRow(ctx, `SELECT member_id FROM connections WHERE workspace_id = @workspace AND provider = @provider`, c.args(ws)).Scan(&by)
	}
	if err != nil {
		return by, fmt.Errorf("note who connected account %s: %w", c.Account, err)
	}
	return by, ErrConnected
}

// Unconnect forgets who connected an account, which is an account as others are then, in
// the transaction in which an owner has signed in to it.
func Unconnect(ctx context.Context, tx pgx.Tx, ws id.Workspace, account id.Account) error {
	if _, err := tx.Exec(ctx, `DELETE FROM connections WHERE workspace_id = $1 AND account_id = $2`, ws, account); err != nil {
		return fmt.Errorf("forget who connected account %s: %w", account, err)
	}
	return nil
}
