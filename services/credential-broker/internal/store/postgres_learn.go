package store

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"signalbox.dev/pkg/pg"
)

const (
	// stored is true of accounts that are stored, which they then are until the transaction
	// ends, or are among Learned.Unstored.
	stored = `(@account::uuid = ANY (@unstored::uuid[]) OR EXISTS (SELECT FROM accounts a WHERE a.workspace_id = @workspace AND a.id = @account FOR KEY SHARE))`
	// ahead is the time after which no date is believed: now and maxAhead.
	ahead = `now() + interval '10 minutes'`
)

// Learn is about accounts of many workspaces, and therefore has the system's claim.
func (s postgres) Learn(ctx context.Context, l Learned) error {
	err := s.db.AsSystem(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if len(l.Stats) > 0 {
			if err := addStats(ctx, tx, l); err != nil {
				return err
			}
		}
		b := &pgx.Batch{}
		for _, x := range l.Limits {
			args := limitArgs(&x)
			args["unstored"] = l.Unstored
			b.Queue(`
				INSERT INTO account_limits (workspace_id, provider, account_id, family, at, until, soon, step, reason, status, raw)
				SELECT @workspace, @provider, @account, @family, @at - early, @until::timestamptz - early, @soon::timestamptz - early, @step, @reason, @status, @raw
				FROM (SELECT CASE WHEN @at::timestamptz > `+ahead+` THEN @at - now() ELSE '0' END AS early) clock
				WHERE NOT EXISTS (SELECT FROM account_health h WHERE h.workspace_id = @workspace AND h.account_id = @account AND h.reset_at >= @at - early) AND `+stored+`
				ON CONFLICT (workspace_id, account_id, family) DO UPDATE SET at = EXCLUDED.at, until = EXCLUDED.until, soon = EXCLUDED.soon,
					step = EXCLUDED.step, reason = EXCLUDED.reason, status = EXCLUDED.status, raw = EXCLUDED.raw
				WHERE account_limits.at > `+ahead+` OR (account_limits.at, coalesce(account_limits.until, '-infinity')) < (EXCLUDED.at, coalesce(EXCLUDED.until, '-infinity'))`, args)
		}
		for _, x := range l.Health {
			b.Queue(`
				INSERT INTO account_health (workspace_id, provider, account_id, health, at)
				SELECT @workspace, @provider, @account, @health, CASE WHEN @at::timestamptz > `+ahead+` THEN now() ELSE @at END WHERE `+stored+`
				ON CONFLICT (workspace_id, account_id) DO UPDATE SET health = EXCLUDED.health, at = EXCLUDED.at
				WHERE account_health.at > `+ahead+` OR account_health.at < EXCLUDED.at`, pg.Args{
				"workspace": x.Workspace, "provider": x.Provider, "account": x.Account, "health": x.Health, "at": x.At, "unstored": l.Unstored,
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

// addStats adds to the statistics unless that was done before.
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
		b.Queue(`DELETE FROM stat_writers WHERE at < now() - @keep::interval`, pg.Args{"keep": keepLearned})
		b.Queue(`DELETE FROM account_limits WHERE greatest(at, until) < now() - @keep::interval`, pg.Args{"keep": keepLearned})
	}
	for _, x := range l.Stats {
		b.Queue(`
			INSERT INTO account_stats (workspace_id, provider, account_id, reason, requests, tokens_in, tokens_out, cost_micros)
			SELECT @workspace, @provider, @account, @reason, @requests, @in, @out, @cost WHERE `+stored+`
			ON CONFLICT (workspace_id, account_id, reason) DO UPDATE SET
				requests = account_stats.requests + EXCLUDED.requests, tokens_in = account_stats.tokens_in + EXCLUDED.tokens_in,
				tokens_out = account_stats.tokens_out + EXCLUDED.tokens_out, cost_micros = account_stats.cost_micros + EXCLUDED.cost_micros`, pg.Args{
			"workspace": x.Workspace, "provider": x.Provider, "account": x.Account, "reason": string(x.Reason),
			"requests": x.Requests, "in": x.TokensIn, "out": x.TokensOut, "cost": x.CostMicros, "unstored": l.Unstored,
		})
	}
	return tx.SendBatch(ctx, b).Close()
}

// Used has the system's claim: an account may be the operator's, which a workspace cannot
// write.
func (s postgres) Used(ctx context.Context, all []Use) error {
	byAccount, byChain := slices.Clone(all), slices.Clone(all)
	// All instances take their locks in this order: the accounts, then the ends of the chains.
	slices.SortFunc(byAccount, func(a, b Use) int {
		return cmp.Or(bytes.Compare(a.Account.UUID[:], b.Account.UUID[:]), b.At.Compare(a.At))
	})
	slices.SortStableFunc(byChain, func(a, b Use) int {
		return cmp.Or(bytes.Compare(a.Workspace.UUID[:], b.Workspace.UUID[:]), a.At.Compare(b.At))
	})
	err := s.db.AsSystem(ctx, func(ctx context.Context, tx pgx.Tx) error {
		b := &pgx.Batch{}
		for _, u := range slices.CompactFunc(byAccount, func(a, b Use) bool { return a.Account == b.Account }) {
			b.Queue(`
				UPDATE accounts SET last_used_at = least(@at, now()) WHERE workspace_id IN (@workspace, `+shared+`) AND id = @account
					AND (last_used_at IS NULL OR last_used_at < @at)`, pg.Args{"workspace": u.Workspace, "account": u.Account, "at": u.At})
		}
		for _, u := range byChain {
			if u.Again {
				continue
			}
			u.Action, u.Detail = "used", u.happened()
			args, err := auditArgs(u.Workspace, u.Event)
			if err != nil {
				return err
			}
			b.Queue(insertAudit, args)
		}
		return tx.SendBatch(ctx, b).Close()
	})
	if err != nil {
		return fmt.Errorf("record uses of accounts: %w", err)
	}
	return nil
}
