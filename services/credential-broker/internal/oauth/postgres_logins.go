package oauth

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/pg"
	"signalbox.dev/services/credential-broker/internal/vault"
)

// begin stores a login.
func (t postgres) begin(ctx context.Context, who Who, row loginRow, stateHash []byte, sealed vault.Sealed, life time.Duration) error {
	return t.in(ctx, who.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		var pending int
		if err := tx.QueryRow(ctx, `SELECT count(*) FROM logins WHERE workspace_id = $1 AND expires_at > now()`, who.Workspace).Scan(&pending); err != nil {
			return fmt.Errorf("count logins: %w", err)
		}
		if pending >= maxPending {
			return tooMany(pending)
		}
		_, err := tx.Exec(ctx, `
			INSERT INTO logins (workspace_id, id, member_id, provider, kind, account_id, again, label, redirect, state_hash, sealed, key_version,
				poll_interval, poll_at, expires_at)
			VALUES (@workspace, @id, @member, @provider, @kind, @account, @again, @label, @redirect, @state, @sealed, @key_version,
				@interval::integer, now() + @interval::integer * interval '1 second', now() + @life::interval)`, pg.Args{
			"workspace": who.Workspace, "id": row.ID, "member": who.Member, "provider": row.Provider, "kind": string(row.Kind),
			"account": row.Account, "again": row.Again, "label": row.Label, "redirect": row.Redirect, "state": stateHash,
			"sealed": sealed.Bytes, "key_version": sealed.KeyVersion, "interval": row.IntervalS, "life": life,
		})
		if err != nil {
			return fmt.Errorf("store a login: %w", err)
		}
		return nil
	})
}

const loginColumns = `id, provider, kind, account_id AS account, again, label, redirect, sealed, key_version, poll_interval AS interval_s`

// take removes the login that an answer belongs to and returns it. It is gone then,
// whatever follows: a state is good once.
func (t postgres) take(ctx context.Context, who Who, a Answer) (row loginRow, err error) {
	err = t.in(ctx, who.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			DELETE FROM logins
			WHERE workspace_id = @workspace AND member_id = @member AND kind <> 'device' AND expires_at > now()
				AND (NOT @by_state OR state_hash = @state) AND (NOT @by_id OR id = @id)
			RETURNING `+loginColumns, pg.Args{
			"workspace": who.Workspace, "member": who.Member,
			"by_state": a.State != "", "state": hash(a.State), "by_id": a.Login != uuid.Nil, "id": a.Login,
		})
		if err != nil {
			return err
		}
		row, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[loginRow])
		if pg.NoRows(err) {
			return errStrange
		}
		return err
	})
	if err != nil {
		return row, fmt.Errorf("look for the login: %w", err)
	}
	return row, nil
}

// turn returns the login if it is time to ask, else for how long to wait. Nobody else
// has a turn while this one asks.
func (t postgres) turn(ctx context.Context, who Who, login uuid.UUID) (row loginRow, wait time.Duration, err error) {
	err = t.in(ctx, who.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		var left float64
		err := tx.QueryRow(ctx, `
			SELECT extract(epoch FROM poll_at - clock_timestamp())::float8 FROM logins
			WHERE workspace_id = $1 AND member_id = $2 AND id = $3 AND kind = 'device' AND expires_at > now() FOR UPDATE`,
			who.Workspace, who.Member, login).Scan(&left)
		if pg.NoRows(err) {
			return errStrange
		}
		if wait = duration(left); err != nil || wait > 0 {
			return err
		}
		rows, err := tx.Query(ctx, `
			UPDATE logins SET poll_at = clock_timestamp() + $3::interval WHERE workspace_id = $1 AND id = $2
			RETURNING `+loginColumns, who.Workspace, login, t.cfg.PostTimeout)
		if err != nil {
			return err
		}
		row, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[loginRow])
		return err
	})
	if err != nil {
		return row, 0, fmt.Errorf("look for the login: %w", err)
	}
	return row, wait, nil
}

// postpone sets when a device may be asked about again.
func (t postgres) postpone(ctx context.Context, who Who, login uuid.UUID, interval int, wait time.Duration) error {
	err := t.in(ctx, who.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			UPDATE logins SET poll_interval = $3, poll_at = clock_timestamp() + $4::interval WHERE workspace_id = $1 AND id = $2`,
			who.Workspace, login, interval, wait)
		return err
	})
	if err != nil {
		return fmt.Errorf("write when to poll again: %w", err)
	}
	return nil
}

func (t postgres) drop(ctx context.Context, who Who, login uuid.UUID) error {
	err := t.in(ctx, who.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `DELETE FROM logins WHERE workspace_id = $1 AND id = $2`, who.Workspace, login)
		return err
	})
	if err != nil {
		return fmt.Errorf("remove a login: %w", err)
	}
	return nil
}

// sweep removes logins that nobody completed, and attempts of long ago. It looks at
// all workspaces, which is why it needs the system's claim.
func (t postgres) sweep(ctx context.Context) error {
	return t.cfg.DB.AsSystem(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `DELETE FROM logins WHERE expires_at < now()`); err != nil {
			return fmt.Errorf("remove logins: %w", err)
		}
		if _, err := tx.Exec(ctx, `DELETE FROM grant_attempts WHERE started_at < now() - $1::interval`, keepHistory); err != nil {
			return fmt.Errorf("remove attempts: %w", err)
		}
		return nil
	})
}
