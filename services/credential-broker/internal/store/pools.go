package store

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
	"signalbox.dev/services/credential-broker/internal/choice"
)

// Pool is what is stored of the accounts that a workspace may use for a provider.
type Pool struct {
	// Owner is whose pool it is: the workspace, or the operator where it has no account
	// of its own.
	Owner    id.Workspace
	Accounts []Account // enabled ones, in the order in which they were added
	// Settings are JSON, empty where the pool has none of its own.
	Settings []byte
	Limits   []Limit
	Health   []Health
	// Current is the account that somebody switched to, and when; zero where nobody has.
	Current   id.Account
	CurrentAt time.Time
}

// Limit is a parking of an account.
type Limit struct {
	Workspace id.Workspace
	Provider  string
	Account   id.Account
	choice.Limit
}

// Health is an account's health as it was at a time.
type Health struct {
	Workspace id.Workspace
	Provider  string
	Account   id.Account
	Health    float64
	At        time.Time
	// ResetAt is when somebody made it healthy last; nil for never.
	ResetAt *time.Time
}

const healthColumns = `workspace_id AS workspace, provider, account_id AS account, health, at, reset_at`

// Stat is what an account did that went one way.
type Stat struct {
	Workspace  id.Workspace
	Provider   string
	Account    id.Account
	Reason     choice.Reason
	Requests   int64
	TokensIn   int64
	TokensOut  int64
	CostMicros int64
}

// noSettings is what is stored of a pool that has none.
const noSettings = "{}"

// Pool returns the accounts that a workspace may use for a provider, its own where it
// has any, else the shared ones, and what is known of them. Of a workspace without
// either the pool is the operator's, which may hold what is known of an account from
// the environment.
func (s *Store) Pool(ctx context.Context, ws id.Workspace, provider string) (Pool, error) {
	var all []Account
	var settings []Settings
	var limits []Limit
	var health []Health
	args := pg.Args{"workspace": ws, "provider": provider}
	err := s.in(ctx, ws, func(ctx context.Context, tx pgx.Tx) error {
		b := &pgx.Batch{}
		b.Queue(`
			SELECT `+columns+` FROM accounts
			WHERE workspace_id IN (@workspace, `+shared+`) AND provider = @provider AND enabled
			ORDER BY workspace_id = `+shared+`, created_at, id`, args).Query(func(rows pgx.Rows) (err error) {
			all, err = pgx.CollectRows(rows, pgx.RowToStructByName[Account])
			return err
		})
		b.Queue(`SELECT workspace_id AS workspace, provider, settings, current_account AS current, current_at FROM pools WHERE workspace_id IN (@workspace, `+shared+`) AND provider = @provider`, args).Query(func(rows pgx.Rows) (err error) {
			settings, err = pgx.CollectRows(rows, pgx.RowToStructByName[Settings])
			return err
		})
		b.Queue(`
			SELECT workspace_id, provider, account_id, family, at, until, soon, step, reason, status, raw FROM account_limits
			WHERE workspace_id IN (@workspace, `+shared+`) AND provider = @provider`, args).Query(func(rows pgx.Rows) (err error) {
			limits, err = pgx.CollectRows(rows, scanLimit)
			return err
		})
		b.Queue(`
			SELECT `+healthColumns+` FROM account_health
			WHERE workspace_id IN (@workspace, `+shared+`) AND provider = @provider`, args).Query(func(rows pgx.Rows) (err error) {
			health, err = pgx.CollectRows(rows, pgx.RowToStructByName[Health])
			return err
		})
		return tx.SendBatch(ctx, b).Close()
	})
	if err != nil {
		return Pool{}, fmt.Errorf("read accounts: %w", err)
	}
	p := Pool{}
	if len(all) > 0 {
		p.Owner = all[0].WorkspaceID
	}
	for _, a := range all {
		if a.WorkspaceID == p.Owner {
			p.Accounts = append(p.Accounts, a)
		}
	}
	for _, row := range settings {
		if row.Workspace == p.Owner {
			if string(row.Settings) != noSettings {
				p.Settings = row.Settings
			}
			if row.Current != nil && row.CurrentAt != nil {
				p.Current, p.CurrentAt = *row.Current, *row.CurrentAt
			}
		}
	}
	for _, l := range limits {
		if l.Workspace == p.Owner {
			p.Limits = append(p.Limits, l)
		}
	}
	for _, h := range health {
		if h.Workspace == p.Owner {
			p.Health = append(p.Health, h)
		}
	}
	return p, nil
}

func scanLimit(row pgx.CollectableRow) (l Limit, err error) {
	var until, soon *time.Time
	err = row.Scan(&l.Workspace, &l.Provider, &l.Account, &l.Family, &l.At, &until, &soon, &l.Step, &l.Reason, &l.Status, &l.Raw)
	if until != nil && soon != nil {
		l.Until, l.Soon = *until, *soon
	}
	return l, err
}

// Stats returns what a workspace's accounts did; for the zero workspace, the
// operator's.
func (s *Store) Stats(ctx context.Context, ws id.Workspace) ([]Stat, error) {
	var all []Stat
	err := s.in(ctx, ws, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			SELECT workspace_id AS workspace, provider, account_id AS account, reason, requests, tokens_in, tokens_out, cost_micros
			FROM account_stats WHERE workspace_id = $1 ORDER BY provider, account_id, reason`, ws)
		if err != nil {
			return err
		}
		all, err = pgx.CollectRows(rows, pgx.RowToStructByName[Stat])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read what accounts did: %w", err)
	}
	return all, nil
}

// Learned is what one instance has to write behind.
type Learned struct {
	// Stats are added, once for each Sequence of an Instance.
	Instance uuid.UUID
	Sequence int64
	Stats    []Stat
	// Limits replace older ones, Health what was there.
	Limits []Limit
	Health []Health
}

// Sort brings the rows into the order in which all instances write them, so that two
// do not wait for each other.
func (l *Learned) Sort() {
	slices.SortFunc(l.Stats, func(a, b Stat) int {
		return cmp.Or(bytes.Compare(a.Account.UUID[:], b.Account.UUID[:]), cmp.Compare(a.Reason, b.Reason))
	})
	slices.SortFunc(l.Limits, func(a, b Limit) int {
		return cmp.Or(bytes.Compare(a.Account.UUID[:], b.Account.UUID[:]), cmp.Compare(a.Family, b.Family))
	})
	slices.SortFunc(l.Health, func(a, b Health) int { return bytes.Compare(a.Account.UUID[:], b.Account.UUID[:]) })
}

// Learn writes what an instance learned, in one transaction. Writing it again changes
// nothing.
func (s *Store) Learn(ctx context.Context, l Learned) error {
	// As the system: it is about accounts of many workspaces.
	err := s.db.AsSystem(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if len(l.Stats) > 0 {
			if err := addStats(ctx, tx, l); err != nil {
				return err
			}
		}
		b := &pgx.Batch{}
		for _, x := range l.Limits {
			b.Queue(`
				INSERT INTO account_limits (workspace_id, provider, account_id, family, at, until, soon, step, reason, status, raw)
				VALUES (@workspace, @provider, @account, @family, @at, @until, @soon, @step, @reason, @status, @raw)
				ON CONFLICT (workspace_id, account_id, family) DO UPDATE SET at = EXCLUDED.at, until = EXCLUDED.until, soon = EXCLUDED.soon,
					step = EXCLUDED.step, reason = EXCLUDED.reason, status = EXCLUDED.status, raw = EXCLUDED.raw
				WHERE (account_limits.at, coalesce(account_limits.until, '-infinity')) < (EXCLUDED.at, coalesce(EXCLUDED.until, '-infinity'))`, pg.Args{
				"workspace": x.Workspace, "provider": x.Provider, "account": x.Account, "family": x.Family, "at": x.At,
				"until": orNothing(x.Until), "soon": orNothing(x.Soon), "step": x.Step, "reason": string(x.Reason), "status": x.Status, "raw": x.Raw,
			})
		}
		for _, x := range l.Health {
			b.Queue(`
				INSERT INTO account_health (workspace_id, provider, account_id, health, at) VALUES (@workspace, @provider, @account, @health, @at)
				ON CONFLICT (workspace_id, account_id) DO UPDATE SET health = EXCLUDED.health, at = EXCLUDED.at
				WHERE account_health.at < EXCLUDED.at`, pg.Args{
				"workspace": x.Workspace, "provider": x.Provider, "account": x.Account, "health": x.Health, "at": x.At,
			})
		}
		if b.Len() == 0 {
			return nil
		}
		return tx.SendBatch(ctx, b).Close()
	})
	if err != nil {
		return fmt.Errorf("write what was learned of accounts: %w", err)
	}
	return nil
}

// addStats adds to the statistics unless it was done before.
func addStats(ctx context.Context, tx pgx.Tx, l Learned) error {
	tag, err := tx.Exec(ctx, `
		INSERT INTO stat_writers (workspace_id, instance, sequence) VALUES (`+shared+`, @instance, @sequence)
		ON CONFLICT (workspace_id, instance) DO UPDATE SET sequence = EXCLUDED.sequence, at = now()
		WHERE stat_writers.sequence < EXCLUDED.sequence`, pg.Args{"instance": l.Instance, "sequence": l.Sequence})
	if err != nil || tag.RowsAffected() == 0 {
		return err
	}
	b := &pgx.Batch{}
	if l.Sequence == 1 { // once for each instance
		b.Queue(`DELETE FROM stat_writers WHERE at < now() - interval '7 days'`)
	}
	for _, x := range l.Stats {
		b.Queue(`
			INSERT INTO account_stats (workspace_id, provider, account_id, reason, requests, tokens_in, tokens_out, cost_micros)
			VALUES (@workspace, @provider, @account, @reason, @requests, @in, @out, @cost)
			ON CONFLICT (workspace_id, account_id, reason) DO UPDATE SET
				requests = account_stats.requests + EXCLUDED.requests, tokens_in = account_stats.tokens_in + EXCLUDED.tokens_in,
				tokens_out = account_stats.tokens_out + EXCLUDED.tokens_out, cost_micros = account_stats.cost_micros + EXCLUDED.cost_micros`, pg.Args{
			"workspace": x.Workspace, "provider": x.Provider, "account": x.Account, "reason": string(x.Reason),
			"requests": x.Requests, "in": x.TokensIn, "out": x.TokensOut, "cost": x.CostMicros,
		})
	}
	return tx.SendBatch(ctx, b).Close()
}

func orNothing(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t
}
