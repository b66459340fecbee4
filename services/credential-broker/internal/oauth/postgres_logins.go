package oauth

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/services/credential-broker/internal/store"
	"signalbox.dev/services/credential-broker/internal/vault"
)

const loginColumns = `id, provider, kind, purpose, account_id AS account, again, label, redirect, state_hash, sealed, coalesce(key_version, 0) AS key_version,
	poll_interval AS interval_s, ended_at IS NOT NULL AS ended, code, reason,
	extract(epoch FROM expires_at - clock_timestamp())::float8 AS left_s, extract(epoch FROM poll_at - clock_timestamp())::float8 AS wait_s`

// selectLogin returns the login for which a condition holds, nil where there is none.
func selectLogin(ctx context.Context, tx pgx.Tx, where string, args pg.Args) (*loginRow, error) {
	rows, err := tx.Query(ctx, `SELECT `+loginColumns+` FROM logins WHERE workspace_id = @workspace AND `+where, args)
	if err != nil {
		return nil, err
	}
	row, err := pgx.CollectExactlyOneRow(rows, pgx.RowToAddrOfStructByName[loginRow])
	if pg.NoRows(err) {
		return nil, nil
	}
	return row, err
}

// begin stores a login, of one member one after the other, so that nobody has more than
// they may.
func (t postgres) begin(ctx context.Context, who Who, row loginRow, sealed vault.Sealed) (there *loginRow, err error) {
	args := pg.Args{
		"workspace": who.Workspace, "id": row.ID, "member": who.Member, "provider": row.Provider, "kind": string(row.Kind), "purpose": string(row.Purpose),
		"account": row.Account, "again": row.Again, "label": row.Label, "redirect": row.Redirect, "state": row.StateHash,
		"sealed": sealed.Bytes, "key_version": sealed.KeyVersion, "interval": row.IntervalS, "life": duration(row.LeftS), "keep": keepLogins, "ended": maxEnded,
	}
	err = t.in(ctx, who.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended($1, 0))`, fmt.Sprintf("logins of %s %s", who.Workspace, who.Member)); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `
			DELETE FROM logins WHERE workspace_id = @workspace
				AND (expires_at < now() - @keep::interval OR id = @id AND member_id = @member AND ended_at IS NULL AND expires_at <= now()
					OR id IN (SELECT l.id FROM logins AS l WHERE l.workspace_id = @workspace AND l.member_id = @member AND l.ended_at IS NOT NULL
						ORDER BY l.ended_at DESC OFFSET @ended::integer))`, args)
		if err != nil {
			return err
		}
		if there, err = selectLogin(ctx, tx, `id = @id AND member_id = @member`, args); err != nil {
			return err
		}
		if there != nil && there.Kind == Device && !there.Ended && there.same(&row) {
			_, err = tx.Exec(ctx, `DELETE FROM logins WHERE workspace_id = @workspace AND id = @id AND member_id = @member`, args)
			there = nil
		}
		if err != nil || there != nil {
			return err
		}
		if err := t.mayBegin(ctx, tx, who, args); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `
			INSERT INTO logins (workspace_id, id, member_id, provider, kind, purpose, account_id, again, label, redirect, state_hash, sealed, key_version,
				poll_interval, poll_at, expires_at)
			VALUES (@workspace, @id, @member, @provider, @kind, @purpose, @account, @again, @label, @redirect, @state, @sealed, @key_version,
				@interval::integer, now() + @interval::integer * interval '1 second', now() + @life::interval)
			ON CONFLICT (workspace_id, id) DO NOTHING`, args)
		if err == nil && tag.RowsAffected() == 0 {
			err = errReused
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("store a login: %w", err)
	}
	return there, nil
}

// mayBegin refuses whoever has begun too many logins.
func (t postgres) mayBegin(ctx context.Context, tx pgx.Tx, who Who, args pg.Args) error {
	var pending int
	var left float64
	err := tx.QueryRow(ctx, `
		SELECT count(*), coalesce(extract(epoch FROM min(expires_at) - now())::float8, 0) FROM logins
		WHERE workspace_id = @workspace AND member_id = @member AND ended_at IS NULL AND expires_at > now()`, args).Scan(&pending, &left)
	if err == nil && pending >= who.pending() {
		return tooMany(pending, duration(left))
	}
	return err
}

// fitting is true of the login that is wanted, while it can be asked about.
const fitting = `member_id = @member AND (kind = 'device') = @device AND (NOT @by_state OR state_hash = @state) AND (NOT @by_id OR id = @id)
	AND (@provider = '' OR provider = @provider) AND purpose IN ('', @purpose) AND (ended_at IS NOT NULL OR expires_at > now())
	FOR UPDATE`

// gone reports of a login that is for an account, or has made one, that the account is not
// there any more. It asks by itself: a statement that has waited for the login's lock does
// not see what else was committed meanwhile.
func (t postgres) gone(ctx context.Context, tx pgx.Tx, l *loginRow, args pg.Args) (gone bool, err error) {
	if l.Reason != "" || !l.Again && !l.Ended {
		return false, nil
	}
	args["account"] = l.Account
	err = tx.QueryRow(ctx, `SELECT NOT EXISTS (SELECT FROM grants WHERE workspace_id = @workspace AND account_id = @account)`, args).Scan(&gone)
	return gone, err
}

func (t postgres) turn(ctx context.Context, who Who, w wanted) (row loginRow, wait time.Duration, err error) {
	args := pg.Args{
		"workspace": who.Workspace, "member": who.Member, "device": w.device, "by_state": w.state != "", "state": hash(w.state),
		"by_id": w.login != uuid.Nil, "id": w.login, "provider": w.provider, "purpose": string(w.purpose), "lease": t.cfg.turn(),
	}
	err = t.in(ctx, who.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		found, err := selectLogin(ctx, tx, fitting, args)
		switch {
		case err != nil:
			return err
		case found == nil:
			return errStrange
		}
		row = *found
		if gone, err := t.gone(ctx, tx, &row, args); err != nil || gone {
			return cmp.Or(err, error(errStrange))
		}
		if row.Ended {
			return nil
		}
		if wait = duration(row.WaitS); wait > 0 {
			return nil
		}
		args["id"] = row.ID
		_, err = tx.Exec(ctx, `UPDATE logins SET poll_at = clock_timestamp() + @lease::interval WHERE workspace_id = @workspace AND id = @id`, args)
		return err
	})
	if err != nil {
		return row, 0, fmt.Errorf("look for the login: %w", err)
	}
	return row, max(wait, 0), nil
}

func (t postgres) postpone(ctx context.Context, who Who, l *loginRow, interval int, wait time.Duration) error {
	err := t.in(ctx, who.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			UPDATE logins SET poll_interval = $4, poll_at = clock_timestamp() + $5::interval WHERE workspace_id = $1 AND id = $2 AND state_hash = $3`,
			who.Workspace, l.ID, l.StateHash, interval, wait)
		return err
	})
	if err != nil {
		return fmt.Errorf("write when to ask again: %w", err)
	}
	return nil
}

func (t postgres) end(ctx context.Context, who Who, l *loginRow, f *fault.Error) error {
	err := t.in(ctx, who.Workspace, func(ctx context.Context, tx pgx.Tx) error {
		_, err := endLogin(ctx, tx, who.Workspace, l, f)
		return err
	})
	if err != nil {
		return fmt.Errorf("end a login: %w", err)
	}
	return nil
}

// endLogin writes what became of a login, and forgets its secret. It reports false of one
// that has ended, is not there, or was begun anew since.
func endLogin(ctx context.Context, tx pgx.Tx, ws id.Workspace, l *loginRow, f *fault.Error) (bool, error) {
	tag, err := tx.Exec(ctx, `
		UPDATE logins SET ended_at = clock_timestamp(), sealed = NULL, key_version = NULL, code = @code, reason = @reason
		WHERE workspace_id = @workspace AND id = @id AND state_hash = @state AND ended_at IS NULL`,
		pg.Args{"workspace": ws, "id": l.ID, "state": l.StateHash, "code": f.Code, "reason": f.Message})
	return tag.RowsAffected() == 1, err
}

// finish ends a login that brought tokens, and with it what others have begun for the
// account, or have completed: they were asked, or answered, before this one was there.
func (t postgres) finish(ctx context.Context, tx pgx.Tx, who Who, p *Provider, l *loginRow) error {
	ours, err := endLogin(ctx, tx, who.Workspace, l, &fault.Error{})
	if err != nil {
		return fmt.Errorf("end login %s: %w", l.ID, err)
	}
	if !ours {
		return errStrange
	}
	if _, err := tx.Exec(ctx, `DELETE FROM logins WHERE workspace_id = $1 AND account_id = $2 AND id <> $3`, who.Workspace, l.Account, l.ID); err != nil {
		return fmt.Errorf("remove the logins of account %s: %w", l.Account, err)
	}
	if l.Purpose != ForConnection {
		return store.Unconnect(ctx, tx, who.Workspace, l.Account) // whoever connected it is not who has signed in now
	}
	by, err := store.Connect(ctx, tx, who.Workspace, store.Connection{Provider: p.Name, Account: l.Account, Member: who.Member})
	if errors.Is(err, store.ErrConnected) { // the grant of who is late stays at the provider: see bring
		return Meanwhile(p, by == who.Member)
	}
	return err
}

// sweep removes logins of a while ago, and attempts of long ago. It looks at all
// workspaces, which is why it needs the system's claim.
func (t postgres) sweep(ctx context.Context) error {
	return t.cfg.DB.AsSystem(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `DELETE FROM logins WHERE expires_at < now() - $1::interval`, keepLogins); err != nil {
			return fmt.Errorf("remove logins: %w", err)
		}
		if _, err := tx.Exec(ctx, `DELETE FROM grant_attempts WHERE started_at < now() - $1::interval`, keepHistory); err != nil {
			return fmt.Errorf("remove attempts: %w", err)
		}
		return nil
	})
}
