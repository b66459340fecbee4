package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/fault"
	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
)

// Get returns an account of a workspace. One that it does not have is a NotFound fault.
func (s *Store) Get(ctx context.Context, ws id.Workspace, account id.Account) (Account, error) {
	all, err := s.query(ctx, ws, `SELECT `+columns+` FROM accounts WHERE workspace_id = @workspace AND id = @id`, pg.Args{"workspace": ws, "id": account})
	if err == nil && len(all) == 0 {
		err = noAccount(account)
	}
	if err != nil {
		return Account{}, err
	}
	return all[0], nil
}

func noAccount(account id.Account) error {
	return fault.New(fault.NotFound, "there is no account %s", account)
}

// SetEnabled lets an account be chosen, or not. Nothing is recorded where it is so
// already. Of ev, Account, Provider and Detail are filled in.
func (s *Store) SetEnabled(ctx context.Context, ws id.Workspace, account id.Account, enabled bool, ev Event) error {
	return s.change(ctx, ws, account, ev, func(ctx context.Context, tx pgx.Tx, was Account) (string, error) {
		if was.Enabled == enabled {
			return "", nil
		}
		_, err := tx.Exec(ctx, `UPDATE accounts SET enabled = $3 WHERE workspace_id = $1 AND id = $2`, ws, account, enabled)
		if enabled {
			return "enabled", err
		}
		return "disabled", err
	})
}

// SetFlatRate says whether an account is paid by the month. Nothing is recorded where it
// is so already. Of ev, Account, Provider and Detail are filled in.
func (s *Store) SetFlatRate(ctx context.Context, ws id.Workspace, account id.Account, flat bool, ev Event) error {
	return s.change(ctx, ws, account, ev, func(ctx context.Context, tx pgx.Tx, was Account) (string, error) {
		if was.FlatRate == flat {
			return "", nil
		}
		_, err := tx.Exec(ctx, `UPDATE accounts SET flat_rate = $3 WHERE workspace_id = $1 AND id = $2`, ws, account, flat)
		return rateDetail(flat), err
	})
}

// rateDetail says how an account is paid.
func rateDetail(flat bool) string {
	if flat {
		return "flat rate"
	}
	return "paid by the token"
}

// Reset forgets an account's limits and makes it healthy. Instances that have limits of
// it in memory find out when they read the pool. Of ev, Account, Provider and Detail are
// filled in.
func (s *Store) Reset(ctx context.Context, ws id.Workspace, account id.Account, ev Event) error {
	return s.change(ctx, ws, account, ev, func(ctx context.Context, tx pgx.Tx, was Account) (string, error) {
		return "limits and health reset", AsNew(ctx, tx, ws, was.Provider, account)
	})
}

// AsNew forgets an account's limits and makes it healthy, in a transaction. Every instance
// follows, once.
func AsNew(ctx context.Context, tx pgx.Tx, ws id.Workspace, provider string, account id.Account) error {
	args := pg.Args{"workspace": ws, "provider": provider, "account": account}
	// A clearing is dated after what it replaces, whatever the clocks say. That of the
	// account as a whole is there too: its limit may not have been written yet.
	if _, err := tx.Exec(ctx, `
		INSERT INTO account_limits (workspace_id, provider, account_id, family, at, step, reason, status, raw)
		SELECT @workspace, @provider, @account, family, clock_timestamp(), 0, '', 0, ''
		FROM (SELECT family FROM account_limits WHERE workspace_id = @workspace AND account_id = @account UNION SELECT '') f
		ON CONFLICT (workspace_id, account_id, family) DO UPDATE SET
			at = greatest(EXCLUDED.at, account_limits.at + interval '1 microsecond'),
			until = NULL, soon = NULL, step = 0, reason = '', status = 0, raw = ''`, args); err != nil {
		return fmt.Errorf("forget the limits of account %s: %w", account, err)
	}
	_, err := tx.Exec(ctx, `
		INSERT INTO account_health (workspace_id, provider, account_id, health, at, reset_at)
		VALUES (@workspace, @provider, @account, 100, clock_timestamp(), clock_timestamp())
		ON CONFLICT (workspace_id, account_id) DO UPDATE SET health = 100,
			at = greatest(EXCLUDED.at, account_health.at + interval '1 microsecond'), reset_at = EXCLUDED.reset_at`, args)
	if err != nil {
		return fmt.Errorf("make account %s healthy: %w", account, err)
	}
	return nil
}

// Switch makes an account the current one of its pool, for every instance once. Of ev,
// Account, Provider and Detail are filled in.
func (s *Store) Switch(ctx context.Context, ws id.Workspace, account id.Account, ev Event) error {
	return s.change(ctx, ws, account, ev, func(ctx context.Context, tx pgx.Tx, was Account) (string, error) {
		if !was.Enabled {
			return "", fault.New(fault.Conflict, "account %s is disabled: enable it first", account)
		}
		return "made the current one", makeCurrent(ctx, tx, ws, was.Provider, account)
	})
}

// Imported is an account that was brought along.
type Imported struct {
	Workspace id.Workspace // zero for the operator's
	Account   id.Account
}

// FindImported returns the accounts of all workspaces that were brought along, by the hash
// that they came with (Brought). It is for the operator's command line, which is why it
// needs the system's claim.
func (s *Store) FindImported(ctx context.Context) (map[string]Imported, error) {
	all := map[string]Imported{}
	err := s.db.AsSystem(ctx, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT imported, workspace_id, id FROM accounts WHERE imported IS NOT NULL`)
		if err != nil {
			return err
		}
		var hash []byte
		var one Imported
		_, err = pgx.ForEachRow(rows, []any{&hash, &one.Workspace, &one.Account}, func() error { all[string(hash)] = one; return nil })
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look for accounts that were imported: %w", err)
	}
	return all, nil
}

// change runs fn on an account that is locked, and records what it says that it
// changed; nothing where it says nothing.
func (s *Store) change(ctx context.Context, ws id.Workspace, account id.Account, ev Event, fn func(context.Context, pgx.Tx, Account) (string, error)) error {
	return s.in(ctx, ws, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT `+columns+` FROM accounts WHERE workspace_id = $1 AND id = $2 FOR UPDATE`, ws, account)
		if err != nil {
			return fmt.Errorf("read account %s: %w", account, err)
		}
		was, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[Account])
		if pg.NoRows(err) {
			return noAccount(account)
		}
		if err != nil {
			return fmt.Errorf("read account %s: %w", account, err)
		}
		if ev.Detail, err = fn(ctx, tx, was); err != nil {
			return fmt.Errorf("change account %s: %w", account, err)
		}
		if ev.Detail == "" {
			return nil
		}
		ev.Action, ev.Account, ev.Provider = "changed", account, was.Provider
		return record(ctx, tx, ws, ev)
	})
}

// Settings are a pool's, as they are stored.
type Settings struct {
	Workspace id.Workspace
	Provider  string
	Settings  []byte
	// Current is the account that somebody switched to last, if anybody has.
	Current   *id.Account
	CurrentAt *time.Time
}

// Settings returns the settings of a workspace's pools that have some; with the zero
// workspace the operator's.
func (s *Store) Settings(ctx context.Context, ws id.Workspace) ([]Settings, error) {
	var all []Settings
	err := s.in(ctx, ws, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			SELECT workspace_id AS workspace, provider, settings, current_account AS current, current_at
			FROM pools WHERE workspace_id = $1 ORDER BY provider`, ws)
		if err != nil {
			return err
		}
		all, err = pgx.CollectRows(rows, pgx.RowToStructByName[Settings])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the settings of pools: %w", err)
	}
	return all, nil
}

// ChangeSettings stores what change makes of a pool's settings, under a lock: what two
// change at once is both there. It records what change says, and does nothing where it
// says nothing. Of ev, Provider and Detail are filled in.
func (s *Store) ChangeSettings(ctx context.Context, ws id.Workspace, provider string, ev Event, change func(now []byte) (next []byte, detail string, err error)) error {
	err := s.in(ctx, ws, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `INSERT INTO pools (workspace_id, provider) VALUES ($1, $2) ON CONFLICT DO NOTHING`, ws, provider); err != nil {
			return fmt.Errorf("lock the settings of a pool: %w", err)
		}
		var now []byte
		if err := tx.QueryRow(ctx, `SELECT settings FROM pools WHERE workspace_id = $1 AND provider = $2 FOR UPDATE`, ws, provider).Scan(&now); err != nil {
			return fmt.Errorf("read the settings of a pool: %w", err)
		}
		next, detail, err := change(now)
		if err != nil {
			return err
		}
		if detail == "" {
			return errNothing
		}
		if _, err := tx.Exec(ctx, `UPDATE pools SET settings = $3, changed_at = now() WHERE workspace_id = $1 AND provider = $2`, ws, provider, next); err != nil {
			return fmt.Errorf("store the settings of a pool: %w", err)
		}
		ev.Action, ev.Provider, ev.Detail = "changed", provider, detail
		return record(ctx, tx, ws, ev)
	})
	if errors.Is(err, errNothing) {
		return nil
	}
	return err
}

// errNothing ends a transaction that was to change something and leaves nothing behind.
var errNothing = errors.New("there is nothing to change")

// ResetStats forgets what a workspace's accounts did, or one of them. Of ev, Account and
// Detail are filled in.
func (s *Store) ResetStats(ctx context.Context, ws id.Workspace, account id.Account, ev Event) error {
	return s.in(ctx, ws, func(ctx context.Context, tx pgx.Tx) error {
		if !id.IsZero(account) {
			err := tx.QueryRow(ctx, `SELECT provider FROM accounts WHERE workspace_id = $1 AND id = $2`, ws, account).Scan(&ev.Provider)
			if pg.NoRows(err) {
				return noAccount(account)
			}
			if err != nil {
				return fmt.Errorf("read account %s: %w", account, err)
			}
		}
		_, err := tx.Exec(ctx, `DELETE FROM account_stats WHERE workspace_id = @workspace AND (@all OR account_id = @account)`,
			pg.Args{"workspace": ws, "all": id.IsZero(account), "account": account})
		if err != nil {
			return fmt.Errorf("forget what accounts did: %w", err)
		}
		ev.Action, ev.Account, ev.Detail = "changed", account, "statistics reset"
		return record(ctx, tx, ws, ev)
	})
}

// Known is what instances have written of a workspace's accounts.
type Known struct {
	Limits map[id.Account][]Limit
	Health map[id.Account]Health
}

// Known returns what is known of a workspace's own accounts; with the zero workspace of
// the operator's.
func (s *Store) Known(ctx context.Context, ws id.Workspace) (Known, error) {
	k := Known{Limits: map[id.Account][]Limit{}, Health: map[id.Account]Health{}}
	err := s.in(ctx, ws, func(ctx context.Context, tx pgx.Tx) error {
		b := &pgx.Batch{}
		b.Queue(`
			SELECT workspace_id, provider, account_id, family, at, until, soon, step, reason, status, raw FROM account_limits
			WHERE workspace_id = $1 AND until > now() ORDER BY account_id, family`, ws).Query(func(rows pgx.Rows) error {
			all, err := pgx.CollectRows(rows, scanLimit)
			for _, l := range all {
				k.Limits[l.Account] = append(k.Limits[l.Account], l)
			}
			return err
		})
		b.Queue(`
			SELECT `+healthColumns+` FROM account_health WHERE workspace_id = $1`, ws).Query(func(rows pgx.Rows) error {
			all, err := pgx.CollectRows(rows, pgx.RowToStructByName[Health])
			for _, h := range all {
				k.Health[h.Account] = h
			}
			return err
		})
		return tx.SendBatch(ctx, b).Close()
	})
	if err != nil {
		return Known{}, fmt.Errorf("read what is known of accounts: %w", err)
	}
	return k, nil
}
