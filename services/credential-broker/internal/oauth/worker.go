package oauth

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"signalbox.dev/pkg/id"
	"signalbox.dev/pkg/pg"
)

const (
	dueAtOnce   = 200 // grants that one look renews at most
	atOnce      = 32  // renewals of one instance at a time: one that waits for a server takes nothing else
	sweepEvery  = time.Hour
	keepHistory = 30 * 24 * time.Hour
)

// Run renews what is due until ctx is done, and returns nil. Every instance runs it;
// the lease of each grant decides who renews. Close waits for what is under way then.
func (k *Keeper) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { k.follow(ctx) })
	var swept time.Time
	for {
		if err := k.renewDue(ctx); err != nil && ctx.Err() == nil {
			k.cfg.Log.WarnContext(ctx, "no look for tokens that are due", "error", err)
		}
		if time.Since(swept) >= sweepEvery {
			swept = time.Now()
			if err := k.sweep(ctx); err != nil && ctx.Err() == nil {
				k.cfg.Log.WarnContext(ctx, "old logins and attempts not removed", "error", err)
			}
		}
		// Not in step with the other instances.
		if sleep(ctx, k.cfg.Every/2+time.Duration(k.cfg.Rand()*float64(k.cfg.Every))) != nil {
			return nil
		}
	}
}

func (k *Keeper) renewDue(ctx context.Context) error {
	due, err := k.due(ctx)
	if err != nil {
		return err
	}
	var g errgroup.Group
	g.SetLimit(atOnce)
	for _, ref := range due {
		g.Go(func() error {
			if ctx.Err() != nil {
				return nil
			}
			// What goes wrong is logged, and written to the grant, where it happens.
			_, _ = k.wait(ctx, k.start(ctx, ref, 0, false))
			return nil
		})
	}
	return g.Wait()
}

// due returns grants that should be renewed and that nobody renews. It looks at all
// workspaces, which is why it needs the system's claim.
func (k *Keeper) due(ctx context.Context) ([]Ref, error) {
	var all []Ref
	err := k.cfg.DB.AsSystem(ctx, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			SELECT workspace_id AS workspace, account_id AS account FROM grants
			WHERE state = 'active' AND refresh_at <= now() AND refresh_sealed IS NOT NULL AND provider = ANY ($2)
				AND (lease_until IS NULL OR lease_until < now()) AND (retry_at IS NULL OR retry_at <= now())
			ORDER BY refresh_at LIMIT $1`, dueAtOnce, k.cfg.Providers.Names())
		if err != nil {
			return err
		}
		all, err = pgx.CollectRows(rows, pgx.RowToStructByName[Ref])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look for tokens that are due: %w", err)
	}
	return all, nil
}

// overlap is what is looked at again: a change counts from its commit, which is later
// than the time in its row, by no more than a transaction may take.
const overlap = 30 * time.Second

// follow forgets what others have changed: a token that was renewed elsewhere is not
// sent again, and one of an account that was signed out not at all.
func (k *Keeper) follow(ctx context.Context) {
	for sleep(ctx, k.cfg.Follow) == nil {
		changed, err := k.changed(ctx)
		if err != nil {
			if ctx.Err() == nil {
				k.cfg.Log.WarnContext(ctx, "no look for grants that others have changed", "error", err)
			}
			continue
		}
		k.mu.Lock()
		for _, c := range changed {
			ref := Ref{c.Workspace, c.Account}
			if h, ok := k.held[ref]; ok && h.err == nil && (h.token.Version < c.Version || c.State != Active) {
				delete(k.held, ref)
			}
		}
		k.mu.Unlock()
	}
}

type change struct {
	Workspace id.Workspace
	Account   id.Account
	Version   int64
	State     State
}

// changed returns what has changed a short while ago, in all workspaces, which is why
// it needs the system's claim.
func (k *Keeper) changed(ctx context.Context) ([]change, error) {
	var all []change
	b := &pgx.Batch{}
	b.Queue(`SELECT workspace_id AS workspace, account_id AS account, version, state FROM grants WHERE changed_at > now() - $1::interval`, overlap).
		Query(pg.Collect(&all))
	if err := k.cfg.DB.ReadAsSystem(ctx, b); err != nil {
		return nil, err
	}
	return all, nil
}

// sweep removes logins that nobody completed, and attempts of long ago. It looks at
// all workspaces, which is why it needs the system's claim.
func (k *Keeper) sweep(ctx context.Context) error {
	return k.cfg.DB.AsSystem(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `DELETE FROM logins WHERE expires_at < now()`); err != nil {
			return fmt.Errorf("remove logins: %w", err)
		}
		if _, err := tx.Exec(ctx, `DELETE FROM grant_attempts WHERE started_at < now() - $1::interval`, keepHistory); err != nil {
			return fmt.Errorf("remove attempts: %w", err)
		}
		return nil
	})
}
